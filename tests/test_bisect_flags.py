"""Options: the smallest change that matters, decided by a function that stands for the backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from opgauge import bisect_flags as f
from opgauge import store
from opgauge.backends import UnknownBackendError
from opgauge.bisect_notebook import FLAGS, Notebook, Question, Report
from opgauge.bisect_probe import Answer, Subject
from opgauge.reference_engine.errors import CaseError


def run(text: str, home: Path, wrong: str) -> tuple[Report, list[str]]:
    """A backend that is wrong where the expression over its options holds."""
    asked: list[str] = []

    def ask(subject: Subject, what: str, backend: str, timeout_s: float) -> Answer:
        asked.append(backend)
        options = f.options_of(backend.partition(":")[2])
        values = {"level": options.get("level", "all"), "threads": options.get("threads", "1")}
        values["precise"] = options.get("x64quantprecision", "0")
        return Answer("fail" if eval(wrong, {}, values) else "pass")

    question = Question("verdict", FLAGS, "onnxruntime", Subject("case"), f.ends("onnxruntime", text))
    with store.create(home) as journal:
        return f.answer(Notebook(question, journal, lambda text: None, ask)), asked


ENDS = "level=disable..level=all,threads=2,x64quantprecision=1"


def test_the_one_option_that_matters_is_named(tmp_path: Path) -> None:
    report, asked = run(ENDS, tmp_path, "precise == '1'")
    assert report.found[0].title == "x64quantprecision=1"
    assert (report.found[0].before.value, report.found[0].after.value) == ("pass", "fail")
    assert len(asked) == len(set(asked))


def test_two_options_that_matter_together_are_both_named(tmp_path: Path) -> None:
    report, _ = run(ENDS, tmp_path, "threads == '2' and precise == '1'")
    assert report.found[0].title == "threads=2, x64quantprecision=1"


def test_of_an_ordered_option_the_first_value_that_matters_is_named(tmp_path: Path) -> None:
    assert run(ENDS, tmp_path, "level in ('extended', 'all')")[0].found[0].title == "level=extended"
    assert run(ENDS, tmp_path, "level == 'all'")[0].found[0].title == "level=all"


def test_options_that_change_nothing_are_no_step(tmp_path: Path) -> None:
    assert run(ENDS, tmp_path, "False")[0].result == "no step"
    assert run(ENDS, tmp_path, "True")[0].result == "no step"


def test_sides_that_cannot_be_read_are_refused() -> None:
    for text in ("level=all", "level=all..level=all", "level..threads=2"):
        with pytest.raises(CaseError):
            f.ends("onnxruntime", text)
    with pytest.raises(UnknownBackendError, match="options of onnxruntime"):
        f.ends("onnxruntime", "..lvel=all")
