"""LSTM, GRU and RNN: unrolled graphs against onnx's reference, a swapped gate is seen, the rest is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from opgauge.backends.cpu import kernels
from opgauge.reference_engine.errors import ModelError, UnknownOperatorError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.executor import execute, finder, plan
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.operators import OPERATORS
from opgauge.reference_engine.operators.linear import recurrent
from opgauge.rule_bisect import outside

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
CASES = [(op, extra) for op in GATES for extra in (("B",), ("B", "initial_h"), ())]


def built(op, direction="forward", extra=("B", "initial_h"), seed=0, steps=4, **attrs):
    """(model, feeds) of one layer."""
    rng = np.random.Generator(np.random.PCG64(seed))
    many, gates, size, width, batch = 2 if direction == "bidirectional" else 1, GATES[op], 5, 3, 2
    feeds = {
        "X": rng.standard_normal((steps, batch, width)),
        "W": rng.standard_normal((many, gates * size, width)) * 0.5,
        "R": rng.standard_normal((many, gates * size, size)) * 0.5,
        "B": rng.standard_normal((many, 2 * gates * size)),
        "initial_h": rng.standard_normal((many, batch, size)),
        "initial_c": rng.standard_normal((many, batch, size)),
        "P": rng.standard_normal((many, 3 * size)) * 0.5,
    }
    order = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
    names = [n if n in {"X", "W", "R", *extra} else "" for n in order[: 8 if op == "LSTM" else 6]]
    feeds = {n: feeds[n].astype(np.float32) for n in names if n}
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, names, outputs, hidden_size=size, direction=direction, **attrs)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n, x in feeds.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), feeds


@pytest.mark.parametrize(("op", "extra"), CASES)
def test_layers_agree_with_the_reference_of_onnx(op, extra):
    """Forward only: it knows no other direction."""
    model, feeds = built(op, extra=extra)
    wanted = ReferenceEvaluator(model).run(None, feeds)
    found = evaluate(lower(model, feeds), feeds)
    for a, b in zip(found, wanted, strict=True):
        assert np.allclose(a.value, b, atol=1e-5), op


@pytest.mark.parametrize("op", GATES)
def test_reverse_is_forward_on_reversed_steps_and_both_directions_are_joined(op):
    model, feeds = built(op, "reverse")
    backward = evaluate(lower(model, feeds), feeds)
    model, _ = built(op, "forward")
    turned = {**feeds, "X": np.ascontiguousarray(feeds["X"][::-1])}
    forward = evaluate(lower(model, turned), turned)
    assert np.array_equal(backward[0].value, forward[0].value[::-1])
    assert np.array_equal(backward[1].value, forward[1].value)
    model, feeds = built(op, "bidirectional")
    both = evaluate(lower(model, feeds), feeds)
    for d, direction in enumerate(("forward", "reverse")):
        one = {n: x if n == "X" else x[d : d + 1] for n, x in feeds.items()}
        alone = evaluate(lower(built(op, direction)[0], one), one)
        assert np.array_equal(both[0].value[:, d], alone[0].value[:, 0])


@pytest.mark.parametrize("op", GATES)
def test_our_kernels_are_inside_their_sets(op):
    find = finder(kernels())
    for seed in range(4):
        model, feeds = built(op, "bidirectional", seed=seed)
        graph = lower(model, feeds)
        assert outside(evaluate(graph, feeds), execute(plan(graph, find, "cpu"), feeds)) == ""


def test_peepholes_and_the_reset_gate_change_the_result():
    plain, peeped = (
        evaluate(lower(*built("LSTM", extra=e)), built("LSTM", extra=e)[1])[0].value
        for e in (("B", "initial_c"), ("B", "initial_c", "P"))
    )
    assert not np.allclose(plain, peeped)
    model, feeds = built("GRU", linear_before_reset=1)
    wanted = ReferenceEvaluator(model).run(None, feeds)[0]
    assert np.allclose(evaluate(lower(model, feeds), feeds)[0].value, wanted, atol=1e-5)


def test_swapped_gates_are_seen(monkeypatch):
    """The order i, o, f, c taken for i, f, o, c."""
    right = recurrent._gate
    monkeypatch.setattr(recurrent, "_gate", lambda emit, y, k, size: right(emit, y, (0, 2, 1, 3)[k], size))
    model, feeds = built("LSTM", extra=("B", "initial_c"))
    wanted = ReferenceEvaluator(model).run(None, feeds)[0]
    assert not np.allclose(evaluate(lower(model, feeds), feeds)[0].value, wanted, atol=1e-3)


@pytest.mark.parametrize(
    ("attrs", "said"),
    [
        ({"clip": 1.0}, "clip=1.0"),
        ({"activations": ["Sigmoid", "Elu", "Tanh"]}, "'Elu'"),
        ({"input_forget": 1}, "input_forget=1"),
    ],
)
def test_what_is_not_lowered_is_refused_by_name(attrs, said):
    with pytest.raises(UnknownOperatorError, match=said):
        lower(*built("LSTM", **attrs))
    assert OPERATORS["", "LSTM"].since == 7


def test_too_many_steps_and_odd_shapes_are_refused(monkeypatch):
    monkeypatch.setattr(recurrent, "MAX_STEPS", 3)
    with pytest.raises(ModelError, match="4 steps; 1 to 3"):
        lower(*built("RNN"))
    model, feeds = built("RNN", steps=2)
    next(a for a in model.graph.node[0].attribute if a.name == "direction").s = b"sideways"
    with pytest.raises(ModelError, match="direction 'sideways'"):
        lower(model, feeds)
