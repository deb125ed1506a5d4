"""How much of what kernels get wrong does the suite see: planted faults as backends, judged like any other.

The suite draws the same cases as `opgauge run` and knows nothing of the fault that it judges.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from opgauge.backends import resolve
from opgauge.reference_engine import lower
from opgauge.reference_engine.errors import BackendUnavailableError, ModelError, OpgaugeError
from opgauge.reference_engine.evaluate import evaluate, reals
from opgauge.reference_engine.operators import table
from opgauge.reference_engine.types import FINDINGS, Case, CaseSpec, Exact, Graph, Observation, Policy, Status

from . import check, criteria, generate
from .client import Client


@dataclass(frozen=True)
class FaultDef:
    """What a fault module says of one of its objects."""

    id: str
    op: str
    ops: tuple[str, ...]
    cls: str
    title: str
    benign: bool
    runnable: bool = True


@dataclass(frozen=True)
class Outcome:
    """What the suite made of one fault on one operator.

    `caught_after` counts cases up to and with the first that failed, 0 when none did; `case` and
    `message` are that case's. `lacking` are rows whose form the fault's own kernel does not have.
    `others` the same count for the criteria of others that failed a case, where they were asked.
    """

    id: str
    op: str
    cls: str
    title: str
    benign: bool
    cases: int
    caught_after: int = 0
    status: str = ""
    case: str = ""
    message: str = ""
    lacking: tuple[str, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)

    @property
    def caught(self) -> bool:
        return self.caught_after > 0


_LIST = """
import importlib.util, json, os, sys
path = sys.argv[1]
sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
spec = importlib.util.spec_from_file_location("opgauge_faults", path)
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
def row(f, benign):
    return dict(id=str(f.id), op=str(f.op), ops=[str(o) for o in getattr(f, "ops", (f.op,))], cls=str(f.cls),
                title=str(getattr(f, "title", "")), benign=benign, runnable=hasattr(f, "run"))
