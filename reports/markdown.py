"""The GitHub step summary: one table, the ten gravest findings, never over the size at which the upload aborts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from opgauge.reference_engine.types import Finding, Record

from .legend import MARKS, STATUSES, acceptance, clean, element, number, share
from .tables import Tables, grid, offending, red, relation, repro_line, rule_findings, verdict, worst

LIMIT_BYTES = 900_000  # GitHub drops the whole summary beyond 1 MiB
TOP = 10
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~-])")


def escape(text: object, limit: int = 200) -> str:
    """A stranger's text that Markdown shows and does not obey; `@name` notifies nobody."""
    shown = clean(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", shown).replace("@", "@\N{WORD JOINER}").replace("://", ":\N{WORD JOINER}//")


def code(text: object, limit: int = 4000) -> str:
    """A fenced block whose fence is longer than any run of backticks inside."""
    shown = clean(text, limit)
    fence = "`" * max(3, 1 + max((len(m) for m in re.findall("`+", shown)), default=0))
    return f"{fence}\n{shown}\n{fence}"


def cell(row: Mapping[str, int] | None) -> str:
    """`✗ 2 fail · ✓ 180`, or a dash where nothing was tried."""
    if row is None or worst(row) is None:
        return "—"
    parts = []
    for status in STATUSES:
        if count := row[str(status)]:
            mark = MARKS[status]
            parts.append(f"**{mark.glyph} {count:,} {status}**" if mark.tone == "bad" else f"{mark.glyph} {count:,}")
    return " · ".join(parts)


def render(tables: Tables, records: Sequence[Record], findings: Sequence[Finding], meta: Mapping[str, Any]) -> str:
    """The summary, cut at a line's end with a note when it would be too long."""
    said = verdict(tables, findings, meta.get("exit_code"))
    sign = {"PASS": "✓", "FAIL": "✗"}.get(said.word, "—")
    lines = [f"## opgauge {sign} {said.word}", "", escape(said.text, 1000), ""]
    lines += _backends(tables) + _top(records, findings) + _matrix(tables)
    legend = " · ".join(f"{MARKS[s].glyph} {s}" for s in STATUSES)
    lines += ["", f"<sub>{legend}</sub>", ""]
    return cut(lines)


def cut(lines: Sequence[str], limit: int = LIMIT_BYTES) -> str:
    """Whole lines, at most `limit` bytes."""
    text = "\n".join(lines)
    if len(text.encode()) <= limit:
        return text
    note = "\n\n… cut here: the HTML and JSON reports hold everything.\n"
    room, kept = limit - len(note.encode()), []
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join(kept) + note


def _backends(tables: Tables) -> list[str]:
    names = ("judged", "elements", "exact", "within", "formula", "set_size")
    lines = ["| backend | " + " | ".join(n.replace("_", " ") for n in names) + " | untrusted | undecided |"]
    lines.append("|---|" + "--:|" * (len(names) + 2))
    for name, row in tables.backends.iterrows():
        values = [number(row[n]) for n in names]
        values += [share(row["untrusted"], row["judged"]), share(row["undecided"], row["elements"])]
        lines.append(f"| {escape(name, 40)} | " + " | ".join(values) + " |")
    return [*lines, ""] if len(tables.backends) else []


def _matrix(tables: Tables) -> list[str]:
    backends = [str(b) for b in tables.backends.index]
    if not backends:
        return []
    lines = ["### Operators", "", "| operator | " + " | ".join(escape(b, 40) for b in backends) + " |"]
    lines.append("|---|" + "---|" * len(backends))
    for op, cells in grid(tables):
        lines.append(f"| {escape(op, 80)} | " + " | ".join(cell(cells.get(b)) for b in backends) + " |")
    return lines


def _top(records: Sequence[Record], findings: Sequence[Finding]) -> list[str]:
    failing, other = red(records), rule_findings(findings, records)
    if not failing and not other:
        return []
    total = len(failing) + len(other)
    lines = [f"### Findings ({min(TOP, total)} of {total:,})" if total > TOP else "### Findings", ""]
    rules = other[: max(TOP - len(failing), TOP // 3)]  # red cases first, but they never hide the rest
    for record in failing[: TOP - len(rules)]:
        where = f"{escape(record.op, 80)} {escape(record.label, 80)} on {escape(record.backend, 60)}"
        lines.append(f"**{MARKS[record.status].glyph} {record.status}** {where}: {escape(record.message, 400)}")
        for row in offending(record.detail, 1):
            got = f"{element(row['index'])}: expected {acceptance(row['expected'])}, got {element(row['got'])}"
            lines.append(f"<br>element {escape(got)}")
        if said := relation(record.detail):
            lines.append(f"<br>{escape(said)}")
        lines += ["", code(repro_line(record)), ""]
    for finding in rules:
        said = f"{escape(finding.subject, 160)}: {escape(finding.message, 400)}"
        lines += [f"**! {escape(finding.rule, 60)}** {said}", ""]
    return lines
