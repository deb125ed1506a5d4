"""Where the roundings of a sum do not cancel: terms that vanish, and terms that round alike (N1).

The square-root bound of N1 presumes roundings that are as often up as down. Adding a term t to a partial sum s whose
last place is worth q makes it q rint(t / q), whatever s is: terms below q / 2 vanish, and terms that agree to within q
are all rounded the same way.
"""

from __future__ import annotations

import numpy as np

from .types import Array

TERMS = 2**24  # products formed one by one: beyond, their factors bound them
LEAST = 8  # terms that round alike from which on they are no accident
FINER = 7  # partial sums down to 2^-6 of the whole: below, what rounds alike there is small


def lost(terms: Array, mag: Array, unit: float) -> Array | float:
    """sum of the terms of at most unit * mag: beside a larger partial sum each may vanish, all one way.

    Shapes: terms [*,n] of magnitudes, mag [*] their sum; the result [*].
    """
    vanish = (terms <= unit * mag[..., None]) & (terms > 0)
    return np.where(vanish, terms, 0.0).sum(-1) if np.any(vanish) else 0.0


def lean(terms: Array, mag: Array, unit: float) -> Array | float:
    """max over q of sum over cells |sum (q rint(t / q) - t)|, q the last place of mag or of a 2^-j of it; a cell is the
    terms of one rint(t / q) that is not 0, where they are many

    Shapes: terms [*,n], mag [*] the sum of their magnitudes; the result [*]. 0 unless more than sqrt(n) terms of
        some row lie within one last place of its sum.
    """
    n = terms.shape[-1]
    alike = max(LEAST, int(np.sqrt(n)))
    if n <= alike or not np.isfinite(mag).all():
        return 0.0
    rows, sizes = terms.reshape(-1, n).astype(np.float64), mag.reshape(-1).astype(np.float64)
    ordered = np.sort(rows, -1)
    close = ordered[:, alike:] - ordered[:, :-alike] <= 2.0 * unit * sizes[:, None]
    apart = np.abs(ordered[:, alike:]) > unit * sizes[:, None]  # what lies about 0 vanishes: `lost`
    found = np.flatnonzero((close & apart).any(-1))
    if not found.size:
        return 0.0
    err = np.zeros(len(rows))
    for row in found:
        place = np.exp2(np.floor(np.log2(sizes[row]))) * 2.0 * unit
        err[row] = max(_one_way(rows[row], place * 2.0**-j) for j in range(FINER))
    return err.reshape(mag.shape)


def _one_way(terms: Array, place: float) -> float:
    cells = np.rint(terms / place)
    ordered = np.sort(cells)
    many = (ordered[LEAST - 1 :] == ordered[: 1 - LEAST]) & (ordered[LEAST - 1 :] != 0)
    if not many.any() and np.isfinite(ordered[0]) and np.isfinite(ordered[-1]):  # most often: a tenth of the time
        return 0.0
    off = cells * place - terms
    found, which, count = np.unique(cells, return_inverse=True, return_counts=True)
    sums = np.abs(np.bincount(which.reshape(-1), off))
    return float(sums[(count >= LEAST) & (found != 0)].sum())


def lost_products(a: Array, b: Array, mag: Array, unit: float) -> Array | float:
    """`lost` of the products of a dot; 0 where less than a quarter of them could vanish (data of one size).

    Shapes: a [*,M,K], b [*,K,N] of magnitudes, mag [*,M,N] the product.
    """
    terms = a.shape[-1]
    if terms < 2 or not mag.size or not np.isfinite(mag).all():
        return 0.0
    # |a||b| <= unit mag <= unit K max|a| max|b| needs one factor below sqrt(unit K) of its largest.
    small = np.sqrt(unit * terms)
    small_a = (a <= small * a.max(-1, keepdims=True)) & (a > 0)
    small_b = (b <= small * b.max(-2, keepdims=True)) & (b > 0)
    count = small_a.sum(-1)[..., :, None] + small_b.sum(-2)[..., None, :]
    if not np.any(count > terms / 4):
        return 0.0
    if mag.size * terms > TERMS:
        return np.asarray(np.minimum(np.matmul(a * small_a, b) + np.matmul(a, b * small_b), count * unit * mag))
    err = np.zeros_like(mag)
    for k in range(terms):
        term = a[..., :, k, None] * b[..., k, None, :]
        err += np.where(term <= unit * mag, term, 0.0)
    return err


def tight(x: Array, axis: int, unit: float) -> bool:
    """Do more than sqrt(n) numbers along the axis agree to n roundings: then so do products of two such."""
    n = x.shape[axis]
    alike = max(LEAST, int(np.sqrt(n)))
    if n <= alike or not x.size:
        return False
    ordered = np.moveaxis(np.sort(x, axis), axis, -1)
    with np.errstate(invalid="ignore"):
        near = ordered[..., alike:] - ordered[..., :-alike] <= n * unit * ordered[..., alike:]
    return bool((near & (ordered[..., alike:] > 0)).any())
