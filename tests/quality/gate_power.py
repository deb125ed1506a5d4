"""How often the latency gate sees an injected slowdown, and how often it cries wolf, run for real.

    python tests/quality/gate_power.py --out TRIALS.jsonl [--want 0:1500,5:300,3:100,2:100] [--seconds 3600] [--loaded]
    python tests/quality/gate_power.py --out TRIALS.jsonl --summary

One trial is one comparison of one case: staged, in fresh processes, by the plan and the thresholds of `opgauge gate`.
A round is a build compared with its base: each of twelve cases of one backend (and a model) unchanged, and with them
a few copies of cases that do more real work (slowed.py), as many as are still wanted of each share (in percent).
Trials are appended to --out, so that a run can be stopped and taken up again. --loaded keeps one more process busy.
The summary tells rounds with another process on one core (ours, or load of others) from quiet ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from opgauge import latency_gate, pairs
from opgauge.latency import Call, Estimate, Plan, upper_rate
from opgauge.pairs import Side, Workload

BACKEND = f"{Path(__file__).with_name('slowed.py')}:run"
MODEL = "classifier-int8"
BACKENDS = ("onnxruntime", "cpu")
COPIES = 5  # slowed copies in a round
QUIET = 1.6  # load average, our own two processes that take turns included
OTHERS = {  # a second shape of each key case: what is replaced in its id
    "QLinearMatMul uint8 64x256x64": ("64x256:", "96x128:", "256x64:", "128x96:"),
    "QLinearConv uint8 16x16x28x28 3x3": ("1x16x28x28", "1x16x14x14"),
    "MatMul float32 64x128x64": ("64x128:", "96x96:", "128x64:", "96x96:"),
    "QuantizeLinear float32 64k": ("65536", "32768"),
    "Softmax float32 64x512": ("64x512", "128x128"),
    "Transpose float32 16x64x64": ("16x64x64", "32x48x32"),
}


def cases(gates: latency_gate.Gates, backend: str) -> list[Workload]:
    """Twelve cases, and a model where the backend takes it whole."""
    found = []
    for key in gates.keys:
        if key.name in OTHERS:
            found.append(key.work())
            case, words = key.case, OTHERS[key.name]
            for old, new in zip(words[::2], words[1::2], strict=True):
                if old not in case:
                    raise SystemExit(f"{key.name}: {old} is not in its id: mend OTHERS")
                case = case.replace(old, new, 1)
            made = pairs.workload(case)
            found.append(Workload(f"{key.name}, {words[1].strip(':')}", made.model, made.inputs))
    return [*found, *([pairs.workload(MODEL)] if backend == "onnxruntime" else [])]


def marked(work: Workload, name: str, mark: str) -> Workload:
    """The model with a doc_string (field 6) of the mark at its end: what slowed.py looks at."""
    return Workload(name, work.model + b"\x32" + bytes([len(mark)]) + mark.encode(), work.inputs)


@contextmanager
def load(wanted: bool) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def copies(missing: Mapping[float, int], base: Sequence[Workload], rng: random.Random) -> list[tuple[Workload, float]]:
    """COPIES cases with a share each, drawn by what is missing."""
    shares = [s for s, n in missing.items() if s and n > 0]
    if not shares:
        return []
    drawn = rng.choices(shares, [missing[s] for s in shares], k=COPIES)
    return list(zip(rng.sample(base, COPIES), drawn, strict=True))


def trials(
    gates: latency_gate.Gates, backend: str, missing: Mapping[float, int], plan: Plan, rng: random.Random
) -> list[dict[str, Any]]:
    base = cases(gates, backend)
    unchanged = [(w, 0.0) for w in base] if missing[0.0] > 0 else []
    chosen = [*unchanged, *copies(missing, base, rng)]
    rng.shuffle(chosen)
    works, shares = [], {}
    for i, (work, share) in enumerate(chosen):
        mark = f"trial{i:03}"
        works.append(marked(work, f"{work.name}|{share:g}|{i}", mark))
        if share:
            shares[mark] = share / 100
    variables = (("OPGAUGE_TRIAL_BASE", backend),)
    sides = (
        Side(BACKEND, variables=variables),
        Side(BACKEND, variables=(*variables, ("OPGAUGE_TRIAL_SHARES", json.dumps(shares)))),
    )
    began = time.monotonic()
    found = pairs.compare_all(works, *sides, replace(plan, seed=rng.randrange(1 << 30)))
    each = (time.monotonic() - began) / len(works)
    return [row(e, share, backend, each) for e, (_, share) in zip(found, chosen, strict=True)]


def row(e: Estimate, share: float, backend: str, wall_s: float) -> dict[str, Any]:
    return {
        "case": f"{e.name.partition('|')[0]} on {backend}", "share": share, "verdict": str(e.verdict),
        "change": round(e.change, 5), "pairs": e.pairs, "seconds": e.seconds, "wall_s": round(wall_s, 2),
        "repeated": e.repeated, "noise": round(e.noise, 6), "suite_sd": round(e.detail.get("suite_sd", 0.0), 6),
        "values": [round(v, 5) for v in e.values], "control": [round(v, 5) for v in e.control], "reason": e.reason,
    }  # fmt: skip


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def missing_of(rows: Sequence[Mapping[str, Any]], want: Mapping[float, int]) -> dict[float, int]:
    return {s: n - sum(r["share"] == s for r in rows) for s, n in want.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="trials, one JSON object a line; appended to")
    parser.add_argument("--want", default="0:1500,5:300,3:100,2:100", help="percent:trials, comma-separated")
    parser.add_argument("--backend", action="append", choices=BACKENDS)
    parser.add_argument("--loaded", action="store_true", help="keep one more process busy")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after the round in which they pass")
    parser.add_argument("--summary", action="store_true", help="only say what --out holds")
    asked = parser.parse_args()
    want = {float(s): int(n) for s, n in (part.split(":") for part in asked.want.split(","))}
    gates = latency_gate.read()
    plan = latency_gate.plan_of(gates, skip_unchanged=False)
    began = time.monotonic()
    backends = asked.backend or BACKENDS
    done = 1 + max((r["round"] for r in read(asked.out)), default=-1)
    with load(asked.loaded):
        while not asked.summary and time.monotonic() - began < asked.seconds:
            missing = missing_of(read(asked.out), want)
            if all(n <= 0 for n in missing.values()):
                break
            before = os.getloadavg()[0]
            rows = trials(gates, backends[done % len(backends)], missing, plan, random.Random())
            shared = {"round": done, "load": round(max(before, os.getloadavg()[0]), 2), "own": asked.loaded}
            with asked.out.open("a") as file:
                file.writelines(json.dumps({**r, **shared}) + "\n" for r in rows)
            done += 1
            alarms = [r["case"] for r in rows if not r["share"] and r["verdict"] in (Call.SLOWER, Call.FASTER)]
            seen = [f"+{r['share']:g} %: {r['verdict']} {r['change']:+.1%}" for r in rows if r["share"]]
            print(f"round {done}: load {shared['load']}, {rows[0]['wall_s']:.1f} s a case, alarms {alarms}, {seen}")
            print(f"  missing {missing_of(read(asked.out), want)}", flush=True)
    summary(read(asked.out))


def summary(rows: Sequence[Mapping[str, Any]]) -> None:
    for case in sorted({r["case"] for r in rows}):
        mine = [r for r in rows if r["case"] == case]
        print(f"{case:56} " + "; ".join(_told(mine, s) for s in sorted({r["share"] for r in mine})))
    for name, keep in (("quiet", False), ("another process on a core", True), ("all", None)):
        some = [r for r in rows if keep is None or (r["own"] or r["load"] > QUIET) == keep]
        if some:
            loads = sorted(r["load"] for r in some)
            print(f"== {name}: {len(some)} trials, load {loads[0]} to {loads[-1]}, median {median(loads):.1f}")
        for share in sorted({r["share"] for r in some}):
            print("   " + _line([r for r in some if r["share"] == share], share))
        for text, part in (("slowed", [r for r in some if r["share"]]), ("all", some)):
            if part:
                print(
                    f"   {text}: {_mean(part, 'seconds'):.2f} s measured a case, {_mean(part, 'wall_s'):.2f} s of wall"
                )


def _mean(rows: Sequence[Mapping[str, Any]], what: str) -> float:
    return sum(r[what] for r in rows) / len(rows)


def _told(rows: Sequence[Mapping[str, Any]], share: float) -> str:
    mine = [r for r in rows if r["share"] == share]
    slower = sum(r["verdict"] == Call.SLOWER for r in mine)
    return f"+{share:g} %: {slower}/{len(mine)}"


def _line(rows: Sequence[Mapping[str, Any]], share: float) -> str:
    n = len(rows)
    by = {c: sum(r["verdict"] == c for r in rows) for c in Call}
    cost = f"{_mean(rows, 'pairs'):.1f} pairs, {_mean(rows, 'seconds'):.2f} s a case"
    if not share:
        wrong = by[Call.SLOWER] + by[Call.FASTER]
        rate = upper_rate(wrong, n)
        suite = 1 - (1 - rate) ** 14
        return (
            f"A/A: {wrong} alarms of {n} (95 % bound {rate:.2%} a comparison, {suite:.1%} for the gate's own 14), "
            f"cannot tell {by[Call.UNCLEAR]}; {cost}"
        )
    seen = by[Call.SLOWER]
    return (
        f"+{share:g} %: seen {seen} of {n} ({seen / n:.1%}), called the same {by[Call.SAME]}, faster "
        f"{by[Call.FASTER]}, cannot tell {by[Call.UNCLEAR]}; median estimate "
        f"{median(r['change'] for r in rows):+.2%}; {cost}"
    )


if __name__ == "__main__":
    main()
