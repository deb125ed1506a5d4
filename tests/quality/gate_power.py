"""How often the latency gate sees an injected slowdown, and how often it cries wolf, run for real.

    python tests/quality/gate_power.py --trials 60 --slow 5 [--loaded] [--out FILE.json]

One trial is one comparison of one case: two-stage, fresh processes, as `opgauge gate` does it. `--slow 0` compares a
side with itself. The injected work keeps the core busy for that share of each call's own time (slowed.py).
`--loaded` keeps one more process busy meanwhile. Prints a row for each case and the bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from opgauge import latency_gate, pairs
from opgauge.latency import Call, Estimate, Plan, upper_rate
from opgauge.pairs import Side, Workload

BACKEND = f"{Path(__file__).with_name('slowed.py')}:run"
MODEL = "classifier-int8"


def side(base: str, share: float) -> Side:
    return Side(BACKEND, variables=(("OPGAUGE_TRIAL_BASE", base), ("OPGAUGE_TRIAL_SHARE", repr(share))))


@contextmanager
def load(wanted: bool) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def trial(works: list[Workload], base: str, share: float, plan: Plan) -> list[Estimate]:
    return pairs.compare_all(works, side(base, 0.0), side(base, share), plan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60, help="comparisons, spread over the cases")
    parser.add_argument("--slow", type=float, default=5.0, help="percent of injected work")
    parser.add_argument("--backend", action="append", choices=("cpu", "onnxruntime"))
    parser.add_argument("--loaded", action="store_true")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop then")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    settings = latency_gate.read()
    plan = latency_gate.plan_of(settings, skip_unchanged=False)
    works = {k.name: k.work() for k in settings.keys if k.name != MODEL}
    jobs = [(b, [*works.values()]) for b in asked.backend or ("cpu", "onnxruntime")]
    jobs[-1][1].append(pairs.workload(MODEL))
    rows: list[dict[str, Any]] = []
    began = time.monotonic()
    with load(asked.loaded):
        while len(rows) < asked.trials and time.monotonic() - began < asked.seconds:
            for base, some in jobs:
                left = some[: max(0, asked.trials - len(rows))]
                found = trial(left, base, asked.slow / 100, plan) if left else []
                rows += [
                    {
                        "case": f"{e.name} on {base}", "verdict": str(e.verdict), "change": round(e.change, 5),
                        "pairs": e.pairs, "seconds": e.seconds, "repeated": e.repeated,
                        "values": [round(v, 5) for v in e.values], "control": [round(v, 5) for v in e.control],
                        "reason": e.reason, "load": os.getloadavg()[0],
                    }
                    for e in found
                ]  # fmt: skip
                print(f"{len(rows)} of {asked.trials}: {dict(Counter(r['verdict'] for r in rows))}", flush=True)
                if asked.out:
                    asked.out.write_text(json.dumps(rows))
    summary(rows, asked.slow, asked.loaded, time.monotonic() - began)


def summary(rows: list[dict[str, Any]], slow: float, loaded: bool, took: float) -> None:
    for case in sorted({r["case"] for r in rows}):
        mine = [r for r in rows if r["case"] == case]
        tally = dict(Counter(r["verdict"] for r in mine))
        change = median(r["change"] for r in mine)
        print(f"{case:44} {tally}, median {change:+.1%}, {sum(r['seconds'] for r in mine) / len(mine):.1f} s a case")
    seen = sum(r["verdict"] == Call.SLOWER for r in rows)
    wrong = sum(r["verdict"] in (Call.SLOWER, Call.FASTER) for r in rows)
    unclear = sum(r["verdict"] == Call.UNCLEAR for r in rows)
    n, each = len(rows), sum(r["seconds"] for r in rows) / max(len(rows), 1)
    state = "one core loaded" if loaded else "no load of its own"
    if slow:
        missed = n - seen - unclear
        print(
            f"+{slow:g} %, {state}: seen {seen} of {n}, called the same {missed}, cannot tell {unclear}; {each:.2f} s"
        )
    else:
        bound = upper_rate(wrong, n)
        print(
            f"A/A, {state}: {wrong} false alarms of {n} (95 % bound {bound:.2%}), cannot tell {unclear}; {each:.2f} s"
        )
    print(f"{each:.2f} s a case, {took:.0f} s in all, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
