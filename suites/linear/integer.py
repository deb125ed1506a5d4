"""Rows of 8-bit matrix products: requantized, in int32, scaled to floats."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from opgauge.reference_engine.types import Arg, Attr, Case, CaseSpec

from .. import draws as d
from ..draws import Draw, Shape, operand, pick, rarely
from .matmul import Product, product

PAIRS = ("uint8,int8", "uint8,uint8", "int8,int8", "int8,uint8")


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


@st.composite
def matmul_integer_to_float(draw: Draw, a_dtype: str, b_dtype: str) -> Case:
    kind = pick(draw, ("plain", "plain", "ties", "extremes"))
    p = product(draw)
    a, b = operand(draw, a_dtype, kind, p.a), operand(draw, b_dtype, kind, p.b, weight=True)
    a_scale, b_scale = d.pair_scales(draw, kind)
    weights, params = d.constants(draw)
    columns = (p.n,) if rarely(draw, 3) else ()
    (a_s, a_z), (b_s, b_z) = (
        parameters(draw, name, x, scale, kind, shape, params)
        for name, x, scale, shape in (("a", a, a_scale, ()), ("b", b, b_scale, columns))
    )
    bias = Arg("bias")
    if not rarely(draw, 2):
        spread = d.product_moments(a, b, p.k).std * a_scale * b_scale
        bias = Arg(
            "bias",
            "float32",
            (p.n,),
            "integers" if kind == "ties" else "normal",
            (8 if kind == "ties" else d.float32(spread + 1e-30),),
        )
    args = (
        a.arg("A", p.a), b.arg("B", p.b, weights), a_s, b_s,
        Arg("a_zero_point") if rarely(draw, 5) else a_z, Arg("b_zero_point") if rarely(draw, 5) else b_z, bias,
    )  # fmt: skip
    return d.make_case(draw, "MatMulIntegerToFloat", args, ("float32",), profile=kind, domain="com.microsoft")


@st.composite
def dynamic_quantize_matmul(draw: Draw, a_dtype: str, b_dtype: str) -> Case:
    p = product(draw)
    b = operand(draw, b_dtype, "plain", p.b, weight=True)
    weights, params = d.constants(draw)
    kind, data = pick(
        draw,
        (
            ("plain", ("normal", (1.0,))),
            ("plain", ("normal", (pick(draw, (0.01, 30.0)), pick(draw, (0.0, 5.0))))),
            ("positive", ("positive", ())),
            ("wide", ("wide", (-3, 2))),
            ("sparse", ("sparse", ())),
        ),
    )
    columns = (p.n,) if rarely(draw, 3) else ()
    b_s, b_z = parameters(draw, "b", b, d.scale(draw), "plain", columns, params)
    bias = Arg("bias") if rarely(draw, 2) else Arg("bias", "float32", (p.n,), "normal", ())
    args = (
        d.filled("A", a_dtype, p.a, data),
        b.arg("B", p.b, weights),
        b_s,
        Arg("b_zero_point") if rarely(draw, 4) else b_z,
        bias,
    )
    return d.make_case(draw, "DynamicQuantizeMatMul", args, ("float32",), profile=kind, domain="com.microsoft")


@st.composite
def matmul_nbits(draw: Draw, bits: int, dtype: str, packed: str) -> Case:
    """K not always a multiple of the block; powers of two and whole numbers where sums shall be exact."""
    block = pick(draw, (32, 16, 64, 128))
    K = pick(draw, (block, 2 * block, 3 * block, 5 * block, block + 1, 2 * block - 1, 96, 200))
    N, rows = pick(draw, (8, 1, 3, 16, 17, 33)), pick(draw, (4, 1, 2, 7, 17))
    if rarely(draw, d.LARGE):
        K, N, rows = pick(draw, (1024, 1027, 8 * block)), pick(draw, (129, 64, 257)), pick(draw, (33, 1, 65))
    blocks = -(-K // block)
    kind = pick(draw, ("integers", "plain", "plain", "positive"))
    level = pick(draw, (None, 1, 4, 0))
    data = {"integers": ("integers", (8,)), "plain": ("normal", ()), "positive": ("positive", ())}[kind]
    const = not rarely(draw, 4)
    batch = (2,) if rarely(draw, 4) else ()
    scales = ("pow2", (-6, -2)) if kind == "integers" else ("scales", (-8, -3))
    zero = Arg("zero_points")
    form = pick(draw, ("none", "packed", "packed", "float"))
    if form == "packed":
        zero = Arg("zero_points", "uint8", (N * -(-blocks * bits // 8),), "uniform", const=const)
    elif form == "float":
        profile, params = ("uniform", (3, 9)) if kind != "integers" else ("integers", (5,))
        zero = Arg("zero_points", dtype, (N * blocks,), profile, params, const=const)
    bias = Arg("bias") if not rarely(draw, 3) else d.filled("bias", dtype, (N,), ("integers", (9,)))
    args = (
        d.filled("A", dtype, (*batch, rows, K), data),
        Arg("B", packed, (N, blocks, block * bits // 8), "uniform", const=const),
        d.filled("scales", dtype, (N * blocks,), scales, const=const),
        zero,
        Arg("g_idx"),
        bias,
    )
    attrs: dict[str, Attr | None] = {"K": K, "N": N, "bits": bits, "block_size": block, "accuracy_level": level}
    return d.make_case(draw, "MatMulNBits", args, (dtype,), attrs, profile=kind, domain="com.microsoft")


MS = "com.microsoft"
CONTRIB = "onnxruntime ContribOperators"
CASES = (
    *d.rows("QLinearMatMul", "ONNX QLinearMatMul-10", PAIRS, qlinear_matmul),
    *d.rows("MatMulInteger", "ONNX MatMulInteger-10", PAIRS, matmul_integer),
    *d.rows("QGemm", f"{CONTRIB} QGemm-1", PAIRS, qgemm, domain=MS),
    *d.rows("MatMulIntegerToFloat", f"{CONTRIB} MatMulIntegerToFloat-1", PAIRS, matmul_integer_to_float, domain=MS),
    *d.rows(
        "DynamicQuantizeMatMul",
        f"{CONTRIB} DynamicQuantizeMatMul-1",
        ("float32,uint8", "float32,int8"),
        dynamic_quantize_matmul,
        domain=MS,
    ),
    *(
        CaseSpec(
            "MatMulNBits",
            f"{dtype},uint8,bits{bits}",
            matmul_nbits(bits, dtype, "uint8"),
            f"{CONTRIB} MatMulNBits-1",
            MS,
        )
        for bits in (4, 8)
        for dtype in ("float32", "float16")
    ),
)
