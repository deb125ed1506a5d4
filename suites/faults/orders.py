"""Orders in which an honest kernel may add up: each folds the last axis of float32 terms to one number.

Shapes: terms [..., K] -> [...].
Source: N1, whose bound holds for every tree of additions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opgauge.reference_engine.types import Array

from .planted import Skip

F = np.float32
Fold = Callable[[Array], Array]
Product = Callable[[Array, Array], Array]
TERMS = 1 << 17  # products that are formed at once; more of them are left to the variants that go step by step


def sequential(t: Array) -> Array:
    """One after another: `accumulate` may not regroup, as `sum` does."""
    if t.shape[-1] == 0:
        return np.zeros(t.shape[:-1], F)
    return np.asarray(np.add.accumulate(t, -1, dtype=F)[..., -1])


def backward(t: Array) -> Array:
    return sequential(t[..., ::-1])


def pairwise(t: Array) -> Array:
    """Sums of two, of four, ..."""
    while t.shape[-1] > 1:
        t = padded(t, 2)
        t = t[..., ::2] + t[..., 1::2]
    return sequential(t)


def padded(t: Array, width: int) -> Array:
    """Zeros at the end up to a multiple of the width; they change no sum."""
    rest = -t.shape[-1] % width
    return np.concatenate([t, np.zeros((*t.shape[:-1], rest), F)], -1) if rest else t


def in_rows(t: Array, width: int) -> Array:
    """The terms in rows of `width`; the count is spelled out, since numpy infers none for an empty tensor."""
    full = padded(t, width)
    return full.reshape(*t.shape[:-1], full.shape[-1] // width, width)


def blocks(width: int, then: Fold = sequential) -> Fold:
    """Neighbouring terms first, then the sums of the blocks."""

    def fold(t: Array) -> Array:
        return then(sequential(in_rows(t, width)))

    return fold


def lanes(width: int, then: Fold = sequential) -> Fold:
    """Running sums side by side, as vectors have them, then across."""

    def fold(t: Array) -> Array:
        return then(sequential(np.swapaxes(in_rows(t, width), -1, -2)))

    return fold


def halves(t: Array) -> Array:
    """Split in two by two workers."""
    middle = t.shape[-1] // 2
    return sequential(t[..., :middle]) + sequential(t[..., middle:])


def shuffled(t: Array) -> Array:
    return sequential(t[..., np.random.Generator(np.random.PCG64(t.shape[-1])).permutation(t.shape[-1])])


def smallest_first(t: Array) -> Array:
    return sequential(np.take_along_axis(t, np.argsort(np.abs(t), -1), -1))


def largest_first(t: Array) -> Array:
    return backward(np.take_along_axis(t, np.argsort(np.abs(t), -1), -1))


def signs_apart(t: Array) -> Array:
    """Positive terms and negative ones each by themselves; a NaN is in both."""
    return sequential(np.where(t < 0, F(0), t)) + sequential(np.where(t > 0, F(0), t))


def numpys(t: Array) -> Array:
    return np.asarray(t.sum(-1, dtype=F))


def wide(t: Array) -> Array:
    """In float64, rounded once."""
    return np.asarray(t.sum(-1, dtype=np.float64)).astype(F)


def compensated(t: Array) -> Array:
    """Kahan's sum. Raises: Skip for infinities, whose compensation is NaN."""
    if not np.isfinite(t).all():
        raise Skip
    acc = lost = np.zeros(t.shape[:-1], F)
    for i in range(t.shape[-1]):
        term = t[..., i] - lost
        total = acc + term
        lost, acc = (total - acc) - term, total
    return acc


FOLDS: dict[str, Fold] = {
    "from the end": backward,
    "in pairs": pairwise,
    "in blocks of 16": blocks(16),
    "in blocks of 64, then in pairs": blocks(64, pairwise),
    "in blocks of 7": blocks(7),
    "in 4 lanes": lanes(4),
    "in 8 lanes": lanes(8),
    "in 16 lanes, then in pairs": lanes(16, pairwise),
    "in 32 lanes": lanes(32),
    "even and odd places": lanes(2),
    "in two halves": halves,
    "in a random order": shuffled,
    "the smallest first": smallest_first,
    "the largest first": largest_first,
    "signs apart": signs_apart,
    "as numpy does": numpys,
    "compensated": compensated,
    "in float64": wide,
}


def product(fold: Fold) -> Product:
    """C[m,n] = fold over k of A[m,k] B[k,n], each product rounded. Raises: Skip where there are too many terms."""

    def multiply(a: Array, b: Array) -> Array:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        if int(np.prod(batch)) * a.shape[-2] * a.shape[-1] * b.shape[-1] > TERMS:
            raise Skip
        with np.errstate(all="ignore"):
            return fold(a[..., :, None, :] * np.swapaxes(b, -1, -2)[..., None, :, :])

    return multiply


def fused(width: int) -> Product:
    """Lanes along K of fused multiply-adds: product and sum are rounded together."""

    def multiply(a: Array, b: Array) -> Array:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        K = a.shape[-1]
        if int(np.prod(batch)) * a.shape[-2] * b.shape[-1] * K > TERMS:
            raise Skip
        acc = np.zeros((width, *batch, a.shape[-2], b.shape[-1]), F)
        with np.errstate(all="ignore"):
            for k in range(K):
                wide_product = a[..., k : k + 1].astype(np.float64) * b[..., k : k + 1, :]
                acc[k % width] = (acc[k % width] + wide_product).astype(F)
            return sequential(np.moveaxis(acc, 0, -1))

    return multiply
