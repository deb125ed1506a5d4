"""Coverage, builds of other commits, the three numbers, data profiles: planted changes beside controls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from opgauge import against, bench, coverage_gate, latency, stages
from opgauge.backends import cpu_trace, onnxruntime_profile
from opgauge.cli import app
from opgauge.reference_engine.errors import BaselineError, CaseError
from opgauge.reference_engine.types import Record, Status
from opgauge.suites.networks import network
from opgauge.workloads import Workload, workload


def record(op, status=Status.PASS, backend="cpu", label="float32"):
    return Record("id", "operators", op, label, "plain", backend, status)


# ---- coverage


def test_what_is_no_longer_judged_is_a_finding_and_what_fails_is_not_one_here():
    was = coverage_gate.measure([record("Add"), record("Softmax"), record("Softmax", label="float16")], ["Gemm *"])
    now = coverage_gate.measure([record("Add", Status.FAIL), record("Softmax", Status.UNSUPPORTED)], ["Gemm *"])
    assert coverage_gate.compare(was, was) == []
    found = coverage_gate.compare(was, now)
    assert [f.subject for f in found] == ["Softmax float16 on cpu", "Softmax float32 on cpu"]
    assert all("dropped" in f.message for f in found)


def test_a_kernel_row_that_is_gone_is_told_as_a_fallback():
    (found,) = coverage_gate.compare({"cpu kernels": ["Gemm a", "Gemm *"]}, {"cpu kernels": ["Gemm *"]})
    assert (found.subject, "fall back" in found.message) == ("Gemm a on cpu kernels", True)


def test_a_new_row_must_be_accepted_with_a_reason(tmp_path):
    path, now = tmp_path / "baselines" / "coverage.json", {"cpu": ["Add float32"]}
    coverage_gate.accept(path, now, "first")
    more = {"cpu": ["Add float32", "Sub float32"]}
    assert "accept them" in coverage_gate.compare(coverage_gate.read(path)["rows"], more)[0].message
    with pytest.raises(BaselineError, match="reason"):
        coverage_gate.accept(path, more, " ")
    coverage_gate.accept(path, more, "Sub came")
    assert coverage_gate.compare(coverage_gate.read(path)["rows"], more) == []
    assert [a["reason"] for a in json.loads(path.read_text())["accepted"]] == ["first", "Sub came"]
    path.write_text("{}")
    with pytest.raises(BaselineError, match=r"coverage\.json"):
        coverage_gate.read(path)


def test_a_backend_that_judged_nothing_is_a_finding():
    (found,) = coverage_gate.compare({"onnxruntime": ["Add"]}, {})
    assert "nothing was judged" in found.message


# ---- the command


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["gate", "--only", "speed"], 2, "there is counts"),
        (["gate", "--only", "latency"], 2, "--against"),
        (["bench"], 2, "nothing to time"),
        (["bench", "--op", "Nope"], 2, "no key case"),
        (["baseline", "show", "--only", "latency"], 2, "there is counts"),
    ],
)
def test_a_question_without_a_meaning_is_refused(words, code, said):
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, CaseError)
    assert said in str(done.exception)


def test_baselines_are_shown_with_their_reasons():
    done = CliRunner().invoke(app, ["baseline", "show"])
    assert done.exit_code == 0
    assert "accepted: first counts of the built-in networks" in done.output


# ---- another commit


PYPROJECT = '[project]\ndependencies = []\n[tool.setuptools.package-dir]\n"thing" = "room"\n"thing.inner" = "other"\n'


def repository(folder: Path) -> Path:
    (folder / "room").mkdir(parents=True)
    (folder / "other").mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "room" / "__init__.py").write_text("VALUE = 1\n")
    (folder / "other" / "__init__.py").write_text("VALUE = 2\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


def test_the_merge_base_gets_an_environment_of_its_own_that_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("OPGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    top = repository(tmp_path / "repo")
    commit = against.merge_base("HEAD", top)
    (top / "room" / "__init__.py").write_text("VALUE = 9\n")
    built = against.build(commit, top)
    code = "import thing, thing.inner, numpy; print(thing.VALUE, thing.inner.VALUE)"
    said = subprocess.run([built.python, "-P", "-c", code], capture_output=True, text=True, check=True, cwd=top)
    assert said.stdout.split() == ["1", "2"]
    assert built.title.endswith("first")
    assert against.build(commit, top) == built
    assert not against.is_installed(top)
    assert against.is_installed(Path(__file__).resolve().parents[1])


def test_the_base_sees_the_packages_of_a_parent_environment_too(tmp_path, monkeypatch):
    parent = tmp_path / "parent" / "site-packages"
    (parent / "only_there").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(parent), str(tmp_path)])
    monkeypatch.setenv("OPGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    assert (against.packages()[-1], str(tmp_path) in against.packages()) == (str(parent), False)
    built = against.build(against.merge_base("HEAD", repository(tmp_path / "repo")), tmp_path / "repo")
    subprocess.run([built.python, "-P", "-c", "import only_there, numpy"], check=True, cwd=tmp_path)


@pytest.mark.parametrize("revision", ["nowhere", "--upload-pack=x"])
def test_a_revision_that_is_none_is_named(revision, tmp_path):
    with pytest.raises(CaseError):
        against.merge_base(revision, repository(tmp_path / "repo"))


# ---- three numbers


def test_our_tracer_gives_the_same_outputs_and_times_every_node():
    from opgauge.backends import cpu

    model, feeds = network("attention").build()
    traced, plain = cpu_trace.run(model, feeds), cpu.load()(model, feeds)
    assert all(np.array_equal(a, b) for a, b in zip(traced.outputs, plain.outputs, strict=True))
    nodes = [n for n in traced.times_ns if n.startswith("node|")]
    assert len(nodes) == traced.counts["dispatch_count"]
    total, moved, kinds = stages.sums(traced.times_ns)
    assert 0 < moved < total == traced.times_ns["traced"]
    assert kinds["Gemm"] > 0


def test_the_profile_of_a_runtime_is_read_node_by_node():
    def node(run, name, op, dur):
        args = {"op_name": op, "node_index": "3", "output_size": "64"}
        return {"cat": "Node", "name": f"{name}_kernel_time", "dur": dur + run, "args": args}

    events = [e for run in range(18) for e in (node(run, "a", "Conv", 40), node(run, "b", "ReorderOutput", 10))]
    events += [{"cat": "Session", "name": "model_run", "dur": 100}] * 18
    times = onnxruntime_profile.times(events)
    assert times["node|Conv|0003 a"] == 50_000
    total, moved, _ = stages.sums(times)
    assert (total, moved, times["traced"]) == (70_000, 20_000, 100_000)
    assert onnxruntime_profile.counts(events) == {"Conv_written_bytes": 64, "ReorderOutput_written_bytes": 64}


# ---- data


def test_profiles_change_data_and_leave_scales_indices_and_shapes():
    x = {"x": np.ones((4, 8), np.float32), "x_scale": np.ones(3, np.float32), "i": np.ones(2, np.int64)}
    work = Workload("w", b"", x)
    made = {p: bench.varied(work, p) for p in bench.PROFILES}
    assert all(m is not None and np.array_equal(m.inputs["i"], x["i"]) for m in made.values())
    assert all(np.array_equal(m.inputs["x_scale"], x["x_scale"]) for m in made.values())
    data = {p: m.inputs["x"] for p, m in made.items()}
    assert np.isnan(data["nan"]).all()
    assert not data["zero"].any()
    assert (data["subnormal"] > 0).all()
    assert (data["subnormal"] < np.finfo(np.float32).tiny).all()
    assert 0 < np.count_nonzero(data["sparse"]) < 16
    assert {d.dtype for d in data.values()} == {np.dtype(np.float32)}
    only = Workload("w", b"", {"i": x["i"]})
    assert bench.varied(only, "zero") is None


def test_a_path_that_changes_with_the_data_is_flagged_and_a_steady_one_is_not():
    def row(change, verdict):
        e = latency.Estimate("x", np.log1p(change), 0, 0, 12, 1.0, verdict, 0.01)
        return bench.Row("subnormal", "b", e)

    assert bench.moved(row(0.5, latency.Call.SLOWER))
    assert bench.moved(row(-0.5, latency.Call.FASTER))
    assert not bench.moved(row(0.05, latency.Call.SLOWER))
    assert not bench.moved(row(0.5, latency.Call.UNCLEAR))


def test_what_is_timed_is_a_case_a_network_or_a_file(tmp_path):
    (tmp_path / "m.onnx").write_bytes(network("mlp-int8").build()[0])
    assert workload(str(tmp_path / "m.onnx")).inputs.keys() == workload("mlp-int8").inputs.keys()
    assert (
        workload("Add/float32/op13/A=float32:65:normal/B=float32:65:normal/y=float32/plain/s0").inputs["A"].size == 65
    )
    with pytest.raises(CaseError):
        workload("no such model")


def test_a_side_is_timed_in_processes_of_its_own(tmp_path):
    """The one test that starts the stopwatch: that it answers, never how fast."""
    from opgauge import pairs

    (tmp_path / "mine.py").write_text("def run(model, inputs):\n    return list(inputs.values())\n")
    plan = latency.Plan(first=2, most=2, confirm=0, pair_s=0.02, warm_s=0.001, control=False, retries=0)
    work = Workload("w", b"m", {"x": np.ones(4, np.float32)})
    e = pairs.compare(
        work, pairs.Side(f"{tmp_path}/mine.py:run"), pairs.Side(f"{tmp_path}/mine.py:run", build="b"), plan
    )
    assert (e.pairs, len(e.values)) == (2, 2)
    assert e.base_ns > 0
    (tmp_path / "bad.py").write_text("def run(model, inputs):\n    raise ValueError('no kernel')\n")
    bad = pairs.compare(work, pairs.Side(f"{tmp_path}/mine.py:run"), pairs.Side(f"{tmp_path}/bad.py:run"), plan)
    assert bad.verdict is latency.Call.UNCLEAR
    assert "no kernel" in bad.reason
    abroad = pairs.Side("onnxruntime", python=sys.executable)
    assert isinstance(pairs.one_pair("mlp-int8", abroad, pairs.Side("onnxruntime"), plan), float)
