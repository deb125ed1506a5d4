"""What the values of a tensor have in common: the grid that they lie on, and whether they are few."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .types import Array

BLOCK = 1 << 18
FEW = 32
TOP = 1 << 20


def blocks(value: Array) -> Iterator[Array]:
    """All elements in pieces that stay in the processor's cache; what repeats by stride 0 comes once."""
    whole = np.asarray(value)
    flat = whole[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in whole.strides)].reshape(-1)
    for begin in range(0, flat.size, BLOCK):
        yield flat[begin : begin + BLOCK]


def grid_of(value: Array) -> float:
    """The largest power of two that divides every element; 0 where there is none worth having.

    Source: N3. Zero has every grid; infinities and NaN have none.
    """
    low = TOP
    for part in blocks(value):
        finite = np.asarray(part, np.float64)
        finite = finite[finite != 0]
        if not np.isfinite(finite).all():
            return 0.0
        mantissa, exponent = np.frexp(finite)
        bits = np.abs(mantissa * 2.0**53).astype(np.int64)
        trailing = np.log2((bits & -bits).astype(np.float64)).astype(np.int64)
        low = int((exponent - 53 + trailing).min(initial=low))
        # An order of evaluation may also form products and reciprocals: stay well inside the normal range.
        if low <= -100:
            return 0.0
    if low == TOP:
        return 1.0
    return float(2.0**low) if low < 100 else 0.0


def few_values(value: Array) -> bool:
    """Do a handful of magnitudes make up the tensor: then equal roundings add up instead of cancelling (N1).

    At most FEW beside 0, or one of them in more than a quarter of all places.
    """
    if value.size <= FEW:
        return value.size > 1
    seen, common, size = np.zeros(0), np.zeros(0), 0
    for part in blocks(value):
        found, counts = np.unique(np.abs(part[part != 0]), return_counts=True)
        size += part.size
        if seen.size <= FEW:
            seen = np.unique([*seen, *found])
        # What fills more than a quarter of the whole does so in one of its parts at least.
        common = np.unique([*common, *found[counts > part.size // 4]])
    return seen.size <= FEW or any(_count(value, x) > size // 4 for x in common)


def _count(value: Array, magnitude: float) -> int:
    if np.isnan(magnitude):  # one more magnitude, which equals nothing
        return sum(int(np.isnan(part).sum()) for part in blocks(value))
    return sum(int((np.abs(part) == magnitude).sum()) for part in blocks(value))
