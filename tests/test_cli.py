"""Every way for a run to end has its exit code, and the last line printed says the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from opgauge import cli, cli_report, store
from opgauge import run as supervisor
from opgauge.reference_engine.types import Record, Status


def record(
    status: str = "pass", backend: str = "exact", case: str = "MatMul/float32/op13/s1", elements: int = 4
) -> Record:
    return Record(case, "operators", "MatMul", "float32", "plain", backend, Status(status), elements=elements)


def ended(errors: Sequence[str] = (), interrupted: bool = False, **backends: dict[str, str]) -> supervisor.Outcome:
    return supervisor.Outcome(list(errors), interrupted, 2.0, backends)


def command(
    monkeypatch: pytest.MonkeyPatch,
    arguments: Sequence[str],
    records: Sequence[Record] = (),
    outcome: supervisor.Outcome | None = None,
) -> int:
    """The exit code of a command line whose run gave these records."""

    def run(tasks, settings, jobs, on_record, on_task=lambda _: None, on_started=None) -> supervisor.Outcome:
        for each in records:
            on_record(each)
        return outcome or ended()

    monkeypatch.setattr(supervisor, "run", run)
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    return int(stop.value.code or 0)


UNAVAILABLE = ended(wgpu={"unavailable": "no adapter"})


@pytest.mark.parametrize(
    ("records", "outcome", "more", "code", "word"),
    [
        ([record()], None, [], 0, "PASS"),  # control
        ([record("deviation"), record("unsupported")], None, [], 0, "PASS"),
        ([record(), record("fail")], None, [], 1, "FAIL"),
        ([record("crash")], None, [], 1, "FAIL"),
        ([record("fail", "onnx-reference"), record()], None, ["--backend", "onnx-reference"], 0, "PASS"),
        ([record("invalid")], None, [], 1, "FAIL"),
        ([record(), record("unavailable", "wgpu")], UNAVAILABLE, ["--backend", "wgpu"], 0, "PASS"),
        ([record(), record("unavailable", "wgpu")], UNAVAILABLE, ["--require", "wgpu"], 3, "UNAVAILABLE"),
        ([record()], None, ["--require", "wgpu"], 3, "UNAVAILABLE"),
        ([record("fail")], ended(["row MatMul/float32: died"]), [], 4, "HARNESS ERROR"),
        ([], None, [], 5, "NOTHING RAN"),
        ([record("unavailable")], None, [], 5, "NOTHING RAN"),
        ([record("unsupported")], None, [], 5, "NOTHING RAN"),
        ([record()], ended(interrupted=True), [], 130, "INTERRUPTED"),
    ],
)
def test_the_exit_code_and_the_last_line_agree(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    records,
    outcome,
    more,
    code,
    word,
) -> None:
    arguments = ["run", "--backend", "exact", "--op", "MatMul", "--out", str(tmp_path), *more]
    assert command(monkeypatch, arguments, records, outcome) == code

    last = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert last.startswith(f"{word} (exit {code}): ")
    assert f"{len(records)} verdicts" in last
    for status in {r.status for r in records}:
        assert f"{sum(r.status is status for r in records)} {status}" in last
    assert "elements" in last
    assert "cases/s" in last
    assert store.read(store.latest(tmp_path)).records == list(records)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--backend", "onnxrutime"], "did you mean onnxruntime"),
        (["run", "--backend", "onnxruntime:lvl=1"], "level, threads"),
        (["run", "--op", "MatMull"], "did you mean MatMul"),
        (["run", "--dtype", "int9"], "int"),
        (["run", "-k", "MatMul and"], "MatMul and"),
        (["run", "--suite", "operator"], "did you mean operators"),
        (["run", "--budget", "0"], "budget"),
        (["run", "--nonsense"], "--nonsense"),
        (["repro", "MatMul/float32"], "case id"),
        (["repro", "missing.json"], "no file missing.json"),
        (["list", "--cases", "MatMull"], "did you mean MatMul"),
    ],
)
def test_wrong_usage_is_exit_2_and_names_what_is_near(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert command(monkeypatch, arguments) == 2
    assert said in capsys.readouterr().err


def test_a_selection_that_leaves_nothing_is_exit_5(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--backend", "exact", "--op", "MatMul", "-k", "not MatMul"]
    assert command(monkeypatch, arguments, [record()]) == 5
    assert capsys.readouterr().out.startswith("NOTHING RAN (exit 5)")


def test_an_error_of_ours_is_exit_4_never_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(cli_report, "write_reports", broken)
    assert command(monkeypatch, ["run", "-b", "exact", "--op", "MatMul", "--out", str(tmp_path)], [record()]) == 4
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_reports_are_written_and_json_goes_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html, junit = tmp_path / "new" / "r.html", tmp_path / "r.xml"
    arguments = ["run", "-b", "exact", "--op", "MatMul", "--out", str(tmp_path), "--json", "-"]
    assert (
        command(monkeypatch, [*arguments, "--html", str(html), "--junit", str(junit)], [record(), record("fail")]) == 1
    )
    captured = capsys.readouterr()
    assert json.loads(captured.out)["meta"]["exit_code"] == 1
    assert captured.err.rstrip().splitlines()[-1].startswith("FAIL (exit 1)")
    assert "<html" in html.read_text()
    assert "<testsuites" in junit.read_text()


def test_list_speaks_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for option, key in {"--operators": "operator", "--rows": "row", "--backends": "backend"}.items():
        assert command(monkeypatch, ["list", option, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert rows
        assert all(key in row for row in rows)


def test_operators_are_listed_with_what_they_are_lowered_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, ["list", "--operators"]) == 0
    shown = capsys.readouterr()
    told = re.fullmatch(r"(\d+) operators, lowered to (\d+) primitives \((\d+) pairs .*\)\n", shown.err)
    assert told
    operators, primitives, pairs = map(int, told.groups())
    assert operators == len(shown.out.splitlines()) >= 100
    assert primitives <= 12 < pairs


# ---- the supervisor itself, with tasks that misbehave

PERFORM = """
import os, time
from opgauge.reference_engine.types import Record, Status

