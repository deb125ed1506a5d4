"""Rows of Resize: scales that are powers of two, so that every float32 order is exact, and scales that are not."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from opgauge.reference_engine.types import Arg, Attr, Case, CaseSpec

from .. import draws as d
from ..draws import Draw, Shape, pick, rarely
from .layout import signed

MODES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resized(length: int, scale: float) -> int:
    return math.floor(np.float32(length) * np.float32(scale))


def fitting_scale(draw: Draw, length: int) -> float:
    """Up or down; the resulting length must not depend on how the product is rounded."""
    if rarely(draw, 2):
        return pick(draw, (2.0, 4.0, 0.5)) if length > 1 else pick(draw, (2.0, 4.0))
    for scale in (pick(draw, (1.3, 0.6, 2.5, 0.45, 1.7, 3.2)), 1.7):
        product = length * d.float32(scale)
        if product >= 1 and abs(product - round(product)) > 1e-3:
            return scale
    return 2.0


def axes_of(draw: Draw, mode: str) -> tuple[Shape, tuple[int, ...]]:
    """(shape, axes that are resized): one to three spatial axes behind batch and channels."""
    spatial = pick(draw, (2, 2, 1, 3)) if mode != "cubic" else 2
    sides = tuple(pick(draw, (4, 3, 5, 7, 2) if spatial < 3 else (3, 2, 4)) for _ in range(spatial))
    shape = d.larger(draw, (pick(draw, (1, 2)), pick(draw, (3, 1, 2)), *sides), (0, 1), each=8)
    return shape, tuple(range(2, len(shape)))


def data(draw: Draw, dtype: str, shape: Shape) -> Arg:
    """Whole numbers make exact sums; a slope makes neighbours differ by more than they are."""
    if dtype in ("uint8", "int8"):
        return Arg("X", dtype, shape, "uniform")
    return d.filled("X", dtype, shape, pick(draw, (("normal", ()), ("integers", ()), ("integers", (100,)))))


@st.composite
def resize(draw: Draw, mode: str, dtype: str) -> Case:
    shape, axes = axes_of(draw, mode)
    attrs: dict[str, Attr | None] = {"mode": mode if mode != "nearest" or rarely(draw, 2) else None}
    opset = 13
    transform = pick(draw, MODES)
    opset = 19 if transform == "half_pixel_symmetric" else opset
    attrs["coordinate_transformation_mode"] = None if transform == "half_pixel" and rarely(draw, 2) else transform
    if mode == "nearest":
        attrs["nearest_mode"] = pick(draw, (*NEAREST, None))
    if mode == "cubic":
        attrs["cubic_coeff_a"] = pick(draw, (None, -0.5, -0.3))
        attrs["exclude_outside"] = pick(draw, (None, 1))
    scales = [fitting_scale(draw, shape[a]) for a in axes]
    some = rarely(draw, 3)
    if some:
        opset = max(opset, 18)
        attrs["axes"] = tuple(signed(draw, a, len(shape)) for a in axes)
    lead = () if some else (1, 1)
    profile = "plain"
    if rarely(draw, 2):
        sizes = tuple(max(resized(shape[a], s), 1) for a, s in zip(axes, scales, strict=True))
        if some and rarely(draw, 2):
            # Counted from the front: onnxruntime 1.32 forgets negative axes under this policy and returns other shapes.
            attrs["axes"] = axes
            attrs["keep_aspect_ratio_policy"] = pick(draw, ("not_larger", "not_smaller"))
            sizes = keeping(sizes, shape, axes)
        whole = sizes if some else (*shape[:2], *sizes)
        lengths = d.vector("sizes", "int64", whole, not rarely(draw, 4))
        args = [data(draw, dtype, shape), Arg("roi"), Arg("scales"), lengths]
    else:
        # Scales that leave every length as it is still move the coordinates; onnxruntime copies: a profile of its own.
        same = all(resized(shape[a], s) == shape[a] for a, s in zip(axes, scales, strict=True))
        profile = "same" if same else "plain"
        factors = d.vector("scales", "float32", (*map(float, lead), *scales), not rarely(draw, 4))
        args = [data(draw, dtype, shape), Arg("roi"), factors]
    return d.make_case(draw, "Resize", args, (dtype,), attrs, opset, profile)


def keeping(sizes: Shape, shape: Shape, axes: tuple[int, ...]) -> Shape:
    """Sizes whose common ratio gives no length that lies half-way."""
    ratio = sizes[0] / shape[axes[0]]
    for pick_one in (min, max):
        common = pick_one(s / shape[a] for s, a in zip(sizes, axes, strict=True))
        if any(abs(common * shape[a] % 1 - 0.5) < 1e-3 or common * shape[a] < 0.51 for a in axes):
            return tuple(max(round(ratio) * shape[a], 1) if ratio >= 1 else shape[a] for a in axes)
    return sizes


@st.composite
def crop(draw: Draw, mode: str, dtype: str) -> Case:
    """A region of interest inside, on and beyond the edges; outside it the extrapolation value."""
    shape, axes = axes_of(draw, mode)
    count = len(shape)
    starts, ends = [0.0] * count, [1.0] * count
    for a in axes:
        starts[a] = pick(draw, (0.25, 0.0, 0.125, -0.25, 0.4))
        ends[a] = pick(draw, (0.75, 1.0, 0.875, 1.25, 0.6))
    sizes = [*shape[:2], *(pick(draw, (6, 9, 8, 1, 11) if not rarely(draw, 4) else (3, 5, 2, 4)) for _ in axes)]
    attrs: dict[str, Attr | None] = {
        "mode": mode,
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": pick(draw, (None, 10.0)),
    }
    if mode == "nearest":
        attrs["nearest_mode"] = pick(draw, (*NEAREST, None))
    args = [
        data(draw, dtype, shape),
        d.vector("roi", "float32", (*starts, *ends), not rarely(draw, 4)),
        Arg("scales"),
        d.vector("sizes", "int64", tuple(sizes), const=True),
    ]
    # A length that stays is an axis that onnxruntime does not crop: a profile of its own.
    same = any(sizes[a] == shape[a] for a in axes)
    return d.make_case(draw, "Resize", args, (dtype,), attrs, profile="crop-same" if same else "crop")


@st.composite
def antialiased(draw: Draw, mode: str, dtype: str) -> Case:
    """Mostly smaller; taps beyond the edges are left out, since runtimes differ where they are not."""
    shape: Shape = (pick(draw, (1, 2)), pick(draw, (3, 1)), pick(draw, (8, 5, 11)), pick(draw, (7, 9, 6)))
    shape = d.larger(draw, shape, (0, 1))
    scales = [fitting_scale(draw, n) if rarely(draw, 3) else pick(draw, (0.5, 0.6, 0.45)) for n in shape[2:]]
    sizes = (*shape[:2], *(max(resized(n, s), 1) for n, s in zip(shape[2:], scales, strict=True)))
    attrs: dict[str, Attr | None] = {"mode": mode, "antialias": 1, "exclude_outside": 1}
    attrs["coordinate_transformation_mode"] = pick(draw, (None, "pytorch_half_pixel"))
    args = [data(draw, dtype, shape), Arg("roi"), Arg("scales"), d.vector("sizes", "int64", sizes, const=True)]
    return d.make_case(draw, "Resize", args, (dtype,), attrs, opset=18)


# The second word of a label is the mode: a budget for each, and a word for -k.
STRATEGIES = {"crop": crop, "antialias": antialiased}
LABELS = """float32,nearest uint8,nearest int8,nearest float32,linear uint8,linear int8,linear float32,cubic
float32,nearest,crop uint8,nearest,crop float32,linear,crop
float32,linear,antialias uint8,linear,antialias int8,linear,antialias float32,cubic,antialias""".split()


def row(label: str) -> CaseSpec:
    dtype, mode, *form = label.split(",")
    draw = STRATEGIES[form[0]] if form else resize
    return CaseSpec("Resize", label, draw(mode, dtype), "ONNX Resize-19")


RESAMPLE = tuple(map(row, LABELS))
