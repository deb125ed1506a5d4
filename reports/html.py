"""The HTML report: one offline file that a strict content security policy holds to its own style and script."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from opgauge.reference_engine.types import FINDINGS, Finding, Record, Status

from . import card
from .diff import KINDS, operators
from .extras import NOTHING, Extras
from .failures import case_anchor, failures
from .legend import MARKS, MISBEHAVED, NO_RESULT, RED, STATUSES, acceptance, clean, element, number, share
from .plots import heat, trend
from .shapes import maps
from .strips import strips
from .tables import Tables, check_counts, grid, groups, repro_line, rule_findings, totals, verdict

__all__ = ["anchor", "cell", "heat", "render"]

LIMIT_BYTES = 500_000
DELTA = 20  # operators of the comparison with the run before
PHONE, HEADING_LETTER = 356, 6.9  # pixels: the matrix on the narrowest phone, a letter of its heading
FAILURES = 60  # shown in full; four times as many are listed by their line, the rest counted

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


def render(
    tables: Tables,
    records: Sequence[Record],
    findings: Sequence[Finding],
    meta: Mapping[str, Any],
    extras: Extras = NOTHING,
) -> str:
    """The page. Raises: OpgaugeError when tables and records disagree.

    Shows fewer failures in full, then fewer dtype rows, rather than grow beyond `LIMIT_BYTES`.
    """
    check_counts(tables, records)
    context = _context(tables, records, findings, meta, extras)
    rows, made = _rows(tables), ""
    for full, dtypes in ((FAILURES, True), (FAILURES // 3, True), (FAILURES // 3, False), (5, False)):
        shown = context | failures(records, full) | {"rows": rows, "drill": dtypes}
        made = page("report.html.j2", shown, tables.backends.index)
        if len(made.encode()) <= LIMIT_BYTES:
            break
    return made


def page(file: str, context: Mapping[str, Any], columns: Sequence[str] = ("",)) -> str:
    """A template filled in, under a policy that admits its own style and script; `columns` head its matrix."""
    style = read("report.css") + matrix_style(columns)
    policy = (
        f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(SCRIPT)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return template(file).render(context, policy=Markup(policy), style=Markup(style), script=Markup(SCRIPT)) + "\n"


def matrix_style(columns: Sequence[str]) -> str:
    """The number of columns, as style attributes are closed by the policy; on a phone, what heads each.

    Where the headings do not fit side by side, every cell is headed by its own.
    """
    shown = [clean(c, 40) for c in columns] or [""]
    style = f":root{{--backends:{len(shown)}}}\n"
    word = max(len(part) for name in shown for part in _BREAKS.split(name))
    if word * HEADING_LETTER + 8 <= PHONE // len(shown):
        return style
    labels = "".join(f'.matrix td:nth-child({i}):before{{content:"{_css(name)}"}}' for i, name in enumerate(shown, 2))
    label = ".matrix td:before{display:block;font-size:11px;color:var(--soft);overflow-wrap:anywhere}"
    few = f":root{{--backends:{min(3, len(shown))}}}.matrix thead{{display:none!important}}"
    return f"{style}@media (max-width:720px){{{few}{label}{labels}}}\n"


def _css(text: str) -> str:
    """A stranger's text inside a string of a style sheet; it breaks where `name` would let it."""
    text = "\u200b".join(part for part in _BREAKS.split(text) if part)
    return "".join(c if c.isascii() and (c.isalnum() or c in " .=:+-_~,") else f"\\{ord(c):x} " for c in text)


def read(file: str) -> str:
    """A file of the folder of templates."""
    return files(__package__).joinpath("templates", file).read_text("utf-8")


@functools.cache
def template(file: str) -> jinja2.Template:
    env = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    env.filters |= {f.__name__: f for f in (clean, number, element, acceptance, anchor, name)}
    return env.from_string(read(file))


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def anchor(*words: object) -> str:
    """A fragment that names an operator or a cell: `op=Conv`, `red=Conv=wgpu`."""
    return quote("=".join(clean(w, 120) for w in words), safe="=:,.-_")


def name(word: object, limit: int = 80) -> Markup:
    """A name that may break after its domain, or between a backend's name, version and options."""
    return Markup("<wbr>").join(part for part in _BREAKS.split(clean(word, limit)) if part)


_BREAKS = re.compile(r"(?<=::)|(?<=[a-z0-9][:/,])(?!:)|(?===)|(?=~)")


