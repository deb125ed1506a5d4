"""Rows of element-wise operators: arithmetic, activations, casts, quantization and dequantization."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case

from . import draws as d
from .draws import Draw, Shape, between, operand, pick, rarely

NARROW = ("int8", "uint8")
Y_STD = (16.0, 40.0, 4.0, 80.0, 200.0)


def any_shape(draw: Draw, limit: int = 1500, low_rank: int = 0) -> Shape:
    """Mostly a few hundred elements of rank 1 to 4; now and then a scalar."""
    rank = pick(draw, (1, 2, 2, 3, 4))
    if low_rank == 0 and rarely(draw, 24):
        return ()
    if rank == 1:
        return (pick(draw, (65, 127, 255, 256, 257, 511, 1023, 1025)),)
    head = d.shape_of(draw, rank - 1, 60)
    last = pick(draw, (17, 31, 32, 33, 63, 65, 96)) if math.prod(head) > 8 else pick(draw, (65, 127, 129, 257))
    return (*head, max(min(last, limit // math.prod(head)), 1))


def partner(draw: Draw, shape: Shape) -> tuple[Shape, Shape]:
    """Two shapes that broadcast together: equal, expanded on either side, equal counts of unequal shape."""
    form = pick(draw, ("same", "same", "ones", "suffix", "outer", "both", "scalar"))
    if form == "outer":
        k = pick(draw, (2, 3, 7, 8, 15, 16, 17, 31, 32, 33))
        pair: tuple[Shape, Shape] = ((k, 1), (1, k))
    elif form == "ones" and shape:
        axis = between(draw, 0, len(shape) - 1)
        pair = (shape, (*shape[:axis], 1, *shape[axis + 1 :]))
    elif form == "suffix" and shape:
        pair = (shape, shape[between(draw, 1, len(shape)) :])
    elif form == "both" and len(shape) >= 2:
        pair = ((shape[0], *(1 for _ in shape[1:])), shape[1:])
    elif form == "scalar":
        pair = (shape, ())
    else:
        pair = (shape, shape)
    return pair[::-1] if rarely(draw, 2) else pair


# shapes of no elements that still broadcast
EMPTY_PAIRS: tuple[tuple[Shape, Shape], ...] = (((0,), (1,)), ((2, 0), (2, 0)), ((0, 3), (1, 3)), ((1, 0, 4), (4,)))

BINARY_DATA = {
    "Add": ("normal", "integers", "wide", "cancel", "special", "nan"),
    "Sub": ("normal", "integers", "wide", "cancel", "special", "nan"),
    "Mul": ("normal", "integers", "wide", "special", "nan"),
    "Div": ("normal", "integers", "wide", "special", "nan"),
    "Max": ("normal", "integers", "negative", "nan", "nan", "special"),
    "Min": ("normal", "integers", "wide", "nan", "nan", "special"),
}


def binary_arg(
    draw: Draw, op: str, name: str, dtype: str, shape: Shape, data: str, special: bool, divisor: bool
) -> Arg:
    """One operand; only one of two holds special values, so that they meet ordinary numbers.

    An integer divisor is never 0, nor -1, which the smallest number cannot be divided by.
    """
    if dt.is_float(dtype):
        if data == "nan":
            return Arg(name, dtype, shape, "special", (1, 3)) if special else Arg(name, dtype, shape, "normal")
        return Arg(name, dtype, shape, data)
    if divisor:
        most = dt.limits(dtype)[1] // 3
        return Arg(name, dtype, shape, "uniform", pick(draw, ((1, 9), (1, most), (-most, -2), (-9, -2))))
    return Arg(name, dtype, shape, "uniform")


@st.composite
def binary(draw: Draw, op: str, dtype: str) -> Case:
    data = pick(draw, BINARY_DATA[op]) if dt.is_float(dtype) else "uniform"
    shapes: tuple[Shape, ...] = partner(draw, any_shape(draw))
    if rarely(draw, 50):
        data, shapes = "uniform", pick(draw, EMPTY_PAIRS)
    names: tuple[str, ...] = ("data_0", "data_1", "data_2") if op in ("Max", "Min") else ("A", "B")
    if len(names) == 3:
        count = pick(draw, (2, 2, 2, 2, 2, 2, 3, 3, 1))
        names, shapes = names[:count], (*shapes, shapes[1])[:count]
    special = between(draw, 0, 1)
    args = [
        binary_arg(draw, op, name, dtype, shape, data, i == special, divisor=op == "Div" and i == 1)
        for i, (name, shape) in enumerate(zip(names, shapes, strict=True))
    ]
    if len(args) == 2 and rarely(draw, 3):
        args[1] = replace(args[1], const=True)
    profile = "empty" if 0 in shapes[0] else "special" if data in ("nan", "special") else "plain"
    return d.make_case(draw, op, args, (dtype,), profile=profile)


# (profile, parameters) for each function; the first is the plain one
UNARY_DATA: dict[str, tuple[d.Data, ...]] = {
    "Relu": (("normal", ()), ("special", ()), ("wide", ()), ("negative", ())),
    "Neg": (("normal", ()), ("special", ()), ("wide", ())),
    "Abs": (("normal", ()), ("special", ()), ("wide", ())),
    "Sigmoid": (
        ("normal", ()),
        ("normal", (4.0,)),
        ("large", (20.0,)),
        ("large", (100.0,)),
        ("special", ()),
        ("wide", (-8, 1)),
    ),
    "Tanh": (("normal", ()), ("normal", (3.0,)), ("large", (20.0,)), ("wide", (-8, 1)), ("special", ())),
    "Exp": (("normal", ()), ("large", (87.0,)), ("large", (105.0,)), ("wide", (-8, 1)), ("special", ())),
    "Log": (("positive", ()), ("scales", (-120, 120)), ("scales", (-1, 1)), ("special", ()), ("normal", ())),
    "Sqrt": (("positive", ()), ("scales", (-120, 120)), ("special", ()), ("normal", ())),
    "Erf": (("normal", ()), ("normal", (3.0,)), ("large", (6.0,)), ("wide", (-8, 1)), ("special", ())),
}


@st.composite
def unary(draw: Draw, op: str, dtype: str) -> Case:
    profile, params = pick(draw, UNARY_DATA[op]) if dt.is_float(dtype) else ("uniform", ())
    shape = any_shape(draw)
    if rarely(draw, 60):
        shape = pick(draw, ((0,), (3, 0), (0, 2, 4)))
    arg = Arg("X", dtype, shape, profile, params)
    name = "empty" if 0 in shape else "special" if profile == "special" else "plain"
    return d.make_case(draw, op, (arg,), (dtype,), opset=14 if op == "Relu" and dtype == "int32" else 13, profile=name)


@st.composite
def clip(draw: Draw, dtype: str) -> Case:
    """Clip; low > high is left out: ONNX decides it only from opset 13 on and by an order of Max and Min."""
    low, high = (-0.75, 0.5) if dt.is_float(dtype) else (3, 77) if dtype.startswith("u") else (-50, 33)
    low, high = pick(draw, ((low, high), (low, low), (0, high)))
    special = dt.is_float(dtype) and rarely(draw, 5)
    const = rarely(draw, 2)
    bounds = pick(draw, ("both", "min", "max", "none"))
    args = (
        Arg("input", dtype, any_shape(draw), "special" if special else "normal" if dt.is_float(dtype) else "uniform"),
        d.scalar("min", dtype, low, const) if bounds in ("both", "min") else Arg("min"),
        d.scalar("max", dtype, high, const) if bounds in ("both", "max") else Arg("max"),
    )
    return d.make_case(draw, "Clip", args, (dtype,), profile="special" if special else "plain")


@st.composite
def where(draw: Draw, dtype: str) -> Case:
    shape = any_shape(draw, low_rank=1)
    x_shape, y_shape = partner(draw, shape)
    condition = x_shape if rarely(draw, 2) else pick(draw, ((), y_shape, y_shape[-1:]))
    profile = "bool" if dtype == "bool" else "special" if dtype == "float32" and rarely(draw, 4) else "uniform"
    args = (
        Arg("condition", "bool", condition, "bool"),
        Arg("X", dtype, x_shape, profile),
        Arg("Y", dtype, y_shape, "bool" if dtype == "bool" else "uniform"),
    )
    return d.make_case(draw, "Where", args, (dtype,), opset=16 if dtype == "bfloat16" else 13)


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
    return (*rest[:axis], channels, *rest[axis:]), axis - rank if rarely(draw, 3) else axis, channels


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


def qlinear_binary_args(
    a: d.Operand, b: d.Operand, shapes: tuple[Shape, Shape], scales: tuple[float, float], const: bool, params: bool
) -> list[Arg]:
    args = []
    for name, x, shape, scale in zip("AB", (a, b), shapes, scales, strict=True):
        args += [
            x.arg(name, shape, const and name == "B"),
            d.scalar(f"{name}_scale", "float32", scale, params),
            d.scalar(f"{name}_zero_point", x.dtype, x.zero_point, params),
        ]
    return args


@st.composite
def qlinear_binary(draw: Draw, op: str, dtype: str) -> Case:
    """QLinearAdd and QLinearMul: y_scale from the spread of the real result."""
    kind = pick(draw, d.KINDS)
    shapes = partner(draw, any_shape(draw, low_rank=1))
    # Ties need small numbers: both operands of a sum, one of a product.
    a, b = (operand(draw, dtype, kind, shape, weight=op == "QLinearMul" and i == 1) for i, shape in enumerate(shapes))
    a_scale, b_scale = d.pair_scales(draw, kind)
    if op == "QLinearAdd":
        ratio = pick(draw, (1.0, 2.0, 0.5) if kind == "ties" else (1.3, 0.2, 3.0))
        b_scale = a_scale * ratio if kind == "ties" else d.scale_near(draw, a_scale * ratio)
        unit = min(a_scale, b_scale)
        p, q = a_scale / unit, b_scale / unit
        std = math.hypot(p * a.std, q * b.std)
        expected = d.Moments(p * a.mean + q * b.mean, std, p * a.least + q * b.least, p * a.most + q * b.most)
    else:
        unit, expected = a_scale * b_scale, d.product_moments(a, b)
    weights, params = d.constants(draw)
    c_scale, c_zero_point = d.requantization(draw, kind, dtype, unit, expected)
    args = qlinear_binary_args(a, b, shapes, (a_scale, b_scale), weights, params)
    args += [d.scalar("C_scale", "float32", c_scale, params), d.scalar("C_zero_point", dtype, c_zero_point, params)]
    return d.make_case(draw, op, args, (dtype,), profile=kind, domain="com.microsoft")


QUANTIZE = tuple(f"float32,{y}" for y in ("uint8", "int8", "uint16", "int16"))
DEQUANTIZE = ("uint8", "int8", "uint16", "int16", "int32")
BINARY_TYPES = {
    "Add": ("float32", "float64", "int32", "int64"),
    "Sub": ("float32", "float64", "int32", "int64"),
    "Mul": ("float32", "float64", "int32", "int64"),
    "Div": ("float32", "float64", "int32", "int64"),
    "Max": ("float32", "float64", "int32", "int64"),
    "Min": ("float32", "float64", "int32", "int64"),
}
UNARY_TYPES = {
    "Relu": ("float32", "float64", "int32"),
    "Neg": ("float32", "float64", "int8", "int32", "int64"),
    "Abs": ("float32", "float64", "int8", "int32", "int64"),
    "Sigmoid": ("float32",),
    "Tanh": ("float32",),
    "Exp": ("float32", "float64"),
    "Log": ("float32", "float64"),
    "Sqrt": ("float32", "float64"),
    "Erf": ("float32",),
}
CONTRIB = "onnxruntime ContribOperators"

CASES = (
    *d.rows("QuantizeLinear", "ONNX QuantizeLinear-13 and -21", QUANTIZE, quantize_linear),
    *d.rows("DequantizeLinear", "ONNX DequantizeLinear-13 and -21", DEQUANTIZE, dequantize_linear),
    *d.rows("DynamicQuantizeLinear", "ONNX DynamicQuantizeLinear-11", ("float32,uint8",), dynamic_quantize_linear),
    *d.rows("QLinearAdd", f"{CONTRIB} QLinearAdd-1", NARROW, qlinear_binary, "QLinearAdd", domain="com.microsoft"),
    *d.rows("QLinearMul", f"{CONTRIB} QLinearMul-1", NARROW, qlinear_binary, "QLinearMul", domain="com.microsoft"),
    *(row for op, types in BINARY_TYPES.items() for row in d.rows(op, f"ONNX {op}-13", types, binary, op)),
    *(row for op, types in UNARY_TYPES.items() for row in d.rows(op, f"ONNX {op}-13", types, unary, op)),
    *d.rows("Clip", "ONNX Clip-13", ("float32", "int8", "uint8", "int64"), clip),
    *d.rows("Cast", "ONNX Cast-13", CASTS, cast),
    *d.rows("Where", "ONNX Where-9", ("float32", "int8", "uint8", "int64", "bool"), where),
)
