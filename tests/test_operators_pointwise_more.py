"""Element-wise operators against onnx's evaluator or numpy: activations, functions, comparisons, narrow types."""

from __future__ import annotations

import math
from functools import partial

import ml_dtypes
import numpy as np
import one_node
import onnx
import pytest
from one_node import tensor
from onnx import helper

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import DtypeError, ModelError, ParameterError, UnknownOperatorError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.operators.pointwise import POINTWISE

STATED = {"outputs": ("float32",)}
model, onnx_says = partial(one_node.model, **STATED), partial(one_node.onnx_says, **STATED)

MS = "com.microsoft"
E4, E5 = "float8e4m3fn", "float8e5m2"


def exact(op, *inputs, **options):
    (found,) = one_node.exacts(op, *inputs, **STATED | options)
    return found


def ours(op, *inputs, **options):
    return exact(op, *inputs, **options).value


def f32(*values):
    return np.array(values if len(values) != 1 else values[0], np.float32)


def as_type(word, *values):
    return np.array(values if len(values) != 1 else values[0]).astype(dt.NUMPY[word])


RNG = np.random.default_rng(5)
X = f32(*RNG.normal(0, 2, 40)).reshape(5, 8)
Y = f32(*RNG.normal(0, 2, 8))
UNIT_X = f32(*RNG.uniform(-1, 1, 24))
N = RNG.integers(-9, 10, (3, 7)).astype(np.int32)
M = np.where(np.arange(7) % 2, 3, -4).astype(np.int32)
BOOL = {"outputs": ("bool",)}
I32 = {"outputs": ("int32",)}
P, Q = X > 0, Y > 0
BLOCKS = f32(0.5, 0.25, 1, 2, 0.125, 0.5, 1, 3, 0.75, 0.5, 0.25, 1).reshape(4, 3)
WIDE = (RNG.integers(-30, 30, (4, 8)) / 4).astype(np.float32)


def blocked(word, *values):
    return as_type(word, *values).reshape(4, 3)


