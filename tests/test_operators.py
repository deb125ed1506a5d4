"""Lowerings mean what ONNX says: each against onnx's evaluator or numpy, each wrong model refused by name."""

import dataclasses
import inspect
import itertools
from functools import partial

import ml_dtypes
import numpy as np
import one_node
import onnx
import pytest
from one_node import data, ints
from onnx import helper

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import (
    ModelError,
)
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import MAX_OPSET
from opgauge.reference_engine.operators import OPERATORS

STATED = {"outputs": ("float32",), "fold": True}
model, lowered, ours, onnx_says = (
    partial(f, **STATED) for f in (one_node.model, one_node.lowered, one_node.ours, one_node.onnx_says)
)

MS = "com.microsoft"


def same(actual, expected):
    for left, right in zip(*(x if isinstance(x, list) else [x] for x in (actual, expected)), strict=True):
        assert (left.shape, left.dtype) == (np.shape(right), np.asarray(right).dtype)
        np.testing.assert_allclose(left.astype(np.float64), np.asarray(right).astype(np.float64), rtol=2e-5, atol=1e-6)


def f32(*values):
    return np.array(values if len(values) != 1 else values[0], np.float32)


def u8(*values):
    return np.array(values if len(values) != 1 else values[0], np.uint8)


I8, U8 = {"dtype": "int8"}, {"dtype": "uint8"}

