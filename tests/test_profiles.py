"""Data profiles: the same id is the same bits, and each profile keeps the promise in its name."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import CaseError
from opgauge.reference_engine.types import Arg
from opgauge.suites import profiles

# (argument, hash of its bytes for seed 7 and index 2): a change here changes what every saved case id means.
PINNED = (
    (Arg("x", "uint8", (257,), "uniform"), "fc84d5076c0bc32e"),
    (Arg("x", "float32", (33, 7), "uniform"), "295eabc1aedd88e5"),
    (Arg("x", "float64", (33, 7), "normal", (2.0, 1.0)), "f1dbbf3857bc1770"),
    (Arg("x", "float16", (65,), "normal"), "3c226beb1df16d93"),
    (Arg("x", "float32", (65,), "wide", (-6, 6)), "b03d4648f32d146d"),
    (Arg("x", "float32", (65,), "halves", (0.1, -20, 20)), "d989fed73b5044dd"),
    (Arg("x", "float32", (65,), "special"), "27714a1dd388835b"),
    (Arg("x", "float32", (9, 8), "lanes", (0, 2.0)), "acc3a2f3ad60a26d"),
    (Arg("x", "int8", (65,), "near", (-128, 12)), "d39832f2e21902ef"),
    (Arg("x", "float32", (17,), "spread", (0.01, 3)), "4596c12a52c5db75"),
    (Arg("x", "int64", (33,), "index", (5,)), "a5954062c71b6d09"),
    (Arg("x", "bool", (33,), "bool"), "198eafc11122542e"),
)


def digest(arg: Arg, seed: int = 7) -> str:
    array = profiles.tensor(arg, seed, 2)
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(("arg", "expected"), PINNED, ids=lambda v: v.profile if isinstance(v, Arg) else v)
def test_a_case_id_means_the_same_bits_for_ever(arg, expected):
    assert digest(arg) == expected
    assert digest(arg, seed=8) != expected


def draw(dtype: str, profile: str, *params: float, shape: tuple[int, ...] = (4000,)) -> np.ndarray:
    array = profiles.tensor(Arg("x", dtype, shape, profile, params), 3, 0)
    assert array.shape == shape
    assert dt.word_of(array.dtype) == dtype
    return array


def test_normal_numbers_are_normal():
    x = draw("float64", "normal", 3.0, 1.0)

    assert abs(x.mean() - 1.0) < 0.15
    assert abs(x.std() - 3.0) < 0.1
    assert abs((np.abs(x - 1.0) < 3.0).mean() - 0.683) < 0.03


def test_uniform_integers_reach_both_ends():
    for dtype in ("int8", "uint8"):
        assert (draw(dtype, "uniform").min(), draw(dtype, "uniform").max()) == dt.limits(dtype)


def test_sums_of_whole_numbers_do_not_depend_on_the_order():
    x = draw("float32", "integers", 8)

    assert np.add.reduce(x, dtype=np.float32) == np.add.reduce(x[::-1], dtype=np.float32) == x.astype(np.int64).sum()


def test_halves_are_ties_and_their_neighbours():
    x, scale = draw("float32", "halves", 0.25, -9, 9), np.float32(0.25)
    distance = np.abs(np.abs(x / scale % 1) - 0.5)

    assert 0.4 < (distance == 0).mean() < 0.6
    assert 0 < distance.max() < 1e-5


def test_special_values_are_those_of_the_mask():
    x = draw("float32", "special", 1, 3)
    y = draw("float32", "special", 2 + 8)

    assert np.isnan(x).any()
    assert not np.isinf(x).any()
    assert (y == np.inf).any()
    assert not np.isnan(y).any()
    assert not (y == -np.inf).any()
    assert (np.signbit(y) & (y == 0)).any()


def test_lanes_hold_masked_rows_along_their_axis():
    x = draw("float32", "lanes", 1, 1.0, shape=(50, 6, 3))
    masked = (x == -np.inf).all(axis=1)

    assert masked.any()
    assert not masked.all()
    assert (x == np.inf).sum(axis=1).max() == 1


def test_a_sparse_tensor_is_mostly_its_zero_point():
    assert 0.8 < (draw("uint8", "sparse", 128) == 128).mean() < 0.95


def test_indices_are_legal_and_count_from_both_ends():
    assert sorted(set(draw("int64", "index", 3).tolist())) == [-3, -2, -1, 0, 1, 2]


def test_negative_data_have_no_zero():
    assert draw("float32", "negative").max() < 0
    assert draw("int8", "negative").max() < 0


def test_channel_scales_stay_within_their_octaves_and_differ():
    x = draw("float32", "spread", 0.01, 3, shape=(64,))

    assert len(set(x.tolist())) > 32
    assert 0.01 / 8 <= x.min() < 0.01 < x.max() < 0.08
    assert set(draw("float32", "pow2", -2, 0).tolist()) == {0.25, 0.5, 1.0}


@pytest.mark.parametrize("profile", [p for p in profiles.PROFILES if p not in ("index", "bool")])
def test_no_profile_fails_on_an_empty_tensor(profile):
    params = {
        "near": (0, 1),
        "grid": (0.5, 0, 1),
        "halves": (0.5, 0, 1),
        "pow2": (0, 1),
        "scales": (0, 1),
        "spread": (1.0, 1),
        "fill": (1,),
        "lanes": (1, 1.0),
    }
    dtype = "int8" if profile in ("extremes", "near") else "float32"

    assert draw(dtype, profile, *params.get(profile, ()), shape=(3, 0)).size == 0


@pytest.mark.parametrize(
    "arg",
    [
        Arg("x", "int8", (3,), "gaussian"),
        Arg("x", "int8", (3,), "near", (1,)),
        Arg("x", "float32", (3,), "extremes"),
        Arg("x", "int8", (3,), values=(1, 2)),
        Arg("x", "uint8", (1,), values=(-1,)),
        Arg("x", "int32", (1,), values=(float("nan"),)),
    ],
)
def test_data_that_cannot_be_made_is_a_typed_error(arg):
    with pytest.raises(CaseError, match="x: "):
        profiles.tensor(arg, 0, 0)


def test_literal_elements_keep_their_bits():
    x = profiles.tensor(Arg("x", "float32", (4,), values=(-0.0, float("inf"), 0.1, 3)), 0, 0)

    assert x.tobytes() == np.array([-0.0, np.inf, 0.1, 3], np.float32).tobytes()
