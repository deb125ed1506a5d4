"""A failing case becomes small, keeps its data, and fails for the same reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opgauge import check, minimise, suites
from opgauge.backends import resolve
from opgauge.backends.result import CONTRADICTED
from opgauge.client import Client
from opgauge.reference_engine.case import id_of, parse_id
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Arg, Case, Record, Status, Verdict
from opgauge.suites.profiles import tensor

FAULTS = Path(suites.__file__).parent / "faults" / "__init__.py"


def legal(case: Case) -> bool:
    subject = check.subject_of(case, "x")
    lower(subject.model, subject.inputs)
    return True


def product(m: int = 24, k: int = 40, n: int = 40) -> Case:
    args = (Arg("A", "float32", (m, k), "normal"), Arg("B", "float32", (k, n), "normal"))
    return Case("MatMul", "", 13, args, ("float32",), (), 7)


def test_sizes_fall_to_the_least_that_fails_although_two_are_equal():
    found = minimise.minimise(product(), lambda c: c.args[0].shape[-1] >= 5 and legal(c), 60.0)

    assert [a.shape for a in found.args] == [(1, 5), (5, 1)]
    assert parse_id(id_of(found, "float32")) == (found, "float32")


def test_the_element_that_fails_is_kept_bit_for_bit():
    case = Case("Relu", "", 13, (Arg("X", "float32", (6, 50), "normal"),), ("float32",), (), 3)
    largest = tensor(case.args[0], 3, 0).max()

    def same(candidate: Case) -> bool:
        return legal(candidate) and bool((tensor(candidate.args[0], candidate.seed, 0) == largest).any())

    found = minimise.minimise(case, same, 60.0)
    assert minimise.size(found) == 1
    assert tensor(found.args[0], 0, 0).ravel()[0] == largest


def test_attributes_and_optional_inputs_go_where_they_are_not_needed():
    args = (
        Arg("X", "float32", (2, 3, 9, 9), "normal"),
        Arg("W", "float32", (4, 3, 3, 3), "normal"),
        Arg("B", "float32", (4,), "normal"),
    )
    attrs = (("kernel_shape", (3, 3)), ("pads", (1, 1, 1, 1)), ("strides", (2, 1)))
    case = Case("Conv", "", 13, args, ("float32",), attrs, 1)

    found = minimise.minimise(case, lambda c: dict(c.attrs).get("strides", (1,))[0] == 2 and legal(c), 60.0)
    assert dict(found.attrs) in ({"strides": (2, 1)}, {"strides": (2, 0)})
    assert len(found.args) == 2
    assert minimise.size(found) <= 4


def test_a_case_that_no_change_keeps_failing_stays_itself():
    assert minimise.minimise(product(2, 2, 2), lambda c: False, 5.0) == product(2, 2, 2)


def failing(message: str = "", status: Status = Status.FAIL, **detail) -> Verdict:
    return Verdict(status, message, detail=detail)


OUTSIDE = "output 0: 2 of 4 elements outside; first at [0]: got 1, expected 2"


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        (failing(OUTSIDE, got=["1"], expected=["2"]), "fail: value"),
        (failing(OUTSIDE, got=["nan"], expected=["2"]), "fail: NaN"),
        (failing(OUTSIDE, got=["1"], expected=["NaN"]), "fail: no NaN"),
        (failing("output 0 is int32, expected int64", got="int32", expected="int64"), "fail: type int32"),
        (failing("output 0 has shape [1], expected []", got=[1], expected=[]), "fail: shape"),
        (failing("the runtime infers another shape", **{CONTRADICTED: 1}), "fail: inferred shape"),
        (failing("returned 2 outputs, expected 1"), "fail: count"),
        (failing("raised KeyError: 'x'"), "fail: raised KeyError"),
        (failing("signal SIGSEGV in kernel", Status.CRASH), "crash: SIGSEGV"),
        (failing("", Status.UNWRITTEN), "unwritten"),
        (failing("", Status.PASS), ""),
        (failing("", Status.INVALID), ""),
    ],
)
def test_the_symptom_says_what_kind_of_thing_was_wrong(verdict, word):
    assert minimise.symptom(verdict) == word


def test_another_reason_is_not_the_same():
    def value(wider: str) -> Verdict:
        return failing(OUTSIDE, got=["1"], expected=["2"], wider=wider)

    up, both, none = (
        "would pass with round=up",
        "would pass with round=up or zp_inside",
        "no rounding policy accepts it",
    )
    assert minimise.alike(value(up), value(both))
    assert not minimise.alike(value(both), value(up))
    assert minimise.alike(value(none), value(none))
    assert not minimise.alike(value(none), value(up))
    assert not minimise.alike(value(up), failing("", Status.PASS))


@pytest.mark.parametrize(("fault", "op"), [("P01", "QuantizeLinear"), ("M01", "Transpose")])
def test_a_run_tells_a_smaller_case_that_fails_again(fault, op, monkeypatch):
    monkeypatch.setattr(check, "SHRINK_S", 200.0)  # the machine's speed decides nothing here
    (row,) = [r for r in suites.cases() if r.op == op and r.label in ("float32,uint8", "float32")]
    records: list[Record] = []
    with Client(resolve(f"faults:{FAULTS}:{fault}")) as client:
        check.check_row(row, 10, 0, [client], records.append)
        first = next(r for r in records if r.status is Status.FAIL)
        smaller = first.detail["smaller"]["case"]
        case, label = parse_id(smaller)
        again = check.check(check.subject_of(case, label), [client])[0]

    assert again.elements <= minimise.FEW
    assert minimise.alike(first, again)
    assert json.dumps(first.detail["smaller"])
