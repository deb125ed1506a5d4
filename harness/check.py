"""One case on every backend: build, run, evaluate, judge, record. A row: many of them, and a shrunk failure."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from opgauge.reference_engine import caches, lower, operators
from opgauge.reference_engine.case import id_of, parse_id
from opgauge.reference_engine.errors import ModelError, UnknownOperatorError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.types import (
    FINDINGS,
    Array,
    Case,
    CaseSpec,
    Exact,
    Graph,
    Observation,
    Policy,
    Record,
    Status,
    Verdict,
)
from opgauge.suites import onnx_node

from . import dependence, expectations, generate, instead, minimise, model, pinned, statistics
from .client import Client
from .oracles import judge
from .worker import clean

SHRINK_S = 5.0
# One small case in PROBED is called many times in turn with other data, so that state kept for long shows.
PROBED = 25
PROBE_ROUNDS = 40
PROBE_BYTES = 4096
SHRUNK_PER_ROW = 2


@dataclass(frozen=True)
class Subject:
    """What is checked: a model with inputs, and how records call it."""

    case: str
    suite: str
    op: str
    label: str
    profile: str
    model: bytes
    inputs: Mapping[str, Array]


def subject_of(case: Case, label: str, suite: str = "operators", text: str = "") -> Subject:
    """`text` is its id where that is known."""
    data, inputs = model.build(case)
    return Subject(text or id_of(case, label), suite, case.op, label, case.profile, data, inputs)


def rounds_of(subject: Subject) -> int:
    """How often the case takes turns with other data: a function of its id, so that a replay does the same."""
    small = sum(np.asarray(x).nbytes for x in subject.inputs.values()) <= PROBE_BYTES
    return PROBE_ROUNDS if small and zlib.crc32(subject.case.encode()) % PROBED == 0 else 1


def check(
    subject: Subject,
    clients: Sequence[Client],
    rows: Sequence[expectations.Deviation] = (),
    stored: onnx_node.NodeTest | None = None,
    listen: Callable[[Client, Graph, Sequence[Exact], Observation], None] | None = None,
) -> list[Record]:
    """The records of one subject, one for each client, in their order; one more for `stored` outputs.

    The backends compute while the reference evaluates. A model that the reference refuses is `invalid`
    and counts for or against nobody. `listen` sees what was compared.
    """
    started = time.perf_counter()
    for client in clients:
        client.submit(subject.case, subject.model, subject.inputs, rounds=rounds_of(subject))
    refused = ""
    exacts: dict[Policy, tuple[Exact, ...]] = {}
    graph: Graph | None = None
    try:
        graph = lower.lower(subject.model, subject.inputs)
        for policy in {client.spec.policy for client in clients}:
            exacts[policy] = evaluate(graph, subject.inputs, policy)
    except ModelError as error:
        refused = clean(f"{type(error).__name__}: {error}")
    records = []
    for client in clients:
        observation = client.receive()
        if refused or graph is None:
            verdict = Verdict(Status.INVALID, refused)
        else:
            verdict = verdict_of(subject, graph, exacts[client.spec.policy], observation, client, rows)
            verdict = pinned.judge(client.pins, subject.op, graph, subject.inputs, observation, verdict)
            if listen is not None and observation.status is Status.PASS and observation.outputs:
                listen(client, graph, exacts[client.spec.policy], observation)
        made = record(subject, client.spec.text, observation, verdict, time.perf_counter() - started)
        if stored is not None and observation.status is Status.PASS:
            made = replace(made, detail={**made.detail, "stored": matches_stored(observation.outputs, stored)})
        records.append(made)
    if stored is not None and graph is not None and not refused:
        seen = Observation(Status.PASS, stored.outputs)
        forced = forced_outputs(graph, seen, evaluate(graph, subject.inputs))
        verdict = judge(evaluate(graph, subject.inputs, forced=forced), seen, Policy())
        if verdict.status is Status.FAIL and stored.name in onnx_node.STORED_DEVIATIONS:
            reason = onnx_node.STORED_DEVIATIONS[stored.name]
            verdict = replace(verdict, status=Status.DEVIATION, message=reason)
        records.append(record(subject, STORED, seen, verdict, 0.0))
    return records


def verdict_of(
    subject: Subject,
    graph: Graph,
    exacts: tuple[Exact, ...],
    observation: Observation,
    client: Client,
    rows: Sequence[expectations.Deviation] = (),
) -> Verdict:
    """The oracle's word, after outputs that depend on other outputs were judged against those as returned."""
    forced = forced_outputs(graph, observation, exacts)
    if forced:
        exacts = evaluate(graph, subject.inputs, client.spec.policy, forced)
    verdict = judge(exacts, observation, client.spec.policy)
    if verdict.status is not Status.FAIL or not rows:
        return verdict
    spec, info = client.spec, told(client)
    mine = [
        row for row in rows if expectations.applies(row, spec.name, info) and expectations.speaks_of(row, subject.case)
    ]

    def alternative(name: str) -> tuple[Exact, ...]:
        return instead.exacts(name, subject.model, subject.inputs, spec.policy)

    return expectations.explain(mine, subject.op, exacts, observation.outputs, verdict, alternative)