AGREES = [
    *[(op, [X], {}) for op in ("Floor", "Ceil", "Round", "Sign", "Reciprocal", "Sin", "Cos", "Tan", "Atan")],
    *[(op, [X], {}) for op in ("Sinh", "Cosh", "Asinh", "Softplus", "Softsign", "Mish", "HardSwish")],
    *[(op, [UNIT_X], {}) for op in ("Asin", "Acos", "Atanh")],
    ("Acosh", [np.abs(X) + 1], {}),
    ("Round", [f32(0.5, 1.5, 2.5, -0.5, -2.5)], {}),
    *[("Elu", [X], attrs) for attrs in ({}, {"alpha": 0.5})],
    *[("Selu", [X], attrs) for attrs in ({}, {"alpha": 2.0, "gamma": 0.5})],
    *[("Celu", [X], attrs) for attrs in ({}, {"alpha": 0.5})],
    *[("Gelu", [X], attrs) for attrs in ({}, {"approximate": "tanh"})],
    *[("LeakyRelu", [X], attrs) for attrs in ({}, {"alpha": 0.5})],
    *[("HardSigmoid", [X], attrs) for attrs in ({}, {"alpha": 0.5, "beta": 0.25})],
    *[("ThresholdedRelu", [X], attrs) for attrs in ({}, {"alpha": -0.5})],
    *[("Shrink", [X], attrs) for attrs in ({}, {"bias": 0.5, "lambd": 1.0})],
    *[("Swish", [X], {**attrs, "opset": 24}) for attrs in ({}, {"alpha": 1.5})],
    *[("PRelu", [X, slope], {}) for slope in (f32(0.25).reshape(1), Y, X)],
    *[("Pow", [np.abs(X), y], {}) for y in (Y, f32(2), np.array(3, np.int64))],
    ("Pow", [N, np.array([2], np.int32)], I32),
    ("Mod", [N, M], I32),
    ("Mod", [N, M], {**I32, "fmod": 1}),
    ("Mod", [X, Y], {"fmod": 1}),
    ("Sum", [X, Y, f32(3)], {}),
    ("Sum", [X], {}),
    ("Mean", [X, Y, f32(3)], {}),
    *[(op, [N, M], BOOL) for op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")],
    *[(op, [f32(1, math.nan, math.inf, 2), f32(1, math.nan, 1, math.nan)], BOOL) for op in ("Equal", "LessOrEqual")],
    ("Equal", [P, Q], BOOL),
    *[(op, [P, Q], BOOL) for op in ("And", "Or", "Xor")],
    ("Not", [P], BOOL),
    *[(op, [N, M], I32) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")],
    ("BitwiseNot", [N], I32),
    *[
        (
            "BitShift",
            [as_type("uint8", 1, 200, 255), as_type("uint8", 1, 3, 7)],
            {"direction": way, "outputs": ("uint8",)},
        )
        for way in ("LEFT", "RIGHT")
    ],
    ("IsNaN", [f32(1, math.nan, -math.inf)], BOOL),
    *[
        ("IsInf", [f32(1, math.nan, -math.inf, math.inf)], {**BOOL, "detect_negative": low, "detect_positive": high})
        for low in (0, 1)
        for high in (0, 1)
    ],
    ("QuantizeLinear", [WIDE, BLOCKS, blocked("uint8", *range(12))], {"block_size": 3, "outputs": ("uint8",)}),
    ("QuantizeLinear", [WIDE, f32(0.5), as_type("int4", 1)], {"outputs": ("int4",)}),
    ("QuantizeLinear", [WIDE, f32(0.5), as_type("uint4", 8)], {"outputs": ("uint4",)}),
    ("QuantizeLinear", [WIDE, f32(0.5)], {"output_dtype": 22, "outputs": ("int4",)}),
    ("QuantizeLinear", [WIDE * 100, f32(0.5), as_type(E4, 0)], {"outputs": (E4,)}),
    ("DequantizeLinear", [WIDE.astype(np.int8), BLOCKS, blocked("int8", *range(12))], {"block_size": 3}),
    ("DequantizeLinear", [WIDE.astype(np.int8).astype(ml_dtypes.int4), f32(0.5), as_type("int4", -3)], {}),
    ("DequantizeLinear", [WIDE.astype(dt.NUMPY[E5]), f32(0.5)], {}),
    ("DequantizeLinear", [N, f32(0.5)], {"output_dtype": 1, "opset": 23}),
    ("Cast", [X], {"to": dt.ONNX[E4], "outputs": (E4,)}),
    ("Cast", [X.astype(dt.NUMPY[E5])], {"to": 1}),
    ("Cast", [N], {"to": dt.ONNX["int4"], "outputs": ("int4",)}),
    ("Cast", [as_type("uint4", 0, 7, 8, 15)], {"to": 6, "outputs": ("int32",)}),
    ("CastLike", [X, np.zeros(1, np.float64)], {"outputs": ("float64",)}),
]


@pytest.mark.parametrize(("op", "inputs", "options"), AGREES, ids=[f"{i}-{row[0]}" for i, row in enumerate(AGREES)])
def test_lowering_agrees_with_the_evaluator_of_onnx(op, inputs, options):
    actual, expected = ours(op, *inputs, **options), np.asarray(onnx_says(op, *inputs, **options))
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=2e-5, atol=1e-6)


# Compared in tests/test_operators.py, with the operators of the other families.
THERE = "Relu Neg Abs Sigmoid Tanh Exp Log Sqrt Erf Add Sub Mul Div Max Min Clip Where Identity DynamicQuantizeLinear"


def test_every_element_wise_operator_of_onnx_is_compared_with_its_evaluator():
    assert {row[0] for row in AGREES} | set(THERE.split()) == {name for domain, name in POINTWISE if not domain}


def test_infer_needs_no_data_and_gives_the_shape_of_the_result():
    for op, inputs, options in AGREES:
        proto, feeds = model(op, inputs, **options)
        graph = lower(proto, feeds)
        spec = graph.specs[graph.outputs[0]]
        assert (spec.shape, spec.dtype) == (ours(op, *inputs, **options).shape, options.get("outputs", ("float32",))[0])


# --- 8-bit floats: the table of ONNX's Cast ---------------------------------------------------------------

TOP = {E4: 448.0, E5: 57344.0, "float8e4m3fnuz": 240.0, "float8e5m2fnuz": 57344.0}
HALF = {E4: 16.0, E5: 4096.0, "float8e4m3fnuz": 8.0, "float8e5m2fnuz": 4096.0}


@pytest.mark.parametrize("word", sorted(TOP))
@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_to_eight_bits_follow_the_table_of_the_standard(word, saturate):
    top, half = TOP[word], HALF[word]
    x = f32(0, 1, top, top + half * 0.99, top + half * 1.01, -2 * top, math.inf, -math.inf, math.nan)
    beyond = top if saturate else math.inf if word == E5 else math.nan
    found = ours("Cast", x, to=dt.ONNX[word], saturate=saturate, outputs=(word,)).astype(np.float64)
    np.testing.assert_array_equal(found, [0, 1, top, top, beyond, -beyond, beyond, -beyond, math.nan])
    scaled = ours("QuantizeLinear", x, f32(1), as_type(word, 0), saturate=saturate, outputs=(word,))
    np.testing.assert_array_equal(scaled.astype(np.float64), found)


def test_a_tie_goes_to_the_even_eight_bit_float():
    found = ours("Cast", f32(1.0625, 1.1875, 17, 19), to=dt.ONNX[E4], outputs=(E4,)).astype(np.float64)
    assert found.tolist() == [1.0, 1.25, 16.0, 20.0]


def test_quantizing_float16_admits_the_quotient_in_float16_and_in_float32():
    x, scale = as_type("float16", 3.37), as_type("float16", 0.0157)
    found = exact("QuantizeLinear", x.reshape(1), scale, as_type(E4, 0), outputs=(E4,))
    quotients = {float(np.float16(x / scale)), float(np.float32(x) / np.float32(scale))}
    assert {float(v) for v in (found.lo[0], found.hi[0])} <= {
        float(np.float32(q).astype(dt.NUMPY[E4])) for q in quotients
    }


# --- Blocks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1, 2])
def test_a_block_has_its_own_scale_and_the_last_may_be_short(axis):
    x = RNG.integers(-100, 100, (5, 7, 6)).astype(np.int8)
    size, at = 3, axis % 3
    shape = tuple(math.ceil(d / size) if i == at else d for i, d in enumerate(x.shape))
    scale = f32(*RNG.uniform(0.1, 2, math.prod(shape))).reshape(shape)
    zero = RNG.integers(-5, 5, shape).astype(np.int8)
    of_block = np.arange(x.shape[at]) // size
    expected = (x.astype(np.float32) - zero.take(of_block, at)) * scale.take(of_block, at)
    interleaved = np.arange(x.shape[at]) % shape[at]
    found = ours("DequantizeLinear", x, scale, zero, axis=axis, block_size=size)
    np.testing.assert_array_equal(found, expected)
    assert (found != (x.astype(np.float32) - zero.take(interleaved, at)) * scale.take(interleaved, at)).any()


def test_a_finite_negative_scale_is_judged_by_the_formula():
    x = f32(3, -3, 5)
    assert ours("QuantizeLinear", x, f32(-2), as_type("uint8", 10), outputs=("uint8",)).tolist() == [8, 12, 8]
    assert ours("DequantizeLinear", as_type("int8", 3, -3), f32(-0.5), as_type("int8", 1)).tolist() == [-1.0, 2.0]


# --- What the standard leaves open -------------------------------------------------------------------------

INT_MAX = 2**31 - 1
OPEN = [
    ("Mod", [np.array([7, 7], np.int32), np.array([0, 2], np.int32)], I32, [True, False]),
    ("Div", [np.array([7, 7], np.int32), np.array([0, 2], np.int32)], I32, [True, False]),
    (
        "BitShift",
        [as_type("int8", -128, -128, 1), as_type("int8", 7, 8, -1)],
        {"direction": "RIGHT", "outputs": ("int8",), "opset": 28},
        [False, False, False],
    ),
    ("Pow", [np.array([2, 2, 46341], np.int32), np.array([-1, 3, 2], np.int32)], I32, [True, False, True]),
    ("Pow", [f32(0, math.inf, 1, 2), f32(0, 0, math.nan, 0)], {}, [True, True, True, False]),
    (
        "BitShift",
        [as_type("uint8", 1, 1), as_type("uint8", 8, 7)],
        {"direction": "LEFT", "outputs": ("uint8",)},
        [True, False],
    ),
    ("Sign", [f32(math.nan, -0.0, -math.inf)], {}, [True, False, False]),
    ("ThresholdedRelu", [f32(math.nan, 2)], {}, [True, False]),
    ("Shrink", [f32(math.nan, 2)], {}, [True, False]),
    *[(op, [f32(-math.inf, math.inf, 1)], {}, [True, False, False]) for op in ("Gelu", "HardSwish", "Mish")],
    ("Swish", [f32(-math.inf, math.inf, 1)], {"opset": 24}, [True, False, False]),
    ("Softsign", [f32(-math.inf, math.inf, 1)], {}, [True, True, False]),
    ("Cosh", [f32(89, 60, 90)], {}, [True, False, True]),
    ("Cast", [f32(1.5, 1, 8)], {"to": dt.ONNX["int4"], "outputs": ("int4",)}, [True, False, True]),
]


@pytest.mark.parametrize(("op", "inputs", "options", "free"), OPEN, ids=[f"{i}-{row[0]}" for i, row in enumerate(OPEN)])
def test_undecided_are_exactly_the_elements_that_the_standard_leaves_open(op, inputs, options, free):
    found = exact(op, *inputs, **options)
    assert (np.zeros(len(free), bool) if found.free is None else found.free).tolist() == free


NAN_KEPT = ["Elu", "Selu", "Celu", "Softplus", "HardSigmoid", "LeakyRelu", "Round", "Sin", "Cosh", "Reciprocal", "Gelu"]


@pytest.mark.parametrize("op", NAN_KEPT)
def test_nan_is_required_where_arithmetic_gives_it(op):
    found = exact(op, f32(math.nan, 1))
    assert found.nan is not None
    assert found.nan.tolist() == [True, False]
    assert found.free is None


def test_limits_are_decided_where_the_standard_gives_them():
    ends = f32(-math.inf, math.inf)
    for op, expected in {"Elu": [-1, math.inf], "Softplus": [0, math.inf], "HardSigmoid": [0, 1]}.items():
        found = exact(op, ends)
        assert found.free is None
        assert found.value.tolist() == expected
    assert exact("Reciprocal", f32(0, math.inf)).value.tolist() == [math.inf, 0]
    assert exact("Reciprocal", f32(0, math.inf)).free is None


# --- Faults are seen, honest kernels are not ---------------------------------------------------------------


def inside(found, actual):
    actual = np.asarray(actual, np.float64)
    return bool(((actual >= found.lo) & (actual <= found.hi)).all())


GRID = f32(*np.linspace(-6, 6, 400))
ERF = np.frompyfunc(math.erf, 1, 1)
FAULTS = [
    (
        "Gelu",
        {},
        lambda x: 0.5 * x * (1 + ERF(x / math.sqrt(2)).astype(np.float64)),
        lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))),
    ),
    ("Softplus", {}, lambda x: np.log1p(np.exp(x)), lambda x: np.log1p(np.exp(x)) + 2e-6),
    ("Elu", {}, lambda x: np.where(x < 0, np.expm1(x), x), lambda x: np.where(x < 0, np.expm1(x) * (1 + 4e-6), x)),
    ("Mish", {}, lambda x: x * np.tanh(np.log1p(np.exp(x))), lambda x: x * np.tanh(np.log1p(np.exp(x)) + 1e-5)),
    ("Sin", {}, np.sin, lambda x: x - x**3 / 6 + x**5 / 120),
    ("Atan", {}, np.arctan, lambda x: np.arctan(x) * (1 + 2e-6)),
    ("LeakyRelu", {}, lambda x: np.where(x < 0, x * np.float32(0.01), x), lambda x: np.where(x < 0, x * 0.0100001, x)),
    ("HardSwish", {}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1), lambda x: x * np.clip(x / 6.00001 + 0.5, 0, 1)),
]


