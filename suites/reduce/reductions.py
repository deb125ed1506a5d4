"""Rows of reductions over some axes and of the softmax family on one."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case, CaseSpec

from .. import draws as d
from ..draws import Data, Draw, Shape, between, pick, rarely

REDUCED = (2, 3, 5, 7, 8, 15, 16, 17, 21, 31, 33, 63, 65, 127, 257)
LONG = 2051  # where sums go by blocks, and no sum of integers or of float16 leaves its type for sure
NORMAL: Data = ("normal", ())
INTEGERS: Data = ("integers", (8,))
SUMS: tuple[Data, ...] = (NORMAL, INTEGERS, ("positive", ()), ("wide", (-6, 6)), ("cancel", (1000,)), NORMAL)
# float16 ends at 65504.
HALF_SUMS: tuple[Data, ...] = (NORMAL, INTEGERS, ("positive", ()), ("wide", (-3, 2)), ("cancel", (100,)), NORMAL)
HALF_SQUARES: tuple[Data, ...] = (NORMAL, INTEGERS, ("positive", ()), ("wide", (-2, 0)), NORMAL)
EXTREMES: tuple[Data, ...] = (NORMAL, INTEGERS, ("negative", ()), ("wide", (-4, 4)))
# Factors near 1, so that no partial product leaves the range; powers of two are exact.
FACTORS: tuple[Data, ...] = (("uniform", (0.6, 1.6)), ("uniform", (-1.7, -0.55)), ("pow2", (-1, 1)), ("integers", (2,)))
LOGS: tuple[Data, ...] = (("positive", ()), ("uniform", (0.01, 5.0)), ("scales", (-8, 8)), ("uniform", (0.001, 0.02)))
EXPONENTS: tuple[Data, ...] = (
    NORMAL,
    ("normal", (4.0,)),
    ("large", (100.0,)),
    ("normal", (2.0, -150.0)),
    ("normal", (2.0, 95.0)),
    ("special", (116, 40)),
)
FLOAT_DATA: dict[str, tuple[Data, ...]] = {
    **dict.fromkeys(("ReduceMax", "ReduceMin"), EXTREMES),
    "ReduceProd": FACTORS,
    "ReduceLogSum": LOGS,
    "ReduceLogSumExp": EXPONENTS,
}
# The first opset with axes as an input.
AXES_INPUT = {"ReduceSum": 13}
LIMITS = {"int32": 17, "uint32": 17, "int64": 40, "uint64": 40}


def reducible(
    draw: Draw, sizes: tuple[int, ...] = REDUCED, single: bool = False
) -> tuple[Shape, tuple[int, ...] | None]:
    """(shape, axes as written); None reduces everything. A product takes a single axis."""
    rank = pick(draw, (2, 3, 4, 1))
    count = pick(draw, (1, 1, 2)) if rank > 1 and not single else 1
    first = between(draw, 0, rank - 1)
    axes = sorted({first, (first + between(draw, 1, rank)) % rank}) if count == 2 else [first]
    shape = [0] * rank
    shape[axes[0]] = room = pick(draw, sizes)
    for axis in range(rank):
        if axis != axes[0]:
            # A few thousand elements at most, many of them results where there is room.
            shape[axis] = min(pick(draw, (33, 16, 65, 9, 3, 1)), max(8000 // room, 1))
            room *= shape[axis]
    if rarely(draw, 6) and (not single or rank == 1):
        return tuple(shape), None
    whole = d.larger(draw, tuple(shape), d.others(rank, *axes))
    return whole, tuple(a - rank if rarely(draw, 3) else a for a in axes)


def reduction_data(draw: Draw, op: str, dtype: str) -> Data:
    """What an operator reduces without leaving its type: ONNX does not say what an integer sum beyond it becomes."""
    if dtype == "bool":
        return "uniform", ()
    if not dt.is_float(dtype):
        if op in ("ReduceMax", "ReduceMin"):
            return "uniform", ()
        if op == "ReduceProd":
            return "uniform", pick(draw, ((1, 3), (1, 2)) if dtype[0] == "u" else ((-3, 3), (1, 2), (-2, -1)))
        limit = 1 << (LIMITS[dtype] if op in ("ReduceSum", "ReduceL1", "ReduceMean") else 7)
        return "uniform", (0 if dtype[0] == "u" else -limit, limit)
    if dtype == "float16" and op not in FLOAT_DATA:
        return pick(draw, HALF_SUMS if op in ("ReduceSum", "ReduceMean", "ReduceL1") else HALF_SQUARES)
    return pick(draw, FLOAT_DATA.get(op, SUMS))


def attach_axes(
    draw: Draw, args: list[Arg], attrs: dict[str, Attr | None], axes: tuple[int, ...] | None, by_input: bool
) -> None:
    """Axes by attribute or input as the opset has it, or left out."""
    if axes is None and by_input and rarely(draw, 3):
        attrs["noop_with_empty_axes"] = 1
    if axes is None and by_input and rarely(draw, 2):
        args.append(Arg("axes", "int64", (0,), values=(), const=True))
    elif axes is not None and by_input:
        args.append(d.vector("axes", "int64", axes, const=not rarely(draw, 5)))
    elif axes is not None:
        attrs["axes"] = axes


@st.composite
def reduction(draw: Draw, op: str, dtype: str) -> Case:
    """Axes by attribute or input, negative, all, none, empty; with and without keepdims."""
    product = op == "ReduceProd"
    sizes = (*REDUCED, LONG) if dtype in ("float32", "float64") and not product else REDUCED
    shape, axes = reducible(draw, REDUCED[:6] if product and not dt.is_float(dtype) else sizes, product)
    data, params = reduction_data(draw, op, dtype)
    first = AXES_INPUT.get(op, 18)
    opset = 20 if dtype == "bool" else first if op in AXES_INPUT else pick(draw, (13, 13, 18))
    if rarely(draw, 40) and op != "ReduceMean" and axes is not None:
        # What a reduction of nothing gives is said from opset 18 and 20 on.
        shape, opset = tuple(0 if i == axes[0] % len(shape) else n for i, n in enumerate(shape)), 20
    attrs: dict[str, Attr | None] = {"keepdims": pick(draw, (1, 0, None))}
    args = [Arg("data", dtype, shape, data, params)]
    attach_axes(draw, args, attrs, axes, opset >= first)
    profile = "plain" if data in ("normal", "uniform") else data
    return d.make_case(draw, op, args, (dtype,), attrs, opset, profile)


@st.composite
def softmax(draw: Draw, op: str, dtype: str) -> Case:
    """Every axis, negative or not, with other dimensions behind it; large, masked and infinite logits."""
    rank = pick(draw, (2, 3, 3, 4, 1))
    axis = between(draw, 0, rank - 1)
    shape = [1] * rank
    shape[axis] = room = pick(draw, (5, 1, 2, 3, 8, 16, 17, 31, 33, 65, 100, 257, 1025))
    for other in range(rank):
        if other != axis:
            shape[other] = min(pick(draw, (3, 2, 4, 5, 8, 16)), max(3000 // room, 1))
            room *= shape[other]
    if math.prod(shape) < 100 and rank > 1:
        shape[(axis + 1) % rank] *= 7
    whole = d.larger(draw, tuple(shape), d.others(rank, axis))
    options: tuple[tuple[str, Data], ...] = (
        ("plain", NORMAL),
        ("plain", ("normal", (4.0,))),
        ("large", ("large", (1000.0,))),
        ("large", ("large", (100.0,))),
        # A whole row this far down underflows without the subtraction of its maximum.
        ("large", ("normal", (2.0, -150.0))),
        ("special", ("lanes", (axis, 2.0))),
        ("special", ("special", (127, 40))),
    )
    if op == "Hardmax":
        options = (
            ("plain", NORMAL),
            ("integers", ("integers", (3,))),
            ("integers", INTEGERS),
            ("special", ("special", (126, 20))),
        )
    kind, data = pick(draw, options)
    written = axis - rank if rarely(draw, 2) else axis
    attrs: dict[str, Attr | None] = {"axis": written if written != -1 or rarely(draw, 2) else None}
    return d.make_case(draw, op, (d.filled("input", dtype, whole, data),), (dtype,), attrs, profile=kind)


WHOLE = ("int32", "int64")
REDUCTIONS = {
    "ReduceSum": ("float32", "float64", "float16", *WHOLE),
    "ReduceMean": ("float32", "float64", "float16"),
    "ReduceMax": ("float32", "float64", "float16", "int8", "uint8", *WHOLE, "bool"),
    "ReduceMin": ("float32", "float64", "float16", "int8", "uint8", *WHOLE, "bool"),
    "ReduceProd": ("float32", *WHOLE),
    "ReduceL1": ("float32", "int32"),
    "ReduceL2": ("float32", "int32"),
    "ReduceSumSquare": ("float32", "float64", "int32"),
    "ReduceLogSum": ("float32",),
    "ReduceLogSumExp": ("float32", "float64"),
}
CASES: tuple[CaseSpec, ...] = (
    *(row for op, types in REDUCTIONS.items() for row in d.rows(op, f"ONNX {op}-13 and -18", types, reduction, op)),
    *d.rows("Softmax", "ONNX Softmax-13", ("float32", "float64", "float16"), softmax, "Softmax"),
    *d.rows("LogSoftmax", "ONNX LogSoftmax-13", ("float32", "float64", "float16"), softmax, "LogSoftmax"),
    *d.rows("Hardmax", "ONNX Hardmax-13", ("float32",), softmax, "Hardmax"),
)
