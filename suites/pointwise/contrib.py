"""Rows of com.microsoft's quantized arithmetic and functions of one tensor."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Case

from .. import draws as d
from ..draws import Draw, Shape, operand, pick
from .shapes import any_shape, partner

NARROW = ("int8", "uint8")
MS = "com.microsoft"


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


@st.composite
def qlinear_unary(draw: Draw, op: str, dtype: str) -> Case:
    """QLinearLeakyRelu and QLinearSigmoid: the real input within a few units, y_scale from what comes out."""
    kind = pick(draw, d.KINDS)
    x = operand(draw, dtype, kind, any_shape(draw, low_rank=1))
    shape = any_shape(draw, low_rank=1)
    low, _ = dt.limits(dtype)
    attrs: dict[str, float | None] = {}
    if op == "QLinearLeakyRelu":
        alpha = pick(draw, (0.5, 0.25) if kind == "ties" else (0.01, 0.2, 1.5, None))
        attrs["alpha"] = alpha
        x_scale = d.power_scale(draw) if kind == "ties" else d.scale(draw)
        unit = 1.0 if alpha is None else max(alpha, 0.1)
        expected = d.Moments(x.mean * 0.6, x.std * (0.6 + 0.4 * unit), x.least * unit, x.most)
        y_scale, y_zero_point = d.requantization(draw, kind, dtype, x_scale, expected)
    else:
        x_scale = d.float32(pick(draw, (1.0, 3.0, 8.0, 0.3)) / max(x.std, abs(x.mean), 1.0))
        y_scale = pick(draw, (1 / 256, d.float32(1 / 255), 0.01, d.float32(0.0031)))
        y_zero_point = low if kind != "ties" else pick(draw, (low, low + 3, low + 20))
    const = pick(draw, (True, False))
    args = [
        x.arg("X", shape),
        d.scalar("X_scale", "float32", x_scale, const),
        d.scalar("X_zero_point", dtype, x.zero_point, const),
        d.scalar("Y_scale", "float32", y_scale, const),
        d.scalar("Y_zero_point", dtype, y_zero_point, const),
    ]
    return d.make_case(draw, op, args, (dtype,), attrs, profile=kind, domain=MS)


SOURCE = "onnxruntime ContribOperators"
CONTRIB = (
    *d.rows("QLinearAdd", f"{SOURCE} QLinearAdd-1", NARROW, qlinear_binary, "QLinearAdd", domain=MS),
    *d.rows("QLinearMul", f"{SOURCE} QLinearMul-1", NARROW, qlinear_binary, "QLinearMul", domain=MS),
    *d.rows("QLinearLeakyRelu", f"{SOURCE} QLinearLeakyRelu-1", NARROW, qlinear_unary, "QLinearLeakyRelu", domain=MS),
    *d.rows("QLinearSigmoid", f"{SOURCE} QLinearSigmoid-1", NARROW, qlinear_unary, "QLinearSigmoid", domain=MS),
)