@pytest.mark.parametrize(("op", "attrs", "right", "wrong"), FAULTS, ids=[row[0] for row in FAULTS])
def test_a_wide_kernel_rounded_once_passes_and_a_small_error_does_not(op, attrs, right, wrong):
    found, wide = exact(op, GRID, **attrs), GRID.astype(np.float64)
    assert inside(found, right(wide).astype(np.float32))
    assert not inside(found, wrong(wide).astype(np.float32))


def test_powers_by_exp_and_log_pass_and_a_wrong_exponent_does_not():
    x, y = f32(*np.geomspace(0.01, 100, 300)), np.full(300, 2.5, np.float32)
    found = exact("Pow", x, y)
    assert inside(found, np.exp(y * np.log(x)))  # in float32 throughout
    assert inside(found, (x.astype(np.float64) ** 2.5).astype(np.float32))
    assert not inside(found, (x.astype(np.float64) ** 2.50001).astype(np.float32))


# --- com.microsoft -----------------------------------------------------------------------------------------


def requantized(real, scale, zero, word="uint8"):
    low, high = dt.limits(word)
    return np.clip(np.rint(real / scale) + zero, low, high).astype(word)


def test_qlinear_functions_of_one_tensor_mean_their_real_formula():
    x = np.arange(256, dtype=np.uint8)
    real = (x.astype(np.float64) - 100) * 0.05
    common = {"domain": MS, "outputs": ("uint8",)}
    parameters = (f32(0.05), as_type("uint8", 100))
    found = exact("QLinearLeakyRelu", x, *parameters, f32(0.043), as_type("uint8", 50), alpha=0.2, **common)
    expected = requantized(np.where(real < 0, real * 0.2, real), 0.043, 50)
    assert ((expected >= found.lo) & (expected <= found.hi)).all()
    assert (found.hi - found.lo).mean() < 0.02
    found = exact("QLinearSigmoid", x, *parameters, f32(1 / 256), as_type("uint8", 0), **common)
    expected = requantized(1 / (1 + np.exp(-real)), 1 / 256, 0)
    assert ((expected >= found.lo) & (expected <= found.hi)).all()
    assert (found.hi - found.lo).mean() < 0.05


