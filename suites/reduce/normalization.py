"""Rows of normalisation: small and long rows, variances near epsilon, means far from zero."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from opgauge.reference_engine.types import Arg, Attr, Case, CaseSpec

from .. import draws as d
from ..draws import Data, Draw, Shape, between, pick, rarely

# Class of the case -> data. A variance near epsilon shows an epsilon that is left out or put inside the root
# twice; a mean far from zero shows a variance computed as a difference.
NORMALIZED: tuple[tuple[str, Data], ...] = (
    ("plain", ("normal", ())),
    ("plain", ("normal", (3.0, 0.5))),
    ("tiny", ("normal", (0.003,))),
    ("shifted", ("normal", (1.0, 1000.0))),
    ("shifted", ("normal", (1.0, -30.0))),
    ("positive", ("positive", ())),
    ("integers", ("integers", (8,))),
    ("wide", ("wide", (-3, 3))),
)
HALF = (*NORMALIZED[:3], *NORMALIZED[5:7])
EPSILONS = (None, 1e-5, 1e-12, 1e-3, 0.1)


# A far mean makes a variance that the standard writes as a difference a matter of luck.
NEAR = tuple(row for row in NORMALIZED if row[1] != ("normal", (1.0, 1000.0)))


def data_of(draw: Draw, dtype: str, rows: tuple[tuple[str, Data], ...] = NORMALIZED) -> tuple[str, Data]:
    if rarely(draw, 15):
        return "special", ("special", (37 if dtype == "float16" else 39, 60))
    return pick(draw, HALF if dtype in ("float16", "bfloat16") else rows)


def epsilon(draw: Draw) -> float | None:
    return pick(draw, EPSILONS)


def last_rows(draw: Draw, several: bool) -> tuple[Shape, int]:
    """(shape, first normalised axis): rows of 1 to 768 elements, over the last axis or over several."""
    rank = pick(draw, (2, 3, 3, 4))
    axis = between(draw, 0, rank - 2) if several else rank - 1
    shape = [1] * rank
    shape[-1] = pick(draw, (5, 16, 8, 33, 64, 3, 2, 100, 768, 1))
    room = shape[-1]
    for other in reversed(range(rank - 1)):
        shape[other] = min(pick(draw, (3, 7, 16, 2)), max(4000 // room, 1))
        room *= shape[other]
    return d.larger(draw, tuple(shape), range(axis)), axis


def beside(draw: Draw, shape: Shape, axis: int) -> Shape:
    """A scale over the normalised axes, with ones in front or one element only now and then."""
    form = pick(draw, ("exact", "exact", "exact", "one", "padded"))
    if form == "one":
        return (1,)
    return (*(1,) * axis, *shape[axis:]) if form == "padded" else shape[axis:]


def vector(draw: Draw, name: str, dtype: str, shape: Shape, const: bool) -> Arg:
    return d.filled(name, dtype, shape, pick(draw, (("normal", ()), ("normal", (0.2, 1.0)))), const)


@st.composite
def layer(draw: Draw, op: str, dtype: str, form: str = "") -> Case:
    """LayerNormalization and RMSNormalization; `axes` over several axes, `saved` with the mean and its companion."""
    shape, axis = last_rows(draw, form == "axes" or (form == "saved" and rarely(draw, 3)))
    kind, data = data_of(draw, dtype)
    const = not rarely(draw, 3)
    layered = op == "LayerNormalization"
    args = [
        d.filled("X", dtype, shape, data),
        vector(draw, "Scale" if layered else "scale", dtype, beside(draw, shape, axis), const),
    ]
    written = axis - len(shape) if rarely(draw, 2) else axis
    attrs: dict[str, Attr | None] = {
        "axis": written if written != -1 or rarely(draw, 2) else None,
        "epsilon": epsilon(draw),
    }
    outputs: tuple[str, ...] = (dtype,)
    if layered:
        if not rarely(draw, 4):
            args.append(vector(draw, "B", dtype, beside(draw, shape, axis), const))
        attrs["stash_type"] = 11 if dtype == "float64" else None
        outputs = (dtype, *("float32",) * (pick(draw, (2, 1)) if form == "saved" else 0))
    return d.make_case(draw, op, args, outputs, attrs, 17 if layered else 23, kind)


def image(draw: Draw) -> Shape:
    """[N,C,*S] with 1 to 3 spatial axes."""
    rank = pick(draw, (2, 1, 3))
    spatial = tuple(pick(draw, (5, 7, 3, 8, 2, 1, 16) if rank < 3 else (2, 3, 4)) for _ in range(rank))
    channels = min(pick(draw, (4, 6, 8, 12, 3, 1, 32)), max(4000 // math.prod(spatial), 1))
    return d.larger(draw, (between(draw, 1, 3), channels, *spatial), (0, -1))


@st.composite
def per_channel(draw: Draw, op: str, dtype: str) -> Case:
    """InstanceNormalization and GroupNormalization, whose form of opset 18 ONNX has withdrawn."""
    shape = image(draw)
    kind, data = data_of(draw, dtype, NEAR if op == "GroupNormalization" else NORMALIZED)
    attrs: dict[str, Attr | None] = {"epsilon": epsilon(draw)}
    opset, names = 22 if dtype == "bfloat16" else 13, ("input", "scale", "B")
    if op == "GroupNormalization":
        opset, names = 21, ("X", "scale", "bias")
        # The variance of one element is a difference of equals, and undecided.
        size = math.prod(shape[1:])
        attrs["num_groups"] = pick(draw, [g for g in range(1, shape[1] + 1) if shape[1] % g == 0 and size > g] or [1])
    const = not rarely(draw, 3)
    args = (d.filled(names[0], dtype, shape, data), *(vector(draw, n, dtype, shape[1:2], const) for n in names[1:]))
    return d.make_case(draw, op, args, (dtype,), attrs, opset, kind)


@st.composite
def batch(draw: Draw, dtype: str) -> Case:
    shape = image(draw) if not rarely(draw, 6) else (between(draw, 1, 9), pick(draw, (5, 33, 64)))
    kind, data = data_of(draw, dtype)
    count = (shape[1],)
    const = not rarely(draw, 4)
    args = (
        d.filled("X", dtype, shape, data),
        vector(draw, "scale", dtype, count, const),
        vector(draw, "B", dtype, count, const),
        d.filled("input_mean", dtype, count, data if kind == "shifted" else ("normal", ()), const),
        d.filled(
            "input_var", dtype, count, pick(draw, (("positive", ()), ("scales", (-17, 3)), ("pow2", (-2, 2)))), const
        ),
    )
    return d.make_case(draw, "BatchNormalization", args, (dtype,), {"epsilon": epsilon(draw)}, 15, kind)


@st.composite
def mean_variance(draw: Draw, dtype: str) -> Case:
    """0, 2, 3 for images, one axis or several otherwise; always written, since ONNX's own body has no default."""
    rank = pick(draw, (4, 2, 3))
    shape = tuple(pick(draw, (3, 5, 7, 8, 2)) for _ in range(rank))
    axes = (0, 2, 3) if rank == 4 and rarely(draw, 2) else tuple(sorted({between(draw, 0, rank - 1), rank - 1}))
    kind, data = pick(draw, NEAR)
    shape = d.larger(draw, shape, d.others(rank, *axes))
    return d.make_case(
        draw, "MeanVarianceNormalization", (d.filled("X", dtype, shape, data),), (dtype,), {"axes": axes}, 13, kind
    )