def told(client: Client) -> dict[str, str]:
    """What a backend says of itself, and the options that it was asked for: what a row's `when` is about."""
    return {**client.info, **dict(client.spec.options)}


def forced_outputs(graph: Graph, observation: Observation, exacts: Sequence[Exact]) -> dict[int, Array]:
    """Returned outputs that other outputs are computed from (DynamicQuantizeLinear's scale and zero point)."""
    if observation.status is not Status.PASS or len(observation.outputs) != len(exacts):
        return {}
    return {
        i: observation.outputs[i]
        for i in graph.forced
        if observation.outputs[i].shape == exacts[i].value.shape
        and observation.outputs[i].dtype == exacts[i].value.dtype
    }


def record(subject: Subject, backend: str, observation: Observation, verdict: Verdict, seconds: float) -> Record:
    detail: dict[str, Any] = dict(verdict.detail)
    if observation.times_ns:
        detail["times_ns"] = dict(observation.times_ns)
    return Record(
        subject.case,
        subject.suite,
        subject.op,
        subject.label,
        subject.profile,
        backend,
        verdict.status,
        verdict.message,
        verdict.explained,
        verdict.elements,
        verdict.outside,
        verdict.undecided,
        verdict.saturated,
        verdict.ties,
        verdict.set_size,
        verdict.sized,
        round(seconds * 1e6, 1),
        detail,
        dict(observation.counts),
    )


def check_row(
    row: CaseSpec,
    budget: int,
    seed: int,
    clients: Sequence[Client],
    emit: Callable[[Record], None],
    failures: Path | None = None,
    shrink: bool = True,
    skip: Collection[str] = (),
    started: Callable[[str], None] | None = None,
) -> generate.Explored:
    """Explore a suite row; every record goes to `emit` at once.

    The first failures of each backend are shrunk to a smaller case that still fails, and saved with
    their model and inputs under `failures`. Cases in `skip` have their verdicts; `started` hears of each other one.
    """
    rows = expectations.load()
    shrunk: dict[str, int] = {}
    dependent: set[str] = set()
    moments = {client.spec.text: statistics.Moments() for client in clients}

    def visit(case_id: str, case: Case) -> None:
        if case_id in skip:
            return
        if started is not None:
            started(case_id)
        subject = subject_of(case, row.label, text=case_id)

        def listen(client: Client, graph: Graph, exacts: Sequence[Exact], seen: Observation) -> None:
            moments[client.spec.text] += statistics.tally(case, graph, subject.inputs, exacts[0], seen.outputs[0])

        def once_more(client: Client) -> Record:
            return check(subject, [client], rows)[0]

        for found, client in zip(check(subject, clients, rows, listen=listen), clients, strict=True):
            few = shrunk.get(found.backend, 0) < SHRUNK_PER_ROW and not client.spec.definition.informative
            if few or found.backend in dependent:
                found = dependence.settled(found, client, once_more, search=few)
                if dependence.AFTER in found.detail:
                    dependent.add(found.backend)
            if found.status in FINDINGS and few:
                shrunk[found.backend] = shrunk.get(found.backend, 0) + 1
                found = _with_smaller(found, case, row, seed, client, rows, shrink)
                if failures is not None:
                    found = _saved(found, failures)
            emit(found)

    explored = generate.explore(row, budget, seed, visit)
    for backend, summed in moments.items():
        if (made := statistics.record(row, backend, budget, seed, summed)) is not None:
            emit(made)
    return explored


# A try costs these a process or many calls.
SLOW = frozenset({Status.HANG, Status.OOM, Status.LEAK})


