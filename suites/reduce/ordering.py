"""Rows of places and orders: ArgMax, ArgMin, TopK, and running sums and products."""

from __future__ import annotations

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case, CaseSpec

from .. import draws as d
from ..draws import Data, Draw, Shape, between, pick, rarely
from .reductions import REDUCED

# Few values, so that extremes repeat: which of them wins is specified.
TIED: dict[str, tuple[Data, ...]] = {
    "float": (("normal", ()), ("integers", (3,)), ("integers", (8,)), ("special", (124, 8)), ("negative", ())),
    "signed": (("uniform", (-3, 3)), ("uniform", ()), ("extremes", ())),
    "unsigned": (("uniform", (0, 5)), ("uniform", ()), ("extremes", ())),
}
RUNNING: dict[str, tuple[Data, ...]] = {
    "CumSum": (("normal", ()), ("integers", (8,)), ("positive", ()), ("wide", (-6, 6)), ("cancel", (1000,))),
    "CumProd": (("uniform", (0.6, 1.6)), ("uniform", (-1.7, -0.55)), ("pow2", (-1, 1))),
}


def one_axis(draw: Draw, long: int = 0) -> tuple[Shape, int]:
    """(shape, axis as written) with some hundreds of elements beside the axis."""
    rank = pick(draw, (2, 3, 4, 1))
    axis = between(draw, 0, rank - 1)
    shape = [1] * rank
    shape[axis] = room = long or pick(draw, (5, *REDUCED, 1))
    for other in range(rank):
        if other != axis:
            shape[other] = min(pick(draw, (9, 3, 16, 33, 1)), max(6000 // room, 1))
            room *= shape[other]
    whole = d.larger(draw, tuple(shape), d.others(rank, axis))
    return whole, axis - rank if rarely(draw, 3) else axis


def tied(draw: Draw, dtype: str) -> Data:
    kind = "float" if dt.is_float(dtype) else "unsigned" if dtype[0] == "u" else "signed"
    return pick(draw, TIED[kind])


def profile_of(data: Data) -> str:
    return "plain" if data[0] in ("normal", "uniform") else data[0]


@st.composite
def place(draw: Draw, op: str, dtype: str) -> Case:
    """Every axis, first and last of equal extremes, signed zeros and infinities."""
    shape, axis = one_axis(draw)
    data = tied(draw, dtype)
    attrs: dict[str, Attr | None] = {
        "axis": axis if axis or rarely(draw, 2) else None,
        "keepdims": pick(draw, (None, 0, 1)),
        "select_last_index": pick(draw, (None, 1, 0)),
    }
    return d.make_case(draw, op, (d.filled("data", dtype, shape, data),), ("int64",), attrs, profile=profile_of(data))


@st.composite
def top_k(draw: Draw, dtype: str) -> Case:
    """K from 1 to the whole axis, largest and smallest, equal elements; unsorted only where one element is taken."""
    shape, axis = one_axis(draw)
    data = tied(draw, dtype)
    length = shape[axis]
    count = pick(draw, (1, min(3, length), max(length // 2, 1), max(length - 1, 1), length))
    count = 0 if rarely(draw, 60) else count
    attrs: dict[str, Attr | None] = {
        "axis": axis if axis != -1 or rarely(draw, 2) else None,
        "largest": pick(draw, (None, 0, 1)),
        "sorted": 0 if count == 1 and rarely(draw, 3) else pick(draw, (None, 1)),
    }
    args = (d.filled("X", dtype, shape, data), d.vector("K", "int64", (count,), const=not rarely(draw, 4)))
    return d.make_case(draw, "TopK", args, (dtype, "int64"), attrs, 13, profile_of(data))


@st.composite
def running(draw: Draw, op: str, dtype: str) -> Case:
    """Forwards and backwards, with and without the element itself, along every axis."""
    product = op == "CumProd"
    short = pick(draw, (5, 1, 2, 3, 8, 12)) if product and not dt.is_float(dtype) else 0
    shape, axis = one_axis(draw, short)
    data: Data = pick(draw, RUNNING[op])
    if not dt.is_float(dtype):
        unsigned = dtype[0] == "u"
        limit = 1 << (17 if "32" in dtype else 40)
        data = ("uniform", (1, 3)) if product else ("uniform", (0 if unsigned else -limit, limit))
    attrs: dict[str, Attr | None] = {"exclusive": pick(draw, (None, 1, 0)), "reverse": pick(draw, (None, 1, 0))}
    where = pick(draw, ("int64", "int32"))
    args = (d.filled("x", dtype, shape, data), Arg("axis", where, (), values=(axis,), const=not rarely(draw, 4)))
    opset = 26 if product else 14
    return d.make_case(draw, op, args, (dtype,), attrs, opset, profile_of(data))


PLACED = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64")
CASES: tuple[CaseSpec, ...] = (
    *(row for op in ("ArgMax", "ArgMin") for row in d.rows(op, f"ONNX {op}-13", PLACED, place, op)),
    *d.rows("TopK", "ONNX TopK-11", ("float32", "float64", "float16", "int32", "int64"), top_k),
    *d.rows("CumSum", "ONNX CumSum-14", ("float32", "float64", "int32", "int64"), running, "CumSum"),
    *d.rows("CumProd", "ONNX CumProd-26", ("float32", "int64"), running, "CumProd"),
)
