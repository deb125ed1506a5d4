"""Two graphs of a model by node, in words and as JSON."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from opgauge import extras, graph_diff, model_counts
from opgauge.backends import resolve
from opgauge.cli import app
from opgauge.graph_diff import Change, difference
from opgauge.model_jobs import COUNTER, UNOPTIMISED, Job
from opgauge.models import load
from opgauge.reference_engine.errors import CaseError
from opgauge.reference_engine.types import Record, Status

run = CliRunner()


def test_a_difference_names_what_changed_what_went_and_what_came():
    before = {"a": ["Conv"], "b": ["Relu"], "c": ["Add"], "d": ["Im2col", "Gemm"]}
    after = {"b": ["FusedConv"], "c": ["Add"], "d": ["Gemm", "Im2col"], "e": ["Transpose"]}
    assert difference(before, after) == [
        Change("a", ["Conv"], ()),
        Change("b", ["Relu"], ["FusedConv"]),
        Change("e", (), ["Transpose"]),
    ]
    assert str(difference(before, after)[0]) == "a: Conv -> nothing"
    assert difference(before, before) == []


def test_before_and_after_the_rules_of_our_engine():
    loaded = load(Job("laplacian-int8"))
    before, after = (graph_diff.listing(loaded, text, 60.0) for text in ("cpu:disable=all", "cpu"))
    (change,) = difference(before, after)
    assert list(change.after) == ["Gemm.im2col_requantize"]
    assert "Im2col" in change.before
    with pytest.raises(CaseError, match="does not show its graph"):
        graph_diff.listing(loaded, "exact", 60.0)


def test_the_command_names_the_transposes_that_a_layout_pass_adds():
    arguments = ["graph-diff", "laplacian-int8", "onnxruntime:level=extended", "onnxruntime:level=layout"]
    shown = run.invoke(app, arguments)
    assert shown.exit_code == 1, shown.output
    assert shown.output.count("nothing -> Transpose") + shown.output.count("QLinearConv -> Transpose") == 2
    assert "DIFFERENT (exit 1)" in shown.output
    made = json.loads(run.invoke(app, [*arguments, "--json"]).output)
    assert made["nodes"] == [1, 3]
    assert sum(change["after"] == ["Transpose"] for change in made["changes"]) == 2
    same = run.invoke(app, ["graph-diff", "laplacian-int8", "cpu", "cpu"])
    assert same.exit_code == 0, same.output


def counted(backend, counts, movers):
    return Record("model/m/counts", "model", "model", "", "", backend, Status.PASS, counts=counts,
                  detail={"movers": movers})  # fmt: skip


def test_a_model_s_records_say_which_movers_came_and_the_report_has_them():
    ours = {"dispatch_count": 3}
    records = [
        counted(UNOPTIMISED, ours, {UNOPTIMISED: {"n": ["DataMove.transpose"]}}),
        counted("cpu", ours, {"cpu": {"n": ["DataMove.transpose"], "k": ["Elementwise.cast"]}}),
        counted(COUNTER, {"basic/Conv": 1, "all/Conv": 1, "all/Transpose": 2},
                {"onnxruntime basic": {}, "onnxruntime all": {"p": ["Transpose"], "q": ["Transpose"]}}),
    ]  # fmt: skip
    assert model_counts.came(records, UNOPTIMISED, "cpu") == ["Elementwise.cast at k"]
    assert model_counts.came(records, "onnxruntime basic", "onnxruntime all") == ["Transpose at p", "Transpose at q"]
    assert model_counts.came(records, "cpu", UNOPTIMISED) == []
    (moves,) = extras.moves(records, {})
    assert moves.came == (
        "cpu:disable=all → cpu: Elementwise.cast at k",
        "onnxruntime basic → onnxruntime all: Transpose at p, Transpose at q",
    )
    renamed = [counted("cpu", ours, {"cpu": {"n": ["Concat"]}}), counted("wgpu", ours, {"wgpu": {"m": ["Concat"]}})]
    assert model_counts.came(renamed, "cpu", "wgpu") == []
    assert model_counts.listed([str(i) for i in range(8)]) == "0, 1, 2, 3, 4, 5 and 2 more"


def test_every_level_is_asked_of_the_graph_that_onnxruntime_made():
    assert graph_diff.grapher(resolve("onnxruntime"), "layout").text.endswith("onnxruntime_graph.py:layout")
