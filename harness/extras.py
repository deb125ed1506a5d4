"""What a report shows besides its run, gathered from the folder of runs and the baselines: see `reports.extras`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.types import Record
from opgauge.reports import card
from opgauge.reports.diff import compare
from opgauge.reports.extras import Extras, Moves, Trend

from . import counts_gate, model_counts, store
from . import trends as histories

MODELS = 12
TRENDS = 12


def collect(
    records: Sequence[Record],
    backends: Mapping[str, Any],
    before: Path | None = None,
    name: str = "this run",
    cards: Sequence[Mapping[str, Any]] = (),
) -> Extras:
    """Everything that is there; what is missing is left out, since a report of a run must not fail for the rest."""
    difference = None
    if before is not None:
        difference = compare(store.read(before).records, records, (before.parent.name, name))
    folder = Path(os.environ.get("OPGAUGE_BASELINES") or "baselines")
    told = {str(each["backend"]): card.properties(each["answers"]) for each in cards}
    return Extras(difference, moves(records, backends), trends(folder), told)


def moves(records: Sequence[Record], backends: Mapping[str, Any]) -> tuple[Moves, ...]:
    """Counts of the models of this run; without any, the baseline's counts of the backends that it judged."""
    titles = dict.fromkeys(r.case.split("/")[1] for r in records if r.suite == "model" and "/" in r.case)
    found = []
    for title in titles:
        mine = [r for r in records if r.suite == "model" and r.case.startswith(f"model/{title}/")]
        columns = model_counts.columns(mine)
        head, *rows = model_counts.table(columns)
        if rows:
            steps = [(a, b, model_counts.came(mine, a, b)) for a, b in model_counts.pairs(columns)]
            came = tuple(f"{a} → {b}: {model_counts.listed(nodes)}" for a, b, nodes in steps if nodes)
            found.append(Moves(title, tuple(head[1:]), tuple(map(tuple, rows)), "counted in this run", came))
    return tuple(found[:MODELS]) or _recorded(backends)


def _recorded(backends: Mapping[str, Any]) -> tuple[Moves, ...]:
    try:
        counted = counts_gate.read()["counts"]
    except BaselineError:
        return ()
    versions = {f"{name.partition(':')[0]} {info.get('version', '')}" for name, info in backends.items()}
    used = {name.partition(":")[0] for name in backends}
    columns: dict[str, dict[str, dict[str, int]]] = {}
    for backend, models in counted.items():
        if backend not in used and backend not in versions:
            continue
        for title, entry in models.items():
            columns.setdefault(title, {}).update(_columns(backend, entry))
    found = []
    for title, sides in columns.items():
        head, *rows = model_counts.table(sides)
        kept = [row for row in rows if any(cell not in ("", "0") for cell in row[1:])]
        found.append(Moves(title, tuple(head[1:]), tuple(map(tuple, kept)), "recorded in baselines/counts.json"))
    return tuple(found[:MODELS])


def _columns(backend: str, entry: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Ours as lowered and after the rules; another runtime's at each level."""
    counts = dict(entry["counts"])
    if not model_counts.is_ours(counts):
        levels: dict[str, dict[str, int]] = {}
        for key, value in counts.items():
            level, _, kind = key.partition("/")
            levels.setdefault(level, {})[kind] = value
        order = [name for name in ("disable", "basic", "extended", "layout", "all") if name in levels]
        return {f"{backend} {name}": levels[name] for name in order if name in ("disable", "all")}
    before = {name: value for name, value in counts.items() if name != "peak_bytes"}
    for key, change in (entry.get("rules") or {}).items():
        name = key.partition(": ")[2]
        before[name] = before.get(name, 0) - change
    return {f"{backend} as written": before, f"{backend} after rules": counts}


def trends(folder: Path) -> tuple[Trend, ...]:
    """The histories of key cases under a folder of baselines, those of several runs.

    Units: a time relative to the median of its history.
    """
    files = sorted((folder / "latency").glob("*.jsonl"))
    found = [t for path in files for t in histories.of_machine(path) if len(t.ns) > 1]
    return tuple(_drawn(t) for t in found[:TRENDS])


def _drawn(found: histories.Trend) -> Trend:
    middle = median(found.ns)
    changes = tuple((s.at, f"{s.share:+.1%} since {s.commit}", "") for s in found.steps)
    return Trend(found.name, tuple((ns / middle,) * 3 for ns in found.ns), found.commits, changes)


def preceding(journal: Path) -> Path | None:
    """The last run before this one in its folder that judged the same backends, or None."""
    folder = journal.resolve().parent
    asked = _backends(journal)
    earlier = sorted(p for p in folder.parent.glob(f"*/{store.JOURNAL}") if p.parent.name < folder.name)
    return next((p for p in reversed(earlier) if asked and _backends(p) == asked), None)


def _backends(journal: Path) -> set[str]:
    """What a journal's first line says was to be judged."""
    try:
        entry = next(store.entries(journal), {})
    except (OSError, BaselineError):
        return set()
    return {str(b) for b in (entry.get("settings") or {}).get("backends") or ()}
