"""Operators that only change the place or the shape of elements."""

from __future__ import annotations

import math

from ..emit import Emitter, OperatorDef, Value, broadcast_shape, cast, expand, normal_axis, reshape, scalar, transpose
from ..errors import ModelError, ShapeError
from .checks import integers, one_of, same_dtype, text, versioned
from .geometry import Ints
from .quantization import known


def lower_transpose(emit: Emitter, data: Value, *, perm: Ints | None = None) -> Value:
    """transposed[i] = data[i permuted]; perm defaults to the reverse. Source: ONNX Transpose-25."""
    order = tuple(reversed(range(data.rank))) if perm is None else tuple(perm)
    if sorted(order) != list(range(data.rank)):
        raise ShapeError(f"{emit.source}: perm {order} is no permutation of the axes of {text(data.shape)}")
    return transpose(emit, data, order)


def lower_reshape(emit: Emitter, data: Value, shape: Value, *, allowzero: int = 0) -> Value:
    """The same elements in `shape`: -1 is inferred, 0 copies a dimension unless allowzero. Source: ONNX Reshape-25."""
    wanted = integers(emit, shape, "shape")
    dims = list(wanted)
    if not allowzero:
        if any(d == 0 and i >= data.rank for i, d in enumerate(dims)):
            raise ShapeError(f"{emit.source}: shape {wanted} copies a dimension that {text(data.shape)} does not have")
        dims = [data.shape[i] if d == 0 else d for i, d in enumerate(dims)]
    unknown = [i for i, d in enumerate(dims) if d == -1]
    if len(unknown) > 1 or min(dims, default=0) < -1 or (unknown and allowzero and 0 in dims):
        raise ModelError(f"{emit.source}: shape {wanted} is not legal (at most one -1, none beside an explicit 0)")
    if unknown:
        rest = math.prod(d for d in dims if d != -1)
        dims[unknown[0]] = data.spec.size // rest if rest else 0
    if math.prod(dims) != data.spec.size:
        raise ShapeError(f"{emit.source}: data is {text(data.shape)}, it cannot become {wanted}")
    return reshape(emit, data, tuple(dims))


def lower_flatten(emit: Emitter, input: Value, *, axis: int = 1) -> Value:
    """[prod(shape[:axis]), prod(shape[axis:])]. Source: ONNX Flatten-25."""
    if not -input.rank <= axis <= input.rank:
        raise ShapeError(f"{emit.source}: axis {axis} is out of range for {text(input.shape)}")
    axis = axis + input.rank if axis < 0 else axis
    return reshape(emit, input, (math.prod(input.shape[:axis]), math.prod(input.shape[axis:])))


def _listed(emit: Emitter, axes_input: Value | None, axes: Ints | None, rank: int) -> set[int] | None:
    """Axes from the input or the attribute, None where neither is given. Raises: ShapeError, ModelError."""
    listed = integers(emit, axes_input, "axes") if axes_input is not None else axes
    if listed is None:
        return None
    found = {normal_axis(emit, int(a), rank) for a in listed}
    if len(found) < len(listed):
        raise ModelError(f"{emit.source}: axes {tuple(listed)} name an axis twice")
    return found


def lower_squeeze(emit: Emitter, data: Value, axes_input: Value | None = None, *, axes: Ints | None = None) -> Value:
    """Drop axes of size 1: those listed, or all. Source: ONNX Squeeze-25."""
    drop = _listed(emit, axes_input, axes, data.rank)
    if drop is None:
        drop = {i for i, d in enumerate(data.shape) if d == 1}
    wrong = [i for i in sorted(drop) if data.shape[i] != 1]
    if wrong:
        raise ShapeError(f"{emit.source}: axis {wrong[0]} of {text(data.shape)} is not 1")
    return reshape(emit, data, tuple(d for i, d in enumerate(data.shape) if i not in drop))


