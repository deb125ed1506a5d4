"""Rows of pooling: float, global and quantized, and of QLinearSoftmax."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case, CaseSpec

from .. import draws as d
from ..draws import Data, Draw, Moments, Shape, between, operand, pick, rarely
from .reductions import HALF_SUMS, SUMS

POOL_STRIDES = ((1, 1, 1), (2, 2, 2), (2, 1, 1), (1, 2, 3), (3, 2, 1), (2, 3, 2))
POOL_DILATIONS = ((1, 1, 1), (2, 1, 2), (1, 2, 1), (2, 2, 2), (3, 1, 2))


# The first opset from 13 on that has dilations.
DILATED = {"MaxPool": 13, "AveragePool": 19, "LpPool": 18}


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


def reach_of(attrs: Mapping[str, Attr | None]) -> Shape:
    """How many elements a window spans, per axis."""
    kernel = kernel_of(attrs)
    dilations: Shape = attrs["dilations"] or (1,) * len(kernel)  # type: ignore[assignment]
    return tuple((k - 1) * n + 1 for k, n in zip(kernel, dilations, strict=True))


def fits(shape: Shape, attrs: Mapping[str, Attr | None]) -> bool:
    return all(length >= reach for length, reach in zip(shape[2:], reach_of(attrs), strict=True))


def no_window(draw: Draw, shape: Shape, attrs: dict[str, Attr | None]) -> tuple[Shape, dict[str, Attr | None]]:
    """One axis too short for any window, by no more than a stride: the formula gives it no elements."""
    axis = between(draw, 0, len(shape) - 3)
    reach = reach_of(attrs)[axis]
    if reach < 2:
        return shape, attrs
    lack = between(draw, 1, reach - 1)
    strides: list[int] = list(attrs["strides"] or (1,) * (len(shape) - 2))  # type: ignore[arg-type]
    strides[axis] = max(strides[axis], lack)
    lengths = (*shape[: 2 + axis], reach - lack, *shape[3 + axis :])
    return lengths, {**attrs, "strides": tuple(strides), "pads": None, "ceil_mode": None, "auto_pad": None}


def pooling(draw: Draw, op: str) -> tuple[Shape, dict[str, Attr | None], int]:
    """(input shape, attributes, opset) of a pooling over one to three axes."""
    rank = pick(draw, (2, 1, 2, 2, 3))
    kernel = tuple(pick(draw, (2, 1, 3, 3, 4, 5) if rank < 3 else (2, 1, 3)) for _ in range(rank))
    strides = pick(draw, POOL_STRIDES)[:rank]
    dilated = rarely(draw, 3 if op == "MaxPool" else 6) and op in DILATED
    dilations = (pick(draw, POOL_DILATIONS) if dilated else (1, 1, 1))[:rank]
    automatic = pick(draw, ("NOTSET",) * 9 + ("SAME_UPPER", "SAME_LOWER", "VALID"))
    explicit = automatic == "NOTSET" and not rarely(draw, 3)
    ceil = automatic == "NOTSET" and rarely(draw, 3)
    if automatic.startswith("SAME"):
        # A stride beyond the kernel would ask for negative padding, which ONNX leaves undecided.
        dilations, strides = (1,) * rank, tuple(map(min, strides, kernel))
    large = rarely(draw, 2 * d.LARGE)  # a whole image; larger() below gives many of them
    outs = {1: (1000, 4000), 2: (40, 90), 3: (12, 20)}[rank] if large else {1: (20, 70), 2: (4, 9), 3: (2, 4)}[rank]
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
    shape: Shape = (between(draw, 1, 3), pick(draw, (3, 1, 4, 5, 8) if rank < 3 else (2, 1, 3)), *lengths)
    shape = d.larger(draw, shape, (0, 1))
    shape = (1, min(shape[1], 2), *lengths) if large else shape
    if op in DILATED and rarely(draw, 16):
        shape, attrs = no_window(draw, shape, attrs)
    return shape, attrs, DILATED.get(op, 13) if attrs["dilations"] else 13


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
    outputs: tuple[str, ...] = (dtype,)
    if rarely(draw, 4):
        outputs = (dtype, "int64")
        attrs["storage_order"] = pick(draw, (None, 0, 1))
    return d.make_case(draw, "MaxPool", (Arg("X", dtype, shape, profile, params),), outputs, attrs, opset, kind)


def float_data(draw: Draw, dtype: str) -> tuple[str, Data]:
    """(profile of the case, data) of a pooling that sums."""
    data = pick(draw, HALF_SUMS if dtype == "float16" else SUMS)
    return "plain" if data[0] == "normal" else data[0], data


@st.composite
def average_pool(draw: Draw, dtype: str) -> Case:
    shape, attrs, opset = pooling(draw, "AveragePool")
    attrs["count_include_pad"] = 1 if rarely(draw, 2) and fits(shape, attrs) else None
    kind, data = float_data(draw, dtype)
    return d.make_case(draw, "AveragePool", (d.filled("X", dtype, shape, data),), (dtype,), attrs, opset, kind)


@st.composite
def lp_pool(draw: Draw, dtype: str) -> Case:
    shape, attrs, opset = pooling(draw, "LpPool")
    attrs["p"] = pick(draw, (None, 1, 2, 3))
    opset = 18 if attrs["ceil_mode"] else opset
    kind, data = float_data(draw, dtype)
    return d.make_case(draw, "LpPool", (d.filled("X", dtype, shape, data),), (dtype,), attrs, opset, kind)


def whole_image(draw: Draw) -> Shape:
    rank = pick(draw, (2, 1, 3))
    spatial = tuple(pick(draw, (7, 1, 2, 3, 5, 8, 13, 16, 17) if rank < 3 else (2, 3, 1, 5)) for _ in range(rank))
    channels = min(pick(draw, (33, 16, 65, 3, 96)), max(4000 // math.prod(spatial), 3))
    return d.larger(draw, (between(draw, 1, 3), channels, *spatial), (0, 1, -1))


@st.composite
def global_pool(draw: Draw, op: str, dtype: str) -> Case:
    shape = whole_image(draw)
    kind, data = float_data(draw, dtype)
    if op == "GlobalMaxPool":
        kind, data = pick(
            draw, (("plain", ("normal", ())), ("negative", ("negative", ())), ("integers", ("integers", (8,))))
        )
    attrs: dict[str, Attr | None] = {"p": pick(draw, (None, 1, 2, 3))} if op == "GlobalLpPool" else {}
    return d.make_case(draw, op, (d.filled("X", dtype, shape, data),), (dtype,), attrs, profile=kind)


def channels_last(shape: Shape, attrs: dict[str, Attr | None]) -> Shape:
    attrs["channels_last"] = 1
    return (shape[0], *shape[2:], shape[1])


def kernel_of(attrs: Mapping[str, Attr | None]) -> Shape:
    return attrs["kernel_shape"]  # type: ignore[return-value]


@st.composite
def quantized_pool(draw: Draw, op: str, dtype: str) -> Case:
    """Averages of one image or of windows; padding is real zeros; either layout."""
    kind = pick(draw, d.KINDS)
    attrs: dict[str, Attr | None] = {}
    if op == "QLinearAveragePool":
        shape, attrs, _ = pooling(draw, op)
        if kind == "ties":
            # Only counts that are powers of two divide exactly.
            halves = tuple(min(int(k), 2) for k in kernel_of(attrs))
            attrs |= {"kernel_shape": halves, "pads": None, "auto_pad": None, "ceil_mode": None}
        attrs["count_include_pad"] = 1 if rarely(draw, 2) else None
        count = math.prod(kernel_of(attrs))
    else:
        shape = whole_image(draw)
        if kind == "ties":
            shape = (*shape[:2], *(1 << (n.bit_length() - 1) for n in shape[2:]))
        count = math.prod(shape[2:])
    x = operand(draw, dtype, kind, shape)
    x_scale = d.power_scale(draw) if kind == "ties" else d.scale(draw)
    expected = Moments(x.mean, x.std / math.sqrt(count), x.least, x.most)
    y_scale, y_zero_point = d.requantization(draw, kind, dtype, x_scale, expected)
    if rarely(draw, 4):
        shape = channels_last(shape, attrs)
    const = not rarely(draw, 3)
    args = (
        x.arg("X", shape),
        d.scalar("x_scale", "float32", x_scale, const),
        d.scalar("x_zero_point", dtype, x.zero_point, const),
        d.scalar("y_scale", "float32", y_scale, const),
        d.scalar("y_zero_point", dtype, y_zero_point, const),
    )
    return d.make_case(draw, op, args, (dtype,), attrs, profile=kind, domain="com.microsoft")


@st.composite
def quantized_softmax(draw: Draw, dtype: str) -> Case:
    """Output scales of 1/256 and 1/255, of decimals and of powers of two; one axis, or what the opset flattens."""
    rank = pick(draw, (2, 3, 2, 4))
    axis = rank - 1 if not rarely(draw, 3) else between(draw, 0, rank - 1)
    shape = [pick(draw, (3, 9, 16)) for _ in range(rank - 1)] + [1]
    shape[axis] = pick(draw, (5, 2, 10, 16, 33, 100))
    shape[-1] = pick(draw, (2, 7, 3)) if axis != rank - 1 else shape[-1]
    shape = [min(n, 16) if i != axis and rank > 2 else n for i, n in enumerate(shape)]
    whole = d.larger(draw, tuple(shape), range(axis))
    low, _ = dt.limits(dtype)
    x = operand(draw, dtype, "plain", whole)
    const = not rarely(draw, 4)
    y_scale = pick(draw, (0.00390625, d.float32(1 / 255), 0.01, 0.0078125, 0.005, d.float32(1 / 127)))
    args = (
        x.arg("X", whole),
        d.scalar("X_scale", "float32", pick(draw, (0.05, 0.1, 0.02, 0.03125, d.float32(1 / 48))), const),
        d.scalar("x_zero_point", dtype, x.zero_point, const),
        d.scalar("y_scale", "float32", y_scale, const),
        d.scalar("y_zero_point", dtype, pick(draw, (low, low, low + 1, low + 64)), const),
    )
    attrs: dict[str, Attr | None] = {
        "axis": axis - rank if rarely(draw, 3) else axis,
        "opset": pick(draw, (13, 13, 12)),
    }
    return d.make_case(draw, "QLinearSoftmax", args, (dtype,), attrs, profile="plain", domain="com.microsoft")


MS = "com.microsoft"
BYTES = ("uint8", "int8")
CASES: tuple[CaseSpec, ...] = (
    *d.rows("MaxPool", "ONNX MaxPool-12", ("float32", "float64", "float16", "int8", "uint8"), max_pool),
    *d.rows("AveragePool", "ONNX AveragePool-11 and -19", ("float32", "float16"), average_pool),
    *d.rows("LpPool", "ONNX LpPool-11 and -18", ("float32",), lp_pool),
    *(
        row
        for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
        for row in d.rows(op, f"ONNX {op}-1", ("float32",), global_pool, op)
    ),
    *(
        row
        for op in ("QLinearAveragePool", "QLinearGlobalAveragePool")
        for row in d.rows(op, f"{MS} {op}-1", BYTES, quantized_pool, op, domain=MS)
    ),
    *d.rows("QLinearSoftmax", f"{MS} QLinearSoftmax-1", BYTES, quantized_softmax, domain=MS),
)
