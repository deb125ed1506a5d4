"""Each primitive means what its equation says, infers what it returns, and refuses what it cannot."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine import real as r
from opgauge.reference_engine.errors import DtypeError, ShapeError
from opgauge.reference_engine.primitives import PRIMITIVES
from opgauge.reference_engine.primitives.pointwise import ELEMENTWISE
from opgauge.reference_engine.types import TensorSpec

F = np.float32
X = np.arange(24, dtype=F).reshape(2, 3, 4) - 11
B = np.asarray([[1, 2], [3, 4], [5, 6]], np.int8)
GEOMETRY = {"kernel_shape": (2,), "strides": (2,), "dilations": (1,), "pads": (1, 1), "out_shape": (2,)}


def i8(*values: int) -> np.ndarray:
    return np.asarray(values, np.int8)


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
    ("Gather", "", [X, np.asarray([-1, 0], np.int64)], {}, X[:, [2, 0]]),
    ("Elementwise", "add", [X, X], {}, X + X),
    ("Elementwise", "sub", [X, X[::-1].copy()], {}, X - X[::-1]),
    ("Elementwise", "mul", [B, B], {}, B * B),
    ("Elementwise", "div", [i8(7, -7, 7, -7), i8(2, 2, -2, -2)], {}, i8(3, -3, -3, 3)),
    ("Elementwise", "max", [X, -X], {}, np.abs(X)),
    ("Elementwise", "min", [X, -X], {}, -np.abs(X)),
    ("Elementwise", "neg", [X], {}, -X),
    ("Elementwise", "abs", [X], {}, np.abs(X)),
    ("Elementwise", "relu", [X], {}, np.maximum(X, 0)),
    ("Elementwise", "where", [X > 0, X, -X], {}, np.abs(X)),
    ("Elementwise", "cast", [X * F(0.75)], {"to": "int32"}, np.trunc(X * F(0.75)).astype(np.int32)),
    ("Elementwise", "exp", [X], {}, np.exp(X.astype(np.float64)).astype(F)),
    ("Elementwise", "log", [np.abs(X) + 1], {}, np.log(np.abs(X).astype(np.float64) + 1).astype(F)),
    ("Elementwise", "sqrt", [np.abs(X)], {}, np.sqrt(np.abs(X))),
    ("Elementwise", "tanh", [X], {}, np.tanh(X.astype(np.float64)).astype(F)),
    ("Elementwise", "sigmoid", [X], {}, (1 / (1 + np.exp(-X.astype(np.float64)))).astype(F)),
    ("Elementwise", "erf", [np.zeros(3, F)], {}, np.zeros(3, F)),
    (
        "Quantize",
        "",
        [np.asarray([[[0.5, 1.5, -2.5, 99]]], F), F([1]), np.asarray([3], np.uint8)],
        {"to": "uint8"},
        np.asarray([[[3, 5, 1, 102]]], np.uint8),
    ),
    (
        "Dequantize",
        "",
        [np.asarray([[[0, 5]]], np.uint8), F([0.5]), np.asarray([3], np.uint8)],
        {"to": "float32"},
        np.asarray([[[-1.5, 1.0]]], F),
    ),
    (
        "Requantize",
        "",
        [np.asarray([[[5, -5, 7, 9999]]], np.int32), F([0.5]), i8(1)],
        {"to": "int8"},
        np.asarray([[[3, -1, 5, 127]]], np.int8),
    ),
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
    declared = {(name, fn) for name, row in PRIMITIVES.items() for fn in row.fns}
    assert declared == covered
    assert set(PRIMITIVES["Elementwise"].fns) == set(ELEMENTWISE)


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
