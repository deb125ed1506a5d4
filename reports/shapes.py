"""Which shapes fail: sizes modulo the widths of kernels, channels, pads, read back from the ids of cases."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from opgauge.reference_engine.types import FINDINGS, Record, Status

from .plots import residues

WIDTHS = (4, 8, 16, 32)
CASES = 1500  # of one operator on one backend that are read
MAPS = 12
LEAST = 4  # cases on either side of a split
CLEAR = 0.5  # difference of the two shares from which a split is worth a sentence
_INPUT = re.compile(r"^(\w+)!?=\w+:(-|[\dx]+):")
_ATTRIBUTE = re.compile(r"^@(\w+)=[ifsIFS]:(.*)$")
_TRIED = frozenset({Status.PASS, Status.DEVIATION, Status.UNTRUSTED, *FINDINGS})


class ShapeMap(NamedTuple):
    """Where one operator fails on one backend. `traits` are (what, failing, cases) of parts of the cases."""

    op: str
    backend: str
    failing: int
    cases: int
    said: str
    variable: str
    picture: Markup | None
    traits: tuple[tuple[str, int, int], ...]


def features(case: str) -> tuple[dict[str, int], dict[str, str]]:
    """Sizes and traits that a case id spells: ({"K": 37, ...}, {"pads": "some", ...}); empty where it spells none."""
    shapes, attributes = [], {}
    for field in case.split("/")[3:-3]:
        if match := _INPUT.match(field):
            shapes.append(() if match[2] == "-" else tuple(map(int, match[2].split("x"))))
        elif match := _ATTRIBUTE.match(field):
            attributes[match[1]] = match[2]
    shapes = [s for s in shapes if s]
    if not shapes:
        return {}, {}
    op, first = case.partition("/")[0].rpartition("::")[2], shapes[0]
    weight = next((s for s in shapes[1:] if len(s) == len(first)), ())
    sizes = {"last axis": first[-1], "elements": math.prod(first)}
    if "Conv" in op and len(first) > 2 and weight:
        sizes = {"K": math.prod(weight[1:]), "channels": first[1], "output channels": weight[0], **sizes}
    elif "MatMul" in op or "Gemm" in op:
        sizes = {"K": first[-1], "elements": math.prod(first)}
        sizes |= {"M": first[-2]} if len(first) > 1 else {}
        other = next((s for s in shapes[1:] if len(s) > 1), ())
        sizes |= {"N": other[-1]} if other else {}
    elif len(first) > 2:
        sizes["channels"] = first[1]
    traits = {"rank": str(len(first))}
    for name, text in attributes.items():
        numbers = text.split(",")
        if name == "pads":
            traits[name] = "some" if any(n not in ("0", "") for n in numbers) else "none"
        elif name in ("strides", "dilations"):
            traits[name] = "more than 1" if any(n not in ("1", "") for n in numbers) else "1"
        elif len(text) <= 24:
            traits[name] = text
    return sizes, traits


def maps(records: Iterable[Record], limit: int = MAPS) -> list[ShapeMap]:
    """One map for each operator and backend with a failing case, those that a sentence explains first."""
    gathered: defaultdict[tuple[str, str], list[tuple[str, bool]]] = defaultdict(list)
    red: Counter[tuple[str, str]] = Counter()
    rows = [r for r in records if r.status in _TRIED and "/" in r.case]
    for record in rows:
        red[record.op, record.backend] += record.status in FINDINGS
    chosen = {key for key, count in red.most_common(2 * limit) if count}
    for record in rows:
        key = (record.op, record.backend)
        if key in chosen and len(gathered[key]) < CASES:
            gathered[key].append((record.case, record.status in FINDINGS))
    found = [shape_map(op, backend, cases) for (op, backend), cases in gathered.items()]
    return sorted((m for m in found if m), key=lambda m: (not m.said, -m.failing, m.op))[:limit]


def shape_map(op: str, backend: str, cases: Sequence[tuple[str, bool]]) -> ShapeMap | None:
    read = [(*features(case), failed) for case, failed in cases]
    read = [row for row in read if row[0]]
    failing = sum(row[2] for row in read)
    if len(read) < 2 * LEAST or not failing:
        return None
    said, variable = explanation(read)
    table = {w: _residues(read, variable, w) for w in WIDTHS}
    counted: Counter[tuple[str, str]] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    for _, traits, bad in read:
        for item in traits.items():
            counted[item] += 1
            failed[item] += bad
    several = {name for name, _ in counted if sum(n == name for n, _ in counted) > 1}
    told = [(f"{n} {v}", failed[n, v], counted[n, v]) for n, v in sorted(counted) if n in several]
    return ShapeMap(op, backend, failing, len(read), said, variable, residues(table), tuple(told[:16]))


Read = Sequence[tuple[Mapping[str, int], Mapping[str, str], bool]]


def explanation(read: Read) -> tuple[str, str]:
    """(a sentence for the sharpest split of failing from passing cases, or nothing; the size to draw)."""
    names = list(dict.fromkeys(name for sizes, _, _ in read for name in sizes))
    best: tuple[float, int, str, str] = (0.0, 0, "", names[0])
    for rank, name in enumerate(names):
        values = [(sizes[name], bad) for sizes, _, bad in read if name in sizes]
        splits: list[tuple[str, str, Any]] = [
            (f"{name} mod {w} ≠ 0", f"{name} mod {w} = 0", lambda v, w=w: v % w != 0) for w in WIDTHS
        ]
        edges = sorted({v for v, bad in values if bad})
        splits += [(f"{name} ≥ {edges[0]:,}", f"{name} < {edges[0]:,}", lambda v, e=edges[0]: v >= e)] if edges else []
        best = max(best, *(_score(values, split, rank, name) for split in splits), key=lambda s: (s[0], s[1]))
    for name in dict.fromkeys(n for _, traits, _ in read for n in traits):
        for value in dict.fromkeys(t[name] for _, t, _ in read if name in t):
            held = [(int(t.get(name) == value), bad) for _, t, bad in read]
            scored = _score(held, (f"{name} {value}", f"other {name}", bool), 99, best[3])
            best = max(best, scored, key=lambda s: (s[0], s[1]))
    return (best[2], best[3]) if best[0] >= CLEAR else ("", best[3])


def _score(values: Sequence[tuple[int, bool]], split: tuple[str, str, Any], rank: int, name: str) -> Any:
    """How far the shares of failing cases differ between the sides; earlier sizes win a draw."""
    yes, no, holds = split
    inside, beyond = [b for v, b in values if holds(v)], [b for v, b in values if not holds(v)]
    if min(len(inside), len(beyond)) < LEAST:
        return (0.0, 0, "", name)
    apart = sum(inside) / len(inside) - sum(beyond) / len(beyond)
    said = f"{yes}: {sum(inside):,} of {len(inside):,} fail; {no}: {sum(beyond):,} of {len(beyond):,}"
    return (round(apart, 6), -rank, said, name)


def _residues(read: Read, name: str, width: int) -> list[tuple[int, int]]:
    cells = [[0, 0] for _ in range(width)]
    for sizes, _, bad in read:
        if name in sizes:
            cells[sizes[name] % width][0] += 1
            cells[sizes[name] % width][1] += bad
    return [(a, b) for a, b in cells]
