"""Reduce*: rows of the reduced axes become one value each, and the softmax family on one axis."""

from __future__ import annotations

import math
from collections.abc import Callable

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, cast, elementwise, expand, normal_axis, reshape, scalar, transpose
from ...errors import ModelError, ShapeError
from ..checks import integers, one_of, versioned, widen

Ints = tuple[int, ...]
SUMMED = (*dt.FLOATS, "int32", "int64", "uint32", "uint64")


def reduced_axes(
    emit: Emitter, rank: int, axes_input: Value | None, axes: Ints | None, noop_with_empty_axes: int
) -> Ints:
    """Sorted axes to reduce. Raises: ShapeError, ModelError."""
    listed = integers(emit, axes_input, "axes") if axes_input is not None else tuple(axes or ())
    if not listed:
        return () if noop_with_empty_axes else tuple(range(rank))
    found = sorted(normal_axis(emit, int(a), rank) for a in listed)
    if len(set(found)) < len(found):
        raise ModelError(f"{emit.source}: axes {listed} name an axis twice")
    return tuple(found)


def rows_of(emit: Emitter, x: Value, axes: Ints) -> Value:
    """The reduced axes moved last and joined into one."""
    kept = tuple(i for i in range(x.rank) if i not in axes)
    moved = transpose(emit, x, (*kept, *axes))
    return reshape(emit, moved, (*(x.shape[i] for i in kept), math.prod(x.shape[i] for i in axes)))


def last_axis(emit: Emitter, x: Value, axis: int) -> tuple[Value, Ints]:
    """x with this axis last, and the permutation that undoes it."""
    swap = list(range(x.rank))
    swap[axis], swap[-1] = swap[-1], swap[axis]
    return transpose(emit, x, tuple(swap)), tuple(swap)


def per_row(emit: Emitter, fn: str, rows: Value, **lenience: bool) -> Value:
    """One value of each row, broadcast over it."""
    return expand(emit, reshape(emit, emit("Reduce", rows, fn=fn, **lenience), (*rows.shape[:-1], 1)), rows.shape)


def _sum(emit: Emitter, rows: Value) -> Value:
    return emit("Reduce", rows, fn="sum")


def mean(emit: Emitter, rows: Value, running: bool = False) -> Value:
    """The mean of each row; `running` where kernels also update a mean element by element (Welford)."""
    sums = emit("Reduce", rows, fn="sum", running=True) if running else _sum(emit, rows)
    count = rows.shape[-1]
    if not count and sums.spec.size:
        raise ShapeError(f"{emit.source}: the mean of no elements is undefined")
    return elementwise(emit, "div", sums, scalar(emit, count, sums.dtype), recip=True)


def _product(emit: Emitter, rows: Value) -> Value:
    return emit("Reduce", rows, fn="prod")


def _extreme(fn: str) -> Callable[[Emitter, Value], Value]:
    def reduce(emit: Emitter, rows: Value) -> Value:
        return emit("Reduce", cast(emit, rows, "uint8") if rows.dtype == "bool" else rows, fn=fn)

    return reduce


def absolute_sum(emit: Emitter, rows: Value) -> Value:
    return _sum(emit, emit("Elementwise", rows, fn="abs"))


def square_sum(emit: Emitter, rows: Value) -> Value:
    return _sum(emit, elementwise(emit, "mul", rows, rows))


def euclidean(emit: Emitter, rows: Value) -> Value:
    """sqrt(sum x^2), of integers in float32 (ONNX ReduceL2-18, its function body)."""
    squares = square_sum(emit, rows)
    return emit("Elementwise", squares if squares.dtype in dt.FLOATS else cast(emit, squares, "float32"), fn="sqrt")


def _log_sum(emit: Emitter, rows: Value) -> Value:
    return emit("Elementwise", _sum(emit, rows), fn="log")


