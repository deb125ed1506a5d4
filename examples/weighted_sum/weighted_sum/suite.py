"""What is tried: plain, cancelling and special data, shapes that broadcast, weights of both kinds."""

from __future__ import annotations

from hypothesis import strategies as st

from opgauge.reference_engine.types import Arg, Case
from opgauge.suites import draws as d
from opgauge.suites.pointwise.shapes import EMPTY_PAIRS, any_shape, partner


@st.composite
def weighted_sum(draw: d.Draw, dtype: str) -> Case:
    shapes = d.pick(draw, EMPTY_PAIRS) if d.rarely(draw, 40) else partner(draw, any_shape(draw))
    first, second = d.pick(
        draw,
        (
            (("normal", ()), ("normal", ())),
            (("integers", (100,)), ("integers", (7,))),  # exact in any order: every bit is decided
            (("wide", (-3, 3)), ("wide", (-3, 3))),
            (("cancel", ()), ("cancel", ())),
            (("special", ()), ("normal", ())),
        ),
    )
    literal = d.pick(draw, ((0.5, 0.5), (1, -1), (0.299, 0.587), (2, 0), (-0.25, 3)))
    weights = Arg("weights", dtype, (2,), values=tuple(map(d.float32, literal)), const=d.rarely(draw, 2))
    args = (d.filled("x1", dtype, shapes[0], first), d.filled("x2", dtype, shapes[1], second), weights)
    name = "empty" if 0 in shapes[0] else "special" if first[0] == "special" else "plain"
    return d.make_case(draw, "WeightedSum", args, (dtype,), profile=name, domain="example")


CASES = d.rows("WeightedSum", "this package's README", ("float32",), weighted_sum, domain="example")
