"""The Python API: outputs in, verdict out; names that are modules and functions at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import opgauge
from opgauge import api, expectations, generate, suites
from opgauge.api import InputError, assert_within_set, check
from opgauge.reference_engine.errors import ModelError
from opgauge.reference_engine.types import Policy, Status


def quantize_model() -> onnx.ModelProto:
    """y = QuantizeLinear(x, 1, 0)"""
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero_point"], ["y"])
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    made = helper.make_tensor_value_info("y", TensorProto.INT8, [4])
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [1.0])
    zero = helper.make_tensor("zero_point", TensorProto.INT8, [], [0])
    graph = helper.make_graph([node], "g", [given], [made], [scale, zero])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


X = np.array([0.5, 1.5, -2.5, 3.0], np.float32)
EVEN = np.array([0, 2, -2, 3], np.int8)
AWAY = np.array([1, 2, -3, 3], np.int8)


def test_honest_outputs_are_within_their_sets() -> None:
    report = check(quantize_model(), {"x": X}, {"y": EVEN})

    assert (report.status, report.within, report.verdict.elements) == (Status.PASS, True, 4)
    assert report.sets[0].value.tolist() == EVEN.tolist()


def test_a_wrong_rounding_is_outside_and_named() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_within_set(AWAY, quantize_model(), [X])

    assert "2 of 4 elements outside" in str(caught.value)
    assert "[0] expected 0, got 1; real 0.5, 0 from the nearest tie" in str(caught.value)
    assert "would pass with round=away" in str(caught.value)


def test_a_declared_policy_is_honoured() -> None:
    assert assert_within_set(AWAY, quantize_model(), [X], policy=Policy(round=("away",))).within


@pytest.mark.parametrize("form", ["proto", "bytes", "path", "text"])
def test_a_model_may_be_a_proto_bytes_or_a_path(form: str, tmp_path: Path) -> None:
    model, path = quantize_model(), tmp_path / "model.onnx"
    onnx.save(model, path)
    forms = {"proto": model, "bytes": model.SerializeToString(), "path": path, "text": str(path)}

    assert check(forms[form], X, EVEN).within


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"z": X}, "'x' is missing"),
        ({"x": X, "z": X}, "'z' is not the model's"),
        ([X, X], "2 inputs for a model that has 1: x"),
    ],
)
def test_inputs_that_are_not_the_models_are_named(inputs: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check(quantize_model(), inputs, EVEN)  # type: ignore[arg-type]


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"gone\.onnx"):
        check("gone.onnx", X, EVEN)


def test_too_many_outputs_and_wrong_types_are_failures_of_the_runtime() -> None:
    assert "returned 2 outputs" in check(quantize_model(), X, [EVEN, EVEN]).verdict.message
    assert "is int32, expected int8" in check(quantize_model(), X, EVEN.astype(np.int32)).verdict.message


def test_a_model_that_is_not_legal_is_an_error_and_no_verdict() -> None:
    model = quantize_model()
    model.graph.node[0].op_type = "Quantise"

    with pytest.raises(ModelError):
        check(model, X, EVEN)


def test_outputs_that_depend_on_outputs_count_as_returned() -> None:
    row = generate.select(suites.cases(), ["DynamicQuantizeLinear"])[0]
    case = generate.draw_round(row, 0, 0)[0]
    from opgauge import model

    data, inputs = model.build(case)
    honest = check(data, inputs, [e.value for e in check(data, inputs, []).sets])

    assert honest.within


def test_modules_that_are_functions_stay_modules() -> None:
    from opgauge import check as module
    from opgauge import run as supervisor

    assert module is sys.modules["opgauge.check"]
    assert callable(module.subject_of)
    assert opgauge.check(quantize_model(), X, EVEN).within
    assert supervisor.Task("row").kind == "row"
    assert opgauge.assert_within_set is assert_within_set
    assert opgauge.frames.frame([]).empty


def test_every_name_of_the_api_exists() -> None:
    assert [name for name in opgauge.__all__ if not hasattr(opgauge, name)] == []
    assert [name for name in api.__all__ if not hasattr(api, name)] == []
    with pytest.raises(AttributeError, match="has no attribute 'chek'"):
        opgauge.chek  # noqa: B018


def test_importing_the_package_loads_nothing() -> None:
    program = "import sys, opgauge; print([m for m in ('numpy', 'onnx', 'pandas', 'typer') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said.strip() == "[]"


def test_a_run_from_python_gives_records_findings_and_a_frame() -> None:
    half_away = f"{Path(__file__).resolve().parents[1] / 'examples' / 'half_away.py'}:run"
    done = opgauge.run(["exact", half_away], ops=["QLinearMatMul"], k="int8,uint8", budget=6)

    assert done.errors == ()
    assert {r.backend for r in done.records} == {"exact", half_away}
    assert {f.rule for f in done.findings} == {"fail"}
    assert set(done.frame().query("backend == 'exact'")["status"]) == {"pass"}
    assert expectations.load()
