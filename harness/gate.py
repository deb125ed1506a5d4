"""What a person must look at: findings from records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from opgauge.reference_engine.types import FINDINGS, Finding, Record, Status

# Share of cases that may pass without proving anything, by kind of data (DESIGN, statuses).
UNTRUSTED_LIMIT = 0.02
UNTRUSTED_LIMIT_SPECIAL = 0.10
PLAIN = frozenset({"plain", "normal", "uniform"})
# A limit on a share says nothing about a handful of cases.
UNTRUSTED_LEAST = 2


def repro(record: Record) -> str:
    """The line that reproduces a record."""
    case = record.detail.get("smaller", {}).get("case", record.case)
    return f"opgauge repro '{case}' --backend '{record.backend}'"


def findings(records: Sequence[Record], informative: Collection[str] = ()) -> list[Finding]:
    """Failing records, invalid cases of our own suites, operators with too many vacuous passes."""
    found = []
    for r in records:
        if r.backend in informative:
            continue
        if r.status in FINDINGS:
            found.append(Finding(str(r.status), f"{r.op}/{r.label} on {r.backend}", r.message, repro(r), r.detail))
        elif r.status is Status.INVALID:
            text = f"a case of our own suite is not legal: {r.message}"
            found.append(Finding("invalid", f"{r.op}/{r.label}", text, repro(r), r.detail))
    return found + untrusted(records, informative)


def untrusted(records: Sequence[Record], informative: Collection[str] = ()) -> list[Finding]:
    """Operators where more passes than allowed proved nothing.

    A case counts by the share of its elements that were undecided, and wholly when it is untrusted.
    """
    cases: dict[tuple[str, str, bool], int] = defaultdict(int)
    vacuous: dict[tuple[str, str, bool], float] = defaultdict(float)
    for r in records:
        if r.backend in informative or r.suite != "operators" or r.status not in (Status.PASS, Status.UNTRUSTED):
            continue
        key = (r.op, r.backend, r.profile in PLAIN)
        cases[key] += 1
        vacuous[key] += 1.0 if r.status is Status.UNTRUSTED else (r.undecided / r.elements if r.elements else 0.0)
    found = []
    for (op, backend, plain), count in sorted(cases.items()):
        limit = UNTRUSTED_LIMIT if plain else UNTRUSTED_LIMIT_SPECIAL
        share = vacuous[op, backend, plain] / count
        if share > limit and vacuous[op, backend, plain] > UNTRUSTED_LEAST:
            kind = "plain" if plain else "special"
            text = f"{vacuous[op, backend, plain]:.1f} of {count} {kind} cases prove nothing ({share:.1%}, limit {limit:.0%})"
            found.append(Finding("untrusted", f"{op} on {backend}", text))
    return found
