"""Rows of reductions, pooling and softmax."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case

from . import draws as d
from .draws import Draw, Shape, between, pick, rarely

REDUCED = (2, 3, 5, 7, 8, 15, 16, 17, 21, 31, 33, 63, 65, 127, 257)
FLOAT_SUMS = ("normal", "integers", "positive", "wide", "cancel", "normal")
AXES_INPUT = {"ReduceSum": 13, "ReduceMax": 18, "ReduceMin": 18, "ReduceMean": 18}


def reducible(draw: Draw) -> tuple[Shape, tuple[int, ...] | None]:
    """(shape, axes as written); None reduces everything."""
    rank = pick(draw, (2, 3, 4, 1))
    count = pick(draw, (1, 1, 2)) if rank > 1 else 1
    first = between(draw, 0, rank - 1)
    axes = sorted({first, (first + between(draw, 1, rank)) % rank}) if count == 2 else [first]
    shape = [0] * rank
    shape[axes[0]] = room = pick(draw, REDUCED)
    for axis in range(rank):
        if axis != axes[0]:
            # A few thousand elements at most, many of them results where there is room.
            shape[axis] = min(pick(draw, (33, 16, 65, 9, 3, 1)), max(8000 // room, 1))
            room *= shape[axis]
    if rarely(draw, 6):
        return tuple(shape), None
    return tuple(shape), tuple(a - rank if rarely(draw, 3) else a for a in axes)


@st.composite
def reduction(draw: Draw, op: str, dtype: str) -> Case:
    """Axes by attribute or input as the opset has it, negative, all, none; with and without keepdims."""
    shape, axes = reducible(draw)
    keepdims = pick(draw, (1, 0, None))
    sums = op in ("ReduceSum", "ReduceMean")
    data = (
        pick(draw, FLOAT_SUMS if sums else ("normal", "integers", "negative", "wide"))
        if dt.is_float(dtype)
        else "uniform"
    )
    params: tuple[float, ...] = ()
    if sums and not dt.is_float(dtype):
        # ONNX does not say what a sum beyond the type becomes.
        data, params = "integers", (1 << (17 if dtype == "int32" else 40),)
    opset = AXES_INPUT[op] if op == "ReduceSum" else pick(draw, (13, 13, 18))
    by_input = opset >= AXES_INPUT[op]
    attrs: dict[str, Attr | None] = {"keepdims": keepdims}
    args = [Arg("data", dtype, shape, data, params)]
    if axes is None and by_input and rarely(draw, 3):
        attrs["noop_with_empty_axes"] = 1
        keepdims = 1
    if axes is None and by_input and rarely(draw, 2):
        args.append(Arg("axes", "int64", (0,), values=(), const=True))
    elif axes is not None and by_input:
        args.append(d.vector("axes", "int64", axes, const=not rarely(draw, 5)))
    elif axes is not None:
        attrs["axes"] = axes
    profile = "plain" if data in ("normal", "uniform") else data
    return d.make_case(draw, op, args, (dtype,), attrs, opset, profile)


@st.composite
def softmax(draw: Draw, dtype: str) -> Case:
    """Every axis, negative or not, with other dimensions behind it; large, masked and infinite logits."""
    rank = pick(draw, (2, 3, 3, 4, 1))
    axis = between(draw, 0, rank - 1)
    shape = [1] * rank
    shape[axis] = room = pick(draw, (5, 1, 2, 3, 8, 16, 17, 31, 33, 65, 100, 257))
    for other in range(rank):
        if other != axis:
            shape[other] = min(pick(draw, (3, 2, 4, 5, 8, 16)), max(3000 // room, 1))
            room *= shape[other]
    if math.prod(shape) < 100 and rank > 1:
        shape[(axis + 1) % rank] *= 7
    kind, data = pick(
        draw,
        (
            ("plain", ("normal", ())),
            ("plain", ("normal", (4.0,))),
            ("large", ("large", (1000.0,))),
            ("large", ("large", (100.0,))),
            # A whole row this far down underflows without the subtraction of its maximum.
            ("large", ("normal", (2.0, -150.0))),
            ("special", ("lanes", (axis, 2.0))),
            ("special", ("special", (127, 40))),
        ),
    )
    written = axis - rank if rarely(draw, 2) else axis
    attrs: dict[str, Attr | None] = {"axis": written if written != -1 or rarely(draw, 2) else None}
    return d.make_case(draw, "Softmax", (d.filled("input", dtype, tuple(shape), data),), (dtype,), attrs, profile=kind)


POOL_STRIDES = ((1, 1), (2, 2), (2, 1), (1, 2), (3, 2), (2, 3))
POOL_DILATIONS = ((1, 1), (2, 1), (1, 2), (2, 2), (3, 1))


def pool_axis(draw: Draw, kernel: int, stride: int, dilation: int, explicit: bool, ceil: bool, outs: tuple[int, int]):
    """(length, pad_begin, pad_end) of one pooled axis; every window meets at least one real element."""
    reach = (kernel - 1) * dilation + 1
    # Not more than kernel - 1: onnxruntime and ONNX's own inference refuse a pad of a whole kernel.
    begin = between(draw, 0, min(kernel - 1, 2)) if explicit else 0
    end = between(draw, 0, min(kernel - 1, 2)) if explicit else 0
    out = between(draw, *outs)
    length = (out - 1) * stride + reach - begin - end + between(draw, 0, stride - 1)
    if ceil and explicit and kernel > 1 and stride > 1 and rarely(draw, 2):
        # length + begin is a multiple of the stride: the extra window of ceil_mode starts at the padding.
        end = kernel - 1
        length += -(length + begin) % stride
    return max(length, reach, 1), begin, end


def pooling(draw: Draw, op: str) -> tuple[Shape, dict[str, Attr | None], int]:
    """(input shape, attributes, opset) of a 1-D or 2-D pooling."""
    rank = pick(draw, (2, 1, 2, 2))
    kernel = tuple(pick(draw, (2, 1, 3, 3, 4, 5)) for _ in range(rank))
    strides = pick(draw, POOL_STRIDES)[:rank]
    dilated = rarely(draw, 3 if op == "MaxPool" else 6)
    dilations = (pick(draw, POOL_DILATIONS) if dilated else (1, 1))[:rank]
    automatic = pick(draw, ("NOTSET",) * 9 + ("SAME_UPPER", "SAME_LOWER", "VALID"))
    explicit = automatic == "NOTSET" and not rarely(draw, 3)
    ceil = automatic == "NOTSET" and rarely(draw, 3)
    if automatic.startswith("SAME"):
        # A stride beyond the kernel would ask for negative padding, which ONNX leaves undecided.
        dilations, strides = (1,) * rank, tuple(map(min, strides, kernel))
    outs = (4, 9) if rank == 2 else (20, 70)
    axes = [pool_axis(draw, k, s, n, explicit, ceil, outs) for k, s, n in zip(kernel, strides, dilations, strict=True)]
    lengths, begin, end = zip(*axes, strict=True)
    attrs: dict[str, Attr | None] = {
        "auto_pad": automatic if automatic != "NOTSET" else None,
        "ceil_mode": 1 if ceil else None,
        "dilations": dilations if any(n > 1 for n in dilations) else None,
        "kernel_shape": kernel,
        "pads": (*begin, *end) if any(begin + end) else None,
        "strides": strides if any(s > 1 for s in strides) or rarely(draw, 3) else None,
    }
    shape = (between(draw, 1, 3), pick(draw, (3, 1, 4, 5, 8)), *lengths)
    opset = 19 if op == "AveragePool" and attrs["dilations"] else 13
    return shape, attrs, opset


@st.composite
def max_pool(draw: Draw, dtype: str) -> Case:
    shape, attrs, opset = pooling(draw, "MaxPool")
    options: tuple[d.Data, ...] = (("normal", ()), ("negative", ()), ("integers", (9,)))
    if dtype == "int8":
        options = (("uniform", ()), ("negative", ()))
    elif dtype == "uint8":
        options = (("uniform", ()), ("uniform", (0, 9)))
    profile, params = pick(draw, options)
    kind = "plain" if profile in ("normal", "uniform") else profile
    return d.make_case(draw, "MaxPool", (Arg("X", dtype, shape, profile, params),), (dtype,), attrs, opset, kind)


@st.composite
def average_pool(draw: Draw, dtype: str) -> Case:
    shape, attrs, opset = pooling(draw, "AveragePool")
    attrs["count_include_pad"] = 1 if rarely(draw, 2) else None
    profile = pick(draw, ("normal", "integers", "positive", "wide", "cancel"))
    kind = "plain" if profile == "normal" else profile
    return d.make_case(draw, "AveragePool", (Arg("X", dtype, shape, profile),), (dtype,), attrs, opset, kind)


@st.composite
def global_pool(draw: Draw, op: str, dtype: str) -> Case:
    rank = pick(draw, (2, 1, 3))
    spatial = tuple(pick(draw, (7, 1, 2, 3, 5, 8, 13, 16, 17) if rank < 3 else (2, 3, 1, 5)) for _ in range(rank))
    channels = min(pick(draw, (33, 16, 65, 3, 96)), max(4000 // math.prod(spatial), 3))
    shape = (between(draw, 1, 3), channels, *spatial)
    profile = pick(draw, ("normal", "negative", "integers") if op == "GlobalMaxPool" else FLOAT_SUMS[:-1])
    kind = "plain" if profile == "normal" else profile
    opset = 22 if dtype == "bfloat16" else 13
    return d.make_case(draw, op, (Arg("X", dtype, shape, profile),), (dtype,), opset=opset, profile=kind)


REDUCTIONS = {
    "ReduceSum": ("float32", "float64", "int32", "int64"),
    "ReduceMean": ("float32", "float64"),
    "ReduceMax": ("float32", "int8", "uint8", "int32", "int64"),
    "ReduceMin": ("float32", "int8", "uint8", "int32", "int64"),
}

CASES = (
    *(row for op, types in REDUCTIONS.items() for row in d.rows(op, f"ONNX {op}-13 and -18", types, reduction, op)),
    *d.rows("Softmax", "ONNX Softmax-13", ("float32", "float64"), softmax),
    *d.rows("MaxPool", "ONNX MaxPool-12", ("float32", "int8", "uint8"), max_pool),
    *d.rows("AveragePool", "ONNX AveragePool-11 and -19", ("float32",), average_pool),
    *d.rows("GlobalAveragePool", "ONNX GlobalAveragePool-1", ("float32",), global_pool, "GlobalAveragePool"),
    *d.rows("GlobalMaxPool", "ONNX GlobalMaxPool-1", ("float32",), global_pool, "GlobalMaxPool"),
)
