"""Each element-wise function, and each conversion, means what its equation says and infers what it returns."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine import real as r
from opgauge.reference_engine.errors import DtypeError, ShapeError
from opgauge.reference_engine.primitives.pointwise import ELEMENTWISE, PRIMITIVES
from opgauge.reference_engine.types import Policy, TensorSpec

F = np.float32
X = np.arange(24, dtype=F).reshape(2, 3, 4) - 11
B = np.asarray([[1, 2], [3, 4], [5, 6]], np.int8)
U = X / F(12)
P, Q = X > 0, X % 2 == 0


def i8(*values: int) -> np.ndarray:
    return np.asarray(values, np.int8)


def u8(*values: int) -> np.ndarray:
    return np.asarray(values, np.uint8)


def wide(fn, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return fn(x.astype(np.float64)).astype(F)


def narrow(word: str, *values: float) -> np.ndarray:
    return np.asarray(values).astype(dt.NUMPY[word])


E4 = "float8e4m3fn"
# (primitive, fn, inputs, attributes, expected)
MEANING = [
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
    ("Elementwise", "mod", [i8(7, -7, 7, -7), i8(3, 3, -3, -3)], {}, i8(1, 2, -2, -1)),
    ("Elementwise", "fmod", [i8(7, -7, 7, -7), i8(3, 3, -3, -3)], {}, i8(1, -1, 1, -1)),
    ("Elementwise", "fmod", [F([5.5, -5.5, 1e30]), F([2, 2, 7])], {}, F([1.5, -1.5, np.fmod(F(1e30), F(7))])),
    ("Elementwise", "pow", [F([2, -2, 9]), F([10, 3, 0.5])], {}, F([1024, -8, 3])),
    (
        "Elementwise",
        "pow",
        [np.asarray([2, -3], np.int32), np.asarray([5, 3], np.int32)],
        {},
        np.asarray([32, -27], np.int32),
    ),
    ("Elementwise", "floor", [F([1.5, -1.5, 2])], {}, F([1, -2, 2])),
    ("Elementwise", "ceil", [F([1.5, -1.5, 2])], {}, F([2, -1, 2])),
    ("Elementwise", "round", [F([0.5, 1.5, -2.5, 2.51])], {}, F([0, 2, -2, 3])),
    ("Elementwise", "sign", [F([-3, 0, 2])], {}, F([-1, 0, 1])),
    ("Elementwise", "equal", [F([1, np.nan, np.inf]), F([1, np.nan, np.inf])], {}, np.asarray([True, False, True])),
    ("Elementwise", "less", [i8(1, 2, 3), i8(2, 2, 2)], {}, np.asarray([True, False, False])),
    ("Elementwise", "less_or_equal", [i8(1, 2, 3), i8(2, 2, 2)], {}, np.asarray([True, True, False])),
    ("Elementwise", "and", [P, Q], {}, P & Q),
    ("Elementwise", "or", [i8(5, -1), i8(2, 0)], {}, i8(7, -1)),
    ("Elementwise", "xor", [i8(5, -1), i8(1, 1)], {}, i8(4, -2)),
    ("Elementwise", "not", [P], {}, ~P),
    ("Elementwise", "not", [i8(5, -1)], {}, i8(-6, 0)),
    ("Elementwise", "shift_left", [u8(1, 255), u8(3, 7)], {}, u8(8, 128)),
    ("Elementwise", "shift_right", [u8(9, 255), u8(3, 7)], {}, u8(1, 1)),
    ("Elementwise", "sin", [X], {}, wide(np.sin, X)),
    ("Elementwise", "cos", [X], {}, wide(np.cos, X)),
    ("Elementwise", "tan", [X], {}, wide(np.tan, X)),
    ("Elementwise", "asin", [U], {}, wide(np.arcsin, U)),
    ("Elementwise", "acos", [U], {}, wide(np.arccos, U)),
    ("Elementwise", "atan", [X], {}, wide(np.arctan, X)),
    ("Elementwise", "sinh", [X], {}, wide(np.sinh, X)),
    ("Elementwise", "cosh", [X], {}, wide(np.cosh, X)),
    ("Elementwise", "asinh", [X], {}, wide(np.arcsinh, X)),
    ("Elementwise", "acosh", [np.abs(X) + 1], {}, wide(np.arccosh, np.abs(X) + 1)),
    ("Elementwise", "atanh", [U], {}, wide(np.arctanh, U)),
    (
        "Quantize",
        "",
        [F([[[0.6, -9, 9]]]), F([0.5]), narrow("int4", 1)],
        {"to": "int4"},
        narrow("int4", 2, -8, 7).reshape(1, 1, 3),
    ),
    (
        "Quantize",
        "float8",
        [F([[[1.1, 900, -900]]]), F([1]), narrow(E4, 0)],
        {"to": E4, "saturate": 1},
        narrow(E4, 1.125, 448, -448).reshape(1, 1, 3),
    ),
    (
        "Quantize",
        "float8",
        [F([[[1.1, 900]]]), F([1]), narrow(E4, 0)],
        {"to": E4, "saturate": 0},
        narrow(E4, 1.125, np.nan).reshape(1, 1, 2),
    ),
    (
        "Dequantize",
        "",
        [narrow("uint4", 0, 15).reshape(1, 1, 2), F([0.5]), narrow("uint4", 8)],
        {"to": "float32"},
        F([[[-4, 3.5]]]),
    ),
    (
        "Dequantize",
        "",
        [narrow(E4, 1.5, -448).reshape(1, 1, 2), F([0.5]), narrow(E4, 0)],
        {"to": "float32"},
        F([[[0.75, -224]]]),
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
    with np.errstate(all="ignore"):
        made = run(primitive, fn, arrays, attrs)
    inferred = PRIMITIVES[primitive].infer(*specs(arrays), fn=fn, **attrs)
    assert inferred == TensorSpec(expected.shape, dt.word_of(expected.dtype)) == TensorSpec(made.shape, made.dtype)
    # ml_dtypes has a NaN of its own, which numpy's comparison does not know.
    found = made.value.astype(expected.dtype).astype(np.float64)
    np.testing.assert_array_equal(found, expected.astype(np.float64))


def test_every_primitive_and_function_has_a_meaning_above():
    covered = {(m[0], m[1]) for m in MEANING}
    assert {(name, fn) for name, row in PRIMITIVES.items() for fn in row.fns} == covered
    assert set(PRIMITIVES["Elementwise"].fns) == set(ELEMENTWISE)


REFUSED = [
    ("Elementwise", "less", [X, X[:1]], {}, ShapeError),
    ("Elementwise", "and", [X, X], {}, DtypeError),
    ("Elementwise", "shift_left", [X, X], {}, DtypeError),
    ("Elementwise", "sin", [B], {}, DtypeError),
    ("Elementwise", "add", [narrow("int4", 1), narrow("int4", 1)], {}, DtypeError),
    ("Quantize", "float8", [X, F([1, 2, 3]), i8(0, 0, 0)], {"to": "int8", "saturate": 1}, DtypeError),
    ("Quantize", "", [X, F([1, 2, 3]), narrow(E4, 0, 0, 0)], {"to": E4}, DtypeError),
]


@pytest.mark.parametrize(
    ("primitive", "fn", "arrays", "attrs", "error"), REFUSED, ids=[f"{m[0]}.{m[1]}-{i}" for i, m in enumerate(REFUSED)]
)
def test_impossible_shapes_and_types_are_typed_errors(primitive, fn, arrays, attrs, error):
    with pytest.raises(error):
        PRIMITIVES[primitive].infer(*specs(arrays), fn=fn, **attrs)


def rounded(*values: float) -> r.Real:
    """Numbers that were computed: within half an ulp or so of these."""
    one = r.leaf(np.ones(len(values), F), "float32")
    return r.mul(r.mul(r.leaf(np.asarray(values, F), "float32"), one), r.leaf(np.full(len(values), 1.1, F), "float32"))


def test_a_comparison_of_rounded_numbers_is_undecided_only_where_they_may_meet():
    a, b = rounded(0.3, 2), rounded(0.3, 3)
    found = PRIMITIVES["Elementwise"].exact(a, b, fn="less", policy=Policy())
    assert np.broadcast_to(found.hazard, (2,)).tolist() == [True, False]
    chosen = PRIMITIVES["Elementwise"].exact(found, a, b, fn="where", policy=Policy())
    assert np.broadcast_to(chosen.hazard, (2,)).tolist() == [True, False]


def test_a_step_of_a_rounded_number_admits_both_sides_of_the_step():
    at_step = rounded(10 / 1.1, 3.0)
    found = PRIMITIVES["Elementwise"].exact(at_step, fn="floor", policy=Policy())
    radius = np.broadcast_to(found.err, (2,))
    assert radius[0] == 1
    assert radius[1] == 0


def test_a_choice_between_one_ieee_operation_and_none_has_one_answer():
    x = r.leaf(F([0.3, -0.3]), "float32")
    scaled = r.mul(x, r.leaf(F([0.1, 0.1]), "float32"))
    chosen = PRIMITIVES["Elementwise"].exact(r.leaf(x.value > 0, "bool"), x, scaled, fn="where", policy=Policy())
    assert chosen.ieee
