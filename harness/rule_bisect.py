"""Which graph rule made an output leave its set, changed bits that it must keep, or made a count grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import CaseError
from opgauge.reference_engine.passes import Rule
from opgauge.reference_engine.types import Array, Exact, Status

from .oracles import inside_set

# Counts whose growth is a regression.
WATCHED = ("moved_bytes", "dispatch_count", "DataMove.transpose_count", "DataMove.copy_count")


@dataclass(frozen=True)
class Seen:
    """What an engine gave with the first rules of a list."""

    outputs: tuple[Array, ...]
    counts: Mapping[str, int]


@dataclass(frozen=True)
class Culprit:
    """The rule, and what it did."""

    rule: str
    reason: str


def outside(exacts: Sequence[Exact], outputs: Sequence[Array]) -> str:
    """Which output has how many elements outside its set, or an empty string."""
    for i, (exact, actual) in enumerate(zip(exacts, outputs, strict=True)):
        if actual.shape != exact.value.shape or dt.WORD.get(actual.dtype) != exact.dtype:
            return f"output {i} is {actual.dtype}{list(actual.shape)}, expected {exact.dtype}{list(exact.value.shape)}"
        wrong = ~inside_set(exact, actual)
        if exact.free is not None:
            wrong &= ~exact.free
        if wrong.any():
            return f"output {i}: {int(wrong.sum())} of {actual.size} elements outside their set"
    return ""


def complaint(exacts: Sequence[Exact], before: Seen, after: Seen, rules: Sequence[Rule]) -> str:
    """What the rules between two runs did that none of them may do, or an empty string."""
    said = outside(exacts, after.outputs)
    if said:
        return said
    if all(rule.bits for rule in rules):
        for i, (a, b) in enumerate(zip(before.outputs, after.outputs, strict=True)):
            same = (a == b) | ((a != a) & (b != b)) if a.shape == b.shape else np.zeros(1, bool)
            if not np.all(same):
                return f"output {i}: {int(np.sum(~same))} of {a.size} elements changed, although these rules keep bits"
    for name in WATCHED:
        if after.counts.get(name, 0) > before.counts.get(name, 0):
            return f"{name} grew from {before.counts.get(name, 0)} to {after.counts.get(name, 0)}"
    return ""


def bisect(rules: Sequence[Rule], exacts: Sequence[Exact], run: Callable[[Sequence[Rule]], Seen]) -> Culprit | None:
    """The first rule of the list with which the engine does wrong; None where the whole list does right.

    `run` executes with a prefix of the list. Prefixes are halved; then the rule is shown alone between its neighbours.
    """
    bare = run(())
    said = outside(exacts, bare.outputs)
    if said:
        return Culprit("", f"no rule: without any, {said}")
    reason = complaint(exacts, bare, run(rules), rules)
    if not reason:
        return None
    low, high = 0, len(rules)  # rules[:low] is right, rules[:high] is wrong
    while high - low > 1:
        middle = (low + high) // 2
        found = complaint(exacts, bare, run(rules[:middle]), rules[:middle])
        low, high, reason = (low, middle, found) if found else (middle, high, reason)
    return Culprit(rules[high - 1].id, reason)


def bisect_model(loaded: Any, backend: str, timeout_s: float) -> Culprit | None:
    """`bisect` on a model, the engine in its own process, its rules switched by the option `only`."""
    from opgauge.backends import resolve
    from opgauge.reference_engine import lower, passes
    from opgauge.reference_engine.evaluate import evaluate

    from .client import Client

    spec = resolve(backend)
    exacts = evaluate(lower.lower(loaded.model, loaded.feeds), loaded.feeds, spec.policy)

    def run(rules: Sequence[Rule]) -> Seen:
        switch = "only=" + "+".join(r.id for r in rules) if rules else "disable=all"
        with Client(resolve(f"{backend}{',' if ':' in backend else ':'}{switch}"), timeout_s) as client:
            client.submit("bisect", loaded.data, loaded.feeds, repeats=1)
            seen = client.receive()
        if seen.status is not Status.PASS:
            raise CaseError(f"{client.spec.text}: {seen.status} {seen.message}")
        return Seen(seen.outputs, seen.counts)

    return bisect(passes.RULES, exacts, run)
