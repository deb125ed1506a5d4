"""What is tried: whole ranges of bytes, tails of a vector, black levels above some pixels, decimal gains."""

from __future__ import annotations

from hypothesis import strategies as st

from opgauge.reference_engine.types import Case
from opgauge.suites import draws as d


@st.composite
def raw12(draw: d.Draw) -> Case:
    width = 3 * d.pick(draw, (1, 2, 3, 5, 8, 16, 21, 32, 33, 64, 85))
    shape = d.pick(draw, ((width,), (d.between(draw, 1, 6), width), (2, d.between(draw, 1, 3), width)))
    if d.rarely(draw, 40):
        shape = d.pick(draw, ((0,), (2, 0), (0, 3)))
    black = d.pick(draw, (256, 0, 64, 4095, d.between(draw, 0, 4095)))
    const = d.rarely(draw, 2)
    args = (
        d.filled("packed", "uint8", shape, ("uniform", ())),
        d.scalar("black", "uint16", black, const),
        d.scalar("gain", "float32", d.scale(draw), const),
    )
    profile = "empty" if 0 in shape else "plain"
    return d.make_case(draw, "DequantizeRaw12", args, ("float32",), profile=profile, domain="example")


CASES = d.rows("DequantizeRaw12", "MIPI CSI-2, RAW12", ("uint8,uint16,float32",), lambda *_: raw12(), domain="example")