def _log_sum_exp(emit: Emitter, rows: Value) -> Value:
    """log sum exp(x - m) + m, m the largest finite element: the standard's float64 exp overflows only beyond 709."""
    if not rows.shape[-1]:
        return emit("Elementwise", _sum(emit, rows), fn="log")
    top = emit("Reduce", rows, fn="max", nan_kept=True)
    bounds = (scalar(emit, -dt.MAX[rows.dtype], rows.dtype), scalar(emit, dt.MAX[rows.dtype], rows.dtype))
    top = elementwise(emit, "min", elementwise(emit, "max", top, bounds[0]), bounds[1])
    shifted = elementwise(emit, "sub", rows, reshape(emit, top, (*top.shape, 1)))
    logs = emit("Elementwise", _sum(emit, emit("Elementwise", shifted, fn="exp")), fn="log")
    return elementwise(emit, "add", logs, top)


def _reduction(reduce: Callable[[Emitter, Value], Value], allowed: tuple[str, ...]) -> Callable[..., Value]:
    def lower(
        emit: Emitter,
        data: Value,
        axes_input: Value | None = None,
        *,
        axes: Ints | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Value:
        one_of(emit, "data", data, allowed)
        reduced = reduced_axes(emit, data.rank, axes_input, axes, noop_with_empty_axes)
        kept = tuple(1 if i in reduced else d for i, d in enumerate(data.shape) if keepdims or i not in reduced)
        return cast(emit, reshape(emit, reduce(emit, rows_of(emit, widen(emit, data), reduced)), kept), data.dtype)

    return lower


def lower_softmax(emit: Emitter, input: Value, *, axis: int = -1) -> Value:
    """y = exp(x - max(x)) / sum(exp(x - max(x))) along axis

    Dtypes: floats, 16-bit ones computed in float32.
    Source: ONNX Softmax-13.
    """
    one_of(emit, "input", input, dt.FLOATS)
    axis = normal_axis(emit, axis, input.rank)
    if not input.spec.size:
        return input
    x, back = last_axis(emit, widen(emit, input), axis)
    e = emit("Elementwise", elementwise(emit, "sub", x, per_row(emit, "max", x)), fn="exp")
    y = elementwise(emit, "div", e, per_row(emit, "sum", e), recip=True)
    return cast(emit, transpose(emit, y, back), input.dtype)


def lower_logsoftmax(emit: Emitter, input: Value, *, axis: int = -1) -> Value:
    """y = (x - max(x)) - log(sum(exp(x - max(x)))) along axis

    Dtypes: floats, 16-bit ones computed in float32.
    Source: ONNX LogSoftmax-13.
    """
    one_of(emit, "input", input, dt.FLOATS)
    axis = normal_axis(emit, axis, input.rank)
    if not input.spec.size:
        return input
    x, back = last_axis(emit, widen(emit, input), axis)
    shifted = elementwise(emit, "sub", x, per_row(emit, "max", x, nan_kept=True))
    logs = emit("Elementwise", per_row(emit, "sum", emit("Elementwise", shifted, fn="exp")), fn="log")
    return cast(emit, transpose(emit, elementwise(emit, "sub", shifted, logs), back), input.dtype)


_AXES_UNTIL_17 = {"axes": (1, 17), "noop_with_empty_axes": (18, None)}
_SMALL = (*SUMMED, "int8", "uint8", "bool")
_REDUCTIONS: dict[str, tuple[Callable[[Emitter, Value], Value], tuple[str, ...]]] = {
    "ReduceMean": (mean, SUMMED),
    "ReduceMax": (_extreme("max"), _SMALL),
    "ReduceMin": (_extreme("min"), _SMALL),
    "ReduceProd": (_product, SUMMED),
    "ReduceL1": (absolute_sum, SUMMED),
    "ReduceL2": (euclidean, SUMMED),
    "ReduceSumSquare": (square_sum, SUMMED),
    "ReduceLogSum": (_log_sum, dt.FLOATS),
    "ReduceLogSumExp": (_log_sum_exp, dt.FLOATS),
}
REDUCTIONS: dict[tuple[str, str], OperatorDef] = {
    ("", "Softmax"): OperatorDef(lower_softmax, since=13),
    ("", "LogSoftmax"): OperatorDef(lower_logsoftmax, since=13),
    ("", "ReduceSum"): OperatorDef(versioned(_reduction(_sum, SUMMED), axes=(1, 12), noop_with_empty_axes=(13, None))),
    **{("", op): OperatorDef(versioned(_reduction(*row), **_AXES_UNTIL_17)) for op, row in _REDUCTIONS.items()},
}
