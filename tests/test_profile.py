"""Where the time goes: what a document of times becomes in words, and that real runs give one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from opgauge import profile, stages
from opgauge.backends import onnxruntime_nodes, profiled
from opgauge.cli import app
from opgauge.model_jobs import Job
from opgauge.models import load
from opgauge.reference_engine.errors import CaseError


def node(kind, ns, movement=False, alone=None):
    return profiled.node(f"node of {kind}", kind, movement, ns, alone or ns, 0)


def document(*nodes, runs=(1000, 1100, 1500), **facts):
    return {"nodes": list(nodes), "end_to_end_ns": list(runs), **facts}


@pytest.mark.parametrize(
    ("nodes", "word", "said"),
    [
        (
            [node("Gemm", 800, alone=400), node("DataMove.transpose", 100, True)],
            "kernel",
            "the bottleneck is the kernel",
        ),
        ([node("Gemm", 100), node("DataMove.transpose", 800, True)], "movement", "the bottleneck is movement"),
        ([node("Gemm", 100), node("DataMove.transpose", 100, True)], "runtime", "the bottleneck is the runtime"),
        ([node("Gemm", 400), node("DataMove.transpose", 330, True)], "", "no single bottleneck"),
    ],
)
def test_the_largest_share_is_named_with_its_evidence(nodes, word, said):
    found = profile.attribute("cpu", document(*nodes))
    assert found.bottleneck == word
    assert found.said.startswith(said)
    assert found.kernel_ns + found.movement_ns + found.runtime_ns == 1000
    assert (found.end_to_end_ns, found.median_ns) == (1000, 1100)


@pytest.mark.parametrize(
    ("kind", "moved"),
    [
        *((kind, True) for kind in ("DataMove.transpose", "Elementwise.cast", "Im2col", "Cast", "ReorderOutput")),
        *((kind, False) for kind in ("Elementwise.add", "Gemm", "Quantize", "Conv")),
    ],
)
def test_bench_and_profile_take_the_same_nodes_for_movement(kind, moved):
    assert profiled.moves(kind) is moved
    assert stages.sums({f"node|{kind}|a": 3, "node|Gemm|b": 2, "traced": 5})[1] == (3.0 if moved else 0.0)
    event = {"cat": "Node", "name": "a_kernel_time", "args": {"op_name": kind}, "ts": 0, "dur": 3}
    (found,) = onnxruntime_nodes.nodes_of([event])
    assert found["movement"] is moved


def test_evidence_names_the_longest_node_and_how_much_slower_the_graph_is():
    found = profile.attribute("cpu", document(node("Gemm", 700, alone=350), node("Elementwise.add", 100)))
    assert "the longest Gemm of node of Gemm with 88% of all node time" in found.said
    assert "1.78 times as long in the graph as alone" in found.said
    idle = profile.attribute("cpu", document(node("Gemm", 10), node("Gemm", 10)))
    assert "2 nodes with 0.5 us around each" in idle.said


def test_the_devices_own_clock_decides_how_long_its_kernels_take():
    alone = [profiled.node("a", "Gemm", False, None, 300, 0), profiled.node("b", "DataMove.pad", True, None, 100, 0)]
    found = profile.attribute("wgpu", document(*alone, passes_ns=200, transfer_ns=500))
    assert (found.kernel_ns, found.movement_ns, found.runtime_ns) == (150, 550, 300)
    assert found.bottleneck == "movement"


def test_nodes_of_onnxruntime_come_from_the_run_that_took_least():
    def event(name, ts, dur):
        return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "args": {"op_name": name[:4]}}

    events = [event("Conv1", 0, 50), event("Tran2", 60, 9), event("Conv1", 100, 20), event("Tran2", 125, 5)]
    events.append({"cat": "Session", "name": "model_run", "ts": 0, "dur": 70})
    nodes = onnxruntime_nodes.nodes_of(events)
    assert [(n["name"], n["in_graph_ns"], n["start_ns"]) for n in nodes] == [
        ("Conv1", 20_000, 0),
        ("Tran2", 5_000, 25_000),
    ]


def test_options_travel_with_the_inputs():
    feeds, options = profiled.taken(profiled.with_request({"x": np.ones(2)}, {"level": "basic"}))
    assert list(feeds) == ["x"]
    assert options == {"level": "basic"}
    assert profiled.taken({"x": np.ones(2)})[1] == {}


def test_profile_prints_both_backends_and_writes_a_trace(tmp_path):
    arguments = ["profile", "laplacian-int8", "--nodes", "2", "--trace", str(tmp_path / "trace.json")]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "cpu: " in shown.output
    assert "onnxruntime: " in shown.output
    assert "bottleneck" in shown.output
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert named == {"cpu", "onnxruntime"}
    kinds = {e["name"] for e in events if e["ph"] == "X"}
    assert "QLinearConv" in kinds
    assert any(kind.startswith("Gemm") for kind in kinds)  # a rule may have fused what follows it


def test_profile_is_given_as_json():
    shown = CliRunner().invoke(app, ["profile", "laplacian-int8", "--backend", "cpu:disable=all", "--json"])
    (backend,) = json.loads(shown.output)["backends"]
    assert backend["backend"] == "cpu:disable=all"
    assert all(n["alone_ns"] > 0 and n["in_graph_ns"] > 0 for n in backend["nodes"])


def test_a_backend_without_a_clock_is_named():
    loaded = load(Job("laplacian-int8"))
    with pytest.raises(CaseError, match="'exact' cannot be profiled"):
        profile.measure(loaded, "exact", 10.0)
