"""The terminal summary: what ran, what is red, how to see it again."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from opgauge.reference_engine.types import Finding, Record

from .legend import MARKS, NO_RESULT, STATUSES, acceptance, clean, element, number, share
from .tables import Tables, grid, hints, offending, red, repro_line, rule_findings, smaller, verdict

STYLES = {"bad": "bold red", "note": "magenta", "warn": "yellow", "dim": "dim", "ok": "green", "none": "bold yellow"}
FAILURES = 10
ELEMENTS = 4


def verdict_line(tables: Tables, findings: Sequence[Finding], exit_code: int | None = None) -> str:
    """The last line of a run: one word, then the numbers behind it."""
    said = verdict(tables, findings, exit_code)
    return f"opgauge: {said.word}: {said.text}"


def cell(row: Mapping[str, int]) -> Text:
    """`✗ 2 fail  ✓ 180`: the gravest first, every status that occurs with its count."""
    text = Text()
    for status in STATUSES:
        if count := int(row[str(status)]):
            mark = MARKS[status]
            word = f" {status}" if mark.tone == "bad" else ""
            text.append(f"{'  ' if text else ''}{mark.glyph} {count:,}{word}", STYLES[mark.tone])
    return text or Text("—", "dim")


def matrix(tables: Tables) -> Table:
    """Operator by backend; operators with something red first."""
    backends = [str(b) for b in tables.backends.index]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("operator", no_wrap=True)
    for name in backends:
        table.add_column(Text(clean(name, 30).replace("==", "\n==")), overflow="fold")
    for op, cells in grid(tables):
        table.add_row(Text(clean(op, 40)), *(cell(cells[b]) if b in cells else Text("—", "dim") for b in backends))
    return table


def denominators(tables: Tables, meta: Mapping[str, Any]) -> Table:
    """Per backend: what the verdict rests on."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("backend", no_wrap=True)
    for name in ("judged", "elements", "exact", "within", "formula", "set size", "untrusted", "undecided", "policy"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    known = meta.get("backends") or {}
    for name, row in tables.backends.iterrows():
        table.add_row(
            Text(clean(name, 30)),
            *(number(row[k]) for k in ("judged", "elements", "exact", "within", "formula", "set_size")),
            share(row["untrusted"], row["judged"]),
            share(row["undecided"], row["elements"]),
            Text(clean((known.get(name) or {}).get("policy", ""), 60)),
        )
    return table


def failure(record: Record) -> Text:
    """One red record: what, where, the first offending elements and the line that runs it again."""
    mark = MARKS[record.status]
    text = Text()
    text.append(f"{mark.glyph} {record.status}", STYLES[mark.tone])
    text.append(f"  {clean(record.op, 60)} {clean(record.label, 60)} on {clean(record.backend, 60)}", "bold")
    if record.message:
        text.append(f"\n  {clean(record.message, 400)}")
    for row in offending(record.detail, ELEMENTS):
        text.append(f"\n  [{element(row['index'])}] expected {acceptance(row['expected'])} got {element(row['got'])}")
        if row["real"] is not None:
            text.append(f"; real {element(row['real'])}")
        if row["tie_distance"] is not None:
            text.append(f"; {element(row['tie_distance'])} from the nearest tie")
    for said in hints(record.detail):
        text.append(f"\n  {said}")
    text.append(f"\n  {'smaller case: ' if smaller(record.detail) else ''}{repro_line(record)}", "cyan")
    return text


def print_summary(
    console: Console, tables: Tables, records: Sequence[Record], findings: Sequence[Finding], meta: Mapping[str, Any]
) -> None:
    """Print the matrix, the denominators, the first failures and findings, and the verdict line last."""
    exit_code = meta.get("exit_code")
    if not tables.records:
        console.print(Text(NO_RESULT, "bold yellow"))
    else:
        console.print(matrix(tables))
        console.print()
        console.print(denominators(tables, meta))
    failing = red(records)
    for record in failing[:FAILURES]:
        console.print()
        console.print(failure(record), soft_wrap=True)
    if len(failing) > FAILURES:
        console.print(f"\n… and {len(failing) - FAILURES:,} more red cases: see the HTML or JSON report")
    other = rule_findings(findings, records)
    for finding in other[:FAILURES]:
        said = f"\n! {clean(finding.rule, 60)}: {clean(finding.subject, 120)}: {clean(finding.message, 400)}"
        console.print(Text(said), soft_wrap=True)
    if len(other) > FAILURES:
        console.print(f"\n… and {len(other) - FAILURES:,} more findings")
    console.print()
    line = Text(verdict_line(tables, findings, exit_code), STYLES[verdict(tables, findings, exit_code).tone])
    console.print(line, soft_wrap=True)


def summary(tables: Tables, records: Sequence[Record], findings: Sequence[Finding], meta: Mapping[str, Any]) -> str:
    """The same as plain text, 140 columns wide."""
    console = Console(file=io.StringIO(), width=140, color_system=None, highlight=False)
    print_summary(console, tables, records, findings, meta)
    out = console.file
    assert isinstance(out, io.StringIO)
    return out.getvalue()
