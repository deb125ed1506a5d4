"""How often `opgauge bisect` names a planted commit, and with how many builds: real git repositories, real builds.

    python tests/quality/bisect_histories.py [--exact 16] [--latency 2] [--simulated 200] [--noise PAIRS.json]

Histories of 100 commits after the good end; one in ten cannot be built. Planted: a wrong rounding (verdict), one extra
Transpose (count), +5 % and +10 % of real extra work (latency). `--latency` are measured with real pairs; `--simulated`
walk the same search without builds, their pairs drawn from recorded pairs of an unchanged kernel plus the step.
Exit 1 where fewer than 95 % are named right, or more than 12 builds are needed on average.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from opgauge import bisect as search
from opgauge import bisect_git, bisect_pairs, bisect_probe, repository, store
from opgauge.bisect_notebook import GIT, RELEASES, Measure, Notebook, Question, Report

COMMITS, BROKEN = 100, 0.10
CASE = (
    "QuantizeLinear/float32,uint8/op13/x=float32:1x65:grid@0.00048828125@-261@261/y_scale=float32:-:0.0009765625/"
    "y_zero_point=uint8:-:128/y=uint8/ties/s1967019729"
)
KERNEL = """# commit {number}
import numpy as np

from opgauge.backends import RunResult

EXTRA = {extra}
HALF_AWAY = {away}
TRANSPOSES = {transposes}
UNIT = 30000  # turns of a loop, a millisecond: all the rest is little beside it


def work(turns):
    total = 0
    for i in range(turns):
        total += i
    return total


def run(model, inputs):
    v = inputs["x"] / inputs["y_scale"]
    rounded = np.sign(v) * np.floor(np.abs(v) + 0.5) if HALF_AWAY else np.rint(v)
    work(UNIT + int(UNIT * EXTRA))
    return RunResult((np.clip(rounded + inputs["y_zero_point"], 0, 255).astype(np.uint8),), {{"Transpose": TRANSPOSES}})
