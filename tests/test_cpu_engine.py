"""The CPU engine around its kernels: what is compiled, where it is kept, which plan is reused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from opgauge.backends import cpu
from opgauge.backends.cpu import compile as cc
from opgauge.backends.cpu import linear, movement, pointwise, reduce
from opgauge.reference_engine.errors import BackendUnavailableError


def test_read_only_and_misaligned_inputs_need_no_code_of_their_own():
    families = (linear, pointwise, reduce, movement)
    memory = np.zeros(4 * 64 + 1, np.uint8)
    seen = []
    for x in (np.zeros(64, np.float32), np.frombuffer(bytes(256), np.float32), memory[1:].view(np.float32)):
        matrix, rows, image = x.reshape(8, 8), np.empty(8, np.float32), x.reshape(1, 1, 64)
        linear.gemm_float(matrix, matrix, np.empty((8, 8), np.float32))
        reduce.sum_float(matrix, rows)
        pointwise.quantize(image, x[:1] + 1, np.zeros(1, np.int8), np.empty(image.shape, np.int8), "int8", "")
        out = np.empty((1, 1, 1, 64), np.float32)
        movement.im2col(image, np.zeros((), np.float32), out, (1,), (1,), (1,), (0, 0), (64,))
        seen.append([len(k.signatures) for k in cc.kernels_of(families)])
    assert seen[1:] == seen[:-1]


def test_an_edit_of_any_kernel_source_changes_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OPGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    kernel, imported = tmp_path / "kernel.py", tmp_path / "imported.py"
    kernel.write_text("from .imported import step\n")
    imported.write_text("STEP = 1\n")
    first = cc.cache_folder((kernel, imported))
    assert cc.cache_folder((imported, kernel)) == first  # control
    imported.write_text("STEP = 2\n")
    second = cc.cache_folder((kernel, imported))
    assert first is not None
    assert second is not None
    assert first != second
    assert first.parent == second.parent == tmp_path / "cache" / "numba"


def test_without_a_writable_folder_nothing_is_cached(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPGAUGE_CACHE_DIR", str(tmp_path / "file"))
    assert cc.cache_folder(()) is None
    cc.keep((linear,), None)


def python(code, **environment):
    settings = {**os.environ, **environment}
    run = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_import_writes_nothing_and_a_second_process_reads_kernels_from_disk(tmp_path):
    code = """
import os, sys
from pathlib import Path
import numpy as np
from opgauge.backends import cpu
assert "numba" not in sys.modules
before = [*Path(os.environ["OPGAUGE_CACHE_DIR"]).rglob("*")]
from opgauge.backends.cpu import compile, linear, movement, pointwise, reduce
assert before == [*Path(os.environ["OPGAUGE_CACHE_DIR"]).rglob("*")]
assert not [k for k in compile.kernels_of((linear, movement, pointwise, reduce)) if k.signatures]
cpu.kernels()
pointwise.erf(np.ones(3, np.float32), np.empty(3, np.float32))
print(sum(pointwise.erf_flat.stats.cache_hits.values()), sum(pointwise.erf_flat.stats.cache_misses.values()))
"""
    source_tree = Path(cc.__file__).parent
    assert python(code, OPGAUGE_CACHE_DIR=str(tmp_path)) == ["0", "1"]
    assert python(code, OPGAUGE_CACHE_DIR=str(tmp_path)) == ["1", "0"]
    assert not [*source_tree.rglob("*.nbi"), *source_tree.rglob("*.nbc")]


def model(op, inputs, output, opset):
    """One node as ModelProto bytes; inputs as (name, element type, shape)."""
    declared = [helper.make_tensor_value_info(*row) for row in inputs]
    node = helper.make_node(op, [row[0] for row in inputs], ["Y"])
    graph = helper.make_graph([node], "g", declared, [helper.make_tensor_value_info("Y", output, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7).SerializeToString()


def test_a_plan_is_reused_for_the_same_model_and_shapes_only():
    run = cpu.load()
    rng = np.random.default_rng(20)
    hits = []
    for K, M in [(5, 3), (5, 3), (5, 4), (6, 4), (5, 3)]:
        a, b = rng.integers(0, 256, (M, K), np.uint8), rng.integers(-128, 128, (K, 2), np.int8)
        inputs = [("A", TensorProto.UINT8, ["M", K]), ("B", TensorProto.INT8, [K, "N"])]
        result = run(model("MatMulInteger", inputs, TensorProto.INT32, 10), {"A": a, "B": b})
        np.testing.assert_array_equal(result.outputs[0], a.astype(np.int32) @ b.astype(np.int32))
        hits.append(result.counts["plan_hit_count"])
    assert hits == [0, 1, 0, 0, 1]


def test_a_plan_whose_shape_came_from_data_is_reused_for_the_same_data_only():
    inputs = [("X", TensorProto.FLOAT, [6]), ("S", TensorProto.INT64, [2])]
    data_model = model("Reshape", inputs, TensorProto.FLOAT, 13)
    run = cpu.load()
    x = np.arange(6, dtype=np.float32)
    shapes = [(2, 3), (3, 2), (2, 3)]
    results = [run(data_model, {"X": x, "S": np.array(shape)}) for shape in shapes]
    assert [r.outputs[0].shape for r in results] == shapes
    assert [r.counts["plan_hit_count"] for r in results] == [0, 0, 1]


def test_options_that_this_engine_does_not_have_are_refused():
    cpu.load(threads="1")
    for options in ({"threads": "0"}, {"threads": "2", "arena": "reuse"}, {"disable": "fuse-bias"}):
        with pytest.raises(BackendUnavailableError):
            cpu.load(**options)


def fused_chain(x, y):
    """float32 fma over k: a product of two has at most 48 bits, so only the float64 sum is inexact.

    Its error, put into its last bit (round to odd), makes the second rounding right.
    """
    acc = np.zeros((x.shape[0], y.shape[1]), np.float32)
    for k in range(x.shape[1]):
        p, q = np.outer(x[:, k].astype(float), y[k].astype(float)), acc.astype(float)
        s = p + q
        t = s - p
        error = (p - (s - t)) + (q - t)
        odd = np.where(s.view(np.int64) % 2 == 0, np.nextafter(s, np.where(error > 0, np.inf, -np.inf)), s)
        acc = np.where(error != 0, odd, s).astype(np.float32)
    return acc


def unfused_chain(x, y):
    acc = np.zeros((x.shape[0], y.shape[1]), np.float32)
    for k in range(x.shape[1]):
        acc = acc + np.outer(x[:, k], y[k])
    return acc


@pytest.mark.skipif("avx2" not in cc.target_features(cc.host_codegen()), reason="no wider CPU to step down from")
@pytest.mark.parametrize(
    ("name", "features", "order", "chain", "other"),
    [
        ("haswell", "+sse2,+sse4.2,+avx,+avx2,+fma", "sequential k, fma", fused_chain, unfused_chain),
        ("nehalem", "+sse2,+sse4.2", "sequential k, multiply then add", unfused_chain, fused_chain),
    ],
)
def test_older_cpus_give_the_specified_bits(name, features, order, chain, other):
    code = """
