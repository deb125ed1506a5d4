"""Rows of matrix products of floats and wide integers."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from opgauge.reference_engine.types import Attr, Case

from .. import draws as d
from ..draws import Draw, Shape, between, pick, rarely

ROWS = (8, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65)
COLUMNS = (8, 1, 2, 3, 7, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96)
DEPTHS = (4, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 96, 127)
# (M, N, K) of several blocks of rows, of columns, and of both; work that kernels share among threads
BLOCKED = (
    (300, 17, 31), (129, 64, 65), (257, 96, 33), (193, 33, 128), (8, 513, 64), (3, 1000, 33), (17, 257, 96),
    (33, 770, 40), (128, 128, 128), (130, 97, 260), (65, 200, 300), (97, 259, 129),
)  # fmt: skip
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
    """A [*, M, K], B [*, K, N]: vector widths, long K with few rows, many blocks, batch dimensions that broadcast."""
    if rarely(draw, 8):
        k = pick(draw, (*d.LONG, longest, between(draw, 1025, 1300), between(draw, 2049, 2100)))
        m, n = between(draw, 2, 5), between(draw, 4, 9)
    else:
        k, m = pick(draw, DEPTHS), pick(draw, ROWS)
        n = pick(draw, COLUMNS)
        if m * n < 12 or m * n > 3000:
            m, n = 16 + m % 3, min(n, 96) + 15
    large = rarely(draw, d.LARGE)  # drawn after the others: fewer choices would look simpler to the shrinker
    if large:
        m, n, k = pick(draw, BLOCKED)
    if large or not batches or m * n > 800 or not rarely(draw, 3):
        return Product((m, k), (k, n), m, n, k)
    a_batch, b_batch = pick(draw, BATCHES)
    return Product((*a_batch, m, k), (*b_batch, k, n), m, n, k)


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
HALF_KINDS = ("integers", "plain", "plain", "positive", "special")  # within the range of float16


def kinds_of(dtype: str) -> tuple[str, ...]:
    return HALF_KINDS if dtype == "float16" else FLOAT_KINDS


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
    kind, a, b = float_data(draw, p.k, kinds_of(dtype))
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
def matmul_wide(draw: Draw, dtype: str) -> Case:
    """Integers of 32 and 64 bits, small enough that no sum leaves the type."""
    p = product(draw, longest=1300)
    low, high = pick(draw, ((0, 9), (0, 300)) if dtype.startswith("uint") else ((-9, 9), (-300, 300), (-1, 1)))
    const = rarely(draw, 2)
    args = [
        d.filled("A", dtype, p.a, ("uniform", (low, high))),
        d.filled("B", dtype, p.b, ("uniform", (low, high)), const=const),
    ]
    return d.make_case(draw, "MatMul", args, (dtype,))


@st.composite
def fused_matmul(draw: Draw, dtype: str) -> Case:
    """transBatch puts the rows before the batch, trans swaps what are then the last two axes."""
    p = product(draw)
    kind, a, b = float_data(draw, p.k + 1, kinds_of(dtype))
    args = []
    attrs: dict[str, Attr | None] = {}
    for name, shape, data in (("A", p.a, a), ("B", p.b, b)):
        swap, batch = pick(draw, (0, 0, 1)), len(shape) > 2 and rarely(draw, 3)
        stored = (*shape[:-2], shape[-1], shape[-2]) if swap else shape
        stored = (stored[-2], *stored[:-2], stored[-1]) if batch else stored
        args.append(d.filled(name, dtype, stored, data, const=name == "B" and rarely(draw, 2)))
        attrs |= {f"trans{name}": swap or None, f"transBatch{name}": int(batch) or None}
    alpha = pick(draw, (None, 0.5, 2.0) if kind == "integers" else (None, 0.125, 1.7, -0.1))
    return d.make_case(
        draw, "FusedMatMul", args, (dtype,), {"alpha": alpha, **attrs}, profile=kind, domain="com.microsoft"
    )


@st.composite
def gemm(draw: Draw, dtype: str) -> Case:
    p = product(draw, batches=False)
    m, k, n = p.m, p.k, p.n
    if rarely(draw, 4):
        k = m  # a square A hides a forgotten transposition from every shape check
        n = k if rarely(draw, 3) else n
    kind, a, b = float_data(draw, k + 2, kinds_of(dtype))
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


CASES = (
    *d.rows("MatMul", "ONNX MatMul-13", ("float32", "float64", "float16", "bfloat16"), matmul),
    *d.rows("MatMul", "ONNX MatMul-13", ("int32", "int64", "uint32"), matmul_wide),
    *d.rows("Gemm", "ONNX Gemm-13", ("float32", "float64", "float16", "bfloat16"), gemm),
    *d.rows(
        "FusedMatMul", "onnxruntime ContribOperators FusedMatMul-1", ("float32",), fused_matmul, domain="com.microsoft"
    ),
)