"""


class Plant(NamedTuple):
    kind: str
    what: str
    extra: float = 0.0
    away: bool = False
    transposes: int = 2


PLANTS = {
    "rounding": Plant("rounding", "verdict", away=True),
    "transpose": Plant("transpose", "count:Transpose", transposes=3),
    "+5 %": Plant("+5 %", "latency", extra=0.05),
    "+10 %": Plant("+10 %", "latency", extra=0.10),
}
BUILD = "import py_compile; py_compile.compile('kernels.py', 'kernels.pyc', doraise=True)"


class History(NamedTuple):
    folder: Path
    commits: list[str]  # the good end first
    culprit: int
    broken: frozenset[int]


def planted(folder: Path, plant: Plant, seed: int) -> History:
    """A repository whose commit `culprit` brings the plant; the ends and the culprit can be built."""
    rng = random.Random(seed)
    culprit = rng.randrange(1, COMMITS + 1)
    able = [i for i in range(1, COMMITS) if i != culprit]
    broken = frozenset(rng.sample(able, round(BROKEN * COMMITS)))
    folder.mkdir(parents=True)
    stream = []
    for i in range(COMMITS + 1):
        on = i >= culprit
        text = KERNEL.format(
            number=i, extra=plant.extra if on else 0.0, away=on and plant.away, transposes=plant.transposes if on else 2
        )
        body = (text + ("\ndef broken(:\n" if i in broken else "")).encode()
        stream.append(f"commit refs/heads/main\nmark :{i + 1}\ncommitter a <a@example.org> {1700000000 + i} +0000\n")
        stream.append(f"data <<END\ncommit {i}\nEND\nM 100644 inline kernels.py\ndata {len(body)}\n")
        stream.append(body.decode() + "\n")
    env = repository.variables()
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True, env=env)
    told = folder / ".git" / "marks"
    command = ["git", "-C", str(folder), "fast-import", "--quiet", f"--export-marks={told}"]
    subprocess.run(command, input="".join(stream).encode(), check=True, env=env)
    marks = dict(line.split() for line in told.read_text().splitlines())
    return History(folder, [marks[f":{i + 1}"] for i in range(COMMITS + 1)], culprit, broken)


def asked(history: History, plant: Plant) -> Question:
    return Question(
        plant.what, GIT, "kernels.py:run", bisect_probe.Subject(CASE), (history.commits[0], history.commits[-1]),
        str(history.folder), words=(sys.executable, "-c", BUILD), timeout_s=120,
    )  # fmt: skip


def bisected(question: Question, home: Path, asker: bisect_probe.Asker, measure: Measure | None, talk: bool) -> Report:
    with store.create(home) as journal:
        journal.append("question", {"case": question.subject.case})
        return search.answer(Notebook(question, journal, print if talk else _silent, asker, measure))


def _silent(text: str) -> None:
    pass


class Pretended(Notebook):
    """Builds nothing: commits are numbers, and those in `broken` cannot be built."""

    broken: frozenset[int] = frozenset()

    def title(self, place: str) -> str:
        return place

    def backend(self, place: str) -> str:
        if int(place) in self.broken:
            self._unbuildable(place, "planted")
            raise bisect_git.UnbuildableError("planted")
        if place not in self._texts:
            self._texts[place] = place
            self.builds += 1
        return place


def simulated(plant: Plant, seed: int, noise: np.ndarray, home: Path) -> tuple[str, int, int]:
    """(result, builds, looks) of a history without builds, its pairs drawn from recorded ones."""
    rng = random.Random(seed)
    culprit = rng.randrange(1, COMMITS + 1) if plant.extra else COMMITS + 1
    able = [i for i in range(1, COMMITS) if i != culprit]
    broken = frozenset(rng.sample(able, round(BROKEN * COMMITS)))

    def measure(base: str, new: str) -> float:
        return float(rng.choice(list(noise))) + math.log1p(plant.extra) * (
            (int(new) >= culprit) - (int(base) >= culprit)
        )

    places = tuple(str(i) for i in range(COMMITS + 1))
    question = Question(plant.what, RELEASES, "", bisect_probe.Subject(CASE), places)
    with store.create(home) as journal:
        journal.append("question", {"simulated": seed})
        notebook = Pretended(question, journal, _silent, _nobody, measure)
        notebook.broken = broken
        report = search.answer(notebook)
    named = report.found[0].place if report.found else ""
    result = report.result if not named else "right" if named == str(culprit) else "wrong"
    if result == "right" and report.found[0].also:
        result = "right, with others"
    return result, report.builds + report.unbuildable, report.looks


def _nobody(subject: bisect_probe.Subject, what: str, backend: str, timeout_s: float) -> bisect_probe.Answer:
    raise AssertionError("latencies are not asked for")


def recorded(pairs: int, folder: Path) -> list[float]:
    """Fresh pairs of one build with itself."""
    history = planted(folder / "noise", PLANTS["+5 %"], 0)
    question = asked(history, PLANTS["+5 %"])
    tree, _ = bisect_git.build(bisect_git.Builds(history.folder, question.words), history.commits[0])
    measure = bisect_pairs.measure(question.subject, 120.0)
    text = f"{tree}/kernels.py:run"
    return [measure(text, text) for _ in range(pairs)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exact", type=int, default=16)
    parser.add_argument("--latency", type=int, default=2)
    parser.add_argument("--simulated", type=int, default=200)
    parser.add_argument("--noise", type=Path, help="a JSON list of log ratios of unchanged pairs")
    parser.add_argument("--record", type=int, default=24, help="pairs to record where --noise is not given")
    parser.add_argument("--talk", action="store_true")
    options = parser.parse_args()
    tallies: dict[str, list[tuple[str, int, int]]] = {}
    with tempfile.TemporaryDirectory() as place, bisect_probe.Asker() as asker:
        folder = Path(place)
        os.environ["OPGAUGE_CACHE_DIR"] = str(folder / "cache")

        def one(name: str, plant: Plant, seed: int, measure_of: object, tag: str) -> None:
            history = planted(folder / f"{tag}{seed}", plant, seed)
            measure = measure_of(history) if callable(measure_of) else None
            began = time.monotonic()
            report = bisected(asked(history, plant), folder / "runs" / f"{tag}{seed}", asker, measure, options.talk)
            right = bool(report.found) and report.found[0].place == history.commits[history.culprit]
            result = "right" if right else "wrong" if report.found else report.result
            if right and report.found[0].also:
                result = "right, with others"
            used = report.builds + report.unbuildable
            tallies.setdefault(tag, []).append((result, used, report.looks))
            took = time.monotonic() - began
            print(f"{tag} {name} seed {seed}: {result}, {used} builds, {report.looks} looks, {took:.1f} s", flush=True)

        for seed in range(options.exact):
            name = ("rounding", "transpose")[seed % 2]
            one(name, PLANTS[name], seed, None, "exact")
        for seed in range(options.latency):
            name = ("+10 %", "+5 %")[seed % 2]
            one(
                name, PLANTS[name], 1000 + seed,
                lambda _: bisect_pairs.measure(bisect_probe.Subject(CASE), 120.0), "measured",
            )  # fmt: skip
        if options.simulated:
            noise = np.array(
                json.loads(options.noise.read_text()) if options.noise else recorded(options.record, folder)
            )
            noise = np.concatenate([noise, -noise])  # either side of an unchanged pair may be the new one
            print(f"noise of {len(noise) // 2} recorded pairs: sd {noise.std():.2%}, largest {np.abs(noise).max():.2%}")
            for seed in range(options.simulated):
                name = ("+10 %", "+5 %", "+3 %", "nothing")[seed % 4]
                plant = {**PLANTS, "+3 %": Plant("", "latency", 0.03), "nothing": Plant("", "latency")}[name]
                row = simulated(plant, 2000 + seed, noise, folder / "simulated" / str(seed))
                tallies.setdefault(f"simulated {name}", []).append(row)
    failed = False
    for tag, rows in tallies.items():
        right = sum(r.startswith("right") for r, _, _ in rows)
        alone = sum(r == "right" for r, _, _ in rows)
        builds = float(np.mean([b for _, b, _ in rows]))
        others = {r: sum(x == r for x, _, _ in rows) for r in {r for r, _, _ in rows} if not r.startswith("right")}
        print(
            f"{tag}: {right} of {len(rows)} named right ({alone} alone, else beside commits that cannot be built), "
            f"{others or 'none wrong'}; {builds:.1f} builds on average, failed ones and both ends included, "
            f"{np.mean([k for _, _, k in rows]):.1f} looks"
        )
        wrong = sum(r == "wrong" or (r == "culprit") for r, _, _ in rows)
        enough = right >= 0.95 * len(rows) or tag.endswith("+3 %")  # where it may say that it cannot tell
        failed |= wrong > 0.05 * len(rows) or builds > 12 or (not enough and not tag.endswith("nothing"))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
