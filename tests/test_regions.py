"""QDQ regions: what a name stands for, which executions its set admits, and which mistakes it does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from opgauge import generate, model
from opgauge.reference_engine.case import id_of, parse_id
from opgauge.reference_engine.errors import CaseError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Arg, Case, Exact
from opgauge.suites import cases, regions

F = np.float32
ROWS = {row.name: row for row in cases() if row.domain == regions.DOMAIN}


def drawn(name: str, budget: int) -> list[Case]:
    found: list[Case] = []
    generate.explore(ROWS[name], budget, 3, lambda text, case: found.append(case))
    return found


def exact_of(case: Case) -> tuple[Exact, dict[str, np.ndarray]]:
    data, inputs = model.build(case)
    graph = onnx.load_from_string(data).graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    return evaluate(lower(data, inputs), inputs)[0], {**constants, **inputs}


def inside(exact: Exact, y: np.ndarray) -> bool:
    return bool(((y >= exact.lo) & (y <= exact.hi)).all())


def saturate(v: np.ndarray, like: np.ndarray) -> np.ndarray:
    limits = np.iinfo(like.dtype)
    return np.clip(v, limits.min, limits.max).astype(np.int64)


def dequantized(t: dict[str, np.ndarray], name: str) -> np.ndarray:
    zero = t.get(f"{name}_zero_point", np.int8(0))
    return ((t[name].astype(np.int64) - zero.astype(np.int64)).astype(F) * t[f"{name}_scale"]).astype(F)


def quantized(t: dict[str, np.ndarray], v: np.ndarray, inside_zero: bool = False) -> np.ndarray:
    zero = t["y_zero_point"].astype(np.int64)
    ratio = (v.astype(F) / t["y_scale"]).astype(F)
    return saturate(
        np.rint((ratio + zero.astype(F)).astype(F)) if inside_zero else np.rint(ratio) + zero, t["y_zero_point"]
    )


def wide(t: dict[str, np.ndarray], name: str) -> np.ndarray:
    return t[name].astype(np.int64) - t[f"{name}_zero_point"].astype(np.int64)


def test_a_name_stands_for_dequantizers_the_operator_and_a_quantizer():
    case = Case(
        "QDQ.Gemm",
        "opgauge",
        13,
        (
            Arg("x", "uint8", (2, 3), "uniform"),
            Arg("x_scale", "float32", (), values=(0.5,)),
            Arg("x_zero_point", "uint8", (), values=(3,)),
            Arg("w", "int8", (4, 3), "uniform", const=True),
            Arg("w_scale", "float32", (4,), values=(1, 2, 3, 4), const=True),
            Arg("bias", "int32", (4,), "near", (0, 9)),
            Arg("bias_scale", "float32", (), values=(0.25,)),
            Arg("y_scale", "float32", (), values=(8,)),
            Arg("y_zero_point", "uint8", (), values=(7,)),
        ),
        ("uint8",),
        (("transB", 1), ("w.axis", 0)),
    )
    graph = onnx.load_from_string(model.build(case)[0]).graph
    nodes = [(n.op_type, list(n.input), {a.name: a.i for a in n.attribute}) for n in graph.node]
    assert nodes == [
        ("DequantizeLinear", ["x", "x_scale", "x_zero_point"], {}),
        ("DequantizeLinear", ["w", "w_scale"], {"axis": 0}),
        ("DequantizeLinear", ["bias", "bias_scale"], {}),
        ("Gemm", ["x_real", "w_real", "bias_real"], {"transB": 1}),
        ("QuantizeLinear", ["y_real", "y_scale", "y_zero_point"], {}),
    ]
    assert parse_id(id_of(case, "uint8,int8")) == (case, "uint8,int8")
    with pytest.raises(CaseError, match=r"QDQ\.Relu"):
        model.build(replace(case, op="QDQ.Nothing"))


def product(t: dict[str, np.ndarray]) -> np.ndarray:
    return wide(t, "x") @ wide(t, "w")


@pytest.mark.parametrize("name", ["QDQ.MatMul/uint8,int8", "QDQ.MatMul/uint8,uint8", "QDQ.MatMul/int8,int8"])
def test_fused_and_unfused_products_lie_inside_and_a_half_away_rounding_does_not(name):
    seen_outside = 0
    for case in drawn(name, 60):
        exact, t = exact_of(case)
        acc = product(t)
        scale = (t["x_scale"] * t["w_scale"]).astype(F)
        fused = (acc.astype(F) * (scale / t["y_scale"]).astype(F)).astype(F)
        zero = t["y_zero_point"].astype(np.int64)
        unfused = np.matmul(dequantized(t, "x"), dequantized(t, "w"))
        assert inside(exact, saturate(np.rint(fused) + zero, t["y_zero_point"]))
        assert inside(exact, quantized(t, unfused))
        seen_outside += not inside(exact, saturate(np.floor(fused.astype(np.float64) + 0.5) + zero, t["y_zero_point"]))
    assert seen_outside


@pytest.mark.parametrize(("name", "fn"), [("QDQ.Add/uint8", np.add), ("QDQ.Mul/int8", np.multiply)])
def test_sums_may_add_the_zero_point_before_or_after_rounding(name, fn):
    only_inside = 0
    for case in drawn(name, 60):
        exact, t = exact_of(case)
        real = fn(dequantized(t, "a"), dequantized(t, "b"))
        before, after = quantized(t, real, inside_zero=True), quantized(t, real)
        assert inside(exact, before)
        assert inside(exact, after)
        only_inside += bool((before != after).any())
        assert (
            not inside(exact, saturate(after + np.where(exact.lo == exact.hi, 1, 0), t["y_zero_point"]))
            or ((exact.lo != exact.hi) | (exact.lo == np.iinfo(case.outputs[0]).max)).all()
        )
    assert only_inside


def test_other_regions_round_before_they_add_the_zero_point():
    differ = 0
    for case in drawn("QDQ.MatMul/int8,int8", 80):
        exact, t = exact_of(case)
        real = np.matmul(dequantized(t, "x"), dequantized(t, "w"))
        differ += not inside(exact, quantized(t, real, inside_zero=True))
    assert differ


def test_powers_of_two_leave_one_answer():
    several = elements = 0
    for case in drawn("QDQ.Conv/uint8,int8", 200):
        if case.profile == "ties" and not any(k == "w.axis" for k, _ in case.attrs):
            exact, _ = exact_of(case)
            several += int((exact.lo != exact.hi).sum())
            elements += exact.lo.size
    assert elements > 100
    assert several == 0


def test_a_bias_scale_of_its_own_counts():
    outside = total = 0
    for case in drawn("QDQ.Gemm/uint8,int8", 120):
        if case.profile == "bias":
            without = replace(case, args=tuple(a if a.name != "bias_scale" else ideal(case) for a in case.args))
            exact, _ = exact_of(case)
            ignored, _ = exact_of(without)
            total += 1
            outside += not inside(exact, ignored.value.astype(np.int64))
    assert total > 20
    assert outside > total / 4


def ideal(case: Case) -> Arg:
    """The bias scale that kernels assume where they ignore the one that is given."""
    found = {a.name: a for a in case.args}
    if found["w_scale"].values is None:
        return found["bias_scale"]
    assert found["x_scale"].values is not None
    scale = found["x_scale"].values[0] * found["w_scale"].values[0]
    return replace(found["bias_scale"], values=(float(F(scale)),))
