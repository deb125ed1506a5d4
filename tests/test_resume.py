"""A run that was cut off, or done in parts, ends with the same verdicts as one that was not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from opgauge import cli, cli_report, costs, query, resume, store, suites
from opgauge import run as supervisor
from opgauge.backends import resolve
from opgauge.client import Client
from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.types import Record, Status

ADAPTER = """
import numpy as np
FUNCTIONS = {b"Relu": lambda x: np.maximum(x, 0), b"Neg": np.negative, b"Abs": np.abs}
def run(model, inputs):
    (x,) = inputs.values()
    return [np.asarray(next(f for name, f in FUNCTIONS.items() if name in model)(x))]
"""
SELECTION = ["-k", "Relu/int32 or Neg/int32 or Abs/int32", "--budget", "4", "--no-shrink"]


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("adapter") / "adapter.py"
    path.write_text(ADAPTER)
    return ["run", "-b", f"{path}:run", *SELECTION]


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference worker's part without its process, no reports."""
    monkeypatch.setattr(cli_report, "write_reports", lambda *_: None)
    monkeypatch.setattr(cli, "_machine", dict)

    def run(tasks, settings, jobs, on_record, on_task, on_started) -> supervisor.Outcome:
        def send(**message: Any) -> None:
            if "started" in message:
                on_started(message["started"])
            else:
                on_record(store.record_from_dict(message["record"]))

        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Client(resolve(text))) for text in settings.backends]
            for task in tasks:
                supervisor.perform(task, settings, clients, supervisor.Emit(send))
                on_task(task)
        return supervisor.Outcome([], False, 1.0, {})

    monkeypatch.setattr(supervisor, "run", run)


