"""Orders in which kernels add up products in float32, each computed to the bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opgauge.reference_engine.types import Array

from .formulas import fma

F, D = np.float32, np.float64
CONTRACTIONS = ("multiply, then add", "fused multiply-add")
LANES = (2, 4, 8, 16, 32, 64)
BLOCKS = (4, 8, 16, 32, 64, 128, 256)


def _chain(a: Array, b: Array, fused: bool, acc: Array | None = None) -> Array:
    """One accumulator through the last axis. Shapes: a, b [...,K]."""
    total = np.zeros(a.shape[:-1], F) if acc is None else acc
    for k in range(a.shape[-1]):
        total = fma(a[..., k], b[..., k], total) if fused else total + a[..., k] * b[..., k]
    return total


def sequential(x: Array) -> Array:
    total = x[..., 0]
    for i in range(1, x.shape[-1]):
        total = total + x[..., i]
    return total


def halves(x: Array) -> Array:
    """The upper half onto the lower one, again and again; an odd last one waits."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        rest = x[..., 2 * half :]
        x = np.concatenate([x[..., :half] + x[..., half : 2 * half], rest], -1)
    return x[..., 0]


def neighbours(x: Array) -> Array:
    while x.shape[-1] > 1:
        even = x.shape[-1] // 2 * 2
        x = np.concatenate([x[..., 0:even:2] + x[..., 1:even:2], x[..., even:]], -1)
    return x[..., 0]


REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "in turn": sequential,
    "by halves": halves,
    "by neighbours": neighbours,
}


def _recursive(x: Array) -> Array:
    """The sum of the first half plus that of the second."""
    n = x.shape[-1]
    return x[..., 0] if n == 1 else _recursive(x[..., : n // 2]) + _recursive(x[..., n // 2 :])


def _lanes(a: Array, b: Array, width: int, fused: bool) -> tuple[Array, Array]:
    """(lanes with the rest of the last axis in them, lanes without it). Shapes: [...,width]."""
    whole = a.shape[-1] // width * width

    def laid(x: Array) -> Array:
        return np.moveaxis(x[..., :whole].reshape(*x.shape[:-1], -1, width), -2, -1)

    bare = _chain(laid(a), laid(b), fused)
    rest = a.shape[-1] - whole
    if not rest:
        return bare, bare
    tail = _chain(a[..., whole:, None], b[..., whole:, None], fused, bare[..., :rest])
    return np.concatenate([tail, bare[..., rest:]], -1), bare


def _packets(a: Array, b: Array, width: int, count: int, fused: bool) -> Array:
    """`count` vectors in turn, added up, then what is left of whole vectors, then the rest of the elements (Eigen)."""
    several, whole = (a.shape[-1] // n * n for n in (width * count, width))
    lanes, _ = _lanes(a[..., :several], b[..., :several], width * count, fused)
    vector = sequential(np.moveaxis(lanes.reshape(*lanes.shape[:-1], count, width), -2, -1))
    for i in range(several, whole, width):
        vector = _chain(a[..., i : i + width, None], b[..., i : i + width, None], fused, vector)
    return _chain(a[..., whole:], b[..., whole:], fused, halves(vector))


def orders(a: Array, b: Array, contractions: tuple[str, ...] = CONTRACTIONS) -> dict[tuple[str, str], Array]:
    """(order, contraction) -> sum of a * b over the last axis in float32, or in float64 and rounded once.

    Shapes: a, b [...,K] -> [...].
    """
    made: dict[tuple[str, str], Array] = {}
    K = a.shape[-1]
    with np.errstate(all="ignore"):
        for word in contractions:
            fused = word == CONTRACTIONS[1]
            made["one after the other", word] = _chain(a, b, fused)
            made["from the last to the first", word] = _chain(a[..., ::-1], b[..., ::-1], fused)
            for block in (n for n in BLOCKS if n < K):
                parts = [_chain(a[..., i : i + block], b[..., i : i + block], fused) for i in range(0, K, block)]
                made[f"blocks of {block}", word] = sequential(np.stack(parts, -1))
            for width in (n for n in LANES if n <= K):
                full, bare = _lanes(a, b, width, fused)
                whole = K // width * width
                for name, reduced in REDUCTIONS.items():
                    made[f"{width} lanes, reduced {name}", word] = reduced(full)
                    if whole < K:
                        apart = reduced(bare) + _chain(a[..., whole:], b[..., whole:], fused)
                        made[f"{width} lanes, reduced {name}, the rest apart", word] = apart
                        tail = _chain(a[..., whole:], b[..., whole:], fused, reduced(bare))
                        made[f"{width} lanes, reduced {name}, the rest after", word] = tail
            for width, count in ((w, c) for w in (4, 8, 16) for c in (2, 4) if w * c <= K):
                made[f"{count} vectors of {width}", word] = _packets(a, b, width, count, fused)
        products = a * b
        made["pairwise", CONTRACTIONS[0]] = _recursive(products)
        made["neighbours in pairs", CONTRACTIONS[0]] = neighbours(products)
        made["halves onto each other", CONTRACTIONS[0]] = halves(products)
        exact = (a.astype(D) * b.astype(D)).sum(-1).astype(F)
        for word in contractions:
            made["in float64, rounded once", word] = exact
    return made
