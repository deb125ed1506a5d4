"""The HTML report: one offline file that a strict content security policy holds to its own style and script."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import jinja2
import numpy as np
from markupsafe import Markup

from opgauge.reference_engine.types import FINDINGS, Finding, Record, Status

from .legend import MARKS, MISBEHAVED, NO_RESULT, RED, STATUSES, acceptance, clean, element, number, share
from .tables import (
    Tables,
    check_counts,
    grid,
    groups,
    offending,
    red,
    repro_line,
    rule_findings,
    totals,
    verdict,
    wider,
    worst,
)

LIMIT_BYTES = 500_000
FAILURES = 60  # shown in full; four times as many are listed by their line, the rest counted
HEAT = (64, 6)  # columns, rows of the picture of outside elements

SCRIPT = """
"use strict";
(() => {
  const box = document.getElementById("filter"), count = document.getElementById("shown");
  const rows = [...document.querySelectorAll("tbody[data-k]")];
  const filter = () => {
    const terms = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let n = 0;
    for (const row of rows) {
      const hit = terms.every((t) => row.dataset.k.includes(t));
      row.hidden = !hit;
      n += hit;
    }
    count.textContent = terms.length ? n + " of " + rows.length : "";
  };
  const follow = () => {
    let id = location.hash.slice(1);
    try { id = decodeURIComponent(id); } catch { return; }
    const target = document.getElementById(id);
    if (!target) return;
    if (target.hidden) { box.value = ""; filter(); }
    const details = target.closest("details") || (target.matches("tbody") && target.querySelector("details"));
    if (details) details.open = true;
    target.scrollIntoView();
  };
  if (box) { box.parentElement.hidden = false; box.addEventListener("input", filter); filter(); }
  addEventListener("hashchange", follow);
  follow();
})();
"""


def render(tables: Tables, records: Sequence[Record], findings: Sequence[Finding], meta: Mapping[str, Any]) -> str:
    """The page. Raises: OpgaugeError when tables and records disagree.

    Shows fewer failures in full, then fewer dtype rows, rather than grow beyond `LIMIT_BYTES`.
    """
    check_counts(tables, records)
    context = _context(tables, records, findings, meta)
    page = ""
    for full, dtypes in ((FAILURES, True), (FAILURES // 3, True), (FAILURES // 3, False), (5, False)):
        page = _page(context | _failures(records, full) | {"rows": _rows(tables, dtypes)}, len(tables.backends))
        if len(page.encode()) <= LIMIT_BYTES:
            break
    return page


def _page(context: Mapping[str, Any], backends: int) -> str:
    folder = files(__package__).joinpath("templates")
    env = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    env.filters |= {f.__name__: f for f in (clean, number, element, acceptance, anchor, name)}
    # The number of columns is a style, and style attributes are closed by the policy.
    style = folder.joinpath("report.css").read_text("utf-8") + f":root{{--backends:{max(1, backends)}}}\n"
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(SCRIPT)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    template = env.from_string(folder.joinpath("report.html.j2").read_text("utf-8"))
    return template.render(context, policy=Markup(policy), style=Markup(style), script=Markup(SCRIPT)) + "\n"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def anchor(*words: object) -> str:
    """A fragment that names an operator or a cell: `op=Conv`, `red=Conv=wgpu`."""
    return quote("=".join(clean(w, 120) for w in words), safe="=:,.-_")


def name(op: object) -> Markup:
    """An operator's name that may break after its domain."""
    return Markup("::<wbr>").join(clean(op, 80).split("::"))


def case_anchor(record: Record) -> str:
    text = f"{record.case}[{record.backend}]".encode("utf-8", "replace")
    return "case=" + hashlib.sha256(text).hexdigest()[:12]


