"""Rows of LSTM, GRU and RNN."""

from __future__ import annotations

from hypothesis import strategies as st

from opgauge.reference_engine.types import Arg, Attr, Case

from .. import draws as d
from ..draws import Draw, pick, rarely

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@st.composite
def recurrent(draw: Draw, op: str, dtype: str) -> Case:
    """Directions, absent biases and states, peepholes, the reset gate before or after its product."""
    gates = GATES[op]
    direction = pick(draw, ("forward", "forward", "reverse", "bidirectional"))
    many = 2 if direction == "bidirectional" else 1
    length, batch = pick(draw, (3, 1, 2, 5, 9)), pick(draw, (2, 1, 3, 5))
    (batch,) = d.larger(draw, (batch,), each=10 * length)
    width, size = pick(draw, (4, 1, 3, 7, 16, 17, 33)), pick(draw, (4, 1, 3, 8, 9, 16, 17))
    kind, data = pick(draw, (("plain", ("normal", ())), ("plain", ("normal", ())), ("large", ("normal", (4.0,)))))
    weights = ("normal", (round((width + size) ** -0.5, 2),))
    stored = not rarely(draw, 3)

    def weight(name: str, *shape: int) -> Arg:
        return d.filled(name, dtype, shape, weights, const=stored)

    def optional(arg: Arg, n: int) -> Arg:
        return Arg(arg.name) if rarely(draw, n) else arg

    state = (many, batch, size)
    args = [
        d.filled("X", dtype, (length, batch, width), data),
        weight("W", many, gates * size, width),
        weight("R", many, gates * size, size),
        optional(weight("B", many, 2 * gates * size), 3),
        Arg("sequence_lens"),
        optional(d.filled("initial_h", dtype, state, ("uniform", (-1.0, 1.0))), 3),
    ]
    if op == "LSTM":
        args.append(optional(d.filled("initial_c", dtype, state, data), 3))
        args.append(weight("P", many, 3 * size) if rarely(draw, 4) else Arg("P"))
    attrs: dict[str, Attr | None] = {
        "direction": direction if direction != "forward" or rarely(draw, 2) else None,
        "hidden_size": size,
        "linear_before_reset": 1 if op == "GRU" and rarely(draw, 2) else None,
    }
    if rarely(draw, 4):
        first = pick(draw, ("Sigmoid", "Tanh", "Relu"))
        names = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": (first,)}[op]
        attrs["activations"] = names * many
    outputs = (dtype,) * (3 if op == "LSTM" else 2)
    return d.make_case(draw, op, args, outputs, attrs, opset=14, profile=kind)


CASES = tuple(
    row for op in GATES for row in d.rows(op, f"ONNX {op}-22", ("float32",), recurrent, op)
)  # fmt: skip
