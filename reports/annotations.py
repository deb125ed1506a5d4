"""GitHub annotations: the gravest findings as workflow commands, no more than GitHub shows for a step."""

from __future__ import annotations

from collections.abc import Sequence

from opgauge.reference_engine.types import Finding, Record

from .legend import clean
from .tables import red, repro_line, rule_findings

TOP = 10


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def render(records: Sequence[Record], findings: Sequence[Finding]) -> str:
    """`::error title=...::...` lines. A stranger's text is escaped, so that it cannot be a command itself."""
    lines = []
    for record in red(records)[:TOP]:
        title = f"{record.status}: {clean(record.op, 80)} {clean(record.label, 80)} on {clean(record.backend, 60)}"
        text = f"{clean(record.message, 400)}\n{repro_line(record, 600)}"
        lines.append(f"::error title={_property(title)}::{_data(text)}")
    for finding in rule_findings(findings, records)[: TOP - len(lines)]:
        title = f"{clean(finding.rule, 60)}: {clean(finding.subject, 120)}"
        lines.append(f"::error title={_property(title)}::{_data(clean(finding.message, 400))}")
    return "".join(line + "\n" for line in lines)