def _context(
    tables: Tables, records: Sequence[Record], findings: Sequence[Finding], meta: Mapping[str, Any]
) -> dict[str, Any]:
    marks = {str(s): m for s, m in MARKS.items()}
    sums = totals(tables)
    known = meta.get("backends") or {}
    return {
        "verdict": verdict(tables, findings, meta.get("exit_code")),
        "meta": meta,
        "run": _run(meta),
        "machine": [(clean(k, 40), clean(v)) for k, v in (meta.get("machine") or {}).items()],
        "totals": sums,
        "red_count": sum(sums[str(s)] for s in RED),
        "marks": marks,
        "misbehaved": ", ".join(MISBEHAVED),
        "names": [(str(b), str((known.get(b) or {}).get("version", ""))) for b in tables.backends.index],
        "cards": _cards(tables, meta),
        "groups": groups(records, FINDINGS),
        "findings": rule_findings(findings, records),
        "support": groups(records, (Status.UNSUPPORTED, Status.UNAVAILABLE, Status.INVALID), apart=False),
        "deviations": groups(records, (Status.DEVIATION,), limit=1000),
        "quality": _quality(tables),
        "no_result": NO_RESULT,
        "operators": [
            (str(op), number(r["cases"]), number(r["judged"]), number(r["elements"]), number(r["set_size"]))
            for op, r in tables.operators.iterrows()
        ],
    }


