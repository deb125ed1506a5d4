"""Models that ONNX does not allow are refused with a typed error that names the node and the fault."""

import inspect

import numpy as np
import one_node
import pytest
from one_node import data, ints, tensor
from onnx import helper

from opgauge.reference_engine.errors import (
    DtypeError,
    ModelError,
    OpgaugeError,
    ParameterError,
    ShapeError,
    UnknownOperatorError,
)
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.operators import OPERATORS

MS = "com.microsoft"
I8, U8 = {"dtype": "int8"}, {"dtype": "uint8"}


def lowered(op, *inputs, **options):
    return one_node.lowered(op, *inputs, **{"outputs": ("float32",), "fold": True, **options})[0]


def f32(*values):
    return np.array(values if len(values) != 1 else values[0], np.float32)


def u8(*values):
    return np.array(values if len(values) != 1 else values[0], np.uint8)


@pytest.mark.parametrize(
    ("op", "attrs", "opset"),
    [
        ("AveragePool", {"kernel_shape": [2], "dilations": [1]}, 18),
        ("ReduceMax", {"axes": [0]}, 18),
        ("ReduceMax", {"noop_with_empty_axes": 1}, 17),
        ("Cast", {"to": 1, "saturate": 1}, 13),
        ("Split", {"num_outputs": 1}, 13),
        ("DequantizeLinear", {"output_dtype": 1}, 21),
        ("Relu", {"alpha": 1.0}, 21),
    ],
)
def test_an_attribute_of_another_opset_is_refused_by_name(op, attrs, opset):
    name = list(attrs)[-1]
    inputs = [data(1, 1, 4, **I8), f32(0.5)] if op == "DequantizeLinear" else [data(1, 1, 4)]
    with pytest.raises(UnknownOperatorError, match=name):
        lowered(op, *inputs, opset=opset, **attrs)


def test_a_missing_required_attribute_is_refused():
    for op in ("Cast", "MaxPool", "AveragePool", "Concat"):
        with pytest.raises(ModelError):
            lowered(op, data(1, 1, 4))


# What is wrong is refused, naming the node and the fault.


def q(scale=None, zero_point=None):
    return [data(2, 3), f32(0.1) if scale is None else scale, u8(0) if zero_point is None else zero_point]


