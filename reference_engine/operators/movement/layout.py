"""Operators that only change the place or the shape of elements."""

from __future__ import annotations

import math

import numpy as np

from ...emit import (
    Emitter,
    OperatorDef,
    Value,
    broadcast_shape,
    elementwise,
    expand,
    normal_axis,
    reshape,
    scalar,
    transpose,
)
from ...errors import ModelError, ShapeError, UnknownOperatorError
from ..checks import integers, one_of, same_dtype, text, versioned
from ..geometry import Ints


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


def lower_expand(emit: Emitter, input: Value, shape: Value) -> Value:
    """input broadcast with shape, both ways as numpy does. Source: ONNX Expand-13."""
    wanted = integers(emit, shape, "shape")
    if min(wanted, default=0) < 0:
        raise ShapeError(f"{emit.source}: shape {wanted} has a negative dimension")
    return expand(emit, input, broadcast_shape(emit, input.shape, wanted))


def lower_tile(emit: Emitter, input: Value, repeats: Value) -> Value:
    """output[i] = input[i mod shape]: repeats[axis] copies along each axis. Source: ONNX Tile-13."""
    times = integers(emit, repeats, "repeats")
    if len(times) != input.rank or min(times, default=0) < 0:
        raise ShapeError(f"{emit.source}: repeats {times} do not fit {text(input.shape)}")
    blocks = reshape(emit, input, tuple(n for d in input.shape for n in (1, d)))
    wide = expand(emit, blocks, tuple(n for d, r in zip(input.shape, times, strict=True) for n in (r, d)))
    return reshape(emit, wide, tuple(d * r for d, r in zip(input.shape, times, strict=True)))


def _blocks(emit: Emitter, input: Value, blocksize: int) -> Ints:
    if input.rank != 4 or blocksize < 1:
        raise ShapeError(f"{emit.source}: input is {text(input.shape)}, expected [N,C,H,W] and a blocksize above 0")
    return input.shape


