"""The journal keeps what it acknowledged and refuses what was not written by it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opgauge import store
from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.types import Record, Status

RECORD = Record(
    "MatMul/float32/op13/A=float32:2x3:uniform/y=float32/plain/s1",
    "operators",
    "MatMul",
    "float32",
    "plain",
    "onnxruntime:level=basic",
    Status.FAIL,
    "1 of 4 outside",
    elements=4,
    outside=1,
    set_size=1.5,
    detail={"index": [0, 1], "got": "nan"},
    counts={"Copy": 2},
)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    with store.create(tmp_path / "runs") as journal:
        journal.append("run", {"version": "1", "seed": 0})
        for _ in range(3):
            journal.record(RECORD)
    return journal.path


def test_what_was_appended_is_read_back(journal: Path, tmp_path: Path) -> None:
    run, records, _ = store.read(journal)
    assert run == {"version": "1", "seed": 0}
    assert records == [RECORD] * 3
    assert store.latest(tmp_path / "runs") == journal


def test_a_second_run_in_the_same_second_gets_its_own_folder(tmp_path: Path) -> None:
    first, second = (store.create(tmp_path, clock=lambda: 0.0) for _ in range(2))
    first.close()
    second.close()
    assert first.path.parent.name == "19700101T000000"
    assert store.latest(tmp_path) == second.path != first.path


@pytest.mark.parametrize("torn", [1, 5, 40])
def test_a_torn_last_line_is_skipped(journal: Path, torn: int) -> None:
    journal.write_bytes(journal.read_bytes()[:-torn])
    assert store.read(journal).records == [RECORD] * 2


@pytest.mark.parametrize("line", [0, 1, 2, 3])
def test_damage_anywhere_is_an_error_that_names_the_line(journal: Path, line: int) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"1', b'"2', 1).replace(b"MatMul", b"MatMUl")
    journal.write_bytes(b"".join(lines))
    with pytest.raises(BaselineError, match=rf"journal.jsonl:{line + 1}: damaged"):
        store.read(journal)


@pytest.mark.parametrize(
    "text",
    ['{"status":"fail","status":"pass"}', '{"x":NaN}', '{"x":-Infinity}', '{"x":"\\ud800"}', "{", "[" * 100_000],
)
def test_json_that_means_two_things_is_refused(text: str) -> None:
    assert store.strict_json('{"x":[1,"\\u00e9"]}', "control") == {"x": [1, "é"]}
    with pytest.raises(BaselineError, match="place"):
        store.strict_json(text, "place")


@pytest.mark.parametrize(
    "change", [{"status": "fine"}, {"elements": "4"}, {"more": 1}, {"outside": True}, {"case": None}]
)
def test_a_record_with_a_wrong_field_is_refused(change: dict) -> None:
    entry = store.record_to_dict(RECORD)
    assert store.record_from_dict(entry) == RECORD
    with pytest.raises(BaselineError):
        store.record_from_dict({**entry, **change})


def test_a_record_without_a_status_is_refused() -> None:
    entry = store.record_to_dict(RECORD)
    del entry["status"]
    with pytest.raises(BaselineError, match="status"):
        store.record_from_dict(entry)


def test_numbers_that_json_lacks_become_words() -> None:
    value = {"a": np.float32("nan"), "b": (np.int64(3), float("inf")), "c": np.arange(2), "d": "x\ud800"}
    assert store.plain(value) == {"a": "nan", "b": [3, "inf"], "c": [0, 1], "d": "x?"}


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_a_killed_writer_loses_nothing_that_it_had_appended(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from opgauge import store\n"
        "j = store.create(pathlib.Path(sys.argv[1]))\n"
        "i = 0\n"
        "while True:\n"
        "    j.append('note', {'i': i}); print(i, flush=True); i += 1\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        for line in writer.stdout:
            if int(line) >= 200:
                break
        writer.send_signal(signal.SIGKILL)
        last = max([200, *(int(n) for n in writer.stdout.read().split("\n")[:-1])])
    seen = [e["i"] for e in store.entries(store.latest(tmp_path))]
    assert seen[: last + 1] == list(range(last + 1))
