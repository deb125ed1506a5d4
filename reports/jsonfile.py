"""One JSON document for machines: schema `opgauge.report/1`, never NaN or infinity."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from opgauge.reference_engine.types import FINDINGS, Finding, Record

from .tables import Tables, check_counts, totals, verdict

SCHEMA = "opgauge.report/1"


def plain(value: Any) -> Any:
    """The value in JSON's own types; not-a-number and the infinities become the words nan, inf and -inf."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        # Lone surrogates (a model's bytes decoded leniently) would make the file unreadable as UTF-8.
        return str(value).encode("utf-8", "replace").decode()
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, np.generic):
        return plain(value.item()) if not isinstance(value.item(), np.generic) else str(value)
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    return str(value)


def _rows(table: Any) -> list[dict[str, Any]]:
    rows = table.reset_index().to_dict("records")
    # A share without a denominator is absent, not a word.
    return [{k: None if isinstance(v, float) and math.isnan(v) else plain(v) for k, v in row.items()} for row in rows]


def document(
    tables: Tables,
    records: Sequence[Record],
    findings: Sequence[Finding],
    meta: Mapping[str, Any],
    *,
    everything: bool = False,
) -> dict[str, Any]:
    """The report as plain values; `everything` adds all records, red ones are always there."""
    check_counts(tables, records)
    said = verdict(tables, findings, meta.get("exit_code"))
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "verdict": {"word": said.word, "text": said.text},
        "meta": plain(meta),
        "totals": totals(tables),
        "matrix": _rows(tables.matrix),
        "operators": _rows(tables.operators),
        "backends": _rows(tables.backends),
        "quality": _rows(tables.quality),
        "profiles": _rows(tables.profiles),
        "failures": [plain(r) for r in records if r.status in FINDINGS],
        "findings": [plain(f) for f in findings],
    }
    if everything:
        body["records"] = [plain(r) for r in records]
    return body


def render(
    tables: Tables,
    records: Sequence[Record],
    findings: Sequence[Finding],
    meta: Mapping[str, Any],
    *,
    everything: bool = False,
) -> str:
    """The document as text. Raises: OpgaugeError when tables and records disagree."""
    body = document(tables, records, findings, meta, everything=everything)
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
