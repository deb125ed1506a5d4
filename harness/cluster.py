"""The tasks of a run on a dask.distributed cluster; their records come back into the same journal.

A dask worker judges nothing itself: as a supervisor does, it starts a reference worker, which owns the kernel workers.
The records of a task arrive when it is done. A task whose dask worker is lost is done again elsewhere, so no record
comes twice.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from opgauge.backends import resolve
from opgauge.reference_engine.errors import OpgaugeError
from opgauge.reference_engine.types import Record

from . import __version__, isolation, resume, store
from .client import Client
from .run import PERFORM, STALL_S, Outcome, Settings, Task, reference_worker

CONNECT_S = 15.0
ALONE_S = 60.0  # without a worker that can do anything: one may be about to join
LOOK_S = 1.0  # how often the members are looked at
AHEAD = 2  # tasks under way for each thread of a worker, so that none waits for us
END_S = 5.0
OVER = ("finished", "error", "cancelled")  # of a future; one whose worker died with its result is "lost"


class ClusterError(OpgaugeError):
    """The cluster cannot be used; the message says why and what to do."""


class Told(NamedTuple):
    """What a task gave: a reference worker's words, and the files of failing cases by name."""

    records: list[dict[str, Any]]
    info: dict[str, dict[str, str]]
    error: str
    files: dict[str, bytes]


# ---- on a dask worker


class Reference:
    """A reference worker started as a program of its own: dask workers are daemons, which multiprocessing refuses."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="opgauge-")
        values = {**settings, "failures": self._folder.name if settings["failures"] else ""}
        self._connection, theirs = multiprocessing.Pipe()
        words = [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), str(os.getpid()), json.dumps(values)]
        options: dict[str, Any] = isolation.start_options()
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], **options)
        theirs.close()

    def do(self, task: Mapping[str, Any]) -> Told:
        """Every message of one task. Raises: EOFError when the reference worker is gone."""
        self._connection.send_bytes(json.dumps(task).encode())
        records: list[dict[str, Any]] = []
        case = ""
        try:
            while self._connection.poll(STALL_S):
                message = json.loads(self._connection.recv_bytes())
                if "started" in message:
                    case = message["started"]
                elif "record" in message:
                    records.append(message["record"])
                else:
                    return Told(records, message["info"], message["error"], self._files())
            raise EOFError(f"no word for {STALL_S:g} s in {case}")
        except (EOFError, OSError) as error:
            self.end(0.0)
            said = str(error) or isolation.how_it_ended(self._process.returncode or 0)
            return Told(records, {}, f"the reference worker ended: {said}{f' in {case}' if case else ''}", {})

    def alive(self) -> bool:
        return self._process.poll() is None

    def _files(self) -> dict[str, bytes]:
        found = {}
        for path in Path(self._folder.name).iterdir():
            found[path.name] = path.read_bytes()
            path.unlink()
        return found

    def end(self, patience_s: float) -> None:
        with contextlib.suppress(OSError):
            self._connection.send_bytes(b"null")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        isolation.kill(self._process)
        self._connection.close()
        self._folder.cleanup()


_held: dict[tuple[str, int], Reference] = {}  # by run and thread of this dask worker


def perform(run: str, task: str, settings: str) -> Told:
    """One task of a run, by the reference worker that this thread keeps for it."""
    key = (run, threading.get_ident())
    held = _held.get(key)
    if held is None or not held.alive():
        held = _held[key] = Reference(json.loads(settings))
    return held.do(json.loads(task))


def release(run: str) -> int:
    """End the reference workers of a run; how many there were."""
    doomed = [key for key in _held if key[0].startswith(run)]
    for key in doomed:
        _held.pop(key).end(END_S)
    return len(doomed)


def about(texts: Sequence[str]) -> dict[str, Any]:
    """Who a dask worker is, and which of these backends it lacks, with the reason."""
    from . import doctor

    lacks = {}
    for text in texts:
        try:
            with Client(resolve(text)) as client:
                why = client.info.get("unavailable") or client.info.get("error", "")
        except OpgaugeError as error:
            why = str(error)
        if why:
            lacks[text] = why
    return {"version": __version__, "lacks": lacks, "machine": doctor.machine()}


# ---- on the supervisor


@dataclass(frozen=True)
class Member:
    """A dask worker: its threads, and the backends that it has."""

    threads: int
    backends: frozenset[str]


class Piece(NamedTuple):
    """A task on some of the backends, and the workers that may do it."""

    task: Task
    backends: tuple[str, ...]
    workers: frozenset[str]


def pieces(task: Task, members: Mapping[str, Member], texts: Sequence[str]) -> list[Piece]:
    """A task for each group of backends that the same workers have; one that nobody has is anybody's to refuse."""
    groups: dict[frozenset[str], list[str]] = {}
    for text in texts:
        able = frozenset(a for a, member in members.items() if text in member.backends)
        groups.setdefault(able or frozenset(members), []).append(text)
    return [Piece(task, tuple(backends), workers) for workers, backends in groups.items()]


