"""A failing model becomes the fewest nodes that fail alike: one for a wrong node, two for a wrong fusion."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from opgauge import models, reduce
from opgauge.backends import resolve
from opgauge.cli import app, main
from opgauge.client import Client
from opgauge.reference_engine.lower import parse
from opgauge.suites.sketch import Sketch

RUNTIMES = Path(__file__).parent / "faults" / "runtimes.py"
run = CliRunner()


def network(seed: int = 0) -> tuple[bytes, dict[str, np.ndarray]]:
    """Thirteen nodes in two branches: one Tanh, one MatMul with an Add, two Mul far apart."""
    s = Sketch(np.random.Generator(np.random.PCG64(seed)))
    x = s.input(s.normal(4, 8))
    a = s("Mul", s("Relu", x), s.const(np.float32(0.5)))
    b = s("Neg", s("Abs", x))
    h = s("Add", s("MatMul", a, s.const(s.normal(8, 8))), s.const(s.normal(8)))
    t = s("Tanh", s("Sub", h, b))
    y = s("Mul", s("Sigmoid", t), s.const(np.float32(3)))
    y = s("Transpose", s("Concat", y, b, axis=1), perm=[1, 0])
    return s.build((s("Relu", y), "float32"))


@pytest.fixture
def path(tmp_path):
    data, feeds = network()
    (tmp_path / "m.onnx").write_bytes(data)
    np.savez(tmp_path / "m.npz", **feeds)
    return tmp_path / "m.onnx"


def loaded() -> models.Loaded:
    data, feeds = network()
    return models.Loaded("m", parse(data), data, feeds, 0)


def reduced(fault: str, mode: str) -> reduce.Reduced:
    with Client(resolve(f"{RUNTIMES}:{fault}")) as client:
        return reduce.reduce(loaded(), reduce.on_backend(client), mode)


@pytest.mark.parametrize(
    ("fault", "kinds", "reason", "mode"),
    [
        ("wrong_node", ["Tanh"], "fail: value", "bisect"),
        ("wrong_node", ["Tanh"], "fail: value", "linear"),
        ("wrong_fusion", ["MatMul", "Add"], "fail: value", "bisect"),
        ("wrong_fusion", ["MatMul", "Add"], "fail: value", "linear"),
        ("dies", ["Mul", "Mul"], "crash: SIGABRT", "bisect"),
    ],
)
def test_what_is_left_is_what_fails(fault, kinds, reason, mode):
    found = reduced(fault, mode)

    nodes = [n["op"] for n in reduce.describe(found)["nodes"]]
    # The two Mul have no tensor in common: what lies between them can be spared all the same.
    assert nodes == kinds
    assert found.reason == reason
    assert found.before == 13
    onnx.checker.check_model(found.part.model, full_check=True)


def test_a_right_runtime_has_nothing_to_reduce():
    with pytest.raises(reduce.NoFailureError, match="does not fail"):
        reduced("right", "bisect")


def test_the_command_writes_a_model_and_inputs_that_fail_again(path, tmp_path):
    target = tmp_path / "small.onnx"
    words = ["reduce", str(path), "--inputs", str(path.with_suffix(".npz")), "-b", f"{RUNTIMES}:wrong_node"]
    shown = run.invoke(app, [*words, "-o", str(target), "--min-good", str(tmp_path / "good.onnx"), "--json"])

    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    assert [n["op"] for n in told["nodes"]] == ["Tanh"]
    again = run.invoke(
        app, ["model", str(target), "--inputs", told["inputs_file"], "-b", f"{RUNTIMES}:wrong_node", "--json"]
    )
    assert again.exit_code == 1
    control = run.invoke(app, ["model", str(target), "--inputs", told["inputs_file"], "-b", "exact", "--json"])
    assert control.exit_code == 0, control.output
    assert (tmp_path / "good.onnx").is_file()


CHECK = """
import sys
model = open(sys.argv[sys.argv.index("--json") + 1], "rb").read()
assert open(sys.argv[-1], "rb").read(2) == b"PK"
sys.exit(3 if b"Sub" in model and b"Tanh" in model else 4 if b"Abs" in model else 0)
"""


def test_a_command_of_ones_own_judges_and_keeps_its_options(path, tmp_path):
    script = tmp_path / "check.py"
    script.write_text(CHECK)
    common = ["reduce", str(path), "--inputs", str(path.with_suffix(".npz")), "-o", str(tmp_path / "r.onnx")]
    command = ["--check", sys.executable, "-S", str(script), "--json", "{model}", "{inputs}"]

    shown = run.invoke(app, [*common, *command])
    assert shown.exit_code == 0, shown.output
    assert "0006 Sub sub6" in shown.output
    assert "2 of 13 nodes fail alike (exit 3)" in shown.output
    # Another code is no failure here, and a check that is always content leaves nothing to do.
    assert run.invoke(app, [*common, "--fail-codes", "9", *command]).exit_code == 5
    kept = run.invoke(app, [*common, "--no-reduce-inputs", *command])
    assert "8 of 13" in kept.output


@pytest.mark.parametrize(
    "words",
    [
        ["reduce", "{m}"],
        ["reduce", "{m}", "-b", "exact", "--check", "true"],
        ["reduce", "{m}", "--check"],
        ["reduce", "{m}", "-b", "exact", "--mode", "random"],
        ["reduce", "nowhere.onnx", "-b", "exact"],
    ],
)
def test_what_cannot_be_understood_is_a_usage_error(words, path):
    with pytest.raises(SystemExit) as ended:
        main([w.replace("{m}", str(path)) for w in words])
    assert ended.value.code == 2


def test_a_check_that_cannot_start_is_told(path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["reduce", str(path), "--check", "no-such-program-anywhere"])
    assert ended.value.code == 4
    assert "no-such-program-anywhere" in capsys.readouterr().err
