"""Every graph rule on its templates, optimised against unoptimised, on many random draws each.

    python tests/quality/rules_on_templates.py [DRAWS] [PART OF A NAME]

A result outside the reference's set, a changed bit under a rule that keeps bits, a pattern that a rule leaves too
often or a near miss that it takes is a fault. Prints one line a template and the sums; exits 1 where there was one.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from opgauge.backends.cpu import kernels
from opgauge.reference_engine import passes
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.executor import Find, execute, finder, plan
from opgauge.reference_engine.lower import lower
from opgauge.rule_bisect import outside
from opgauge.suites.templates import TEMPLATES, Template

RULES = {rule.id: rule for rule in passes.RULES}


class Tally(NamedTuple):
    """Of so many draws: the rule applied, results outside their set, results whose bits changed, faults in words."""

    applied: int
    outside: int
    changed: int
    faults: tuple[str, ...]


def tried(template: Template, draws: int, find: Find) -> Tally:
    rule = RULES[template.rule]
    applied = wrong = changed = 0
    faults: list[str] = []
    for seed in range(draws):
        model, feeds = template.build(seed)
        graph = lower(model, feeds)
        made, trace = passes.optimise(graph, [rule])
        applied += any(step.rule == rule.id for step in trace)
        exacts = evaluate(graph, feeds)
        before, after, everything = (
            execute(plan(g, find, "cpu"), feeds) for g in (graph, made, passes.optimise(graph)[0])
        )
        for name, outputs in (("unoptimised", before), (rule.id, after), ("all rules", everything)):
            said = outside(exacts, outputs)
            wrong += bool(said)
            faults += [f"seed {seed}, {name}: {said}"] if said else []
        same = [y.tobytes() for y in before] == [y.tobytes() for y in after]
        changed += not same
        faults += [f"seed {seed}: bits changed"] if rule.bits and not same else []
    if applied < template.share * draws if template.applies else applied:
        faults.append(f"applied to {applied} of {draws} draws")
    return Tally(applied, wrong, changed, tuple(faults))


def main(draws: int, part: str) -> int:
    find = finder(kernels())
    chosen = [t for t in TEMPLATES if part in t.name]
    sums = [0, 0, 0]
    for template in chosen:
        found = tried(template, draws, find)
        sums = [a + b for a, b in zip(sums, (found.outside, found.changed, len(found.faults)), strict=True)]
        line = f"{template.name:45} applied {found.applied:3}/{draws}, {found.outside} outside, {found.changed} changed"
        print("; ".join([line, *found.faults[:2]]), flush=True)
    rules = len({t.rule for t in chosen})
    print(f"{len(chosen)} templates of {rules} rules, {draws} draws each: {sums[0]} outside, {sums[2]} faults")
    return int(sums[2] > 0 or not chosen)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 200, sys.argv[2] if sys.argv[2:] else ""))
