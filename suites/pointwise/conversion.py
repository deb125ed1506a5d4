"""Rows of casts between numpy's types, and of quantization to 8 and 16 bits."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case

from .. import draws as d
from ..draws import Draw, Shape, between, pick, rarely
from .shapes import any_shape

Y_STD = (16.0, 40.0, 4.0, 80.0, 200.0)


def cast_data(draw: Draw, source: str, target: str) -> d.Data:
    """Only values whose conversion ONNX specifies: floats inside the integer range, integers wherever they are."""
    if source == "bool":
        return "bool", ()
    if target == "bool":
        return pick(
            draw, (("integers", (2,)), ("sparse", ()), ("special", ()) if dt.is_float(source) else ("uniform", ()))
        )
    if dt.is_float(source) and dt.is_float(target):
        narrow = {"float64": 2, "float32": 1, "float16": 0}
        options: list[d.Data] = [("normal", ()), ("special", ())]
        if narrow[target] < narrow[source]:
            digits = 2.0**-10 if target == "float16" else 2.0**-23
            low = 1 / digits
            options += [("halves", (digits, low, 2 * low - 1)), ("wide", (-8, 4))]
        return pick(draw, options)
    if dt.is_float(source):
        low, high = dt.limits(target)
        # float32 has no number at 2^31 - 1: stay well inside.
        reach = min(60000.0 if source == "float16" else 2.0**30, -low if low else high, high)
        bottom = -reach if low else 0.0
        grid = ("grid", (0.5, 2 * max(bottom, -1000), 2 * min(reach, 1000) - 1))
        return pick(draw, (("uniform", (bottom, reach)), grid, ("uniform", (max(bottom, -3.0), 3.0))))
    if target == "float16" and dt.limits(source)[1] > 65504:
        return "uniform", (-65504, 65504)
    return pick(draw, (("uniform", ()), ("integers", (100,)) if not source.startswith("u") else ("near", (128, 120))))


@st.composite
def cast(draw: Draw, source: str, target: str) -> Case:
    profile, params = cast_data(draw, source, target)
    arg = Arg("input", source, any_shape(draw), profile, params)
    return d.make_case(
        draw, "Cast", (arg,), (target,), {"to": dt.ONNX[target]}, profile="special" if profile == "special" else "plain"
    )


CAST_TYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool")
CASTS = tuple(f"{a},{b}" for a in CAST_TYPES for b in CAST_TYPES if a != b)


def axis_layout(draw: Draw) -> tuple[Shape, int, int]:
    """(shape, axis as written, number of channels) of a per-axis quantized tensor."""
    rank = pick(draw, (2, 3, 4, 1))
    axis = between(draw, 0, rank - 1)
    channels = pick(draw, (2, 3, 5, 7, 8, 16, 17)) if rank > 1 else 257
    rest = [between(draw, 2, 5) for _ in range(rank - 1)]
    if rest:
        longest = between(draw, 0, len(rest) - 1)
        rest[longest] = 0
        rest[longest] = pick(draw, (65, 17, 31, 33, 64)) if math.prod(r or 1 for r in rest) * channels < 30 else 9
    shape = d.larger(draw, (*rest[:axis], channels, *rest[axis:]), d.others(rank, axis))
    return shape, axis - rank if rarely(draw, 3) else axis, channels


@st.composite
def quantize_linear(draw: Draw, x_dtype: str, y_dtype: str) -> Case:
    """QuantizeLinear: natural data, exact and near ties of every scale kind, far beyond the range."""
    kind = pick(draw, ("plain", "ties", "plain", "ties", "near-ties", "near-ties", "saturate", "special"))
    low, high = dt.limits(y_dtype)
    per_axis = rarely(draw, 3)
    shape, axis, channels = axis_layout(draw) if per_axis else (any_shape(draw), 1, 0)
    scale = d.power_scale(draw) if kind == "ties" or (per_axis and kind == "near-ties") else d.scale(draw)
    z = d.zero_point(draw, y_dtype)
    z = min(max(z, low + 8), high - 8) if kind in ("ties", "near-ties") else z
    const = rarely(draw, 2)
    std = pick(draw, Y_STD) * (high - low) / 255
    if kind in ("ties", "near-ties"):
        reach = (max(low - z - 3, -2000), min(high - z + 3, 2000))
        if per_axis:
            # Half steps of the smallest scale are ties of the larger ones too.
            x = Arg("x", x_dtype, shape, "grid", (scale / 2, 2 * reach[0] + 1, 2 * reach[1] + 1))
        else:
            ulps = "halves" if kind == "near-ties" else "grid"
            params = (scale, *reach) if kind == "near-ties" else (scale / 2, 2 * reach[0] + 1, 2 * reach[1] + 1)
            x = Arg("x", x_dtype, shape, ulps, params)
    elif kind == "saturate":
        x = Arg("x", x_dtype, shape, "uniform", (d.float32(-scale * (high - low)), d.float32(scale * (high - low))))
    elif kind == "special":
        x = Arg("x", x_dtype, shape, "special", (126, 4))
        scale = pick(draw, (0.0625, 0.1, 0.003))
    else:
        x = Arg("x", x_dtype, shape, "normal", (d.float32(scale * std),))
    if not per_axis:
        parameters = [d.scalar("y_scale", x_dtype, scale, const), d.scalar("y_zero_point", y_dtype, z, const)]
        if y_dtype == "uint8" and rarely(draw, 8):
            parameters.pop()
    else:
        exponent = round(math.log2(scale))
        spread = ("pow2", (exponent, exponent + 1)) if kind in ("ties", "near-ties") else ("spread", (scale, 3))
        parameters = [
            d.filled("y_scale", x_dtype, (channels,), spread, const=const),
            Arg("y_zero_point", y_dtype, (channels,), "near", (z, pick(draw, (5, 0, 300))), const=const),
        ]
    attrs: dict[str, Attr | None] = {"axis": axis if per_axis and axis != 1 else None}
    opset = 21 if y_dtype in ("int16", "uint16") else 13
    return d.make_case(draw, "QuantizeLinear", (x, *parameters), (y_dtype,), attrs, opset, kind)


@st.composite
def dequantize_linear(draw: Draw, x_dtype: str) -> Case:
    per_axis = rarely(draw, 2)
    shape, axis, channels = axis_layout(draw) if per_axis else (any_shape(draw), 1, 0)
    low, high = dt.limits(x_dtype)
    middle = (low + high + 1) // 2
    z = d.zero_point(draw, x_dtype)
    scale = d.scale(draw)
    const = rarely(draw, 2)
    data = pick(draw, (("uniform", ()), ("extremes", ()), ("near", (middle, 12))))
    if per_axis:
        parameters = [Arg("x_scale", "float32", (channels,), "spread", (scale, 3), const=const)]
        profile = ("fill", (0,)) if x_dtype == "int32" else ("near", (z, pick(draw, (5, 0, 300))))
        parameters.append(d.filled("x_zero_point", x_dtype, (channels,), profile, const=const))
    else:
        parameters = [d.scalar("x_scale", "float32", scale, const), d.scalar("x_zero_point", x_dtype, z, const)]
    if rarely(draw, 3 if x_dtype == "int32" else 12):
        parameters.pop()
    attrs: dict[str, Attr | None] = {"axis": axis if per_axis and axis != 1 else None}
    opset = 21 if x_dtype in ("int16", "uint16") else 13
    args = (d.filled("x", x_dtype, shape, data), *parameters)
    kind = "extremes" if data[0] == "extremes" else "plain"
    return d.make_case(draw, "DequantizeLinear", args, ("float32",), attrs, opset, kind)


@st.composite
def dynamic_quantize_linear(draw: Draw, x_dtype: str, y_dtype: str) -> Case:
    reach = d.float32(d.scale(draw))
    data = pick(
        draw,
        (
            ("normal", ()),
            ("normal", (reach,)),
            ("positive", (reach,)),
            ("negative", ()),
            # 255 half steps: a power of two as scale, and ties.
            ("grid", (2.0 ** -between(draw, 0, 9), -127, 128)),
            ("uniform", (0.0, reach)),
            ("sparse", ()),
            ("wide", (-3, 3)),
            ("normal", (reach, reach)),
        ),
    )
    x = d.filled("x", x_dtype, any_shape(draw, low_rank=1), data)
    if rarely(draw, 60):
        x = Arg("x", x_dtype, (2, 3), "fill", (pick(draw, (0.0, 2.5, -1.0)),))
    kind = "constant" if x.profile == "fill" else "plain"
    return d.make_case(draw, "DynamicQuantizeLinear", (x,), (y_dtype, "float32", y_dtype), profile=kind)


QUANTIZE = tuple(f"float32,{y}" for y in ("uint8", "int8", "uint16", "int16"))
DEQUANTIZE = ("uint8", "int8", "uint16", "int16", "int32")
CONVERSIONS = (
    *d.rows("QuantizeLinear", "ONNX QuantizeLinear-13 and -21", QUANTIZE, quantize_linear),
    *d.rows("DequantizeLinear", "ONNX DequantizeLinear-13 and -21", DEQUANTIZE, dequantize_linear),
    *d.rows("DynamicQuantizeLinear", "ONNX DynamicQuantizeLinear-11", ("float32,uint8",), dynamic_quantize_linear),
    *d.rows("Cast", "ONNX Cast-13", CASTS, cast),
)
