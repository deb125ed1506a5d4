"""A badge's JSON for shields.io's `endpoint`: one line, never green where nothing was judged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from opgauge.reference_engine.types import Finding, Record

from .legend import NO_RESULT
from .tables import Tables, check_counts, totals, verdict

COLORS = {"PASS": "brightgreen", "FAIL": "red", "NO RESULT": "lightgrey"}


def render(tables: Tables, records: Sequence[Record], findings: Sequence[Finding], meta: Mapping[str, Any]) -> str:
    """Raises: OpgaugeError when tables and records disagree."""
    check_counts(tables, records)
    said, sums = verdict(tables, findings, meta.get("exit_code")), totals(tables)
    message = f"{sums['pass']:,} of {sums['cases']:,} cases"
    if said.word == "FAIL":
        message = f"{len(findings):,} finding{'s' * (len(findings) != 1)}" if findings else "failing"
    elif said.word != "PASS":
        message = NO_RESULT
    body = {"schemaVersion": 1, "label": "opgauge", "message": message, "color": COLORS[said.word]}
    return json.dumps(body | ({"isError": True} if said.word == "FAIL" else {}), indent=1) + "\n"
