"""Chains that optimizers rewrite: what each link is, and that a wrong rewrite leaves the set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from opgauge import generate, model
from opgauge.oracles import judge
from opgauge.reference_engine.case import id_of, parse_id
from opgauge.reference_engine.errors import CaseError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Case, Exact, Observation, Policy, Status
from opgauge.suites import cases, chains

ROWS = {row.op: row for row in cases() if row.op in chains.TEMPLATES}


def drawn(op: str, budget: int) -> list[Case]:
    found: list[Case] = []
    generate.explore(ROWS[op], budget, 3, lambda text, case: found.append(case))
    return found


def sets(case: Case) -> tuple[Exact, ...]:
    data, inputs = model.build(case)
    return evaluate(lower(data, inputs), inputs)


def changed(case: Case, name: str, value) -> Case:
    return replace(case, attrs=tuple((k, value if k == name else v) for k, v in case.attrs))


def attr(case: Case, name: str):
    return dict(case.attrs).get(name)


@pytest.mark.parametrize("word", chains.LINKS)
@pytest.mark.parametrize("shape", [(3,), (2, 3, 4)])
def test_every_link_leaves_what_goes_through_it(word, shape):
    x = "x".join(map(str, shape))
    case, _ = parse_id(f"opgauge::Chain.Links/float32/op13/x=float32:{x}:normal/@links=S:{word}/y=float32/plain/s7")
    _, inputs = model.build(case)
    np.testing.assert_array_equal(sets(case)[0].value, inputs["x"])


def test_a_link_that_changes_something_is_outside():
    case, _ = parse_id("opgauge::Chain.Links/float32/op13/x=float32:3:1,2,3/@links=S:MulOne,Neg/y=float32/plain/s7")
    (exact,) = sets(case)
    for y, status in (([1, 2, 3], Status.PASS), ([-1, -2, -3], Status.FAIL), ([2, 4, 6], Status.FAIL)):
        seen = Observation(Status.PASS, (np.asarray(y, np.float32),))
        assert judge([exact], seen, Policy()).status is status


@pytest.mark.parametrize("op", chains.TEMPLATES)
def test_every_drawn_case_is_legal_and_its_id_says_it_all(op):
    for case in drawn(op, 25):
        assert parse_id(id_of(case, "label"))[0] == case
        assert all(e.value.size for e in sets(case))


def seen_faults(op: str, applies, wrong) -> tuple[int, int]:
    """(draws to which the wrong rewrite applies, those of them where it leaves the set)"""
    tried = caught = 0
    for case in drawn(op, 60):
        if not applies(case):
            continue
        tried += 1
        made = tuple(e.value for e in sets(wrong(case)))
        caught += judge(sets(case), Observation(Status.PASS, made), Policy()).status is Status.FAIL
    return tried, caught


@pytest.mark.parametrize(
    ("op", "applies", "wrong"),
    [
        (
            "Chain.Conv.AveragePool",
            lambda c: attr(c, "pool.count_include_pad") and attr(c, "pool.pads"),
            lambda c: changed(c, "pool.count_include_pad", 0),
        ),
        (
            "Chain.Pad.Conv",
            lambda c: attr(c, "pad.mode") == "reflect" and any(c.args[1].values),
            lambda c: changed(c, "pad.mode", "edge"),
        ),
        (
            "Chain.MatMul.Add",
            lambda c: any(a.name == "scale" for a in c.args),
            lambda c: replace(c, args=tuple(replace(a, values=(1.0,)) if a.name == "scale" else a for a in c.args)),
        ),
        (
            "Chain.Conv.Add",
            lambda c: attr(c, "act") == "LeakyRelu",
            lambda c: changed(c, "act", "Relu"),
        ),
    ],
    ids=["padding counted", "padding of another mode", "scale dropped", "slope dropped"],
)  # fmt: skip
def test_a_wrong_rewrite_is_drawn_and_leaves_the_set(op, applies, wrong):
    tried, caught = seen_faults(op, applies, wrong)
    assert tried >= 3
    assert caught >= tried - tried // 4  # a window or an edge may hold nothing that tells the two apart
    assert seen_faults(op, applies, lambda c: c)[1] == 0


def test_an_id_that_names_no_link_is_a_typed_error():
    case, _ = parse_id("opgauge::Chain.Links/float32/op13/x=float32:3:1,2,3/@links=S:Explode/y=float32/plain/s7")
    with pytest.raises(CaseError, match=r"Chain.Links.*Explode"):
        model.build(case)
