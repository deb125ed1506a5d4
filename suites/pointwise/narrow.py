"""Rows of quantization to 2, 4 and 8-bit types, by blocks, from and to 16-bit floats, with negative scales."""

from __future__ import annotations

import math
from typing import NamedTuple

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case

from .. import draws as d
from ..draws import Draw, Shape, between, pick, rarely
from .conversion import axis_layout
from .shapes import any_shape

KINDS = ("plain", "ties", "plain", "ties", "saturate", "special", "negative-scale")


class Layout(NamedTuple):
    """The shape of the tensor and of its parameters, and the attributes that say how they belong together."""

    shape: Shape
    parameters: Shape
    attrs: dict[str, Attr | None]
    blocked: bool


def layout(draw: Draw, blocks: bool = True) -> Layout:
    """Per tensor, per axis, or by blocks of which the last may be short."""
    form = pick(draw, ("block", "block", "tensor", "axis") if blocks else ("tensor", "tensor", "axis"))
    if form == "tensor":
        return Layout(any_shape(draw, limit=400), (), {}, False)
    if form == "axis":
        shape, axis, channels = axis_layout(draw)
        return Layout(shape, (channels,), {"axis": axis if axis != 1 else None}, False)
    rank = pick(draw, (2, 3, 2, 1))
    axis = between(draw, 0, rank - 1)
    size = pick(draw, (16, 4, 3, 2, 32, 8))
    count = pick(draw, (3, 2, 5, 1))
    length = size * count - (between(draw, 0, size - 1) if rarely(draw, 2) else 0)
    rest = d.larger(draw, tuple(pick(draw, (3, 5, 2, 7)) for _ in range(rank - 1)), each=length)
    shape = (*rest[:axis], length, *rest[axis:])
    grid = (*rest[:axis], count, *rest[axis:])
    return Layout(shape, grid, {"axis": axis - rank if rarely(draw, 3) else axis, "block_size": size}, True)


def plain_scale(draw: Draw, dtype: str) -> float:
    """A scale well inside the range of its type, most often no power of two."""
    power = 2.0 ** -between(draw, 0, 6)
    return (
        power
        if rarely(draw, 4)
        else power * pick(draw, (1.25, 1.4375, 1.125, 1.625))
        if dtype != "float32"
        else (d.float32(power * (1 + between(draw, 1, 999) / 1000)))
    )


def scales_of(name: str, dtype: str, shape: Shape, scale: float, kind: str, const: bool) -> Arg:
    if not shape:
        return d.scalar(name, dtype, scale, const)
    if kind == "negative-scale":
        return Arg(name, dtype, shape, "uniform", (2 * scale, scale / 2), const=const)
    if kind == "ties":
        exponent = round(math.log2(abs(scale)))
        return Arg(name, dtype, shape, "pow2", (exponent, exponent + 1), const=const)
    return Arg(name, dtype, shape, "spread", (scale, 1), const=const)


def zeros_of(draw: Draw, name: str, dtype: str, shape: Shape, z: int, const: bool) -> Arg:
    if dtype in dt.FLOAT8:
        return Arg(name, dtype, shape, "fill", (0,), const=const)
    if not shape:
        return d.scalar(name, dtype, z, const)
    return Arg(name, dtype, shape, "near", (z, pick(draw, (1, 0, 3))), const=const)


def lowest(x: str, scale: str, y: str, blocked: bool = False) -> int:
    """The first opset of ai.onnx that has these types."""
    if y in ("int2", "uint2"):
        return 25
    if x != scale:
        return 23
    if blocked or y in ("int4", "uint4", "int16", "uint16"):
        return 21
    return 19 if y in dt.FLOAT8 or "float16" in x + scale else 13


def quantized_data(draw: Draw, kind: str, x: str, y: str, scale: float, z: int) -> d.Data:
    """What to quantize: a few quanta around the zero point, half quanta, or far beyond the range."""
    size = abs(scale)
    if y in dt.FLOAT8:
        top = dt.MAX[y] * size
        limit = dt.MAX[x] if x != "float32" else 1e30
        options: dict[str, d.Data] = {
            "ties": ("grid", (size / 16, -400, 400)),
            "saturate": ("uniform", (-min(1.3 * top, limit), min(1.3 * top, limit))),
            "special": ("special", (126, 4)),
        }
        return options.get(kind, pick(draw, (("normal", (d.float32(30 * size),)), ("normal", (d.float32(size / 50),)))))
    low, high = dt.limits(y)
    reach = (max(low - z - 2, -300), min(high - z + 2, 300))
    if kind == "ties":
        return "grid", (size / 2, 2 * reach[0] + 1, 2 * reach[1] + 1)
    if kind == "special":
        return "special", (126, 4)
    span = min(float(high - low), 20000.0 if x == "float16" else 1e9)
    if kind == "saturate":
        return "uniform", (d.float32(-size * span), d.float32(size * span))
    return "normal", (d.float32(size * max(min(span / 5, pick(draw, (40.0, 8.0, 150.0))), 1.0)),)