import numpy as np
from opgauge.backends import cpu
from opgauge.backends.cpu import linear
cpu.kernels()
a, b = (np.arange(13 * 35) * 37 % 256 - 128).astype(np.int8), (np.arange(35 * 70) * 41 % 256).astype(np.uint8)
a, b = a.reshape(13, 35), b.reshape(35, 70)
out = np.empty((13, 70), np.int32)
linear.gemm_integer(a, b, np.array(-128, np.int8), np.array(255, np.uint8), out)
assert (out == (a.astype(int) + 128) @ (b.astype(int) - 255)).all()
out = np.empty((13, 70), np.float32)
linear.gemm_float(a.astype(np.float32) / 97, b.astype(np.float32) / 89, out)
print(out.tobytes().hex(), cpu.info()["float_gemm_order"])
"""
    bits, *words = python(code, NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES=features)
    assert " ".join(words) == order
    a, b = (np.arange(13 * 35) * 37 % 256 - 128).astype(np.int8), (np.arange(35 * 70) * 41 % 256).astype(np.uint8)
    x, y = a.reshape(13, 35).astype(np.float32) / 97, b.reshape(35, 70).astype(np.float32) / 89
    assert bytes.fromhex(bits) == chain(x, y).tobytes()
    assert bytes.fromhex(bits) != other(x, y).tobytes()


def test_the_arena_and_its_checking_mode_give_the_same_bits():
    from opgauge.suites.networks import network

    data, feeds = network("classifier-int8").build()
    results = [cpu.load(arena=arena)(data, feeds) for arena in ("", "reuse", "check")]
    assert len({r.outputs[0].tobytes() for r in results}) == 1
    assert all(r.counts["peak_bytes"] > 0 for r in results)
    with pytest.raises(BackendUnavailableError, match="arena"):
        cpu.load(arena="maybe")


def test_evicted_plans_are_counted(monkeypatch):
    monkeypatch.setattr(cpu, "MAX_PLANS", 2)
    run = cpu.load()
    inputs = [("X", TensorProto.FLOAT, ["N"])]
    data = model("Relu", inputs, TensorProto.FLOAT, 13)
    seen = [run(data, {"X": np.ones(n, np.float32)}).counts for n in (1, 2, 1, 3, 2)]
    assert [c["plan_hit_count"] for c in seen] == [0, 0, 1, 0, 0]
    assert [c["plan_eviction_count"] for c in seen] == [0, 0, 0, 1, 2]


def test_a_rule_is_switched_off_by_name():
    from opgauge.suites.templates import TEMPLATES

    data, feeds = next(t for t in TEMPLATES if t.name == "transpose-pairs/two readers").build(1)
    every, none, without = (
        cpu.load(**o)(data, feeds) for o in ({}, {"disable": "all"}, {"disable": "transpose-pairs"})
    )
    assert none.counts["DataMove.transpose_count"] == 2
    assert without.counts["DataMove.transpose_count"] == 2
    assert every.counts["DataMove.transpose_count"] == 1
