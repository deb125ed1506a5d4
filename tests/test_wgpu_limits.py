"""The wgpu engine at its limits: sizes, tails, a lost device, no device, several devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper

from opgauge import check, store, suites
from opgauge.backends import cpu, resolve
from opgauge.backends import wgpu as backend
from opgauge.client import Client
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError
from opgauge.reference_engine.plan_cache import PlanCache
from opgauge.reference_engine.types import Array, Record, Status

dispatch = pytest.importorskip("opgauge.backends.wgpu.dispatch", exc_type=ImportError)
timing = pytest.importorskip("opgauge.backends.wgpu.timing", exc_type=ImportError)

CPU = cpu.load()


@pytest.fixture(scope="module")
def engine() -> backend.Engine:
    try:
        return backend.load()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


def draw(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Small whole numbers: exact in any order of a sum."""
    low = 0 if dtype.startswith("u") else -8
    return np.random.default_rng([seed, *shape]).integers(low, 9, shape).astype(dt.numpy_dtype(dtype))


def model(op: str, inputs: dict[str, Array], held: dict[str, Array], **attrs: object) -> bytes:
    infos = [helper.make_tensor_value_info(n, dt.ONNX[dt.word_of(a.dtype)], a.shape) for n, a in inputs.items()]
    node = helper.make_node(op, [*inputs, *held], ["y"], **attrs)
    constants = [onnx.numpy_helper.from_array(a, n) for n, a in held.items()]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def same(engine: backend.Engine, op: str, *inputs: Array, held: tuple[Array, ...] = (), **attrs: object) -> Array:
    """The output of both engines, which is the same bit for bit."""
    feeds = {f"x{i}": x for i, x in enumerate(inputs)}
    data = model(op, feeds, {f"c{i}": x for i, x in enumerate(held)}, **attrs)
    (actual,), (expected,) = engine(data, feeds).outputs, CPU(data, feeds).outputs
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes(), op
    return actual


# ---- sizes

F = np.float32
SCALE, ZERO = F(0.25), np.uint8(3)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), *((n,) for n in range(1, 8)), (3, 5), (2, 1, 7)])
def test_scalars_empty_tensors_and_tails_are_the_cpus_bit_for_bit(engine, shape):
    x, q = draw("float32", shape), draw("uint8", shape)
    same(engine, "QuantizeLinear", x, held=(SCALE, ZERO))
    same(engine, "DequantizeLinear", q, held=(SCALE, ZERO))
    same(engine, "Cast", x, to=onnx.TensorProto.FLOAT16)
    same(engine, "Cast", q, to=onnx.TensorProto.INT64)
    same(engine, "Add", x, held=(F(2),))
    same(engine, "Relu", draw("int8", shape))
    same(engine, "Transpose", q)
    same(engine, "Expand", q, held=(np.array([2, *shape], np.int64),))
    same(engine, "ReduceSum", x, keepdims=0)
    if shape:
        same(engine, "Concat", q, draw("uint8", shape, 1), q, axis=-1)
        same(engine, "Softmax" if 0 in shape else "Neg", x)


def test_a_sum_of_200_000_ones_and_a_product_over_70_000_terms_are_right(engine):
    assert same(engine, "ReduceSum", np.ones((3, 200_000), F), held=(np.array([1]),), keepdims=0).tolist() == [2e5] * 3
    ones = np.ones((2, 70_000), F)
    assert (same(engine, "MatMul", ones, np.ascontiguousarray(ones.T)) == 70_000).all()
    a, b = np.full((2, 70_000), 255, np.uint8), np.full((70_000, 1), -128, np.int8)
    # 70,000 * 255 * -128 is beyond int32: it wraps.
    assert (same(engine, "MatMulInteger", a, b) == np.int64(70_000 * 255 * -128).astype(np.int32)).all()
    assert same(engine, "Conv", np.ones((1, 70_000, 1, 1), F), held=(np.ones((1, 70_000, 1, 1), F),)) == 70_000


def test_more_invocations_than_one_dimension_of_workgroups_has(engine):
    n = 2100  # n * n > 65,535 * 64
    a, b = draw("uint8", (n, 2)), draw("int8", (2, n), 1)
    product = same(engine, "MatMulInteger", a, b)
    assert (product == a.astype(np.int32) @ b.astype(np.int32)).all()
    same(engine, "Transpose", product)
    same(engine, "ReduceSum", draw("int32", (n * n, 2)), held=(np.array([1]),), keepdims=0)


def test_a_tensor_beyond_the_binding_limit_is_refused_by_name_and_the_next_case_runs(engine):
    count = engine.device.limit // 4 + 1
    if count > 2**28:
        pytest.skip("this device binds more than the reference accepts")
    x = np.ones((1, 1), F)
    data = model("Expand", {"x": x}, {"shape": np.array([count, 1], np.int64)})
    with pytest.raises(UnsupportedError, match=rf"Expand.*needs {4 * count} bytes in one buffer, this device binds"):
        engine(data, {"x": x})
    same(engine, "Neg", x)


# ---- time on the device


def test_passes_are_timed_where_the_device_has_a_clock(engine):
    a = draw("float32", (128, 128))
    data = model("MatMul", {"a": a, "b": a}, {})
    result = engine(data, {"a": a, "b": a})
    facts = backend.info()["timestamps"]
    if not engine.device.tick_ns:
        assert facts.startswith("none")
        assert "passes" not in result.times_ns
        return
    assert facts == f"{engine.device.tick_ns:g} ns a tick"
    assert 0 < result.times_ns["passes"] <= result.times_ns["run"]
    assert (result.counts["submit_count"], result.counts["readback_count"]) == (1, 1)


