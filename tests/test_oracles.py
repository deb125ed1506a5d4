"""The gauge gauged: each wrong kernel goes red and each honest one stays green."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from opgauge.oracles import judge
from opgauge.reference_engine import real as r
from opgauge.reference_engine.evaluate import accept
from opgauge.reference_engine.primitives import PRIMITIVES
from opgauge.reference_engine.types import Exact, Observation, Policy, Status, Verdict

F = np.float32
RNG = np.random.default_rng(3)
DEFAULT = Policy()


def requantized(multiplier: float, zero_point: int, policy: Policy = DEFAULT) -> Exact:
    acc = r.leaf(RNG.integers(-120, 120, (1, 1, 400)).astype(np.int32), "int32")
    made = PRIMITIVES["Requantize"].exact(
        acc,
        r.leaf(np.asarray([multiplier], F), "float32"),
        r.leaf(np.asarray([zero_point], np.uint8), "uint8"),
        fn="",
        to="uint8",
        policy=policy,
    )
    return accept(made, policy)


def verdict(exact: Exact, actual: np.ndarray, policy: Policy = DEFAULT) -> Verdict:
    return judge([exact], Observation(Status.PASS, (actual,)), policy)


def with_rounding(exact: Exact, rounding: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    assert exact.real is not None
    assert exact.zero_point is not None
    return np.clip(rounding(exact.real) + exact.zero_point, 0, 255).astype(np.uint8)


def away(v: np.ndarray) -> np.ndarray:
    return np.trunc(v + np.copysign(0.5, v))


def up(v: np.ndarray) -> np.ndarray:
    return np.floor(v + 0.5)


@pytest.mark.parametrize("zero_point", [100, 101])
@pytest.mark.parametrize(
    ("rounding", "status"),
    [
        (np.rint, Status.PASS),  # control
        (up, Status.FAIL),
        (away, Status.FAIL),
        (np.floor, Status.FAIL),
        (np.trunc, Status.FAIL),
        (lambda v: np.rint(v) + 1, Status.FAIL),
    ],
)
def test_half_to_even_accepts_nothing_else_on_ties(rounding, status, zero_point):
    exact = requantized(0.5, zero_point)
    assert verdict(exact, with_rounding(exact, rounding)).status is status


@pytest.mark.parametrize(
    ("name", "rounding"), [("away", away), ("up", up), ("floor", np.floor), ("trunc", np.trunc), ("even", np.rint)]
)
def test_a_declared_mode_is_accepted_and_only_that_one(name, rounding):
    exact = requantized(0.5, 100, Policy(round=(name,)))
    modes = {"away": away, "up": up, "floor": np.floor, "trunc": np.trunc, "even": np.rint}
    for other, fn in modes.items():
        expected = Status.PASS if other == name else Status.FAIL
        assert verdict(exact, with_rounding(exact, fn), Policy(round=(name,))).status is expected, other


def test_zero_point_added_before_rounding_needs_to_be_declared():
    inside = Policy(zp_inside=True)
    exact, allowed = requantized(0.5, 101), requantized(0.5, 101, inside)
    assert exact.zero_point is not None
    assert allowed.zero_point is not None
    assert exact.real is not None
    assert allowed.real is not None
    got = np.clip(np.rint(exact.real + exact.zero_point), 0, 255).astype(np.uint8)
    assert verdict(exact, got).status is Status.FAIL
    got = np.clip(np.rint(allowed.real + allowed.zero_point), 0, 255).astype(np.uint8)
    assert verdict(allowed, got, inside).status is Status.PASS


def test_a_failure_names_what_would_have_accepted_it():
    exact = requantized(0.5, 100)
    found = verdict(exact, with_rounding(exact, away))
    assert found.detail["wider"] == "would pass with round=away"
    assert set(found.detail["tie_distance"]) == {0.0}
    sizes = {len(found.detail[key]) for key in ("index", "got", "expected", "real", "tie_distance")}
    assert len(sizes) == 1


def test_away_from_ties_every_rounding_to_nearest_is_one_set():
    exact = requantized(0.3, 100)
    assert verdict(exact, with_rounding(exact, up)).status is Status.PASS
    assert verdict(exact, with_rounding(exact, np.floor)).status is Status.FAIL


def test_the_set_of_a_tie_with_powers_of_two_has_one_element():
    found = verdict(exact := requantized(0.5, 100), exact.value)
    assert found.ties > 100
    assert found.set_size == 1.0
    assert found.explained == "exact"


def plain(values: list[float], dtype: str = "float32") -> Exact:
    return accept(r.leaf(np.asarray(values, F), dtype), DEFAULT)


@pytest.mark.parametrize(
    ("actual", "status"),
    [
        (np.asarray([1, 2], F), Status.PASS),
        (np.asarray([1, 2], np.float64), Status.FAIL),
        (np.asarray([[1, 2]], F), Status.FAIL),
        (np.asarray([1], F), Status.FAIL),
        (np.asarray([1, np.nan], F), Status.FAIL),
        (np.nextafter(np.asarray([1, 2], F), F(9)), Status.FAIL),
    ],
)
def test_type_shape_and_bits_of_moved_data_are_exact(actual, status):
    assert verdict(plain([1, 2]), actual).status is status


def test_nan_is_required_where_the_value_is_nan_and_nowhere_else():
    exact = plain([np.nan, 1, np.inf])
    assert verdict(exact, np.asarray([-np.nan, 1, np.inf], F)).status is Status.PASS
    assert verdict(exact, np.asarray([0, 1, np.inf], F)).status is Status.FAIL
    assert verdict(exact, np.asarray([np.nan, 1, -np.inf], F)).status is Status.FAIL


def test_a_wrong_number_of_outputs_fails():
    assert judge([plain([1])], Observation(Status.PASS, ()), DEFAULT).status is Status.FAIL


def test_what_happened_to_the_worker_is_the_verdict():
    found = judge([plain([1])], Observation(Status.CRASH, message="SIGSEGV"), DEFAULT)
    assert (found.status, found.message) == (Status.CRASH, "SIGSEGV")


def test_a_pass_that_saturates_everywhere_is_untrusted():
    acc = r.leaf(np.full((1, 1, 50), 10_000, np.int32), "int32")
    made = PRIMITIVES["Requantize"].exact(
        acc,
        r.leaf(np.asarray([1.0], F), "float32"),
        r.leaf(np.zeros(1, np.uint8), "uint8"),
        fn="",
        to="uint8",
        policy=DEFAULT,
    )
    exact = accept(made, DEFAULT)
    assert verdict(exact, exact.value).status is Status.UNTRUSTED
    assert verdict(exact, exact.value - 1).status is Status.FAIL


def test_single_ieee_operations_have_one_answer():
    a, b = r.leaf(RNG.standard_normal(100).astype(F), "float32"), r.leaf(RNG.standard_normal(100).astype(F), "float32")
    exact = accept(PRIMITIVES["Elementwise"].exact(a, b, fn="mul", policy=DEFAULT), DEFAULT)
    right = (a.value.astype(F) * b.value.astype(F)).astype(F)
    assert verdict(exact, right).status is Status.PASS
    assert verdict(exact, np.nextafter(right, F(9))).status is Status.FAIL


def test_a_sum_that_may_overflow_on_the_way_is_undecided():
    x = r.leaf(np.asarray([[3e38, 3e38, -3e38]], F), "float32")
    exact = accept(PRIMITIVES["Reduce"].exact(x, fn="sum", policy=DEFAULT), DEFAULT)
    assert exact.free is not None
    assert exact.free.all()
    assert verdict(exact, np.asarray([np.inf], F)).status is Status.UNTRUSTED


def test_overflow_of_the_result_must_be_infinity():
    x = r.leaf(np.asarray([89.0, 88.0], F), "float32")
    exact = accept(PRIMITIVES["Elementwise"].exact(x, fn="exp", policy=DEFAULT), DEFAULT)
    top = F(np.exp(88.0))
    assert verdict(exact, np.asarray([np.inf, top], F)).status is Status.PASS
    assert verdict(exact, np.asarray([np.finfo(F).max, top], F)).status is Status.FAIL
    assert verdict(exact, np.asarray([np.inf, np.inf], F)).status is Status.FAIL
