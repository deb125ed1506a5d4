"""Rows of operators that make elements from shapes and from inputs that decide a shape."""

from __future__ import annotations

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case

from .. import draws as d
from ..draws import Draw, between, pick, rarely
from .layout import large_shape, parameter, source


@st.composite
def shape_of(draw: Draw, dtype: str) -> Case:
    """Every rank; bounds from both ends, crossed and beyond."""
    shape = large_shape(draw, 0, 5)
    if rarely(draw, 8) and shape:
        shape = (0, *shape[1:])
    attrs: dict[str, Attr | None] = {}
    opset = 13
    if rarely(draw, 2):
        opset = 15
        attrs = {"start": between(draw, -6, 6), "end": between(draw, -6, 6) if rarely(draw, 2) else None}
    return d.make_case(draw, "Shape", (source(dtype, "data", shape),), ("int64",), attrs, opset)


@st.composite
def size_of(draw: Draw, dtype: str) -> Case:
    shape = large_shape(draw, 0, 5)
    if rarely(draw, 8) and shape:
        shape = (*shape[:-1], 0)
    return d.make_case(draw, "Size", (source(dtype, "data", shape),), ("int64",))


@st.composite
def constant_of_shape(draw: Draw, dtype: str) -> Case:
    shape = large_shape(draw, 0, 4)
    empty = rarely(draw, 10) and len(shape) > 0
    written = (0, *shape[1:]) if empty else shape
    value = pick(draw, (1, 0, 3 if dtype != "bool" else 1))
    attrs: dict[str, Attr | Arg | None] = {"value": Arg("value", dtype, (1,), values=(value,))}
    if dtype == "float32" and rarely(draw, 3):
        attrs = {}
    args = (parameter(draw, "input", written),)
    return d.make_case(draw, "ConstantOfShape", args, (dtype,), attrs, profile="empty" if empty else "plain")


@st.composite
def eye_like(draw: Draw, dtype: str, other: str) -> Case:
    """High and wide matrices, diagonals inside and beyond the corners, an element type of its own."""
    shape = d.larger(draw, (pick(draw, (4, 1, 7, 3)), pick(draw, (5, 1, 4, 9))))
    stated = dtype != other or rarely(draw, 2)
    attrs: dict[str, Attr | None] = {
        "dtype": dt.ONNX[other] if stated else None,
        "k": between(draw, -shape[0] - 1, shape[1] + 1) if not rarely(draw, 3) else None,
    }
    return d.make_case(draw, "EyeLike", (source(dtype, "input", shape),), (other,), attrs)


@st.composite
def range_of(draw: Draw, dtype: str) -> Case:
    """Both directions, no element at all, bounds that are hit exactly and in between.

    The number of elements must not depend on how a quotient is rounded: (limit - start) / delta is a whole number
    of binary fractions, or far from whole.
    """
    count = pick(draw, (7, 1, 16, 33, 100, 0))
    count = d.larger(draw, (count,))[0] if dtype != "int16" else count
    step: float = pick(draw, (1, 3, -2, 7, -1))
    first: float = between(draw, -20, 20)
    if not dt.is_float(dtype):
        short = between(draw, 0, abs(int(step)) - 1) if count else 0
        last: float = first + step * count - (short if step > 0 else -short)
    elif rarely(draw, 2):
        step, first = step * 0.25, first * 0.5
        last = first + step * count
    else:
        step = d.float32(step * pick(draw, (0.1, 0.3, 0.7)))
        first = d.float32(first * 0.1)
        last = d.float32(first + step * (count - 0.5)) if count else d.float32(first - step * 0.5)
    if not count and not dt.is_float(dtype):
        last = first - step * between(draw, 0, 2)
    const = not rarely(draw, 3)
    args = [d.scalar(name, dtype, v, const) for name, v in (("start", first), ("limit", last), ("delta", step))]
    return d.make_case(draw, "Range", args, (dtype,), profile="plain" if count else "empty")


ROWS = (
    ("Shape", 15, shape_of, ("float32", "int8", "bool")),
    ("Size", 13, size_of, ("float32", "int64", "bool")),
    ("ConstantOfShape", 9, constant_of_shape, ("float32", "int64", "uint8", "bool", "float16")),
    ("EyeLike", 9, eye_like, ("float32,float32", "int64,int64", "float32,int64", "int32,float64")),
    ("Range", 11, range_of, ("float32", "float64", "int64", "int32", "int16")),
)
GENERATED = tuple(row for op, since, f, labels in ROWS for row in d.rows(op, f"ONNX {op}-{since}", labels, f))
