"""Rows of matrix products and convolutions: float, integer and quantized."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import strategies as st

from opgauge.reference_engine.types import Arg, Attr, Case

from . import draws as d
from .draws import Draw, Shape, between, operand, pick, rarely

PAIRS = ("uint8,int8", "uint8,uint8", "int8,int8", "int8,uint8")
ROWS = (8, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65)
COLUMNS = (8, 1, 2, 3, 7, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96)
DEPTHS = (4, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 96, 127)
# batch dimensions of A and of B
BATCHES: tuple[tuple[Shape, Shape], ...] = (
    ((2,), (2,)),
    ((3,), ()),
    ((), (2,)),
    ((2, 1), (1, 3)),
    ((1, 3), (2, 1)),
    ((2, 1, 2), (3, 1)),
    ((2, 3), (2, 3)),
)


@dataclass(frozen=True)
class Product:
    """Shapes of a matrix product; `a_matrix`, `b_matrix` are false for 1-D operands."""

    a: Shape
    b: Shape
    m: int
    n: int
    k: int


def product(draw: Draw, longest: int = 4096, batches: bool = True) -> Product:
    """A [*, M, K], B [*, K, N]: vector widths, long K with few rows, batch dimensions that broadcast."""
    if rarely(draw, 8):
        k = pick(draw, (*d.LONG, longest, between(draw, 1025, 1300), between(draw, 2049, 2100)))
        m, n = between(draw, 2, 5), between(draw, 4, 9)
    else:
        k, m = pick(draw, DEPTHS), pick(draw, ROWS)
        n = pick(draw, COLUMNS)
        if m * n < 12 or m * n > 3000:
            m, n = 16 + m % 3, min(n, 96) + 15
    if not batches or m * n > 800 or not rarely(draw, 3):
        return Product((m, k), (k, n), m, n, k)
    a_batch, b_batch = pick(draw, BATCHES)
    return Product((*a_batch, m, k), (*b_batch, k, n), m, n, k)


def channel_scales(draw: Draw, name: str, base: float, kind: str, shape: Shape, const: bool) -> Arg:
    """Per-channel scales within e^2 of the base; powers of two where ties are wanted."""
    if kind == "ties":
        exponent = round(math.log2(base))
        return Arg(name, "float32", shape, "pow2", (exponent - 1, exponent), const=const)
    return Arg(name, "float32", shape, "spread", (base, pick(draw, (3, 1))), const=const)


def channel_zero_points(b: d.Operand, name: str, shape: Shape, const: bool, same: bool) -> Arg:
    profile, params = ("fill", (b.zero_point,)) if same else ("near", (b.zero_point, 2))
    return Arg(name, b.dtype, shape, profile, params, const=const)


def parameters(
    draw: Draw, prefix: str, x: d.Operand, scale: float, kind: str, shape: Shape, const: bool, same: bool = False
) -> tuple[Arg, Arg]:
    """(scale, zero point) of an operand: scalars, or one per channel where a shape is given."""
    if not shape:
        return (
            d.scalar(f"{prefix}_scale", "float32", scale, const),
            d.scalar(f"{prefix}_zero_point", x.dtype, x.zero_point, const),
        )
    return (
        channel_scales(draw, f"{prefix}_scale", scale, kind, shape, const),
        channel_zero_points(x, f"{prefix}_zero_point", shape, const, same),
    )


def column_shape(p: Product) -> Shape:
    """Where ONNX wants one parameter per column of B."""
    return (p.n,) if len(p.b) == 2 else (*p.b[:-2], 1, p.n)


def row_shape(p: Product) -> Shape:
    return (p.m,) if len(p.a) == 2 else (*p.a[:-1], 1)


@st.composite
def qlinear_matmul(draw: Draw, a_dtype: str, b_dtype: str) -> Case:
    kind = pick(draw, d.KINDS)
    p = product(draw)
    a, b = operand(draw, a_dtype, kind, p.a), operand(draw, b_dtype, kind, p.b, weight=True)
    a_scale, b_scale = d.pair_scales(draw, kind)
    weights, params = d.constants(draw)
    by_column = rarely(draw, 3) and (len(p.b) == 2 or rarely(draw, 6))
    by_row = rarely(draw, 30)
    y_dtype = ("uint8" if a_dtype == "int8" else "int8") if rarely(draw, 30) else a_dtype
    expected = d.product_moments(a, b, p.k)
    y_scale, y_zero_point = d.requantization(draw, kind, y_dtype, a_scale * b_scale, expected)
    args = (
        a.arg("a", p.a),
        *parameters(draw, "a", a, a_scale, kind, row_shape(p) if by_row else (), params),
        b.arg("b", p.b, weights),
        *parameters(draw, "b", b, b_scale, kind, column_shape(p) if by_column else (), params),
        d.scalar("y_scale", "float32", y_scale, params),
        d.scalar("y_zero_point", y_dtype, y_zero_point, params),
    )
    return d.make_case(draw, "QLinearMatMul", args, (y_dtype,), profile=kind)


@st.composite
def matmul_integer(draw: Draw, a_dtype: str, b_dtype: str) -> Case:
    kind = pick(draw, ("plain", "plain", "extremes"))
    p = product(draw)
    a, b = operand(draw, a_dtype, kind, p.a), operand(draw, b_dtype, kind, p.b, weight=True)
    weights, params = d.constants(draw)
    form = pick(draw, ("scalar", "scalar", "scalar", "a", "none", "column"))
    columns = column_shape(p) if form == "column" and (len(p.b) == 2 or rarely(draw, 6)) else ()
    rows = row_shape(p) if rarely(draw, 30) else ()
    a_zero, b_zero = Arg("a_zero_point"), Arg("b_zero_point")
    if form != "none":
        a_zero = parameters(draw, "a", a, 1.0, kind, rows, params)[1]
    if form in ("scalar", "column"):
        b_zero = parameters(draw, "b", b, 1.0, kind, columns, params)[1]
    args = (a.arg("A", p.a), b.arg("B", p.b, weights), a_zero, b_zero)
    return d.make_case(draw, "MatMulInteger", args, ("int32",), profile=kind)


@st.composite
def qgemm(draw: Draw, a_dtype: str, b_dtype: str) -> Case:
    kind = pick(draw, d.KINDS)
    p = product(draw, batches=False)
    a, b = operand(draw, a_dtype, kind, p.a), operand(draw, b_dtype, kind, p.b, weight=True)
    a_scale, b_scale = d.pair_scales(draw, kind)
    weights, params = d.constants(draw)
    trans_a, trans_b = pick(draw, ((0, 0), (0, 1), (1, 0), (1, 1)))
    alpha = pick(draw, (1.0, 1.0, 2.0, 0.5) if kind == "ties" else (1.0, 1.0, 0.5, 1.7, 0.1))
    columns = (p.n,) if rarely(draw, 3) else ()
    expected = d.product_moments(a, b, p.k)
    bias = Arg("C")
    if not rarely(draw, 4):
        shape = pick(draw, ((p.n,), (1, p.n), (p.m, p.n), (p.m, 1), (1, 1)))
        bias = Arg("C", "int32", shape, "near", (0, 6 if kind == "ties" else int(expected.std) + 3), const=weights)
    args = [
        a.arg("A", p.a[::-1] if trans_a else p.a),
        *parameters(draw, "a", a, a_scale, kind, (), params),
        b.arg("B", p.b[::-1] if trans_b else p.b, weights),
        *parameters(draw, "b", b, b_scale, kind, columns, params),
        bias,
    ]
    output = "float32"
    if not rarely(draw, 6):
        output = a_dtype
        y_scale, y_zero = d.requantization(draw, kind, a_dtype, alpha * a_scale * b_scale, expected)
        args += [d.scalar("y_scale", "float32", y_scale, params), d.scalar("y_zero_point", a_dtype, y_zero, params)]
    attrs: dict[str, Attr | None] = {"alpha": alpha, "transA": trans_a or None, "transB": trans_b or None}
    return d.make_case(draw, "QGemm", args, (output,), attrs, profile=kind, domain="com.microsoft")


# class of the case -> profiles of A and of B
FLOAT_DATA: dict[str, tuple[d.Data, d.Data]] = {
    "integers": (("integers", (8,)), ("integers", (8,))),
    "plain": (("normal", ()), ("normal", ())),
    "positive": (("positive", ()), ("positive", ())),
    "wide": (("wide", (-6, 6)), ("wide", (-6, 6))),
    "cancel": (("cancel", (1000,)), ("positive", ())),
    "tiny": (("wide", (-23, -21)), ("normal", ())),
    "locality": (("wide", (-6, 3)), ("normal", ())),
}
FLOAT_KINDS = ("integers", "plain", "plain", "plain", "integers", "positive", "wide", "cancel", "tiny", "special")


def float_data(draw: Draw, terms: int, kinds: tuple[str, ...] = FLOAT_KINDS):
    """(class, profile of A, profile of B) of a float product of that many terms."""
    kind = pick(draw, kinds)
    if kind == "special":
        # Rare enough that most sums stay finite; none of the largest numbers, whose sums are nobody's to decide.
        return kind, ("special", (pick(draw, (63, 1, 6, 8)), 4 * terms)), ("integers", (3,))
    return (kind, *FLOAT_DATA[kind])


@st.composite
def matmul(draw: Draw, dtype: str) -> Case:
    p = product(draw)
    kind, a, b = float_data(draw, p.k)
    a_shape, b_shape = p.a, p.b
    form = pick(draw, ("matrix",) * 9 + ("a", "b", "both"))
    if form in ("a", "both"):
        a_shape = (p.k,)
    if form in ("b", "both"):
        b_shape = (p.k,)
    if rarely(draw, 60):
        kind, a_shape, b_shape = "empty", *pick(draw, (((3, 0), (0, 4)), ((0, 5), (5, 2)), ((2, 3), (3, 0))))
    const = rarely(draw, 2)
    args = (d.filled("A", dtype, a_shape, a), d.filled("B", dtype, b_shape, b, const=const))
    return d.make_case(draw, "MatMul", args, (dtype,), profile=kind)


@st.composite
def gemm(draw: Draw, dtype: str) -> Case:
    p = product(draw, batches=False)
    m, k, n = p.m, p.k, p.n
    if rarely(draw, 4):
        k = m  # a square A hides a forgotten transposition from every shape check
        n = k if rarely(draw, 3) else n
    kind, a, b = float_data(draw, k + 2)
    trans_a, trans_b = pick(draw, ((0, 0), (1, 0), (0, 1), (1, 1)))
    exact = kind == "integers"
    alpha = pick(draw, (None, None, 0.5, 2.0, -1.0) if exact else (None, None, 0.5, 1.7, -0.1))
    beta = pick(draw, (None, 2.0, 0.5) if exact else (None, 2.0, 0.3))
    const = rarely(draw, 2)
    args = [
        d.filled("A", dtype, (k, m) if trans_a else (m, k), a),
        d.filled("B", dtype, (n, k) if trans_b else (k, n), b, const=const),
    ]
    if not rarely(draw, 5):
        shape = pick(draw, ((n,), (m, n), (1, n), (m, 1), (1,), ()))
        profile = ("integers", (50,)) if exact else ("normal", (pick(draw, (1.0, 30.0)),))
        args.append(d.filled("C", dtype, shape, profile, const=const))
    attrs: dict[str, Attr | None] = {"alpha": alpha, "beta": beta, "transA": trans_a or None, "transB": trans_b or None}
    return d.make_case(draw, "Gemm", args, (dtype,), attrs, profile=kind)


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


def window(draw: Draw) -> Window:
    """1-D and 2-D convolutions: groups, depthwise, dilations, unequal strides, asymmetric and automatic padding."""
    group, per_group, outs = pick(draw, DEPTHWISE) if rarely(draw, 4) else pick(draw, GROUPS)
    rank = pick(draw, (2, 1, 2, 2))
    kernel = tuple(pick(draw, (1, 2, 3, 3, 4, 5) if rank == 1 else (1, 2, 3, 3)) for _ in range(rank))
    strides = pick(draw, ((1, 1), (1, 1), (2, 1), (1, 2), (2, 3), (2, 2)))[:rank]
    dilations = pick(draw, ((1, 1), (1, 1), (1, 1), (2, 1), (1, 2), (2, 2), (3, 2)))[:rank]
    automatic = pick(draw, ("NOTSET",) * 8 + ("SAME_UPPER", "SAME_LOWER", "VALID"))
    if automatic.startswith("SAME"):
        # A stride beyond the kernel would ask for negative padding, which ONNX leaves undecided.
        dilations, strides = (1,) * rank, tuple(map(min, strides, kernel))
    begin, end = (0,) * rank, (0,) * rank
    if automatic == "NOTSET" and not rarely(draw, 3):
        begin = tuple(between(draw, 0, 2) for _ in range(rank))
        end = tuple(between(draw, 0, 2) for _ in range(rank))
    spatial = []
    for axis in range(rank):
        out = between(draw, 5, 12) if rank == 2 else pick(draw, (15, 16, 17, 31, 33, 64, 65))
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        length = (out - 1) * strides[axis] + reach - begin[axis] - end[axis] + pick(draw, range(strides[axis]))
        spatial.append(max(length, 1))
    batch = pick(draw, (1, 2, 2, 3))
    attrs: dict[str, Attr | None] = {
        "auto_pad": automatic if automatic != "NOTSET" else None,
        "dilations": dilations if any(x > 1 for x in dilations) else None,
        "group": group if group > 1 else None,
        "kernel_shape": kernel,
        "pads": (*begin, *end) if any(begin + end) else None,
        "strides": strides if any(x > 1 for x in strides) else None,
    }
    return Window(
        (batch, group * per_group, *spatial), (group * outs, per_group, *kernel), attrs, per_group * math.prod(kernel)
    )


# Enough terms that accumulators leave int16 long before a bias is added.
OVERFULL = Window((2, 16, 9, 6), (4, 16, 3, 3), {"kernel_shape": (3, 3)}, 144)


@st.composite
def qlinear_conv(draw: Draw, x_dtype: str, w_dtype: str) -> Case:
    kind = pick(draw, d.KINDS)
    v = OVERFULL if rarely(draw, 12) else window(draw)
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
    v = OVERFULL if rarely(draw, 12) else window(draw)
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
    kind, x, w = float_data(draw, v.terms, (*FLOAT_KINDS, "locality"))
    const = rarely(draw, 2)
    args = [d.filled("X", dtype, v.x, x), d.filled("W", dtype, v.w, w, const=const)]
    if not rarely(draw, 3):
        profile = ("integers", (50,)) if kind == "integers" else ("normal", ())
        args.append(d.filled("B", dtype, (v.w[0],), profile, const=const))
    return d.make_case(draw, "Conv", args, (dtype,), v.attrs, profile=kind)


CASES = (
    *d.rows("QLinearMatMul", "ONNX QLinearMatMul-10", PAIRS, qlinear_matmul),
    *d.rows("MatMulInteger", "ONNX MatMulInteger-10", PAIRS, matmul_integer),
    *d.rows("QLinearConv", "ONNX QLinearConv-10", PAIRS, qlinear_conv),
    *d.rows("ConvInteger", "ONNX ConvInteger-10", PAIRS, conv_integer),
    *d.rows("QGemm", "onnxruntime ContribOperators QGemm-1", PAIRS, qgemm, domain="com.microsoft"),
    *d.rows("MatMul", "ONNX MatMul-13", ("float32", "float64"), matmul),
    *d.rows("Gemm", "ONNX Gemm-13", ("float32", "float64"), gemm),
    *d.rows("Conv", "ONNX Conv-11", ("float32",), conv),
)
