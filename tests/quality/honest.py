"""How often does the gauge accuse an honest kernel? Judges honest variants by the million; prints counts and alarms.

    python tests/quality/honest.py --judged 1000000

A case is drawn and evaluated once and judged with every variant that knows its form; the data of a drawn case are
taken from several seeds, each a case of its own. A variant that does not know a form counts for nothing.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from opgauge import check, generate, suites
from opgauge.oracles import inside_set, judge
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import ModelError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Array, Case, Exact, Observation, Policy, Status
from opgauge.suites.faults import benign
from opgauge.suites.faults.planted import Call, Outputs, Planted, Skip, honest, parse

SEEDS = 8  # data seeds of one drawn case
BUDGET = 24  # drawn cases of one task, fewer where few variants share the reference
MANY = 10
VARIANTS: tuple[tuple[Planted, Policy], ...] = (
    *((v, Policy()) for v in (*benign.BENIGN, *benign.ORDERS)),
    *benign.DECLARED,
)


class Tally(NamedTuple):
    """What one task saw: verdicts by variant and status, cases, alarms with the line that reproduces them."""

    verdicts: Counter[tuple[str, str]]
    cases: int
    elements: int
    alarms: list[str]


def by_operator() -> dict[str, list[tuple[Planted, Policy]]]:
    found: dict[str, list[tuple[Planted, Policy]]] = defaultdict(list)
    for variant, policy in VARIANTS:
        for op in variant.ops:
            found[op].append((variant, policy))
    return found


def outputs_of(variant: Planted, call: Call, exacts: tuple[Exact, ...]) -> Outputs:
    """Raises: Skip, ModelError."""
    changed = variant.before(call)
    right = variant.inside is honest
    return variant.after(changed, [e.value for e in exacts] if right else variant.inside(changed))


def accepted(exacts: tuple[Exact, ...], outputs: Sequence[Array]) -> bool:
    """The oracle's own test of every element, without the counts that a verdict reports besides."""
    return len(exacts) == len(outputs) and all(
        dt.WORD.get(y.dtype) == e.dtype
        and y.shape == e.value.shape
        and bool((inside_set(e, y) if e.free is None else inside_set(e, y) | e.free).all())
        for e, y in zip(exacts, outputs, strict=True)
    )


def judge_case(case: Case, label: str, variants: list[tuple[Planted, Policy]], into: Tally) -> int:
    """Verdicts on one case; how many of them."""
    subject = check.subject_of(case, label)
    try:
        graph = lower(subject.model, subject.inputs)
        call = parse(subject.model, subject.inputs)
        sets = {policy: evaluate(graph, subject.inputs, policy) for policy in {p for _, p in variants}}
    except (ModelError, Skip):
        return 0
    count = 0
    for variant, policy in variants:
        try:
            seen = Observation(Status.PASS, tuple(outputs_of(variant, call, sets[policy])))
        except (Skip, ModelError):
            continue
        count += 1
        if accepted(sets[policy], seen.outputs):
            into.verdicts[variant.id, "pass"] += 1
            continue
        verdict = judge(sets[policy], seen, policy)
        into.verdicts[variant.id, str(verdict.status)] += 1
        if verdict.status is Status.FAIL:
            into.alarms.append(
                f"{variant.id} {variant.title}: {subject.case}: {verdict.message} {verdict.detail.get('largest_error')}"
            )
    return count


def perform(name: str, seed: int, cap: int) -> Tally:
    """One row, some of its cases, each with several seeds."""
    (row,) = [r for r in suites.cases() if r.name == name]
    variants = by_operator()[row.op]
    # Rows on which no variant knows the form are found out by their first cases.
    total = Tally(Counter(), 0, 0, [])
    cases = elements = barren = 0

    def visit(text: str, case: Case) -> None:
        nonlocal cases, elements, barren
        if barren >= 6 and not total.verdicts:
            return
        drawn = any(arg.profile for arg in case.args)
        for more in range(SEEDS if drawn else 1):
            other = replace(case, seed=(case.seed + more * 7919) % 2**31)
            judged = judge_case(other, row.label, variants, total)
            cases += judged > 0
            elements += judged
            barren += judged == 0
            if not judged:
                break

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        generate.explore(row, cap, seed, visit)
    return total._replace(cases=cases, elements=elements)


def useful_rows() -> list[str]:
    """Rows on which some variant computes something."""
    names = [r.name for r in suites.cases() if r.op in by_operator()]
    return [n for n in names if perform(n, 999, 2).verdicts]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judged", type=int, default=100_000, help="verdicts wanted")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--out", default="", help="a file for the figures, renewed as they grow")
    asked = parser.parse_args()
    started = time.monotonic()
    verdicts: Counter[tuple[str, str]] = Counter()
    cases, alarms, seed = 0, [], asked.seed

    def report(final: bool) -> None:
        status: Counter[str] = Counter()
        for (_, word), n in verdicts.items():
            status[word] += n
        text = {
            "judged": verdicts.total(), "cases": cases, "variants": len({v for v, _ in verdicts}),
            "alarms": len(alarms), "status": dict(status), "seconds": round(time.monotonic() - started),
            "first_seed": asked.seed, "next_seed": seed, "by_variant": _table(verdicts), "alarm_list": alarms[:200],
        }  # fmt: skip
        if asked.out:
            Path(asked.out).write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
        if final:
            print(json.dumps({k: v for k, v in text.items() if k != "by_variant"}, indent=1))

    with concurrent.futures.ProcessPoolExecutor(asked.jobs) as pool:
        rows = useful_rows()
        many = by_operator()
        ops = {r.name: r.op for r in suites.cases()}
        budgets = [BUDGET if len(many[ops[name]]) >= MANY else BUDGET // 6 for name in rows]
        print(f"{len(rows)} rows, {len(VARIANTS)} variants, {asked.jobs} processes", flush=True)
        while verdicts.total() < asked.judged:
            for found in pool.map(perform, rows, [seed] * len(rows), budgets):
                verdicts += found.verdicts
                cases += found.cases
                alarms += found.alarms
                for alarm in found.alarms[:3]:
                    print("ALARM", alarm, flush=True)
                report(False)
                if verdicts.total() >= asked.judged:
                    break
            seed += 1
            done, spent = verdicts.total(), time.monotonic() - started
            print(f"{done:,} judged, {cases:,} cases, {len(alarms)} alarms, {done / spent:,.0f}/s", flush=True)
            report(False)
    report(True)
    return 1 if alarms else 0


def _table(verdicts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (variant, word), n in sorted(verdicts.items()):
        found.setdefault(variant, {})[word] = n
    return found


if __name__ == "__main__":
    raise SystemExit(main())
