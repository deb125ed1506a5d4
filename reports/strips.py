"""Whole models on a page: each backend's nodes as a strip that points at the first divergent one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opgauge.reference_engine.types import FINDINGS, Record, Status

from .legend import MARKS, clean, share
from .plots import strip

SUITE = "model"
ENDS = ("whole", "exposed", "counts")


def strips(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One row for each model and backend that judged its nodes, those with a divergent node first."""
    nodes: dict[tuple[str, str], list[Record]] = {}
    whole: dict[tuple[str, str], Record] = {}
    for record in records:
        if record.suite == SUITE:
            _, title, where = (*record.case.split("/", 2), "", "")[:3]
            if where == "whole":
                whole[title, record.backend] = record
            elif where not in ENDS:
                nodes.setdefault((title, record.backend), []).append(record)
    out = []
    for (title, backend), rows in nodes.items():
        rows.sort(key=lambda r: r.case)
        tones = [MARKS[r.status].tone for r in rows]
        first = next((i for i, r in enumerate(rows) if r.status in FINDINGS), None)
        end = whole.get((title, backend))
        inside = sum(r.status in (Status.PASS, Status.DEVIATION) for r in rows)
        said = "no divergent node"
        if first is not None:
            where = rows[first].case.split("/", 2)[2]
            said = (
                f"first divergent: {clean(where, 80)} ({clean(rows[first].op, 60)}): {clean(rows[first].message, 200)}"
            )
        ends = [_end(o) for o in (end.detail.get("outputs") or () if end else ()) if isinstance(o, dict)]
        label = f"{len(rows)} nodes, {inside} inside; {said}"
        picture = strip(tones, first, label)
        out.append(
            {"title": title, "backend": backend, "nodes": len(rows), "inside": inside, "bad": first is not None}
            | {"said": said, "picture": picture, "ends": "; ".join(ends[:4])}
        )
    return sorted(out, key=lambda row: (not row["bad"], row["title"], row["backend"]))


def _end(output: dict[str, Any]) -> str:
    """`probs: 58.2 dB, same first choice in 100 %, largest difference 1.2e-07`."""
    told = {
        "sqnr_db": lambda v: f"{v:.1f} dB",
        "top1": lambda v: f"same first choice in {share(v, 1)}",
        "largest_difference": lambda v: f"largest difference {v:.2g}",
    }
    parts = [word(output[key]) for key, word in told.items() if isinstance(output.get(key), (int, float))]
    return clean(f"{output.get('name', '')}: {', '.join(parts)}", 160)
