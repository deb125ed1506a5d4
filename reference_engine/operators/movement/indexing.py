"""Operators that pick or place elements by index."""

from __future__ import annotations

import math

import numpy as np

from ...emit import Emitter, OperatorDef, Value, cast, elementwise, expand, normal_axis, reshape, scalar, transpose
from ...errors import ModelError, ShapeError
from ...primitives.movement import window_index
from ...types import Array
from ..checks import integers, one_of, same_dtype, text, versioned
from ..geometry import Ints
from ..quantization import known

INDICES = ("int64", "int32")


def lower_gather(emit: Emitter, data: Value, indices: Value, *, axis: int = 0) -> Value:
    """output[o, j, i] = data[o, indices[j], i] with o, i the axes before and after axis

    Shapes: data [*O,L,*I], indices [*J] -> [*O,*J,*I]. Raises: ShapeError for an index known to be out of range.
    Source: ONNX Gather-13.
    """
    one_of(emit, "indices", indices, ("int64", "int32"))
    axis = normal_axis(emit, axis, data.rank)
    before, length, after = data.shape[:axis], data.shape[axis], data.shape[axis + 1 :]
    content = known(emit, indices)
    if content is not None and content.size and not (-length <= content.min() and content.max() < length):
        bad = content.max() if content.max() >= length else content.min()
        raise ShapeError(f"{emit.source}: index {bad} is out of range for axis {axis} of {text(data.shape)}")
    blocks = reshape(emit, data, (math.prod(before), length, math.prod(after)))
    flat = reshape(emit, cast(emit, indices, "int64"), (indices.spec.size,))
    return reshape(emit, emit("Gather", blocks, flat), (*before, *indices.shape, *after))


def lower_gatherelements(emit: Emitter, data: Value, indices: Value, *, axis: int = 0) -> Value:
    """output[.., j, ..] = data[.., indices[.., j, ..], ..] along axis, every other index the same

    Shapes: indices no longer than data along the other axes. Source: ONNX GatherElements-13.
    """
    one_of(emit, "indices", indices, INDICES)
    axis = normal_axis(emit, axis, data.rank)
    _within(emit, data, indices, axis)
    ends = tuple(d if i == axis else indices.shape[i] for i, d in enumerate(data.shape))
    if ends != data.shape:
        data = emit("DataMove", data, fn="slice", starts=(0,) * data.rank, ends=ends, steps=(1,) * data.rank)
    last = (*(i for i in range(data.rank) if i != axis), axis)
    back = tuple(last.index(i) for i in range(data.rank))
    x, at = transpose(emit, data, last), transpose(emit, cast(emit, indices, "int64"), last)
    rows = math.prod(x.shape[:-1])
    found = emit(
        "Gather", reshape(emit, x, (rows, x.shape[-1], 1)), reshape(emit, at, (rows, at.shape[-1], 1)), fn="nd"
    )
    return transpose(emit, reshape(emit, found, at.shape), back)


def _within(emit: Emitter, data: Value, indices: Value, axis: int) -> None:
    longer = [i for i, (n, d) in enumerate(zip(indices.shape, data.shape, strict=False)) if i != axis and n > d]
    if indices.rank != data.rank or longer:
        raise ShapeError(f"{emit.source}: indices {text(indices.shape)} do not fit data {text(data.shape)}")


def lower_gathernd(emit: Emitter, data: Value, indices: Value, *, batch_dims: int = 0) -> Value:
    """output[b, n, ..] = data[b, indices[b, n, :], ..]

    Shapes: data [*B,*D,*S], indices [*B,*N,r] with r sizes in D, batch_dims of them in B -> [*B,*N,*S].
    Source: ONNX GatherND-13.
    """
    one_of(emit, "indices", indices, ("int64",))
    r = indices.shape[-1] if indices.rank else 0
    batch, sizes = data.shape[:batch_dims], data.shape[batch_dims : batch_dims + r]
    if not r or len(sizes) < r or indices.shape[:batch_dims] != batch or batch_dims >= indices.rank:
        raise ShapeError(f"{emit.source}: indices {text(indices.shape)} do not fit data {text(data.shape)}")
    rest, count = data.shape[batch_dims + r :], indices.shape[batch_dims:-1]
    x = reshape(emit, data, (math.prod(batch), *sizes, math.prod(rest)))
    found = emit("Gather", x, reshape(emit, indices, (math.prod(batch), math.prod(count), r)), fn="nd")
    return reshape(emit, found, (*batch, *count, *rest))


REDUCTIONS = ("none", "add", "mul", "max", "min")


def _reduction(emit: Emitter, reduction: str) -> str:
    first = {"max": 18, "min": 18}.get(reduction, 16)
    if reduction not in REDUCTIONS or (reduction != "none" and emit.opset < first):
        raise ModelError(f"{emit.source}: reduction {reduction!r} is not one of {', '.join(REDUCTIONS)} at this opset")
    return reduction