# operator, inputs, options: what onnx's evaluator computes rightly.
AGREES = [
    ("MatMul", [data(2, 3, 4), data(4, 5)], {}),
    ("MatMul", [data(4), data(4)], {}),
    ("MatMul", [data(4), data(2, 4, 5)], {}),
    ("MatMul", [data(2, 1, 3, 4), data(3, 4, 2)], {}),
    ("MatMul", [data(3, 0), data(0, 2)], {}),
    ("MatMul", [data(0, 3), data(3, 2)], {}),
    ("MatMul", [data(2, 3, dtype="int32"), data(3, 2, dtype="int32")], {"outputs": ("int32",)}),
    ("Gemm", [data(3, 2), data(2, 4), data(4)], {}),
    ("Gemm", [data(2, 3), data(4, 2), data(3, 1)], {"alpha": 0.7, "beta": 0.3, "transA": 1, "transB": 1}),
    ("Gemm", [data(3, 2), data(2, 4)], {"alpha": 0.5}),
    ("Conv", [data(2, 3, 6, 5), data(4, 3, 2, 3), data(4)], {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ("Conv", [data(1, 2, 7), data(2, 1, 3)], {"group": 2, "dilations": [2], "kernel_shape": [3]}),
    ("Conv", [data(1, 1, 3, 4, 3), data(2, 1, 2, 2, 2)], {"auto_pad": "VALID"}),
    ("Conv", [data(1, 1, 5, 6), data(1, 1, 2, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("Conv", [data(1, 1, 5, 6), data(1, 1, 2, 3)], {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ("MatMulInteger", [data(2, 3, **U8), data(3, 4, **I8)], {"outputs": ("int32",)}),
    ("ConvInteger", [data(1, 2, 4, 4, **U8), data(2, 2, 3, 3, **U8)], {"outputs": ("int32",)}),
    *[(op, [data(2, 3)], {}) for op in ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Exp", "Erf", "Identity")],
    *[(op, [np.abs(data(2, 3))], {}) for op in ("Log", "Sqrt")],
    *[(op, [data(2, 1, 3), data(4, 1)], {}) for op in ("Add", "Sub", "Mul", "Div")],
    ("Add", [data(0, 3), data(1, 3)], {}),
    ("Add", [data(), data()], {}),
    ("Max", [data(2, 3), data(3), data(1)], {}),
    ("Min", [data(2, 3)], {}),
    ("Clip", [data(5), f32(-0.5), f32(0.5)], {}),
    ("Clip", [data(5), None, f32(0.5)], {}),
    ("Clip", [data(5)], {}),
    ("Where", [data(2, 1) > 0, data(3), data(2, 3)], {}),
    ("Cast", [data(4)], {"to": 7, "outputs": ("int64",)}),
    ("Cast", [data(4)], {"to": 10, "outputs": ("float16",), "saturate": 1}),
    ("Softmax", [data(2, 3, 4)], {"axis": 1}),
    ("Softmax", [data(2, 0)], {}),
    ("ReduceSum", [data(2, 3, 4), ints(0, -1)], {"keepdims": 0}),
    ("ReduceSum", [data(2, 3)], {}),
    ("ReduceSum", [data(2, 3)], {"noop_with_empty_axes": 1}),
    ("ReduceSum", [data(2, 0), ints(1)], {}),
    ("ReduceMean", [data(2, 3, 4)], {"axes": [1], "opset": 13}),
    ("ReduceMean", [data(2, 3, 4), ints(-2)], {"opset": 18}),
    ("ReduceMax", [data(2, 3)], {"axes": [0], "keepdims": 0, "opset": 13}),
    ("ReduceMax", [data(2, 3) > 0, ints(1)], {"outputs": ("bool",)}),
    ("ReduceMin", [data(2, 3), ints(0)], {"opset": 18}),
    ("MaxPool", [data(1, 2, 5, 5)], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    ("MaxPool", [data(1, 1, 6)], {"kernel_shape": [2], "dilations": [2], "storage_order": 1}),
    ("MaxPool", [data(1, 1, 4, 4)], {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER"}),
    ("AveragePool", [data(1, 2, 5, 5)], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}),
    ("AveragePool", [data(1, 2, 5)], {"kernel_shape": [3], "pads": [1, 1], "count_include_pad": 1}),
    ("AveragePool", [data(1, 1, 7)], {"kernel_shape": [2], "dilations": [3]}),
    ("GlobalAveragePool", [data(2, 3, 4, 2)], {}),
    ("GlobalMaxPool", [data(2, 3, 4, 2)], {}),
    ("Transpose", [data(2, 3, 4)], {}),
    ("Transpose", [data(2, 3, 4)], {"perm": [1, 2, 0]}),
    ("Reshape", [data(2, 3, 4), ints(0, -1)], {}),
    ("Reshape", [data(0, 3), ints(3, 0)], {"allowzero": 1}),
    ("Flatten", [data(2, 3, 4)], {"axis": 0}),
    ("Flatten", [data(2, 3, 4)], {"axis": -1}),
    ("Squeeze", [data(1, 3, 1)], {}),
    ("Squeeze", [data(1, 3, 1), ints(-1)], {}),
    ("Unsqueeze", [data(2, 3), ints(0, -1)], {}),
    ("Concat", [data(2, 1), data(2, 3)], {"axis": -1}),
    ("Split", [data(5, 2), ints(2, 3)], {"outputs": ("float32", "float32")}),
    ("Split", [data(5, 2)], {"num_outputs": 2, "outputs": ("float32", "float32")}),
    ("Split", [data(2, 4)], {"axis": 1, "opset": 13, "outputs": ("float32", "float32")}),
    ("Slice", [data(6, 4), ints(1), ints(2**63 - 1)], {}),
    ("Slice", [data(6, 4), ints(-1, -100), ints(-(2**63), 3), ints(0, -1), ints(-2, 2)], {}),
    ("Slice", [data(6), ints(4), ints(2)], {}),
    ("Pad", [data(2, 3), ints(1, 0, 0, 2), f32(3.5)], {}),
    ("Pad", [data(4, 4), ints(2, 1), None, ints(-1)], {"mode": "reflect"}),
    ("Pad", [data(2, 3), ints(1, 0, 0, 2)], {"mode": "edge"}),
    ("Pad", [data(3, 3), ints(1, 0, 0, 2)], {"mode": "wrap"}),
    ("Gather", [data(3, 4), np.array([[0, -1]], np.int32)], {"axis": 1}),
    ("Gather", [data(3, 4), np.array(2, np.int64)], {}),
    ("Expand", [data(3, 1), ints(2, 1, 4)], {}),
    ("QuantizeLinear", [data(2, 3), f32(0.1), u8(7)], {"outputs": ("uint8",)}),
    ("QuantizeLinear", [data(2, 3), f32(0.1, 0.2), u8(7, 9)], {"axis": 0, "outputs": ("uint8",)}),
    ("QuantizeLinear", [data(2, 3), f32(0.01)], {"output_dtype": 5, "outputs": ("int16",)}),
    ("DequantizeLinear", [data(2, 3, **I8), f32(0.1, 0.2, 0.3), np.array([1, 2, 3], np.int8)], {"axis": -1}),
    ("DequantizeLinear", [data(2, 3, dtype="int32"), f32(0.1)], {}),
    ("DynamicQuantizeLinear", [data(3, 4)], {"outputs": ("uint8", "float32", "uint8")}),
]


@pytest.mark.parametrize(("op", "inputs", "options"), AGREES, ids=[f"{i}-{row[0]}" for i, row in enumerate(AGREES)])
def test_lowering_agrees_with_the_evaluator_of_onnx(op, inputs, options):
    same(ours(op, *inputs, **options), onnx_says(op, *inputs, **options))


def test_every_operator_of_onnx_is_compared_with_its_evaluator():
    apart = {"QLinearMatMul", "QLinearConv"}  # compared with numpy below
    # The rest has its own table in tests/test_operators_<family>_more.py, each held complete there.
    assert {row[0] for row in AGREES} | apart <= {name for domain, name in OPERATORS if not domain}


def planted(op, wrong):
    """The table with one wrong lowering."""
    row = OPERATORS["", op]
    return {**OPERATORS, ("", op): dataclasses.replace(row, lower=wrong(row.lower))}


@pytest.mark.parametrize(
    ("op", "wrong", "row"),
    [
        ("Sub", lambda right: lambda emit, A, B: right(emit, B, A), 0),
        ("Gemm", lambda right: lambda emit, A, B, C=None, **attrs: right(emit, A, B, **attrs), 0),
        ("ReduceMean", lambda right: OPERATORS["", "ReduceSum"].lower, 1),
        ("Softmax", lambda right: lambda emit, x, *, axis=-1: right(emit, x, axis=-1), 0),
    ],
)
def test_a_wrong_lowering_is_seen(monkeypatch, op, wrong, row):
    _, inputs, options = [r for r in AGREES if r[0] == op][row]
    same(ours(op, *inputs, **options), onnx_says(op, *inputs, **options))  # control

    monkeypatch.setattr("opgauge.reference_engine.lower.OPERATORS", planted(op, wrong))
    with pytest.raises(AssertionError):
        same(ours(op, *inputs, **options), onnx_says(op, *inputs, **options))


# Attributes: a lowering knows those of the schema, at every opset.

SCHEMAS = [
    (name, opset)
    for (domain, name), row in OPERATORS.items()
    if not domain
    for opset in range(max(row.since, 7), MAX_OPSET + 1)
]


def is_versioned(lower_fn):
    return "versions" in inspect.getclosurevars(lower_fn).nonlocals


def accepted(name, opset):
    """Attributes that the lowering takes at an opset."""
    lower_fn = OPERATORS["", name].lower
    names = {p.name for p in inspect.signature(lower_fn).parameters.values() if p.kind is p.KEYWORD_ONLY}
    versions = inspect.getclosurevars(inspect.unwrap(lower_fn, stop=is_versioned)).nonlocals.get("versions", {})
    return {n for n in names if n not in versions or versions[n][0] <= opset <= (versions[n][1] or MAX_OPSET)}


@pytest.mark.parametrize("name", sorted({name for name, _ in SCHEMAS}))
def test_lowering_takes_exactly_the_attributes_of_the_schema_at_every_opset(name):
    for opset in (o for n, o in SCHEMAS if n == name):
        schema = onnx.defs.get_schema(name, opset, "")
        assert (opset, accepted(name, opset)) == (opset, set(schema.attributes))


def test_attribute_defaults_are_those_of_the_schema():
    for (domain, name), row in OPERATORS.items():
        schema = None if domain else onnx.defs.get_schema(name, MAX_OPSET, "")
        for p in inspect.signature(row.lower).parameters.values() if schema else ():
            if p.kind is p.KEYWORD_ONLY and p.name in schema.attributes:
                attribute = schema.attributes[p.name]
                given = attribute.default_value
                value = helper.get_attribute_value(given) if given.name else None
                if isinstance(value, list):
                    value = tuple(v.decode() if isinstance(v, bytes) else v for v in value)
                value = value.decode() if isinstance(value, bytes) else value
                if isinstance(value, float):
                    value = p.default if np.float32(p.default) == np.float32(value) else value  # stored as float32
                assert (name, p.name, p.default) == (name, p.name, p.empty if attribute.required else value)


def test_inputs_are_as_many_as_in_the_schema():
    for (domain, name), row in OPERATORS.items():
        if not domain:
            parameters = list(inspect.signature(row.lower).parameters.values())[1:]
            positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
            variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
            schemas = [onnx.defs.get_schema(name, opset, "") for n, opset in SCHEMAS if n == name]
            least = sum(p.default is p.empty for p in positional)
            expected = min(schema.min_input for schema in schemas), max(schema.max_input for schema in schemas)
            assert (name, variadic or (least, len(positional))) == (name, variadic or expected)


# Quantized products against integers in numpy.


def quantized(acc, scale, zero_point, dtype="uint8"):
    low, high = dt.limits(dtype)
    return np.clip(np.rint(acc * np.float64(scale)) + zero_point, low, high).astype(dtype)


def wide(x):
    return x.astype(np.int64)


def test_matmulinteger_takes_a_zero_point_per_row_and_per_column():
    A, B = data(2, 3, 4, **U8), data(4, 5, **I8)
    rows, columns = data(3, **U8), data(5, **I8)
    expected = (wide(A) - wide(rows)[:, None]) @ (wide(B) - wide(columns))
    same(ours("MatMulInteger", A, B, rows, columns, outputs=("int32",)), expected.astype(np.int32))
    same(
        ours("MatMulInteger", A, B, np.array([3], np.uint8), outputs=("int32",)),
        ((wide(A) - 3) @ wide(B)).astype(np.int32),
    )
    deep = data(2, 3, 1, **U8)
    expected = (wide(A) - wide(deep)) @ wide(B)
    same(ours("MatMulInteger", A, B, deep, outputs=("int32",)), expected.astype(np.int32))


def test_matmulinteger_wraps_at_32_bits():
    A, B = np.full((1, 40_000), 255, np.uint8), np.full((40_000, 1), 255, np.uint8)
    assert ours("MatMulInteger", A, B, outputs=("int32",))[0, 0] == 40_000 * 255**2 - 2**32


def test_qlinearmatmul_takes_parameters_per_row_and_per_column():
    a, b = data(2, 3, 4, **U8), data(4, 5, **I8)
    a_scale, b_scale = f32(0.5, 0.25, 2), f32(0.5, 1, 2, 0.25, 4)
    a_zero, b_zero = u8(1, 2, 3), np.array([0, -1, 2, 3, 4], np.int8)
    acc = (wide(a) - wide(a_zero)[:, None]) @ (wide(b) - wide(b_zero))
    for opset in (10, 21):
        y = ours(
            "QLinearMatMul", a, a_scale, a_zero, b, b_scale, b_zero, f32(256), u8(128), opset=opset, outputs=("uint8",)
        )
        same(y, quantized(acc, a_scale[:, None] * b_scale / 256, 128))
    y = ours("QLinearMatMul", a[0, 0], f32(0.5), u8(1), b, f32(0.5), np.int8(0), f32(16), u8(9), outputs=("uint8",))
    same(y, quantized((wide(a[0, 0]) - 1) @ wide(b), 0.25 / 16, 9))


def convolved(x, w, pad, group=1):
    """Direct sum over windows of stride 1 with `pad` zeros around, in int64."""
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    (n, _, h, v), (m, cg, p, q) = x.shape, w.shape
    y = np.zeros((n, m, h - p + 1, v - q + 1), np.int64)
    for i, j in itertools.product(range(y.shape[2]), range(y.shape[3])):
        for o in range(m):
            g = o // (m // group)
            window = x[:, g * cg : (g + 1) * cg, i : i + p, j : j + q]
            y[:, o, i, j] = (window * w[o]).sum((1, 2, 3))
    return y


@pytest.mark.parametrize("group", [1, 2])
def test_convinteger_pads_with_the_zero_point_and_takes_one_per_channel(group):
    x, w = data(2, 4, 4, 3, **U8), data(4, 4 // group, 3, 2, **I8)
    w_zero = np.array([1, -2, 3, 0], np.int8)
    expected = convolved(wide(x) - 7, wide(w) - wide(w_zero)[:, None, None, None], 1, group).astype(np.int32)
    y = ours("ConvInteger", x, w, u8(7), w_zero, group=group, pads=[1, 1, 1, 1], outputs=("int32",))
    same(y, expected)


@pytest.mark.parametrize("per_channel", [False, True])
def test_qlinearconv_adds_the_bias_before_it_scales(per_channel):
    x, w, B = data(1, 2, 4, 4, **U8), data(3, 2, 3, 3, **I8), np.array([100, -3000, 5], np.int32)
    w_scale = f32(0.5, 2, 0.25) if per_channel else f32(0.5)
    w_zero = np.array([1, 0, -5], np.int8) if per_channel else np.array(1, np.int8)
    acc = convolved(wide(x) - 9, wide(w) - wide(w_zero).reshape(-1, 1, 1, 1), 1) + B[:, None, None]
    y = ours(
        "QLinearConv", x, f32(0.5), u8(9), w, w_scale, w_zero, f32(128), u8(100), B, pads=[1] * 4, outputs=("uint8",)
    )
    same(y, quantized(acc, 0.5 * w_scale.reshape(-1, 1, 1) / 128, 100))


def test_qgemm_multiplies_the_bias_by_alpha_and_may_return_floats():
    A, B, C = data(4, 3, **U8), data(5, 4, **I8), np.array([[10], [-20], [30]], np.int32)
    acc = (wide(A).T - 3) @ (wide(B).T - 1) + C
    options = {"transA": 1, "transB": 1, "alpha": 0.5, "domain": MS}
    given = [A, f32(0.5), u8(3), B, f32(2), np.array(1, np.int8), C]
    same(ours("QGemm", *given, f32(64), u8(11), outputs=("uint8",), **options), quantized(acc, 0.5 / 64, 11))
    same(ours("QGemm", *given, **options), (acc * 0.5).astype(np.float32))
    with pytest.raises(ModelError, match="y_zero_point"):
        lowered("QGemm", *given, f32(64), **options)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_qlinear_add_and_mul_broadcast_and_round_once(op):
    A, B = data(2, 1, 3, **U8), data(2, 1, **U8)
    a, b = wide(A) - 5, wide(B) - 9
    real = (a * 0.5 + b * 0.25) / 2 if op == "QLinearAdd" else a * b * 0.125 / 64
    y_scale = f32(2) if op == "QLinearAdd" else f32(64)
    exact = evaluate(
        *lowered(op, A, f32(0.5), u8(5), B, f32(0.25), u8(9), y_scale, u8(100), domain=MS, outputs=("uint8",))
    )[0]
    expected = quantized(real, 1, 100)
    # A tie may go either way with the zero point inside.
    assert ((exact.lo <= expected) & (expected <= exact.hi)).all()
    assert exact.value.shape == (2, 2, 3)


# Special values, forms and edges.


def test_dynamic_quantization_of_zeros_has_scale_one():
    y, scale, zero_point = ours("DynamicQuantizeLinear", np.zeros(3, np.float32), outputs=("uint8", "float32", "uint8"))
    assert (y.tolist(), float(scale), int(zero_point)) == ([0, 0, 0], 1.0, 0)
    y, scale, zero_point = ours("DynamicQuantizeLinear", f32(1, 2, 3), outputs=("uint8", "float32", "uint8"))
    assert (float(scale), int(zero_point)) == (float(np.float32(3) / np.float32(255)), 0)
    assert OPERATORS["", "DynamicQuantizeLinear"].forced == (1, 2)


def test_gemm_emits_no_multiply_for_factors_of_one():
    def kinds(**attrs):
        return [node.kind for node in lowered("Gemm", data(2, 3), data(3, 4), data(4), **attrs)[0].nodes]

    assert kinds() == ["Gemm", "DataMove.reshape", "DataMove.expand", "Elementwise.add"]
    assert kinds(alpha=0.5).count("Elementwise.mul") == 1
    assert kinds(alpha=0.5, beta=2.0).count("Elementwise.mul") == 2


def test_convolution_transposes_nothing():
    graph, _ = lowered("Conv", data(1, 4, 5, 5), data(6, 2, 3, 3), data(6), group=2)
    assert not [n for n in graph.nodes if n.kind == "DataMove.transpose"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_floats_are_summed_in_float32(dtype):
    ones = np.ones((1, 4097), dt.NUMPY[dtype])
    assert float(ours("MatMul", ones, ones.T, outputs=(dtype,))[0, 0]) == float(np.float32(4097).astype(ones.dtype))
    assert float(ours("ReduceMean", ones, outputs=(dtype,))[0, 0]) == 1.0
    graph, _ = lowered("Conv", ones[None], np.ones((1, 1, 2), ones.dtype), outputs=(dtype,))
    assert {graph.specs[n.output].dtype for n in graph.nodes if n.primitive == "Gemm"} == {"float32"}


def test_clip_with_crossed_bounds_gives_max():
    assert ours("Clip", data(3), f32(2), f32(-2)).tolist() == [-2, -2, -2]


def test_a_last_pooling_window_in_the_padding_is_dropped():
    x = data(1, 1, 4)
    options = {"kernel_shape": [1], "strides": [3], "pads": [0, 1], "ceil_mode": 1}
    assert ours("MaxPool", x, **options).shape == (1, 1, 2)  # a third window would start at 6, in the padding
    y = ours("AveragePool", data(1, 1, 5), kernel_shape=[2], strides=[2], ceil_mode=1, count_include_pad=1)
    # The overhang of ceil_mode never counts.
    assert y[0, 0, 2] == data(1, 1, 5)[0, 0, 4]


def test_pooling_pads_with_the_lowest_value():
    assert ours(
        "MaxPool", np.full((1, 1, 2), -128, np.int8), kernel_shape=[2], pads=[1, 1], outputs=("int8",)
    ).tolist() == [[[-128, -128, -128]]]
    assert ours("MaxPool", f32(-5, -7).reshape(1, 1, 2), kernel_shape=[2], pads=[1, 1]).tolist() == [[[-5, -5, -7]]]


def test_reducing_nothing_gives_the_identity():
    assert ours("ReduceMax", data(2, 0), ints(1)).tolist() == [[-np.inf], [-np.inf]]
    assert ours("ReduceMin", np.zeros((1, 0), np.int32), ints(1), outputs=("int32",)).tolist() == [[2**31 - 1]]
    assert ours("ReduceMean", data(0, 0), ints(1)).shape == (0, 1)


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [
        (-100, -(2**63), -1, [0]),  # unlike Python, which takes nothing
        (0, 2**31 - 1, -1, []),
        (2**31 - 1, -(2**31), -1, [3, 2, 1, 0]),
        (3, -1, -1, []),
        (-1, -3, -1, [3, 2]),
        (1, 100, 2, [1, 3]),
    ],
)
def test_slice_clamps_as_the_standard_says(start, end, step, expected):
    y = ours("Slice", f32(0, 1, 2, 3), ints(start), ints(end), ints(0), ints(step))
    assert y.tolist() == expected


def test_slice_of_an_empty_axis_is_empty():
    assert ours("Slice", data(0, 2), ints(-1), ints(-(2**63)), ints(0), ints(-1)).shape == (0, 2)


def test_negative_pads_crop():
    assert ours("Pad", f32(1, 2, 3), ints(-1, 1)).tolist() == [2, 3, 0]
    assert ours("Pad", f32(1), ints()).tolist() == 1  # a scalar has nothing to pad


def test_quantize_defaults_and_types():
    x = data(2, 3)
    assert lowered("QuantizeLinear", x, f32(0.1), outputs=("uint8",), opset=13)[0].specs  # uint8 0
    assert ours("QuantizeLinear", x, f32(0.1), outputs=("uint8",), opset=13).dtype == np.uint8
    half = x.astype(np.float16)
    graph, _ = lowered("QuantizeLinear", half, f32(0.1), u8(0), outputs=("uint8",), opset=23, precision=1)
    assert graph.nodes[-2].attrs["precision"] == "float32"
    graph, _ = lowered("QuantizeLinear", x, np.float16(0.1), u8(0), outputs=("uint8",), opset=23)
    assert [n.attrs["precision"] for n in graph.nodes if n.primitive == "Quantize"] == ["float16"]
    y = ours("DequantizeLinear", data(2, **I8), np.array(0.5, ml_dtypes.bfloat16), outputs=("bfloat16",))
    assert y.dtype == ml_dtypes.bfloat16
    assert ours("DequantizeLinear", data(2, **I8), np.float16(0.5), opset=23, output_dtype=1).dtype == np.float32
    assert ours("QuantizeLinear", x, f32(-0.1), u8(100), outputs=("uint8",)).dtype == np.uint8  # legal, if odd