def lower_unsqueeze(emit: Emitter, data: Value, axes_input: Value | None = None, *, axes: Ints | None = None) -> Value:
    """Insert axes of size 1; axes count in the result. Source: ONNX Unsqueeze-25."""
    count = len(axes) if axes is not None else axes_input.spec.size if axes_input is not None else 0
    rank = data.rank + count
    added = _listed(emit, axes_input, axes, rank)
    if added is None:
        raise ModelError(f"{emit.source}: axes are missing")
    sizes = iter(data.shape)
    return reshape(emit, data, tuple(1 if i in added else next(sizes) for i in range(rank)))


def lower_concat(emit: Emitter, *inputs: Value | None, axis: int) -> Value:
    """Join along axis. Source: ONNX Concat-13."""
    given = [x for x in inputs if x is not None]
    if not given or len(given) < len(inputs):
        raise ModelError(f"{emit.source}: {len(given)} of {len(inputs)} inputs given, expected at least one and no gap")
    same_dtype(emit, **{f"inputs[{i}]": x for i, x in enumerate(given)})
    axis = normal_axis(emit, axis, given[0].rank)
    return given[0] if len(given) == 1 else emit("DataMove", *given, fn="concat", axis=axis)


def _split_lengths(emit: Emitter, size: int, split: Ints | None, num_outputs: int | None) -> Ints:
    count = emit.n_outputs
    if split is not None and num_outputs is not None:
        raise ModelError(f"{emit.source}: split and num_outputs exclude each other: give one of them")
    if split is None:
        if num_outputs not in (None, count):
            raise ModelError(f"{emit.source}: num_outputs is {num_outputs} but the node has {count} outputs")
        part = -(-size // count)
        split = (*(part,) * (count - 1), size - part * (count - 1))
        if num_outputs is None and split[-1] != part:
            raise ShapeError(f"{emit.source}: an axis of {size} does not split into {count} equal parts")
    if len(split) != count or sum(split) != size or min(split) < 0:
        raise ShapeError(f"{emit.source}: lengths {split} do not split an axis of {size} into {count} outputs")
    return split


def lower_split(
    emit: Emitter,
    input: Value,
    split_input: Value | None = None,
    *,
    axis: int = 0,
    split: Ints | None = None,
    num_outputs: int | None = None,
) -> tuple[Value, ...]:
    """Consecutive parts along axis: of the given lengths, or equal, the last one shorter with num_outputs.

    Source: ONNX Split-18.
    """
    axis = normal_axis(emit, axis, input.rank)
    given = integers(emit, split_input, "split") if split_input is not None else split
    lengths = _split_lengths(emit, input.shape[axis], given, num_outputs)
    parts, start = [], 0
    for length in lengths:
        starts = tuple(start if i == axis else 0 for i in range(input.rank))
        ends = tuple(start + length if i == axis else d for i, d in enumerate(input.shape))
        parts.append(emit("DataMove", input, fn="slice", starts=starts, ends=ends, steps=(1,) * input.rank))
        start += length
    return tuple(parts)


def _bounds(size: int, start: int, end: int, step: int) -> tuple[int, int, int]:
    """start, end, step inside an axis of `size`; (0, 0, 1) where nothing is taken.

    A negative step clamps start to [0, size-1], unlike Python, and end to [-1, size-1].
    """
    start, end = start + size if start < 0 else start, end + size if end < 0 else end
    if step > 0:
        start, end = min(max(start, 0), size), min(max(end, 0), size)
    else:
        start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return (start, end, step) if len(range(start, end, step)) and size else (0, 0, 1)


def lower_slice(
    emit: Emitter, data: Value, starts: Value, ends: Value, axes: Value | None = None, steps: Value | None = None
) -> Value:
    """output = data[starts:ends:steps] along axes; negative bounds count from the end, then all are clamped.

    Source: ONNX Slice-13.
    """
    begin, stop = integers(emit, starts, "starts"), integers(emit, ends, "ends")
    listed = tuple(range(len(begin))) if axes is None else integers(emit, axes, "axes")
    stride = (1,) * len(begin) if steps is None else integers(emit, steps, "steps")
    if not len(begin) == len(stop) == len(listed) == len(stride):
        raise ShapeError(f"{emit.source}: starts {begin}, ends {stop}, axes {listed}, steps {stride} differ in length")
    if 0 in stride:
        raise ModelError(f"{emit.source}: a step is 0 in {stride}")
    bounds = [(0, d, 1) for d in data.shape]
    where = [normal_axis(emit, a, data.rank) for a in listed]
    if len(set(where)) < len(where):
        raise ModelError(f"{emit.source}: axes {listed} name an axis twice")
    for axis, b, e, s in zip(where, begin, stop, stride, strict=True):
        bounds[axis] = _bounds(data.shape[axis], b, e, s)
    if bounds == [(0, d, 1) for d in data.shape]:
        return data
    first, last, by = (tuple(b[i] for b in bounds) for i in range(3))
    return emit("DataMove", data, fn="slice", starts=first, ends=last, steps=by)


def lower_pad(
    emit: Emitter,
    data: Value,
    pads: Value,
    constant_value: Value | None = None,
    axes: Value | None = None,
    *,
    mode: str = "constant",
) -> Value:
    """data with pads added at the begin and the end of axes; negative pads crop. Source: ONNX Pad-25."""
    given = integers(emit, pads, "pads")
    listed = tuple(range(data.rank)) if axes is None else integers(emit, axes, "axes")
    if len(given) != 2 * len(listed):
        raise ShapeError(
            f"{emit.source}: {len(given)} pads for {len(listed)} axes of {text(data.shape)}, expected two each"
        )
    where = [normal_axis(emit, a, data.rank) for a in listed]
    if len(set(where)) < len(where):
        raise ModelError(f"{emit.source}: axes {listed} name an axis twice")
    full = [0] * (2 * data.rank)
    for i, axis in enumerate(where):
        full[axis], full[data.rank + axis] = given[i], given[len(where) + i]
    if not data.rank:
        return data
    for i, size in enumerate(data.shape):
        if max(-full[i], 0) + max(-full[data.rank + i], 0) > size:
            raise ShapeError(f"{emit.source}: pads {given} crop more than axis {i} of {text(data.shape)} holds")
    if constant_value is None:
        value = scalar(emit, 0, data.dtype)
    else:
        one_of(emit, "constant_value", constant_value, (data.dtype,))
        if constant_value.spec.size != 1:
            raise ShapeError(f"{emit.source}: constant_value has shape {text(constant_value.shape)}, expected a scalar")
        value = reshape(emit, constant_value, ())
    return emit("DataMove", data, value, fn="pad", pads=tuple(full), mode=mode)


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


def lower_expand(emit: Emitter, input: Value, shape: Value) -> Value:
    """input broadcast with shape, both ways as numpy does. Source: ONNX Expand-13."""
    wanted = integers(emit, shape, "shape")
    if min(wanted, default=0) < 0:
        raise ShapeError(f"{emit.source}: shape {wanted} has a negative dimension")
    return expand(emit, input, broadcast_shape(emit, input.shape, wanted))


MOVEMENT: dict[tuple[str, str], OperatorDef] = {
    ("", "Transpose"): OperatorDef(lower_transpose),
    ("", "Reshape"): OperatorDef(versioned(lower_reshape, allowzero=(14, None)), since=5),
    ("", "Flatten"): OperatorDef(lower_flatten),
    ("", "Squeeze"): OperatorDef(versioned(lower_squeeze, axes=(1, 12))),
    ("", "Unsqueeze"): OperatorDef(versioned(lower_unsqueeze, axes=(1, 12))),
    ("", "Concat"): OperatorDef(lower_concat, since=4),
    ("", "Split"): OperatorDef(versioned(lower_split, split=(2, 12), num_outputs=(18, None)), since=2),
    ("", "Slice"): OperatorDef(lower_slice, since=10),
    ("", "Pad"): OperatorDef(lower_pad, since=11),
    ("", "Gather"): OperatorDef(lower_gather),
    ("", "Expand"): OperatorDef(lower_expand, since=8),
}
