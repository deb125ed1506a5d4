"""QDQ regions as cases: DequantizeLinear -> float operator -> QuantizeLinear, which a runtime may fuse or leave.

A region is spelled as one case of the domain `opgauge`: `QDQ.MatMul` with the inputs `a a_scale a_zero_point ..
y_scale y_zero_point`. TEMPLATES says which nodes it stands for; an attribute `b.axis` belongs to the
DequantizeLinear of b, any other to the operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case

from . import draws as d
from .draws import Draw, Shape, between, pick, rarely

DOMAIN = "opgauge"


class Step(NamedTuple):
    """One ONNX node of a model."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[tuple[str, Attr | Arg], ...] = ()


def region(op: str) -> Callable[[Case], tuple[Step, ...]]:
    """The nodes of DQ.. -> op -> Q: every input with a scale is dequantized, the others go in as they are."""

    def nodes(case: Case) -> tuple[Step, ...]:
        given = {arg.name: arg for arg in case.args}
        steps, inputs = [], []
        for name, arg in given.items():
            if name.endswith(("_scale", "_zero_point")):
                continue
            if f"{name}_scale" not in given:
                inputs.append("" if arg.absent else name)
                continue
            triple = tuple(n for n in (name, f"{name}_scale", f"{name}_zero_point") if n in given)
            steps.append(Step("DequantizeLinear", triple, (f"{name}_real",), attributes_of(case, name)))
            inputs.append(f"{name}_real")
        own = tuple((k, v) for k, v in case.attrs if "." not in k)
        steps.append(Step(op, tuple(inputs), ("y_real",), own))
        parameters = tuple(n for n in ("y_scale", "y_zero_point") if n in given)
        return (*steps, Step("QuantizeLinear", ("y_real", *parameters), ("y0",), attributes_of(case, "y")))

    return nodes


def attributes_of(case: Case, name: str) -> tuple[tuple[str, Attr | Arg], ...]:
    """Those spelled `name.attribute`."""
    return tuple((k.partition(".")[2], v) for k, v in case.attrs if k.startswith(f"{name}."))


def shown(case: Case) -> tuple[Step, ...]:
    """y0 = -x, and y1 what Transpose, QuantizeLinear and DequantizeLinear make of y0: an output that is read too."""
    parameters = ("y_scale", "y_zero_point")
    return (
        Step("Neg", ("x",), ("y0",)),
        Step("Transpose", ("y0",), ("moved",), case.attrs),
        Step("QuantizeLinear", ("moved", *parameters), ("quantized",)),
        Step("DequantizeLinear", ("quantized", *parameters), ("y1",)),
    )


SHOWN = "Shown.Transpose"
OPERATORS = (
    "MatMul Gemm Conv Add Mul AveragePool GlobalAveragePool MaxPool Resize Concat Softmax Relu Clip Transpose Reshape "
    "Slice Pad Sigmoid"
).split()
TEMPLATES: dict[str, Callable[[Case], tuple[Step, ...]]] = {
    SHOWN: shown,
    **{f"QDQ.{op}": region(op) for op in OPERATORS},
}


# ---- what is drawn


def parameters(name: str, dtype: str, scale: float, zero_point: int, const: bool) -> list[Arg]:
    return [
        d.scalar(f"{name}_scale", "float32", scale, const),
        d.scalar(f"{name}_zero_point", dtype, zero_point, const),
    ]


def triple(name: str, x: d.Operand, shape: Shape, scale: float, const: bool, params: bool) -> list[Arg]:
    return [x.arg(name, shape, const), *parameters(name, x.dtype, scale, x.zero_point, params)]


def finish(
    draw: Draw,
    op: str,
    args: list[Arg],
    y: tuple[float, int],
    dtype: str,
    kind: str,
    params: bool,
    attrs: Mapping[str, Attr | None] | None = None,
    opset: int = 13,
) -> Case:
    args = [*args, *parameters("y", dtype, y[0], y[1], params)]
    wide = any(a.dtype in ("int16", "uint16") for a in args)
    opset = 21 if wide else opset
    return d.make_case(draw, f"QDQ.{op}", args, (dtype,), attrs, opset, kind, DOMAIN)


