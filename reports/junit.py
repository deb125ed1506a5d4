"""JUnit XML: a suite per backend and operator, so that any continuous integration can show the run."""

from __future__ import annotations

import hashlib
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opgauge.reference_engine.types import FINDINGS, Finding, Record, Status

from .legend import JUDGED, MARKS, NO_RESULT, acceptance, clean, element
from .tables import hints, offending, repro_line, rule_findings

CASES = 20_000  # beyond this, cases that are not red are one testcase per row of dtypes
RED_PER_ROW = 100
SKIPPED = frozenset({Status.UNSUPPORTED, Status.UNAVAILABLE, Status.INVALID, Status.UNTRUSTED, Status.DEVIATION})


def render(records: Sequence[Record], findings: Sequence[Finding], meta: Mapping[str, Any]) -> str:
    """One testcase per case (per row of dtypes in a large run); misbehaviour is an error, all else outside a failure.

    Unsupported, unavailable, invalid, untrusted and deviating cases are skipped with their reason: none is a pass.
    """
    suites: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        suites.setdefault((record.backend, record.op), []).append(record)
    root = ET.Element("testsuites", name="opgauge")
    for (backend, op), rows in sorted(suites.items()):
        name = f"{clean(backend, 60)}/{clean(op, 80)}"
        suite = ET.SubElement(root, "testsuite", name=name)
        properties = ET.SubElement(suite, "properties")
        ET.SubElement(properties, "property", name="cases", value=str(len(rows)))
        for record, n in rows_of(rows, len(records) > CASES):
            _testcase(suite, name.replace("/", "."), record, n)
        suite.set("time", f"{sum(r.us for r in rows) / 1e6:.6f}")
    if not any(r.status in JUDGED or r.status in FINDINGS for r in records):
        # Without this an empty file is green.
        suite = ET.SubElement(root, "testsuite", name="opgauge/run")
        case = ET.SubElement(suite, "testcase", classname="opgauge", name="run")
        ET.SubElement(case, "error", type="opgauge.no-result", message=f"{NO_RESULT}: no case reached a verdict")
    if other := rule_findings(findings, records):
        suite = ET.SubElement(root, "testsuite", name="opgauge/findings")
        for i, finding in enumerate(other):
            case = ET.SubElement(suite, "testcase", classname=clean(f"findings.{finding.rule}", 120))
            case.set("name", f"{clean(finding.subject, 160)} #{i + 1}")
            failure = ET.SubElement(case, "failure", type=clean(finding.rule, 80), message=clean(finding.message, 400))
            failure.text = clean(finding.repro, 4000)
    for suite in root:
        for attribute, path in (("tests", "testcase"), ("failures", "testcase/failure"), ("errors", "testcase/error")):
            suite.set(attribute, str(len(suite.findall(path))))
        suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    for attribute in ("tests", "failures", "errors", "skipped"):
        root.set(attribute, str(sum(int(s.get(attribute, "0")) for s in root)))
    root.set("time", f"{float(meta.get('seconds') or 0):.3f}")
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def rows_of(records: Sequence[Record], aggregate: bool | None = None) -> Iterable[tuple[Record, int]]:
    """(record, how many cases it stands for); a run of more than CASES is gathered by row of dtypes and status."""
    if not (len(records) > CASES if aggregate is None else aggregate):
        return [(r, 1) for r in records]
    gathered: dict[tuple[str, str, str, Status], list[Record]] = {}
    for record in records:
        gathered.setdefault((record.backend, record.op, record.label, record.status), []).append(record)
    out = []
    for (*_, status), rows in gathered.items():
        single = rows[:RED_PER_ROW] if status in FINDINGS else []
        out += [(r, 1) for r in single]
        if rest := rows[len(single) :]:
            out.append((rest[0], len(rest)))
    return out


def _testcase(suite: ET.Element, classname: str, record: Record, cases: int) -> None:
    name = clean(record.case, 200)
    if cases > 1:
        name = f"{clean(record.op, 80)}/{clean(record.label, 80)}: {cases} {record.status}"
    elif name != record.case:
        name += f" #{hashlib.sha256(record.case.encode('utf-8', 'replace')).hexdigest()[:8]}"
    case = ET.SubElement(suite, "testcase", classname=classname, name=f"{name}[{clean(record.backend, 60)}]")
    case.set("time", f"{record.us / 1e6:.6f}")
    message = clean(f"{record.status}: {record.message or MARKS[record.status].meaning}", 400)
    if record.status in FINDINGS:
        tag = "failure" if record.status is Status.FAIL else "error"
        result = ET.SubElement(case, tag, type=str(record.status), message=message)
        result.text = evidence(record)
    elif record.status in SKIPPED:
        ET.SubElement(case, "skipped", type=f"opgauge.{record.status}", message=message)


def evidence(record: Record) -> str:
    lines = [
        f"[{element(row['index'])}] expected {acceptance(row['expected'])} got {element(row['got'])}"
        for row in offending(record.detail)
    ]
    return "\n".join([*lines, *hints(record.detail), repro_line(record)])
