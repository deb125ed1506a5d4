"""What a person must look at: findings from records."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cache

from opgauge.backends import UnknownBackendError, resolve
from opgauge.reference_engine.types import FINDINGS, Finding, Record, Status
from opgauge.reports.tables import repro_line

from . import expectations, frames, quarantine

TAKEN = (Status.PASS, Status.UNTRUSTED, Status.DEVIATION)


def findings(records: Sequence[Record], informative: Collection[str] = ()) -> list[Finding]:
    """Failing records, invalid cases of our own suites, operators with too many vacuous passes, expired quarantines."""
    now = quarantine.today()
    rows = expectations.quarantined(now)
    found = quarantine.expired(rows, now)
    runtime = cache(_runtime)
    for r in records:
        if r.backend in informative:
            continue
        if r.status in FINDINGS:
            aside = quarantine.of(r, runtime(r.backend), rows, now) if rows else None
            text = f"{r.message} [{aside}]" if aside else r.message
            detail = {**r.detail, "quarantine": aside.id} if aside else r.detail
            found.append(Finding(str(r.status), f"{r.op}/{r.label} on {r.backend}", text, repro_line(r), detail))
        elif r.status is Status.INVALID:
            text = f"a case of our own suite is not legal: {r.message}"
            found.append(Finding("invalid", f"{r.op}/{r.label}", text, repro_line(r), r.detail))
    return found + refusals(records, informative) + untrusted(records, informative)


def refusals(records: Sequence[Record], informative: Collection[str] = ()) -> list[Finding]:
    """Cases that one version or variant of a runtime refuses and another one takes.

    Only in rows of which it takes something: what a version does not have at all is no fault. Nor are opsets above
    all that it takes in this run: it is older than they are.
    """

    @cache
    def newest(backend: str) -> int:
        return max((_opset(r) for r in records if r.backend == backend and r.status in TAKEN), default=0)

    rows: dict[tuple[str, str, str], dict[str, dict[str, Record]]] = defaultdict(lambda: defaultdict(dict))
    runtime = cache(_runtime)
    for r in records:
        if r.suite == "operators" and r.backend not in informative:
            rows[runtime(r.backend), r.op, r.label][r.backend][r.case] = r
    found = []
    for (_, op, label), seen in sorted(rows.items()):
        for backend, mine in seen.items():
            refused = {case: r for case, r in mine.items() if r.status is Status.UNSUPPORTED}
            if len(refused) == len(mine):
                continue
            for other, theirs in seen.items():
                taken = [case for case in refused if case in theirs and theirs[case].status in TAKEN]
                taken = [case for case in taken if _opset(refused[case]) <= newest(backend)]
                if other != backend and taken:
                    first = refused[taken[0]]
                    text = f"refuses {len(taken)} of {len(mine)} cases that {other} takes: {first.message}"
                    detail = {"cases": taken[:20]}
                    found.append(Finding("unsupported", f"{op}/{label} on {backend}", text, repro_line(first), detail))
    return found


def _opset(record: Record) -> int:
    found = re.search(r"/op(\d+)/", record.case)
    return int(found[1]) if found else 0


def _runtime(backend: str) -> str:
    """What versions and options of a runtime have in common."""
    try:
        return resolve(backend).name
    except UnknownBackendError:  # of a record made elsewhere
        return backend


def untrusted(records: Sequence[Record], informative: Collection[str] = ()) -> list[Finding]:
    """Operators where more passes than allowed proved nothing, on ordinary and on special data."""
    mine = [r for r in records if r.suite == "operators" and r.backend not in informative]
    found = []
    for (op, special), row in frames.quality(frames.frame(mine)).iterrows():
        if row["over"]:
            kind = "special" if special else "plain"
            share = f"({row['vacuous_share']:.1%}, limit {row['limit']:.0%})"
            text = f"{row['vacuous']:.1f} of {row['cases']:.0f} {kind} cases prove nothing {share}"
            found.append(Finding("untrusted", str(op), text))
    return found