def channel_parameters(draw: Draw, kind: str, base: float, count: int, const: bool) -> list[Arg]:
    """A scale for each channel of w."""
    profile, params = (
        ("pow2", (int(math.log2(base)), int(math.log2(base)) + 1)) if kind == "ties" else ("spread", (base, 2))
    )
    return [Arg("w_scale", "float32", (count,), profile, params, const=const)]


def weights(
    draw: Draw, kind: str, dtype: str, shape: Shape, axis: int
) -> tuple[list[Arg], d.Operand, float, dict[str, Attr | None], bool]:
    """(arguments of w, its moments, a scale, attributes, quantization parameters constant)"""
    const, params = d.constants(draw)
    scale = d.power_scale(draw) if kind == "ties" else d.scale(draw)
    if rarely(draw, 3):
        w = d.operand(draw, dtype, kind, shape, weight=True)
        args = [w.arg("w", shape, const), *channel_parameters(draw, kind, scale, shape[axis], params)]
        args.append(Arg("w_zero_point", dtype, (shape[axis],), "fill", (w.zero_point,), const=params))
        return args, w, scale, {"w.axis": axis}, params
    w = d.operand(draw, dtype, kind, shape, weight=True)
    return triple("w", w, shape, scale, const, params), w, scale, {}, params


def bias(draw: Draw, kind: str, count: int, ideal: float, params: bool, free: bool, std: float) -> list[Arg]:
    """int32 of the size of the sums and a scale: the product of the other two, or any other (profile bias)."""
    scale = ideal
    if free:
        scale = (
            ideal * 2.0 ** between(draw, -2, 2)
            if kind == "ties"
            else d.scale_near(draw, ideal * pick(draw, (3.0, 0.4)))
        )
    limit = min(12 if kind == "ties" else 400, max(int(std), 1))
    return [
        Arg("bias", "int32", (count,), "near", (0, limit), const=not rarely(draw, 4)),
        d.scalar("bias_scale", "float32", d.float32(scale), params),
    ]


def first_scale(draw: Draw, kind: str) -> float:
    return d.power_scale(draw) if kind == "ties" else d.scale(draw)


