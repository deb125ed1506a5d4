"""What is asked of a commit or a release, and its answer: a verdict, bits, a crash, a count.

Models are parsed, run and judged in a reference worker and its kernel worker, never in the caller.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opgauge.backends import resolve
from opgauge.reference_engine.errors import CaseError, OpgaugeError
from opgauge.reference_engine.types import (
    FINDINGS,
    MISBEHAVIOUR,
    Exact,
    Observation,
    Policy,
    Record,
    Status,
    Verdict,
)

from . import isolation
from . import run as supervisor
from .client import Client
from .model_jobs import Job
from .run import Settings, Task

if TYPE_CHECKING:  # the command line must start without the engine
    from . import check

VERDICT, CRASH, BITS, COUNT, LATENCY = "verdict", "crash", "bits", "count", "latency"
WHATS = (VERDICT, CRASH, BITS, COUNT, LATENCY)
# Neither tells a right result from a wrong one.
FINE = (Status.PASS, Status.DEVIATION, Status.UNTRUSTED)
NODES = "nodes"


@dataclass(frozen=True)
class Subject:
    """A case id, a saved case, or a model file with inputs given or drawn as `opgauge model` does."""

    case: str
    dims: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    inputs: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """`value` is what is compared, empty where none could be had; `message` is its evidence."""

    value: str
    message: str = ""


def known(what: str) -> None:
    """Raises: CaseError."""
    if what.partition(":")[0] not in WHATS or (":" in what and not what.startswith(f"{COUNT}:")):
        raise CaseError(f"--what {what!r}: there is {', '.join(WHATS)} and {COUNT}:NAME")


def is_saved_case(text: str) -> bool:
    return Path(text).suffix in (".json", ".npz") or (
        Path(text).suffix == ".onnx" and Path(text).with_suffix(".json").is_file()
    )


def loaded(subject: Subject) -> check.Subject:
    """The model and its inputs. Raises: CaseError, ModelError."""
    from . import check, models, repro

    if subject.case.endswith(".onnx") and not is_saved_case(subject.case):
        if not Path(subject.case).is_file():
            raise CaseError(f"there is no file {subject.case}")
        made = models.load(
            Job(subject.case, dims=subject.dims, values=subject.values, inputs=subject.inputs, seed=subject.seed)
        )
        return check.Subject(f"model/{made.title}", "bisect", made.title, "", "", made.data, made.feeds)
    return repro.subject_from(subject.case)


# ---- in the reference worker


@dataclass(frozen=True)
class Case:
    """A subject in memory, evaluated once for each policy."""

    subject: check.Subject
    exacts: dict[Policy, tuple[Exact, ...]] = field(default_factory=dict)


def answer(case: Case, what: str, client: Client) -> Answer:
    """Raises: CaseError where the case itself is at fault, ModelError."""
    from opgauge.reference_engine.evaluate import evaluate
    from opgauge.reference_engine.lower import lower

    from . import check, minimise, repro

    if what.partition(":")[0] == COUNT:
        return _counted(case.subject, what.partition(":")[2], client)
    client.submit(case.subject.case, case.subject.model, case.subject.inputs)
    seen = client.receive()
    found = Verdict(seen.status, seen.message)
    if found.status is Status.UNAVAILABLE:
        return Answer("", found.message)
    if what == BITS:
        return Answer(repro.digest(seen.outputs) if found.status is Status.PASS else str(found.status), found.message)
    if what == CRASH:
        return Answer(str(found.status) if found.status in MISBEHAVIOUR else "no crash", found.message)
    if found.status is Status.PASS:
        graph = lower(case.subject.model, case.subject.inputs)
        policy = client.spec.policy
        if policy not in case.exacts:
            case.exacts[policy] = evaluate(graph, case.subject.inputs, policy)
        found = check.verdict_of(case.subject, graph, case.exacts[policy], seen, client, ())
    # With the symptom, or a fault hides behind another one at the other end.
    said = Status.PASS if found.status in FINE else minimise.symptom(found) or found.status
    return Answer(str(said), found.message)


def _counted(subject: check.Subject, name: str, client: Client) -> Answer:
    """Nodes of onnxruntime's optimised graph, or what another backend counts itself. Raises: CaseError."""
    if client.spec.kind == "table" and client.spec.name == "onnxruntime":
        seen, counts = _graph_counts(subject, client)
    else:
        client.submit(subject.case, subject.model, subject.inputs, repeats=1)
        seen = client.receive()
        counts = dict(seen.counts)
        name = name or "dispatch_count"
        name = next((n for n in (name, f"{name}_count", f"DataMove.{name.lower()}_count") if n in counts), name)
    if seen.status is not Status.PASS:
        return Answer("" if seen.status is Status.UNAVAILABLE else str(seen.status), seen.message)
    if not counts:
        raise CaseError("it counts nothing")
    told = ", ".join(f"{k} {v}" for k, v in sorted(counts.items()) if v and not k.startswith("plan_"))
    return Answer(str(counts.get(name or NODES, 0)), told[:300])


