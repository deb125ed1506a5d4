"""Counts of a model side by side: our graph before and after rules, onnxruntime's at each level."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from opgauge.reference_engine.types import Record

from .graph_diff import difference as difference_by_node
from .model_jobs import COUNTER, UNOPTIMISED

Column = Mapping[str, int]
# What moves data or converts it, without being asked for by the model: (row, our kinds, onnxruntime's operators).
GRAY: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("Transpose", ("DataMove.transpose",), ("Transpose",)),
    ("Copy", ("DataMove.copy",), ("Identity", "MemcpyToHost", "MemcpyFromHost")),
    ("Cast", ("Elementwise.cast",), ("Cast",)),
    ("Reorder", (), ("com.microsoft.nchwc::ReorderInput", "com.microsoft.nchwc::ReorderOutput")),
    ("Concat, Slice, Pad, Expand", ("DataMove.concat", "DataMove.slice", "DataMove.pad", "DataMove.expand"),
     ("Concat", "Slice", "Split", "Pad", "Expand")),
    ("QuantizeLinear", ("Quantize",), ("QuantizeLinear", "com.microsoft::QuantizeLinear", "DynamicQuantizeLinear")),
    ("DequantizeLinear", ("Dequantize",), ("DequantizeLinear", "com.microsoft::DequantizeLinear")),
)  # fmt: skip
SHOWN = 6
TOTALS = ("dispatch_count", "moved_bytes", "written_bytes", "fallback_count", "transfer_count", "peak_bytes")


def columns(records: Sequence[Record]) -> dict[str, dict[str, int]]:
    """Counts by column of one model's records: a backend, or a level of onnxruntime."""
    found: dict[str, dict[str, int]] = {}
    for record in records:
        if not record.counts:
            continue
        if record.backend == COUNTER:
            for key, value in record.counts.items():
                level, _, kind = key.partition("/")
                found.setdefault(f"onnxruntime {level}", {})[kind] = value
        else:
            found[record.backend] = dict(record.counts)
    if UNOPTIMISED in found:  # first, so that a table reads from before to after
        found = {UNOPTIMISED: found.pop(UNOPTIMISED), **found}
    return found


def movers(listing: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Of a listing of nodes those that a gray row counts."""
    gray_kinds = {kind for _, ours, theirs in GRAY for kind in (*ours, *theirs)}
    kept = {name: [kind for kind in kinds if kind in gray_kinds] for name, kinds in listing.items()}
    return {name: kinds for name, kinds in kept.items() if kinds}


def came(records: Sequence[Record], before: str, after: str) -> list[str]:
    """What moves or converts data in `after` and did not in `before`, with the node."""
    found: dict[str, dict[str, list[str]]] = {}
    for record in records:
        found.update(record.detail.get("movers") or {})
    sides = [found.get(name, {}) for name in (before, after)]
    was, now = (Counter(kind for kinds in side.values() for kind in kinds) for side in sides)
    more = now - was  # names change where nodes only moved: a kind that stays as many did not come
    return [
        f"{kind} at {change.name}"
        for change in difference_by_node(*sides)
        for kind in dict.fromkeys(change.after)
        if more[kind] and list(change.after).count(kind) > list(change.before).count(kind)
    ]


def listed(nodes: Sequence[str]) -> str:
    """The first of them, and how many more."""
    more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
    return ", ".join(nodes[:SHOWN]) + more


def is_ours(column: Column) -> bool:
    return "dispatch_count" in column


def gray(column: Column) -> dict[str, int]:
    """The gray rows of a column, and its totals."""
    rows = {
        name: sum(column.get(f"{k}_count", 0) for k in ours)
        if is_ours(column)
        else sum(column.get(k, 0) for k in theirs)
        for name, ours, theirs in GRAY
    }
    if is_ours(column):
        return rows | {name: column[name] for name in TOTALS if name in column}
    return rows | {"dispatch_count": sum(column.values())}


def difference(before: Column, after: Column) -> dict[str, tuple[int, int]]:
    """Kinds whose number differs: (before, after)."""
    keys = sorted(before.keys() | after.keys())
    return {k: (before.get(k, 0), after.get(k, 0)) for k in keys if before.get(k, 0) != after.get(k, 0)}


def pairs(found: Mapping[str, Column]) -> list[tuple[str, str]]:
    """Which columns are worth a diff: before and after our rules, onnxruntime's levels one by one."""
    names = list(found)
    wanted = [(UNOPTIMISED, n) for n in names if n != UNOPTIMISED and is_ours(found[n]) and UNOPTIMISED in found]
    levels = [n for n in names if not is_ours(found[n])]
    return wanted + [(a, b) for a, b in itertools.pairwise(levels) if dict(found[a]) != dict(found[b])]


def table(found: Mapping[str, Column]) -> list[list[str]]:
    """A header and one row for each gray count."""
    summed = {name: gray(column) for name, column in found.items()}
    names = dict.fromkeys(k for s in summed.values() for k in s)
    return [["", *found], *([n, *(f"{s[n]:,}" if n in s else "" for s in summed.values())] for n in names)]