def _run(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    first = ("command", "version", "started", "seconds", "seed", "budget")
    apart = {"backends", "machine", "verdict", "exit_code"}
    keys = [k for k in first if k in meta] + sorted(k for k in meta if k not in first and k not in apart)
    return [(k.replace("_", " "), clean(meta[k], 1000)) for k in keys]


def _cards(tables: Tables, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    known = meta.get("backends") or {}
    cards = []
    for name in dict.fromkeys([*map(str, tables.backends.index), *map(str, known)]):
        info = dict(known.get(name) or {})
        row = tables.backends.loc[name] if name in tables.backends.index else None
        said = []
        for backend, formula in tables.formulas.index:
            if backend == name and formula not in ("exact", "within"):
                cases, ops = tables.formulas.loc[(backend, formula)]
                said.append((str(formula), int(cases), int(ops)))
        cards.append(
            {
                "name": name,
                "version": str(info.pop("version", "")),
                "policy": str(info.pop("policy", "")),
                "info": [(clean(k, 40), clean(v, 300)) for k, v in info.items()],
                "formulas": sorted(said, key=lambda f: -f[1]),
                "row": row,
                "pairs": _pairs(row) if row is not None else [],
            }
        )
    return cards


def _pairs(row: Any) -> list[tuple[str, str, str]]:
    """(name, number, share) of one backend's denominators."""
    judged, elements = row["judged"], row["elements"]
    out = [
        ("cases", number(row["cases"]), ""),
        ("judged", number(judged), share(judged, row["cases"]) if judged else NO_RESULT),
    ]
    out += [
        (name, number(row[name]), share(row[name], judged))
        for name in ("exact", "within", "formula", "unexplained", "deviation", "untrusted", "fail")
        if row[name] or name in ("exact", "within", "formula")
    ]
    out += [(n, number(row[n]), share(row[n], row["cases"])) for n in ("misbehaviour", "unsupported") if row[n]]
    out += [("elements", number(elements), "")]
    out += [(name, number(row[name]), share(row[name], elements)) for name in ("saturated", "ties", "undecided")]
    out += [("mean set size", number(row["set_size"]), "unsaturated elements")]
    return out


def _quality(tables: Tables) -> list[dict[str, Any]]:
    table = tables.quality[(tables.quality["untrusted"] > 0) | (tables.quality["undecided"] > 0)]
    table = table.sort_values(["over", "untrusted_share", "undecided_share"], ascending=False)
    return [
        {
            "op": str(op),
            "special": "special" if special else "ordinary",
            "untrusted": f"{share(row['untrusted'], row['cases'])} ({row['untrusted']:,} of {row['cases']:,})",
            "undecided": share(row["undecided"], row["elements"]),
            "limit": share(row["limit"], 1),
            "over": bool(row["over"]),
        }
        for (op, special), row in table.iterrows()
    ]


def cell(row: Mapping[str, int] | None, href: str = "") -> Markup:
    """One cell of the matrix: every status that occurs, glyph and count, red ones in words and linked."""
    status = worst(row) if row is not None else None
    if row is None or status is None:
        return Markup('<td class="none">—')
    parts = []
    for s in STATUSES:
        if count := int(row[str(s)]):
            mark = MARKS[s]
            word = f" {s}" if mark.tone == "bad" else ""
            text = Markup("<i class={}>{} {:,}{}</i>").format(mark.tone, mark.glyph, count, word)
            parts.append(Markup('<a href="#{}">{}</a>').format(href, text) if word and href else text)
    return Markup("<td class={}>{}").format(MARKS[status].tone, Markup(" ").join(parts))


def _rows(tables: Tables, dtypes: bool) -> list[dict[str, Any]]:
    backends = [str(b) for b in tables.backends.index]
    below: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
    for (op, label, backend), row in zip(tables.dtypes.index, tables.dtypes.to_dict("records"), strict=True):
        below.setdefault(str(op), {}).setdefault(str(label), {})[str(backend)] = row
    out = []
    for op, cells in grid(tables):
        present = {str(s) for row in cells.values() for s in STATUSES if row[str(s)]}
        labels = below.get(op, {})
        lines = [(label, [cell(row.get(b)) for b in backends]) for label, row in labels.items()]
        out.append(
            {
                "op": op,
                "terms": clean(" ".join([op, *sorted(present), *labels]).lower(), 600),
                "cells": [cell(cells.get(b), anchor("red", op, b)) for b in backends],
                "labels": lines if dtypes else [],
            }
        )
    return out


def _failures(records: Sequence[Record], full: int) -> dict[str, Any]:
    """The first `full` red records in full, gathered by operator and backend, then lines, then a number."""
    failing = red(records)
    counted: Counter[tuple[str, str]] = Counter((r.op, r.backend) for r in failing)
    listed: dict[tuple[str, str], dict[str, Any]] = {}
    for i, record in enumerate(failing[: full * 5]):
        key = (record.op, record.backend)
        empty: dict[str, Any] = {"op": key[0], "backend": key[1], "cases": counted[key], "full": [], "lines": []}
        block = listed.setdefault(key, empty)
        if i < full:
            block["full"].append(_block(record))
        else:
            block["lines"].append(repro_line(record, 600))
    for block in listed.values():
        block["more"] = block["cases"] - len(block["full"]) - len(block["lines"])
    shown = sum(b["cases"] for b in listed.values())
    return {"failures": list(listed.values()), "unlisted": len(failing) - shown}


def _block(record: Record) -> dict[str, Any]:
    rows = offending(record.detail)
    return {
        "id": case_anchor(record),
        "record": record,
        "mark": MARKS[record.status],
        "status": str(record.status),
        "elements": rows,
        "tie": any(r["tie_distance"] is not None for r in rows),
        "real": any(r["real"] is not None for r in rows),
        "wider": wider(record.detail),
        "repro": repro_line(record),
        "heat": heat(record.detail.get("positions"), record.detail.get("shape")),
    }


def heat(positions: Any, shape: Any) -> dict[str, Any] | None:
    """Where the outside elements lie: columns the last axis, rows the leading axes, darker for more of a bin.

    None when the detail does not say. Scattered marks hint at rounding, stripes at tails or padding.
    """
    if positions is None or shape is None:
        return None
    dims = [int(d) for d in shape]
    size = int(np.prod(dims, dtype=np.int64))
    flat = np.asarray(positions, dtype=np.int64).ravel()
    flat = flat[(flat >= 0) & (flat < size)]
    if not flat.size or not size:
        return None
    wide = dims[-1] if dims else 1
    tall = size // wide
    columns, rows = min(wide, HEAT[0]), min(tall, HEAT[1])
    bins = np.zeros((rows, columns))
    np.add.at(bins, ((flat // wide) * rows // tall, (flat % wide) * columns // wide), 1)
    room = np.outer(_sizes(tall, rows), _sizes(wide, columns))
    part = bins / room
    level = np.select([part == 0, part <= 0.02, part <= 0.2], [0, 1, 2], 3)
    paths = {n: path for n in (1, 2, 3) if (path := _runs(level == n))}
    return {"columns": columns, "rows": rows, "wide": wide, "tall": tall, "paths": paths}


def _sizes(n: int, bins: int) -> np.ndarray:
    """How many of n positions fall into each bin."""
    return np.diff(-(-np.arange(bins + 1) * n // bins))


def _runs(hit: np.ndarray) -> str:
    """An SVG path of unit cells, horizontal neighbours merged."""
    out = []
    for y, line in enumerate(hit):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], line, [False]]).astype(np.int8)))
        out += [f"M{a} {y}h{b - a}v1h{a - b}z" for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return "".join(out)
