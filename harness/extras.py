"""What a report shows besides its run, gathered from the folder of runs and the baselines: see `reports.extras`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.types import Record
from opgauge.reports.diff import compare
from opgauge.reports.extras import Extras, Moves, Trend

from . import counts_gate, model_counts, store

MODELS = 12
TRENDS = 12
LEAST = 4  # runs on either side of a step
SIGMAS = 4.0


def collect(
    records: Sequence[Record], backends: Mapping[str, Any], before: Path | None = None, name: str = "this run"
) -> Extras:
    """Everything that is there; what is missing is left out, since a report of a run must not fail for the rest."""
    difference = None
    if before is not None:
        difference = compare(store.read(before).records, records, (before.parent.name, name))
    folder = Path(os.environ.get("OPGAUGE_BASELINES") or "baselines")
    return Extras(difference, moves(records, backends), trends(folder), {})


def moves(records: Sequence[Record], backends: Mapping[str, Any]) -> tuple[Moves, ...]:
    """Counts of the models of this run; without any, the baseline's counts of the backends that it judged."""
    titles = dict.fromkeys(r.case.split("/")[1] for r in records if r.suite == "model" and "/" in r.case)
    found = []
    for title in titles:
        mine = [r for r in records if r.suite == "model" and r.case.startswith(f"model/{title}/")]
        head, *rows = model_counts.table(model_counts.columns(mine))
        if rows:
            found.append(Moves(title, tuple(head[1:]), tuple(map(tuple, rows)), "counted in this run"))
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
    """The histories of key cases under a folder of baselines: files of lines {"commit", "time", "ns": {name: ns}}.

    Units: a time relative to the median of its history. A step is where two medians differ by more than the noise.
    """
    found = []
    for path in sorted((folder / "latency").glob("*.jsonl")):
        runs = [run for line in path.read_text("utf-8").splitlines() if (run := _run(line))]
        for name in sorted({n for run in runs for n in run["ns"]}):
            mine = [(str(run["commit"]), float(run["ns"][name])) for run in runs if name in run["ns"]]
            found += [_trend(name, mine)] if len(mine) > 1 else []
    return tuple(found[:TRENDS])


def _run(line: str) -> dict[str, Any] | None:
    try:
        run = json.loads(line)
        good = isinstance(run["ns"], dict) and all(v > 0 for v in run["ns"].values()) and "commit" in run
    except (ValueError, KeyError, TypeError):
        return None
    return dict(run) if good else None


def _trend(name: str, mine: Sequence[tuple[str, float]]) -> Trend:
    middle = float(np.median([ns for _, ns in mine]))
    values = [ns / middle for _, ns in mine]
    step = change_point(values)
    changes = ((step[0], f"{step[1]:+.1%} since {mine[step[0]][0]}", ""),) if step else ()
    return Trend(name, tuple((v, v, v) for v in values), tuple(commit for commit, _ in mine), changes)


def change_point(values: Sequence[float]) -> tuple[int, float] | None:
    """(first value after a step, share of the step), where the levels differ by four times the noise of either."""
    logs = np.log(values)
    if len(logs) < 2 * LEAST:
        return None

    def cost(at: int) -> float:
        return float(sum(np.abs(part - np.median(part)).sum() for part in (logs[:at], logs[at:])))

    at = min(range(LEAST, len(logs) - LEAST + 1), key=cost)
    before, after = float(np.median(logs[:at])), float(np.median(logs[at:]))
    left = np.abs(np.concatenate([logs[:at] - before, logs[at:] - after]))
    noise = max(1.4826 * float(np.median(left)) / math.sqrt(min(at, len(logs) - at)), 1e-3)
    return (at, math.expm1(after - before)) if abs(after - before) > SIGMAS * noise else None


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
