"""One graph rule on random draws of a template: optimised against unoptimised, what it changes, whether it wins."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine import passes
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.executor import Find, Plan, counts, execute, plan
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Array
from opgauge.suites.networks import Network
from opgauge.suites.pattern import Template

from .rule_bisect import outside

TURNS = 5


@dataclass(frozen=True)
class Tally:
    """Of so many draws: the rule `applied`, results `outside` their set, results whose bits `changed`.

    `effect` is the largest change of an element that the rule alone made, in ulp of the largest element of a float
    output and in quanta of others. `speed` is time before over time after of the draws that it applied to, the
    geometric mean of least times; None where none was asked for. `faults` says in words what was wrong.
    """

    applied: int
    outside: int
    changed: int
    effect: float
    speed: float | None
    faults: tuple[str, ...]


def tried(template: Template, draws: int, find: Find, timed: bool = False) -> Tally:
    """A result outside the reference's set, a changed bit under a rule that keeps bits, a pattern that is left too
    often or a near miss that is taken is a fault.
    """
    rule = next(rule for rule in passes.RULES if rule.id == template.rule)
    applied = wrong = changed = 0
    effect, logs = 0.0, []
    faults: list[str] = []
    for seed in range(draws):
        model, feeds = template.build(seed)
        graph = lower(model, feeds)
        made, trace = passes.optimise(graph, [rule])
        took = any(step.rule == rule.id for step in trace)
        applied += took
        exacts = evaluate(graph, feeds)
        plans = [plan(g, find, "cpu") for g in (graph, made, passes.optimise(graph)[0])]
        before, after, everything = (execute(bound, feeds) for bound in plans)
        for name, outputs in (("unoptimised", before), (rule.id, after), ("all rules", everything)):
            said = outside(exacts, outputs)
            wrong += bool(said)
            faults += [f"seed {seed}, {name}: {said}"] if said else []
        same = [y.tobytes() for y in before] == [y.tobytes() for y in after]
        changed += not same
        faults += [f"seed {seed}: bits changed"] if rule.bits and not same else []
        effect = max([effect, *(distance(a, b) for a, b in zip(before, after, strict=True))])
        if timed and took:
            logs.append(math.log(_ratio(plans[0], plans[1], feeds)))
    if applied < template.share * draws if template.applies else applied:
        faults.append(f"applied to {applied} of {draws} draws")
    speed = math.exp(sum(logs) / len(logs)) if logs else None
    return Tally(applied, wrong, changed, effect, speed, tuple(faults))


def distance(a: Array, b: Array) -> float:
    """The largest difference of two tensors: in ulp of their largest number, or in quanta."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf
    if a.dtype == bool:
        return float((a != b).any())
    wide = np.float64 if dt.is_float(dt.word_of(a.dtype)) else np.int64
    x, y = a.astype(wide), b.astype(wide)
    differ = ~((a == b) | ((a != a) & (b != b)))
    if not differ.any():
        return 0.0
    if wide is np.int64:
        return float(np.abs(x - y)[differ].max())
    finite = np.abs(np.concatenate([x[np.isfinite(x)].ravel(), y[np.isfinite(y)].ravel()]))
    word = dt.word_of(a.dtype)
    with np.errstate(all="ignore"):
        ulp = max(2.0 ** np.floor(np.log2(finite.max(initial=0.0))) * 2 * dt.UNIT[word], dt.TINY[word])
        steps = np.abs(x - y)[differ] / ulp
    return float(np.where(np.isfinite(steps), steps, np.inf).max())


def _ratio(before: Plan, after: Plan, feeds: Mapping[str, Array]) -> float:
    """Least time of one over least time of the other, in turn."""
    least: list[float] = [math.inf, math.inf]
    for _ in range(TURNS):
        for i, bound in enumerate((before, after)):
            start = time.perf_counter_ns()
            execute(bound, feeds)
            least[i] = min(least[i], time.perf_counter_ns() - start)
    return least[0] / max(least[1], 1.0)


def worth(networks: Sequence[Network], find: Find) -> dict[str, dict[str, float]]:
    """Of each rule and each network that it changes: time without it over time with all rules."""
    found: dict[str, dict[str, float]] = {rule.id: {} for rule in passes.RULES}
    for network in networks:
        model, feeds = network.build()
        graph = lower(model, feeds)
        made, trace = passes.optimise(graph)
        for name in dict.fromkeys(step.rule for step in trace if step.rule in found):
            without, _ = passes.optimise(graph, passes.select(disable=name))
            if counts(without) != counts(made):
                ratio = _ratio(plan(without, find, "cpu"), plan(made, find, "cpu"), feeds)
                found[name][network.name] = round(ratio, 3)
    return found


def by_rule(found: Sequence[tuple[Template, Tally]]) -> dict[str, dict[str, float | int | None]]:
    """Sums of each rule over its templates, in the order of the rules: JSON."""
    rows: dict[str, dict[str, float | int | None]] = {}
    for rule in passes.RULES:
        mine = [(t, tally) for t, tally in found if t.rule == rule.id]
        if mine:
            speeds = [math.log(tally.speed) for _, tally in mine if tally.speed]
            rows[rule.id] = {
                "templates": len(mine),
                "applied": sum(tally.applied for _, tally in mine),
                "outside": sum(tally.outside for _, tally in mine),
                "changed": sum(tally.changed for _, tally in mine),
                "effect": max(tally.effect for _, tally in mine),
                "speed": round(math.exp(sum(speeds) / len(speeds)), 3) if speeds else None,
                "faults": sum(len(tally.faults) for _, tally in mine),
            }
    return rows
