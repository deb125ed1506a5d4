"""Our engine behind ONNX's backend interface, under ONNX's own test runner."""

from __future__ import annotations

import re
import unittest
import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt, Runner

from opgauge import onnx_backend
from opgauge.backends import RunResult
from opgauge.onnx_backend import CpuBackend, Prepared, WgpuBackend

# A sample of each family; a full run (opgauge.onnx_backend under ONNX's runner, all 4,066 tests) takes minutes.
SAMPLE = (
    "test_(qlinearmatmul|quantizelinear|dynamicquantizelinear|matmulinteger|gemm_|basic_conv|averagepool_2d|softmax|"
    "transpose|pad|slice|concat|gather_|relu|where|clip)[a-z0-9_]*_cpu$"
)
REFUSALS = ("is not lowered", "is not supported", "element type", "not a tensor")
LEAST = 100  # tests of the sample that really run


@pytest.fixture(scope="module")
def runner() -> Runner:
    """Takes some seconds: onnx computes all its tests when they are collected."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return onnx.backend.test.BackendTest(CpuBackend, __name__)


class Faulty(CpuBackend):
    """Adds one to the first element of every first output: the control of the test below."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: object) -> Prepared:
        honest = super().prepare(model, device)

        def run(data: bytes, inputs: dict[str, np.ndarray]) -> RunResult:
            first, *rest = honest._run(data, inputs).outputs
            wrong = first.copy()
            wrong.ravel()[:1] = (wrong.ravel()[:1] + np.asarray(1)).astype(wrong.dtype)
            return RunResult((wrong, *rest))

        return Prepared(model, run)


def result_of(runner: Runner, backend: type[CpuBackend], pattern: str) -> tuple[unittest.TestResult, list[str]]:
    """The outcome of the matching tests, and the reasons of those that were not for us."""
    reasons: list[str] = []

    class Told(BackendIsNotSupposedToImplementIt):
        def __init__(self, reason: str) -> None:
            super().__init__(reason)
            reasons.append(reason)

    chosen = unittest.TestSuite()
    for category, items in runner._test_items.items():
        names = [name for name in items if re.search(pattern, name)]
        case = type(category, (unittest.TestCase,), {name: items[name].func for name in names})
        chosen.addTests(case(name) for name in names)
    result = unittest.TestResult()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_backend, "BackendIsNotSupposedToImplementIt", Told)
        patch.setattr(runner, "backend", backend)
        chosen.run(result)
    return result, reasons


def test_onnx_own_runner_passes_on_what_is_lowered(runner: Runner) -> None:
    result, reasons = result_of(runner, CpuBackend, SAMPLE)

    assert [(case.id(), text[-300:]) for case, text in result.failures + result.errors] == []
    assert result.testsRun - len(result.skipped) - len(reasons) >= LEAST
    assert [r for r in reasons if not any(word in r for word in REFUSALS)] == []


def test_disputed_tests_differ_and_no_others_beside_them_do(runner: Runner) -> None:
    result, _ = result_of(runner, CpuBackend, f"^({'|'.join(onnx_backend.DISPUTED)})_cpu$")

    assert result.testsRun == len(result.failures) == len(onnx_backend.DISPUTED) == 3
    beside = "test_(resize_(up|down)sample_[a-z]+_[a-z_]*align_corners|attention_4d_causal[a-z0-9_]*)_cpu$"
    others, reasons = result_of(runner, CpuBackend, beside)
    assert len(others.failures) == 3 < others.testsRun - len(reasons)


def test_a_constant_is_no_operator_that_is_missing(runner: Runner) -> None:
    result, reasons = result_of(runner, CpuBackend, "test_(relu|elu|clip)_?[a-z]*_expanded(_ver18)?_cpu$")

    assert result.failures == result.errors == []
    assert result.testsRun - len(result.skipped) - len(reasons) >= 2


def test_onnx_own_runner_sees_a_fault(runner: Runner) -> None:
    result, _ = result_of(runner, Faulty, "test_(qlinearmatmul_2D|transpose_default)[a-zA-Z0-9_]*_cpu$")

    assert result.testsRun >= 3
    assert len(result.failures) == result.testsRun


def relu_model(op: str = "Relu") -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


X = np.array([-1, 2], np.float32)


def test_inputs_are_taken_by_order_by_name_or_alone() -> None:
    prepared = CpuBackend.prepare(relu_model())

    for inputs in ([X], {"x": X}, X):
        assert prepared.run(inputs)[0].tolist() == [0, 2]
    with pytest.raises(ValueError, match="2 inputs for a model that has 1: x"):
        prepared.run([X, X])


def test_one_node_can_be_run() -> None:
    node = helper.make_node("Add", ["a", "b"], ["c"])

    assert onnx_backend.run_node(node, [X, X], opset_version=13)[0].tolist() == [-2, 4]


def test_what_is_not_lowered_is_refused_by_name() -> None:
    unknown = relu_model("Relux")

    assert not CpuBackend.is_compatible(unknown)
    with pytest.raises(BackendIsNotSupposedToImplementIt, match=r"ai\.onnx::Relux is not lowered"):
        CpuBackend.prepare(unknown)


def test_devices_are_told_apart_and_wgpu_computes_where_there_is_a_driver() -> None:
    assert CpuBackend.supports_device("CPU")
    assert not CpuBackend.supports_device("CUDA")
    if not WgpuBackend.supports_device("CPU"):
        pytest.skip("no Vulkan, Metal or D3D12 driver")
    assert WgpuBackend.prepare(relu_model()).run([X])[0].tolist() == [0, 2]
