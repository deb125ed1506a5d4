"""How the errors of one output are spread: a histogram by size and sign, and a sample of error against magnitude."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Array, Exact

POINTS = 96  # of a sample; offending elements first, up to two thirds of it
BUCKETS = 24


def spread(exact: Exact, actual: Array, outside: Array) -> dict[str, Any]:
    """Signed errors against the exact value: counts for each power of two, and [magnitude, error, outside] of some.

    Units: quanta of an integer output, units in the last place (ULP) of a float one. Bucket 0 is an error below a
        half, bucket n (of either sign) from 2^(n-1) up to 2^n. Undecided and infinite elements are left out.
    """
    if exact.dtype == "bool" or not actual.size:
        return {}
    with np.errstate(all="ignore"):
        value, got = exact.value.astype(np.float64).ravel(), actual.astype(np.float64).ravel()
        unit = ulp(value, exact.dtype) if dt.is_float(exact.dtype) else 1.0
        error = (got - value) / unit
        usable = np.isfinite(error)
        if exact.free is not None:
            usable &= ~exact.free.ravel()
        wrong = outside.ravel()
        size = np.rint(np.abs(error))
        bucket = np.where(size < 1, 0, np.minimum(np.floor(np.log2(np.maximum(size, 1))) + 1, BUCKETS))
    bucket = (np.sign(error) * bucket)[usable].astype(int)
    counted = [
        [int(b), int((~wrong[usable][bucket == b]).sum()), int(wrong[usable][bucket == b].sum())]
        for b in np.unique(bucket)
    ]
    magnitude = np.abs(exact.real.astype(np.float64).ravel() if exact.real is not None else value)
    places = [*_some(np.flatnonzero(usable & wrong), POINTS * 2 // 3)]
    places += _some(np.flatnonzero(usable & ~wrong), POINTS - len(places))
    points = [
        [float(f"{magnitude[i]:.3g}"), float(f"{error[i]:.3g}"), int(wrong[i])]
        for i in places
        if np.isfinite(magnitude[i])
    ]
    return {
        "unit": "ULP" if dt.is_float(exact.dtype) else "quanta",
        "histogram": counted,
        "points": points,
        "not_finite": int((~usable & wrong).sum()),
    }


def ulp(value: Array, dtype: str) -> Array:
    """The distance of neighbouring numbers of a float type at each value, never below its smallest one."""
    digits = -np.log2(2 * dt.UNIT[dtype])
    exponent = np.floor(np.log2(np.maximum(np.abs(value), dt.NORMAL[dtype])))
    return np.asarray(2.0 ** (exponent - digits))


def _some(places: Array, count: int) -> list[int]:
    """At most `count` of the places, evenly apart."""
    if len(places) <= count:
        return [int(i) for i in places]
    return [int(places[i * len(places) // count]) for i in range(count)]