def perform(task, settings, clients, emit):
    for name in task.names:
        emit(Record(name, "s", "Op", "float32", "plain", "exact", Status.PASS, elements=1))
        if name == "die": os._exit(7)
        if name == "raise": raise ValueError("broken")
        if name == "memory": raise MemoryError
        if name == "slow": time.sleep(60)
"""


@pytest.fixture
def how(tmp_path: Path) -> str:
    path = tmp_path / "perform.py"
    path.write_text(PERFORM)
    return f"{path}:perform"


def test_a_dying_reference_worker_costs_its_task_only(how: str) -> None:
    seen: list[str] = []
    done: list[supervisor.Task] = []
    names = ["one", "die", "two", "raise", "memory", "three"]
    tasks = [supervisor.Task("row", (name, f"{name}-after")) for name in names]
    outcome = supervisor.run(tasks, supervisor.Settings(()), 2, lambda r: seen.append(r.case), done.append, how=how)

    lost = {"die-after", "raise-after", "memory-after"}
    assert sorted(seen) == sorted({n for t in tasks for n in t.names} - lost)
    assert sorted(done, key=str) == sorted((t for t in tasks if t.names[0] != "die"), key=str)  # it is to be resumed
    died, raised, memory = sorted(outcome.errors)
    assert died == "row die die-after: the reference worker ended: exit code 7"
    assert memory.startswith("row raise raise-after: ValueError: broken (perform.py:")
    assert raised.startswith("row memory memory-after: MemoryError")


def test_an_unavailable_backend_says_why_and_others_go_on(how: str) -> None:
    settings = supervisor.Settings(("missing_module:run",))
    outcome = supervisor.run([supervisor.Task("row", ("one",))], settings, 1, lambda _: None, how=how)
    assert not outcome.errors
    assert "missing_module" in outcome.backends["missing_module:run"]["unavailable"]


@pytest.mark.skipif(os.name == "nt", reason="SIGINT")
def test_ctrl_c_keeps_what_was_recorded_and_leaves_no_process(how: str, tmp_path: Path) -> None:
    code = (
        "import signal, sys\n"
        "from opgauge import cli, run\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "real = run.run\n"
        "tasks = [run.Task('row', ('one', 'slow'))]\n"
        "run.run = lambda _, *rest: real(tasks, *rest, how=sys.argv[1])\n"
        "if __name__ == '__main__':\n"
        "    cli.main(['run', '-b', 'exact', '--op', 'MatMul', '--out', sys.argv[2]])\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    runs = tmp_path / "runs"
    with subprocess.Popen(
        [sys.executable, str(script), how, str(runs)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 200
        while not ((runs / "latest").exists() and len(store.read(store.latest(runs)).records) == 2):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=200)
    assert process.returncode == 130
    assert out.rstrip().splitlines()[-1].startswith("INTERRUPTED (exit 130): 2 cases")
    assert f"opgauge run --resume --out {runs}" in out
    deadline = time.monotonic() + 10
    while left := living(process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def living(group: int) -> list[str]:
    """Processes of a group that are no zombies (a container's first process may never collect them)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        state, _, pgrp = rest.split()[:3]
        if int(pgrp) == group and state != "Z":
            found.append(name)
    return found


def test_the_whole_way_from_the_command_line_to_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`exact` must pass; a kernel that is off by one must not, and its line reproduces it."""
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from opgauge.backends.exact import load\n"
        "def run(model, inputs):\n"
        "    return [(y + 1).astype(y.dtype) for y in load()(model, inputs).outputs]\n"
    )
    arguments = ["run", "-k", "MatMulInteger/int8,int8", "--budget", "2", "--jobs", "1", "--no-shrink"]
    with pytest.raises(SystemExit) as stop:
        cli.main([*arguments, "--out", str(tmp_path / "runs"), "-b", "exact", "-b", f"{bad}:run"])
    assert stop.value.code == 1, capsys.readouterr()
    records = store.read(store.latest(tmp_path / "runs")).records
    assert {(r.backend, r.status) for r in records} == {("exact", Status.PASS), (f"{bad}:run", Status.FAIL)}
    capsys.readouterr()

    again = [sys.executable, "-m", "opgauge", "repro", records[-1].case, "-b", f"{bad}:run"]
    shown = subprocess.run(again, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert shown.returncode == 1, shown.stdout + shown.stderr
    for words in ("set ", "got ", "the same in a second process", "FAIL (exit 1)"):
        assert words in shown.stdout