@st.composite
def quantize(draw: Draw, x_dtype: str, scale_dtype: str, y_dtype: str, room: str = "") -> Case:
    kind = pick(draw, KINDS)
    form = layout(draw, blocks=not room and y_dtype not in ("uint16", "int16"))
    scale = 2.0 ** -between(draw, 0, 6) if kind == "ties" else plain_scale(draw, scale_dtype)
    if kind == "special":
        scale = 0.125
    z = 0
    if y_dtype not in dt.FLOAT8:
        low, high = dt.limits(y_dtype)
        z = d.zero_point(draw, y_dtype) if kind != "ties" else (low + high + 1) // 2 + between(draw, 0, 1)
        z = z if kind in ("ties", "plain", "saturate") else (low + high + 1) // 2
        if kind == "plain" and rarely(draw, 2):
            z = (low + high + 1) // 2
    data = quantized_data(draw, kind, x_dtype, y_dtype, scale, z)
    if kind == "negative-scale":
        scale = -scale
    const = rarely(draw, 2)
    attrs = dict(form.attrs)
    opset = lowest(x_dtype, scale_dtype, y_dtype, form.blocked)
    args = [
        d.filled("x", x_dtype, form.shape, data),
        scales_of("y_scale", scale_dtype, form.parameters, scale, kind, const),
        zeros_of(draw, "y_zero_point", y_dtype, form.parameters, z, const),
    ]
    if room:
        return d.make_case(draw, "QuantizeLinear", args, (y_dtype,), attrs, 21, kind, MS)
    if y_dtype in dt.FLOAT8:
        attrs["saturate"] = pick(draw, (None, 0, 1))
    if opset >= 21 and rarely(draw, 4):
        args.pop()
        attrs["output_dtype"] = dt.ONNX[y_dtype]
    if rarely(draw, 6 if x_dtype == "float32" else 3):
        opset, attrs["precision"] = max(opset, 23), dt.ONNX[pick(draw, ("float32", scale_dtype))]
    return d.make_case(draw, "QuantizeLinear", args, (y_dtype,), attrs, opset, kind)


@st.composite
def dequantize(draw: Draw, x_dtype: str, scale_dtype: str, y_dtype: str, room: str = "") -> Case:
    form = layout(draw, blocks=not room and x_dtype not in ("uint16", "int16", "int32"))
    kind = pick(draw, ("plain", "plain", "ties", "negative-scale"))
    scale = 2.0 ** -between(draw, 0, 6) if kind == "ties" else plain_scale(draw, scale_dtype)
    scale = -scale if kind == "negative-scale" else scale
    z = 0 if x_dtype in (*dt.FLOAT8, "int32") else d.zero_point(draw, x_dtype)
    const = rarely(draw, 2)
    data: d.Data = ("patterns", ()) if x_dtype in dt.FLOAT8 else ("uniform", ())
    if x_dtype == "int32":
        data = ("near", (0, pick(draw, (1000, 2000000))))
    args = [
        d.filled("x", x_dtype, form.shape, data, const=x_dtype in dt.SUBBYTE and rarely(draw, 3)),
        scales_of("x_scale", scale_dtype, form.parameters, scale, kind, const),
        zeros_of(draw, "x_zero_point", x_dtype, form.parameters, z, const),
    ]
    if x_dtype == "int32" or rarely(draw, 6):
        args.pop()
    attrs = dict(form.attrs)
    if room:
        return d.make_case(draw, "DequantizeLinear", args, (y_dtype,), attrs, 21, kind, MS)
    opset = lowest(scale_dtype, scale_dtype, x_dtype, form.blocked)
    if y_dtype != scale_dtype:
        opset, attrs["output_dtype"] = max(opset, 23), dt.ONNX[y_dtype]
    return d.make_case(draw, "DequantizeLinear", args, (y_dtype,), attrs, opset, "plain" if kind == "ties" else kind)