def test_a_device_without_a_clock_runs_untimed(engine, monkeypatch):
    monkeypatch.setattr(engine.device, "tick_ns", 0.0)
    monkeypatch.setattr(engine, "plans", PlanCache())
    x = draw("float32", (5,))
    result = engine(model("Neg", {"x": x}, {}), {"x": x})
    assert "passes" not in result.times_ns
    assert (result.outputs[0] == -x).all()


def test_ticks_add_up_and_a_reset_clock_counts_nothing():
    assert timing.ticks_of(np.array([[10, 25], [30, 31]], np.uint64).tobytes()) == 16
    assert timing.ticks_of(np.array([[10, 25], [30, 0]], np.uint64).tobytes()) == 15


# ---- through the harness


LOSSY = """
from opgauge.backends import wgpu
from opgauge.backends.wgpu import dispatch

engine, seen = None, []


def run(model, inputs):
    global engine
    engine = engine or wgpu.load()
    case = [x.tobytes() for x in inputs.values()]
    if case not in seen:
        seen.append(case)
        if len(seen) == 3:
            dispatch.read_back = lost
    return engine(model, inputs)


def lost(*arguments, kept=dispatch.read_back):
    dispatch.read_back = kept
    engine.device.gpu.destroy()
    return kept(*arguments)
"""


def opgauge(folder: Path, *words: str, **variables: str) -> tuple[int, list[Record], str]:
    """Exit code, records and output of `opgauge run` on five cases of Relu."""
    common = ["run", "--op", "Relu", "--dtype", "float32", "--budget", "5", "--jobs", "1", "--no-shrink"]
    command = [sys.executable, "-P", "-m", "opgauge", *common, "--out", str(folder), *words]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    said = done.stdout + done.stderr
    assert list(folder.glob("*/journal.jsonl")), said
    found = store.read(store.latest(folder)).records
    return done.returncode, [r for r in found if r.suite == "operators"], said


def test_a_device_lost_during_a_case_is_that_cases_verdict_and_the_run_goes_on(engine, tmp_path):
    (tmp_path / "lossy.py").write_text(LOSSY)
    code, records, text = opgauge(tmp_path, "--backend", f"{tmp_path / 'lossy.py'}:run")
    assert code == 1, text
    # Which case it is depends on how often the worker calls each one.
    failed = [i for i, r in enumerate(records) if r.status is not Status.PASS]
    assert failed in ([1], [2])
    assert records[failed[0]].status is Status.FLAKY  # alone it is right
    assert "raised DeviceLostError: wgpu: the device was lost" in records[failed[0]].message
    assert len(records) == 5


NO_ADAPTER = {
    "VK_DRIVER_FILES": os.devnull,
    "VK_ICD_FILENAMES": os.devnull,
    "__EGL_VENDOR_LIBRARY_FILENAMES": os.devnull,
    "LIBGL_DRIVERS_PATH": os.devnull,
}


@pytest.mark.skipif(sys.platform != "linux", reason="only Vulkan's and EGL's loaders can be told to find nothing")
def test_no_adapter_reads_unavailable_and_is_exit_3_where_required(tmp_path):
    # Exit 0 where it is not required: tests/test_cli.py.
    code, records, text = opgauge(tmp_path, "--backend", "cpu", "--require", "wgpu", **NO_ADAPTER)
    assert code == 3, text
    assert {(r.backend, str(r.status)) for r in records} == {("cpu", "pass"), ("wgpu", "unavailable")}
    assert "no adapter found; apt-get install" in next(r.message for r in records if r.backend == "wgpu")
    assert "required backend wgpu is unavailable" in text


# ---- several adapters


def adapter(device: str, kind: str = "CPU", api: str = "Vulkan", *features: str) -> SimpleNamespace:
    info = {"device": device, "description": "", "adapter_type": kind, "backend_type": api}
    return SimpleNamespace(info=info, features=set(features))


def test_hardware_comes_first_and_llvmpipe_before_swiftshader(monkeypatch):
    found = [
        adapter("SwiftShader Device (Subzero)"),
        adapter("llvmpipe", "CPU", "OpenGL"),
        adapter("llvmpipe", "CPU", "Vulkan", "shader-f16"),
        adapter("H200", "DiscreteGPU", "Vulkan", "shader-f16"),
    ]
    monkeypatch.setattr(dispatch.wgpu.gpu, "enumerate_adapters_sync", lambda: found)
    order = [dispatch.describe(a) for a in dispatch.adapters()]
    assert order == [
        "H200 () Vulkan",
        "llvmpipe () Vulkan",
        "SwiftShader Device (Subzero) () Vulkan",
        "llvmpipe () OpenGL",
    ]
    assert dispatch.describe(dispatch.choose("swiftshader")).startswith("SwiftShader")
    with pytest.raises(BackendUnavailableError, match=r"no adapter matches 'Radeon'; there are 0: H200 .*3: llvmpipe"):
        dispatch.choose("Radeon")


def test_records_name_the_adapter_that_was_asked_for(engine):
    (row,) = (row for row in suites.cases() if row.name == "Relu/float32")
    with Client(resolve("wgpu:adapter=0")) as client:
        records: list[Record] = []
        check.check_row(row, 2, 0, [client], records.append)
        assert {(r.backend, str(r.status)) for r in records if r.suite == "operators"} == {("wgpu:adapter=0", "pass")}
        assert dispatch.describe(dispatch.adapters()[0]).startswith(client.info["device"])