def opgauge(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    return int(stop.value.code or 0)


def verdicts(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    return sorted((r.case, r.backend, str(r.status)) for r in records if r.suite == "operators")


def test_a_run_that_was_cut_off_anywhere_is_completed_and_does_no_case_twice(
    tmp_path: Path, selection: list[str]
) -> None:
    assert opgauge(*selection, "--out", str(tmp_path / "whole")) == 0
    path = store.latest(tmp_path / "whole")
    everything = verdicts(store.read(path).records)
    assert len(everything) >= 12
    lines = path.read_bytes().splitlines(keepends=True)
    for cut in (len(lines) // 5, len(lines) // 2, len(lines) - 2):
        out = tmp_path / str(cut)
        torn = out / "20200101T000000" / store.JOURNAL
        torn.parent.mkdir(parents=True)
        torn.write_bytes(b"".join(lines[:cut]) + lines[cut][:30])  # killed while it wrote
        (out / store.LATEST).write_text("20200101T000000\n")
        before = {r.case for r in store.read(torn).records if r.suite == "operators"}

        assert opgauge("run", "--resume", "--out", str(out)) == 0

        assert verdicts(store.read(torn).records) == everything
        started = [e["case"] for e in list(store.entries(torn))[cut:] if e["kind"] == "started"]
        assert not before & set(started)


def test_a_case_in_flight_is_known_from_the_journal_and_precedes_its_verdict(
    tmp_path: Path, selection: list[str]
) -> None:
    opgauge(*selection, "--out", str(tmp_path))
    open_cases: set[str] = set()
    for entry in store.entries(store.latest(tmp_path)):
        if entry["kind"] == "started":
            open_cases.add(entry["case"])
        if entry["kind"] == "record" and entry["suite"] == "operators" and "/op" in entry["case"]:
            assert entry["case"] in open_cases


def test_parts_put_together_are_the_whole(
    tmp_path: Path, selection: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    opgauge(*selection, "--out", str(tmp_path / "whole"))
    parts = []
    for i in (1, 2, 3):
        opgauge(*selection, "--out", str(tmp_path / str(i)), "--shard", f"{i}/3")
        parts.append(str(store.latest(tmp_path / str(i))))
    assert opgauge("merge", *parts, "--out", str(tmp_path / "merged")) == 0
    assert "PASS (exit 0)" in capsys.readouterr().out
    merged, one = (store.read(store.latest(tmp_path / name)).records for name in ("merged", "whole"))
    assert sorted(map(store.timeless, merged)) == sorted(map(store.timeless, one))
    assert all(len(store.read(Path(p)).records) < len(one) for p in parts)


@pytest.mark.parametrize(
    ("kept", "message"),
    [("ab", "part 3/3 is missing"), ("abca", "part 1/3 is there twice"), ("abcw", "not of one division")],
)
def test_parts_that_are_not_the_whole_are_not_put_together(
    tmp_path: Path, selection: list[str], kept: str, message: str
) -> None:
    for name, words in {"a": "1/3", "b": "2/3", "c": "3/3", "w": ""}.items():
        opgauge(*selection, *(["--shard", words] if words else []), "--out", str(tmp_path / name))
    journals = {name: store.latest(tmp_path / name) for name in "abcw"}
    assert resume.merge([journals[name] for name in "abc"])[1]  # control
    with pytest.raises(BaselineError, match=message):
        resume.merge([journals[name] for name in kept])
    cut = journals["b"].read_bytes().splitlines(keepends=True)
    journals["b"].write_bytes(b"".join(line for line in cut if b'"kind":"done"' not in line))
    with pytest.raises(BaselineError, match="tasks are not done"):
        resume.merge([journals[name] for name in "abc"])


def test_shards_cost_about_the_same_and_miss_nothing() -> None:
    every = [supervisor.Task("row", (row.name,)) for row in suites.cases()] + [supervisor.Task("witness")]
    table = costs.load()
    parts = [resume.shard(every, f"{i}/4", 100) for i in (1, 2, 3, 4)]
    assert sorted(map(str, (task for part in parts for task in part))) == sorted(map(str, every))
    loads = [sum(costs.cost_of(task, table, 100) for task in part) for part in parts]
    assert max(loads) < 1.01 * min(loads)
    in_turn = [sum(costs.cost_of(task, table, 100) for task in every[i::4]) for i in range(4)]
    assert max(in_turn) > 1.01 * min(in_turn)  # control: dealt in turn they differ more
    assert parts == [resume.shard(every, f"{i}/4", 100) for i in (1, 2, 3, 4)]
    assert [every.index(task) for task in parts[0]] == sorted(every.index(task) for task in parts[0])
    names = {name: supervisor.Task("row", (f"{name}/int8",)) for name in "abc"}
    dear = costs.divided(list(names.values()), 2, {"a": 1.0, "b": 1.0, "c": 5.0}, 10)
    assert dear == [[names["c"]], [names["a"], names["b"]]]


def test_costs_are_those_of_a_run_and_a_table_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [
        Record(f"Relu/int8/{i}", "operators", "Relu", "int8", "plain", backend, Status.PASS, us=us)
        for i, backend, us in ((0, "a", 1000.0), (0, "b", 3000.0), (1, "a", 5000.0), (2, "a", 90000.0))
    ]
    with store.create(tmp_path) as journal:
        for record in records:
            journal.record(record)
    path = tmp_path / "costs.json"
    words = ["costs", "--out", str(tmp_path), "--file", str(path)]
    assert opgauge(*words, "--reason", "first") == 0
    assert costs.load(path) == {"Relu": 5.0}
    assert "1 operator" in capsys.readouterr().out
    assert opgauge(*words) != 0  # no reason
    path.write_text('{"format":1,"accepted":[],"ms_per_case":{"Relu":-1}}')
    with pytest.raises(BaselineError, match="Relu"):
        costs.load(path)


def test_parts_of_different_runs_are_not_put_together(tmp_path: Path, selection: list[str]) -> None:
    for name, seed in {"a": "0", "b": "1"}.items():
        opgauge(*selection, "--seed", seed, "--shard", "1/3", "--out", str(tmp_path / name))
    with pytest.raises(BaselineError, match="seed differ"):
        resume.merge([store.latest(tmp_path / name) for name in "ab"])


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    tasks = [supervisor.Task("row", (name,)) for name in "abcde"]
    assert [len(resume.shard(tasks, f"{i}/2")) for i in (1, 2)] == [3, 2]  # control
    with pytest.raises(BaselineError, match="i/n"):
        resume.shard(tasks, text)


def test_records_are_asked_by_sql_and_nothing_else_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Record("Relu/int8/op14/s1", "operators", "Relu", "int8", "plain", "exact", Status.FAIL, "wrong")
    with store.create(tmp_path) as journal:
        for status in (Status.FAIL, Status.PASS):
            journal.record(Record(**{**vars(record), "status": status, "elements": 7, "detail": {"x": 1}}))
    assert opgauge("query", "status = 'fail'", "--out", str(tmp_path), "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["op"], row["message"]) == ("Relu", "wrong")
    found = query.ask(
        journal.path, "SELECT sum(elements), json_extract(detail, '$.x') FROM records WHERE op = ?", ["Relu"]
    )
    assert found.rows == [(14, 1)]
    for bad in ("DELETE FROM records", "ATTACH 'x' AS y", "PRAGMA journal_mode=WAL", "SELECT nothing FROM records", ""):
        with pytest.raises(BaselineError, match="query"):
            query.ask(journal.path, bad or "SELECT load_extension('x')")
    with store.reopen(journal.path) as journal:  # the index follows the journal
        journal.record(record)
    assert query.ask(journal.path, "SELECT count(*) FROM records").rows == [(3,)]


def test_little_work_is_one_worker_s_and_much_is_everybody_s():
    tasks = [supervisor.Task("row", (f"{op}/x",)) for op in "abcd"]
    table = dict.fromkeys("abcd", 10.0)
    assert costs.workers(tasks, 8, table, 1) == 1  # 0.04 s
    assert costs.workers(tasks, 8, table, 100) == 2  # 4 s
    assert costs.workers(tasks, 8, table, 10_000) == 8
    assert costs.workers([supervisor.Task("node")], 8, table, 1) > 1
    assert costs.workers([], 8, table, 1) == 1
