"""ONNX's backend scoreboard: for each backend the documents that it keeps, from ONNX's node tests of a run.

Passed means ONNX's own criterion: outputs within the test's tolerance of the stored ones. Skipped is what a runtime
refuses. A backend without a node test has no entry: never 0 of 0.
Source: onnx/backend-scoreboard, results/*/report.json, trend.json, ops.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from opgauge.reference_engine.types import Finding, Record, Status

from .legend import NO_RESULT
from .tables import Tables, check_counts

SUITE = "onnx-node"
STORED = "onnx-stored"  # what ONNX stores, judged by our sets: no backend
WORDS = ("passed", "failed", "skipped")


def outcome(record: Record) -> str:
    """One of WORDS; an empty string for what was never tried."""
    if record.status in (Status.UNAVAILABLE, Status.INVALID):
        return ""
    if record.status is Status.UNSUPPORTED:
        return "skipped"
    return "passed" if record.detail.get("stored") is True else "failed"


def documents(records: Sequence[Record], meta: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """{backend: {"report": ..., "trend": [one entry], "ops": [...]}}."""
    date = _date(str(meta.get("started", "")))
    tests: dict[str, list[tuple[str, str, str]]] = {}
    for record in records:
        if record.suite == SUITE and record.backend != STORED and (word := outcome(record)):
            tests.setdefault(record.backend, []).append((record.case.removeprefix(f"{SUITE}/"), record.op, word))
    found = {}
    for backend, rows in tests.items():
        info = (meta.get("backends") or {}).get(backend) or {}
        versions = [{"name": backend, "version": str(info.get("version", ""))}]
        versions += [{"name": "onnx", "version": str(meta["onnx"])}] if meta.get("onnx") else []
        lists: dict[str, list[str]] = {word: sorted(name for name, _, w in rows if w == word) for word in WORDS}
        numbers = {word: len(names) for word, names in lists.items()}
        ops = []
        for op in sorted({op for _, op, _ in rows}):
            mine = [w for _, o, w in rows if o == op]
            domain, _, name = op.rpartition("::")
            counts = {f"{word}_tests": mine.count(word) for word in WORDS}
            ops.append({"domain": domain, "op_type": name, **counts, "total_tests": len(mine)})
        trend = {"date": date, **numbers, "total_ops": len(ops), "versions": versions}
        found[backend] = {"report": {"date": date} | dict[str, Any](lists), "trend": [trend], "ops": ops}
    return found


def _date(started: str) -> str:
    """`03/25/2026 01:17:09`, the scoreboard's way to write a time."""
    try:
        return datetime.fromisoformat(started).astimezone(UTC).strftime("%m/%d/%Y %H:%M:%S")
    except ValueError:
        return ""


def render(tables: Tables, records: Sequence[Record], findings: Sequence[Finding], meta: Mapping[str, Any]) -> str:
    """Raises: OpgaugeError when tables and records disagree."""
    check_counts(tables, records)
    found = documents(records, meta)
    body = {"schema": "opgauge.scoreboard/1", "result": "" if found else NO_RESULT, "backends": found}
    return json.dumps(body, ensure_ascii=False, indent=1) + "\n"
