"""What key cases took on this machine, run by run: for trends (`trends.py`), never for a verdict.

One file for each machine fingerprint under baselines/latency; a line is {"commit", "time", "ns": {name: ns}}.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KEPT = 500


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
            if isinstance(run["ns"], dict) and all(v > 0 for v in run["ns"].values()) and "commit" in run:
                found.append(run)
        except (ValueError, KeyError, TypeError):
            continue
    return found


def append(path: Path, commit: str, when: str, ns: Mapping[str, float]) -> None:
    """Add a run; the oldest go beyond KEPT."""
    runs = [*read(path), {"commit": commit, "ns": {k: round(v, 1) for k, v in sorted(ns.items())}, "time": when}]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in runs[-KEPT:]), encoding="utf-8")