def lower_depthtospace(emit: Emitter, input: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    """output[n, c, h*b + i, w*b + j] = input[n, channel, h, w]

    with channel = (i*b + j) * C/b^2 + c for DCR, c*b^2 + i*b + j for CRD.
    Source: ONNX DepthToSpace-13.
    """
    n, c, h, w = _blocks(emit, input, blocksize)
    b = blocksize
    if c % (b * b) or mode not in ("DCR", "CRD"):
        raise ShapeError(f"{emit.source}: {c} channels in mode {mode!r} do not give blocks of {b}x{b}")
    depth = c // (b * b)
    split = (n, b, b, depth, h, w) if mode == "DCR" else (n, depth, b, b, h, w)
    perm = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    return reshape(emit, transpose(emit, reshape(emit, input, split), perm), (n, depth, h * b, w * b))


def lower_spacetodepth(emit: Emitter, input: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    """output[n, channel, h, w] = input[n, c, h*b + i, w*b + j]

    with channel = (i*b + j) * C + c for DCR, c*b^2 + i*b + j for CRD. Source: ONNX SpaceToDepth-28.
    """
    n, c, h, w = _blocks(emit, input, blocksize)
    b = blocksize
    if h % b or w % b or mode not in ("DCR", "CRD"):
        raise ShapeError(f"{emit.source}: {h}x{w} in mode {mode!r} does not give blocks of {b}x{b}")
    split = reshape(emit, input, (n, c, h // b, b, w // b, b))
    perm = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return reshape(emit, transpose(emit, split, perm), (n, c * b * b, h // b, w // b))


def lower_centercroppad(emit: Emitter, input_data: Value, shape: Value, *, axes: Ints | None = None) -> Value:
    """Crop or pad with zeros, around the centre, to shape along axes; an odd rest is at the end.

    Source: ONNX CenterCropPad-18.
    """
    wanted = integers(emit, shape, "shape")
    listed = tuple(range(input_data.rank)) if axes is None else axes
    where = [normal_axis(emit, a, input_data.rank) for a in listed]
    if len(where) != len(wanted) or len(set(where)) < len(where) or min(wanted, default=0) < 0:
        raise ShapeError(f"{emit.source}: shape {wanted} for axes {listed} of {text(input_data.shape)}")
    begin, end = [0] * input_data.rank, [0] * input_data.rank
    for axis, size in zip(where, wanted, strict=True):
        more = size - input_data.shape[axis]
        begin[axis] = more // 2 if more > 0 else -(-more // 2)
        end[axis] = more - begin[axis]
    if not any(begin) and not any(end):
        return input_data
    zero = scalar(emit, 0, input_data.dtype)
    return emit("DataMove", input_data, zero, fn="pad", pads=(*begin, *end), mode="constant")


def lower_trilu(emit: Emitter, input: Value, k: Value | None = None, *, upper: int = 1) -> Value:
    """output[.., i, j] = input[.., i, j] where j - i >= k (upper) or j - i <= k (lower), else 0

    Source: ONNX Trilu-14.
    """
    if input.rank < 2:
        raise ShapeError(f"{emit.source}: input is {text(input.shape)}, expected rank 2 or more")
    first = 0 if k is None else int(emit.data(k, "k").ravel()[0])
    rows, columns = input.shape[-2:]
    distance = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    kept = emit.constant(distance >= first if upper else distance <= first)
    return elementwise(emit, "where", kept, input, scalar(emit, 0, input.dtype))


def lower_dropout(
    emit: Emitter,
    data: Value,
    ratio_input: Value | None = None,
    training_mode: Value | None = None,
    *,
    ratio: float = 0.5,
    seed: int | None = None,
) -> tuple[Value, Value]:
    """output = data, mask = true: dropping belongs to training. Source: ONNX Dropout-13."""
    training = training_mode is not None and bool(emit.data(training_mode, "training_mode"))
    if training and (ratio_input is None or emit.data(ratio_input, "ratio") != 0):
        raise UnknownOperatorError(f"{emit.source}: training_mode drops elements at random; only inference is lowered")
    output = emit("DataMove", data, fn="copy")
    return (output, expand(emit, scalar(emit, 1, "bool"), data.shape)) if emit.n_outputs > 1 else (output,)  # type: ignore[return-value]


LAYOUT: dict[tuple[str, str], OperatorDef] = {
    ("", "Transpose"): OperatorDef(lower_transpose),
    ("", "Reshape"): OperatorDef(versioned(lower_reshape, allowzero=(14, None)), since=5),
    ("", "Flatten"): OperatorDef(lower_flatten),
    ("", "Squeeze"): OperatorDef(versioned(lower_squeeze, axes=(1, 12))),
    ("", "Unsqueeze"): OperatorDef(versioned(lower_unsqueeze, axes=(1, 12))),
    ("", "Concat"): OperatorDef(lower_concat, since=4),
    ("", "Split"): OperatorDef(versioned(lower_split, split=(2, 12), num_outputs=(18, None)), since=2),
    ("", "Slice"): OperatorDef(lower_slice, since=10),
    ("", "Pad"): OperatorDef(lower_pad, since=11),
    ("", "Expand"): OperatorDef(lower_expand, since=8),
    ("", "Tile"): OperatorDef(lower_tile, since=6),
    ("", "DepthToSpace"): OperatorDef(versioned(lower_depthtospace, mode=(11, None))),
    ("", "SpaceToDepth"): OperatorDef(versioned(lower_spacetodepth, mode=(28, None))),
    ("", "CenterCropPad"): OperatorDef(lower_centercroppad, since=18),
    ("", "Trilu"): OperatorDef(lower_trilu, since=14),
    ("", "Dropout"): OperatorDef(versioned(lower_dropout, ratio=(1, 11), seed=(12, None)), since=7),
}
