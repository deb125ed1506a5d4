"""Rows of arithmetic, selection and the functions of part A."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Case

from .. import draws as d
from ..draws import Draw, Shape, between, pick, rarely
from .shapes import EMPTY_PAIRS, any_shape, partner

BINARY_DATA = {
    "Add": ("normal", "integers", "wide", "cancel", "special", "nan"),
    "Sub": ("normal", "integers", "wide", "cancel", "special", "nan"),
    "Mul": ("normal", "integers", "wide", "special", "nan"),
    "Div": ("normal", "integers", "wide", "special", "nan"),
    "Max": ("normal", "integers", "negative", "nan", "nan", "special"),
    "Min": ("normal", "integers", "wide", "nan", "nan", "special"),
}


def binary_arg(
    draw: Draw, op: str, name: str, dtype: str, shape: Shape, data: str, special: bool, divisor: bool
) -> Arg:
    """One operand; only one of two holds special values, so that they meet ordinary numbers.

    An integer divisor is rarely 0 and never -1, which the smallest number cannot be divided by.
    """
    if dt.is_float(dtype):
        if data == "nan":
            return Arg(name, dtype, shape, "special", (1, 3)) if special else Arg(name, dtype, shape, "normal")
        if data == "infinite":
            return Arg(name, dtype, shape, "special", (126,))
        return Arg(name, dtype, shape, data)
    if divisor:
        if rarely(draw, 20):  # an element divided by 0 is undecided, but nothing may crash
            return Arg(name, dtype, shape, "near", (2, 2))
        most = dt.limits(dtype)[1] // 3
        return Arg(name, dtype, shape, "uniform", pick(draw, ((1, 9), (1, most), (-most, -2), (-9, -2))))
    return Arg(name, dtype, shape, "uniform")


@st.composite
def binary(draw: Draw, op: str, dtype: str) -> Case:
    data = pick(draw, BINARY_DATA[op]) if dt.is_float(dtype) else "uniform"
    if data in ("nan", "special") and op in ("Max", "Min") and dtype != "float32":
        data = "infinite"  # what becomes of a NaN is asked in float32, where every runtime takes a stand
    shapes: tuple[Shape, ...] = partner(draw, any_shape(draw))
    if rarely(draw, 50):
        data, shapes = "uniform", pick(draw, EMPTY_PAIRS)
    names: tuple[str, ...] = ("data_0", "data_1", "data_2") if op in ("Max", "Min") else ("A", "B")
    if len(names) == 3:
        count = pick(draw, (2, 2, 2, 2, 2, 2, 3, 3, 1))
        names, shapes = names[:count], (*shapes, shapes[1])[:count]
    special = between(draw, 0, 1)
    args = [
        binary_arg(draw, op, name, dtype, shape, data, i == special, divisor=op == "Div" and i == 1)
        for i, (name, shape) in enumerate(zip(names, shapes, strict=True))
    ]
    if len(args) == 2 and rarely(draw, 3):
        args[1] = replace(args[1], const=True)
    profile = "empty" if 0 in shapes[0] else "special" if data in ("nan", "special", "infinite") else "plain"
    return d.make_case(draw, op, args, (dtype,), profile=profile)


# (profile, parameters) for each function; the first is the plain one
UNARY_DATA: dict[str, tuple[d.Data, ...]] = {
    "Relu": (("normal", ()), ("special", ()), ("wide", ()), ("negative", ())),
    "Neg": (("normal", ()), ("special", ()), ("wide", ())),
    "Abs": (("normal", ()), ("special", ()), ("wide", ())),
    "Sigmoid": (
        ("normal", ()),
        ("normal", (4.0,)),
        ("large", (20.0,)),
        ("large", (100.0,)),
        ("special", ()),
        ("wide", (-8, 1)),
    ),
    "Tanh": (("normal", ()), ("normal", (3.0,)), ("large", (20.0,)), ("wide", (-8, 1)), ("special", ())),
    "Exp": (("normal", ()), ("large", (87.0,)), ("large", (105.0,)), ("wide", (-8, 1)), ("special", ())),
    "Log": (("positive", ()), ("scales", (-120, 120)), ("scales", (-1, 1)), ("special", ()), ("normal", ())),
    "Sqrt": (("positive", ()), ("scales", (-120, 120)), ("special", ()), ("normal", ())),
    "Erf": (("normal", ()), ("normal", (3.0,)), ("large", (6.0,)), ("wide", (-8, 1)), ("special", ())),
}


@st.composite
def unary(draw: Draw, op: str, dtype: str) -> Case:
    profile, params = pick(draw, UNARY_DATA[op]) if dt.is_float(dtype) else ("uniform", ())
    shape = any_shape(draw)
    if rarely(draw, 60):
        shape = pick(draw, ((0,), (3, 0), (0, 2, 4)))
    arg = Arg("X", dtype, shape, profile, params)
    name = "empty" if 0 in shape else "special" if profile == "special" else "plain"
    return d.make_case(draw, op, (arg,), (dtype,), opset=14 if op == "Relu" and dtype == "int32" else 13, profile=name)


@st.composite
def clip(draw: Draw, dtype: str) -> Case:
    """Clip; low > high is left out: ONNX decides it only from opset 13 on and by an order of Max and Min."""
    low, high = (-0.75, 0.5) if dt.is_float(dtype) else (3, 77) if dtype.startswith("u") else (-50, 33)
    low, high = pick(draw, ((low, high), (low, low), (0, high)))
    special = dt.is_float(dtype) and rarely(draw, 5)
    const = rarely(draw, 2)
    bounds = pick(draw, ("both", "min", "max", "none"))
    args = (
        Arg("input", dtype, any_shape(draw), "special" if special else "normal" if dt.is_float(dtype) else "uniform"),
        d.scalar("min", dtype, low, const) if bounds in ("both", "min") else Arg("min"),
        d.scalar("max", dtype, high, const) if bounds in ("both", "max") else Arg("max"),
    )
    return d.make_case(draw, "Clip", args, (dtype,), profile="special" if special else "plain")


@st.composite
def where(draw: Draw, dtype: str) -> Case:
    shape = any_shape(draw, low_rank=1)
    x_shape, y_shape = partner(draw, shape)
    condition = x_shape if rarely(draw, 2) else pick(draw, ((), y_shape, y_shape[-1:]))
    profile = "bool" if dtype == "bool" else "special" if dtype == "float32" and rarely(draw, 4) else "uniform"
    args = (
        Arg("condition", "bool", condition, "bool"),
        Arg("X", dtype, x_shape, profile),
        Arg("Y", dtype, y_shape, "bool" if dtype == "bool" else "uniform"),
    )
    return d.make_case(draw, "Where", args, (dtype,), opset=16 if dtype == "bfloat16" else 13)


BINARY_TYPES = {
    "Add": ("float32", "float64", "int32", "int64"),
    "Sub": ("float32", "float64", "int32", "int64"),
    "Mul": ("float32", "float64", "int32", "int64"),
    "Div": ("float32", "float64", "int32", "int64"),
    "Max": ("float32", "float64", "int32", "int64"),
    "Min": ("float32", "float64", "int32", "int64"),
}
UNARY_TYPES = {
    "Relu": ("float32", "float64", "int32"),
    "Neg": ("float32", "float64", "int8", "int32", "int64"),
    "Abs": ("float32", "float64", "int8", "int32", "int64"),
    "Sigmoid": ("float32",),
    "Tanh": ("float32",),
    "Exp": ("float32", "float64"),
    "Log": ("float32", "float64"),
    "Sqrt": ("float32", "float64"),
    "Erf": ("float32",),
}
ARITHMETIC = (
    *(row for op, types in BINARY_TYPES.items() for row in d.rows(op, f"ONNX {op}-13", types, binary, op)),
    *(row for op, types in UNARY_TYPES.items() for row in d.rows(op, f"ONNX {op}-13", types, unary, op)),
    *d.rows("Clip", "ONNX Clip-13", ("float32", "int8", "uint8", "int64"), clip),
    *d.rows("Where", "ONNX Where-9", ("float32", "int8", "uint8", "int64", "bool"), where),
)