def _with_smaller(
    found: Record,
    case: Case,
    row: CaseSpec,
    seed: int,
    client: Client,
    rows: Sequence[expectations.Deviation],
    shrink: bool,
) -> Record:
    """The record with the id and the evidence of a smaller case that fails for the same reason."""
    if not shrink or found.status in SLOW or dependence.AFTER in found.detail:
        return found

    def tried(candidate: Case) -> Record:
        return check(subject_of(candidate, row.label), [client], rows)[0]

    def same(candidate: Case) -> bool:
        return minimise.alike(found, tried(candidate))

    def alone(candidate: Case) -> Record:
        """In a fresh process: all that was tried in this one may have left something behind."""
        if found.status is Status.FAIL:
            client.renew()
        return tried(candidate)

    smaller = minimise.minimise(case, same, SHRINK_S)
    again = alone(smaller)
    if again.elements > minimise.FEW or not minimise.alike(found, again):
        # Another draw of the row may be simpler than what is left of this one.
        other = generate.shrink(row, seed, same, SHRINK_S / 2)
        if other is not None and minimise.alike(found, seen := alone(other)) and seen.elements < again.elements:
            smaller, again = other, seen
    if smaller == case or not minimise.alike(found, again):
        return found
    evidence = {
        "case": again.case,
        "message": again.message,
        **{k: again.detail.get(k) for k in ("index", "got", "expected")},
    }
    return replace(found, detail={**found.detail, "smaller": evidence})


def _saved(found: Record, failures: Path) -> Record:
    case, label = parse_id(found.detail.get("smaller", {}).get("case", found.case))
    path = model.save(case, label, failures, {"backend": found.backend, "message": found.message})
    return replace(found, detail={**found.detail, "saved": str(path)})


def check_witnesses(clients: Sequence[Client], emit: Callable[[Record], None], ops: Collection[str] = ()) -> None:
    """Replay the witness of each deviation where its condition holds: a pass means that the row is stale.

    Of these operators only, where any are named.
    """
    for row in expectations.load():
        if ops and not any(expectations.about(row, op) for op in ops):
            continue
        for client in clients:
            if not expectations.applies(row, client.spec.name, told(client)):
                continue
            case, label = parse_id(row.witness)
            found = check(subject_of(case, label, "witness"), [client], [row])[0]
            if found.status not in (Status.DEVIATION, Status.UNSUPPORTED, Status.UNAVAILABLE):
                text = f"deviation {row.id} is stale: its witness reads {found.status} on {client.spec.text}"
                found = replace(found, status=Status.FAIL, message=text, detail={**found.detail, "stale": row.id})
            emit(found)


STORED = "onnx-stored"


@lru_cache(maxsize=1)
def node_tests() -> onnx_node.NodeTests:
    """All node tests on lowered operators and forms, collected once in a process."""
    return _expressible(onnx_node.collected(operators.table(), caches.root()))


def node_test(name: str) -> onnx_node.NodeTest | None:
    """The node test of that name, without looking at the others; None where it is none of ours."""
    found = onnx_node.collected(operators.table(), caches.root())
    found = replace(found, tests=tuple(test for test in found.tests if test.name == name))
    return next(iter(_expressible(found).tests), None)


def _expressible(found: onnx_node.NodeTests) -> onnx_node.NodeTests:
    kept, skipped = [], list(found.skipped)
    for test in found.tests:
        try:
            lower.lower(test.model, test.inputs)
            kept.append(test)
        except UnknownOperatorError as error:
            skipped.append((test.name, str(error)))
    return replace(found, tests=tuple(kept), skipped=tuple(skipped))


def check_node_tests(names: Sequence[str], clients: Sequence[Client], emit: Callable[[Record], None]) -> None:
    """ONNX's node tests: backends by our sets and against the stored outputs, the stored outputs by our sets.

    No names: all of them.
    A backend's record carries `stored`: whether its outputs also match ONNX's within ONNX's own tolerance;
    the record of `onnx-stored` says whether what ONNX stores lies inside our sets.
    """
    rows = expectations.load()
    for test in node_tests().tests:
        if names and test.name not in names:
            continue
        subject = Subject(f"onnx-node/{test.name}", "onnx-node", test.op, "node", "onnx-node", test.model, test.inputs)
        for found in check(subject, clients, rows, stored=test):
            emit(found)


def matches_stored(outputs: Sequence[Array], test: onnx_node.NodeTest) -> bool:
    """ONNX's own criterion: equal types and shapes, |y - stored| <= atol + rtol |stored|."""
    if len(outputs) != len(test.outputs):
        return False
    for actual, stored in zip(outputs, test.outputs, strict=True):
        if actual.dtype != stored.dtype or actual.shape != stored.shape:
            return False
        a, b = actual.astype(np.float64), stored.astype(np.float64)
        if not np.allclose(a, b, rtol=test.rtol, atol=test.atol, equal_nan=True):
            return False
    return True
