"""Rows of quantized movement: QLinearConcat and QLinearWhere."""

from __future__ import annotations

from hypothesis import strategies as st

from opgauge.reference_engine.types import Arg, Case

from .. import draws as d
from ..draws import Draw, Shape, between, operand, pick, rarely

KINDS = ("plain", "plain", "ties", "saturate", "same")


def _scale_near(draw: Draw, kind: str, y_scale: float) -> float:
    """An input scale whose data fill a good part of the output's range."""
    if kind == "ties":
        return y_scale * pick(draw, (0.5, 0.25, 1.0))
    if kind == "same" and rarely(draw, 2):
        return y_scale
    target = y_scale * pick(draw, (0.7, 0.31, 1.9, 1.1) if kind != "saturate" else (7.3, 13.0))
    # The quotient of scales decides what is a tie: here the input's scale is the one that gives way.
    return d.float32(1.0 / d.unambiguous(1.0 / y_scale, 1.0 / d.scale_near(draw, target)))


def _triple(
    draw: Draw, name: str, dtype: str, kind: str, shape: Shape, y: tuple[float, int], params: bool
) -> tuple[Arg, Arg, Arg]:
    scale = _scale_near(draw, kind, y[0])
    if kind == "ties":
        zero = y[1]
        x = Arg(name, dtype, shape, "near", (zero, 60))
    else:
        x_operand = operand(draw, dtype, "plain", shape)
        zero = y[1] if kind == "same" and rarely(draw, 2) else x_operand.zero_point
        x = x_operand.arg(name, shape)
    return x, d.scalar(f"{name}_scale", "float32", scale, params), d.scalar(f"{name}_zero_point", dtype, zero, params)


def _output(draw: Draw, dtype: str, kind: str) -> tuple[float, int]:
    scale = d.power_scale(draw) if kind == "ties" else d.scale(draw)
    low = 0 if dtype == "uint8" else -128
    zero_points = (128, 129, between(draw, 70, 180)) if kind == "ties" else (128, 129, between(draw, 60, 190), 90, 170)
    return scale, low + pick(draw, (0, 255, 100) if kind == "saturate" else zero_points)


@st.composite
def qlinear_concat(draw: Draw, dtype: str) -> Case:
    kind = pick(draw, KINDS)
    rank = pick(draw, (2, 1, 3, 4))
    axis = between(draw, 0, rank - 1)
    shape = [pick(draw, (3, 1, 2, 5, 9)) for _ in range(rank)]
    shape = list(d.larger(draw, tuple(shape), d.others(rank, axis), each=20))
    y, params = _output(draw, dtype, kind), rarely(draw, 2)
    args: list[Arg] = [d.scalar("Y_scale", "float32", y[0], params), d.scalar("Y_zero_point", dtype, y[1], params)]
    for i in range(pick(draw, (2, 1, 3, 4))):
        shape[axis] = pick(draw, (4, 1, 7, 16, 33))
        args += _triple(draw, f"x{i}", dtype, kind, tuple(shape), y, params)
    attrs = {"axis": axis - rank if rarely(draw, 3) else axis}
    return d.make_case(draw, "QLinearConcat", args, (dtype,), attrs, profile=kind, domain="com.microsoft")


@st.composite
def qlinear_where(draw: Draw, dtype: str) -> Case:
    kind = pick(draw, KINDS)
    full = d.larger(draw, d.shape_of(draw, pick(draw, (2, 1, 3, 4))))

    def part() -> Shape:
        return tuple(1 if rarely(draw, 6) else n for n in full)

    y, params = _output(draw, dtype, kind), rarely(draw, 2)
    args = (
        Arg("condition", "bool", part(), "bool"),
        *_triple(draw, "X", dtype, kind, part(), y, params),
        *_triple(draw, "Y", dtype, kind, part(), y, params),
        d.scalar("z_scale", "float32", y[0], params),
        d.scalar("z_zero_point", dtype, y[1], params),
    )
    return d.make_case(draw, "QLinearWhere", args, (dtype,), profile=kind, domain="com.microsoft")


CASES = (
    *d.rows(
        "QLinearConcat",
        "onnxruntime ContribOperators QLinearConcat-1",
        ("uint8", "int8"),
        qlinear_concat,
        domain="com.microsoft",
    ),
    *d.rows(
        "QLinearWhere",
        "onnxruntime ContribOperators QLinearWhere-1",
        ("uint8", "int8"),
        qlinear_where,
        domain="com.microsoft",
    ),
)
