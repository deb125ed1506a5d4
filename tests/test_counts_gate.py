"""The gate on counts: silent on what did not change, red on every planted move, with node and rule."""

from __future__ import annotations

import itertools
import json
import os
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from opgauge import counts_gate
from opgauge.backends import wgpu
from opgauge.cli import app
from opgauge.model_counts import difference, gray, table
from opgauge.reference_engine import passes
from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.executor import finder
from opgauge.suites.networks import NETWORKS, network

SMALL = [network(n) for n in ("mlp-int8", "laplacian-int8", "classifier-int8")]


def planted(kind, place):
    """A rule that adds a move behind the place-th node that computes something, once."""
    done = []

    def match(graph, at, node, draft):
        computing = [n for n in graph.nodes if n.primitive != "DataMove"]
        if done or place >= len(computing) or node is not computing[place]:
            return None
        shape = graph.specs[node.output].shape
        made = draft(node.primitive, *node.inputs, fn=node.fn, **node.attrs)
        if kind == "copy":
            made = draft("DataMove", made, fn="copy")
        elif kind == "cast":
            made = draft(
                "Elementwise",
                draft("Elementwise", made, fn="cast", to="float64"),
                fn="cast",
                to=graph.specs[node.output].dtype,
            )
        else:
            size = int(np.prod(shape))
            rows = next((d for d in (2, 3, 5, 7) if size % d == 0), 1)
            turned = draft.transpose(draft.reshape(made, (rows, size // rows)), (1, 0))
            again = draft.transpose(draft.reshape(turned, (1, size // rows, rows)), (0, 2, 1))
            made = (
                draft("Elementwise", draft.reshape(again, shape), fn="abs")
                if node.output in graph.outputs
                else draft.reshape(again, shape)
            )
        done.append(node)
        return made

    return passes.Rule(f"planted-{kind}", match, "planted")


# Rules that would take a plant of this kind away again: then nothing has grown, and nothing is to be seen.
CLEANERS = {"transpose": "no-op-movement", "copy": "copy-elimination", "cast": "elementwise-chains"}


def test_a_planted_move_in_thirty_places_is_red_every_time_with_node_and_rule():
    plants = 0
    for name, kind in itertools.product(("attention", "lenet", "classifier-int8"), CLEANERS):
        rules = passes.select(disable=CLEANERS[kind])
        was = {"cpu": {name: counts_gate.ours(network(name), rules)}}
        for place in range(1, 16, 2):
            now = {"cpu": {name: counts_gate.ours(network(name), (*rules, planted(kind, place)))}}
            if now["cpu"][name]["counts"] != was["cpu"][name]["counts"]:  # else other rules took it away again
                plants += 1
                text = " ".join(f.message for f in counts_gate.compare(was, now))
                assert f"planted-{kind}" in text, (name, place, kind)
                assert "node " in text
    assert plants >= 30


def test_twenty_unchanged_runs_are_green():
    was = counts_gate.measure(SMALL, runtimes=False)
    assert set(was) == {"cpu", "wgpu"}
    for _ in range(20):
        assert counts_gate.compare(was, counts_gate.measure(SMALL, runtimes=False)) == []


def test_a_kernel_that_the_gpu_loses_is_a_finding_that_names_the_node():
    """tests/quality/counts_places.py plants Transposes, copies and fallbacks in thirty places."""
    whole = finder(wgpu.kernels())

    def without(primitive, fn, dtypes):
        return None if fn == "im2col_requantize" else whole(primitive, fn, dtypes)

    network = next(n for n in NETWORKS if n.name == "classifier-int8")
    was = {"wgpu": {network.name: counts_gate.planned_on_gpu(network)}}
    now = {"wgpu": {network.name: counts_gate.planned_on_gpu(network, find=without)}}
    found = counts_gate.compare(was, now)
    (fallback,) = [f for f in found if f.message.startswith("fallback_count rose from 0 to 1")]
    assert re.search(r"fallback Gemm\.im2col_requantize from node \d+ '\w+' \(QLinearConv\)", fallback.message)
    assert any(f.message.startswith("transfer_count rose") for f in found)


def test_a_fall_is_a_finding_too_until_it_is_accepted_with_a_reason(tmp_path):
    path = tmp_path / "counts.json"
    without = {"cpu": {n.name: counts_gate.ours(n, ()) for n in SMALL}}
    counts_gate.accept(path, without, "as lowered")
    now = counts_gate.measure(SMALL, runtimes=False)
    found = counts_gate.compare(counts_gate.read(path)["counts"], now)
    assert any("fell" in f.message for f in found)
    with pytest.raises(BaselineError, match="reason"):
        counts_gate.accept(path, now, " ")
    assert counts_gate.accept(path, now, "rules switched on")
    assert counts_gate.compare(counts_gate.read(path)["counts"], now) == []
    assert counts_gate.accept(path, now, "nothing") == []
    document = json.loads(path.read_text())
    assert [a["reason"] for a in document["accepted"]] == ["as lowered", "rules switched on"]
    assert path.read_text() == json.dumps(document, indent=1, sort_keys=True) + "\n"


def test_another_release_and_a_missing_model_are_findings():
    was = {"onnxruntime 1.0": {"m": {"counts": {"all/Add": 1}}}, "cpu": {"m": {"counts": {}}}}
    found = counts_gate.compare(was, {"onnxruntime 1.1": {"m": {"counts": {"all/Add": 1}}}, "cpu": {}})
    assert {f.subject for f in found} == {"onnxruntime 1.1", "m on cpu"}


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "counts.json").write_text("{}")
    with pytest.raises(BaselineError, match=r"counts\.json"):
        counts_gate.read(tmp_path / "counts.json")


def test_the_shipped_baseline_holds():
    found = counts_gate.compare(counts_gate.read()["counts"], counts_gate.measure(NETWORKS, runtimes=False))
    assert [f"{f.subject}: {f.message}" for f in found] == []


def test_the_commands_agree_with_their_exit_codes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = os.fspath(tmp_path / "counts.json")
    run = CliRunner()
    assert run.invoke(app, ["baseline", "accept", "--ours", "--baseline", file, "--reason", "first"]).exit_code == 0
    assert run.invoke(app, ["gate", "--only", "counts", "--ours", "--baseline", file]).exit_code == 0
    document = json.loads((tmp_path / "counts.json").read_text())
    document["counts"]["cpu"]["mlp-int8"]["counts"]["dispatch_count"] += 1
    (tmp_path / "counts.json").write_text(json.dumps(document))
    red = run.invoke(app, ["gate", "--only", "counts", "--ours", "--baseline", file])
    assert red.exit_code == 1
    assert "mlp-int8 on cpu: dispatch_count fell" in red.output


def test_gray_rows_sum_kinds_of_both_engines():
    mine = {"DataMove.transpose_count": 2, "dispatch_count": 5, "moved_bytes": 8}
    other = {"Transpose": 1, "com.microsoft.nchwc::ReorderInput": 3, "Conv": 1}
    assert gray(mine)["Transpose"] == 2
    assert gray(other)["Reorder"] == 3
    assert gray(other)["dispatch_count"] == 5
    assert difference(other, {"Conv": 1}) == {"Transpose": (1, 0), "com.microsoft.nchwc::ReorderInput": (3, 0)}
    assert table({"a": mine, "b": other})[0] == ["", "a", "b"]
