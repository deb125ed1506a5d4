"""Narrowing rounds once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from opgauge.reference_engine import dtypes as dt


@pytest.mark.parametrize(("word", "step"), [("float16", 2.0**-10), ("bfloat16", 2.0**-7)])
def test_a_number_just_beside_a_tie_goes_to_its_nearest(word, step):
    for tie in (1 + step / 2, 1 + 3 * step / 2, -(1 + step / 2)):
        for nudge in (-(2.0**-45), 0.0, 2.0**-45):
            value = np.asarray([tie + nudge])
            got = Fraction(float(dt.narrow(value, word)[0]))
            low = Fraction(np.sign(tie) * (1 + step * np.floor((abs(tie) - 1) / step)))
            high = low + Fraction(step) * (1 if tie > 0 else -1)
            exact = Fraction(float(value[0]))
            nearest = {c for c in (low, high) if abs(c - exact) == min(abs(low - exact), abs(high - exact))}
            assert got in nearest, (tie, nudge)


def test_through_float32_a_tie_is_rounded_twice():
    value = np.asarray([1 + 2.0**-8 + 2.0**-40])
    assert dt.narrow(value, "bfloat16")[0] == 1 + 2.0**-7
    assert value.astype(dt.NUMPY["bfloat16"])[0] == 1  # what ml_dtypes does: the trap


@pytest.mark.parametrize("word", ["float16", "bfloat16"])
def test_infinities_nan_and_zero_survive(word):
    got = dt.narrow(np.asarray([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e300]), word).astype(np.float64)
    np.testing.assert_array_equal(got, [np.inf, -np.inf, np.nan, 0.0, -0.0, np.inf])
