"""The red records of a page: gathered by operator and backend, some in full with their evidence as pictures."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from opgauge.reference_engine.types import Record

from .legend import MARKS, clean
from .plots import heat, histogram, scatter
from .tables import offending, red, relation, repro_line, smaller, wider

LISTED = 5  # times as many as in full


def case_anchor(record: Record) -> str:
    text = f"{record.case}[{record.backend}]".encode("utf-8", "replace")
    return "case=" + hashlib.sha256(text).hexdigest()[:12]


def failures(records: Sequence[Record], full: int) -> dict[str, Any]:
    """The first `full` red records in full, gathered by operator and backend, then lines, then a number."""
    failing = red(records)
    counted: Counter[tuple[str, str]] = Counter((r.op, r.backend) for r in failing)
    listed: dict[tuple[str, str], dict[str, Any]] = {}
    used: set[str] = set()
    for i, record in enumerate(failing[: full * LISTED]):
        key = (record.op, record.backend)
        empty: dict[str, Any] = {"op": key[0], "backend": key[1], "cases": counted[key], "full": [], "lines": []}
        block = listed.setdefault(key, empty)
        if i < full and case_anchor(record) not in used:
            used.add(case_anchor(record))
            block["full"].append(_block(record))
        else:
            block["lines"].append(repro_line(record, 600))
    for block in listed.values():
        block["more"] = block["cases"] - len(block["full"]) - len(block["lines"])
    shown = sum(b["cases"] for b in listed.values())
    return {"failures": list(listed.values()), "unlisted": len(failing) - shown, "shown": used}


def _block(record: Record) -> dict[str, Any]:
    rows = offending(record.detail)
    found = record.detail.get("spread")
    return {
        "id": case_anchor(record),
        "record": record,
        "mark": MARKS[record.status],
        "status": str(record.status),
        "elements": rows,
        "tie": any(r["tie_distance"] is not None for r in rows),
        "real": any(r["real"] is not None for r in rows),
        "relation": relation(record.detail),
        "wider": wider(record.detail),
        "repro": repro_line(record),
        "smaller": bool(smaller(record.detail)),
        "heat": heat(record.detail.get("positions"), record.detail.get("shape")),
        "bars": histogram(found),
        "cloud": scatter(found),
        "unit": clean((found or {}).get("unit", ""), 20) if isinstance(found, dict) else "",
        "largest": clean(record.detail.get("largest_error") or "", 80),
    }
