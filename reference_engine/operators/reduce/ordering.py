"""Places and orders: ArgMax, ArgMin, Hardmax, TopK, and running sums along one axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, cast, elementwise, normal_axis, reshape, scalar, transpose
from ...errors import ShapeError
from ..checks import integers, one_of, versioned, widen
from .reductions import SUMMED, last_axis, rows_of

ORDERED = (*dt.FLOATS, *dt.INTS)


def _places(fn: str) -> Callable[..., Value]:
    def lower(emit: Emitter, data: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Value:
        one_of(emit, "data", data, ORDERED)
        axis = normal_axis(emit, axis, data.rank)
        found = emit("Reduce", rows_of(emit, data, (axis,)), fn=fn, last=int(bool(select_last_index)))
        return reshape(emit, found, (*data.shape[:axis], *((1,) if keepdims else ()), *data.shape[axis + 1 :]))

    return lower


def lower_hardmax(emit: Emitter, input: Value, *, axis: int = -1) -> Value:
    """y = 1 at the first maximum along axis, 0 elsewhere: the rows of an identity matrix that ArgMax names

    Source: ONNX Hardmax-13.
    """
    one_of(emit, "input", input, dt.FLOATS)
    axis = normal_axis(emit, axis, input.rank)
    if not input.spec.size:
        return input
    x, back = last_axis(emit, input, axis)
    n = x.shape[-1]
    places = emit("Reduce", x, fn="argmax", last=0)
    steps = emit.constant(np.arange(n, dtype=np.int64))
    ones, zeros = scalar(emit, 1, input.dtype), scalar(emit, 0, input.dtype)
    return transpose(emit, _one_hot(emit, places, steps, ones, zeros), back)


def _one_hot(emit: Emitter, places: Value, steps: Value, ones: Value, zeros: Value) -> Value:
    """[*,n]: `ones` where the step is the place, else `zeros`."""
    differ = cast(emit, elementwise(emit, "sub", reshape(emit, places, (*places.shape, 1)), steps), "bool")
    return elementwise(emit, "where", differ, zeros, ones)


def lower_topk(
    emit: Emitter, X: Value, K: Value, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Value, Value]:
    """Values, Indices = the K largest (smallest) elements along axis in order, the lower index first among equals

    Raises: ShapeError where K is negative or longer than the axis.
    Source: ONNX TopK-24. With sorted=0 the order is not specified: more than one element is undecided.
    """
    one_of(emit, "X", X, ORDERED)
    axis = normal_axis(emit, axis, X.rank)
    count = integers(emit, K, "K")
    if len(count) != 1 or not 0 <= count[0] <= X.shape[axis]:
        raise ShapeError(f"{emit.source}: K is {count}, expected one number from 0 to {X.shape[axis]}")
    x, back = last_axis(emit, X, axis)
    attrs = {"largest": int(bool(largest)), "unordered": not sorted and count[0] > 1}
    return _taken(emit, x, "values", count[0], back, attrs), _taken(emit, x, "order", count[0], back, attrs)


def _taken(emit: Emitter, x: Value, fn: str, count: int, back: tuple[int, ...], attrs: dict[str, int | bool]) -> Value:
    made = emit("Sort", x, fn=fn, **attrs)
    ends = (*made.shape[:-1], count)
    if ends != made.shape:
        made = emit("DataMove", made, fn="slice", starts=(0,) * made.rank, ends=ends, steps=(1,) * made.rank)
    return transpose(emit, made, back)


def _running(fn: str, start: int) -> Callable[..., Value]:
    def lower(emit: Emitter, x: Value, axis: Value, *, exclusive: int = 0, reverse: int = 0) -> Value:
        one_of(emit, "x", x, SUMMED)
        where = integers(emit, axis, "axis")
        if len(where) != 1:
            raise ShapeError(f"{emit.source}: axis has {len(where)} elements, expected one")
        rows, back = last_axis(emit, widen(emit, x), normal_axis(emit, where[0], x.rank))
        rows = _flip(emit, rows) if reverse else rows
        if exclusive and rows.shape[-1]:
            pads = (*(0,) * (rows.rank - 1), 1, *(0,) * (rows.rank - 1), -1)
            rows = emit("DataMove", rows, scalar(emit, start, rows.dtype), fn="pad", pads=pads, mode="constant")
        y = emit("Scan", rows, fn=fn)
        return cast(emit, transpose(emit, _flip(emit, y) if reverse else y, back), x.dtype)

    return lower


def _flip(emit: Emitter, x: Value) -> Value:
    """The last axis backwards."""
    rank, n = x.rank, x.shape[-1]
    if not n:
        return x
    starts, ends = (*(0,) * (rank - 1), n - 1), (*x.shape[:-1], -1)
    return emit("DataMove", x, fn="slice", starts=starts, ends=ends, steps=(*(1,) * (rank - 1), -1))


ORDERING: dict[tuple[str, str], OperatorDef] = {
    **{
        ("", op): OperatorDef(versioned(_places(op.lower()), select_last_index=(12, None)))
        for op in ("ArgMax", "ArgMin")
    },
    ("", "Hardmax"): OperatorDef(lower_hardmax, since=13),
    ("", "TopK"): OperatorDef(lower_topk, since=11),
    ("", "CumSum"): OperatorDef(_running("sum", 0), since=11),
    ("", "CumProd"): OperatorDef(_running("prod", 1), since=26),
}
