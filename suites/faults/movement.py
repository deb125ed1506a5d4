"""Planted faults of movement, and those that depend on earlier calls or touch their inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .planted import Call, Outputs, Planted, Remembering, Skip, honest

F = np.float32
ANY = ("Transpose", "Reshape", "Concat", "Slice", "Gather", "Pad", "Expand")


def inverse_perm(call: Call) -> Call:
    perm = call.attrs.get("perm")
    if not perm:
        raise Skip
    return call.with_attrs(perm=[int(i) for i in np.argsort(perm)])


def identity_perm(call: Call) -> Outputs:
    """Axes relabelled, bytes left where they are."""
    x = call.need(0)
    perm = call.attrs.get("perm") or list(range(x.ndim))[::-1]
    return [x.reshape([x.shape[p] for p in perm])]


def default_perm(call: Call) -> Outputs:
    """Without perm the last two axes only."""
    x = call.need(0)
    if "perm" in call.attrs or x.ndim < 3:
        raise Skip
    return honest(call.with_attrs(perm=[*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]))


def clipped_end(call: Call) -> Call:
    """With a negative step an end before the first element is taken for 0."""
    ends, steps, axes = call.need(2), call.operand(4), call.operand(3)
    if steps is None or (steps > 0).all():
        raise Skip
    shape = call.need(0).shape
    where = [int(a) for a in axes] if axes is not None else range(len(ends))
    lengths = np.asarray([shape[a] for a in where])
    return call.with_input(2, np.where((steps < 0) & (ends < -lengths), 0, ends).astype(ends.dtype))


def unit_steps(call: Call) -> Call:
    steps = call.need(4)
    return call.with_input(4, np.sign(steps).astype(steps.dtype))


def axes_by_position(call: Call) -> Call:
    axes = call.need(3)
    return call.with_input(3, np.arange(len(axes)).astype(axes.dtype))


def negatives_to_zero(index: int):
    def before(call: Call) -> Call:
        at = call.need(index)
        return call.with_input(index, np.maximum(at, 0).astype(at.dtype))

    return before


def negatives_off_by_one(call: Call) -> Call:
    """-1 read as the last but one."""
    at = call.need(1)
    length = call.need(0).shape[call.attrs.get("axis", 0)]
    return call.with_input(1, np.where((at < 0) & (at > -length), at - 1, at).astype(at.dtype))


def symmetric(call: Call) -> Outputs:
    """reflect repeats the edge."""
    x, pads = call.need(0), call.need(1)
    if call.attrs.get("mode") != "reflect" or call.operand(3) is not None or (pads < 0).any() or not pads.any():
        raise Skip
    half = len(pads) // 2
    return [np.pad(x, list(zip(pads[:half], pads[half:], strict=True)), mode="symmetric")]


def edge_for(mode: str, other: str):
    def before(call: Call) -> Call:
        if call.attrs.get("mode", "constant") != mode:
            raise Skip
        return call.with_attrs(mode=other)

    return before


def pad_ends_swapped(call: Call) -> Call:
    pads = call.need(1)
    half = len(pads) // 2
    return call.with_input(1, np.concatenate([pads[half:], pads[:half]]))


def pad_value_ignored(call: Call) -> Call:
    value = call.need(2)
    if call.attrs.get("mode", "constant") != "constant":
        raise Skip
    return call.with_input(2, np.zeros_like(value))


def first_axis(call: Call) -> Call:
    if call.attrs.get("axis", 0) != -1:
        raise Skip
    return call.with_attrs(axis=0)


def after_empty(call: Call) -> Outputs:
    """An input of no elements makes the next one be skipped."""
    sizes = [x.size for x in call.inputs if x is not None]
    if 0 not in sizes or sizes.index(0) + 1 == len(sizes):
        raise Skip
    at = sizes.index(0) + 1
    return honest(call.with_input(at, np.zeros_like(call.need(at))))


def raises_on_empty(call: Call) -> Outputs:
    if any(x is not None and x.size == 0 for x in call.inputs):
        raise ValueError("an empty input")
    return honest(call)


def reversed_inputs(call: Call) -> Outputs:
    """Of two inputs of one shape the second comes first."""
    a, b = call.need(0), call.need(1)
    if a.shape != b.shape:
        raise Skip
    return honest(call.with_input(0, b).with_input(1, a))


def zero_from_the_end(call: Call) -> Call:
    """A 0 in the shape copies the dimension counted from the end."""
    x, shape = call.need(0), call.need(1)
    if call.attrs.get("allowzero") or not (shape == 0).any() or len(shape) > x.ndim:
        raise Skip
    filled = [x.shape[len(x.shape) - len(shape) + i] if d == 0 else d for i, d in enumerate(shape)]
    return call.with_input(1, np.asarray(filled, np.int64))


def equal_parts(call: Call) -> Outputs:
    """Unequal sizes are split as if they were equal."""
    outputs = honest(call)
    axis = call.attrs.get("axis", 0)
    if len({y.shape[axis] for y in outputs}) < 2:
        raise Skip
    return [np.ascontiguousarray(part) for part in np.array_split(call.need(0), len(outputs), axis)]


def order(values: dict[str, str], name: str):
    def before(call: Call) -> Call:
        return call.with_attrs(**{name: values[call.attrs.get(name, next(iter(values)))]})

    return before


def diagonal(call: Call) -> Call:
    if call.operand(1) is None:
        raise Skip
    return call.with_input(1, call.need(1) + 1)


def other_triangle(call: Call) -> Call:
    return call.with_attrs(upper=1 - call.attrs.get("upper", 1))


def other_axis(call: Call) -> Call:
    """Indices used along the last axis."""
    if call.attrs.get("axis", 0) in (-1, call.need(0).ndim - 1):
        raise Skip
    return call.with_attrs(axis=-1)


def overwritten(call: Call) -> Call:
    """A reduction of updates is left out."""
    if call.attrs.get("reduction", "none") == "none":
        raise Skip
    return call.with_attrs(reduction="none")


def through_float32(call: Call, outputs: Outputs) -> Outputs:
    if outputs[0].dtype not in (np.int64, np.float64):
        raise Skip
    with np.errstate(all="ignore"):
        return [outputs[0].astype(F).astype(outputs[0].dtype)]


def quiet_nan(call: Call, outputs: Outputs) -> Outputs:
    """NaN and infinities replaced on the way."""
    if outputs[0].dtype != F:
        raise Skip
    return [np.nan_to_num(outputs[0], nan=0.0)]


def last_element(call: Call, outputs: Outputs) -> Outputs:
    """A copy in vectors of eight that forgets the rest."""
    y = outputs[0].copy()
    rest = y.size % 8
    if y.size < 8 or not rest:
        raise Skip
    y.reshape(-1)[-rest:] = np.zeros(rest, y.dtype)
    return [y, *outputs[1:]]


def swapped_bytes(call: Call, outputs: Outputs) -> Outputs:
    if outputs[0].dtype.itemsize != 2 or outputs[0].dtype.kind not in "iu":
        raise Skip
    return [outputs[0].byteswap()]


def repeated_block(call: Call) -> Outputs:
    """Tile repeats each element, not the tensor."""
    x, repeats = call.need(0), call.need(1)
    y = x
    for axis, n in enumerate(repeats):
        y = np.repeat(y, int(n), axis)
    return [y]


# What one call leaves for the next.


def previous(memory: dict[Any, Any], call: Call, outputs: Outputs) -> Outputs:
    """Every fifth call returns the last result of this shape."""
    key = (call.op, outputs[0].shape, outputs[0].dtype)
    last = memory.get(key)
    memory[key] = outputs
    memory["calls"] = memory.get("calls", 0) + 1
    return last if last is not None and memory["calls"] % 5 == 0 else outputs


def not_cleared(memory: dict[Any, Any], call: Call, outputs: Outputs) -> Outputs:
    """The second product of a shape adds to the first."""
    key = (outputs[0].shape, outputs[0].dtype)
    with np.errstate(all="ignore"):
        made = outputs[0] + memory[key] if key in memory else outputs[0]
    memory[key] = outputs[0]
    return [made.astype(outputs[0].dtype)]


def first_length(memory: dict[Any, Any], call: Call, outputs: Outputs) -> Outputs:
    """Rows longer than the first ones are computed up to that length."""
    y = outputs[0]
    if not y.ndim:
        return outputs
    length = memory.setdefault("length", y.shape[-1])
    if y.shape[-1] <= length:
        return outputs
    y = y.copy()
    y[..., length:] = 0
    return [y]


def kept_weights(memory: dict[Any, Any], call: Call, outputs: Outputs) -> Outputs:
    """The second operand is packed once for each shape."""
    b = call.operand(1)
    if b is None:
        return outputs
    packed = memory.setdefault((b.shape, b.dtype), b.copy())
    return outputs if packed is b or np.array_equal(packed, b) else honest(call.with_input(1, packed))


def kept_attributes(memory: dict[Any, Any], call: Call, outputs: Outputs) -> Outputs:
    """A plan is made once for each shape: the attributes of the first call hold for all."""
    shapes = tuple((x.shape, x.dtype) if x is not None else None for x in call.inputs)
    planned = memory.setdefault((call.op, call.opset, shapes), call.attrs)
    return outputs if planned == call.attrs else honest(replace(call, attrs=planned))


FAULTS = (
    Planted("M01", ("Transpose",), "indexing", "the inverse permutation", before=inverse_perm),
    Planted("M02", ("Transpose",), "indexing", "bytes stay where they are", inside=identity_perm),
    Planted("M03", ("Transpose",), "indexing", "without perm only the last two axes", inside=default_perm),
    Planted("M04", ("Slice",), "indexing", "an end before the first element is 0", before=clipped_end),
    Planted("M05", ("Slice",), "indexing", "steps of one", before=unit_steps),
    Planted("M06", ("Slice",), "indexing", "axes taken by position", before=axes_by_position),
    Planted("M07", ("Gather", "GatherElements"), "indexing", "negative indices are 0", before=negatives_to_zero(1)),
    Planted("M08", ("Gather",), "indexing", "negative indices off by one", before=negatives_off_by_one),
    Planted("M09", ("Pad",), "indexing", "reflect repeats the edge", inside=symmetric),
    Planted("M10", ("Pad",), "indexing", "edge taken for reflect", before=edge_for("edge", "reflect")),
    Planted("M11", ("Pad",), "indexing", "begin and end pads swapped", before=pad_ends_swapped),
    Planted("M12", ("Pad",), "numeric", "pads hold 0", before=pad_value_ignored),
    Planted("M13", ("Concat", "Split", "Gather"), "indexing", "axis -1 is 0", before=first_axis),
    Planted("M14", ("Concat",), "memory", "an empty input hides the next one", inside=after_empty),
    Planted("M15", ("Concat",), "shape", "raises on an empty input", inside=raises_on_empty),
    Planted("M16", ("Concat",), "indexing", "two inputs of one shape in the wrong order", inside=reversed_inputs),
    Planted("M17", ("Reshape",), "indexing", "0 copies from the end", before=zero_from_the_end),
    Planted("M18", ("Split",), "indexing", "parts of equal size", inside=equal_parts),
    Planted("M19", ("DepthToSpace",), "indexing", "the other mode", before=order({"DCR": "CRD", "CRD": "DCR"}, "mode")),
    Planted("M20", ("Trilu",), "indexing", "diagonal off by one", before=diagonal),
    Planted("M21", ("Trilu",), "indexing", "the other triangle", before=other_triangle),
    Planted("M22", ("GatherElements", "ScatterElements"), "indexing", "always the last axis", before=other_axis),
    Planted("M23", ("ScatterElements", "ScatterND"), "numeric", "updates overwrite", before=overwritten),
    Planted("M24", ("Identity", "Transpose", "Gather"), "numeric", "64 bits go through float32", after=through_float32),
    Planted("M25", ("Identity", "Where"), "numeric", "NaN and infinities replaced", after=quiet_nan),
    Planted("M26", ANY, "memory", "what is left after vectors of eight is 0", after=last_element),
    Planted("M27", ("Identity", "Transpose"), "numeric", "bytes of 16-bit integers swapped", after=swapped_bytes),
    Planted("M28", ("Tile",), "indexing", "repeats elements", inside=repeated_block),
    Remembering(
        "S01", ("Add", "Relu"), "state", "every fifth call returns the last result of its shape", recall=previous
    ),
    Remembering("S02", ("MatMul", "Gemm"), "state", "the accumulator is not cleared", recall=not_cleared),
    Remembering("S03", ("Softmax", "Sigmoid", "Add"), "state", "the first row length is kept", recall=first_length),
    Remembering("S04", ("MatMul", "Conv"), "state", "weights packed once for each shape", recall=kept_weights),
    Remembering(
        "S05",
        ("Transpose", "Softmax", "Gather", "CumSum"),
        "state",
        "attributes of the first call of a shape",
        recall=kept_attributes,
    ),
)
