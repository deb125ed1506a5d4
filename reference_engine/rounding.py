"""Integers that an honest kernel may return for a real number: rounding modes, zero points, saturation (N1, N4)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import dtypes as dt
from .types import Array, Policy

U = dt.UNIT["float32"]


def _away(v: Array) -> Array:
    return np.where(_ties(v), np.trunc(v) + np.sign(v), np.rint(v))


def _up(v: Array) -> Array:
    return np.where(_ties(v), np.ceil(v), np.rint(v))


def _ties(v: Array) -> Array:
    # floor(|v| + 0.5) would take 0.49999999999999994 for one.
    with np.errstate(invalid="ignore"):  # inf - inf is none
        return np.asarray(np.abs(v - np.trunc(v)) == 0.5)


MODES: dict[str, Callable[[Array], Array]] = {
    "even": np.rint,
    "away": _away,
    "up": _up,
    "floor": np.floor,
    "trunc": np.trunc,
}


def saturate(v: Array, dtype: str) -> Array:
    """Clip to the type's range as int64; NaN becomes qmin (unspecified, NUMERICS section 2)."""
    low, high = dt.limits(dtype)
    clipped = np.clip(np.where(np.isnan(v), low, v), low, high)
    return clipped.astype(np.int64)


def accept(
    v: Array, radius: Array, zero_point: Array, dtype: str, policy: Policy, zp_inside: bool = False
) -> tuple[Array, Array]:
    """lo, hi with lo <= sat(R(v') + zero_point) <= hi for every honest v' and declared mode R

    Shapes: v, radius equal; zero_point broadcastable.
    Dtypes: v, radius float64 (quanta, zero point excluded) -> int64.
    Source: N4: the image of an interval under a monotone step function is contiguous, and images under
        different modes are adjacent, so their union is one interval. zp_inside: the zero point is added
        in float32 before rounding, which costs one more rounding unless the sum is representable.
    """
    zp = zero_point.astype(np.float64)
    lows, highs = [], []
    for mode in policy.round:
        rounded = MODES[mode]
        lows.append(rounded(v - radius) + zp)
        highs.append(rounded(v + radius) + zp)
        if zp_inside or policy.zp_inside or policy.offset_qmin:
            w = v + zp
            with np.errstate(over="ignore", invalid="ignore"):
                inside = np.where((radius == 0) & (w.astype(np.float32) == w), 0.0, radius + U * (np.abs(w) + radius))
            if policy.offset_qmin:
                low, _ = dt.limits(dtype)
                inside = 1.5 * radius + 4 * U * (np.abs(w - low) + np.abs(zp - low))
            lows.append(rounded(w - inside))
            highs.append(rounded(w + inside))
    lo, hi = np.minimum.reduce(lows), np.maximum.reduce(highs)
    return saturate(lo, dtype), saturate(hi, dtype)


def fixed_point(v: Array, multiplier: Array) -> Array:
    """|v| 2^-30 + 2^-(n+1) where multiplier = M 2^-n, 1/2 <= M < 1, n > 0: what a Q31 product loses before the last
    rounding

    Units: quanta.
    Source: N10: M of 31 bits is off by 2^-31 of itself; with two roundings, the high half of the doubled product is a
        whole number of 2^-n quanta, off by half of one, before it is shifted by n.
    """
    with np.errstate(all="ignore"):
        exponent = np.frexp(multiplier)[1]
        step = np.where(exponent < 0, np.exp2(np.minimum(exponent, 0) - 1.0), 0.0)
        return np.nan_to_num(np.abs(v) * 2.0**-30, posinf=0.0) + step


def tie_distance(v: Array) -> Array:
    """How far v is from the nearest half: 0 is an exact tie."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(np.abs(v - np.trunc(v)) - 0.5))
