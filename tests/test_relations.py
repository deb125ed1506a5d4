"""What wrong elements have in common: each rule on a fault of its kind, and silent on chance."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge import oracles
from opgauge.reference_engine.types import Exact, Policy
from opgauge.relations import relation

RNG = np.random.default_rng(5)
FLOATS = RNG.normal(size=(6, 40)).astype(np.float32)
INTS = RNG.integers(-128, 128, (6, 40)).astype(np.int8)
REAL = RNG.normal(size=(6, 40)) * 30


def exact_of(value: np.ndarray, real: np.ndarray | None = None, zero_point: int = 0) -> Exact:
    floats = value.dtype.kind == "f"
    lo = value.astype(np.float64 if floats else np.int64)
    radius = 1e-6 * np.abs(lo) if floats else 0
    zero = np.asarray(zero_point, np.int8) if real is not None else None
    return Exact(str(value.dtype), value, lo - radius, lo + radius, real=real, zero_point=zero)


def quantized() -> Exact:
    return exact_of(np.clip(np.rint(REAL) + 3, -128, 127).astype(np.int8), REAL, 3)


def said(exact: Exact, got: np.ndarray) -> str:
    outside = (got < exact.lo) | (got > exact.hi) | np.isnan(got.astype(np.float64))
    found = relation(exact, got, outside)
    return found.said if found else ""


def some(value: np.ndarray, changed: np.ndarray, rows: int = 2) -> np.ndarray:
    """Only the first rows are wrong."""
    made = value.copy()
    made[:rows] = changed[:rows].astype(value.dtype)
    return made


def tiles(value: np.ndarray) -> np.ndarray:
    made = value.copy()
    made[:2, :8], made[:2, 8:16] = value[:2, 8:16], value[:2, :8]
    return made


@pytest.mark.parametrize(
    ("exact", "got", "expected"),
    [
        (exact_of(FLOATS), some(FLOATS, FLOATS * np.nan), "every wrong element is NaN"),
        (exact_of(-np.abs(FLOATS)), -np.abs(FLOATS) * 0, "0 where negative numbers belong"),
        (exact_of(FLOATS), some(FLOATS, FLOATS * 0), "every wrong element is 0"),
        (exact_of(FLOATS), some(FLOATS, FLOATS * 0 + 7), "every wrong element is 7"),
        (quantized(), some(quantized().value, INTS * 0 + 3), "every wrong element is the zero point"),
        (exact_of(FLOATS), -FLOATS, "every wrong element has the other sign"),
        (exact_of(FLOATS), tiles(FLOATS), "in each other's places"),
        (exact_of(INTS), tiles(INTS), "in each other's places"),
        (exact_of(FLOATS), some(FLOATS, np.roll(FLOATS, -1, 1)), "what belongs 1 further on along axis 1"),
        (exact_of(INTS), np.roll(INTS, 1, 1), "what belongs 1 before it along axis 1"),
        (exact_of(FLOATS), some(FLOATS, FLOATS * 2), "every wrong element is 2 times what belongs there"),
        (quantized(), np.clip(np.rint(REAL * 0.5) + 3, -128, 127).astype(np.int8), "is 0.5 times what belongs there"),
        (exact_of(FLOATS), some(FLOATS, FLOATS + 1.5), "every wrong element is 1.5 too large"),
        (quantized(), (quantized().value - 1).astype(np.int8), "every wrong element is 1 quantum too small"),
        (exact_of(FLOATS), some(FLOATS, RNG.permutation(FLOATS.ravel()).reshape(6, 40)), "a right number of another"),
    ],
)
def test_what_wrong_elements_have_in_common_is_said(exact, got, expected):
    assert expected in said(exact, got)


@pytest.mark.parametrize("seed", range(20))
def test_chance_has_nothing_in_common(seed):
    rng = np.random.default_rng(seed)
    floats = rng.normal(size=(6, 40)).astype(np.float32)
    ints = rng.integers(-128, 128, (6, 40)).astype(np.int8)

    assert said(exact_of(FLOATS), some(FLOATS, floats)) == ""
    assert said(exact_of(FLOATS), FLOATS + (floats * 1e-3).astype(np.float32)) == ""
    assert said(exact_of(INTS), some(INTS, ints)) == ""
    assert said(exact_of(INTS), np.clip(INTS + rng.integers(-2, 3, INTS.shape), -128, 127).astype(np.int8)) == ""


def test_few_elements_and_booleans_say_nothing():
    got = FLOATS.copy()
    got[0, :3] = 0

    assert said(exact_of(FLOATS), got) == ""
    truth = FLOATS > 0
    exact = Exact("bool", truth, truth.astype(np.int64), truth.astype(np.int64))
    assert relation(exact, ~truth, np.ones(truth.shape, bool)) is None


def test_a_verdict_carries_it():
    found = oracles.explain(exact_of(FLOATS), -FLOATS, np.ones(FLOATS.shape, bool), Policy())

    assert found["relation"] == ("every wrong element has the other sign", found["relation"][1])
