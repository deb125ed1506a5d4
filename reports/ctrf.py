"""CTRF 1.0, the Common Test Report Format: a test per case and backend, for tools that read nothing of ours."""

from __future__ import annotations

import calendar
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from opgauge.reference_engine.types import FINDINGS, Finding, Record, Status

from .junit import evidence, rows_of
from .legend import JUDGED, MARKS, NO_RESULT, clean
from .tables import Tables, check_counts, rule_findings

SPEC_VERSION = "1.0.0"
STATES = ("passed", "failed", "skipped", "pending", "other")
# An untrusted case proves nothing and a deviation is no pass: readers must not count either as green.
STATE: dict[Status, str] = {
    **dict.fromkeys(FINDINGS, "failed"),
    Status.PASS: "passed",
    Status.DEVIATION: "other",
    Status.UNTRUSTED: "other",
    Status.INVALID: "other",
    Status.UNSUPPORTED: "skipped",
    Status.UNAVAILABLE: "skipped",
}


def render(tables: Tables, records: Sequence[Record], findings: Sequence[Finding], meta: Mapping[str, Any]) -> str:
    """The document as text. Raises: OpgaugeError when tables and records disagree.

    A large run has one test per row of dtypes and status, as JUnit has; a run without a verdict has a failed test.
    """
    check_counts(tables, records)
    tests = [_test(record, n) for record, n in rows_of(records)]
    if not any(r.status in JUDGED or r.status in FINDINGS for r in records):
        tests.append(_plain("run", "failed", ["opgauge"], f"{NO_RESULT}: no case reached a verdict"))
    for finding in rule_findings(findings, records):
        name = f"{clean(finding.rule, 60)}: {clean(finding.subject, 160)}"
        tests.append(_plain(name, "failed", ["opgauge", "findings"], clean(finding.message, 400)))
    counted = Counter(test["status"] for test in tests)
    start = _milliseconds(str(meta.get("started", "")))
    stop = start + round(1e3 * float(meta.get("seconds") or 0))
    body = {
        "reportFormat": "CTRF",
        "specVersion": SPEC_VERSION,
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(stop / 1e3)),
        "generatedBy": "opgauge",
        "results": {
            "tool": {"name": "opgauge", "version": str(meta.get("version", ""))},
            "summary": {
                "tests": len(tests),
                **{state: counted[state] for state in STATES},
                "suites": len({tuple(test["suite"]) for test in tests}),
                "start": start,
                "stop": stop,
                "extra": {"cases": len(records), "findings": len(findings)},
            },
            "tests": tests,
            "environment": {"extra": {k: clean(v) for k, v in (meta.get("machine") or {}).items()}},
        },
    }
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _test(record: Record, cases: int) -> dict[str, Any]:
    name = clean(record.case, 400) if cases == 1 else f"{record.op}/{record.label}: {cases} {record.status}"
    suite = [clean(record.backend, 60), clean(record.op, 80)]
    test = _plain(f"{name}[{suite[0]}]", STATE[record.status], suite, "")
    test |= {"duration": round(record.us / 1e3, 3), "rawStatus": str(record.status)}
    if record.status is not Status.PASS:
        test["message"] = clean(record.message or MARKS[record.status].meaning, 400)
    if record.status in FINDINGS:
        test["trace"] = evidence(record)
    if record.status is Status.FLAKY:
        test["flaky"] = True
    if cases > 1:
        test["extra"] = {"cases": cases}
    return test


def _plain(name: str, state: str, suite: list[str], message: str) -> dict[str, Any]:
    return {"name": name, "status": state, "duration": 0, "suite": suite, **({"message": message} if message else {})}


def _milliseconds(started: str) -> int:
    try:
        return 1000 * calendar.timegm(time.strptime(started, "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return 0
