"""Rows of activation functions."""

from __future__ import annotations

from hypothesis import strategies as st

from opgauge.reference_engine.types import Arg, Attr, Case

from .. import draws as d
from ..draws import Draw, Shape, pick, rarely
from .shapes import any_shape

BENT: tuple[d.Data, ...] = (
    ("normal", ()),
    ("normal", (3.0,)),
    ("large", (20.0,)),
    ("large", (90.0,)),
    ("wide", (-8, 1)),
    ("special", ()),
)
KINKED: tuple[d.Data, ...] = (("normal", ()), ("wide", ()), ("negative", ()), ("grid", (0.5, -8, 8)), ("special", ()))
Choices = tuple[float | str | None, ...]
# operator: data, attributes, lowest opset
ROWS: dict[str, tuple[tuple[d.Data, ...], dict[str, Choices], int]] = {
    "Elu": (BENT, {"alpha": (None, 0.5, 2.0, -1.5)}, 13),
    "Selu": (BENT, {"alpha": (None, 1.25), "gamma": (None, 0.75)}, 13),
    "Celu": (BENT, {"alpha": (None, 0.5, 2.0, 0.3)}, 13),
    "Gelu": (BENT, {"approximate": (None, "none", "tanh")}, 20),
    "Mish": (BENT, {}, 18),
    "Softplus": (BENT, {}, 13),
    "Softsign": (BENT, {}, 13),
    "Swish": (BENT, {"alpha": (None, 1.0, 1.702, -0.5)}, 24),
    "HardSwish": (KINKED, {}, 14),
    "HardSigmoid": (KINKED, {"alpha": (None, 0.5, 1.7), "beta": (None, 0.25, -0.3)}, 13),
    "LeakyRelu": (KINKED, {"alpha": (None, 0.5, 0.3, -2.0)}, 13),
    "ThresholdedRelu": (KINKED, {"alpha": (None, 0.5, -0.5, 2.0)}, 13),
    "Shrink": (KINKED, {"bias": (None, 0.5, -0.25), "lambd": (None, 0.5, 1.5)}, 13),
}


@st.composite
def activation(draw: Draw, op: str, dtype: str) -> Case:
    options, choices, opset = ROWS[op]
    data = pick(draw, options)
    attrs: dict[str, Attr | None] = {name: pick(draw, values) for name, values in choices.items()}
    shape = any_shape(draw)
    if rarely(draw, 60):
        shape = pick(draw, ((0,), (3, 0), (0, 2, 4)))
    name = "empty" if 0 in shape else "special" if data[0] == "special" else "plain"
    arg = d.filled("input" if op == "Shrink" else "X", dtype, shape, data)
    return d.make_case(draw, op, (arg,), (dtype,), attrs, opset, name)


@st.composite
def prelu(draw: Draw, dtype: str) -> Case:
    """PRelu: one slope, one per channel, one per element, of either sign."""
    shape = any_shape(draw, low_rank=1)
    slopes: tuple[Shape, ...] = ((1,), shape, shape[-1:])
    if len(shape) > 2:
        slopes = (*slopes, (shape[1], *(1,) * (len(shape) - 2)))
    data = pick(draw, (("normal", ()), ("special", ()), ("wide", (-3, 3))))
    args = (d.filled("X", dtype, shape, data), Arg("slope", dtype, pick(draw, slopes), "normal", const=rarely(draw, 2)))
    return d.make_case(draw, "PRelu", args, (dtype,), profile="special" if data[0] == "special" else "plain")


TYPES = ("float32", "float64", "float16")
ACTIVATIONS = (
    *(row for op, (_, _, opset) in ROWS.items() for row in d.rows(op, f"ONNX {op}-{opset}", TYPES, activation, op)),
    *d.rows("PRelu", "ONNX PRelu-9", TYPES, prelu),
)