@st.composite
def lp(draw: Draw, dtype: str) -> Case:
    """Both norms on every axis; rows of zeros where the standard says what they become (22)."""
    rank = pick(draw, (2, 3, 1))
    axis = between(draw, 0, rank - 1)
    shape = [pick(draw, (3, 16, 2, 9)) for _ in range(rank)]
    shape[axis] = pick(draw, (5, 3, 1, 16, 33, 100))
    whole = d.larger(draw, tuple(shape), d.others(rank, axis))
    kind, data = data_of(draw, dtype)
    opset = 13
    if rarely(draw, 8):
        kind, data, opset = "zeros", ("fill", (0,)), 22
    written = axis - rank if rarely(draw, 2) else axis
    attrs: dict[str, Attr | None] = {
        "axis": written if written != -1 or rarely(draw, 2) else None,
        "p": pick(draw, (None, 1, 2)),
    }
    return d.make_case(draw, "LpNormalization", (d.filled("input", dtype, whole, data),), (dtype,), attrs, opset, kind)


@st.composite
def local_response(draw: Draw, dtype: str) -> Case:
    """Odd and even windows, wider than the channels too."""
    shape = image(draw)[:4]
    shape = shape if len(shape) == 4 else (*shape, *(1,) * (4 - len(shape)))
    kind, data = data_of(draw, dtype)
    attrs: dict[str, Attr | None] = {
        "size": pick(draw, (3, 5, 1, 7, 3, 5, 3, pick(draw, (2, 4)))),
        "alpha": pick(draw, (None, 0.5, 1.0, 0.001)),
        "beta": pick(draw, (None, 0.5, 1.0, 0.3)),
        "bias": pick(draw, (None, 2.0, 0.5)),
    }
    return d.make_case(draw, "LRN", (d.filled("X", dtype, shape, data),), (dtype,), attrs, 13, kind)


# The saved statistics cannot be float64.
LAYERS = ("float32", "float32,axes", "float32,saved", "float64", "float16", "float16,saved", "bfloat16")
CASES: tuple[CaseSpec, ...] = (
    *d.rows("LayerNormalization", "ONNX LayerNormalization-17", LAYERS, layer, "LayerNormalization"),
    *d.rows(
        "RMSNormalization",
        "ONNX RMSNormalization-23",
        ("float32", "float32,axes", "float16"),
        layer,
        "RMSNormalization",
    ),
    *d.rows("GroupNormalization", "ONNX GroupNormalization-21", ("float32",), per_channel, "GroupNormalization"),
    *d.rows(
        "InstanceNormalization", "ONNX InstanceNormalization-6", ("float32",), per_channel, "InstanceNormalization"
    ),
    *d.rows("BatchNormalization", "ONNX BatchNormalization-15", ("float32", "float64", "float16"), batch),
    *d.rows("MeanVarianceNormalization", "ONNX MeanVarianceNormalization-13", ("float32",), mean_variance),
    *d.rows("LpNormalization", "ONNX LpNormalization-1 and -22", ("float32", "float64"), lp),
    *d.rows("LRN", "ONNX LRN-13", ("float32",), local_response),
)
