"""Certificates from recorded numbers: for each check a planted fault beside a sound control."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from opgauge import certify, latency_gate, workloads
from opgauge.certify import Certificate, Check, Limits, Ran, Word
from opgauge.cli import app
from opgauge.latency import Call, Estimate, unchanged, untold
from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.types import Finding

LIMITS = Limits()
MIB = 1 << 20
GOOD = Ran("a", 120.0, ("x", "x", "x"), {"fallback_count": 0})


def timed(ratio, width=0.02, name="a", **detail):
    """A backend that takes `ratio` times as long as the peer."""
    middle = math.log(ratio)
    return Estimate(name, middle, middle - width, middle + width, 8, 2.0, Call.SLOWER, width / 3, detail=detail)


# ---- checks


def test_conformance_is_findings_over_verdicts():
    assert certify.conformance(50, []).word is Word.PASS
    found = certify.conformance(50, [Finding("fail", "Add", "one element outside")])
    assert (found.word, found.subjects) == (Word.FAIL, ("Add: one element outside",))
    assert certify.conformance(0, []).word is Word.NOTHING


@pytest.mark.parametrize(("scale", "decibels"), [(1e-2, 40), (1e-3, 60)])
def test_psnr_is_that_of_a_known_error(scale, decibels):
    right = np.array([1.0, -1.0, 1.0, -1.0])
    assert certify.psnr_db(right, right + scale) == pytest.approx(decibels)


def test_psnr_of_equal_shifted_and_broken_outputs():
    x = np.array([1.0, np.inf, np.nan], np.float32)
    assert certify.psnr_db(x, x) == math.inf
    assert certify.psnr_db(x, np.array([1.0, np.inf, 0.0])) == -math.inf
    assert certify.psnr_db(np.ones(3), np.array([1.0, np.nan, 1.0])) == -math.inf
    assert certify.psnr_db(np.ones(3), np.ones((3, 1))) == -math.inf
    assert certify.psnr_db(np.zeros(3), np.ones(3)) == -math.inf


@pytest.mark.parametrize(("decibels", "word"), [(45.0, Word.PASS), (44.9, Word.FAIL), (-math.inf, Word.FAIL)])
def test_every_float_output_must_reach_the_limit(decibels, word):
    assert certify.quality([GOOD, replace(GOOD, name="b", psnr_db=decibels)], LIMITS).word is word


def test_integer_outputs_alone_have_no_psnr():
    ints = [replace(GOOD, psnr_db=None)]
    assert certify.quality(ints, LIMITS, float_outputs=False).word is Word.PASS
    assert certify.quality(ints, LIMITS).word is Word.NOTHING


def test_bits_that_differ_between_processes_fail():
    assert certify.stability([GOOD], LIMITS).word is Word.PASS
    assert certify.stability([GOOD, replace(GOOD, name="b", bits=("x", "y", "x"))], LIMITS).subjects == ("b",)
    assert certify.stability([replace(GOOD, bits=("x",))], LIMITS).word is Word.NOTHING


def test_memory_beyond_the_peers_or_growing_fails():
    peaks = {"peak_rss_base_bytes": 100.0, "peak_rss_new_bytes": 150.0}
    assert certify.resources([timed(1, **peaks)], {"a": 0.0}, LIMITS).word is Word.PASS
    assert certify.resources([timed(1, **{**peaks, "peak_rss_new_bytes": 210.0})], {}, LIMITS).word is Word.FAIL
    assert certify.resources([timed(1, **peaks)], {"a": 2.0 * MIB}, LIMITS).word is Word.FAIL
    assert certify.resources([], {}, LIMITS).word is Word.NOTHING


def test_a_fallback_or_a_refusal_fails():
    assert certify.fallbacks([GOOD], LIMITS).word is Word.PASS
    assert certify.fallbacks([replace(GOOD, counts={"fallback_count": 1})], LIMITS).word is Word.FAIL
    assert certify.fallbacks([GOOD, Ran("b", refused="unsupported: no kernel")], LIMITS).word is Word.FAIL
    assert "reports no count" in certify.fallbacks([replace(GOOD, counts={})], LIMITS).said


@pytest.mark.parametrize(
    ("ratio", "width", "word"),
    [
        (1.0, 0.02, Word.PASS),
        (0.5, 0.02, Word.PASS),
        (1.20, 0.02, Word.PASS),  # 83 % of the peer's speed
        (1.25, 0.02, Word.UNCLEAR),  # 80 %, with an interval across it
        (1.20, 0.10, Word.UNCLEAR),
        (1.30, 0.02, Word.FAIL),  # 77 %
        (2.0, 0.02, Word.FAIL),
    ],
)
def test_speed_is_held_against_the_limit_with_its_interval(ratio, width, word):
    assert certify.speed([timed(0.9, name="other"), timed(ratio, width)], LIMITS).word is word


def test_what_could_not_be_timed_is_told_and_equal_work_passes():
    assert certify.speed([untold("a", "its process ended")], LIMITS).word is Word.NOTHING
    assert certify.speed([timed(1.0), untold("a", "its process ended")], LIMITS).word is Word.UNCLEAR
    assert certify.speed([unchanged("a", "the same")], LIMITS).word is Word.PASS


# ---- the certificate


def certificate(*words):
    return Certificate("b", "p", tuple(Check(n, w, 1, "") for n, w in zip(certify.CHECKS, words, strict=False)))


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ([Word.PASS] * 6, Word.PASS),
        ([Word.PASS] * 5 + [Word.FAIL], Word.FAIL),
        ([Word.UNCLEAR] + [Word.PASS] * 5, Word.UNCLEAR),
        ([Word.UNCLEAR] + [Word.FAIL] * 5, Word.FAIL),
        ([Word.PASS] * 5 + [Word.NOTHING], Word.UNCLEAR),
        ([Word.NOTHING] * 6, Word.NOTHING),
    ],
)
def test_one_check_that_fails_or_cannot_be_told_certifies_nothing(words, word):
    made = certificate(*words)
    assert made.word is word
    assert json.loads(json.dumps(made.plain()))["verdict"] == str(word)


def test_limits_are_those_of_gates_toml_and_unknown_ones_are_refused():
    assert latency_gate.limits_of(certify.Limits, "certify", latency_gate.read().sections["certify"]) == LIMITS
    with pytest.raises(BaselineError, match="psnr"):
        latency_gate.limits_of(certify.Limits, "certify", {"psnr": 1})


# ---- for real, where no clock decides

CASE = "Softmax/float32/op13/input=float32:4x16:normal/@axis=i:-1/y=float32/plain/s0"
RANDOM = """
import numpy as np
import onnx.reference


