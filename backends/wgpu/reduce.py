"""Reduce, Scan and Sort over the last axis in WGSL.

Rows are cut into pieces, whose results are reduced or scanned again. Sort counts, for each element, those that come
before it: as many comparisons as the square of a row, but no barrier and any length.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import UnsupportedError
from opgauge.reference_engine.types import Kernel

from . import movement, pointwise, shader
from .plan import Builder, Tensor, pieces

# Elements that one invocation reduces: well below plan.MAX_ITERATIONS, and enough invocations for one long row.
PIECE = 1024
SUM_ORDER = f"pieces of {PIECE} elements in sequence, then their sums in pieces of {PIECE}, and so on"
ACCUMULATOR = {
    **dict.fromkeys(pointwise.FLOATS, "float32"),
    **dict.fromkeys(pointwise.SIGNED, "int32"),
    **dict.fromkeys((*pointwise.UNSIGNED, "bool"), "uint32"),
    **{d: d for d in ("int64", "uint64", "float64")},
}
COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
# Whether a is larger than b; -0 is not smaller than 0.
ABOVE = {
    "float32": "order(select(a, 0u, a == SIGN)) > order(select(b, 0u, b == SIGN))",
    "int32": "bitcast<i32>(a) > bitcast<i32>(b)",
    "uint32": "a > b",
    "int64": "below_int64(b, a)",
    "uint64": "below_uint64(b, a)",
    "float64": "below_int64(order_float64(add_zero(b)), order_float64(add_zero(a)))",
}
# Comparisons of one Sort beyond which a case is refused rather than left to a time limit.
MOST_COMPARISONS = 2**33


def combine(fn: str, dtype: str) -> str:
    """fn combine(a, b) of the accumulator of a type."""
    acc = ACCUMULATOR[dtype]
    kind = shader.element_type(acc)
    return f"fn combine(a: {kind}, b: {kind}) -> {kind} {{ return {pointwise.FNS[acc][COMBINE[fn]]}; }}\n"


def above(dtype: str) -> str:
    """fn above(a, b) of the accumulator of a type."""
    acc = ACCUMULATOR[dtype]
    kind = shader.element_type(acc)
    return f"fn above(a: {kind}, b: {kind}) -> bool {{ return {ABOVE[acc]}; }}\n"


@functools.cache
def reduce_code(fn: str, dtype: str) -> str:
    acc = ACCUMULATOR[dtype]
    # p[2] = n; p[3] = pieces per row; p[4] = elements per piece
    body = f"""{combine(fn, dtype)}
fn element(i: u32) -> {shader.element_type(acc)} {{
    let row = (i / p[3]) * p[2];
    let first = (i % p[3]) * p[4];
    let end = min(first + p[4], p[2]);
    var acc = load0(row + first);
    for (var k = first + 1u; k < end; k++) {{ acc = combine(acc, load0(row + k)); }}
    return acc;
}}"""
    return shader.per_element((dtype,), acc, body, pointwise.libraries(dtype))


def reduce(fn: str) -> Callable[..., None]:
    """out[*] = fn over n of x[*,n]; sums of floats in the order of SUM_ORDER, of integers modulo their range

    max and min keep NaN; n = 0 gives 0 for sum, 1 for prod and the type's own limit for max and min.
    """

    def call(build: Builder, x: Tensor, out: Tensor) -> None:
        if not x.size:
            movement.fill(build, build.constant(identity(fn, out.dtype)), out)
            return
        acc, left = ACCUMULATOR[x.dtype], x.shape[-1]
        while True:
            n, left = left, math.ceil(left / PIECE)
            last = left == 1
            target = out if last and acc == out.dtype else build.temporary((out.size, left), acc)
            code = reduce_code(fn, x.dtype)
            build.dispatch(code, (x,), (target,), (target.size, n, left, PIECE), target.size)
            x = target
            if last:
                break
        if x is not out:
            pointwise.cast(build, x, out, out.dtype)

    return call


def identity(fn: str, dtype: str) -> np.ndarray:
    kind = dt.numpy_dtype(dtype)
    if fn in ("sum", "prod"):
        return np.asarray(fn == "prod", kind)
    if dt.is_float(dtype):
        return np.asarray(-np.inf if fn == "max" else np.inf, kind)
    if dtype == "bool":
        return np.asarray(fn == "min")
    low, high = dt.limits(dtype)
    return np.asarray(low if fn == "max" else high, kind)


@functools.cache
def place_code(fn: str, last: bool, dtype: str) -> str:
    better = {
        ("argmax", False): "above(a, b)",
        ("argmax", True): "!above(b, a)",
        ("argmin", False): "above(b, a)",
        ("argmin", True): "!above(a, b)",
    }[fn, last]
    # p[2] = candidates per row, p[3] = pieces, p[4] = candidates per piece, p[5] = n, p[6] = 1 where x1 lists them
    body = f"""{above(dtype)}
