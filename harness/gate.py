"""What a person must look at: findings from records."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from opgauge.reference_engine.types import FINDINGS, Finding, Record, Status
from opgauge.reports.tables import repro_line

from . import frames


def findings(records: Sequence[Record], informative: Collection[str] = ()) -> list[Finding]:
    """Failing records, invalid cases of our own suites, operators with too many vacuous passes."""
    found = []
    for r in records:
        if r.backend in informative:
            continue
        if r.status in FINDINGS:
            found.append(Finding(str(r.status), f"{r.op}/{r.label} on {r.backend}", r.message, repro_line(r), r.detail))
        elif r.status is Status.INVALID:
            text = f"a case of our own suite is not legal: {r.message}"
            found.append(Finding("invalid", f"{r.op}/{r.label}", text, repro_line(r), r.detail))
    return found + untrusted(records, informative)


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
