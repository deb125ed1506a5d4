"""Findings: each failing record, each illegal case of ours, each operator that proves too little."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opgauge import gate
from opgauge.backends import informative
from opgauge.reference_engine.types import FINDINGS, Record, Status

GOOD = Record(
    "Relu/float32/op13/X=float32:2:normal/y=float32/plain/s1",
    "operators",
    "Relu",
    "float32",
    "plain",
    "cpu",
    Status.PASS,
    elements=10,
)


def test_passes_and_refusals_are_no_findings():
    quiet = [GOOD, *(replace(GOOD, status=s) for s in (Status.UNSUPPORTED, Status.DEVIATION, Status.UNAVAILABLE))]
    assert gate.findings(quiet) == []


@pytest.mark.parametrize("status", sorted(FINDINGS | {Status.INVALID}))
def test_every_failing_status_is_a_finding_with_a_line_that_reproduces_it(status):
    (found,) = gate.findings([GOOD, replace(GOOD, status=status, message="why")])
    assert found.rule == status
    assert found.repro == f"opgauge repro '{GOOD.case}' --backend 'cpu'"
    assert "why" in found.message


def test_an_informative_backend_has_no_findings_unless_it_alone_is_asked_for():
    wrong = replace(GOOD, backend="onnx-reference==1.21.0", status=Status.FAIL)
    beside, alone = informative([wrong.backend, "cpu"]), informative([wrong.backend])
    assert (beside, alone) == ({wrong.backend}, set())
    assert informative(["mine.py:run", "nobody knows", "exact~round=nonsense"]) == set()
    assert gate.findings([GOOD, wrong], beside) == []
    assert [f.rule for f in gate.findings([wrong], alone)] == [Status.FAIL]


@pytest.mark.parametrize(
    ("vacuous", "profile", "found"), [(2, "plain", 0), (3, "plain", 1), (3, "special", 0), (11, "special", 1)]
)
def test_too_many_passes_that_prove_nothing_are_a_finding(vacuous, profile, found):
    statuses = [Status.UNTRUSTED] * vacuous + [Status.PASS] * (100 - vacuous)
    records = [replace(GOOD, case=f"{i}", profile=profile, status=s) for i, s in enumerate(statuses)]
    assert len(gate.findings(records)) == found


def test_undecided_elements_count_by_their_share():
    half = [replace(GOOD, case=f"half {i}", undecided=5) for i in range(10)]
    whole = [replace(GOOD, case=f"whole {i}") for i in range(400)]
    assert [f.rule for f in gate.findings(half + whole[:60])] == ["untrusted"]
    assert gate.findings(half + whole) == []


def test_a_shrunk_case_is_the_one_to_reproduce():
    record = replace(GOOD, status=Status.FAIL, detail={"smaller": {"case": "Relu/smaller"}})
    assert "Relu/smaller" in gate.findings([record])[0].repro


def versions(old: list[Status], new: list[Status], other: str = "onnxruntime") -> list[Record]:
    return [
        replace(GOOD, case=f"{GOOD.case}{i}", backend=backend, status=status, message="no" if status != "pass" else "")
        for backend, statuses in (("onnxruntime==1.26.0", old), (other, new))
        for i, status in enumerate(statuses)
    ]


def test_a_case_that_one_version_refuses_and_another_takes_is_a_finding_of_the_one_that_refuses():
    no, yes = Status.UNSUPPORTED, Status.PASS
    (found,) = gate.findings(versions([yes, no, no], [yes, yes, no]))
    assert (found.rule, found.subject) == ("unsupported", "Relu/float32 on onnxruntime==1.26.0")
    assert "refuses 1 of 3 cases that onnxruntime takes: no" in found.message
    assert f"{GOOD.case}1" in found.repro


def test_opsets_newer_than_a_version_are_no_finding_of_it():
    no, yes = Status.UNSUPPORTED, Status.PASS
    records = versions([yes, yes, no], [yes, yes, yes])

    def at(*opsets):
        return [replace(r, case=r.case.replace("/op13/", f"/op{o}/")) for r, o in zip(records, opsets * 2, strict=True)]

    assert gate.findings(at(13, 21, 22)) == []
    assert [f.rule for f in gate.findings(at(13, 21, 20))] == ["unsupported"]
    assert [f.rule for f in gate.findings(at(13, 22, 22))] == ["unsupported"]


def test_what_a_version_does_not_have_at_all_or_another_runtime_takes_is_no_finding():
    no, yes = Status.UNSUPPORTED, Status.PASS
    assert gate.findings(versions([no, no], [yes, yes])) == []
    assert gate.findings(versions([yes, no], [yes, no])) == []
    assert gate.findings(versions([yes, no], [yes, yes], other="cpu")) == []
