"""Operators that pick, place, make and resample elements: against onnx's evaluator, numpy, and by hand."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import onnx
import pytest
from one_node import exacts, ints, model
from onnx.reference import ReferenceEvaluator

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import ModelError, ShapeError, UnknownOperatorError
from opgauge.reference_engine.operators import OPERATORS
from opgauge.reference_engine.operators.movement import MOVEMENT
from opgauge.reference_engine.operators.movement import resample as rs

F = np.float32


def data(*shape, dtype="float32", low=-9):
    rng = np.random.default_rng(sum(shape) + 3)
    if dt.is_float(dtype):
        return rng.normal(size=shape).astype(dt.NUMPY[dtype])
    return rng.integers(low, 10, shape).astype(dt.NUMPY[dtype])


def f32(*values):
    return np.array(values, F)


def tensor(*values, dtype="int64"):
    return onnx.numpy_helper.from_array(np.array(values, dt.NUMPY[dtype]))


IMAGE = data(1, 2, 4, 6)
RESIZE = {"opset": 19}
AGREES = [
    ("Tile", [data(2, 3), ints(2, 1)], {}),
    ("Tile", [data(2, 3), ints(0, 3)], {}),
    ("DepthToSpace", [data(2, 12, 2, 3)], {"blocksize": 2}),
    ("DepthToSpace", [data(1, 18, 2, 3)], {"blocksize": 3, "mode": "CRD"}),
    ("SpaceToDepth", [data(2, 3, 4, 6)], {"blocksize": 2}),
    ("CenterCropPad", [data(5, 8), ints(8, 3)], {}),
    ("CenterCropPad", [data(4, 9, 2), ints(7, 4)], {"axes": [-2, 0]}),
    ("Trilu", [data(2, 3, 4), np.array(1)], {"upper": 0}),
    ("Trilu", [data(4, 3)], {}),
    ("Gather", [data(3, 4), np.array([[0, -1]], np.int32)], {"axis": 1}),
    ("GatherElements", [data(2, 4), np.array([[0, -1], [2, 3]])], {"axis": 1}),
    ("GatherElements", [data(3, 2), np.array([[0, -1], [2, 1], [1, 1], [-3, 0]])], {}),
    ("GatherND", [data(2, 3, 4), np.array([[1, 2], [0, -1]])], {}),
    ("GatherND", [data(2, 3, 4), np.array([[[2], [0]], [[1], [1]]])], {"batch_dims": 1}),
    ("ScatterElements", [data(2, 3), np.array([[1, 0], [-1, 1]]), data(2, 2)], {"axis": 1}),
    ("ScatterElements", [data(4), np.array([1, 1, 3]), data(3)], {"reduction": "add"}),
    ("ScatterElements", [data(4), np.array([1, 1, 3]), data(3)], {"reduction": "mul"}),
    ("ScatterElements", [data(4), np.array([1, 1, 3]), data(3)], {"reduction": "min"}),
    ("ScatterND", [data(4, 2), np.array([[1], [3]]), data(2, 2)], {}),
    ("ScatterND", [data(4), np.array([[1], [1]]), data(2)], {"reduction": "max"}),
    ("Compress", [data(3, 4), np.array([False, True, True])], {"axis": 0}),
    ("Compress", [data(3, 4), np.array([True, False, True])], {}),
    ("NonZero", [data(3, 4, dtype="int8", low=-1) // 3], {}),
    ("OneHot", [np.array([[0, 2], [-1, 7]]), np.array(3), f32(2, 5)], {}),
    ("OneHot", [np.array([1, -4]), np.array(3), ints(0, 1)], {"axis": 0}),
    ("ReverseSequence", [data(4, 3), ints(4, 1, 2)], {}),
    ("ReverseSequence", [data(3, 4, 2), ints(4, 1, 2)], {"batch_axis": 0, "time_axis": 1}),
    ("Col2Im", [data(1, 8, 4), ints(3, 3), ints(2, 2)], {}),
    ("Col2Im", [data(2, 8, 4), ints(5, 4), ints(2, 2)], {"dilations": [2, 1], "pads": [0, 1, 1, 0], "strides": [2, 2]}),
    ("Shape", [data(2, 0, 3)], {"start": -2}),
    ("Shape", [data(2, 0, 3)], {"start": 5, "end": -1}),
    ("Size", [data(2, 3)], {}),
    ("ConstantOfShape", [ints(2, 3)], {}),
    ("ConstantOfShape", [ints(0, 3)], {"value": tensor(7, dtype="int8")}),
    ("EyeLike", [data(3, 4)], {"k": -1, "dtype": 7}),
    ("EyeLike", [data(3, 4)], {}),
    ("Range", [F(1), F(2.2), F(0.25)], {}),
    ("Range", [np.int32(5), np.int32(-4), np.int32(-3)], {}),
    ("Range", [np.int64(5), np.int64(5), np.int64(1)], {}),
    ("Dropout", [data(3, 4), np.array(0.5, F), np.array(False)], {}),
    ("Resize", [IMAGE, None, f32(1, 1, 2, 0.5)], RESIZE),
    ("Resize", [IMAGE, None, f32(1, 1, 0.6, 1.7)], {**RESIZE, "mode": "linear"}),
    ("Resize", [IMAGE, None, None, ints(1, 2, 3, 7)], {**RESIZE, "mode": "cubic"}),
    ("Resize", [IMAGE, None, f32(0.8, 0.8)], {**RESIZE, "mode": "cubic", "axes": [2, 3], "exclude_outside": 1}),
    ("Resize", [IMAGE, None, f32(1, 1, 0.6, 0.5)], {**RESIZE, "mode": "linear", "antialias": 1}),
    ("Resize", [IMAGE, None, f32(1, 1, 0.6, 0.5)], {**RESIZE, "mode": "cubic", "antialias": 1}),
    *[
        # The evaluator takes the fraction 4 * 1.7 for a length where align_corners asks for the whole one.
        ("Resize", [IMAGE, None, f32(1, 1, s, 0.5)], {**RESIZE, "mode": m, "coordinate_transformation_mode": c})
        for m in ("linear", "cubic")
        for c, s in (
            ("asymmetric", 1.7),
            ("align_corners", 1.75),
            ("pytorch_half_pixel", 1.7),
            ("half_pixel_symmetric", 1.7),
        )
    ],
    *[
        ("Resize", [IMAGE, None, f32(1, 1, s, 2)], {**RESIZE, "coordinate_transformation_mode": c, "nearest_mode": n})
        for n in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        for c in ("half_pixel", "asymmetric")
        for s in (0.5, 2)
    ],
    (
        "Resize",
        [IMAGE, f32(0, 0, 0.25, -0.5, 1, 1, 0.75, 1.25), None, ints(1, 2, 3, 5)],
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0},
    ),
    (
        "Resize",
        [IMAGE, None, None, ints(6, 5)],
        {**RESIZE, "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger", "mode": "linear"},
    ),
]


@pytest.mark.parametrize(("op", "inputs", "options"), AGREES, ids=[f"{i}-{row[0]}" for i, row in enumerate(AGREES)])
def test_lowering_agrees_with_the_evaluator_of_onnx(op, inputs, options):
    (actual,) = exacts(op, *inputs, **options)
    proto, feeds = model(op, inputs, **options)
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    assert (actual.value.shape, actual.value.dtype) == (np.shape(expected), np.asarray(expected).dtype)
    np.testing.assert_allclose(actual.value.astype(np.float64), np.asarray(expected, np.float64), rtol=2e-5, atol=2e-6)


def test_every_operator_here_is_compared_with_the_evaluator():
    import re
    from pathlib import Path

    text = Path(__file__).with_name("test_operators.py").read_text()
    elsewhere = set(re.findall(r'^    \("(\w+)", \[', text, re.MULTILINE)) | {"Identity"}
    assert {name for _, name in MOVEMENT} <= elsewhere | {row[0] for row in AGREES}


@pytest.mark.parametrize(
    ("op", "inputs", "options", "error"),
    [
        ("GatherElements", [data(3, 4), np.array([[0, 4]])], {"axis": 1}, ShapeError),
        ("GatherElements", [data(3, 4), np.zeros((4, 1), np.int64)], {"axis": 1}, ShapeError),
        ("GatherND", [data(3, 4), np.array([[0, 0, 0]])], {}, ShapeError),
        ("ScatterND", [data(3, 4), np.array([[3]]), data(1, 4)], {}, ShapeError),
        ("ScatterND", [data(3, 4), np.array([[2]]), data(1, 3)], {}, ShapeError),
        ("ScatterElements", [data(3), np.array([0]), data(1)], {"reduction": "max", "opset": 16}, ModelError),
        ("Compress", [data(3), np.array([False, False, False, True])], {}, ShapeError),
        ("DepthToSpace", [data(1, 6, 2, 2)], {"blocksize": 2}, ShapeError),
        ("Tile", [data(3), ints(2, 2)], {}, ShapeError),
        ("Range", [F(0), F(1), F(0)], {}, ModelError),
        ("Dropout", [data(3), np.array(0.5, F), np.array(True)], {}, UnknownOperatorError),
        ("Resize", [IMAGE, None, f32(1, 1, 2, 2), ints(1, 2, 8, 12)], RESIZE, ModelError),
        ("Resize", [IMAGE, None, f32(1, 1, 2)], RESIZE, ShapeError),
        ("Resize", [IMAGE, None, f32(1, 1, 2, -1)], RESIZE, ModelError),
        ("Resize", [IMAGE, None, f32(1, 1, 2, 2)], {**RESIZE, "nearest_mode": "near"}, ModelError),
        ("Resize", [data(2, 2) > 0, None, f32(2, 2)], {**RESIZE, "mode": "linear"}, ModelError),
    ],
)
def test_a_wrong_model_is_refused(op, inputs, options, error):
    with pytest.raises(error):
        exacts(op, *inputs, **options)


def test_a_power_of_two_leaves_one_nearest_element_and_a_third_two():
    """Three times as long, o + 0.5 over 3 meets a floor exactly: a reciprocal may fall on either side."""
    row = data(1, 3, dtype="int8")
    options = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor", "opset": 19}
    (two,) = exacts("Resize", row, None, f32(1, 2), **options)
    (three,) = exacts("Resize", row, None, None, ints(1, 9), **options)
    assert (two.lo == two.hi).all()
    assert np.flatnonzero(three.lo != three.hi).tolist() == [3, 6]
    assert {int(m[0, 3]) for m in three.members} == {row[0, 0], row[0, 1]}


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("transform", ["half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"])
def test_float32_coordinates_stay_inside_and_a_shifted_one_does_not(mode, transform):
    """An honest kernel rounds every step of the formula to float32; a planted one forgets the half pixel."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(1, 37)).astype(F)
    for scale in (1.7, 0.6, 2.0, 3.2):
        options = {"mode": mode, "coordinate_transformation_mode": transform, "opset": 19}
        (exact,) = exacts("Resize", x, None, f32(1, scale), **options)
        resized = exact.value.shape[1]
        o = np.arange(resized, dtype=F)
        s, length = F(scale), F(37)
        at = {
            "half_pixel": (o + F(0.5)) * (F(1) / s) - F(0.5),
            "asymmetric": o * (F(1) / s),
            "align_corners": o * ((length - F(1)) / F(max(resized - 1, 1))),
            "half_pixel_symmetric": length / F(2) * (F(1) - F(resized) / (s * length)) + (o + F(0.5)) / s - F(0.5),
        }[transform].astype(F)
        kernel = rs.tent() if mode == "linear" else rs.keys(-0.75)

        def resample(at, kernel=kernel):
            y = np.zeros(len(at), F)
            for k in range(-2, 4):
                i = np.floor(at).astype(int) + k
                w = np.array([kernel.value(float(a) - j) for a, j in zip(at, i, strict=True)], F)
                y = (y + w * x[0, np.clip(i, 0, 36)]).astype(F)
            return y

        def inside(y, exact=exact):
            return (y >= exact.lo[0]) & (y <= exact.hi[0])

        assert inside(resample(at)).all()
        assert not inside(resample(at + F(0.01))).all()