def connect(address: str) -> Any:
    """A client of the scheduler. Raises: ClusterError."""
    try:
        import distributed
    except ImportError as error:
        raise ClusterError(f"--cluster {address}: {error}: pip install 'opgauge[cluster]'") from error
    try:
        return distributed.Client(address, timeout=CONNECT_S)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(f"--cluster {address}: {error}: is it the address of a running `dask scheduler`?") from error


class _Cluster:
    """Who is there, what each one does."""

    def __init__(self, link: Any, settings: Settings, on_worker: Callable[[dict[str, Any]], None]) -> None:
        self._link, self._settings, self._on_worker = link, settings, on_worker
        self.run = uuid.uuid4().hex
        self.members: dict[str, Member] = {}
        self.refused: dict[str, str] = {}
        self._asked: dict[str, Any] = {}
        self.flying: dict[Any, Piece] = {}
        self.left: Counter[Task] = Counter()  # pieces of a task under way
        self._looked = 0.0
        self._useful = time.monotonic()

    def part(self) -> dict[str, Any]:
        """Say who left; who is there, by address."""
        alive: dict[str, Any] = self._link.scheduler_info(n_workers=-1)["workers"]
        for address in [a for a in self.members if a not in alive]:
            del self.members[address]
            self._on_worker({"worker": address, "left": True})
        return alive

    def look(self) -> None:
        """Ask who joined, forget who left; what waits for somebody who left is given to others."""
        if time.monotonic() - self._looked < LOOK_S and self.members:
            return
        self._looked = time.monotonic()
        alive = self.part()
        for address in alive:
            if address not in self.members and address not in self.refused and address not in self._asked:
                self._asked[address] = self._link.submit(
                    about, self._settings.backends, workers=[address], allow_other_workers=False, pure=False
                )
        for address, future in list(self._asked.items()):
            if address not in alive:
                del self._asked[address]
            elif future.status in OVER:
                del self._asked[address]
                self._meet(address, alive[address]["nthreads"], future)
        for future, piece in list(self.flying.items()):
            if self.members and not piece.workers & set(self.members) and not future.done():
                del self.flying[future]
                future.cancel()
                self.left[piece.task] -= 1
                self.start(piece.task, piece.backends)
        if self.members or self._asked:
            self._useful = time.monotonic()

    def _meet(self, address: str, threads: int, future: Any) -> None:
        if future.status != "finished":
            self.refused[address] = f"{future.exception() or future.status}: is opgauge installed there?"
        elif (said := _result(future)) is None:
            return  # it died right after its answer; should it come back, it is asked again
        elif said["version"] != __version__:
            self.refused[address] = f"it has opgauge {said['version']}, here is {__version__}"
        else:
            self.members[address] = Member(threads, frozenset(self._settings.backends) - set(said["lacks"]))
            self._on_worker({"worker": address, **said})
            return
        self._on_worker({"worker": address, "refused": self.refused[address]})

    def alone(self) -> str:
        """Why nobody will do anything, empty while somebody may."""
        if self.members or self._asked or time.monotonic() - self._useful < (0 if self.refused else ALONE_S):
            return ""
        return "; ".join(f"{a}: {why}" for a, why in self.refused.items()) or f"no worker for {ALONE_S:g} s"

    def start(self, task: Task, backends: Sequence[str]) -> None:
        for piece in pieces(task, self.members, backends):
            settings = json.dumps(asdict(replace(self._settings, backends=piece.backends)))
            words = (f"{self.run} {' '.join(piece.backends)}", json.dumps(asdict(task)), settings)
            future = self._link.submit(
                perform, *words, workers=sorted(piece.workers), allow_other_workers=False, pure=False
            )
            self.flying[future] = piece
            self.left[task] += 1

    def room(self) -> bool:
        """May another task start? Not while somebody who may have a backend that nobody has is still to answer."""
        had = {text for member in self.members.values() for text in member.backends}
        if not self.members or (self._asked and not had >= set(self._settings.backends)):
            return False
        return len(self.flying) < AHEAD * sum(member.threads for member in self.members.values())

    def finished(self) -> list[tuple[Piece, Told]]:
        """What is done by now, after a moment's wait; a result that was lost with its worker is done again."""
        import distributed

        if not self.flying:
            time.sleep(0.05)
            return []
        with contextlib.suppress(TimeoutError, distributed.CancelledError):
            distributed.wait(list(self.flying), timeout=LOOK_S, return_when="FIRST_COMPLETED")
        over = [(future, _told(future)) for future in list(self.flying) if future.status in OVER]
        return [(self.flying.pop(future), told) for future, told in over if told is not None]

    def end(self) -> None:
        for future in self.flying:
            future.cancel()
        with contextlib.suppress(Exception):  # a worker that is gone needs no goodbye
            self._link.run(release, self.run, on_error="ignore")


