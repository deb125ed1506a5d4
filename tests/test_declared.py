"""A declared policy: its words, and fixed-point requantization, which is a fault where it is not declared (N10)."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.backends import UnknownBackendError, declared, resolve
from opgauge.reference_engine import rounding
from opgauge.reference_engine.lower import lower  # noqa: F401  the primitives register with it
from opgauge.reference_engine.primitives.pointwise.conversion import exact_requantize
from opgauge.reference_engine.real import leaf
from opgauge.reference_engine.types import Policy
from opgauge.suites.faults import forms

FIXED = Policy(requant="fixed")


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ("round=away+up", Policy(round=("away", "up"))),
        ("requant=fixed,zp_inside=yes", Policy(requant="fixed", zp_inside=True)),
        ("div_ulp=2.5,ftz=yes,q_div=recip", Policy(div_ulp=2.5, ftz=True, q_div="recip")),
    ],
)
def test_words_become_a_policy_and_back(words, policy):
    assert declared.parse(words) == policy
    assert declared.parse(str(policy)) == policy


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "NAME=VALUE"),
        ("round", "NAME=VALUE"),
        ("rounding=up", "name among round"),
        ("round=sideways", "modes among even"),
        ("ftz=1", "one of yes, no"),
        ("div_ulp=nan", "0.5 to 16"),
        ("div_ulp=much", "could not convert"),
        ("round=up,round=away", "given twice"),
    ],
)
def test_a_word_that_means_nothing_is_named(words, says):
    with pytest.raises(declared.PolicyError, match=says):
        declared.parse(words)


def test_the_policy_stays_in_the_name_and_out_of_the_deviations_key():
    spec = resolve("mine.py:run~round=away")
    assert (spec.text, spec.name, spec.target) == ("mine.py:run~round=away", "mine.py:run", "mine.py:run")
    assert spec.policy == Policy(round=("away",))
    assert resolve("onnxruntime:level=basic~requant=fixed").name == "onnxruntime"
    assert resolve("mine.py:run").policy == Policy()
    with pytest.raises(declared.PolicyError):
        resolve("mine.py:run~rounding")
    with pytest.raises(UnknownBackendError):
        resolve("mine.py:run~")
    assert resolve("wgpu~round=up").policy == Policy(round=("up",), ftz=True)


@pytest.mark.parametrize("text", ["~/kernels/mine.py:run", "mine.py:run@~/venv", r"C:\PROGRA~1\mine.py:run"])
def test_a_tilde_of_a_path_declares_nothing(text):
    spec = resolve(text)
    assert (spec.text, spec.name, spec.policy) == (text, text, Policy())
    said = resolve(f"{text}~round=away")
    assert (said.name, said.policy) == (text, Policy(round=("away",)))
    assert said.environment == spec.environment


def requantized(acc: np.ndarray, multiplier: float, policy: Policy) -> tuple[np.ndarray, np.ndarray]:
    exact = exact_requantize(
        leaf(acc.astype(np.int32)[None, None], "int32"),
        leaf(np.asarray([multiplier], np.float32), "float32"),
        leaf(np.zeros(1, np.int8), "int8"),
        to="int8",
        policy=policy,
    )
    assert exact.lo is not None
    assert exact.hi is not None
    return exact.lo[0, 0], exact.hi[0, 0]


def share_outside(kernel, policy: Policy) -> float:
    """Of sums whose results do not saturate, over multipliers from 2^-12 to 1."""
    rng, outside, all_of = np.random.default_rng(3), 0, 0
    for multiplier in np.exp2(rng.uniform(-12, 0, 200)).astype(np.float32).tolist():
        acc = rng.integers(-int(120 / multiplier), int(120 / multiplier) + 1, 500)
        lo, hi = requantized(acc, multiplier, policy)
        one = np.ones((), np.float32)
        y = kernel(acc.astype(np.int64), one * np.float32(multiplier), one, one)
        outside += int(((y < lo) | (y > hi)).sum())
        all_of += acc.size
    return outside / all_of


def test_two_roundings_are_inside_where_declared_and_outside_where_not():
    assert share_outside(forms.doubled_high, FIXED) == 0.0
    assert share_outside(forms.fixed_point, FIXED) == 0.0
    assert share_outside(forms.doubled_high, Policy()) > 1e-3


def test_a_declaration_of_fixed_point_does_not_cover_truncation():
    def truncated(acc, a, b, y):
        return np.trunc(forms.in_double(acc, a, b, y))

    assert share_outside(truncated, FIXED) > 0.2


def test_the_golden_vector_of_two_roundings():
    acc, one = np.asarray([13]), np.float32(1)
    assert forms.doubled_high(acc, np.float32(0.25), one, one).tolist() == [4]  # 3.25, 6.5 -> 7, 3.5 -> 4
    assert [x.tolist() for x in requantized(acc, 0.25, FIXED)] == [[3], [4]]
    assert [x.tolist() for x in requantized(acc, 0.25, Policy())] == [[3], [3]]
    assert rounding.fixed_point(np.asarray(3.25), np.asarray(0.25)) == pytest.approx(0.25, abs=1e-8)