fn candidate(row: u32, k: u32) -> u32 {{
    if (p[6] == 1u) {{ return x1[row * p[2] + k]; }}
    return k;
}}
fn element(i: u32) -> u32 {{
    let row = i / p[3];
    let first = (i % p[3]) * p[4];
    let end = min(first + p[4], p[2]);
    var best = candidate(row, first);
    var b = load0(row * p[5] + best);
    for (var k = first + 1u; k < end; k++) {{
        let at = candidate(row, k);
        let a = load0(row * p[5] + at);
        if ({better}) {{
            best = at;
            b = a;
        }}
    }}
    return best;
}}"""
    return shader.per_element((dtype, "uint32"), "uint32", body, pointwise.libraries(dtype))


def place_of(fn: str) -> Callable[..., None]:
    """out[*] = the first n (with `last` the last one) at which x[*,n] is extreme"""

    def call(build: Builder, x: Tensor, out: Tensor, last: object) -> None:
        n = left = x.shape[-1]
        code, places = place_code(fn, bool(last), x.dtype), None
        while places is None or left > 1:
            candidates, left = left, math.ceil(left / PIECE)
            target = build.temporary((out.size, left), "uint32")
            params = (target.size, candidates, left, PIECE, n, int(places is not None))
            build.dispatch(code, (x, places or x), (target,), params, target.size)
            places = target
        pointwise.cast(build, places, out, "int64")

    return call


@functools.cache
def scan_code(fn: str, dtype: str) -> str:
    # As reduce_code; y[row, k] so far within the piece, y1[row, piece] its total.
    main = """    let row = (w / p[3]) * p[2];
    let first = (w % p[3]) * p[4];
    let end = min(first + p[4], p[2]);
    var acc = load0(row + first);
    y[row + first] = acc;
    for (var k = first + 1u; k < end; k++) {
        acc = combine(acc, load0(row + k));
        y[row + k] = acc;
    }
    y1[w] = acc;"""
    acc = ACCUMULATOR[dtype]
    return shader.frame((dtype,), (acc, acc), combine(fn, dtype), main, pointwise.libraries(dtype))


@functools.cache
def carry_code(fn: str, acc: str) -> str:
    # p[2] = n, p[3] = pieces, p[4] = elements per piece; x1 the scanned totals of the pieces
    body = f"""{combine(fn, acc)}
fn element(i: u32) -> {shader.element_type(acc)} {{
    let row = i / p[2];
    let piece = (i % p[2]) / p[4];
    if (piece == 0u) {{ return load0(i); }}
    return combine(load1(row * p[3] + piece - 1u), load0(i));
}}"""
    return shader.per_element((acc, acc), acc, body, pointwise.libraries(acc))


def running(build: Builder, fn: str, x: Tensor) -> Tensor:
    """x[*,0] op .. op x[*,i] in the accumulator's type."""
    acc, n = ACCUMULATOR[x.dtype], x.shape[-1]
    rows, parts = x.size // n, math.ceil(n / PIECE)
    inside, totals = build.temporary(x.shape, acc), build.temporary((rows, parts), acc)
    build.dispatch(scan_code(fn, x.dtype), (x,), (inside, totals), (x.size, n, parts, PIECE), rows * parts)
    if parts == 1:
        return inside
    made = build.temporary(x.shape, acc)
    code = carry_code(fn, acc)
    build.dispatch(code, (inside, running(build, fn, totals)), (made,), (x.size, n, parts, PIECE), x.size)
    return made


