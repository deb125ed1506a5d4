"""Policy ftz: a kernel may read subnormal operands as zeros; what lies between the two readings is still wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import one_node
import pytest

from opgauge import oracles
from opgauge.oracles import judge
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.types import Observation, Policy, Status

FTZ = Policy(ftz=True)
HALF, SINGLE, TRUTH = np.float16, np.float32, np.bool_
PRODUCT = SINGLE([1e-40]) * SINGLE([1e38])


def status(op, inputs, output, policy, fold=False):
    graph, feeds = one_node.lowered(op, *inputs, fold=fold)
    return judge(evaluate(graph, feeds, policy), Observation(Status.PASS, (output,)), policy).status


# operator, operands, what comes of them, of zeros in their place, and what comes of neither
CASES = [
    ("Log", [SINGLE([1e-40])], SINGLE([-92.103401]), SINGLE([-np.inf]), SINGLE([-120])),
    ("Mul", [SINGLE([1e-40]), SINGLE([1e38])], PRODUCT, SINGLE([0]), SINGLE([0.005])),
    ("Mul", [SINGLE([-1e-40]), SINGLE([np.inf])], SINGLE([-np.inf]), SINGLE([np.nan]), SINGLE([0])),
    ("Mul", [HALF([5.96e-8]), HALF([1000])], HALF([5.96e-5]), HALF([0]), HALF([1])),
    ("Equal", [SINGLE([1e-40]), SINGLE([0])], TRUTH([False]), TRUTH([True]), None),
    ("Sign", [SINGLE([-1e-40])], SINGLE([-1]), SINGLE([0]), SINGLE([1])),
    ("Cast", [SINGLE([1e-40])], TRUTH([True]), TRUTH([False]), None),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_operands_may_be_read_as_zeros_where_that_is_declared(case):
    op, inputs, as_given, flushed, neither = case
    options = {"to": 9} if op == "Cast" else {}
    graph, feeds = one_node.lowered(op, *inputs, **options)

    def seen(output, policy):
        return judge(evaluate(graph, feeds, policy), Observation(Status.PASS, (output,)), policy).status

    assert seen(as_given, Policy()) is Status.PASS
    assert seen(flushed, Policy()) is Status.FAIL
    assert seen(as_given, FTZ) is Status.PASS
    assert seen(flushed, FTZ) is Status.PASS
    if neither is not None:
        assert seen(neither, FTZ) is Status.FAIL


def test_nothing_is_accepted_besides_where_no_operand_is_subnormal():
    x = SINGLE([1e-3, 1e-37, 0, -0.0, np.inf])
    graph, feeds = one_node.lowered("Log", np.abs(x))
    assert all(e.also is None for e in evaluate(graph, feeds, FTZ))
    assert status("Mul", [x, SINGLE([2] * 5)], SINGLE([0, 2e-37, 0, 0, np.inf]), FTZ) is Status.FAIL


def test_constants_are_read_as_zeros_too():
    graph, feeds = one_node.lowered("Mul", SINGLE([1e38]), SINGLE([1e-40]))
    (name,) = [n for n in graph.inputs if feeds[n][0] < 1]
    inputs = tuple(n for n in graph.inputs if n != name)
    stored = replace(graph, inputs=inputs, constants={**graph.constants, name: feeds[name]})
    exacts = evaluate(stored, {n: feeds[n] for n in inputs}, FTZ)
    for value, wanted in ((PRODUCT[0], Status.PASS), (0.0, Status.PASS), (0.005, Status.FAIL)):
        assert judge(exacts, Observation(Status.PASS, (SINGLE([value]),)), FTZ).status is wanted


def test_large_outputs_are_judged_in_pieces_alike(monkeypatch):
    monkeypatch.setattr(oracles, "LARGE", 16)
    x = np.full(100, 1e-40, SINGLE)
    out = np.full(100, -92.103401, SINGLE)
    out[40:80] = -np.inf
    assert status("Log", [x], out, FTZ) is Status.PASS
    out[90] = -120
    assert status("Log", [x], out, FTZ) is Status.FAIL


def test_a_failure_names_both_readings():
    graph, feeds = one_node.lowered("Sign", SINGLE([1e-40]))
    verdict = judge(evaluate(graph, feeds, FTZ), Observation(Status.PASS, (SINGLE([-1]),)), FTZ)
    assert verdict.detail["expected"] == ["1 or 0"]