rows = [row(f, False) for f in module.FAULTS] + [row(f, True) for f in getattr(module, "BENIGN", [])]
print("\\n" + json.dumps(rows))
"""


def catalogue(path: Path) -> list[FaultDef]:
    """The faults of a module, read in a process of its own. Raises: OpgaugeError."""
    if not path.is_file():
        raise OpgaugeError(f"fault module {path} does not exist")
    done = subprocess.run(
        [sys.executable, "-c", _LIST, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise OpgaugeError(f"fault module {path} does not load: {done.stderr.strip().splitlines()[-1:]}")
    rows = json.loads(done.stdout.splitlines()[-1])
    return [FaultDef(**{**row, "ops": tuple(row["ops"])}) for row in rows]


BASE = "onnxruntime"  # what faults are planted in: `run(..., base="ort")`


class Prepared(NamedTuple):
    """A case with its acceptance sets, evaluated once for all faults of an operator."""

    subject: check.Subject
    graph: Graph
    exacts: tuple[Exact, ...]


def measure(
    path: Path,
    rows: Sequence[CaseSpec],
    cases: int = 100,
    seed: int = 0,
    ops: Sequence[str] = (),
    only: Sequence[str] = (),
    progress: Callable[[Outcome], None] = lambda _: None,
    jobs: int = 0,
    compare: bool = False,
) -> Iterator[Outcome]:
    """One outcome for each fault and each of its operators that has a suite row.

    `cases` per suite row (operator and dtypes), taken from the rows in turn, so that `caught_after`
    counts what a run over the operator would have seen. Cases that the runtime under the faults (`BASE`)
    refuses are left out: what a fault makes of them says nothing. `jobs` faults run side by side, each in
    its own worker. `compare` asks the criteria of others too, about the same outputs.
    """
    drawn: dict[str, list[Prepared]] = {}
    wanted: list[tuple[FaultDef, str]] = []
    for fault in catalogue(path):
        for op in fault.ops if not only or fault.id in only else ():
            mine = [row for row in rows if row.op == op]
            if not mine or not fault.runnable or (ops and op not in ops):
                continue
            if op not in drawn:
                everything = prepared(mine, cases, seed)
                # It takes none of an operator that another package adds: then the fault brings all of its own.
                drawn[op] = accepted(everything) or everything
            wanted.append((fault, op))
    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        judged = pool.map(lambda pair: judge_fault(path, pair[0], pair[1], drawn[pair[1]], compare), wanted)
        for outcome in judged:
            progress(outcome)
            yield outcome


def prepared(rows: Sequence[CaseSpec], cases: int, seed: int) -> list[Prepared]:
    """The cases that a run would draw, one from each row in turn, with their acceptance sets."""
    lists = [_drawn(row, cases, seed) for row in rows]
    return [case for group in zip_longest(*lists) for case in group if case is not None]


def accepted(cases: Sequence[Prepared]) -> list[Prepared]:
    """The cases that BASE takes."""
    kept = []
    with Client(resolve(BASE)) as client:
        for case in cases:
            client.submit(case.subject.case, case.subject.model, case.subject.inputs, repeats=1)
            if client.receive().status is not Status.UNSUPPORTED:
                kept.append(case)
    return kept


def _drawn(row: CaseSpec, cases: int, seed: int) -> list[Prepared]:
    found: list[Prepared] = []

    def visit(_: str, case: Case) -> None:
        subject = check.subject_of(case, row.label)
        with contextlib.suppress(ModelError):  # an illegal case speaks for or against nobody
            graph = lower.lower(subject.model, subject.inputs)
            found.append(Prepared(subject, graph, evaluate(graph, subject.inputs)))

    generate.explore(row, cases, seed, visit)
    return found


class Failure(NamedTuple):
    """A case that a fault failed: how many had run by then, on which row, and the verdict."""

    after: int
    label: str
    case: str
    status: Status
    message: str

    @property
    def raised(self) -> bool:
        return self.status is Status.FAIL and self.message.startswith("raised ")


def judge_fault(path: Path, fault: FaultDef, op: str, cases: Sequence[Prepared], compare: bool = False) -> Outcome:
    """Run the fault until a case fails; an honest variant runs through all of them.

    A fault and its module know some element types and forms only. A row on which it raises in most cases, or an
    honest variant fails most cases, is a form that it lacks: named in `lacking`, and no evidence.
    """
    spec = resolve(f"faults:{path.resolve()}:{fault.id}")
    ran: Counter[str] = Counter()
    failures: list[Failure] = []
    others: dict[str, int] = {}
    with Client(spec) as client:
        for case in cases:
            rounds = check.rounds_of(case.subject)
            client.submit(case.subject.case, case.subject.model, case.subject.inputs, rounds=rounds)
            seen = client.receive()
            verdict = check.verdict_of(case.subject, case.graph, case.exacts, seen, client, ())
            if verdict.status is Status.UNAVAILABLE:
                raise BackendUnavailableError(f"fault {fault.id}: {verdict.message}")
            if verdict.status is Status.UNSUPPORTED:
                continue
            label = case.subject.label
            ran[label] += 1
            if compare:
                for name in _rejecting(case, seen):
                    others.setdefault(name, ran.total())
            if verdict.status in FINDINGS:
                found = Failure(ran.total(), label, case.subject.case, verdict.status, verdict.message)
                failures.append(found)
                if not fault.benign and not found.raised and (not compare or len(others) == len(criteria.CRITERIA)):
                    break
    failed = Counter(f.label for f in failures if fault.benign or f.raised)
    lacking = tuple(sorted(label for label, count in failed.items() if 2 * count > ran[label]))
    first = next((f for f in failures if f.label not in lacking or not (fault.benign or f.raised)), None)
    evidence = (str(first.status), first.case, first.message) if first else ("", "", "")
    after = first.after if first else 0
    return Outcome(
        fault.id,
        op,
        fault.cls,
        fault.title,
        fault.benign,
        ran.total(),
        after,
        *evidence,
        lacking=lacking,
        others=others,
    )


def _rejecting(case: Prepared, seen: Observation) -> list[str]:
    """Who else would have failed this case: all where the process died, none where only opgauge looks."""
    if seen.status in (Status.CRASH, Status.HANG, Status.OOM):
        return [c.name for c in criteria.CRITERIA]
    if seen.status is not Status.PASS:
        return []
    forced = check.forced_outputs(case.graph, seen, case.exacts)
    sets = evaluate(case.graph, case.subject.inputs, Policy(), forced) if forced else case.exacts
    return criteria.rejecting(sets, reals(case.graph, case.subject.inputs, Policy(), forced), seen.outputs)


def summary(outcomes: Sequence[Outcome], faults: Sequence[FaultDef]) -> dict[str, object]:
    """Numerators, denominators and the lists behind them; a fault counts as caught on any of its operators."""
    seeded = [o for o in outcomes if not o.benign]
    classes: dict[str, dict[str, int]] = {}
    ids = sorted({o.id for o in seeded})
    caught = {o.id for o in seeded if o.caught}
    for identity in ids:
        cls = next(o.cls for o in seeded if o.id == identity)
        tally = classes.setdefault(cls, {"applicable": 0, "caught": 0})
        tally["applicable"] += 1
        tally["caught"] += identity in caught
    done = {o.id for o in outcomes}
    others = {
        c.name: {
            "caught": sorted({o.id for o in seeded if c.name in o.others}),
            "benign_flagged": sorted({o.id for o in outcomes if o.benign and c.name in o.others}),
            "text": c.text,
            "source": c.source,
        }
        for c in criteria.CRITERIA
    }
    lowered = {op for _, op in table()}
    return {
        "applicable": len(ids),
        "caught": len(caught),
        "pairs": len(seeded),
        "pairs_caught": sum(o.caught for o in seeded),
        "missed": [f"{o.id} {o.op}" for o in seeded if not o.caught],
        "classes": classes,
        "benign": sorted({o.id for o in outcomes if o.benign}),
        "lacking": {f"{o.id} {o.op}": list(o.lacking) for o in outcomes if o.lacking},
        "benign_flagged": [f"{o.id} {o.op}" for o in outcomes if o.benign and o.caught],
        "not_applicable": [
            f"{f.id} {f.op} ({'no suite row' if f.op not in lowered else f.cls})" for f in faults if f.id not in done
        ],
        "others": others if any(o.others for o in outcomes) else {},
        "outcomes": [{**asdict(o), "caught": o.caught} for o in outcomes],
    }
