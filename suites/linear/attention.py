"""Rows of Einsum, Attention and RotaryEmbedding."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from opgauge.reference_engine.types import Arg, Attr, Case

from .. import draws as d
from ..draws import Draw, between, pick, rarely
from .matmul import float_data

# Terms of one letter per axis; `.` stands for an ellipsis of up to two axes.
EQUATIONS = (
    "ij,jk->ik", "bij,bjk->bik", "ij,kj->ik", "ji,jk->ki", "bhqd,bhkd->bhqk", "bqhd,bkhd->bhqk", "ij,jk",
    "ij->ji", "abc->cab", "ij->i", "ij->j", "ij->", "abc->ca", "i,j->ij", "i,i->", "i,ij->j", "ij,ij->ij", "ij,ij->",
    ".ij,.jk->.ik", ".ij->.ji", ".i->.", "ij,.jk->.ik", "ij,k->jk", "ab,bc,cd->ad", "i,j,k->ijk", "bn,anm,bm->ba", "ba",
)  # fmt: skip

HIDDEN = (-1e9, -1e4, float(np.finfo(np.float32).min))  # what models add to hide a key


@st.composite
def einsum(draw: Draw, dtype: str) -> Case:
    equation = pick(draw, EQUATIONS)
    terms = equation.partition("->")[0].split(",")
    letters = sorted({c for term in terms for c in term if c != "."})
    limit = (5, 7) if len(terms) > 2 else (9, 33)
    sizes = {c: pick(draw, (*range(1, limit[0]), *range(2, limit[0]), limit[1])) for c in letters}
    if len(terms) < 3 and rarely(draw, d.LARGE):
        longest = pick(draw, letters)
        sizes[longest] = max(sizes[longest], min(300, 200_000 * sizes[longest] // math.prod(sizes.values())))
    dots = tuple(between(draw, 1, 3) for _ in range(between(draw, 0, 2)))
    terms_of_sum = 1
    for c in letters:
        terms_of_sum *= sizes[c] if "->" in equation and c not in equation.partition("->")[2] else 1
    if dtype.startswith("int"):
        kind, first, rest = "integers", ("uniform", (-9, 9)), ("uniform", (-9, 9))
    else:
        kind, first, rest = float_data(draw, terms_of_sum, ("plain", "integers", "positive", "plain", "special"))
    args = []
    for i, term in enumerate(terms):
        shape: list[int] = []
        for c in term:
            shape += [1 if i and rarely(draw, 4) else n for n in dots] if c == "." else [sizes[c]]
        args.append(d.filled(f"x{i}", dtype, tuple(shape), rest if i else first))
    return d.make_case(draw, "Einsum", args, (dtype,), {"equation": equation.replace(".", "...")}, profile=kind)


@st.composite
def attention(draw: Draw, dtype: str) -> Case:
    """4-D and 3-D inputs, grouped heads, masks, causal order, scale, softcap, a cache of earlier keys."""
    batch, kv_heads, share = pick(draw, (1, 2)), pick(draw, (1, 2, 3)), pick(draw, (1, 1, 2, 3))
    heads = kv_heads * share
    queries, keys = pick(draw, (1, 3, 4, 5, 8, 17)), pick(draw, (1, 2, 4, 5, 7, 16, 33))
    size, width = pick(draw, (4, 1, 8, 16, 17, 64)), pick(draw, (4, 1, 7, 8, 32))
    if rarely(draw, d.LARGE):
        queries, keys = pick(draw, (65, 129, 33)), pick(draw, (129, 257, 300))
    flat = rarely(draw, 3)
    past = pick(draw, (1, 4, 9)) if rarely(draw, 4) else 0
    kind = pick(draw, ("plain", "plain", "positive", "large"))
    data = {"plain": ("normal", ()), "positive": ("positive", ()), "large": ("normal", (6.0,))}[kind]

    def tensor(name: str, own: int, length: int, last: int) -> Arg:
        shape = (batch, length, own * last) if flat else (batch, own, length, last)
        return d.filled(name, dtype, shape, data)

    total = keys + past
    mask = Arg("attn_mask")
    form = pick(draw, ("none", "none", "bool", "normal", "mask"))
    if form != "none":
        shape = pick(
            draw, ((queries, total), (batch, heads, queries, total), (1, 1, queries, total), (batch, 1, queries, total))
        )
        params = (pick(draw, HIDDEN),) if form == "mask" else ()
        mask = d.filled("attn_mask", "bool" if form == "bool" else dtype, shape, (form, params))
    caches = [
        d.filled(name, dtype, (batch, kv_heads, past, last), data) if past else Arg(name)
        for name, last in (("past_key", size), ("past_value", width))
    ]
    attrs: dict[str, Attr | None] = {
        "is_causal": 1 if rarely(draw, 3) else None,
        "kv_num_heads": kv_heads if flat else None,
        "q_num_heads": heads if flat else None,
        "scale": pick(draw, (None, None, 0.5, 0.1, 1.0)),
        "softcap": pick(draw, (None, None, 2.0, 30.0)),
    }
    outputs = (dtype, dtype, dtype) if past else (dtype,)
    args = (
        tensor("Q", heads, queries, size),
        tensor("K", kv_heads, keys, size),
        tensor("V", kv_heads, keys, width),
        mask,
        *caches,
    )
    return d.make_case(draw, "Attention", args, outputs, attrs, opset=23, profile=kind)


@st.composite
def rotary_embedding(draw: Draw, dtype: str) -> Case:
    batch, heads, length = pick(draw, (1, 2)), pick(draw, (1, 2, 3)), pick(draw, (1, 3, 5, 16))
    size = 2 * pick(draw, (2, 4, 8, 16, 32))
    rotated = pick(draw, (0, 0, size // 2)) if size > 4 else 0
    half = (rotated or size) // 2
    (length,) = d.larger(draw, (length,), each=batch * heads * size)
    flat, positions = rarely(draw, 2), not rarely(draw, 3)
    kind, data = pick(draw, (("plain", ("normal", ())), ("integers", ("integers", (8,)))))
    longest = pick(draw, (length, 20, 50))
    cache_shape = (longest, half) if positions else (batch, length, half)
    caches = ("integers", (3,)) if kind == "integers" else ("uniform", ())
    ids = (
        Arg("position_ids", "int64", (batch, length), "uniform", (0, longest - 1)) if positions else Arg("position_ids")
    )
    attrs: dict[str, Attr | None] = {
        "interleaved": 1 if rarely(draw, 2) else None,
        "num_heads": heads if flat else None,
        "rotary_embedding_dim": rotated or None,
    }
    args = (
        d.filled("X", dtype, (batch, length, heads * size) if flat else (batch, heads, length, size), data),
        d.filled("cos_cache", dtype, cache_shape, caches),
        d.filled("sin_cache", dtype, cache_shape, caches),
        ids,
    )
    return d.make_case(draw, "RotaryEmbedding", args, (dtype,), attrs, opset=23, profile=kind)


CASES = (
    *d.rows("Einsum", "ONNX Einsum-12", ("float32", "float64", "int32", "int64"), einsum),
    *d.rows("Attention", "ONNX Attention-23", ("float32",), attention),
    *d.rows("RotaryEmbedding", "ONNX RotaryEmbedding-23", ("float32", "float16"), rotary_embedding),
)
