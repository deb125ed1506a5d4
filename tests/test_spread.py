"""The spread of errors: signs, sizes and the sample of points, for integers and floats."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.reference_engine.types import Exact
from opgauge.spread import POINTS, spread, ulp


def exact(value: np.ndarray, dtype: str) -> Exact:
    return Exact(dtype, value, value.astype(np.int64), value.astype(np.int64))


def test_errors_are_counted_by_sign_and_power_of_two() -> None:
    value = np.zeros(8, np.int32)
    actual = np.array([0, 0, 1, -1, 2, 3, -7, 8], np.int32)
    found = spread(exact(value, "int32"), actual, actual != 0)

    assert found["unit"] == "quanta"
    assert found["histogram"] == [[-3, 0, 1], [-1, 0, 1], [0, 2, 0], [1, 0, 1], [2, 0, 2], [4, 0, 1]]
    assert [0.0, 8.0, 1] in found["points"]


def test_a_float_error_is_in_units_of_the_last_place() -> None:
    value = np.array([1.0, 1024.0, 0.0], np.float32)
    actual = np.array([1 + 2**-23, 1024 - 2**-12, 2**-149], np.float32)
    found = spread(exact(value, "float32"), actual, np.ones(3, bool))

    assert [point[1] for point in found["points"]] == [1.0, -2.0, 1.0]
    assert found["histogram"] == [[-2, 0, 1], [1, 0, 2]]


@pytest.mark.parametrize(("dtype", "step"), [("float16", 2.0**-10), ("bfloat16", 2.0**-7), ("float64", 2.0**-52)])
def test_the_ulp_of_one_is_the_step_of_the_type(dtype: str, step: float) -> None:
    assert ulp(np.array([1.0, 1.5, 2.0]), dtype).tolist() == [step, step, 2 * step]


def test_a_large_tensor_gives_a_small_sample_that_holds_the_offending_elements_first() -> None:
    value = np.zeros((100, 100), np.int8)
    actual = value.copy()
    actual[3, :10] = 5
    found = spread(exact(value, "int8"), actual, actual != 0)

    assert len(found["points"]) == POINTS
    assert sum(outside for *_, outside in found["points"]) == 10


def test_nan_is_counted_apart_and_bool_has_no_errors() -> None:
    value = np.array([1.0, 2.0], np.float32)
    found = spread(exact(value, "float32"), np.array([np.nan, 2.0], np.float32), np.array([True, False]))

    assert found["not_finite"] == 1
    assert found["histogram"] == [[0, 1, 0]]
    assert spread(exact(np.array([True]), "bool"), np.array([False]), np.array([True])) == {}
