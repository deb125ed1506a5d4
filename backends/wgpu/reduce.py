"""Reduce over the last axis in WGSL: rows are cut into pieces, the pieces' results are reduced again."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Kernel

from . import movement, pointwise, shader
from .plan import Builder, Tensor

# Elements that one invocation reduces: well below plan.MAX_ITERATIONS, and enough invocations for one long row.
PIECE = 1024
SUM_ORDER = f"pieces of {PIECE} elements in sequence, then their sums in pieces of {PIECE}, and so on"
ACCUMULATOR = {
    **dict.fromkeys(pointwise.FLOATS, "float32"),
    **dict.fromkeys(pointwise.SIGNED, "int32"),
    **dict.fromkeys((*pointwise.UNSIGNED, "bool"), "uint32"),
    **{d: d for d in ("int64", "uint64", "float64")},
}
COMBINE = {"sum": "add", "max": "max", "min": "min"}


@functools.cache
def reduce_code(fn: str, dtype: str) -> str:
    acc = ACCUMULATOR[dtype]
    # p[2] = n; p[3] = pieces per row; p[4] = elements per piece
    body = f"""fn combine(a: {shader.element_type(acc)}, b: {shader.element_type(acc)}) -> {shader.element_type(acc)} {{
    return {pointwise.FNS[acc][COMBINE[fn]]};
}}
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

    max and min keep NaN; n = 0 gives 0 for sum and the type's own limit for max and min.
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
    if fn == "sum":
        return np.zeros((), kind)
    if dt.is_float(dtype):
        return np.asarray(-np.inf if fn == "max" else np.inf, kind)
    if dtype == "bool":
        return np.asarray(fn == "min")
    low, high = dt.limits(dtype)
    return np.asarray(low if fn == "max" else high, kind)


KERNELS = (
    *(Kernel("Reduce", "sum", (d, d), reduce("sum")) for d in (*pointwise.FLOATS, *dt.INTS)),
    Kernel("Reduce", "max", ("*",), reduce("max")),
    Kernel("Reduce", "min", ("*",), reduce("min")),
)
