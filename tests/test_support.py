"""What a backend takes: asked, written as a matrix, held against what it took before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opgauge import generate, suites, support
from opgauge.backends import resolve
from opgauge.client import Client
from opgauge.reference_engine.errors import BaselineError

# Takes Neg below opset 19, dies of Abs, has no Relu.
ADAPTER = """
import os
import onnx

def run(model, inputs):
    proto = onnx.load_model_from_string(model)
    op = proto.graph.node[0].op_type
    if op == "Abs":
        os.abort()
    if op == "Relu" or proto.opset_import[0].version >= 19:
        raise NotImplementedError(f"no {op} here")
    return [-x for x in inputs.values()]
"""


@pytest.fixture
def adapter(tmp_path: Path) -> str:
    (tmp_path / "adapter.py").write_text(ADAPTER)
    return f"{tmp_path / 'adapter.py'}:run"


@pytest.fixture
def forms(adapter: str) -> list[support.Form]:
    rows = generate.select(suites.cases(), ["Neg", "Abs", "Relu"], ["int32"])
    with Client(resolve(adapter)) as client:
        return support.probe(client, rows, (13, 17, 21))


def test_each_form_says_which_opsets_are_taken_and_why_others_are_not(forms: list[support.Form]) -> None:
    found = {form.operator: form for form in forms}
    assert found["Neg"].opsets == {13: "yes", 17: "yes", 21: "no"}
    assert "no Neg here" in found["Neg"].message
    assert set(found["Relu"].opsets.values()) == {"no"}
    assert set(found["Abs"].opsets.values()) == {"crash"}
    assert "SIGABRT" in found["Abs"].message


def test_only_what_was_taken_and_is_not_any_more_is_a_finding(forms: list[support.Form]) -> None:
    before = json.loads(json.dumps(support.document("x", {}, forms)))
    assert support.compare(before, forms, "f") == []
    (neg,) = (form for form in before["forms"] if form["operator"] == "Neg")
    neg["opsets"]["21"] = "yes"
    (finding,) = support.compare(before, forms, "f")
    assert (finding.rule, finding.subject) == ("unsupported", "Neg/int32")
    assert "was taken at opset 21, now no" in finding.message


@pytest.mark.parametrize("bad", [None, [], {"format": 2}, {"format": 1, "forms": [{}]}, {"format": 1, "forms": 3}])
def test_a_baseline_that_is_none_is_said_so(bad: object, forms: list[support.Form]) -> None:
    with pytest.raises(BaselineError, match="opgauge support --json"):
        support.compare(bad, forms, "f")


def test_the_command_prints_the_matrix_and_fails_on_a_loss(adapter: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "opgauge", "support", adapter, "--op", "Neg", "--dtype", "int32", "--opset", "13"]
    printed = subprocess.run([*words, "--json"], capture_output=True, text=True, check=True)
    baseline = tmp_path / "support.json"
    baseline.write_text(printed.stdout)
    assert json.loads(printed.stdout)["forms"][0]["opsets"] == {"13": "yes"}
    (tmp_path / "adapter.py").write_text(ADAPTER.replace('"Relu"', '"Neg"'))
    lost = subprocess.run([*words, "--baseline", str(baseline)], capture_output=True, text=True, check=False)
    assert lost.returncode == 1, lost
    assert "lost: Neg/int32: was taken at opset 13" in lost.stdout
