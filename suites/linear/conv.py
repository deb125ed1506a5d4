"""Rows of convolutions: float, integer and quantized, and transposed ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import strategies as st

from opgauge.reference_engine.types import Arg, Attr, Case

from .. import draws as d
from ..draws import Draw, Shape, between, operand, pick, rarely
from .integer import PAIRS, parameters
from .matmul import FLOAT_KINDS, HALF_KINDS, float_data


@dataclass(frozen=True)
class Window:
    """A convolution: shapes and the attributes that produce them; `terms` products per output element."""

    x: Shape
    w: Shape
    attrs: dict[str, Attr | None]
    terms: int


# (group, input channels per group, output channels per group)
GROUPS = ((1, 1, 1), (1, 3, 4), (1, 2, 8), (1, 5, 3), (2, 2, 3), (3, 1, 2), (2, 4, 2), (4, 2, 1))
DEPTHWISE = ((5, 1, 1), (9, 1, 1), (8, 1, 1), (4, 1, 2), (13, 1, 1), (17, 1, 1))


# Channels that fill words of four bytes, and some that do not.
WORDS = ((1, 4, 3), (1, 8, 5), (2, 4, 5), (1, 3, 4), (1, 16, 17), (3, 8, 2))


def window(draw: Draw, groups: tuple[tuple[int, int, int], ...] = GROUPS, shifted: bool = False) -> Window:
    """1-D to 3-D convolutions: groups, depthwise, dilations, unequal strides, asymmetric and automatic padding.

    `shifted`: now and then windows begin in padding and end at the last element, as far as strides leave room.
    """
    group, per_group, outs = pick(draw, DEPTHWISE) if rarely(draw, 4) else pick(draw, groups)
    rank = pick(draw, (2, 1, 2, 2, 2, 1, 2, 2, 3))
    kernel = tuple(pick(draw, (1, 2, 3, 3, 4, 5) if rank == 1 else (1, 2, 3, 3)) for _ in range(rank))
    strides = pick(draw, ((1, 1, 1), (1, 1, 1), (2, 1, 2), (1, 2, 1), (2, 3, 1), (2, 2, 3)))[:rank]
    dilations = pick(draw, ((1, 1, 1), (1, 1, 1), (1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (3, 2, 2)))[:rank]
    automatic = pick(draw, ("NOTSET",) * 8 + ("SAME_UPPER", "SAME_LOWER", "VALID"))
    if automatic.startswith("SAME"):
        # A stride beyond the kernel would ask for negative padding, which ONNX leaves undecided.
        dilations, strides = (1,) * rank, tuple(map(min, strides, kernel))
    begin, end = (0,) * rank, (0,) * rank
    if automatic == "NOTSET" and not rarely(draw, 3):
        begin = tuple(between(draw, 0, 2) for _ in range(rank))
        end = tuple(between(draw, 0, 2) for _ in range(rank))
    ends_there = shifted and automatic == "NOTSET" and rarely(draw, 3)
    if ends_there:
        begin, end = tuple(min(n, s - 1) for n, s in zip(begin, strides, strict=True)), (0,) * rank
    large = rarely(draw, 2 * d.LARGE)  # a whole image; larger() below gives many of them
    spatial = []
    for axis in range(rank):
        sizes = {1: (15, 16, 17, 31, 33, 64, 65), 2: range(5, 13), 3: (4, 2, 3, 5)}[rank]
        sizes = {1: (999, 2000, 3001), 2: range(24, 50), 3: (9, 11, 12)}[rank] if large else sizes
        out = pick(draw, sizes)
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        cropped = begin[axis] if ends_there else pick(draw, range(strides[axis]))
        length = (out - 1) * strides[axis] + reach - begin[axis] - end[axis] + cropped
        spatial.append(max(length, 1))
    shape: Shape = (pick(draw, (1, 2, 2, 3)), group * per_group, *spatial)
    shape = d.larger(draw, shape, (0,), each=max(outs // per_group, 1))
    shape = (1, *shape[1:]) if large else shape
    attrs: dict[str, Attr | None] = {
        "auto_pad": automatic if automatic != "NOTSET" else None,
        "dilations": dilations if any(x > 1 for x in dilations) else None,
        "group": group if group > 1 else None,
        "kernel_shape": kernel,
        "pads": (*begin, *end) if any(begin + end) else None,
        "strides": strides if any(x > 1 for x in strides) else None,
    }
    return Window(shape, (group * outs, per_group, *kernel), attrs, per_group * math.prod(kernel))


# Enough terms that accumulators leave int16 long before a bias is added.
OVERFULL = Window((2, 16, 9, 6), (4, 16, 3, 3), {"kernel_shape": (3, 3)}, 144)


@st.composite
def qlinear_conv(
    draw: Draw, x_dtype: str, w_dtype: str, groups: tuple[tuple[int, int, int], ...] = GROUPS, shifted: bool = False
) -> Case:
    kind = pick(draw, d.KINDS)
    v = window(draw, groups, shifted)
    v = OVERFULL if rarely(draw, 12) else v
    x, w = operand(draw, x_dtype, kind, v.x), operand(draw, w_dtype, kind, v.w, weight=True)
    x_scale, w_scale = d.pair_scales(draw, kind)
    weights, params = d.constants(draw)
    channels = (v.w[0],) if rarely(draw, 2) else ()
    expected = d.product_moments(x, w, v.terms)
    y_scale, y_zero_point = d.requantization(draw, kind, x_dtype, x_scale * w_scale, expected)
    bias = Arg("B")
    if not rarely(draw, 3):
        bias = Arg("B", "int32", (v.w[0],), "near", (0, 6 if kind == "ties" else int(expected.std) + 3), const=weights)
    args = (
        x.arg("x", v.x),
        *parameters(draw, "x", x, x_scale, kind, (), params),
        w.arg("w", v.w, weights),
        *parameters(draw, "w", w, w_scale, kind, channels, params, same=not rarely(draw, 3)),
        d.scalar("y_scale", "float32", y_scale, params),
        d.scalar("y_zero_point", x_dtype, y_zero_point, params),
        bias,
    )
    return d.make_case(draw, "QLinearConv", args, (x_dtype,), v.attrs, profile=kind)


@st.composite
def conv_integer(draw: Draw, x_dtype: str, w_dtype: str) -> Case:
    kind = pick(draw, ("plain", "plain", "extremes"))
    v = window(draw)
    v = OVERFULL if rarely(draw, 12) else v
    x, w = operand(draw, x_dtype, kind, v.x), operand(draw, w_dtype, kind, v.w, weight=True)
    weights, params = d.constants(draw)
    form = pick(draw, ("scalar", "scalar", "x", "none", "scalar"))
    x_zero, w_zero = Arg("x_zero_point"), Arg("w_zero_point")
    if form != "none":
        x_zero = parameters(draw, "x", x, 1.0, kind, (), params)[1]
    if form == "scalar":
        w_zero = parameters(draw, "w", w, 1.0, kind, (v.w[0],) if rarely(draw, 20) else (), params)[1]
    args = (x.arg("x", v.x), w.arg("w", v.w, weights), x_zero, w_zero)
    return d.make_case(draw, "ConvInteger", args, ("int32",), v.attrs, profile=kind)


@st.composite
def conv(draw: Draw, dtype: str) -> Case:
    v = window(draw)
    kind, x, w = float_data(draw, v.terms, HALF_KINDS if dtype == "float16" else (*FLOAT_KINDS, "locality"))
    const = rarely(draw, 2)
    args = [d.filled("X", dtype, v.x, x), d.filled("W", dtype, v.w, w, const=const)]
    if not rarely(draw, 3):
        profile = ("integers", (50,)) if kind == "integers" else ("normal", ())
        args.append(d.filled("B", dtype, (v.w[0],), profile, const=const))
    return d.make_case(draw, "Conv", args, (dtype,), v.attrs, profile=kind)


@st.composite
def conv_transpose(draw: Draw, dtype: str) -> Case:
    """1-D to 3-D: groups, dilations, pads, output_padding, output_shape, automatic padding."""
    group, per_group, outs = pick(draw, GROUPS)
    rank = pick(draw, (2, 1, 2, 2, 3))
    kernel = tuple(pick(draw, (3, 1, 2, 3, 4) if rank < 3 else (1, 2, 3)) for _ in range(rank))
    strides = pick(draw, ((1, 1, 1), (2, 2, 2), (2, 1, 1), (1, 3, 2), (3, 2, 1)))[:rank]
    dilations = pick(draw, ((1, 1, 1), (1, 1, 1), (1, 1, 1), (2, 1, 2), (1, 3, 1)))[:rank]
    spatial = tuple(between(draw, 1, {1: 17, 2: 7, 3: 4}[rank]) for _ in range(rank))
    full = tuple(s * (n - 1) + (k - 1) * e + 1 for n, s, k, e in zip(spatial, strides, kernel, dilations, strict=True))
    form = pick(draw, ("pads", "none", "pads", "output_padding", "output_shape", "SAME_UPPER", "SAME_LOWER", "VALID"))
    if form.startswith("SAME") and any(f < n * s for f, n, s in zip(full, spatial, strides, strict=True)):
        form = "none"  # a window shorter than the stride: ONNX leaves open where the padding goes
    attrs: dict[str, Attr | None] = {
        "auto_pad": form if form.isupper() else None,
        "dilations": dilations if any(x > 1 for x in dilations) else None,
        "group": group if group > 1 else None,
        "kernel_shape": kernel if rarely(draw, 2) else None,
        "strides": strides if any(x > 1 for x in strides) else None,
    }
    if form in ("pads", "output_padding"):
        begins = tuple(between(draw, 0, min(2, f - 1)) for f in full)
        attrs["pads"] = (*begins, *(between(draw, 0, min(2, f - 1 - b)) for f, b in zip(full, begins, strict=True)))
    if form == "output_padding":
        attrs["output_padding"] = tuple(
            between(draw, 0, max(s, e) - 1) for s, e in zip(strides, dilations, strict=True)
        )
    if form == "output_shape":
        attrs["output_shape"] = tuple(between(draw, max(f - 3, 1), f) for f in full)
        attrs["auto_pad"] = pick(draw, (None, "SAME_UPPER", "SAME_LOWER"))
    channels = group * per_group
    shape = d.larger(
        draw, (pick(draw, (1, 2)), channels, *spatial), (0,), each=max(math.prod(strides) * outs // per_group, 1)
    )
    kind, x, w = float_data(draw, per_group * math.prod(kernel), (*FLOAT_KINDS, "locality"))
    const = rarely(draw, 2)
    args = [
        d.filled("X", dtype, shape, x),
        d.filled("W", dtype, (channels, outs, *kernel), w, const=const),
    ]
    if rarely(draw, 2):
        args.append(
            d.filled(
                "B", dtype, (group * outs,), ("integers", (50,)) if kind == "integers" else ("normal", ()), const=const
            )
        )
    return d.make_case(draw, "ConvTranspose", args, (dtype,), attrs, profile=kind)


CASES = (
    *d.rows("QLinearConv", "ONNX QLinearConv-10", PAIRS, qlinear_conv),
    *d.rows("ConvInteger", "ONNX ConvInteger-10", PAIRS, conv_integer),
    *d.rows("Conv", "ONNX Conv-11", ("float32", "float64", "float16", "bfloat16"), conv),
    *d.rows("ConvTranspose", "ONNX ConvTranspose-11", ("float32", "float64"), conv_transpose),
)
