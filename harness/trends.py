"""Histories of key cases as asv sees them: its step detection on them, its result files fed by them.

    opgauge trends --asv baselines/asv

baselines/latency holds what interleaved pairs measured, run by run; asv draws it and finds the steps. A trend is never
a verdict: a stored time says as much about the day as about the code.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from opgauge.reference_engine.errors import BaselineError

from . import history
from .latency import MEDIAN_WIDTH, spread

LEAST = 4  # runs of a level
SIGMAS = 4.0
PENALTY = 1.5  # of a further level, in log(runs) times the noise
SMALLEST = 0.01  # share; a smaller step is told by no machine that is used for anything else
ENVIRONMENT = "interleaved"  # what stands for asv's environment in the names of its result files
COLUMNS = ("os", "arch", "cpu", "num_cpu", "ram")  # of asv's machine.json


@dataclass(frozen=True)
class Step:
    """From the run number `at` (of `commit`) on, the time is another one; `share` 0.05 is +5 %."""

    at: int
    commit: str
    share: float


@dataclass(frozen=True)
class Trend:
    """One key case on one machine. `ns` for each run, oldest first."""

    name: str
    machine: str
    commits: tuple[str, ...]
    ns: tuple[float, ...]
    steps: tuple[Step, ...]

    @property
    def said(self) -> str:
        """`+8.1% since c12; -3.0% since c40`, empty without a step."""
        return "; ".join(f"{step.share:+.1%} since {step.commit}" for step in self.steps)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def change_points(values: Sequence[float], sigmas: float = SIGMAS) -> list[tuple[int, float]]:
    """(index of the first value of a level, step from the level before as a share) of each step that stands out.

    Levels: asv's fits of piecewise constant functions (least absolute deviations), with the penalty of its own
    criterion and with one from the noise of successive runs; short levels are joined to the nearer neighbour. A step
    counts where it exceeds `sigmas` times the standard error of the difference of two medians, and SMALLEST.
    Source: asv.step_detect: detect_steps, solve_potts_approx.
    """
    from asv.step_detect import detect_steps, solve_potts_approx

    logs = [math.log(v) for v in values if v > 0]
    if len(logs) < 2 * LEAST or len(logs) != len(values):
        return []
    # About 1, not logarithms: asv takes a thousandth of the smallest level for the noise that cannot be undercut.
    middle = median(values)
    cuts = [left for left, *_ in detect_steps([v / middle for v in values])][1:]
    # In a few dozen runs its criterion takes a step for drift: its solver again, with a penalty from the noise.
    noise = spread([b - a for a, b in itertools.pairwise(logs)]) / math.sqrt(2)
    penalty = max(PENALTY * noise * math.log(len(logs)), 1e-6)
    rights, *_ = solve_potts_approx(logs, [1.0] * len(logs), gamma=penalty, min_size=LEAST)
    cuts = sorted({*cuts, *rights[:-1]})
    while True:
        cuts = _long_enough(logs, cuts)
        found = [_step(logs, cuts, i) for i in range(len(cuts))]
        weakest = min(range(len(cuts)), key=lambda i: abs(found[i][0]) / found[i][1], default=None)
        if weakest is None:
            return []
        change, error = found[weakest]
        if abs(change) > max(sigmas * error, math.log1p(SMALLEST)):
            return [(cut, math.expm1(c)) for cut, (c, _) in zip(cuts, found, strict=True)]
        del cuts[weakest]


def _long_enough(logs: Sequence[float], cuts: Sequence[int]) -> list[int]:
    """Without the cuts that leave fewer than LEAST runs: the smaller of the two steps beside a short level goes."""
    kept = list(cuts)
    while True:
        ends = [0, *kept, len(logs)]
        short = next((i for i in range(len(ends) - 1) if ends[i + 1] - ends[i] < LEAST), None)
        if short is None or not kept:
            return kept
        beside = [i for i in (short - 1, short) if 0 <= i < len(kept)]
        del kept[min(beside, key=lambda i: abs(_step(logs, kept, i)[0]))]


def _step(logs: Sequence[float], cuts: Sequence[int], i: int) -> tuple[float, float]:
    """(difference of the medians on both sides of a cut, its standard error)."""
    ends = [0, *cuts, len(logs)]
    before, after = logs[ends[i] : ends[i + 1]], logs[ends[i + 1] : ends[i + 2]]
    left = [*(v - median(before) for v in before), *(v - median(after) for v in after)]
    error = MEDIAN_WIDTH * spread(left) * math.sqrt(1 / len(before) + 1 / len(after))
    return median(after) - median(before), max(error, 1e-4)


def of_machine(path: Path) -> list[Trend]:
    """The histories of one file of baselines/latency, by name; none where there is no file."""
    runs = history.read(path)
    return [trend(name, path.stem, runs) for name in sorted({n for r in runs for n in r["ns"]})]


def trend(name: str, machine: str, runs: Sequence[Mapping[str, Any]]) -> Trend:
    mine = [(str(r["commit"]), float(r["ns"][name])) for r in runs if name in r["ns"]]
    commits, ns = tuple(c for c, _ in mine), tuple(v for _, v in mine)
    steps = tuple(Step(at, commits[at], share) for at, share in change_points(ns))
    return Trend(name, machine, commits, ns, steps)


def trends(folder: Path) -> list[Trend]:
    """Every history under `folder`/latency, by machine and name. Raises: BaselineError where there is none."""
    found = [t for path in sorted((folder / "latency").glob("*.jsonl")) for t in of_machine(path)]
    if not found:
        raise BaselineError(f"{folder / 'latency'}: no history: opgauge gate --against REV --record makes one")
    return found


# ---- into asv's files


def feed(
    found: Sequence[Trend], folder: Path, commit_of: Callable[[str], tuple[str, int] | None], machine: Mapping[str, str]
) -> tuple[int, list[str]]:
    """Write the trends as asv results under `folder`: (result files written, commits that the repository lacks).

    `commit_of` gives the whole hash of a commit and its date in ms. One file for each commit and machine; a commit
    with several runs holds them as the samples of its value. Benchmarks already listed there stay.
    Source: asv.results.Results, file version 2; asv.benchmarks, version 2; asv.machine, version 1.
    """
    from asv import util
    from asv.benchmarks import Benchmarks
    from asv.machine import Machine
    from asv.results import Results
    from asv.runner import BenchmarkResult

    rows = {_benchmark(t.name): _row(_benchmark(t.name)) for t in found}
    listed = Path(Benchmarks.get_benchmark_file_path(str(folder)))
    folder.mkdir(parents=True, exist_ok=True)
    known = util.load_json(str(listed), api_version=Benchmarks.api_version) if listed.is_file() else {}
    util.write_json(str(listed), {**known, **rows}, Benchmarks.api_version)
    written, missing = 0, dict[str, None]()
    for name in sorted({t.machine for t in found}):
        mine = [t for t in found if t.machine == name]
        about = {"machine": name, **{k: machine.get(k, "") for k in COLUMNS}}
        (folder / name).mkdir(exist_ok=True)
        util.write_json(str(folder / name / "machine.json"), about, Machine.api_version)
        for commit in dict.fromkeys(c for t in mine for c in t.commits):
            whole = commit_of(commit)
            if whole is None:
                missing[commit] = None
                continue
            version = f"{sys.version_info[0]}.{sys.version_info[1]}"
            results = Results({**about, "python": version}, {}, whole[0], whole[1], version, ENVIRONMENT, {})
            for t in mine:
                samples = [ns / 1e9 for c, ns in zip(t.commits, t.ns, strict=True) if c == commit]
                if samples:
                    made = BenchmarkResult([median(samples)], [samples], [1], 0, "", None)
                    results.add_result(rows[_benchmark(t.name)], made, record_samples=True)
            results.save(str(folder))
            written += 1
    return written, list(missing)


def _benchmark(name: str) -> str:
    """asv shows the part before the last dot as the group."""
    return f"interleaved.{name.replace('.', '_')}"


def _row(name: str) -> dict[str, Any]:
    code = "The key case of opgauge gate, timed in interleaved pairs of fresh processes."
    return {
        "name": name,
        "code": code,
        "param_names": [],
        "params": [],
        "timeout": 60.0,
        "type": "time",
        "unit": "seconds",
        "version": "1",
    }
