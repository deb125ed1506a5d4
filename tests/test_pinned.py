"""Formulas in verdicts: a failure that a formula explains says so, and a pinned backend must keep to its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from opgauge import check, cli, formulas, generate, pinned, traits
from opgauge.oracles import judge
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Case, Observation, Policy, Status, Verdict
from opgauge.suites import cases

M = "acc * ((sa * sb) / sy)"
EVEN = formulas.Formula(M, "half to even", "outside")
AWAY = formulas.Formula(M, "half away from zero", "outside")
LAST = formulas.Formula("(acc * (sa * sb)) / sy", "half to even", "outside")
ROW = next(row for row in cases() if row.name == "QLinearMatMul/uint8,int8")


def verdict_on(subject: check.Subject, formula: formulas.Formula, pins: pinned.Pins, change: int) -> Verdict:
    graph = lower(subject.model, subject.inputs)
    step = formulas.step_of(graph, subject.inputs)
    assert step is not None
    made = next(p.value for p in formulas.predictions(step) if p.formula == formula)
    (exact,) = evaluate(graph, subject.inputs)
    output = made.reshape(exact.value.shape).copy()
    output.ravel()[0] += change * (1 if output.ravel()[0] < 200 else -1)
    seen = Observation(Status.PASS, (output.astype(exact.value.dtype),))
    return pinned.judge(pins, subject.op, graph, subject.inputs, seen, judge((exact,), seen, Policy()))


def verdicts(formula: formulas.Formula, pins: pinned.Pins, change: int = 0, budget: int = 12) -> list[Verdict]:
    """What is said of a backend that follows the formula, its first element moved by `change`."""
    found: list[Verdict] = []
    generate.explore(
        ROW, budget, 0, lambda _, c: found.append(verdict_on(check.subject_of(c, ROW.label), formula, pins, change))
    )
    return found


def test_a_failure_that_a_formula_explains_names_it_and_stays_a_failure() -> None:
    failed = [v for v in verdicts(AWAY, {}) if v.status is Status.FAIL]

    assert failed
    for verdict in failed:
        assert "; EXPLAINED by " in verdict.message
        assert str(AWAY) in verdict.detail["formula"]


def test_a_failure_that_no_formula_explains_says_nothing_of_formulas() -> None:
    failed = [v for v in verdicts(EVEN, {}, change=40) if v.status is Status.FAIL]

    assert failed
    assert not any("EXPLAINED" in v.message or "formula" in v.detail for v in failed)


def test_a_backend_pinned_to_its_own_formula_passes_by_it() -> None:
    found = verdicts(AWAY, {("QLinearMatMul", "uint8"): (AWAY,)})

    assert {v.status for v in found} <= {Status.PASS, Status.UNTRUSTED}
    assert {v.explained for v in found if v.status is Status.PASS} == {f"formula {AWAY}"}


def test_a_pinned_backend_fails_where_the_sets_would_let_it_pass() -> None:
    """The scales that tell formulas apart: another order of the factors is honest, but not what was measured."""
    trait = next(t for t in traits.FORMULA_TRAITS if t.name == "QLinearMatMul uint8")
    pins = {("QLinearMatMul", "uint8"): (EVEN,)}
    within, held = [], []
    for text in trait.cases:
        subject = check.subject_of(parse_id(text)[0], ROW.label)
        within.append(verdict_on(subject, LAST, {}, 0))
        held.append(verdict_on(subject, LAST, pins, 0))
    changed = [b for a, b in zip(within, held, strict=True) if a.status is not b.status]

    assert all(v.status is Status.PASS for v in within)
    assert changed
    assert all(v.message.startswith("pinned: ") and f"({EVEN})" in v.message for v in changed)


def test_other_operators_and_types_are_not_pinned() -> None:
    for key in (("QLinearConv", "uint8"), ("QLinearMatMul", "int8")):
        assert verdicts(AWAY, {key: (EVEN,)}, budget=4) == verdicts(AWAY, {}, budget=4)


def test_rows_of_a_journal_become_pins_again() -> None:
    rows = [("a", "QGemm", "uint8", *EVEN), ("a", "QGemm", "uint8", *LAST), ("b", "QGemm", "uint8", *AWAY)]

    assert pinned.pins_of("a", [list(row) for row in rows]) == {("QGemm", "uint8"): (EVEN, LAST)}
    assert pinned.pins_of("c", rows) == {}


def test_a_sum_beyond_the_accumulator_has_no_step() -> None:
    case = next(iter(_some(1)))
    subject = check.subject_of(case, ROW.label)
    graph = lower(subject.model, subject.inputs)

    assert formulas.step_of(graph, subject.inputs) is not None
    assert formulas.step_of(replace(graph, outputs=(*graph.outputs, graph.outputs[0])), subject.inputs) is None


def _some(budget: int) -> list[Case]:
    found: list[Case] = []
    generate.explore(ROW, budget, 0, lambda _, case: found.append(case))
    return found


def test_fused_multiply_add_rounds_once() -> None:
    ties = np.array([1 + 2**-12], np.float32)
    less = np.array([-(1 + 2.0**-11)], np.float32)

    assert formulas.fma(ties, ties, less)[0] == np.float32(2.0**-24)
    assert (ties * ties + less)[0] == 0
    # 1 + 2^-11 + 2^-24 - 2^-60: to float64 it is a tie of float32 and would go to the even neighbour above.
    assert formulas.fma(ties, ties, np.array([-(2.0**-60)], np.float32))[0] == np.float32(1 + 2.0**-11)


def test_an_unknown_policy_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "--policy", "pined", "--op", "QGemm"])

    assert ended.value.code == 2
    assert "did you mean pinned" in capsys.readouterr().err
