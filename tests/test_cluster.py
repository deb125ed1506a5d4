"""A run on a dask cluster gives what one process gives, though a worker is killed and another lacks a backend."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opgauge import cluster, isolation, store
from opgauge import run as supervisor
from opgauge.reference_engine.types import Record, Status

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.skipif(not isolation.LINUX, reason="kills processes by their number")

ADAPTER = """
import numpy as np
FUNCTIONS = {b"Relu": lambda x: np.maximum(x, 0), b"Neg": lambda x: -x - (x > 0), b"Abs": np.abs}
def run(model, inputs):
    (x,) = inputs.values()
    return [np.asarray(next(f for name, f in FUNCTIONS.items() if name in model)(x))]
"""
ROWS = ("Relu/int32", "Neg/int32", "Abs/int32", "Relu/float32", "Neg/float32", "Abs/float32")
TASKS = [supervisor.Task("row", (name,)) for name in ROWS]
MINE = "adapter.py:run"  # found in the folder where a worker was started


class Started:
    """A scheduler and its workers, by name."""

    def __init__(self, folder: Path, workers: Sequence[str]) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._file = folder / "scheduler.json"
        try:
            self._begin(folder, workers)
        except BaseException:
            self.end()
            raise

    def _begin(self, folder: Path, workers: Sequence[str]) -> None:
        self._start("scheduler", folder, "--port", "0", "--host", "127.0.0.1", "--no-dashboard", "--no-show")
        self.address = self._address()
        for name in workers:
            place = folder / name
            place.mkdir()
            if name != "bare":
                (place / "adapter.py").write_text(ADAPTER)
            self._start("worker", place, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--name", name)
        with distributed.Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(len(workers), timeout=120)

    def _address(self) -> str:
        """Where the scheduler listens; its file is there before its text is."""
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                return str(json.loads(self._file.read_text())["address"])
            assert time.monotonic() < deadline, f"no scheduler wrote {self._file}"
            time.sleep(0.05)

    def _start(self, what: str, folder: Path, *words: str) -> None:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", "--scheduler-file", str(self._file), *words]
        name = words[-1] if what == "worker" else what
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.processes[name] = subprocess.Popen(command, cwd=folder, **quiet)

    def kill(self, name: str) -> None:
        os.kill(self.processes[name].pid, signal.SIGKILL)

    def lose(self, name: str) -> None:
        """Kill it and wait until the scheduler knows."""
        self.kill(name)
        with distributed.Client(self.address, set_as_default=False) as client:
            while any(w["name"] == name for w in client.scheduler_info(n_workers=-1)["workers"].values()):
                time.sleep(0.01)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    found = Started(tmp_path, ("doomed", "bare", "other"))
    yield found
    found.end()


def settings(*backends: str) -> supervisor.Settings:
    return supervisor.Settings(backends, budget=6, shrink=False)


def lines(records: Sequence[Record]) -> list[bytes]:
    return sorted(map(store.timeless, records))


def test_a_worker_killed_on_the_way_and_one_without_the_backend_change_no_verdict(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[Record] = []
    heard: list[dict[str, Any]] = []
    done: list[supervisor.Task] = []

    def on_record(record: Record) -> None:
        if not there:
            started.lose("doomed")
        there.append(record)

    outcome = cluster.run(started.address, TASKS, settings("exact", MINE), on_record, done.append, heard.append)

    here: list[Record] = []
    monkeypatch.chdir(tmp_path / "other")
    local = supervisor.run(TASKS, settings("exact", MINE), 1, here.append)
    assert (outcome.errors, local.errors) == ([], [])
    assert lines(there) == lines(here)
    assert {r.status for r in there if r.backend == MINE} == {Status.PASS, Status.FAIL}  # control: it has a fault
    assert sorted(map(str, done)) == sorted(map(str, TASKS))
    assert {tuple(h["lacks"]) for h in heard if "lacks" in h} <= {(), (MINE,)}
    assert any("left" in h for h in heard)


def test_a_backend_goes_to_workers_that_have_it_and_to_anybody_where_nobody_has() -> None:
    both, one = cluster.Member(1, frozenset({"a", "b"})), cluster.Member(2, frozenset({"a"}))
    task = supervisor.Task("row", ("x",))

    def shares(members: dict[str, cluster.Member], *texts: str) -> dict[tuple[str, ...], set[str]]:
        return {piece.backends: set(piece.workers) for piece in cluster.pieces(task, members, texts)}

    assert shares({"v": both, "w": one}, "a", "b") == {("a",): {"v", "w"}, ("b",): {"v"}}
    assert shares({"v": both}, "a", "b") == {("a", "b"): {"v"}}
    assert shares({"w": one}, "a", "b", "c") == {("a", "b", "c"): {"w"}}


@dataclass(eq=False)
class Future:
    """A task of which this is told, and whose result raises `raises` or is `told`."""

    status: str
    told: cluster.Told | None = None
    raises: Exception | None = None

    def result(self, timeout: float) -> cluster.Told:
        if self.raises is not None:
            raise self.raises
        assert self.told is not None
        return self.told


def test_a_result_that_was_lost_with_its_worker_is_waited_for_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "wait", lambda *_, **__: None)
    good = cluster.Told([], {}, "", {})
    futures = {
        "good": Future("finished", told=good),
        "lost": Future("lost", raises=AssertionError("asked though it is lost")),
        "lost while asked": Future("finished", raises=TimeoutError("not there")),
        "slow": Future("error", raises=TimeoutError("the task's own")),
        "raised": Future("error", raises=ValueError("no such row")),
        "cancelled": Future("cancelled", raises=distributed.CancelledError("perform")),
    }
    some = cluster._Cluster(None, settings("exact"), lambda _: None)
    for name, future in futures.items():
        some.flying[future] = cluster.Piece(supervisor.Task("row", (name,)), ("exact",), frozenset({"w"}))
    over = {piece.task.names[0]: told.error for piece, told in some.finished()}
    assert over == {
        "good": "",
        "slow": "TimeoutError: the task's own",
        "raised": "ValueError: no such row",
        "cancelled": "CancelledError: perform",
    }
    assert [piece.task.names[0] for piece in some.flying.values()] == ["lost", "lost while asked"]


def test_a_worker_that_dies_after_its_answer_is_neither_a_member_nor_refused() -> None:
    heard: list[dict[str, object]] = []
    some = cluster._Cluster(None, settings("exact"), heard.append)
    some._meet("tcp://gone", 1, Future("finished", raises=TimeoutError("not there")))
    assert not some.members
    assert not some.refused
    assert heard == []


def test_a_cluster_that_is_none_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_S", 0.2)
    with pytest.raises(cluster.ClusterError, match="running `dask scheduler`"):
        cluster.connect("tcp://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(cluster.ClusterError, match=r"pip install 'opgauge\[cluster\]'"):
        cluster.connect("tcp://127.0.0.1:1")


def test_a_reference_worker_that_dies_is_said_and_replaced() -> None:
    words = json.dumps(supervisor.Settings(("exact",), budget=2).__dict__)
    task = json.dumps({"kind": "row", "names": ["Relu/int32"], "skip": []})
    first = cluster.perform("run a", task, words)
    ((key, held),) = cluster._held.items()
    os.kill(held._process.pid, signal.SIGKILL)
    held._process.wait()
    again = cluster.perform("run a", task, words)
    assert cluster.release("run b") == 0
    assert cluster.release("run") == 1
    assert not cluster._held
    assert not first.error
    assert [r["status"] for r in again.records] == ["pass", "pass"]
    assert [r["case"] for r in first.records] == [r["case"] for r in again.records]
    assert key[0] == "run a"
