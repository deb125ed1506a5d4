"""What key cases took on this machine, run by run: for trends and change points, never for a verdict.

One file for each machine fingerprint under baselines/latency; a line is {"commit", "time", "ns": {name: ns}}.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .latency import spread

KEPT = 500
LEAST = 4  # runs on either side of a change point


def fingerprint(machine: Mapping[str, str]) -> str:
    """A word for processor, features, cores and system; not for the load of the moment."""
    words = {k: v for k, v in machine.items() if k != "load"}
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:12]


def read(path: Path) -> list[dict[str, Any]]:
    """The runs, oldest first; lines that are none are left out."""
    found = []
    for line in path.read_text("utf-8").splitlines() if path.is_file() else []:
        try:
            run = json.loads(line)
            if isinstance(run["ns"], dict):
                found.append(run)
        except (ValueError, KeyError, TypeError):
            continue
    return found


def append(path: Path, commit: str, when: str, ns: Mapping[str, float]) -> None:
    """Add a run; the oldest go beyond KEPT."""
    runs = [*read(path), {"commit": commit, "ns": {k: round(v, 1) for k, v in sorted(ns.items())}, "time": when}]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in runs[-KEPT:]), encoding="utf-8")


def change_point(values: Sequence[float], sigmas: float = 4.0) -> tuple[int, float] | None:
    """(index of the first value after a step, share of the step), or None where no split stands out.

    Two levels, split where the absolute deviations from their medians are least; the step must exceed `sigmas`
    times the noise that is left.
    """
    logs = [math.log(v) for v in values if v > 0]
    if len(logs) < 2 * LEAST:
        return None

    def cost(part: Sequence[float]) -> float:
        middle = median(part)
        return sum(abs(v - middle) for v in part)

    at = min(range(LEAST, len(logs) - LEAST + 1), key=lambda i: cost(logs[:i]) + cost(logs[i:]))
    before, after = median(logs[:at]), median(logs[at:])
    left = [*(v - before for v in logs[:at]), *(v - after for v in logs[at:])]
    noise = max(spread(left) / math.sqrt(min(at, len(logs) - at)), 1e-4)
    return (at, math.expm1(after - before)) if abs(after - before) > sigmas * noise else None


def trends(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each case with a step in its history."""
    found = []
    for name in sorted({n for r in runs for n in r["ns"]}):
        mine = [(r["commit"], r["ns"][name]) for r in runs if name in r["ns"]]
        step = change_point([ns for _, ns in mine])
        if step:
            found.append(f"{name}: {step[1]:+.1%} since {mine[step[0]][0]} ({len(mine)} runs)")
    return found
