"""Operators that make elements: from shapes, and from inputs that decide a shape."""

from __future__ import annotations

import numpy as np

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, cast, elementwise, expand, reshape
from ...errors import ModelError, ShapeError
from ...types import Array
from ..checks import dtype_of, integers, one_of, same_dtype, text, versioned, widen


def lower_shape(emit: Emitter, data: Value, *, start: int = 0, end: int | None = None) -> Value:
    """shape = the dimensions of data from start to end, both clamped. Source: ONNX Shape-15."""
    rank = data.rank
    first, last = (min(max(i + rank if i < 0 else i, 0), rank) for i in (start, rank if end is None else end))
    return emit.constant(np.asarray(data.shape[first:last], np.int64))


def lower_size(emit: Emitter, data: Value) -> Value:
    return emit.constant(np.asarray(data.spec.size, np.int64))


def lower_constantofshape(emit: Emitter, input: Value, *, value: Array | None = None) -> Value:
    """A tensor of this shape, every element value (float32 0 by default). Source: ONNX ConstantOfShape-20."""
    shape = integers(emit, input, "input")
    if min(shape, default=0) < 0 or (value is not None and value.size != 1):
        raise ShapeError(f"{emit.source}: shape {shape} filled with {'0' if value is None else value.shape}")
    element = np.zeros((), np.float32) if value is None else value.reshape(())
    return expand(emit, emit.constant(element), shape)


def lower_eyelike(emit: Emitter, input: Value, *, dtype: int | None = None, k: int = 0) -> Value:
    """output[i, j] = 1 where j - i is k, else 0. Source: ONNX EyeLike-9."""
    if input.rank != 2:
        raise ShapeError(f"{emit.source}: input is {text(input.shape)}, expected a matrix")
    word = input.dtype if dtype is None else dtype_of(emit, "dtype", dtype)
    rows, columns = input.shape
    return emit.constant((np.arange(columns)[None, :] - np.arange(rows)[:, None] == k).astype(dt.numpy_dtype(word)))


def lower_range(emit: Emitter, start: Value, limit: Value, delta: Value, *, stash_type: int = 1) -> Value:
    """output[i] = start + i * delta for i below (limit - start) / delta rounded up

    Dtypes: float32 float64 int16 int32 int64; 16-bit floats in float32.
    Source: ONNX Range-27, whose body adds delta once per step: element i is the sum of start and i deltas in any
        order (N1), which a product with i is within, too.
    """
    narrow = ("float16", "bfloat16") if emit.opset >= 27 else ()
    one_of(emit, "start", start, ("float32", "float64", "int16", "int32", "int64", *narrow))
    same_dtype(emit, start=start, limit=limit, delta=delta)
    first, last, step = (
        emit.data(x, name).ravel() for x, name in ((start, "start"), (limit, "limit"), (delta, "delta"))
    )
    if not first.size == last.size == step.size == 1 or step[0] == 0:
        raise ModelError(f"{emit.source}: start {first}, limit {last}, delta {step}: three numbers, delta not 0")
    whole = float if dt.is_float(start.dtype) else int
    distance = whole(last[0]) - whole(first[0])
    count = max(int(-(-distance // whole(step[0]))), 0)
    begin, by = (reshape(emit, widen(emit, x), (1,)) for x in (start, delta))
    if not dt.is_float(start.dtype):
        i = emit.constant(np.arange(count).astype(first.dtype))
        return elementwise(emit, "add", begin, elementwise(emit, "mul", i, by))
    if count < 2:
        return cast(emit, expand(emit, begin, (count,)), start.dtype)
    terms = emit("DataMove", begin, expand(emit, by, (count - 1,)), fn="concat", axis=0)
    return cast(emit, emit("Scan", terms, fn="sum"), start.dtype)


GENERATED: dict[tuple[str, str], OperatorDef] = {
    ("", "Shape"): OperatorDef(versioned(lower_shape, start=(15, None), end=(15, None))),
    ("", "Size"): OperatorDef(lower_size),
    ("", "ConstantOfShape"): OperatorDef(lower_constantofshape, since=9),
    ("", "EyeLike"): OperatorDef(lower_eyelike, since=9),
    ("", "Range"): OperatorDef(versioned(lower_range, stash_type=(27, None)), since=11),
}