@st.composite
def matmul(draw: Draw, op: str, x_dtype: str, w_dtype: str) -> Case:
    kind = profile = pick(draw, d.KINDS)
    m, k, n = pick(draw, (5, 1, 8, 17)), pick(draw, (8, 3, 16, 33, 65, 130)), pick(draw, (7, 1, 16, 33))
    if m * n < 5:  # one element may saturate by chance
        m = 5
    (m,) = d.larger(draw, (m,), each=max(k, n))
    shape: Shape = (m, k)
    if op == "MatMul" and rarely(draw, 3):
        shape = (2, m, k)
    x = d.operand(draw, x_dtype, kind, shape)
    attrs: dict[str, Attr | None] = {}
    w_shape = (k, n)
    if op == "Gemm" and rarely(draw, 2):
        attrs, w_shape = {"transB": 1}, (n, k)
    w_args, w, w_scale, more, params = weights(draw, kind, w_dtype, w_shape, 0 if attrs else 1)
    x_scale = first_scale(draw, kind)
    args = [*triple("x", x, shape, x_scale, False, params), *w_args]
    expected = d.product_moments(x, w, k)
    if op == "Gemm" and not rarely(draw, 3):
        free = rarely(draw, 3) or "w.axis" in more
        args += bias(draw, kind, n, x_scale * w_scale, params, free, expected.std)
        profile = "bias" if free else kind
    y = d.requantization(draw, kind, x_dtype, x_scale * w_scale, expected)
    if n == 1 and kind != "saturate":  # the sums of one column lean to one side, no one knows which
        y = (y[0], (sum(dt.limits(x_dtype)) + 1) // 2)
    return finish(draw, op, args, y, x_dtype, profile, params, {**attrs, **more})


@st.composite
def conv(draw: Draw, op: str, x_dtype: str, w_dtype: str) -> Case:
    kind = profile = pick(draw, d.KINDS)
    group = pick(draw, (1, 1, 2, 3))
    c, m = group * pick(draw, (3, 1, 4)), group * pick(draw, (2, 1, 5))
    size = (pick(draw, (5, 7, 6)), pick(draw, (6, 4, 9)))
    kernel = (pick(draw, (3, 1, 2)), pick(draw, (3, 1, 2)))
    shape, w_shape = d.larger(draw, (pick(draw, (1, 2)), c, *size), (0,)), (m, c // group, *kernel)
    x = d.operand(draw, x_dtype, kind, shape)
    w_args, w, w_scale, more, params = weights(draw, kind, w_dtype, w_shape, 0)
    x_scale = first_scale(draw, kind)
    args = [*triple("x", x, shape, x_scale, False, params), *w_args]
    expected = d.product_moments(x, w, math.prod(w_shape[1:]))
    if not rarely(draw, 3):
        free = rarely(draw, 3) or "w.axis" in more
        args += bias(draw, kind, m, x_scale * w_scale, params, free, expected.std)
        profile = "bias" if free else kind
    attrs: dict[str, Attr | None] = {
        "group": group if group > 1 else None,
        "strides": (pick(draw, (1, 2)), pick(draw, (1, 2))),
        "pads": tuple(between(draw, 0, 1) for _ in range(4)),
        "dilations": (1, pick(draw, (1, 1, 2)) if size[1] > 5 else 1),
    }
    y = d.requantization(draw, kind, x_dtype, x_scale * w_scale, expected)
    return finish(draw, "Conv", args, y, x_dtype, profile, params, {**attrs, **more})


@st.composite
def binary(draw: Draw, op: str, dtype: str) -> Case:
    kind = pick(draw, d.KINDS)
    shape = d.larger(draw, pick(draw, ((3, 17), (2, 3, 8), (65,), (2, 1, 5, 7))))
    other = shape if not rarely(draw, 3) else shape[-1:]
    a = d.operand(draw, dtype, kind, shape)
    b = d.operand(draw, dtype, kind, other, weight=op == "Mul")
    a_scale = first_scale(draw, kind)
    if op == "Add":
        ratio = pick(draw, (1.0, 2.0, 0.5) if kind == "ties" else (1.3, 0.2, 3.0))
        b_scale = a_scale * ratio if kind == "ties" else d.scale_near(draw, a_scale * ratio)
        unit = min(a_scale, b_scale)
        p, q = a_scale / unit, b_scale / unit
        std = math.hypot(p * a.std, q * b.std)
        expected = d.Moments(p * a.mean + q * b.mean, std, p * a.least + q * b.least, p * a.most + q * b.most)
    else:
        b_scale = first_scale(draw, kind)
        unit, expected = a_scale * b_scale, d.product_moments(a, b)
    const, params = d.constants(draw)
    args = [*triple("a", a, shape, a_scale, False, params), *triple("b", b, other, b_scale, const, params)]
    return finish(draw, op, args, d.requantization(draw, kind, dtype, unit, expected), dtype, kind, params)


def moments(x: d.Operand) -> d.Moments:
    return d.Moments(x.mean, x.std, x.least, x.most)


class Unary(NamedTuple):
    """What goes around one quantized operand."""

    x: d.Operand
    args: list[Arg]
    scale: float
    params: bool


def unary_input(draw: Draw, dtype: str, kind: str, shape: Shape, negative: bool = False) -> Unary:
    x = d.operand(draw, dtype, kind, shape)
    if (x.least if negative else -x.most) >= 0:  # on one side of zero an operator may have nothing to decide
        low, high = dt.limits(dtype)
        x = d.Operand(dtype, (low + high + 1) // 2, "uniform", (), -0.5, (high - low) / 12**0.5, low, high)
        x = x._replace(least=low - x.zero_point, most=high - x.zero_point)
    scale = first_scale(draw, kind) * (-1.0 if negative else 1.0)
    params = d.constants(draw)[1]
    return Unary(x, triple("x", x, shape, scale, False, params), scale, params)


def same_or(draw: Draw, u: Unary, kind: str, dtype: str, expected: d.Moments | None = None) -> tuple[float, int]:
    """The parameters of the input, as around operators that only move, or fitting others."""
    if kind in ("plain", "extremes", "ties", "negative") and rarely(draw, 2):
        return u.scale, u.x.zero_point
    e = moments(u.x) if expected is None else expected
    if u.scale < 0:
        e = d.Moments(-e.mean, e.std, -e.most, -e.least)
    return d.requantization(draw, "plain" if kind == "negative" else kind, dtype, abs(u.scale), e)


@st.composite
def pool(draw: Draw, op: str, dtype: str) -> Case:
    negative = op == "MaxPool" and dtype in ("uint8", "int8") and rarely(draw, 8)
    kind = "negative" if negative else pick(draw, d.KINDS)
    channels = pick(draw, (3, 1, 4)) if op != "GlobalAveragePool" else pick(draw, (16, 33))
    shape = d.larger(draw, (pick(draw, (1, 2)), channels, pick(draw, (5, 8, 6)), pick(draw, (7, 4, 9))), (0,))
    u = unary_input(draw, dtype, "plain" if negative else kind, shape, negative)
    attrs: dict[str, Attr | None] = {}
    if op == "GlobalAveragePool":
        count = shape[2] * shape[3]
    else:
        kernel = (pick(draw, (2, 3, 1)), pick(draw, (2, 4, 3)))
        count = math.prod(kernel)
        attrs |= {"kernel_shape": kernel, "strides": (pick(draw, (1, 2)), pick(draw, (1, 2, 3)))}
        if rarely(draw, 2):
            attrs["pads"] = tuple(between(draw, 0, min(kernel) - 1) for _ in range(4))
        if rarely(draw, 3):
            attrs["ceil_mode"] = 1
        if op == "AveragePool" and rarely(draw, 3):
            attrs["count_include_pad"] = 1
    expected = moments(u.x)
    if op != "MaxPool":
        expected = expected._replace(std=expected.std / math.sqrt(count))
    elif kind == "saturate":
        kind = "plain"  # a maximum saturates by itself
    else:
        expected = expected._replace(mean=min(expected.mean + expected.std, expected.most))
    y = (
        same_or(draw, u, kind, dtype, expected)
        if op == "MaxPool"
        else d.requantization(draw, kind, dtype, u.scale, expected)
    )
    return finish(draw, op, u.args, y, dtype, kind, u.params, attrs)


@st.composite
def clamp(draw: Draw, op: str, dtype: str) -> Case:
    """Relu, Clip and Sigmoid; Relu and Clip with a negative scale now and then."""
    negative = op in ("Relu", "Clip") and dtype in ("uint8", "int8") and rarely(draw, 8)
    kind = "negative" if negative else pick(draw, d.KINDS)
    shape = d.larger(draw, pick(draw, ((3, 17), (2, 3, 8), (65,), (4, 33))))
    u = unary_input(draw, dtype, "plain" if negative else kind, shape, negative)
    args = list(u.args)
    size = abs(u.scale)
    if op == "Sigmoid":
        # The interesting part of the function lies between -6 and 6.
        span = max(abs(u.x.least), abs(u.x.most), 1)
        u.args[1] = d.scalar("x_scale", "float32", d.scale_near(draw, pick(draw, (6.0, 3.0, 10.0)) / span), u.params)
        y = (pick(draw, (1 / 256, 1 / 128, d.float32(1 / 255))), dt.limits(dtype)[0])
        if dtype in ("int16", "uint16"):
            y = (y[0] / 256, y[1])
        return finish(draw, op, u.args, y, dtype, "plain", u.params)
    expected = moments(u.x)
    if op == "Clip":
        low = d.float32(size * (-between(draw, 0, 40)))
        high = d.float32(size * between(draw, 1, 100))
        args += [d.scalar("min", "float32", low, True), d.scalar("max", "float32", high, True)]
    y = same_or(draw, u, kind, dtype, expected)
    return finish(draw, op, args, y, dtype, kind, u.params)


@st.composite
def softmax(draw: Draw, op: str, dtype: str) -> Case:
    """Output scales whose reciprocal is a whole number: others are a known deviation of onnxruntime."""
    shape = pick(draw, ((3, 17), (2, 3, 8), (4, 33), (2, 5, 7)))
    axis = pick(draw, (-1, len(shape) - 1, 0, 1))
    shape = d.larger(draw, shape, d.others(len(shape), axis % len(shape)))
    u = unary_input(draw, dtype, "plain", shape)
    span = max(abs(u.x.least), abs(u.x.most), 1)
    u.args[1] = d.scalar("x_scale", "float32", d.scale_near(draw, pick(draw, (6.0, 2.0, 20.0)) / span), u.params)
    y = (pick(draw, (1 / 256, 1 / 512, 1 / 128)), dt.limits(dtype)[0])
    if dtype in ("int16", "uint16"):
        y = (y[0] / 256, y[1])
    return finish(draw, op, u.args, y, dtype, "plain", u.params, {"axis": axis})


@st.composite
def concat(draw: Draw, op: str, dtype: str) -> Case:
    """Operands with parameters of their own, or all with those of the output."""
    kind = pick(draw, d.KINDS)
    shape = pick(draw, ((3, 5), (2, 3, 4), (17,)))
    axis = between(draw, 0, len(shape) - 1)
    args, units = [], []
    shape = d.larger(draw, shape, d.others(len(shape), axis), each=20)
    params = d.constants(draw)[1]
    shared = rarely(draw, 2)
    base = first_scale(draw, kind)
    first: d.Operand | None = None
    for i in range(pick(draw, (2, 3, 1))):
        part = (*shape[:axis], shape[axis] + i, *shape[axis + 1 :])
        x = d.operand(draw, dtype, kind, part)
        if shared and first is not None:
            x = first
        first = first or x
        ratio = pick(draw, (1.0, 2.0, 0.5))
        scale = base if shared else base * ratio if kind == "ties" else d.scale_near(draw, base * ratio)
        args += triple(f"x{i}", x, part, scale, i > 0 and rarely(draw, 3), params)
        units.append((scale, x))
    assert first is not None
    if shared and rarely(draw, 2) and kind in ("plain", "extremes", "ties"):
        y = (base, first.zero_point)
    else:
        y = d.requantization(draw, kind, dtype, base, moments(first))
    return finish(
        draw, "Concat", args, y, dtype, kind, params, {"axis": axis - len(shape) if rarely(draw, 3) else axis}
    )


@st.composite
def move(draw: Draw, op: str, dtype: str) -> Case:
    kind = pick(draw, d.KINDS)
    shape = d.larger(draw, pick(draw, ((3, 17), (2, 3, 8), (2, 3, 4, 5))))
    u = unary_input(draw, dtype, kind, shape)
    args = list(u.args)
    attrs: dict[str, Attr | None] = {}
    if op == "Transpose":
        attrs["perm"] = tuple(reversed(range(len(shape))))
    elif op == "Reshape":
        args.append(d.vector("shape", "int64", (shape[0], -1) if rarely(draw, 2) else (-1,), const=True))
    elif op == "Slice":
        args.append(d.vector("starts", "int64", (1, 0), const=True))
        args.append(d.vector("ends", "int64", (shape[0], shape[-1] - 1), const=True))
        args.append(d.vector("axes", "int64", (0, -1), const=True))
    else:
        mode = pick(draw, ("constant", "constant", "edge", "reflect"))
        attrs["mode"] = mode
        args.append(d.vector("pads", "int64", tuple(between(draw, 0, 1) for _ in range(2 * len(shape))), const=True))
        if mode == "constant" and rarely(draw, 2):
            value = d.float32(abs(u.scale) * between(draw, -9, 9) / 2)
            args.append(d.scalar("constant_value", "float32", value, const=True))
    return finish(draw, op, args, same_or(draw, u, kind, dtype), dtype, kind, u.params, attrs)


@st.composite
def shown_output(draw: Draw, op: str, x_dtype: str, dtype: str) -> Case:
    """A float tensor that the caller sees and that is quantized behind a Transpose: no rounding may show in it."""
    shape = d.larger(draw, pick(draw, ((3, 17), (2, 3, 8), (2, 3, 4, 5))))
    low, high = dt.limits(dtype)
    args = [Arg("x", x_dtype, shape, "normal", (pick(draw, (1.0, 8.0)),))]
    args += parameters("y", dtype, pick(draw, (0.5, 0.1, 0.0625)), between(draw, low, high), d.constants(draw)[1])
    attrs: dict[str, Attr | None] = {"perm": tuple(reversed(range(len(shape))))}
    return d.make_case(draw, SHOWN, args, (x_dtype, x_dtype), attrs, 13, "plain", DOMAIN)


@st.composite
def resize(draw: Draw, op: str, dtype: str) -> Case:
    kind = pick(draw, d.KINDS)
    shape = d.larger(draw, (1, pick(draw, (2, 1, 3)), pick(draw, (4, 3, 5)), pick(draw, (5, 3, 4))), (0, 1), each=8)
    u = unary_input(draw, dtype, kind, shape)
    mode = pick(draw, ("nearest", "linear"))
    attrs: dict[str, Attr | None] = {"mode": mode}
    if mode == "nearest":
        attrs |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    scales = (1.0, 1.0, 2.0, pick(draw, (2.0, 4.0)))
    args = [*u.args, Arg("roi"), d.vector("scales", "float32", scales, const=True)]
    return finish(draw, op, args, same_or(draw, u, kind, dtype), dtype, kind, u.params, attrs)


PRODUCTS = ("uint8,int8", "uint8,uint8", "int8,int8", "uint16,uint8", "int16,int8")
TYPES = ("uint8", "int8", "uint16", "int16")
ROWS: tuple[tuple[str, Callable[..., st.SearchStrategy[Case]], tuple[str, ...]], ...] = (
    ("MatMul", matmul, PRODUCTS),
    ("Gemm", matmul, PRODUCTS),
    ("Conv", conv, PRODUCTS),
    ("Add", binary, TYPES),
    ("Mul", binary, TYPES),
    ("AveragePool", pool, TYPES),
    ("GlobalAveragePool", pool, TYPES),
    ("MaxPool", pool, TYPES),
    ("Resize", resize, TYPES),
    ("Concat", concat, TYPES),
    ("Softmax", softmax, TYPES),
    ("Relu", clamp, TYPES),
    ("Clip", clamp, TYPES),
    ("Sigmoid", clamp, TYPES),
    ("Transpose", move, TYPES),
    ("Reshape", move, TYPES),
    ("Slice", move, TYPES),
    ("Pad", move, TYPES),
)
SOURCE = "ONNX QuantizeLinear-21 and DequantizeLinear-21 around the operator; N4 of docs/numerics.md"
CASES = tuple(row for op, f, labels in ROWS for row in d.rows(f"QDQ.{op}", SOURCE, labels, f, op, domain=DOMAIN))
CASES += d.rows(SHOWN, SOURCE, ("float32,uint8", "float32,int8"), shown_output, SHOWN, domain=DOMAIN)
