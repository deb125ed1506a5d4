"""Rows of operators that only move elements: a wrong index anywhere is a wrong element."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case

from .. import draws as d
from ..draws import Draw, Shape, between, pick, rarely

MOVED = ("float32", "int8", "uint8", "int64", "bool")
SPATIAL = (3, 1, 2, 4, 5, 7, 8, 9)


def source(dtype: str, name: str, shape: Shape, const: bool = False) -> Arg:
    return Arg(name, dtype, shape, "bool" if dtype == "bool" else "uniform", const=const)


def tensor_shape(draw: Draw, low_rank: int = 1, high_rank: int = 4) -> Shape:
    """A few hundred elements with unequal dimensions, around the vector widths at the end."""
    rank = between(draw, low_rank, high_rank)
    if rank <= 1:
        return (pick(draw, (65, 17, 31, 33, 127, 257)),) * rank
    head: Shape = ()
    for _ in range(rank - 1):
        head = (*head, min(pick(draw, SPATIAL), max(150 // math.prod(head), 1)))
    last = pick(draw, (5, 1, 3, 7, 8, 17) if math.prod(head) > 60 else (17, 16, 31, 33, 65))
    return (*head, last)


def large_shape(draw: Draw, low_rank: int = 1, high_rank: int = 4) -> Shape:
    """One of those, now and then stretched."""
    return d.larger(draw, tensor_shape(draw, low_rank, high_rank))


def signed(draw: Draw, axis: int, rank: int) -> int:
    """The axis as written: counted from the end in one case of three."""
    return axis - rank if rarely(draw, 3) else axis


def parameter(draw: Draw, name: str, values: tuple[int, ...]) -> Arg:
    """A shape-like input, mostly an initializer."""
    return d.vector(name, "int64", values, const=not rarely(draw, 6))


def permutation(draw: Draw, rank: int) -> tuple[int, ...]:
    rest = list(range(rank))
    return tuple(rest.pop(between(draw, 0, len(rest) - 1)) for _ in range(rank))


CYCLES = (
    (1, 2, 0),
    (2, 0, 1),
    (0, 2, 3, 1),
    (3, 0, 1, 2),
    (1, 2, 0, 3),
    (1, 3, 0, 2),
    (2, 0, 1, 4, 3),
    (1, 2, 3, 4, 0),
)


# Just around the edges of tiles, and some of them: kernels that copy by tiles do so from some thousand elements on.
SIDES = (15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 100, 127, 128, 129, 200)


def turned(draw: Draw) -> tuple[Shape, tuple[int, ...]]:
    """Matrices turned over, in the forms in which models do it: alone, in a batch, channels first or last."""
    rows, columns = pick(draw, SIDES), pick(draw, SIDES[:12])
    batch, height = between(draw, 1, 2), between(draw, 1, 3)
    return pick(
        draw,
        (
            ((rows, columns), (1, 0)),
            ((batch, rows, columns), (0, 2, 1)),
            ((batch, rows, columns), (1, 2, 0)),
            ((batch, rows, height, columns), (0, 2, 3, 1)),
            ((batch, height, columns, rows), (0, 3, 1, 2)),
            ((batch, rows, height, columns), (0, 2, 1, 3)),
        ),
    )


@st.composite
def transpose(draw: Draw, dtype: str) -> Case:
    """Equal dimensions hide a wrong permutation from every shape check; cycles tell it from its inverse."""
    shape: Shape
    if rarely(draw, 6):
        shape, perm = turned(draw)
    elif rarely(draw, 2):
        perm = pick(draw, CYCLES)
        side = pick(draw, {3: (5, 7, 8, 9, 13), 4: (4, 5, 6), 5: (3, 4, 2)}[len(perm)])
        shape = (side,) * len(perm)
        if rarely(draw, 3):
            shape = tuple(side + (i == 1) for i in range(len(perm)))
    else:
        shape = large_shape(draw, 1, 5)
        perm = permutation(draw, len(shape))
    attrs: dict[str, Attr | None] = {"perm": None if rarely(draw, 8) else perm}
    return d.make_case(draw, "Transpose", (source(dtype, "data", shape),), (dtype,), attrs)


@st.composite
def reshape(draw: Draw, dtype: str) -> Case:
    """Merged and split dimensions, one written as -1, some copied with 0; a true 0 with allowzero."""
    shape = list(large_shape(draw, 2, 4))
    if rarely(draw, 24):
        return zero_reshape(draw, dtype)
    target = list(shape)
    at = between(draw, 0, len(shape) - 2)
    form = pick(draw, ("merge", "split", "reverse", "flat"))
    if form == "merge":
        target[at : at + 2] = [shape[at] * shape[at + 1]]
    elif form == "split":
        factor = next((f for f in (2, 3, 5) if shape[at] % f == 0), 1)
        target[at : at + 1] = [shape[at] // factor, factor]
    elif form == "reverse":
        target = target[::-1]
    else:
        target = [math.prod(shape)]
    written = list(target)
    # 0 copies the dimension at the same place of the input.
    copies = [i for i in range(min(len(shape), len(target))) if shape[i] == target[i]]
    if copies and not rarely(draw, 3):
        written[pick(draw, copies)] = 0
    if rarely(draw, 2):
        written[between(draw, 0, len(written) - 1)] = -1
    args = (source(dtype, "data", tuple(shape)), parameter(draw, "shape", tuple(written)))
    return d.make_case(draw, "Reshape", args, (dtype,))


def zero_reshape(draw: Draw, dtype: str) -> Case:
    shape, target, allow = pick(
        draw,
        (
            ((0, 3), (3, 0), 1),
            ((2, 0, 4), (0, 5), 1),
            ((0, 3), (0, 3), 0),
            ((3, 4), (4, 3), 1),
            ((2, 0), (0, 0, 7), None),
        ),
    )
    args = (source(dtype, "data", shape), d.vector("shape", "int64", target, const=True))
    profile = "empty" if 0 in shape else "plain"
    return d.make_case(draw, "Reshape", args, (dtype,), {"allowzero": allow}, 13 if allow is None else 14, profile)


@st.composite
def flatten(draw: Draw, dtype: str) -> Case:
    shape = large_shape(draw, 1, 5)
    axis = between(draw, 0, len(shape))
    written = axis - len(shape) if rarely(draw, 3) and axis < len(shape) else axis
    attrs: dict[str, Attr | None] = {"axis": written if written != 1 or rarely(draw, 2) else None}
    return d.make_case(draw, "Flatten", (source(dtype, "input", shape),), (dtype,), attrs)


def with_ones(draw: Draw) -> tuple[Shape, tuple[int, ...], tuple[int, ...]]:
    """(shape without, shape with unit dimensions, their axes as written)."""
    shape = large_shape(draw, 1, 3)
    rank = len(shape) + between(draw, 1, 2)
    axes = sorted({between(draw, 0, rank - 1) for _ in range(rank - len(shape))})
    rank = len(shape) + len(axes)
    axes = [min(a, rank - 1) for a in axes]
    axes = sorted(set(axes))
    rank = len(shape) + len(axes)
    rest = iter(shape)
    full = tuple(1 if i in axes else next(rest) for i in range(rank))
    written = [signed(draw, a, rank) for a in axes]
    return shape, full, tuple(written[::-1] if rarely(draw, 4) else written)


@st.composite
def squeeze(draw: Draw, dtype: str) -> Case:
    _, full, axes = with_ones(draw)
    args = [source(dtype, "data", full)]
    if not rarely(draw, 5):
        args.append(parameter(draw, "axes", axes))
    return d.make_case(draw, "Squeeze", args, (dtype,))


@st.composite
def unsqueeze(draw: Draw, dtype: str) -> Case:
    shape, _, axes = with_ones(draw)
    return d.make_case(draw, "Unsqueeze", (source(dtype, "data", shape), parameter(draw, "axes", axes)), (dtype,))


@st.composite
def concat(draw: Draw, dtype: str) -> Case:
    """Unequal lengths, many inputs, empty inputs before, between and after the others."""
    shape = tensor_shape(draw, 1, 4)
    axis = between(draw, 0, len(shape) - 1)
    count = pick(draw, (2, 3, 1, 4, 9))
    lengths = [pick(draw, (min(shape[axis], 17), 1, 2, 3, 5, 8)) for _ in range(count)]
    if rarely(draw, 4):
        lengths = [lengths[0]] * count  # equal inputs: only the order of elements tells the axis
    elif rarely(draw, 3) and (count > 1 or rarely(draw, 4)):
        lengths[between(draw, 0, count - 1)] = 0
    shape = d.larger(draw, shape, d.others(len(shape), axis), max(sum(lengths), 1))
    args = []
    for i, length in enumerate(lengths):
        part = (*shape[:axis], length, *shape[axis + 1 :])
        args.append(source(dtype, f"input_{i}", part, const=rarely(draw, 6) and length > 0))
    profile = "empty" if not any(lengths) else "plain"
    return d.make_case(draw, "Concat", args, (dtype,), {"axis": signed(draw, axis, len(shape))}, profile=profile)


@st.composite
def split(draw: Draw, dtype: str) -> Case:
    shape = list(tensor_shape(draw, 1, 4))
    axis = between(draw, 0, len(shape) - 1)
    shape[axis] = 8
    shape = list(d.larger(draw, tuple(shape), d.others(len(shape), axis)))
    count = pick(draw, (2, 3, 4, 1))
    form = pick(draw, ("uneven", "equal", "num_outputs", "num_outputs", "sizes"))
    attrs: dict[str, Attr | None] = {"axis": signed(draw, axis, len(shape))}
    opset, extra = 13, []
    if form == "equal":
        shape[axis] = count * between(draw, 1, 6)
    elif form == "num_outputs":
        opset, attrs["num_outputs"] = 18, count
        # The last part is the smaller one, but there must be one.
        length = count * between(draw, 1, 6)
        shape[axis] = length - between(draw, 0, min(count - 1, (length // count) - 1))
    else:
        sizes = tuple(between(draw, 0 if form == "uneven" else 1, 6) for _ in range(count))
        shape[axis] = sum(sizes)
        extra = [parameter(draw, "split", sizes)]
        opset = pick(draw, (13, 13, 18))
    args = (source(dtype, "input", tuple(shape)), *extra)
    profile = "empty" if shape[axis] == 0 else "plain"
    return d.make_case(draw, "Split", args, (dtype,) * count, attrs, opset, profile)


def slice_axis(draw: Draw, length: int) -> tuple[int, int, int]:
    """(start, end, step) of one axis: signs, ends out of range, backwards to the first element and beyond."""
    form = pick(draw, ("plain", "plain", "step", "back", "all back", "far", "odd" if rarely(draw, 5) else "far"))
    start, end = between(draw, 0, length // 2), between(draw, length // 2 + 1, length)
    if form == "plain":
        return (start - length, end, 1) if rarely(draw, 3) else (start, end if end < length else 2**31, 1)
    if form == "step":
        return start, end, pick(draw, (2, 3))
    if form == "back" and length >= 3:
        start = min(start, length // 2 - 1)
        return length - 1 - start, start - length, pick(draw, (-1, -2, -3))
    if form in ("back", "all back"):
        # An end of -length-1 or less is the place before element 0.
        return (
            pick(draw, (-1, length - 1, length + 5, 2**31)),
            pick(draw, (-length - 1, -length - 9, -(2**63))),
            pick(draw, (-1, -2, -3)),
        )
    if form == "far":
        return (
            pick(draw, (-length - 4, 0, -(2**62))),
            pick(draw, (length + 7, 2**63 - 1)),
            pick(draw, (1, 2, length + 3)),
        )
    return pick(draw, ((end, start, 1), (start, start, 1), (0, length, length), (length - 1, -length - 1, -length)))


@st.composite
def slice_rows(draw: Draw, dtype: str) -> Case:
    head = tensor_shape(draw, 1, 3)
    shape = d.larger(draw, (*head, min(pick(draw, (17, 16, 31, 33, 65)), max(3000 // math.prod(head), 5))))
    rank = len(shape)
    axes = tuple(range(rank)) if rarely(draw, 3) else permutation(draw, rank)[: between(draw, 1, min(rank, 2))]
    starts, ends, steps = zip(*(slice_axis(draw, shape[a]) for a in axes), strict=True)
    args = [source(dtype, "data", shape), parameter(draw, "starts", starts), parameter(draw, "ends", ends)]
    leading = axes == tuple(range(len(axes)))
    if not leading or not rarely(draw, 3) or any(s != 1 for s in steps):
        written = tuple(signed(draw, a, rank) for a in axes)
        args.append(Arg("axes") if leading and rarely(draw, 3) else parameter(draw, "axes", written))
        if any(s != 1 for s in steps) or rarely(draw, 2):
            args.append(parameter(draw, "steps", steps))
    counts = [
        len(range(*slice(s, e, p).indices(shape[a]))) for s, e, p, a in zip(starts, ends, steps, axes, strict=True)
    ]
    return d.make_case(draw, "Slice", args, (dtype,), profile="plain" if all(counts) else "empty")


@st.composite
def pad(draw: Draw, dtype: str) -> Case:
    shape = large_shape(draw, 1, 4)
    mode = pick(draw, ("constant", "reflect", "edge") * 4 + ("constant", "constant", "wrap"))
    before, after = [], []
    for length in shape:
        reach = min(length - 1, 4) if mode == "reflect" else min(length, 3)
        low = -min(length - 1, 2) if mode == "constant" and rarely(draw, 4) else 0
        begin = between(draw, low, max(reach, 0))
        end = between(draw, max(low, 1 - length - begin), max(reach, 0))
        before.append(begin)
        after.append(end)
    args = [source(dtype, "data", shape), parameter(draw, "pads", (*before, *after))]
    if mode == "constant" and not rarely(draw, 3):
        value = {"float32": -1.5, "bool": 1, "uint8": 200}.get(dtype, -7)
        args.append(d.scalar("constant_value", dtype, value, const=rarely(draw, 2)))
    attrs: dict[str, Attr | None] = {"mode": mode if mode != "constant" or rarely(draw, 2) else None}
    return d.make_case(draw, "Pad", args, (dtype,), attrs, opset=19 if mode == "wrap" else 13)


@st.composite
def identity(draw: Draw, dtype: str) -> Case:
    shape = large_shape(draw, 0, 5)
    special = dt.is_float(dtype) and rarely(draw, 4)
    arg = Arg("input", dtype, shape, "special") if special else source(dtype, "input", shape)
    return d.make_case(draw, "Identity", (arg,), (dtype,), profile="special" if special else "plain")


@st.composite
def expand(draw: Draw, dtype: str) -> Case:
    """Dimensions of 1 grow, new ones appear in front, and a 1 in the target keeps what is there."""
    target = large_shape(draw, 1, 4)
    start = between(draw, 0, len(target) - 1)
    shape = tuple(1 if rarely(draw, 2) else n for n in target[start:])
    written = tuple(
        1 if n == m and rarely(draw, 3) else n for n, m in zip(target, (*(0,) * start, *shape), strict=True)
    )
    if rarely(draw, 12):
        shape = ()
    return d.make_case(draw, "Expand", (source(dtype, "input", shape), parameter(draw, "shape", written)), (dtype,))


@st.composite
def tile(draw: Draw, dtype: str) -> Case:
    """Unequal repeats; an axis repeated 0 times."""
    shape = large_shape(draw, 1, 4)
    repeats = [pick(draw, (2, 1, 3)) for _ in shape]
    if math.prod(shape) > 2000:
        repeats[1:] = [1] * (len(shape) - 1)
    none = rarely(draw, 16)
    if none:
        repeats[between(draw, 0, len(shape) - 1)] = 0
    args = (source(dtype, "input", shape), parameter(draw, "repeats", tuple(repeats)))
    return d.make_case(draw, "Tile", args, (dtype,), profile="empty" if none else "plain")


@st.composite
def depth_to_space(draw: Draw, dtype: str) -> Case:
    """Height and width differ, and so do blocks and depths: DCR and CRD agree where the depth is 1."""
    b = pick(draw, (2, 3, 1))
    depth = pick(draw, (3, 2, 5, 1))
    shape: Shape = (between(draw, 1, 2), b * b * depth, between(draw, 1, 4), pick(draw, (3, 5, 1, 7)))
    shape = d.larger(draw, shape, (0, 2, 3))
    attrs: dict[str, Attr | None] = {"blocksize": b, "mode": pick(draw, ("CRD", "DCR", None))}
    return d.make_case(draw, "DepthToSpace", (source(dtype, "input", shape),), (dtype,), attrs)


@st.composite
def space_to_depth(draw: Draw, dtype: str) -> Case:
    b = pick(draw, (2, 3, 1))
    shape: Shape = (
        between(draw, 1, 2),
        pick(draw, (3, 2, 5, 1)),
        b * between(draw, 1, 4),
        b * pick(draw, (3, 5, 1, 7)),
    )
    shape = d.larger(draw, shape, (0, 1))
    return d.make_case(draw, "SpaceToDepth", (source(dtype, "input", shape),), (dtype,), {"blocksize": b})


@st.composite
def center_crop_pad(draw: Draw, dtype: str) -> Case:
    """Odd and even differences, cropped on one axis and padded on another."""
    shape = tensor_shape(draw, 1, 4)
    axes = [i for i in range(len(shape)) if not rarely(draw, 3)] or [0]
    wanted = tuple(max(shape[a] + between(draw, -4, 4), 1) for a in axes)
    shape = d.larger(draw, shape, d.others(len(shape), *axes))
    attrs: dict[str, Attr | None] = {"axes": tuple(signed(draw, a, len(shape)) for a in axes)}
    if len(axes) == len(shape) and rarely(draw, 2):
        attrs = {}
    args = (source(dtype, "input_data", shape), parameter(draw, "shape", wanted))
    return d.make_case(draw, "CenterCropPad", args, (dtype,), attrs, opset=18)


@st.composite
def trilu(draw: Draw, dtype: str) -> Case:
    """Wide and high matrices, batches, diagonals inside and beyond the corners."""
    shape = d.larger(draw, (*tensor_shape(draw, 1, 2)[:-1], pick(draw, (5, 1, 4, 9)), pick(draw, (7, 3, 17, 1))))
    args = [source(dtype, "input", shape)]
    if not rarely(draw, 4):
        args.append(d.scalar("k", "int64", between(draw, -shape[-2] - 1, shape[-1] + 1), const=not rarely(draw, 4)))
    attrs: dict[str, Attr | None] = {"upper": pick(draw, (0, 1, None))}
    return d.make_case(draw, "Trilu", args, (dtype,), attrs, opset=14)


@st.composite
def dropout(draw: Draw, dtype: str) -> Case:
    """At inference nothing is dropped, whatever the ratio; the mask, where asked for, is true."""
    args = [source(dtype, "data", large_shape(draw, 0, 4))]
    if not rarely(draw, 3):
        args.append(d.scalar("ratio", "float32", pick(draw, (0.5, 0.0, 0.9)), const=not rarely(draw, 3)))
        if rarely(draw, 2):
            args.append(d.scalar("training_mode", "bool", 0, const=not rarely(draw, 3)))
    return d.make_case(draw, "Dropout", args, (dtype, "bool")[: between(draw, 1, 2)])


ROWS = (
    ("Transpose", 13, transpose),
    ("Reshape", 13, reshape),
    ("Flatten", 13, flatten),
    ("Squeeze", 13, squeeze),
    ("Unsqueeze", 13, unsqueeze),
    ("Concat", 13, concat),
    ("Split", 13, split),
    ("Slice", 13, slice_rows),
    ("Pad", 13, pad),
    ("Identity", 13, identity),
    ("Expand", 13, expand),
)

# What else ONNX allows: each type once or twice, where a width or a sign could be mistaken.
REST = ("float16", "bfloat16", "uint16", "int16", "int32", "uint32", "uint64", "float64")
SOME = ("float32", "int64", "uint8")
LABELS = {"Identity": (*MOVED, *REST), "Transpose": (*MOVED, *REST), "Concat": (*MOVED, "float16", "uint64", "int32")}
LABELS |= {"Slice": (*MOVED, "float16", "uint16"), "Expand": (*MOVED, "float16", "int32"), "Pad": (*MOVED, "float64")}
FEWER = (
    ("Tile", 13, tile, (*SOME, "bool", "float64")),
    ("DepthToSpace", 13, depth_to_space, ("float32", "float64", "uint8")),
    ("SpaceToDepth", 13, space_to_depth, ("float32", "float64", "uint8")),
    ("CenterCropPad", 18, center_crop_pad, SOME),
    ("Trilu", 14, trilu, ("float32", "float64", "int64", "bool")),
    ("Dropout", 13, dropout, ("float32", "float64", "float16")),
)

LAYOUT = (
    *(row for op, since, f in ROWS for row in d.rows(op, f"ONNX {op}-{since}", LABELS.get(op, MOVED), f)),
    *(row for op, since, f, labels in FEWER for row in d.rows(op, f"ONNX {op}-{since}", labels, f)),
)
