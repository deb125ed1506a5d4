"""Small pictures as inline SVG without a style of their own: the page's policy and its dark mode hold for them too.

Drawn by hand: a plotting library's SVG brings style attributes, which the policy of the page forbids, and is a
hundred times as large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape

HEAT = (64, 6)  # columns, rows of the picture of outside elements
BARS = (220, 84)  # pixels of a histogram
CLOUD = (220, 96)  # and of a scatter plot
LINE = (560, 96)  # and of a trend
LEVELS = (0.02, 0.2)  # shares of a bin above which it is darker


def svg(size: tuple[int, int], label: str, inside: Sequence[str], kind: str) -> Markup:
    width, height = size
    return Markup(
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(inside)}</svg>'
    )


def _text(x: float, y: float, said: object, anchor: str = "") -> str:
    word = f' class="{anchor}"' if anchor else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{word}>{escape(said)}</text>'


# ---- where


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
    level = np.select([part == 0, part <= LEVELS[0], part <= LEVELS[1]], [0, 1, 2], 3)
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


# ---- how far


SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def bucket_name(bucket: int) -> str:
    """`0`, `+1`, `−2…3`, `+2¹⁷`: the errors that a bucket holds; a large one is named by the least of them."""
    if not bucket:
        return "0"
    sign, power = ("+" if bucket > 0 else "−"), abs(bucket) - 1
    if power > 4:
        return f"{sign}2{str(power).translate(SUPERSCRIPTS)}"
    return f"{sign}{2**power}" if not power else f"{sign}{2**power}…{2 ** (power + 1) - 1}"


def histogram(found: Any) -> Markup | None:
    """Elements by size and sign of their error, inside and outside the set; heights are logarithmic."""
    rows = found.get("histogram") if isinstance(found, Mapping) else None
    try:
        counted = {int(b): (int(i), int(o)) for b, i, o in rows or ()}
    except (TypeError, ValueError):
        return None
    if not counted or max(map(abs, counted)) > 64:
        return None
    low, high = min(counted), max(counted)
    width, height = BARS
    base, room = height - 14, height - 28
    step = min(width / (high - low + 1), 48.0)
    left = (width - step * (high - low + 1)) / 2
    most = math.log1p(max(i + o for i, o in counted.values()))
    out = [f'<path class="axis" d="M0 {base}h{width}"/>']
    for bucket, (inside, outside) in sorted(counted.items()):
        x, thick = left + (bucket - low) * step + 1, step - 2
        tall = room * math.log1p(inside + outside) / most if most else 0
        wrong = tall * outside / (inside + outside) if inside + outside else 0
        if inside:
            out.append(_bar("in", x, base - tall, thick, tall - wrong))
        if outside:
            out.append(_bar("out", x, base - wrong, thick, wrong))
        if step >= 22:
            out.append(_text(x + step / 2 - 1, base - tall - 3, f"{inside + outside:,}", "mid"))
    shown = {low, 0, high} if step < 48 else set(counted)
    ends = {low: "", high: "end"} if step < 48 else {}
    for bucket in sorted(shown & (set(counted) | {0})):
        if low <= bucket <= high:
            x = left + (bucket - low + 0.5) * step
            x = left if ends.get(bucket) == "" else left + (high - low + 1) * step if bucket in ends else x
            out.append(_text(x, height - 2, bucket_name(bucket), ends.get(bucket, "mid")))
    unit = str(found.get("unit", ""))[:20]
    said = "; ".join(f"{bucket_name(b)}: {i + o:,}, {o:,} outside" for b, (i, o) in sorted(counted.items()))
    return svg(BARS, f"errors in {unit}: {said}"[:600], out, "bars")


def _bar(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def scatter(found: Any) -> Markup | None:
    """Error (up, signed, logarithmic) against magnitude (to the right, logarithmic): × outside the set, dots inside."""
    rows = found.get("points") if isinstance(found, Mapping) else None
    try:
        points = [(float(m), float(e), bool(o)) for m, e, o in rows or ()]
    except (TypeError, ValueError):
        return None
    points = [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]
    if len(points) < 3:
        return None
    sizes = [p[0] for p in points if p[0] > 0]
    least, most = (min(sizes), max(sizes)) if sizes else (1.0, 1.0)
    largest = max(abs(p[1]) for p in points) or 1.0
    width, height = CLOUD
    left, right, top, base = 40, width - 8, 6, height - 18
    middle = (top + base) / 2
    span = math.log(most / least) or 1.0

    def across(value: float) -> float:
        return left if value <= 0 else left + 6 + (right - left - 6) * math.log(value / least) / span

    def up(value: float) -> float:
        return middle - math.copysign((middle - top) * math.log1p(abs(value)) / math.log1p(largest), value)

    dots = "".join(f"M{across(m):.1f} {up(e):.1f}h.01" for m, e, o in points if not o)
    crosses = "".join(f"M{across(m) - 2:.1f} {up(e) - 2:.1f}l4 4m0-4l-4 4" for m, e, o in points if o)
    out = [
        f'<path class="axis" d="M0 {middle:.1f}h{width}"/>',
        f'<path class="dots" d="{dots}"/><path class="crosses" d="{crosses}"/>',
        _text(left, height - 3, f"{least:.3g}"),
        _text(width - 2, height - 3, f"{most:.3g}", "end"),
        _text(2, 10, f"±{largest:.2g}"),
    ]
    count = sum(p[2] for p in points)
    return svg(CLOUD, f"error against magnitude of {len(points)} elements, {count} outside", out, "cloud")


# ---- over time


def trend(values: Sequence[tuple[float, float, float]], changes: Sequence[int], label: str) -> Markup:
    """A measured ratio with its interval, run by run; a change point is a vertical line with a triangle."""
    width, height = LINE
    low, high = min(v[1] for v in values), max(v[2] for v in values)
    span = (high - low) or abs(high) or 1.0
    low, high = low - 0.08 * span, high + 0.08 * span
    step = (width - 60) / max(1, len(values) - 1)

    def x(i: float) -> float:
        return 50 + i * step

    def y(value: float) -> float:
        return 6 + (height - 24) * (high - value) / (high - low)

    area = "M" + "L".join(f"{x(i):.1f} {y(v[2]):.1f}" for i, v in enumerate(values))
    area += "L" + "L".join(f"{x(i):.1f} {y(values[i][1]):.1f}" for i in reversed(range(len(values)))) + "z"
    line = "M" + "L".join(f"{x(i):.1f} {y(v[0]):.1f}" for i, v in enumerate(values))
    marks = "".join(f"M{x(i - 0.5):.1f} 4v{height - 20}m-4 0h8l-4-6z" for i in changes)
    out = [f'<path class="band" d="{area}"/><path class="line" d="{line}"/>']
    out += [f'<path class="change" d="{marks}"/>'] if marks else []
    out += [_text(2, y(v) + 4, f"{v:.3g}") for v in dict.fromkeys((low + 0.08 * span, high - 0.08 * span))]
    return svg(LINE, label, out, "trend")


# ---- which shapes


def residues(table: Mapping[int, Sequence[tuple[int, int]]], cell: int = 7) -> Markup:
    """For each width a row: cell r holds the cases whose size leaves r; darker where more of them fail."""
    gap, left = 4, 46
    wide = left + cell * max(table)
    tall = (2 * cell + gap) * len(table)
    out = []
    for row, (width, cells) in enumerate(table.items()):
        y = row * (2 * cell + gap)
        step = cell * max(table) / width
        out.append(_text(0, y + 2 * cell - 3, f"mod {width}"))
        levels: dict[str, list[str]] = {}
        for r, (cases, failed) in enumerate(cells):
            if cases:
                part = failed / cases
                name = "p" if not failed else "f1" if part < 0.34 else "f2" if part < 0.95 else "f3"
                levels.setdefault(name, []).append(
                    f"M{left + r * step:.1f} {y}h{step - 1:.1f}v{2 * cell}h-{step - 1:.1f}z"
                )
        out += [f'<path class="{name}" d="{"".join(paths)}"/>' for name, paths in sorted(levels.items())]
    said = "; ".join(
        f"mod {w}: failing at {', '.join(str(r) for r, (_, f) in enumerate(cells) if f) or 'none'}"
        for w, cells in table.items()
    )
    return svg((wide, tall), said[:600], out, "residues")


def strip(statuses: Sequence[str], first: int | None, label: str) -> Markup:
    """A model's nodes in order, one cell each: low where inside, full where outside, the first outside pointed at."""
    width, height = 640, 30
    step = width / max(1, len(statuses))
    shape = {"bad": (8, 16, "f3"), "ok": (14, 10, "p"), "note": (11, 13, "n")}
    paths: dict[str, list[str]] = {}
    for i, status in enumerate(statuses):
        y, tall, name = shape.get(status, (18, 6, "d"))
        paths.setdefault(name, []).append(
            f"M{i * step:.1f} {y}h{max(step - 1, 0.6):.1f}v{tall}h-{max(step - 1, 0.6):.1f}z"
        )
    out = [f'<path class="{name}" d="{"".join(parts)}"/>' for name, parts in sorted(paths.items())]
    if first is not None:
        x = (first + 0.5) * step
        out.append(f'<path class="change" d="M{x - 4:.1f} 0h8l-4 6z"/>')
    return svg((width, height), label, out, "strip")