def _result(future: Any) -> Any:
    """What a task gave; None where its worker is gone and the result with it. Raises what the task raised."""
    try:
        return future.result(timeout=CONNECT_S)
    except TimeoutError:
        if future.status == "error":
            raise
        return None


def _told(future: Any) -> Told | None:
    """What a task gave, or why it gave nothing; None where it is lost."""
    try:
        told: Told | None = _result(future)
        return told
    except Exception as error:  # whatever the task raised
        return Told([], {}, f"{type(error).__name__}: {error}", {})


def run(
    address: str,
    tasks: Sequence[Task],
    settings: Settings,
    on_record: Callable[[Record], None],
    on_task: Callable[[Task], None] = lambda _: None,
    on_worker: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Outcome:
    """`run.run` on the workers of a cluster; `on_worker` hears who joined, was refused or left.

    Raises: ClusterError where no scheduler answers.
    """
    start, todo = time.monotonic(), deque(tasks)
    outcome = Outcome([], False, 0.0, {})
    failed: set[Task] = set()
    beside: set[tuple[str, str, str]] = set()  # records of no backend of ours, which every piece of a task gives
    with connect(address) as link:
        cluster = _Cluster(link, settings, on_worker)
        try:
            while todo or cluster.flying:
                cluster.look()
                if why := cluster.alone():
                    outcome.errors.append(f"nobody on {address} can go on: {why}")
                    break
                while todo and cluster.room():
                    cluster.start(todo.popleft(), settings.backends)
                for piece, told in cluster.finished():
                    _take(told, settings, beside, on_record)
                    outcome.backends.update(told.info)
                    cluster.left[piece.task] -= 1
                    if told.error:
                        failed.add(piece.task)
                        outcome.errors.append(f"{piece.task}: {told.error}")
                    elif not cluster.left[piece.task] and piece.task not in failed:
                        on_task(piece.task)
            cluster.part()
        except KeyboardInterrupt:
            outcome = outcome._replace(interrupted=True)
        finally:
            cluster.end()
    return outcome._replace(seconds=time.monotonic() - start)


def _take(
    told: Told, settings: Settings, beside: set[tuple[str, str, str]], on_record: Callable[[Record], None]
) -> None:
    for name, data in told.files.items():
        folder = Path(settings.failures)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / Path(name).name).write_bytes(data)
    for each in told.records:
        record = store.record_from_dict(each)
        key = (record.suite, record.case, record.backend)
        if record.backend not in settings.backends:
            if key in beside:
                continue
            beside.add(key)
        if saved := record.detail.get("saved"):
            here = str(Path(settings.failures) / Path(saved).name)
            record = replace(record, detail={**record.detail, "saved": here})
        on_record(record)


def main() -> None:
    """The reference worker that `Reference` started."""
    fd, parent, values = sys.argv[1:]
    settings = resume.settings_of({"settings": json.loads(values)}, Path("(the cluster)"))
    reference_worker(Connection(int(fd)), settings, int(parent), PERFORM)


if __name__ == "__main__":
    main()