def test_microsofts_quantizelinear_is_that_of_onnx():
    for op, inputs in (
        ("QuantizeLinear", [WIDE, f32(0.1), as_type("int16", 7)]),
        ("DequantizeLinear", [N.astype(np.int16), f32(0.1), as_type("int16", 7)]),
    ):
        outputs = ("int16",) if op == "QuantizeLinear" else ("float32",)
        np.testing.assert_array_equal(ours(op, *inputs, domain=MS, outputs=outputs), ours(op, *inputs, outputs=outputs))


# --- Refusals ----------------------------------------------------------------------------------------------

REFUSED = [
    ("BitShift", [as_type("int8", 1), as_type("int8", 1)], {"direction": "LEFT"}, DtypeError, "uint8"),
    ("BitShift", [as_type("uint8", 1), as_type("uint8", 1)], {"direction": "left"}, ModelError, "'LEFT' or 'RIGHT'"),
    ("And", [X, X], {}, DtypeError, "bool"),
    ("BitwiseAnd", [X, X], {}, DtypeError, "int8"),
    ("Mod", [X, X], {}, UnknownOperatorError, "fmod=0"),
    ("Celu", [X], {"alpha": 0.0}, ModelError, "alpha"),
    ("Gelu", [X], {"approximate": "erf"}, ModelError, "approximate"),
    ("Shrink", [N], {}, UnknownOperatorError, "floats"),
    ("QuantizeLinear", [X, f32(1), as_type(E4, 1)], {}, UnknownOperatorError, "y_zero_point"),
    (
        "DequantizeLinear",
        [as_type("int8", 1, 2), f32(1, 2, 3)],
        {"block_size": 1, "axis": 0},
        ParameterError,
        "x_scale.*2",
    ),
    ("Equal", [X, N], {}, ModelError, "."),
]


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "error", "words"), REFUSED, ids=[f"{i}-{row[0]}" for i, row in enumerate(REFUSED)]
)
def test_a_wrong_model_is_refused_by_name(op, inputs, attrs, error, words):
    proto, feeds = model(op, inputs, outputs=("float32",), **attrs)
    with pytest.raises(error, match=words):
        lower(proto, feeds)


def test_narrow_initializers_are_unpacked():
    packed = onnx.TensorProto(data_type=22, dims=[3], name="x", raw_data=bytes([0xF1, 0x08]))  # 1, -1, -8
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"])
    graph = helper.make_graph([node], "g", [tensor("s", "float32", ())], [tensor("y", "float32", None)], [packed])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    feeds = {"s": np.float32(0.5).reshape(())}
    (found,) = evaluate(lower(proto, {"s": np.asarray(feeds["s"])}), {"s": np.asarray(feeds["s"])})
    assert found.value.tolist() == [0.5, -0.5, -4.0]
