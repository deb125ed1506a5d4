"""The matrix as one static SVG, for a README: glyph and count in every cell, light and dark, no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from opgauge.reference_engine.types import Finding, Record

from .legend import MARKS, STATUSES, clean
from .tables import Tables, check_counts, grid, verdict, worst

ROW, PAD, CHARACTER = 22, 12, 7.3  # heights and the width of a letter, in pixels
STYLE = """
svg{font:12px ui-monospace,Menlo,Consolas,monospace;--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--page:#fff;
--bad:#b3261e;--note:#8250df;--warn:#7d4e00;--ok:#116329}
@media(prefers-color-scheme:dark){svg{--ink:#f0f6fc;--soft:#9198a1;--line:#3d444d;--page:#0d1117;
--bad:#ff8a80;--note:#d2a8ff;--warn:#e3b341;--ok:#56d364}}
rect{fill:var(--page)}text{fill:var(--ink)}line{stroke:var(--line)}.b{font-weight:700}
.bad{fill:var(--bad);font-weight:700}.note{fill:var(--note)}.warn{fill:var(--warn)}.ok{fill:var(--ok)}
.dim,.none{fill:var(--soft)}
"""


def render(tables: Tables, records: Sequence[Record], findings: Sequence[Finding], meta: Mapping[str, Any]) -> str:
    """Raises: OpgaugeError when tables and records disagree."""
    check_counts(tables, records)
    said = verdict(tables, findings, meta.get("exit_code"))
    backends = [str(b) for b in tables.backends.index]
    heads = [("b", clean("operator", 60)), *(("b", clean(name, 40)) for name in backends)]
    rows = [heads, *([("", clean(op, 60)), *(cell(cells.get(b)) for b in backends)] for op, cells in grid(tables))]
    widths = [max(len(row[i][1]) for row in rows) * CHARACTER + PAD for i in range(len(heads))]
    title = f"opgauge {said.word}: {clean(said.text, 400)}"
    width = max(sum(widths) + PAD, min(len(title), 110) * CHARACTER + 2 * PAD)
    height = (len(rows) + 1) * ROW + 2 * PAD
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect width="100%" height="100%"/>{_text(PAD, ROW, said.tone, clean(title, 110))}',
    ]
    for i, row in enumerate(rows):
        y = (i + 2) * ROW + PAD / 2
        out.append(f'<line x1="{PAD}" x2="{width - PAD:.0f}" y1="{y - ROW + 6:g}" y2="{y - ROW + 6:g}"/>')
        x = float(PAD)
        for (tone, said_here), wide in zip(row, widths, strict=True):
            out.append(_text(x, y, tone, said_here))
            x += wide
    return "\n".join([*out, "</svg>"]) + "\n"


def cell(row: Mapping[str, int] | None) -> tuple[str, str]:
    """(colour class, `✗ 2 fail ✓ 180`): every status that occurs, the gravest first."""
    status = worst(row) if row is not None else None
    if row is None or status is None:
        return "none", "—"
    parts = [
        f"{MARKS[s].glyph} {count:,}{f' {s}' if MARKS[s].tone == 'bad' else ''}"
        for s in STATUSES
        if (count := int(row[str(s)]))
    ]
    return MARKS[status].tone, "  ".join(parts)


def _text(x: float, y: float, tone: str, said: str) -> str:
    return f'<text x="{x:.0f}" y="{y:g}"{f" class={chr(34)}{tone}{chr(34)}" if tone else ""}>{escape(said)}</text>'
