"""Planted faults are caught, honest variants are not flagged, and the count of both is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from opgauge import sensitivity
from opgauge.reference_engine.errors import OpgaugeError
from opgauge.suites import cases

PLANTED = Path(__file__).parent / "faults" / "planted.py"


@pytest.fixture(scope="module")
def outcomes() -> list[sensitivity.Outcome]:
    return list(sensitivity.measure(PLANTED, cases(), 40))


def test_every_planted_fault_is_caught(outcomes):
    missed = [o.id for o in outcomes if not o.benign and not o.caught]
    assert not missed
    assert {o.id for o in outcomes if not o.benign} == {"T1", "T2", "T3", "T4"}


def test_no_honest_variant_is_flagged(outcomes):
    assert {o.id for o in outcomes if o.benign} == {"H1", "H2"}
    assert not [(o.id, o.message) for o in outcomes if o.benign and o.caught]


def test_the_summary_counts_what_it_says(outcomes):
    summary = sensitivity.summary(outcomes, sensitivity.catalogue(PLANTED))
    assert (summary["applicable"], summary["caught"]) == (4, 4)
    assert summary["classes"]["numeric"] == {"applicable": 2, "caught": 2}
    assert summary["benign_flagged"] == summary["missed"] == summary["not_applicable"] == []


def test_a_selection_narrows_operators_and_faults():
    only = list(sensitivity.measure(PLANTED, cases(), 5, only=["T2"]))
    assert [o.id for o in only] == ["T2"]
    assert not list(sensitivity.measure(PLANTED, cases(), 5, ops=["Gemm"]))


def test_a_module_that_is_not_there_is_named(tmp_path):
    with pytest.raises(OpgaugeError, match="nowhere"):
        sensitivity.catalogue(tmp_path / "nowhere.py")
    broken = tmp_path / "broken.py"
    broken.write_text("import not_a_module_at_all\n")
    with pytest.raises(OpgaugeError, match="does not load"):
        sensitivity.catalogue(broken)
