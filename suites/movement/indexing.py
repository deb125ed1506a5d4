"""Rows of operators that pick or place elements by index."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case

from .. import draws as d
from ..draws import Draw, Shape, between, pick, rarely
from .layout import MOVED, REST, large_shape, parameter, signed, source, tensor_shape


@st.composite
def gather(draw: Draw, dtype: str) -> Case:
    """Negative indices, and indices of rank 0 to 3."""
    shape = tensor_shape(draw, 1, 4)
    axis = between(draw, 0, len(shape) - 1)
    indices = pick(
        draw,
        ((5,), (2, 3), (), (1,), (2, 1, 4), (17,), (0,)) if rarely(draw, 12) else ((5,), (2, 3), (), (2, 1, 4), (17,)),
    )
    shape = d.larger(draw, shape, each=max(math.prod(indices) // shape[axis], 1))
    indices = d.larger(draw, indices, each=math.prod(shape) // shape[axis])
    kind = pick(draw, ("int64", "int64", "int32"))
    args = (
        source(dtype, "data", shape),
        Arg("indices", kind, indices, "index", (shape[axis],), const=rarely(draw, 2)),
    )
    attrs: dict[str, Attr | None] = {"axis": signed(draw, axis, len(shape)) if axis or rarely(draw, 2) else None}
    return d.make_case(draw, "Gather", args, (dtype,), attrs, profile="empty" if 0 in indices else "plain")


def small_shape(draw: Draw, low: int, high: int) -> Shape:
    return tuple(pick(draw, (3, 2, 5, 4, 7, 1)) for _ in range(between(draw, low, high)))


@st.composite
def gather_elements(draw: Draw, dtype: str) -> Case:
    """Indices shorter than the data on other axes, longer on their own, negative ones."""
    shape = d.larger(draw, small_shape(draw, 1, 4))
    axis = between(draw, 0, len(shape) - 1)
    picked = tuple(
        pick(draw, (n, 9, 1)) if i == axis else between(draw, 1, n) if rarely(draw, 3) else n
        for i, n in enumerate(shape)
    )
    kind = pick(draw, ("int64", "int64", "int32"))
    at = Arg("indices", kind, picked, "index", (shape[axis],), const=rarely(draw, 2))
    attrs: dict[str, Attr | None] = {"axis": signed(draw, axis, len(shape)) if axis or rarely(draw, 2) else None}
    return d.make_case(draw, "GatherElements", (source(dtype, "data", shape), at), (dtype,), attrs)


def index_tuples(draw: Draw, name: str, count: Shape, sizes: Shape, distinct: bool = False) -> Arg:
    """Indices [*count, r] of literal tuples, negative ones among them; distinct tuples where asked for."""
    flat: list[int] = []
    seen: set[tuple[int, ...]] = set()
    for _ in range(math.prod(count)):
        row = tuple(between(draw, 0, n - 1) for n in sizes)
        while distinct and row in seen and len(seen) < math.prod(sizes):
            place = (sum(i * math.prod(sizes[k + 1 :]) for k, i in enumerate(row)) + 1) % math.prod(sizes)
            row = tuple(place // math.prod(sizes[k + 1 :]) % n for k, n in enumerate(sizes))
        seen.add(row)
        flat += [signed(draw, i, n) for i, n in zip(row, sizes, strict=True)]
    return Arg(name, "int64", (*count, len(sizes)), values=tuple(flat), const=not rarely(draw, 3))


@st.composite
def gather_nd(draw: Draw, dtype: str) -> Case:
    """Tuples of one to all axes, behind none to all but one batch axes."""
    shape = small_shape(draw, 1, 4)
    batch = between(draw, 0, len(shape) - 1) if rarely(draw, 2) else 0
    r = between(draw, 1, len(shape) - batch)
    shape = d.larger(draw, shape, range(batch + r, len(shape)), each=4)
    count = (*shape[:batch], *pick(draw, ((4,), (2, 3), () if not batch else (1,), (1, 5))))
    at = index_tuples(draw, "indices", count, shape[batch : batch + r])
    attrs: dict[str, Attr | None] = {"batch_dims": batch if batch or rarely(draw, 2) else None}
    return d.make_case(draw, "GatherND", (source(dtype, "data", shape), at), (dtype,), attrs)


def reduction(draw: Draw, dtype: str) -> tuple[str | None, int]:
    """(reduction, lowest opset that knows it)."""
    if dtype == "bool":
        return pick(draw, ((None, 13), ("none", 16)))
    return pick(draw, ((None, 13), ("add", 16), ("mul", 16), ("max", 18), ("min", 18), ("none", 16)))


def operand(dtype: str, name: str, shape: Shape, fn: str | None) -> Arg:
    """Sums of many orders need random floats; products of few small integers do not wrap."""
    if fn == "mul" and dtype in dt.INTS:
        return Arg(name, dtype, shape, "uniform", (0, 3) if dtype.startswith("u") else (-3, 3))
    if fn == "add" and dtype in dt.INTS:
        return Arg(name, dtype, shape, "uniform", (0, 20) if dtype.startswith("u") else (-15, 15))
    return Arg(name, dtype, shape, "normal") if fn and dt.is_float(dtype) else source(dtype, name, shape)


@st.composite
def scatter_nd(draw: Draw, dtype: str) -> Case:
    """Distinct places where nothing is reduced, repeated places where it is."""
    shape = small_shape(draw, 1, 4)
    fn, opset = reduction(draw, dtype)
    r = between(draw, 1, len(shape))
    shape = d.larger(draw, shape, range(r, len(shape)))
    free = math.prod(shape[:r])
    count: Shape = (min(pick(draw, (3, 5, 1, 12)), free if fn in (None, "none") else 12),)
    if count[0] % 2 == 0 and rarely(draw, 2):
        count = (2, count[0] // 2)
    at = index_tuples(draw, "indices", count, shape[:r], distinct=fn in (None, "none"))
    args = (operand(dtype, "data", shape, fn), at, operand(dtype, "updates", (*count, *shape[r:]), fn))
    return d.make_case(draw, "ScatterND", args, (dtype,), {"reduction": fn}, opset)


@st.composite
def scatter_elements(draw: Draw, dtype: str) -> Case:
    """Shorter updates on other axes; along the axis distinct places, or repeated ones where a reduction allows it."""
    shape = small_shape(draw, 1, 4)
    axis = between(draw, 0, len(shape) - 1)
    fn, opset = reduction(draw, dtype)
    plain = fn in (None, "none")
    picked = [between(draw, 1, n) if rarely(draw, 3) else n for n in shape]
    picked[axis] = between(draw, 1, shape[axis]) if plain else pick(draw, (shape[axis], 6, 1))
    where = []
    for place in range(math.prod(picked)):
        step = math.prod(picked[axis + 1 :])
        line, j = place // (step * picked[axis]) * step + place % step, place // step % picked[axis]
        turn = (
            between(draw, 0, shape[axis] - 1) if not plain else (line * 7 + j * (1 if line % 2 else -1)) % shape[axis]
        )
        where.append(signed(draw, turn, shape[axis]))
    kind = pick(draw, ("int64", "int64", "int32"))
    at = Arg("indices", kind, tuple(picked), values=tuple(where), const=not rarely(draw, 3))
    # An extreme may meet a place as often as it likes; that many updates are not written out.
    longer = d.larger(draw, at.shape, (axis,)) if fn in ("max", "min") else at.shape
    if longer != at.shape:
        at = Arg("indices", kind, longer, "index", (shape[axis],))
    args = (operand(dtype, "data", shape, fn), at, operand(dtype, "updates", longer, fn))
    attrs: dict[str, Attr | None] = {"axis": signed(draw, axis, len(shape)), "reduction": fn}
    return d.make_case(draw, "ScatterElements", args, (dtype,), attrs, opset)


@st.composite
def compress(draw: Draw, dtype: str) -> Case:
    """A condition that ends early, and one that picks nothing."""
    shape = large_shape(draw, 1, 3)
    axis = None if rarely(draw, 3) else between(draw, 0, len(shape) - 1)
    length = math.prod(shape) if axis is None else shape[axis]
    keep = [not rarely(draw, 2) for _ in range(min(length, 40) - (rarely(draw, 3) and length > 1))]
    condition = Arg("condition", "bool", (len(keep),), values=tuple(map(int, keep)), const=not rarely(draw, 3))
    attrs: dict[str, Attr | None] = {"axis": None if axis is None else signed(draw, axis, len(shape))}
    profile = "plain" if any(keep) else "empty"
    return d.make_case(draw, "Compress", (source(dtype, "input", shape), condition), (dtype,), attrs, profile=profile)


@st.composite
def nonzero(draw: Draw, dtype: str) -> Case:
    """Few, many and no elements that are not 0."""
    shape = large_shape(draw, 1, 4)
    if dtype == "bool":
        return d.make_case(draw, "NonZero", (source(dtype, "X", shape),), ("int64",))
    profile, params = pick(
        draw, (("sparse", ()), ("uniform", ()), ("fill", (0,)) if rarely(draw, 4) else ("sparse", ()))
    )
    arg = Arg("X", dtype, shape, profile, params)
    return d.make_case(draw, "NonZero", (arg,), ("int64",), profile="empty" if profile == "fill" else "plain")


@st.composite
def one_hot(draw: Draw, dtype: str) -> Case:
    """Indices beyond the depth on both sides give rows of the off value."""
    shape = tuple(pick(draw, (3, 2, 5, 1)) for _ in range(between(draw, 1, 3)))
    depth = pick(draw, (5, 3, 8, 1))
    shape = d.larger(draw, shape, each=depth)
    kind = "int32" if dtype == "float32" and rarely(draw, 6) else "int64"
    low = -depth - 2 if rarely(draw, 2) else -depth
    at = Arg("indices", kind, shape, "uniform", (low, depth + (1 if low < -depth else -1)))
    size = d.scalar("depth", "int64", depth, const=True)
    values = d.vector("values", dtype, pick(draw, ((0, 1), (3, 7), (1, 0))), const=not rarely(draw, 3))
    axis = between(draw, 0, len(shape))
    attrs: dict[str, Attr | None] = {"axis": None if axis == len(shape) else signed(draw, axis, len(shape) + 1)}
    return d.make_case(draw, "OneHot", (at, size, values), (dtype,), attrs)


@st.composite
def reverse_sequence(draw: Draw, dtype: str) -> Case:
    """Lengths of 1, of all steps and between, time before batch and after it."""
    batch_axis = between(draw, 0, 1)
    batch, time = pick(draw, (3, 4, 1, 5)), pick(draw, (5, 4, 7, 1))
    shape = ((batch, time) if batch_axis == 0 else (time, batch)) + tensor_shape(draw, 1, 2)[:1] * between(draw, 0, 1)
    shape = d.larger(draw, shape, range(2, len(shape)))
    lens = tuple(between(draw, 1, time) for _ in range(batch))
    default = batch_axis == 1 and rarely(draw, 2)
    attrs: dict[str, Attr | None] = {} if default else {"batch_axis": batch_axis, "time_axis": 1 - batch_axis}
    args = (source(dtype, "input", shape), parameter(draw, "sequence_lens", lens))
    return d.make_case(draw, "ReverseSequence", args, (dtype,), attrs)


@st.composite
def col2im(draw: Draw, dtype: str) -> Case:
    """Overlapping blocks, gaps between them, padding that swallows a part; one to three spatial axes."""
    rank = pick(draw, (2, 2, 1, 3))
    block = tuple(pick(draw, (2, 3, 1)) for _ in range(rank))
    stride = tuple(pick(draw, (1, 2, 3)) for _ in range(rank))
    dilation = tuple(pick(draw, (1, 1, 2)) for _ in range(rank))
    pads = tuple(between(draw, 0, 1) if rarely(draw, 2) else 0 for _ in range(2 * rank))
    image = tuple(between(draw, 1 + dilation[i] * (block[i] - 1), 8 - rank) for i in range(rank))
    steps = [
        (n + pads[i] + pads[rank + i] - dilation[i] * (block[i] - 1) - 1) // stride[i] + 1 for i, n in enumerate(image)
    ]
    channels = pick(draw, (2, 1, 3))
    shape: Shape = (between(draw, 1, 2), channels * math.prod(block), math.prod(steps))
    shape = d.larger(draw, shape, (0,))
    args = (
        Arg("input", dtype, shape, pick(draw, ("normal", "integers"))),
        d.vector("image_shape", "int64", image, const=True),
        d.vector("block_shape", "int64", block, const=True),
    )
    attrs: dict[str, Attr | None] = {"strides": stride, "dilations": dilation, "pads": pads}
    if any(pads) is False and rarely(draw, 2):
        attrs["pads"] = None
    return d.make_case(draw, "Col2Im", args, (dtype,), attrs, opset=18)


SUMS = ("float32", "float64", "int32", "int64", "uint8", "float16")
FEW = ("float32", "int64", "uint8", "bool", "float64")
ROWS = (
    ("Gather", 13, gather, (*MOVED, "float16", "uint16", "int32")),
    ("GatherElements", 13, gather_elements, (*FEW, *REST[:1])),
    ("GatherND", 13, gather_nd, FEW),
    ("ScatterElements", 18, scatter_elements, (*SUMS, "bool", "int8")),
    ("ScatterND", 18, scatter_nd, (*SUMS, "bool", "int8")),
    ("Compress", 11, compress, FEW),
    ("NonZero", 13, nonzero, ("float32", "int64", "uint8", "bool", "int32")),
    ("OneHot", 11, one_hot, ("float32", "int64")),
    ("ReverseSequence", 10, reverse_sequence, ("float32", "int64", "uint8")),
    ("Col2Im", 18, col2im, ("float32",)),
)
INDEXING = tuple(row for op, since, f, labels in ROWS for row in d.rows(op, f"ONNX {op}-{since}", labels, f))