STRIDE_4 = {"auto_pad": "SAME_UPPER", "strides": [4]}
CEIL_VALID = {"kernel_shape": [2], "strides": [2], "auto_pad": "VALID", "ceil_mode": 1}
REFUSED = [
    ("MatMul", [data(2, 3), data(4, 2)], {}, ShapeError, "2x3.*4x2"),
    ("MatMul", [data(2, 2, 3), data(3, 3, 2)], {}, ShapeError, "broadcast"),
    ("MatMul", [data(), data(2)], {}, ShapeError, "scalar"),
    ("MatMul", [data(2, 2), data(2, 2, dtype="float64")], {}, DtypeError, "float32.*float64"),
    ("MatMul", [data(2, 2, **U8), data(2, 2, **U8)], {}, DtypeError, "uint8"),
    ("Gemm", [data(2, 3), data(2, 3)], {}, ShapeError, "2x3.*2x3"),
    ("Gemm", [data(2, 3), data(3, 2), data(3, 2)], {}, ShapeError, "3x2.*2x2"),
    ("Gemm", [data(1, 3), data(3, 2), data(3, 2)], {}, ShapeError, "3x2.*1x2"),
    ("Conv", [data(1, 3, 4), data(2, 2, 3)], {}, ShapeError, "1x3x4.*2x2x3"),
    ("Conv", [data(1, 1, 2), data(1, 1, 3)], {}, ShapeError, "does not fit"),
    ("Conv", [data(1, 1, 4), data(1, 1, 3)], {"kernel_shape": [2]}, ShapeError, "kernel_shape"),
    ("Conv", [data(1, 1, 4), data(1, 1, 3)], {"pads": [1]}, ShapeError, "pads"),
    ("Conv", [data(1, 1, 4), data(1, 1, 3)], {"strides": [0]}, ShapeError, "strides"),
    ("Conv", [data(1, 1, 4), data(1, 1, 3)], {"auto_pad": "SAME"}, ModelError, "auto_pad"),
    ("Conv", [data(1, 1, 4), data(1, 1, 3)], {"auto_pad": "VALID", "pads": [1, 1]}, ModelError, "exclude"),
    ("Conv", [data(1, 1, 7), data(1, 1, 1)], STRIDE_4, UnknownOperatorError, "use pads"),
    ("Conv", [data(1, 1, 4), data(2, 1, 3), data(3)], {}, ShapeError, "one bias per output channel"),
    ("MaxPool", [data(1, 4)], {"kernel_shape": [2]}, ShapeError, "spatial"),
    ("MaxPool", [data(1, 1, 5)], CEIL_VALID, UnknownOperatorError, "contradicts"),
    ("MatMulInteger", [data(2, 3, **U8), data(3, 2, **U8), u8(1, 2, 3)], {}, ParameterError, "a_zero_point.*3"),
    ("MatMulInteger", [data(2, 3, **U8), data(3, 2, **U8), np.int8(1)], {}, DtypeError, "a_zero_point"),
    ("Conv", [data(1, 1, 4), data(1, 1, 3)], {"pads": 1}, ModelError, "pads is 1"),
    ("Conv", [data(1, 1, 4), data(1, 1, 3)], {"strides": [1.5]}, ModelError, "strides"),
    ("Gemm", [data(2, 3), data(3, 2)], {"alpha": 2}, ModelError, "alpha"),
    ("Add", [data(2, 3), data(2)], {}, ShapeError, "2x3 and 2"),
    ("Add", [data(2), data(2, dtype="int32")], {}, DtypeError, "int32"),
    ("Clip", [data(2), f32(1, 2)], {}, ShapeError, "min"),
    ("Cast", [data(2)], {"to": 23}, DtypeError, "23"),
    ("QuantizeLinear", q(scale=f32(0)), {}, ParameterError, "y_scale.*0.0"),
    ("QuantizeLinear", q(scale=f32(np.nan)), {}, ParameterError, "y_scale.*nan"),
    ("QuantizeLinear", q(scale=f32(np.inf)), {}, ParameterError, "y_scale.*inf"),
    ("QuantizeLinear", q(scale=f32(0.1, 0.2), zero_point=u8(1, 2)), {}, ParameterError, "y_scale.*3 elements"),
    ("QuantizeLinear", q(scale=f32(1, 2, 3)), {}, ParameterError, "y_zero_point"),
    ("QuantizeLinear", q(), {"block_size": 2}, ParameterError, "y_scale.*2x2.*blocks of 2"),
    ("QuantizeLinear", q(scale=f32(1)), {"block_size": -1}, ParameterError, "block_size is -1"),
    ("QuantizeLinear", q(), {"output_dtype": 3}, DtypeError, "int8.*uint8"),
    ("QLinearAdd", [u8(1), f32(-1), None, u8(1), f32(1), None, f32(1)], {"domain": MS}, ParameterError, "A_scale.*> 0"),
    ("QLinearAdd", [u8(1), f32(1, 2), None, u8(1), f32(1), None, f32(1)], {"domain": MS}, ParameterError, "A_scale"),
    ("Softmax", [data(2, 3)], {"axis": 2}, ShapeError, "axis 2"),
    ("ReduceSum", [data(2, 3), ints(0, -2)], {}, ModelError, "twice"),
    ("Transpose", [data(2, 3)], {"perm": [0, 0]}, ShapeError, "perm"),
    ("Reshape", [data(2, 3), ints(4, -1)], {}, ShapeError, "2x3"),
    ("Reshape", [data(2, 3), ints(-1, -1)], {}, ModelError, "-1"),
    ("Reshape", [data(2, 3), ints(6, 1, 0)], {}, ShapeError, "does not have"),
    ("Flatten", [data(2, 3)], {"axis": 3}, ShapeError, "axis 3"),
    ("Squeeze", [data(2, 3), ints(0)], {}, ShapeError, "axis 0"),
    ("Unsqueeze", [data(2), ints(0, 0)], {}, ModelError, "twice"),
    ("Concat", [data(2, 3), data(3, 3)], {"axis": 1}, ShapeError, "axis 1"),
    ("Split", [data(5)], {"opset": 13, "outputs": ("float32",) * 2}, ShapeError, "equal"),
    ("Split", [data(5), ints(2, 2)], {"outputs": ("float32",) * 2}, ShapeError, "2 outputs"),
    ("Slice", [data(5), ints(0), ints(2), ints(0), ints(0)], {}, ModelError, "step"),
    ("Slice", [data(5), ints(0), ints(2, 3)], {}, ShapeError, "length"),
    ("Pad", [data(2), ints(4, -3)], {}, ShapeError, "crop"),
    ("ReduceMean", [data(2, 0), ints(1)], {}, ShapeError, "undefined"),
    ("Pad", [data(5), ints(1)], {}, ShapeError, "pads"),
    ("Pad", [data(5), ints(0, 1)], {"mode": "mirror"}, ModelError, "mirror"),
    ("Gather", [data(3), ints(3)], {}, ShapeError, "index 3"),
    ("Gather", [data(3), f32(1)], {}, DtypeError, "indices"),
    ("Expand", [data(3), ints(2)], {}, ShapeError, "broadcast"),
    ("DynamicQuantizeLinear", [data(3, dtype="float64")], {}, DtypeError, "float64"),
]


@pytest.mark.parametrize(
    ("op", "inputs", "options", "error", "message"), REFUSED, ids=[f"{i}-{row[0]}" for i, row in enumerate(REFUSED)]
)
def test_a_wrong_model_is_refused_by_name(op, inputs, options, error, message):
    with pytest.raises(error, match=message) as caught:
        lowered(op, *inputs, **options)
    assert op in str(caught.value)


def test_every_absent_required_input_is_refused_and_never_crashes():
    for (domain, name), row in OPERATORS.items():
        parameters = list(inspect.signature(row.lower).parameters.values())[1:]
        count = max(1, sum(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters))
        with pytest.raises(OpgaugeError):
            lowered(name, *[None] * count, domain=domain, **REQUIRED.get(name, {}))


REQUIRED = {
    "Cast": {"to": 1},
    "Concat": {"axis": 0},
    "MaxPool": {"kernel_shape": [1]},
    "AveragePool": {"kernel_shape": [1]},
}


def test_a_shape_from_a_run_time_input_binds_the_plan_and_a_scale_does_not():
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    graph = helper.make_graph(
        [node], "g", [tensor("x", "float32", [4]), tensor("shape", "int64", [2])], [tensor("y", "float32", None)]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    assert lower(proto, {"x": data(4), "shape": ints(2, 2)}).bound == ("shape",)
    assert lowered("QuantizeLinear", *q(), outputs=("uint8",)).bound == ()