def scan(fn: str) -> Callable[..., None]:
    """out[*,i] = x[*,0] op .. op x[*,i]; integers modulo the type's range"""

    def call(build: Builder, x: Tensor, out: Tensor) -> None:
        made = running(build, fn, x)
        move = movement.copy if made.dtype == out.dtype else pointwise.cast
        move(build, made, out, *((out.dtype,) if move is pointwise.cast else ()))

    return call


@functools.cache
def rank_code(largest: bool, dtype: str) -> str:
    first = "above(a, b)" if largest else "above(b, a)"
    # p[2] = n, p[3] .. p[4] the elements to compare with; an element ranks behind its equals to the left
    main = f"""    let row = (w / p[2]) * p[2];
    let b = load0(w);
    var rank = 0u;
    if (p[3] > 0u) {{ rank = y[w]; }}
    for (var k = p[3]; k < p[4]; k++) {{
        let a = load0(row + k);
        let equal = !above(a, b) && !above(b, a);
        rank += u32({first} || (equal && row + k < w));
    }}
    y[w] = rank;"""
    return shader.frame((dtype,), ("uint32",), above(dtype), main, pointwise.libraries(dtype))


@functools.cache
def order_code() -> str:
    return shader.frame(("uint32",), ("uint32",), "", "    y[w - w % p[2] + x0[w]] = w % p[2];")


@functools.cache
def pick_code(raw: str) -> str:
    body = f"fn element(i: u32) -> {shader.element_type(raw)} {{ return load0(i - i % p[2] + x1[i]); }}"
    return shader.per_element((raw, "uint32"), raw, body)


def sort(values: bool) -> Callable[..., None]:
    """out = the sorted rows of x, or the indices that sort them; equal elements keep their order"""

    def call(build: Builder, x: Tensor, out: Tensor, largest: object) -> None:
        n = x.shape[-1]
        if x.size * n > MOST_COMPARISONS:
            raise UnsupportedError(f"{build.source}: wgpu sorts by counting; {x.spec} is too large for that")
        ranks, order = build.temporary(x.shape, "uint32"), build.temporary(x.shape, "uint32")
        for start, end in pieces(n):
            build.dispatch(rank_code(bool(largest), x.dtype), (x,), (ranks,), (x.size, n, start, end), x.size)
        build.dispatch(order_code(), (ranks,), (order,), (x.size, n), x.size)
        if values:
            pointwise.map_elements(build, pick_code(shader.raw_of(x.dtype)), (x, order), out, n)
        else:
            pointwise.cast(build, order, out, "int64")

    return call


KERNELS = (
    *(Kernel("Reduce", fn, (d, d), reduce(fn)) for fn in ("sum", "prod") for d in (*pointwise.FLOATS, *dt.INTS)),
    *(Kernel("Scan", fn, (d, d), scan(fn)) for fn in ("sum", "prod") for d in ("float32", *dt.INTS)),
    *(Kernel("Reduce", fn, (d, d), reduce(fn)) for fn in ("max", "min") for d in ACCUMULATOR),
    *(Kernel("Reduce", fn, (d, "int64"), place_of(fn)) for fn in ("argmax", "argmin") for d in ACCUMULATOR),
    *(Kernel("Sort", "values", (d, d), sort(True)) for d in ACCUMULATOR),
    *(Kernel("Sort", "order", (d, "int64"), sort(False)) for d in ACCUMULATOR),
)
