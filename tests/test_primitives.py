"""Each primitive means what its equation says, infers what it returns, and refuses what it cannot."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine import real as r
from opgauge.reference_engine.errors import DtypeError, ShapeError
from opgauge.reference_engine.primitives import PRIMITIVES, pointwise
from opgauge.reference_engine.types import TensorSpec

F = np.float32
X = np.arange(24, dtype=F).reshape(2, 3, 4) - 11
B = np.asarray([[1, 2], [3, 4], [5, 6]], np.int8)
GEOMETRY = {"kernel_shape": (2,), "strides": (2,), "dilations": (1,), "pads": (1, 1), "out_shape": (2,)}


def i8(*values: int) -> np.ndarray:
    return np.asarray(values, np.int8)


UPDATE = np.asarray([[[1, 2, 3, 4], [5, 5, 2, 2]]], F)
PLACE = np.asarray([[[2], [-3]]], np.int64)
TWICE = np.asarray([[[1], [-2]]], np.int64)  # the same place by two names
SECOND = np.asarray([0, 1, 0], F)[None, :, None]

# (primitive, fn, inputs, attributes, expected)
MEANING = [
    ("Gemm", "", [X, X.transpose(0, 2, 1).copy()], {}, np.matmul(X, X.transpose(0, 2, 1))),
    (
        "Gemm",
        "",
        [B.T.copy(), B, np.int8(1), np.int8(2)],
        {},
        np.matmul(B.T.astype(np.int32) - 1, B.astype(np.int32) - 2),
    ),
    (
        "Gemm",
        "",
        [B, B.T.copy(), i8(1, 2, 3)[:, None], np.int8(0)],
        {},
        np.matmul(B.astype(np.int32) - i8(1, 2, 3)[:, None], B.T.astype(np.int32)),
    ),
    (
        "Gemm",
        "requantize",
        [
            B.T.copy(),
            B,
            np.int8(1),
            np.int8(2),
            np.asarray([[5, -7]], np.int32),
            np.asarray([[0.5], [2]], F),
            np.uint8(9),
        ],
        {"to": "uint8", "low": 16, "high": 50},
        np.asarray([[19, 16], [50, 47]], np.uint8),
    ),
    (
        "Gemm",
        "im2col_requantize",
        [
            np.asarray([[[[1, -1]], [[2, 1]]]], np.int8),
            np.asarray([[[7, 9, 4], [1, 2, 3]]], np.uint8),
            np.int8(0),
            np.uint8(2),
            np.asarray([[[[3]], [[0]]]], np.int32),
            np.asarray(1, F),
            np.int8(-1),
        ],
        {"to": "int8", "low": -5, "high": 127, **GEOMETRY},
        np.asarray([[[[-3, 7]], [[-2, 0]]]], np.int8),
    ),
    (
        "Gemm",
        "im2row_requantize",
        [
            np.asarray([[[[1, -1]], [[2, 1]]]], np.int8),
            np.asarray([[[7, 1], [9, 2], [4, 3]]], np.uint8),
            np.int8(0),
            np.uint8(2),
            np.asarray([[[[3]], [[0]]]], np.int32),
            np.asarray(1, F),
            np.int8(-1),
        ],
        {"to": "int8", "low": -5, "high": 127, **GEOMETRY},
        np.asarray([[[-3, -2], [7, 0]]], np.int8),
    ),
    (
        "Im2col",
        "",
        [X[:1, :, :3], np.asarray(9, F)],
        GEOMETRY,
        np.asarray([[[[9, -10], [-11, -9]], [[9, -6], [-7, -5]], [[9, -2], [-3, -1]]]], F),
    ),
    ("Reduce", "sum", [X], {}, X.sum(-1)),
    ("Reduce", "max", [X], {}, X.max(-1)),
    ("Reduce", "min", [X], {}, X.min(-1)),
    ("Reduce", "sum", [X[..., :0]], {}, np.zeros((2, 3), F)),
    ("Reduce", "max", [X[..., :0]], {}, np.full((2, 3), -np.inf, F)),
    ("Reduce", "prod", [X[..., :2]], {}, X[..., :2].prod(-1)),
    ("Reduce", "prod", [X[..., :0]], {}, np.ones((2, 3), F)),
    ("Reduce", "argmax", [np.abs(B)], {"last": 0}, np.asarray([1, 1, 1], np.int64)),
    ("Reduce", "argmax", [i8(3, 7, 7, 1)[None]], {"last": 0}, np.asarray([1], np.int64)),
    ("Reduce", "argmax", [i8(3, 7, 7, 1)[None]], {"last": 1}, np.asarray([2], np.int64)),
    ("Reduce", "argmin", [F([[2, -1, 5, -1]])], {"last": 0}, np.asarray([1], np.int64)),
    ("Reduce", "argmin", [F([[2, -1, 5, -1]])], {"last": 1}, np.asarray([3], np.int64)),
    ("Scan", "sum", [X], {}, X.cumsum(-1, dtype=F)),
    ("Scan", "prod", [B], {}, np.cumprod(B, -1, dtype=np.int8)),
    ("Sort", "values", [i8(3, 7, 1, 7)[None]], {"largest": 1}, i8(7, 7, 3, 1)[None]),
    ("Sort", "order", [i8(3, 7, 1, 7)[None]], {"largest": 1}, np.asarray([[1, 3, 0, 2]])),
    ("Sort", "order", [i8(3, 7, 1, 7, 3)[None]], {"largest": 0}, np.asarray([[2, 0, 4, 1, 3]])),
    ("DataMove", "transpose", [X], {"perm": (1, 2, 0)}, X.transpose(1, 2, 0)),
    ("DataMove", "reshape", [X], {"shape": (6, 4)}, X.reshape(6, 4)),
    ("DataMove", "expand", [X[:, :1]], {"shape": (2, 3, 4)}, np.broadcast_to(X[:, :1], (2, 3, 4))),
    ("DataMove", "slice", [X], {"starts": (0, 2, 3), "ends": (2, -1, 0), "steps": (1, -2, -1)}, X[:, ::-2, 3:0:-1]),
    (
        "DataMove",
        "pad",
        [X, np.asarray(5, F)],
        {"pads": (0, 1, -1, 0, 0, 2), "mode": "constant"},
        np.pad(X[:, :, 1:], [(0, 0), (1, 0), (0, 2)], constant_values=5),
    ),
    (
        "DataMove",
        "pad",
        [X, np.asarray(0, F)],
        {"pads": (0, 0, 2, 0, 1, 1), "mode": "reflect"},
        np.pad(X, [(0, 0), (0, 1), (2, 1)], mode="reflect"),
    ),
    ("DataMove", "concat", [X, X[:, :1]], {"axis": 1}, np.concatenate([X, X[:, :1]], 1)),
    ("DataMove", "copy", [X], {}, X),
    ("DataMove", "transfer", [X], {"to": "wgpu"}, X),
    ("Gather", "", [X, np.asarray([-1, 0], np.int64)], {}, X[:, [2, 0]]),
    ("Gather", "nd", [X, np.asarray([[[2], [-3]], [[0], [1]]], np.int64)], {}, np.stack([X[0, [2, 0]], X[1, [0, 1]]])),
    ("Gather", "nd", [X[None], np.asarray([[[1, 2], [-1, 0]]], np.int64)], {}, X[None, [1, 1], [2, 0]]),
    ("Scatter", "none", [X[:1], PLACE, UPDATE], {}, np.stack([[UPDATE[0, 1], X[0, 1], UPDATE[0, 0]]])),
    ("Scatter", "add", [X[:1], TWICE, UPDATE], {}, X[:1] + SECOND * UPDATE.sum(1)[:, None]),
    ("Scatter", "mul", [X[:1], TWICE, UPDATE], {}, np.where(SECOND == 1, X[:1] * UPDATE.prod(1)[:, None], X[:1])),
    ("Scatter", "max", [X[:1], TWICE, UPDATE], {}, np.where(SECOND == 1, UPDATE.max(1)[:, None], X[:1])),
    ("Scatter", "min", [-X[:1], TWICE, UPDATE], {}, np.where(SECOND == 1, UPDATE.min(1)[:, None], -X[:1])),
]


def run(primitive: str, fn: str, arrays: list[np.ndarray], attrs: dict) -> r.Real:
    inputs = [r.leaf(np.asarray(a), dt.word_of(np.asarray(a).dtype)) for a in arrays]
    return PRIMITIVES[primitive].exact(*inputs, fn=fn, **attrs)


def specs(arrays: list[np.ndarray]) -> list[TensorSpec]:
    return [TensorSpec(np.shape(a), dt.word_of(np.asarray(a).dtype)) for a in arrays]


@pytest.mark.parametrize(
    ("primitive", "fn", "arrays", "attrs", "expected"),
    MEANING,
    ids=[f"{m[0]}.{m[1]}-{i}" for i, m in enumerate(MEANING)],
)
def test_value_shape_and_dtype_are_those_of_the_equation(primitive, fn, arrays, attrs, expected):
    made = run(primitive, fn, arrays, attrs)
    inferred = PRIMITIVES[primitive].infer(*specs(arrays), fn=fn, **attrs)
    assert inferred == TensorSpec(expected.shape, dt.word_of(expected.dtype)) == TensorSpec(made.shape, made.dtype)
    np.testing.assert_array_equal(made.value.astype(expected.dtype), expected)


def test_every_primitive_and_function_has_a_meaning_above():
    covered = {(m[0], m[1]) for m in MEANING}
    # tests/test_primitives_pointwise.py holds its own table complete.
    declared = {(name, fn) for name, row in PRIMITIVES.items() for fn in row.fns if name not in pointwise.PRIMITIVES}
    assert declared == covered


def test_there_are_at_most_a_dozen_primitives():
    assert len(PRIMITIVES) <= 12


REFUSED = [
    ("Gemm", "", [X, X], {}, ShapeError),
    ("Gemm", "", [X[0], X[0].T.astype(np.int8)], {}, DtypeError),
    ("Gemm", "", [B.T.copy(), B, i8(1, 2), np.int8(2)], {}, ShapeError),
    ("Im2col", "", [X, np.asarray(0, F)], {**GEOMETRY, "kernel_shape": (2, 2)}, ShapeError),
    ("Im2col", "", [X, np.asarray(0, np.int8)], GEOMETRY, DtypeError),
    ("Reduce", "sum", [np.asarray(1, F)], {}, ShapeError),
    ("DataMove", "reshape", [X], {"shape": (5, 5)}, ShapeError),
    ("DataMove", "transpose", [X], {"perm": (0, 0, 1)}, ShapeError),
    ("DataMove", "expand", [X], {"shape": (2, 3, 5)}, ShapeError),
    ("DataMove", "concat", [X, X[:1]], {"axis": 1}, ShapeError),
    ("DataMove", "pad", [X, np.asarray(0, F)], {"pads": (0, 0, -3, 0, 0, -3), "mode": "constant"}, ShapeError),
    ("DataMove", "pad", [X, np.asarray(0, F)], {"pads": (2, 0, 0, 0, 0, 0), "mode": "reflect"}, ShapeError),
    ("Elementwise", "add", [X, X[:1]], {}, ShapeError),
    ("Elementwise", "add", [X, X.astype(np.float64)], {}, DtypeError),
    ("Elementwise", "exp", [B], {}, DtypeError),
    ("Quantize", "", [X, F([1, 2]), i8(0, 0)], {"to": "int8"}, ShapeError),
    ("Requantize", "", [X, F([1, 2, 3]), i8(0, 0, 0)], {"to": "int8"}, DtypeError),
]


@pytest.mark.parametrize(
    ("primitive", "fn", "arrays", "attrs", "error"), REFUSED, ids=[f"{m[0]}.{m[1]}-{i}" for i, m in enumerate(REFUSED)]
)
def test_impossible_shapes_and_types_are_typed_errors(primitive, fn, arrays, attrs, error):
    with pytest.raises(error):
        PRIMITIVES[primitive].infer(*specs(arrays), fn=fn, **attrs)


def test_an_index_out_of_range_is_named():
    with pytest.raises(ShapeError, match="index 3 "):
        run("Gather", "", [X, np.asarray([0, 3], np.int64)], {})


def test_two_updates_of_one_place_are_undecided_unless_they_are_equal_or_reduced():
    same = np.ones((1, 2, 4), F)
    unclear = run("Scatter", "none", [X[:1], TWICE, UPDATE], {}).hazard
    assert np.argwhere(unclear).tolist() == [[0, 1, i] for i in range(4)]
    assert not np.any(run("Scatter", "none", [X[:1], TWICE, same], {}).hazard)
    assert not np.any(run("Scatter", "none", [X[:1], PLACE, UPDATE], {}).hazard)
    assert not np.any(run("Scatter", "add", [X[:1], TWICE, UPDATE], {}).hazard)
    with pytest.raises(ShapeError, match="index 3 "):
        run("Scatter", "none", [X[:1], PLACE + 1, UPDATE], {})


def test_a_sum_of_scattered_floats_is_an_interval_only_where_orders_differ():
    third, at, one = np.full((1, 3, 1), 1 / 3, F), np.asarray([[[0], [0], [1]]], np.int64), np.ones((1, 3, 1), F)
    twice = run("Scatter", "add", [np.full((1, 2, 1), 0.1, F), at, third], {})
    whole = run("Scatter", "add", [one[:, :2], at, one], {})
    assert (r.radius(twice)[0, :, 0] > 0).all()
    assert not r.radius(whole).any()
    assert not r.radius(run("Scatter", "add", [X[:1], np.zeros((1, 0, 1), np.int64), np.zeros((1, 0, 4), F)], {})).any()


def test_an_index_that_may_be_one_of_two_gives_either_element():
    at = r.uncertain(r.leaf(np.asarray([0, 1]), "int64"), np.asarray([0, 2]))
    for word, listed in (("float32", True), ("int8", True), ("bool", False)):
        x = r.leaf(np.asarray([[[3], [1], [0]]]).astype(dt.NUMPY[word]), word)
        made = PRIMITIVES["Gather"].exact(x, at)
        assert bool(made.members) is listed
        if listed:
            assert {m[0, 1, 0] for m in made.members} == {0, 1}
            assert {m[0, 0, 0] for m in made.members} == {3}
        assert np.ravel(np.broadcast_to(made.hazard, made.shape)).tolist() == [False, word == "bool"]


def test_integer_accumulation_wraps_and_remembers_what_it_was():
    ones = np.full((1, 40_000), 255, np.uint8)
    made = run("Gemm", "", [ones, ones.T.copy(), np.uint8(0), np.uint8(0)], {})
    assert made.real is not None
    assert made.real[0, 0] == 255 * 255 * 40_000
    assert made.value[0, 0] == np.int64(255 * 255 * 40_000).astype(np.int32)
    requantized = run("Requantize", "", [np.zeros((1, 1, 1), np.int32), F([1]), np.zeros(1, np.uint8)], {"to": "uint8"})
    assert not np.any(requantized.hazard)


@pytest.mark.parametrize(
    ("x", "to", "decided"),
    [
        (3e9, "int32", False),
        (np.nan, "int8", False),
        (np.inf, "uint8", False),
        (-1.0, "uint8", False),
        (-0.5, "uint8", True),
        (255.9, "uint8", True),
    ],
)
def test_a_cast_is_undecided_exactly_outside_the_target(x, to, decided):
    made = run("Elementwise", "cast", [np.asarray([x], F)], {"to": to})
    assert bool(np.any(made.hazard)) is not decided
