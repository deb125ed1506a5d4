"""The supervisor: hands tasks to reference workers and collects records; sees bytes and verdicts, never a model.

A reference worker is a process that builds cases, evaluates and judges them, and owns one kernel worker per
backend. When it dies, the task it had is lost and named; all records that it had sent are kept.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from opgauge import suites
from opgauge.backends import BackendSpec, resolve
from opgauge.reference_engine.types import Record, Status

from . import isolation, store
from .client import Client
from .worker import load_callable

REFERENCE_MEMORY = 6 << 30
STALL_S = 600.0  # without a word; a single case takes seconds at most


@dataclass(frozen=True)
class Task:
    """What a reference worker does in one piece.

    `kind` is `row` (names of suite rows), `node` (onnx's node tests, of the operators named or of all), `witness`
    (the witnesses of deviations, of the operators named or of all) or `repro` (an id or file of a case; any before it
    are what its process does before). `skip` are cases that have their verdicts.
    """

    kind: str
    names: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.kind, *self.names])


@dataclass(frozen=True)
class Settings:
    """The same for every task of a run. `failures` is where failing cases are saved."""

    backends: tuple[str, ...]
    budget: int = 100
    seed: int = 0
    timeout_s: float = 20.0
    shrink: bool = True
    failures: str = ""
    heap_check: bool = False
    pins: tuple[tuple[str, ...], ...] = ()  # see pinned.py


class Emit:
    """Takes the records of a reference worker; `started` says beforehand which case comes."""

    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send

    def __call__(self, record: Record) -> None:
        self._send(record=store.record_to_dict(record))

    def started(self, case: str) -> None:
        self._send(started=case)


class Outcome(NamedTuple):
    """How a run ended. `errors` are the harness's own; `backends` what each backend says of itself."""

    errors: list[str]
    interrupted: bool
    seconds: float
    backends: dict[str, dict[str, str]]


def default_jobs() -> int:
    return max(1, min(8, os.cpu_count() or 1))


# ---- the reference worker


PERFORM = "opgauge.run:perform"


def perform(task: Task, settings: Settings, clients: Sequence[Client], emit: Callable[[Record], None]) -> None:
    from . import check, repro

    if task.kind == "row":
        failures = Path(settings.failures) if settings.failures else None
        rows = {row.name: row for row in suites.cases()}
        started = emit.started if isinstance(emit, Emit) else None
        common = (settings.budget, settings.seed, clients, emit, failures, settings.shrink)
        for name in task.names:
            check.check_row(rows[name], *common, skip=frozenset(task.skip), started=started)
    elif task.kind == "opsets":
        from . import opsets

        every = {row.name: row for row in suites.cases()}
        for name in task.names:
            opsets.sweep_row(every[name], settings.budget, settings.seed, clients, emit, frozenset(task.skip))
    elif task.kind == "repro":
        *after, text = task.names
        repro.reproduce(text, clients, emit, after)
    elif task.kind == "node":
        # Not in pieces: collecting them takes ten seconds in every process.
        check.check_node_tests((), clients, lambda r: emit(r) if not task.names or r.op in task.names else None)
    else:
        check.check_witnesses(clients, emit, task.names)


def _late_deaths(clients: Sequence[Client], emit: Callable[[Record], None]) -> None:
    """A process that died after its last result is a crash of that case."""
    for client in clients:
        while client.late_deaths:
            case, message = client.late_deaths.pop()
            op, label, *_, profile, _ = [*case.split("/"), *([""] * max(0, 3 - case.count("/")))]
            emit(Record(case, "operators", op, label, profile, client.spec.text, Status.CRASH, message))


def reference_worker(connection: Connection, settings: Settings, parent: int, how: str) -> None:
    """Serve tasks until told to stop."""
    isolation.ignore_interrupts()
    isolation.die_with_parent(parent)
    isolation.limit_memory(REFERENCE_MEMORY)

    def send(**message: Any) -> None:
        connection.send_bytes(json.dumps(message, allow_nan=False).encode())

    emit = Emit(send)
    with contextlib.ExitStack() as stack, contextlib.suppress(EOFError, BrokenPipeError):
        clients = [
            stack.enter_context(Client(resolve(text), settings.timeout_s, heap_check=settings.heap_check))
            for text in settings.backends
        ]
        from . import pinned  # slow to import: kernel workers load meanwhile

        for client in clients if settings.pins else ():
            client.pins = pinned.pins_of(client.spec.text, settings.pins)
        do, told = load_callable(how), False
        while task := json.loads(connection.recv_bytes()):
            error = ""
            try:
                do(Task(task["kind"], tuple(task["names"]), tuple(task["skip"])), settings, clients, emit)
            except Exception as problem:
                error = _where(problem)
            _late_deaths(clients, emit)
            info = {} if told else {c.spec.text: {**c.info, "policy": str(c.spec.policy)} for c in clients}
            told = True
            send(done=True, error=error, info=info)


def _where(problem: Exception) -> str:
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{type(problem).__name__}: {problem} ({Path(frame.filename).name}:{frame.lineno} in {frame.name})"


# ---- the supervisor


class _Worker:
    """A reference worker from outside."""

    def __init__(self, settings: Settings, how: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        arguments = (theirs, settings, os.getpid(), how)
        self.process = context.Process(target=reference_worker, args=arguments, daemon=False)
        with isolation.uninterrupted():
            self.process.start()
        theirs.close()
        self.task: Task | None = None
        self.case = ""
        self.heard = time.monotonic()

    def give(self, task: Task | None) -> None:
        self.task, self.case, self.heard = task, "", time.monotonic()
        with contextlib.suppress(OSError):  # it is gone: the next read says so
            self.connection.send_bytes(json.dumps(asdict(task) if task else None).encode())

    def end(self, patience_s: float = 0.0) -> str:
        """How the process ended, after it was given time to do so by itself."""
        self.process.join(patience_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()
        return isolation.how_it_ended(self.process.exitcode or 0)


def run(
    tasks: Sequence[Task],
    settings: Settings,
    jobs: int,
    on_record: Callable[[Record], None],
    on_task: Callable[[Task], None] = lambda _: None,
    on_started: Callable[[str], None] = lambda _: None,
    how: str = PERFORM,
) -> Outcome:
    """Do all tasks; every record goes to `on_record` as it comes, after `on_started` with its case.

    Ctrl-C ends the run and keeps what there is.

    `how` places the function that does a task, for tests of the supervisor itself.
    """
    start = time.monotonic()
    todo = deque(tasks)
    outcome = Outcome([], False, 0.0, {})
    workers: list[_Worker] = []
    try:
        while todo or any(w.task for w in workers):
            while todo and len(workers) < min(jobs, len(todo) + sum(1 for w in workers if w.task)):
                workers.append(_Worker(settings, how))
            for worker in workers:
                if worker.task is None and todo:
                    worker.give(todo.popleft())
            ready = wait([w.connection for w in workers], 1.0)
            for worker in list(workers):
                stalled = time.monotonic() - worker.heard > STALL_S and worker.task is not None
                if worker.connection not in ready and not stalled:
                    continue
                if stalled or not _hear(worker, outcome, on_record, on_task, on_started):
                    ended = f"no word for {STALL_S:g} s" if stalled else worker.end(1.0)
                    worker.end()
                    workers.remove(worker)
                    where = f" in {worker.case}" if worker.case else ""
                    # Not `on_task`: what is left of the task is done when the run is resumed.
                    outcome.errors.append(f"{worker.task or 'idle'}: the reference worker ended: {ended}{where}")
        for worker in workers:
            worker.give(None)
        for worker in workers:
            worker.end(5.0)
        workers.clear()
    except KeyboardInterrupt:
        outcome = outcome._replace(interrupted=True)
    finally:
        for worker in workers:
            worker.end()
    return outcome._replace(seconds=time.monotonic() - start)


def _hear(
    worker: _Worker,
    outcome: Outcome,
    on_record: Callable[[Record], None],
    on_task: Callable[[Task], None],
    on_started: Callable[[str], None],
) -> bool:
    """Take what the worker has to say; False when it is gone."""
    try:
        while worker.connection.poll():
            message = json.loads(worker.connection.recv_bytes())
            worker.heard = time.monotonic()
            if "started" in message:
                worker.case = message["started"]
                on_started(worker.case)
                continue
            if "record" in message:
                on_record(store.record_from_dict(message["record"]))
                continue
            assert worker.task is not None
            outcome.backends.update(message["info"])
            if message["error"]:
                outcome.errors.append(f"{worker.task}: {message['error']}")
            on_task(worker.task)
            worker.task = None
            return True
    except (EOFError, OSError):
        return False
    return True


def specs(texts: Sequence[str]) -> tuple[BackendSpec, ...]:
    """Backends once each, in order. Raises: UnknownBackendError."""
    return tuple(dict.fromkeys(resolve(text) for text in texts))