def _graph_counts(subject: check.Subject, client: Client) -> tuple[Observation, dict[str, int]]:
    from opgauge.backends.onnxruntime_counts import kinds
    from opgauge.reference_engine import lower

    from .graph_diff import grapher

    level = dict(client.spec.options).get("level", "all")
    with Client(grapher(client.spec, level), client.timeout_s) as other:
        other.submit(subject.case, subject.model, subject.inputs, repeats=1)
        seen = other.receive()
    if seen.status is not Status.PASS:
        return seen, {}
    tally = kinds(lower.parse(seen.outputs[0].tobytes()).graph)
    return seen, {NODES: sum(tally.values()), **tally}


def serve(connection: Connection, parent: int) -> None:
    """Answer until told to stop; everything about one subject is read and evaluated once."""
    isolation.ignore_interrupts()
    isolation.die_with_parent(parent)
    isolation.limit_memory(supervisor.REFERENCE_MEMORY)
    cases: dict[str, Case] = {}
    with contextlib.suppress(EOFError, BrokenPipeError):
        while asked := json.loads(connection.recv_bytes()):
            try:
                key = json.dumps(asked["subject"], sort_keys=True)
                if key not in cases:
                    cases[key] = Case(loaded(Subject(**asked["subject"])))
                with Client(resolve(asked["backend"]), asked["timeout_s"]) as client:
                    told: dict[str, Any] = vars(answer(cases[key], asked["what"], client))
            except (OpgaugeError, OSError) as error:
                told = {"error": f"{asked['backend']}: {type(error).__name__}: {error}"}
            connection.send_bytes(json.dumps(told).encode())


# ---- in the caller


class Asker:
    """Asks one reference worker, which is started with the first question and again where it died."""

    def __init__(self) -> None:
        self._process: multiprocessing.process.BaseProcess | None = None

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, os.getpid()))
        with isolation.uninterrupted():
            self._process.start()
        theirs.close()

    def _stop(self) -> str:
        process, self._process = self._process, None
        if process is None:
            return ""
        self._connection.close()
        process.join(5.0)
        if process.is_alive():
            process.kill()
            process.join()
        return isolation.how_it_ended(process.exitcode or 0)

    def __call__(self, subject: Subject, what: str, backend: str, timeout_s: float) -> Answer:
        """Raises: CaseError for what the worker cannot read, judge, or survive."""
        if self._process is None:
            self._start()
        asked = {"subject": asdict(subject), "what": what, "backend": backend, "timeout_s": timeout_s}
        try:
            self._connection.send_bytes(json.dumps(asked).encode())
            told = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise CaseError(f"{subject.case[:120]}: the reference worker ended: {self._stop()}") from None
        if "error" in told:
            raise CaseError(told["error"])
        return Answer(**told)


def failing(op: str, backend: str, budget: int, timeout_s: float, wanted: int = 3) -> list[str]:
    """Ids of failing cases of an operator on a backend, of the first row that has any; the smaller ones if there are.

    Raises: SelectionError for an unknown operator, CaseError where the backend judged nothing.
    """
    from opgauge import suites

    from . import generate

    found: list[str] = []
    judged = 0
    for row in generate.select(suites.cases(), [op]):
        records: list[Record] = []
        settings = Settings((backend,), budget, timeout_s=timeout_s)
        outcome = supervisor.run([Task("row", (row.name,))], settings, 1, records.append)
        if outcome.interrupted:
            raise KeyboardInterrupt
        judged += sum(r.status not in (Status.UNAVAILABLE, Status.INVALID) for r in records)
        for record in records:
            if record.status in FINDINGS and record.suite == "operators":
                smaller = record.detail.get("smaller") or {}
                found.append(str(smaller.get("case", record.case)))
        if found:
            break
    if not judged:
        raise CaseError(f"{backend} judged no case of {op}")
    return found[:wanted]