def _context(
    tables: Tables, records: Sequence[Record], findings: Sequence[Finding], meta: Mapping[str, Any], extras: Extras
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
        "names": [(str(b), _version(str(b), known.get(b) or {})) for b in tables.backends.index],
        "cards": _cards(tables, meta),
        "fingerprints": [(clean(name, 60), len(rows), card.alike(rows)) for name, rows in extras.cards.items()],
        "apart": card.apart(extras.cards),
        "delta": _delta(extras),
        "shapes": maps(records),
        "strips": strips(records),
        "moves": extras.moves,
        "trends": _trends(extras),
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


def _version(name: str, info: Mapping[str, Any]) -> str:
    """A backend's version where its name does not say it; of `name==1.2` and `1.2-77-branch` the name says enough."""
    version, asked = str(info.get("version", "")), name.partition("==")[2].partition(":")[0]
    return "" if asked and re.match(rf"{re.escape(asked)}(?![.\w])", version) else version


def _run(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    first = ("command", "version", "started", "seconds", "seed", "budget")
    apart = {"backends", "machine", "verdict", "exit_code"}
    keys = [k for k in first if k in meta] + sorted(k for k in meta if k not in first and k not in apart)
    return [(k.replace("_", " "), clean(meta[k], 1000)) for k in keys]


def _delta(extras: Extras) -> dict[str, Any] | None:
    """What changed since the run before: numbers by kind, then operators with a case of each kind."""
    found = extras.before
    if found is None:
        return None
    rows = []
    for op, counted in operators(found.changes):
        shown = []
        for kind in KINDS:
            change = next((c for c in found.changes if c.kind == kind and c.after.op == op), None)
            if change is not None:
                shown.append((kind, counted[kind], change, repro_line(change.after, 600), case_anchor(change.after)))
        rows.append({"op": op, "kinds": shown})
    numbers = [(kind, len(found.of(kind))) for kind in KINDS]
    return {"names": found.names, "common": found.common, "gone": found.gone, "new": found.new} | {
        "numbers": [n for n in numbers if n[1] or n[0] in KINDS[:3]],
        "rows": rows[:DELTA],
        "more": max(0, len(rows) - DELTA),
    }


def _trends(extras: Extras) -> list[dict[str, Any]]:
    out = []
    for row in extras.trends:
        if row.points:
            where = [position for position, _, _ in row.changes]
            label = f"{row.name}: {len(row.points)} measurements, last ratio {row.points[-1][0]:.3g}"
            last = row.points[-1]
            out.append(
                {"name": row.name, "picture": trend(row.points, where, label), "changes": row.changes}
                | {
                    "last": f"{last[0]:.3g}" + (f" ({last[1]:.3g} to {last[2]:.3g})" if last[1] < last[2] else ""),
                    "from": row.labels[0],
                    "to": row.labels[-1],
                }
            )
    return out


def _cards(tables: Tables, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    known = meta.get("backends") or {}
    cards = []
    for name in dict.fromkeys([*map(str, tables.backends.index), *map(str, known)]):
        info = dict(known.get(name) or {})
        row = tables.backends.loc[name] if name in tables.backends.index else None
        said: list[tuple[str, int, int]] = []
        for backend, formula in tables.formulas.index:
            if backend == name and formula not in ("exact", "within"):
                cases, ops = tables.formulas.loc[(backend, formula)]
                said.append((str(formula), int(cases), int(ops)))
        cards.append(
            {
                "name": name,
                "version": _version(name, info),
                "policy": str(info.pop("policy", "")),
                "info": [(clean(k, 40), clean(v, 300)) for k, v in info.items()],
                "formulas": sorted(said, key=lambda f: -int(f[1])),
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
    return _cell(tuple((s, int(row[str(s)])) for s in STATUSES if row[str(s)]), href) if row else NO_CELL


NO_CELL = Markup('<td class="none">—')


@functools.lru_cache(maxsize=4096)
def _cell(counted: tuple[tuple[Status, int], ...], href: str) -> Markup:
    # Plain strings: the only stranger's text is the fragment, which `anchor` has quoted.
    if not counted:
        return NO_CELL
    parts = []
    for status, count in counted:
        mark = MARKS[status]
        bad = mark.tone == "bad"
        text = f"<i class={mark.tone}>{mark.glyph} {count:,}{f' {status}' if bad else ''}</i>"
        parts.append(f'<a href="#{escape(href)}">{text}</a>' if bad and href else text)
    if len(parts) > 1:
        parts.append(f"<small>of {sum(count for _, count in counted):,}</small>")
    return Markup(f"<td class={MARKS[counted[0][0]].tone}>{' '.join(parts)}")


def _rows(tables: Tables) -> list[dict[str, Any]]:
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
                "labels": lines,
            }
        )
    return out
