"""Formulas in verdicts: which one explains a failure, and a backend held to the formula that is its own.

The policy `pinned` measures the formulas of each backend first (fingerprint.py). Where exactly they are known, an
output must equal one of them to the bit: sets that hold every honest formula would let a change of formula pass (N10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from opgauge.backends import BackendSpec
from opgauge.reference_engine.errors import BackendUnavailableError
from opgauge.reference_engine.types import Array, Graph, Observation, Status, Verdict

from . import fingerprint, formulas
from .formulas import Formula
from .traits import FORMULA_TRAITS

Pins = Mapping[tuple[str, str], tuple[Formula, ...]]  # by operator and output type
Row = tuple[str, str, str, str, str, str]  # backend, operator, output type and the three parts of a formula
NAMED = 3


def measure(
    specs: Sequence[BackendSpec], ops: Iterable[str], timeout_s: float, say: Callable[[str], None]
) -> tuple[Row, ...]:
    """The formulas of each backend for these operators, as a journal keeps them; `say` hears of the others."""
    wanted = [t for t in FORMULA_TRAITS if t.name.partition(" ")[0] in set(ops)]
    rows: list[Row] = []
    for spec in specs:
        try:
            card = fingerprint.card(spec, timeout_s, wanted)
        except BackendUnavailableError:
            continue  # the run itself says so
        for (op, dtype), found in card.formulas.items():
            rows += [(spec.text, op, dtype, *formula) for formula in found]
        open_ones = [
            t.name for t in wanted if (t.name.partition(" ")[0], t.name.partition(" ")[2]) not in card.formulas
        ]
        if open_ones:
            say(f"{spec.text}: no formula is known of {', '.join(open_ones)}: judged by the sets alone")
    return tuple(rows)


def pins_of(backend: str, rows: Iterable[Sequence[str]]) -> Pins:
    """The formulas of one backend."""
    found: dict[tuple[str, str], tuple[Formula, ...]] = {}
    for name, op, dtype, *parts in rows:
        if name == backend:
            found[op, dtype] = (*found.get((op, dtype), ()), Formula(*parts))
    return found


def judge(
    pins: Pins, op: str, graph: Graph, feeds: Mapping[str, Array], observation: Observation, verdict: Verdict
) -> Verdict:
    """The verdict with the formula that explains a failure, or that of a pinned backend against its own formula."""
    if not (pins or verdict.status is Status.FAIL) or len(observation.outputs) != 1:
        return verdict
    step = formulas.step_of(graph, feeds)
    if verdict.status not in (Status.PASS, Status.UNTRUSTED, Status.FAIL):
        return verdict
    if step is None or observation.outputs[0].size != step.x.size or verdict.undecided:
        return verdict
    actual = observation.outputs[0].reshape(step.x.shape).astype(np.int64)
    own = pins.get((op, step.to), ())
    return _held(step, own, actual, verdict) if own else _explained(step, actual, verdict)


def _explained(step: formulas.Step, actual: Array, verdict: Verdict) -> Verdict:
    """A failure whose every element is what a formula gives says which; it stays a failure."""
    if verdict.status is not Status.FAIL:
        return verdict
    found = [str(f) for f in formulas.explaining(step, actual)]
    if not found:
        return verdict
    more = f" or {len(found) - NAMED} more" if len(found) > NAMED else ""
    text = f"{verdict.message}; EXPLAINED by {' or by '.join(found[:NAMED])}{more}"
    return replace(verdict, message=text, detail={**verdict.detail, "formula": found})


def _held(step: formulas.Step, own: Sequence[Formula], actual: Array, verdict: Verdict) -> Verdict:
    """A result that its own formula gives passes; any other fails, however near."""
    values = {p.formula: p.value for p in formulas.predictions(step) if p.formula in own}
    wrong = {formula: value != actual for formula, value in values.items()}
    formula = min(wrong, key=lambda f: int(wrong[f].sum()), default=None)
    if formula is None:
        return verdict
    count = int(wrong[formula].sum())
    if not count:
        status = Status.PASS if verdict.status is Status.FAIL else verdict.status
        explained = "" if status is not Status.PASS else f"formula {formula}"
        message = "" if status is Status.PASS else verdict.message
        return replace(verdict, status=status, message=message, explained=explained, outside=0, detail={})
    flat = np.flatnonzero(wrong[formula])[: fingerprint.SHOWN]
    wanted = [str(int(v)) for v in values[formula].ravel()[flat]]
    got = [str(int(v)) for v in actual.ravel()[flat]]
    text = f"pinned: {count} of {actual.size} elements are not what its own formula gives ({formula})"
    text += f": got {got[0]}, expected {wanted[0]}"
    detail = {**verdict.detail, "index": [int(i) for i in flat], "got": got, "expected": wanted}
    return replace(verdict, status=Status.FAIL, message=text, explained="", outside=count, detail=detail)
