"""How the command line behaves: it teaches, completes, starts fast, is plain where no person watches, ends cleanly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from opgauge import cli, cli_report, doctor, fingerprint, store
from opgauge.fingerprint import Answer, Card

HEAVY = ("onnx", "hypothesis", "pandas", "numba", "jinja2", "onnxruntime", "wgpu")


def leaves(words: list[str], command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(words), command
    for name, each in (inner or {}).items():
        yield from leaves([*words, name], each)


def test_every_command_and_every_option_says_what_it_is_for() -> None:
    table = dict(leaves([], typer.main.get_command(cli.app)))

    assert len(table) > 25
    assert [name for name, command in table.items() if not command.help] == []
    options = [(name, each) for name, command in table.items() for each in command.params if each.name != "help"]
    assert [(name, each.opts) for name, each in options if not getattr(each, "help", "")] == []


def test_the_command_line_starts_without_the_engine() -> None:
    program = f"import opgauge.cli, sys; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("--backend onnxr", "onnxruntime"), ("--op QLinearM", "QLinearMatMul"), ("--bud", "--budget")],
)
def test_the_shell_completes_options_backends_and_operators(typed: str, offered: str) -> None:
    line = f"opgauge run {typed}"
    asked = {"_OPGAUGE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    program = Path(sys.executable).parent / "opgauge"
    done = subprocess.run([str(program)], env={**os.environ, **asked}, capture_output=True, text=True, check=True)

    assert offered in done.stdout.split()


def test_output_that_no_person_watches_is_plain(tmp_path: Path) -> None:
    words = ["run", "--backend", "exact", "--op", "Relu", "--dtype", "float32", "--budget", "1", "--jobs", "1"]
    done = subprocess.run([sys.executable, "-m", "opgauge", *words], cwd=tmp_path, capture_output=True, check=True)

    assert done.stderr == b""
    assert b"PASS (exit 0)" in done.stdout
    assert not {b"\r", b"\x1b"} & {done.stdout[i : i + 1] for i in range(len(done.stdout))}


def test_any_command_that_is_interrupted_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", interrupted)
    with pytest.raises(SystemExit) as stop:
        cli.main(["doctor"])

    assert stop.value.code == 130
    assert "opgauge: interrupted" in capsys.readouterr().err


def test_a_card_that_a_run_measures_is_kept_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(spec: Any, *_: Any) -> Card:
        word = "half to even" if spec.text == "exact" else "half away from zero"
        return Card(spec.text, {}, (Answer("QuantizeLinear int8", "rounding", fingerprint.KNOWN, (word,), 9),), {})

    monkeypatch.setattr(fingerprint, "card", measured)
    page, again = tmp_path / "page.html", tmp_path / "again.html"
    kernel = Path(__file__).resolve().parents[1] / "examples" / "half_away.py"
    words = ["run", "-b", "exact", "-b", f"{kernel}:run", "--op", "Relu", "--dtype", "float32", "--budget", "1"]
    words += ["--jobs", "1", "--no-shrink", "--fingerprint", "--out", str(tmp_path / "runs"), "--html", str(page)]
    with pytest.raises(SystemExit):
        cli.main(words)
    journal = store.latest(tmp_path / "runs")
    with pytest.raises(SystemExit):
        cli.main(["report", "show", str(journal), "--html", str(again)])

    assert [card["backend"] for card in cli_report.read(str(journal)).cards] == ["exact", f"{kernel}:run"]
    for text in (page.read_text("utf-8"), again.read_text("utf-8")):
        assert "Where the backends differ" in text
        assert "<td>half to even<td>half away from zero" in text
