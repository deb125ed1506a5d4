"""How small do failing cases become? Every planted fault of suites/faults: found, made smaller, measured.

    python tests/quality/minimise.py --tries 1500 --out FILE.json

In this process and without a kernel worker, so that faults between calls are not seen here. Prints the median of the
output elements, before and after, and checks that each smaller case fails for the same reason.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import os
import statistics
import time
import warnings
from pathlib import Path

from opgauge import check, generate, minimise, suites
from opgauge.oracles import judge
from opgauge.reference_engine.case import id_of
from opgauge.reference_engine.errors import OpgaugeError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Case, CaseSpec, Observation, Policy, Status, Verdict
from opgauge.suites import faults
from opgauge.suites.faults.planted import Planted


def verdict_of(fault: Planted, case: Case, label: str) -> Verdict:
    subject = check.subject_of(case, label)
    try:
        graph = lower(subject.model, subject.inputs)
        exacts = evaluate(graph, subject.inputs)
    except OpgaugeError:
        return Verdict(Status.INVALID)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen = Observation(Status.PASS, tuple(fault.run(subject.model, dict(subject.inputs))))
    except Exception as error:
        return Verdict(Status.FAIL, f"raised {type(error).__name__}: {error}")
    forced = check.forced_outputs(graph, seen, exacts)
    return judge(evaluate(graph, subject.inputs, forced=forced) if forced else exacts, seen, Policy())


def first_failure(fault: Planted, rows: list[CaseSpec], budget: int) -> tuple[CaseSpec, Case, Verdict] | None:
    drawn: list[list[tuple[CaseSpec, Case]]] = []
    for row in rows:
        mine: list[tuple[CaseSpec, Case]] = []
        generate.explore(row, budget, 0, lambda _, case, row=row, mine=mine: mine.append((row, case)))
        drawn.append(mine)
    for pair in itertools.chain.from_iterable(itertools.zip_longest(*drawn)):
        if pair is None:
            continue
        fault.reset()
        found = verdict_of(fault, pair[1], pair[0].label)
        if found.status is Status.FAIL and not found.message.startswith("raised "):
            return *pair, found
    return None


def measure(identity: str, budget: int, tries: int) -> dict[str, object]:
    (fault,) = [f for f in faults.FAULTS if f.id == identity]
    for op in fault.ops:
        met = first_failure(fault, [r for r in suites.cases() if r.op == op][:6], budget)
        if met is not None:
            break
    else:
        return {"id": identity, "op": fault.op, "found": False}
    row, case, verdict = met
    count, started = 0, time.process_time()

    def same(candidate: Case) -> bool:
        nonlocal count
        count += 1
        fault.reset()
        return count <= tries and minimise.alike(verdict, verdict_of(fault, candidate, row.label))

    small = minimise.minimise(case, same, 3600.0)
    seconds = time.process_time() - started
    fault.reset()
    again = verdict_of(fault, small, row.label)
    return {
        "id": identity,
        "op": row.op,
        "found": True,
        "symptom": minimise.symptom(verdict),
        "same": minimise.alike(verdict, again),
        "elements": [verdict.elements, again.elements],
        "inputs": [minimise.size(case), minimise.size(small)],
        "tries": count,
        "cpu_s": round(seconds, 2),
        "case": id_of(small, row.label),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=25, help="cases of a row until the fault must be seen")
    parser.add_argument("--tries", type=int, default=1500)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", default="")
    asked = parser.parse_args()
    ids = asked.only or [f.id for f in faults.FAULTS]
    rows: list[dict[str, object]] = []
    with concurrent.futures.ProcessPoolExecutor(asked.jobs) as pool:
        for found in pool.map(measure, ids, [asked.budget] * len(ids), [asked.tries] * len(ids)):
            rows.append(found)
            print({k: v for k, v in found.items() if k != "case"}, flush=True)
            if asked.out:
                Path(asked.out).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    seen = [r for r in rows if r["found"]]
    before, after = ([r[key][i] for r in seen] for key, i in (("elements", 0), ("elements", 1)))  # type: ignore[index]
    inputs = [r["inputs"][1] for r in seen]  # type: ignore[index]
    same = sum(bool(r["same"]) for r in seen)
    middle = [statistics.median(x) for x in (before, after)]
    print(f"{len(seen)} of {len(rows)} faults fail a case here; {same} for the same reason after")
    print(f"output elements: median {middle[0]} before, {middle[1]} after, most {max(after)}")
    print(f"input elements after: median {statistics.median(inputs)}; at most 8 outputs: {sum(n <= 8 for n in after)}")
    return 0 if statistics.median(after) <= 8 and all(r["same"] for r in seen) else 1


if __name__ == "__main__":
    raise SystemExit(main())
