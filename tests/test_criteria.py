"""The criteria of others say of an output what their authors' tests would have said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opgauge import criteria, sensitivity, suites
from opgauge.reference_engine.real import Real
from opgauge.reference_engine.types import Exact
from opgauge.reports import sensitivity as page

PLANTED = Path(__file__).parent / "faults" / "planted.py"
EVERY = {c.name for c in criteria.CRITERIA}


def quantized(real: float, got: int) -> set[str]:
    """Who refuses `got` for a uint8 result at zero point 100 whose number before rounding is `real`."""
    value = np.array([int(np.rint(real)) + 100], np.uint8)
    wide = value.astype(np.int64)
    exact = Exact("uint8", value, wide, wide, real=np.array([real]), zero_point=np.array([100]))
    return set(criteria.rejecting([exact], [Real(value, "uint8")], [np.array([got], np.uint8)]))


@pytest.mark.parametrize(
    ("real", "got", "refuse"),
    [
        (3.2, 103, set()),
        # 104 lies 0.8 of a quantum from the real number.
        (3.2, 104, {"ONNX", "oneDNN", "TOSA"}),
        (3.05, 104, {"ONNX", "oneDNN", "TOSA", "XNNPACK"}),
        (2.5, 103, {"ONNX", "TOSA"}),  # a tie, rounded up
        (3.2, 105, {"ONNX", "oneDNN", "TOSA", "XNNPACK", "NNAPI"}),
        (3.2, 107, {"ONNX", "oneDNN", "TOSA", "XNNPACK", "NNAPI"}),
        (3.2, 108, EVERY),
    ],
)
def test_quantized_results(real, got, refuse):
    # One quantum of a hundred is 1e-4 of the signal in squares; 2.4 quanta make the 5e-4 of the mean square error.
    expected = refuse | ({"NMSE"} if abs(got - round(real) - 100) >= 3 else set())
    assert quantized(real, got) == expected


def floats(error: float, k: int = 8, mag: float = 4.0, n: int = 4) -> set[str]:
    value = np.ones(n, np.float32)
    exact = Exact("float32", value, value - 1e-6, value + 1e-6)
    real = Real(np.ones(n), "float32", np.full(n, mag), k)
    got = (value.astype(np.float64) + error).astype(np.float32)
    return set(criteria.rejecting([exact], [real], [got]))


def test_float_results():
    u = 2.0**-24
    assert floats(0.0) == set()
    assert floats(4 * u) == set()
    assert floats(20 * u) == {"oneDNN", "TOSA"}  # all on one side
    assert floats(300 * u) == EVERY - {"ONNX", "NMSE"}
    assert floats(5e-3) == EVERY - {"NMSE"}
    assert floats(0.1) == EVERY
    assert floats(float("nan")) == EVERY


def test_a_wrong_shape_or_type_is_seen_by_all():
    value = np.zeros((2, 2), np.float32)
    exact, real = Exact("float32", value, value, value), Real(value.astype(float), "float32")
    assert set(criteria.rejecting([exact], [real], [value.ravel()])) == EVERY
    assert set(criteria.rejecting([exact], [real], [value.astype(np.float64)])) == EVERY
    assert criteria.rejecting([exact], [real], [value]) == []


def test_what_the_specification_leaves_open_is_judged_by_nobody():
    value = np.zeros(2, np.float32)
    exact = Exact("float32", value, value, value, free=np.array([True, False]))
    real = Real(value.astype(float), "float32")
    assert criteria.rejecting([exact], [real], [np.array([9, 0], np.float32)]) == []
    assert set(criteria.rejecting([exact], [real], [np.array([0, 9], np.float32)])) == EVERY


def test_a_comparison_counts_and_tells_who_sees_which_fault():
    outcomes = list(sensitivity.measure(PLANTED, suites.cases(), 6, only=["T4", "H2"], compare=True))
    summary = sensitivity.summary(outcomes, sensitivity.catalogue(PLANTED))

    # A leading dimension too many is seen at the first case by everybody; the reference itself by nobody.
    assert summary["caught"] == 1
    assert all(row["caught"] == ["T4"] and not row["benign_flagged"] for row in summary["others"].values())
    text = page.render(summary, 6)
    assert "| T4 | Neg | a leading dimension appears | 1 |" in text
    assert text.count("1 of 1 (100.0 %)") == 1 + len(EVERY)
    assert not any(o.others for o in sensitivity.measure(PLANTED, suites.cases(), 2, only=["T4"]))