@st.composite
def narrow_cast(draw: Draw, op: str, source: str, target: str) -> Case:
    """Cast and CastLike to and from types of 8 bits and less; floats outside an integer type are left out."""
    attrs: dict[str, Attr | None] = {}
    profile = "plain"
    if source in dt.FLOAT8:
        data: d.Data = ("patterns", ())
        if dt.is_integer(target):
            low, high = dt.limits(target)
            # Every pattern but the large ones and NaN: written as numbers that the type holds.
            data = ("grid", (0.5, 2 * max(low, -7), 2 * min(high, 7)))
    elif target in dt.FLOAT8:
        attrs["saturate"] = pick(draw, (None, 0, 1))
        top = dt.MAX[target]
        if dt.is_float(source):
            data = pick(
                draw,
                (
                    ("normal", ()),
                    ("normal", (d.float32(top / 4),)),
                    ("uniform", (-min(1.25 * top, 65504.0), min(1.25 * top, 65504.0))),
                    ("grid", (2.0**-11, -400, 400)),
                    ("grid", (2.0**-3, -400, 400)),
                    ("special", (127, 4)),
                ),
            )
            profile = "special" if data[0] == "special" else "plain"
        else:
            data = ("bool", ()) if source == "bool" else ("uniform", ())
    elif dt.is_float(source) and dt.is_float(target):
        data = pick(draw, (("normal", ()), ("halves", (2.0**-10, 1024, 2047)), ("special", (127, 4))))
    elif dt.is_float(source):
        low, high = dt.limits(target)
        data = ("grid", (1.0, low, high))  # what becomes of a fraction is not specified
    else:
        data = ("bool", ()) if source == "bool" else ("uniform", ())
    opset = 25 if {source, target} & {"int2", "uint2"} else 21 if {source, target} & set(dt.SUBBYTE) else 19
    args = [d.filled("input", source, any_shape(draw, limit=500), data)]
    if op == "CastLike":
        args.append(Arg("target_type", target, (1,), "fill", (1,), const=rarely(draw, 2)))
    else:
        attrs["to"] = dt.ONNX[target]
    return d.make_case(draw, op, args, (target,), attrs, opset, profile)


FLOAT8 = ("float8e4m3fn", "float8e5m2", "float8e4m3fnuz", "float8e5m2fnuz")
QUANTIZE = (
    *(f"float32,float32,{y}" for y in ("int4", "uint4", "int2", "uint2", *FLOAT8)),
    *(f"float16,float16,{y}" for y in ("int8", "uint8", "int16", "uint16", "int4", "uint4", *FLOAT8[:2])),
    *(f"bfloat16,bfloat16,{y}" for y in ("int8", "uint8", "float8e4m3fn")),
    *("float32,float32,uint8", "float32,float32,int8"),  # by blocks
    *("float16,float32,uint8", "float32,float16,int8", "float32,bfloat16,uint8"),
)
DEQUANTIZE = (
    *(f"{x},float32,float32" for x in ("int4", "uint4", "int2", "uint2", *FLOAT8, "int8", "uint8")),
    *(f"{x},float16,float16" for x in ("int8", "uint8", "int4", "int16", "int32", "float8e4m3fn")),
    *(f"{x},bfloat16,bfloat16" for x in ("int8", "uint8", "int4")),
    *("int8,float32,float16", "uint8,float16,float32", "int4,float32,bfloat16"),
)
MS = "com.microsoft"
# The last word tells them from ai.onnx's, whose rows have the same types.
MS_QUANTIZE = tuple(f"{x},{x},{y},ms" for x, y in (("float32", "uint8"), ("float32", "int16"), ("float16", "int8")))
MS_DEQUANTIZE = tuple(f"{y},{x},{x},ms" for x, y in (("float32", "uint8"), ("float32", "int16"), ("float16", "int8")))
WIDE = ("float32", "float16", "bfloat16")
CASTS = (
    *(f"{x},{y}" for x in WIDE for y in FLOAT8),
    *(f"{x},{y}" for x in FLOAT8 for y in WIDE),
    *(f"{x},{y}" for x in ("float32", "int8", "uint8", "int32", "bool") for y in ("int4", "uint4")),
    *(f"{x},{y}" for x in ("int4", "uint4") for y in ("float32", "int8", "uint8", "int32", "float16")),
    *("int4,uint4", "uint4,int4", "float32,int2", "int2,int8", "float32,uint2", "uint2,float32"),
    *("int8,float8e4m3fn", "uint8,float8e5m2", "bool,float8e4m3fn", "float8e4m3fn,int8", "float8e5m2,int32"),
)
LIKE = ("float32,int8", "float32,float16", "int8,float32", "float32,float8e4m3fn", "float32,int4")
ONNX_Q = "ONNX QuantizeLinear-19, -21, -23 and -25"

NARROW = (
    *d.rows("QuantizeLinear", ONNX_Q, QUANTIZE, quantize),
    *d.rows("DequantizeLinear", "ONNX DequantizeLinear-19, -21, -23 and -25", DEQUANTIZE, dequantize),
    *d.rows("QuantizeLinear", "ContribOperators QuantizeLinear-1", MS_QUANTIZE, quantize, domain=MS),
    *d.rows("DequantizeLinear", "ContribOperators DequantizeLinear-1", MS_DEQUANTIZE, dequantize, domain=MS),
    *d.rows("Cast", "ONNX Cast-19, -21 and -25", CASTS, narrow_cast, "Cast"),
    *d.rows("CastLike", "ONNX CastLike-19 and -21", LIKE, narrow_cast, "CastLike"),
)