def lower_scatternd(emit: Emitter, data: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Value:
    """output = data, then output[indices[n, :], ..] = updates[n, ..], or its reduction with what is there

    Shapes: data [*D,*S], indices [*N,r] with r sizes in D, updates [*N,*S]. Source: ONNX ScatterND-18.
    """
    one_of(emit, "indices", indices, ("int64",))
    same_dtype(emit, data=data, updates=updates)
    r = indices.shape[-1] if indices.rank else 0
    rest, count = data.shape[r:], indices.shape[:-1]
    if not 0 < r <= data.rank or updates.shape != (*count, *rest):
        found = f"indices {text(indices.shape)}, updates {text(updates.shape)}"
        raise ShapeError(f"{emit.source}: {found} do not fit data {text(data.shape)}")
    x = reshape(emit, data, (1, *data.shape[:r], math.prod(rest)))
    at = reshape(emit, indices, (1, math.prod(count), r))
    given = reshape(emit, updates, (1, math.prod(count), math.prod(rest)))
    return reshape(emit, emit("Scatter", x, at, given, fn=_reduction(emit, reduction)), data.shape)


def lower_scatterelements(
    emit: Emitter, data: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = "none"
) -> Value:
    """output = data, then output[.., indices[.., j, ..], ..] = updates[.., j, ..] along axis, or its reduction

    Source: ONNX ScatterElements-18.
    """
    one_of(emit, "indices", indices, INDICES)
    same_dtype(emit, data=data, updates=updates)
    axis = normal_axis(emit, axis, data.rank)
    _within(emit, data, indices, axis)
    if updates.shape != indices.shape:
        raise ShapeError(f"{emit.source}: updates {text(updates.shape)} and indices {text(indices.shape)} differ")
    count = indices.spec.size
    at = reshape(emit, cast(emit, indices, "int64"), (1, count, 1))
    places = np.indices(indices.shape, np.int64).reshape(data.rank, 1, count, 1)
    full = [at if i == axis else emit.constant(places[i]) for i in range(data.rank)]
    tuples = full[0] if len(full) == 1 else emit("DataMove", *full, fn="concat", axis=2)
    x, given = reshape(emit, data, (1, *data.shape, 1)), reshape(emit, updates, (1, count, 1))
    return reshape(emit, emit("Scatter", x, tuples, given, fn=_reduction(emit, reduction)), data.shape)


def take(emit: Emitter, x: Value, at: Array, axis: int, other: Array | None = None) -> Value:
    """x at known places of one axis; `other`: where an honest kernel may read instead."""
    before, length, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    blocks = reshape(emit, x, (math.prod(before), length, math.prod(after)))
    return reshape(emit, emit("Gather", blocks, emit.constant(at, other)), (*before, len(at), *after))


def lower_compress(emit: Emitter, input: Value, condition: Value, *, axis: int | None = None) -> Value:
    """The slices of input along axis (or of the flat input) where condition holds; its end may be missing.

    Source: ONNX Compress-11. The shape depends on condition: it is a constant or bound.
    """
    one_of(emit, "condition", condition, ("bool",))
    at = np.flatnonzero(emit.data(condition, "condition"))
    if axis is None:
        input, axis = reshape(emit, input, (input.spec.size,)), 0
    axis = normal_axis(emit, axis, input.rank)
    if condition.rank != 1 or (len(at) and at[-1] >= input.shape[axis]):
        raise ShapeError(
            f"{emit.source}: condition {text(condition.shape)} does not fit axis {axis} of {text(input.shape)}"
        )
    return take(emit, input, at, axis)


def lower_nonzero(emit: Emitter, X: Value) -> Value:
    """output[:, n] = the index of the n-th element that is not 0, in row-major order

    Shapes: [rank, count], known once X is: it is a constant or bound. Source: ONNX NonZero-13.
    """
    where = np.stack(np.nonzero(emit.data(X, "X"))) if X.rank else np.zeros((0, int(emit.data(X, "X") != 0)))
    return emit.constant(where.astype(np.int64))


def lower_onehot(emit: Emitter, indices: Value, depth: Value, values: Value, *, axis: int = -1) -> Value:
    """output[.., k, ..] = values[1] where indices[..] is k or k - depth, else values[0]; k runs along a new axis

    Source: ONNX OneHot-11. Indices that are not integers are cast to int64.
    """
    size = int(emit.data(depth, "depth").ravel()[0]) if depth.spec.size == 1 else -1
    if values.shape != (2,) or size < 0:
        raise ShapeError(f"{emit.source}: values {text(values.shape)} must be [off, on], depth one number >= 0")
    axis = normal_axis(emit, axis, indices.rank + 1)
    at = cast(emit, indices, "int64")
    at = reshape(emit, at, (*at.shape[:axis], 1, *at.shape[axis:]))
    k = emit.constant(np.arange(size).reshape(size, *(1,) * (indices.rank - axis)))
    off, on = (
        reshape(emit, emit("DataMove", values, fn="slice", starts=(i,), ends=(i + 1,), steps=(1,)), ()) for i in (0, 1)
    )
    # a - b as bool is a != b: no comparison is needed.
    wrapped = cast(emit, elementwise(emit, "sub", k, elementwise(emit, "add", at, scalar(emit, size, "int64"))), "bool")
    inner = elementwise(emit, "where", wrapped, off, on)
    return elementwise(emit, "where", cast(emit, elementwise(emit, "sub", k, at), "bool"), inner, on)


def lower_reversesequence(
    emit: Emitter, input: Value, sequence_lens: Value, *, batch_axis: int = 1, time_axis: int = 0
) -> Value:
    """output[t] = input[len - 1 - t] for t < len, input[t] beyond, each batch with its own len

    Source: ONNX ReverseSequence-10. sequence_lens is a constant or bound.
    """
    if input.rank < 2 or {batch_axis, time_axis} != {0, 1}:
        raise ShapeError(f"{emit.source}: axes {batch_axis} and {time_axis} of {text(input.shape)} must be 0 and 1")
    one_of(emit, "sequence_lens", sequence_lens, ("int64",))
    lens = emit.data(sequence_lens, "sequence_lens")
    batch, time = input.shape[batch_axis], input.shape[time_axis]
    if lens.shape != (batch,) or (lens.size and not 0 <= lens.min() <= lens.max() <= time):
        raise ShapeError(f"{emit.source}: sequence_lens {lens.tolist()} do not fit {batch} sequences of {time}")
    steps = np.arange(time)[None, :]
    at = np.where(steps < lens[:, None], lens[:, None] - 1 - steps, steps)
    order = (batch_axis, time_axis, *range(2, input.rank))  # its own inverse
    x = transpose(emit, input, order)
    flat = reshape(emit, x, (batch, time, math.prod(x.shape[2:])))
    found = emit("Gather", flat, emit.constant(at[:, :, None].astype(np.int64)), fn="nd")
    return transpose(emit, reshape(emit, found, x.shape), order)


def lower_col2im(
    emit: Emitter,
    input: Value,
    image_shape: Value,
    block_shape: Value,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    """output[n, c, l * stride - pad + k * dilation] = sum of input[n, c, k, l] over the blocks that cover it

    Shapes: input [N, C * prod(block_shape), L] -> [N, C, *image_shape]. Source: ONNX Col2Im-18.
    """
    image, block = integers(emit, image_shape, "image_shape"), integers(emit, block_shape, "block_shape")
    rank = len(image)
    stride, dilation, around = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * 2 * rank
    fits = len(block) == len(stride) == len(dilation) == rank and len(around) == 2 * rank and input.rank == 3
    if not fits or min((*image, *block, *stride, *dilation), default=0) < 1:
        raise ShapeError(f"{emit.source}: blocks {block}, strides {stride}, dilations {dilation}, pads {around}")
    reach = [n + around[i] + around[rank + i] - dilation[i] * (block[i] - 1) - 1 for i, n in enumerate(image)]
    steps = tuple(r // s + 1 for r, s in zip(reach, stride, strict=True))
    (n, channels, length), taps, points = input.shape, math.prod(block), math.prod(image)
    if min(reach) < 0 or length != math.prod(steps) or channels % taps:
        raise ShapeError(f"{emit.source}: input {text(input.shape)} does not hold blocks {block} of an image {image}")
    at = window_index(image, block, stride, dilation, around, steps).reshape(1, taps * length, 1)
    parts = reshape(emit, input, (n, channels // taps, taps * length))
    given = reshape(emit, transpose(emit, parts, (2, 0, 1)), (1, taps * length, n * (channels // taps)))
    # What falls into the padding lands behind the image.
    empty = expand(emit, scalar(emit, 0, input.dtype), (1, points + 1, n * (channels // taps)))
    sums = emit("Scatter", empty, emit.constant(at.astype(np.int64)), given, fn="add")
    ends = (1, points, n * (channels // taps))
    kept = emit("DataMove", sums, fn="slice", starts=(0, 0, 0), ends=ends, steps=(1, 1, 1))
    return reshape(emit, transpose(emit, reshape(emit, kept, ends[1:]), (1, 0)), (n, channels // taps, *image))


INDEXING: dict[tuple[str, str], OperatorDef] = {
    ("", "Gather"): OperatorDef(lower_gather),
    ("", "GatherElements"): OperatorDef(lower_gatherelements, since=11),
    ("", "GatherND"): OperatorDef(versioned(lower_gathernd, batch_dims=(12, None)), since=11),
    ("", "ScatterElements"): OperatorDef(versioned(lower_scatterelements, reduction=(16, None)), since=11),
    ("", "ScatterND"): OperatorDef(versioned(lower_scatternd, reduction=(16, None)), since=11),
    ("", "Compress"): OperatorDef(lower_compress, since=9),
    ("", "NonZero"): OperatorDef(lower_nonzero, since=9),
    ("", "OneHot"): OperatorDef(lower_onehot, since=9),
    ("", "ReverseSequence"): OperatorDef(lower_reversesequence, since=10),
    ("", "Col2Im"): OperatorDef(lower_col2im, since=18),
}
