"""Reduce, Scan and Sort over the last axis on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.memory import empty
from opgauge.reference_engine.types import Array, Kernel

from .compile import jit, plain

SUM_ORDER = "16 lanes: lane l adds elements l, l+16, ..; then lanes l and l+8, l+4, l+2, l+1 are added"


@jit
def sum_rows(x, out, lanes):
    """out[r] = sum_n x[r,n], in the order that SUM_ORDER states

    Shapes: x [R,n], out [R], lanes [16] scratch.
    Dtypes: float32 or float64 all three.
    """
    n = x.shape[1]
    whole = n - n % 16
    for r in range(x.shape[0]):
        row = x[r]
        lanes[:] = 0
        for start in range(0, whole, 16):
            for l in range(16):
                lanes[l] += row[start + l]
        for l in range(n - whole):
            lanes[l] += row[whole + l]
        for half in (8, 4, 2, 1):
            for l in range(half):
                lanes[l] += lanes[l + half]
        out[r] = lanes[0]


def rows(x: Array) -> Array:
    """[*,n] as [R,n], also where n is 0."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def sum_float(x: Array, out: Array) -> None:
    sum_rows(rows(plain(x)), out.reshape(out.size), empty(16, x.dtype))


def sum_half(x: Array, out: Array) -> None:
    """sum_float in float32, rounded once at the end."""
    wide = empty(out.shape, np.float32)
    sum_float(x.astype(np.float32), wide)
    with np.errstate(over="ignore"):
        out[...] = wide


def sum_integer(x: Array, out: Array) -> None:
    """out[*] = sum_n x[*,n] modulo the type's range"""
    np.add.reduce(x, axis=-1, dtype=x.dtype, out=out)


def max_rows(x: Array, out: Array) -> None:
    """out[*] = max_n x[*,n]; NaN wins; the lowest value of the type for n = 0"""
    with np.errstate(invalid="ignore"):
        np.maximum.reduce(x, axis=-1, out=out, initial=lowest(x.dtype))


def min_rows(x: Array, out: Array) -> None:
    """out[*] = min_n x[*,n]; NaN wins; the highest value of the type for n = 0"""
    with np.errstate(invalid="ignore"):
        np.minimum.reduce(x, axis=-1, out=out, initial=highest(x.dtype))


def product_rows(x: Array, out: Array) -> None:
    """out[*] = prod_n x[*,n] in sequence; integers modulo the type's range; 16-bit floats in float32"""
    with np.errstate(all="ignore"):
        if dt.word_of(x.dtype) in HALVES:
            out[...] = np.multiply.reduce(x.astype(np.float32), axis=-1)
        else:
            np.multiply.reduce(x, axis=-1, dtype=x.dtype, out=out)


def place_of(find: Callable[..., Any]) -> Callable[..., None]:
    """out[*] = the first n (with `last` the last one) at which `find` puts the extreme of x[*,n]"""

    def kernel(x: Array, out: Array, last: object) -> None:
        if not x.shape[-1]:
            return
        wide = x.astype(np.float32) if dt.word_of(x.dtype) in HALVES else x
        if last:
            np.subtract(x.shape[-1] - 1, find(wide[..., ::-1], axis=-1), out=out)
        else:
            out[...] = find(wide, axis=-1)

    return kernel


def scan_rows(ufunc: Any) -> Callable[..., None]:
    """out[*,i] = x[*,0] op .. op x[*,i] in sequence; integers modulo the type's range"""

    def kernel(x: Array, out: Array) -> None:
        with np.errstate(all="ignore"):
            ufunc.accumulate(x, axis=-1, dtype=x.dtype, out=out)

    return kernel


def sorting(x: Array, largest: object) -> Array:
    """Indices that sort the last axis; equal elements keep their order either way"""
    wide = x.astype(np.float32) if dt.word_of(x.dtype) in HALVES else x
    if not largest:
        return np.argsort(wide, axis=-1, kind="stable")
    return x.shape[-1] - 1 - np.argsort(wide[..., ::-1], axis=-1, kind="stable")[..., ::-1]


def sort_order(x: Array, out: Array, largest: object) -> None:
    out[...] = sorting(x, largest)


def sort_values(x: Array, out: Array, largest: object) -> None:
    out[...] = np.take_along_axis(x, sorting(x, largest), -1)


def lowest(dtype: np.dtype) -> Any:
    word = dt.word_of(dtype)
    return -np.inf if dt.is_float(word) else False if word == "bool" else dt.limits(word)[0]


def highest(dtype: np.dtype) -> Any:
    word = dt.word_of(dtype)
    return np.inf if dt.is_float(word) else True if word == "bool" else dt.limits(word)[1]


HALVES = ("float16", "bfloat16")
KERNELS = (
    *(Kernel("Reduce", "sum", (d, d), sum_float) for d in ("float32", "float64")),
    *(Kernel("Reduce", "sum", (d, d), sum_half) for d in ("float16", "bfloat16")),
    *(Kernel("Reduce", "sum", (d, d), sum_integer) for d in dt.INTS),
    Kernel("Reduce", "max", ("*",), max_rows),
    Kernel("Reduce", "min", ("*",), min_rows),
    Kernel("Reduce", "prod", ("*",), product_rows),
    Kernel("Reduce", "argmax", ("*",), place_of(np.argmax)),
    Kernel("Reduce", "argmin", ("*",), place_of(np.argmin)),
    Kernel("Scan", "sum", ("*",), scan_rows(np.add)),
    Kernel("Scan", "prod", ("*",), scan_rows(np.multiply)),
    Kernel("Sort", "values", ("*",), sort_values),
    Kernel("Sort", "order", ("*",), sort_order),
)