def run(model, inputs):
    outputs = onnx.reference.ReferenceEvaluator(onnx.load_from_string(model)).run(None, dict(inputs))
    return [y + np.float32(%s) for y in outputs]
"""


@pytest.mark.parametrize(
    ("extra", "repeats", "least", "most"),
    [("0", True, 100, math.inf), ("np.random.default_rng().uniform() * 0.1", False, -math.inf, 45)],
)
def test_a_kernel_with_noise_of_its_own_neither_repeats_nor_has_the_quality(tmp_path, extra, repeats, least, most):
    path = tmp_path / "mine.py"
    path.write_text(RANDOM % extra)
    seen = certify.ran(workloads.workload(CASE), f"{path}:run", 2)
    if repeats:
        assert len(set(seen.bits)) == 1
        assert least <= seen.psnr_db <= most
    else:
        assert seen.refused.startswith("flaky") or (len(set(seen.bits)) == 2 and seen.psnr_db < most)


def test_a_backend_that_is_not_there_is_exit_3_and_a_peer_is_required():
    words = ["certify", "nothing_here.py:run", "--against", "cpu", "--op", "Sign", "--budget", "1"]
    assert CliRunner().invoke(app, words).exit_code == 3
    assert CliRunner().invoke(app, ["certify", "cpu"]).exit_code == 2