def test_integers_between_two_numbers_may_be_truncated_or_rounded_and_nothing_else():
    (exact,) = exacts("Resize", np.array([[10, 20]], np.uint8), None, f32(1, 4), mode="linear", opset=19)
    assert exact.lo.tolist() == [[10, 10, 11, 13, 16, 18, 20, 20]]
    assert exact.hi.tolist() == [[10, 10, 11, 14, 16, 19, 20, 20]]


def test_coordinates_are_exact_fractions():
    third = rs.places("half_pixel", rs.Axis(4, 3, Fraction(3, 4)))
    half = rs.places("half_pixel", rs.Axis(4, 8, Fraction(2)))
    assert third.at == [Fraction(1, 6), Fraction(3, 2), Fraction(17, 6)]
    assert half.error == [0.0] * 8
    assert min(third.error) > 0


def test_range_admits_the_running_sum():
    (exact,) = exacts("Range", F(0.1), F(9.95), F(0.1))
    running = np.cumsum(np.full(99, 0.1, F), dtype=F)
    assert ((running >= exact.lo) & (running <= exact.hi)).all()
    assert not ((running * F(1.001) >= exact.lo) & (running * F(1.001) <= exact.hi)).all()
    (whole,) = exacts("Range", F(1), F(9), F(0.5))
    assert (whole.lo == whole.hi).all()


def test_a_mask_is_made_only_where_it_is_asked_for():
    assert len(exacts("Dropout", data(3), outputs=1)) == 1
    output, mask = exacts("Dropout", data(3), outputs=2)
    assert output.dtype == "float32"
    assert mask.value.tolist() == [True] * 3


def test_a_wrong_lowering_is_seen(monkeypatch):
    op, inputs, options = next(row for row in AGREES if row[0] == "DepthToSpace" and row[2].get("mode") == "CRD")
    right = MOVEMENT["", "DepthToSpace"]
    wrong = dataclasses.replace(right, lower=lambda emit, x, *, blocksize, mode="": right.lower(emit, x, blocksize=3))
    (good,) = exacts(op, *inputs, **options)
    monkeypatch.setitem(OPERATORS, ("", op), wrong)
    (bad,) = exacts(op, *inputs, **options)
    assert not np.array_equal(good.value, bad.value)
