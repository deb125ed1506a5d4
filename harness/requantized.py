"""Requantization as LiteRT's kernels do it where only values are picked or scaled: models for `instead.INSTEAD`.

A value x of an operand becomes x * (x_scale / y_scale). Here that number is rounded twice, or the multiplier is.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from opgauge.reference_engine.types import Array

WIDE_OPSET = 21  # the first with int16 in QuantizeLinear
FRACTION = 256.0


def multiplier_of_16_bits(model: onnx.ModelProto, scales: dict[str, Array]) -> dict[str, Array]:
    """Every x_scale / y_scale as the nearest multiple of 1/256; LeakyRelu with two such multipliers.

    int16, and multipliers outside [2^-8, 2^7], XNNPACK leaves to the kernels that round twice.
    Raises: ValueError where only some of them do.
    Source: XNNPACK's conversions of one quantized type to another, and its leaky ReLU: 8 bits of fraction.
    """
    if any(info.type.tensor_type.elem_type == TensorProto.INT16 for info in model.graph.input):
        return rounded_twice(model, scales)
    y_scale = _result(model)
    names = _operands(model)
    y = np.float32(scales[y_scale].reshape(()))
    if model.graph.node[0].op_type == "QLinearLeakyRelu":
        (name,) = names
        ratio = scales[name].reshape(()) / y
        sides = np.asarray([ratio, ratio * np.float32(_alpha(model))])
        if not _taken(np.abs(sides)).all():
            return rounded_twice(model, scales)
        positive, negative = _in_256ths(sides)
        _leaky(model, float(positive), float(negative))
        return {name: np.ones_like(scales[name]), y_scale: np.ones_like(scales[y_scale])}
    taken = {bool(_taken(scales[name] / y)) for name in names}
    if taken == {False}:
        return rounded_twice(model, scales)
    if len(taken) > 1:
        raise ValueError("multipliers of both kinds")
    rounded = {name: np.asarray(_in_256ths(scales[name] / y), np.float32) for name in names}
    return {**rounded, y_scale: np.ones_like(scales[y_scale])}


def _taken(ratio: Array) -> Array:
    return np.asarray((ratio >= 1.0 / FRACTION) & (ratio <= FRACTION / 2))


def _in_256ths(ratio: Array) -> Array:
    return np.rint(FRACTION * np.asarray(ratio, np.float64)) / FRACTION


def rounded_twice(model: onnx.ModelProto, scales: dict[str, Array]) -> dict[str, Array]:
    """Each operand rounded to whole multiples of 2^-n quanta of the result, x_scale / y_scale = M 2^-n, 1/2 <= M < 1.

    Source: N10: the high half of a doubled product of 31 bits, then a rounding shift by n.
    """
    y_name = _result(model)
    y = float(scales[y_name].reshape(()))
    if model.graph.node[0].op_type == "QLinearConcat":
        raise ValueError("QLinearConcat has no DequantizeLinear to be rounded behind")
    if model.graph.node[0].op_type == "QLinearLeakyRelu":
        (name,) = _operands(model)
        ratio = float(scales[name].reshape(())) / y
        _leaky(model, 1.0, _alpha(model), (_unit(ratio), _unit(ratio * _alpha(model))), y)
        return {y_name: np.ones_like(scales[y_name])}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        nodes.append(NodeProto.FromString(node.SerializeToString()))
        if node.op_type == "DequantizeLinear":
            inner = f"{node.output[0]}/once"
            nodes[-1].output[0] = inner
            ratio = float(scales[node.input[1]].reshape(())) / y
            nodes += _staged(model, inner, node.output[0], _unit(ratio), y)
    _replace(model, nodes)
    return {y_name: np.ones_like(scales[y_name])}


def _unit(ratio: float) -> float:
    """What is rounded to first, in quanta of the result: 2^-n where the multiplier is M 2^-n with n > 0, else 1."""
    return math.ldexp(1.0, min(math.frexp(ratio)[1], 0))


def _staged(model: onnx.ModelProto, x: str, y: str, unit: float, y_scale: float) -> list[NodeProto]:
    """y = x / y_scale rounded to a multiple of `unit`, within 16 bits; exact from there on."""
    step, scale, zero = f"{y}/step", f"{y}/unit", f"{y}/zero"
    for name, value in ((step, unit * y_scale), (scale, unit)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    model.graph.initializer.append(helper.make_tensor(zero, TensorProto.INT16, (), [0]))
    return [
        helper.make_node("QuantizeLinear", [x, step, zero], [f"{y}/whole"]),
        helper.make_node("DequantizeLinear", [f"{y}/whole", scale, zero], [y]),
    ]


def _leaky(
    model: onnx.ModelProto,
    positive: float,
    negative: float,
    units: tuple[float, float] | None = None,
    y: float = 1.0,
) -> None:
    """QLinearLeakyRelu in its parts: the positive numbers times one factor, the negative ones times another."""
    x, x_scale, x_zero, y_scale, y_zero = model.graph.node[0].input
    parts = []
    for name, factor in (("positive", positive), ("negative", negative)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(factor, np.float32), f"{name}/factor"))
        parts.append(helper.make_node("Mul", [f"{name}/part", f"{name}/factor"], [f"{name}/scaled"]))
    nodes = [
        helper.make_node("DequantizeLinear", [x, x_scale, x_zero], ["real"]),
        helper.make_node("Relu", ["real"], ["positive/part"]),
        helper.make_node("Sub", ["real", "positive/part"], ["negative/part"]),
        *parts,
    ]
    sides = ["positive/scaled", "negative/scaled"]
    if units is not None:
        for side, unit in zip(sides, units, strict=True):
            nodes += _staged(model, side, f"{side}/once", unit, y)
        sides = [f"{side}/once" for side in sides]
    nodes.append(helper.make_node("Add", sides, ["sum"]))
    nodes.append(helper.make_node("QuantizeLinear", ["sum", y_scale, y_zero], [model.graph.node[0].output[0]]))
    _replace(model, nodes)


def _replace(model: onnx.ModelProto, nodes: list[NodeProto]) -> None:
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = max(entry.version, WIDE_OPSET)


def _alpha(model: onnx.ModelProto) -> float:
    return next((a.f for a in model.graph.node[0].attribute if a.name == "alpha"), 0.01)


def _operands(model: onnx.ModelProto) -> list[str]:
    """The names of the operands' scales."""
    first = model.graph.node[0]
    if first.op_type == "QLinearConcat":
        return list(first.input[3::3])
    if first.op_type == "QLinearLeakyRelu":
        return [first.input[1]]
    return [node.input[1] for node in model.graph.node if node.op_type == "DequantizeLinear"]


def _result(model: onnx.ModelProto) -> str:
    """The name of the result's scale. Raises: StopIteration for a model that ends otherwise."""
    first = model.graph.node[0]
    if first.op_type == "QLinearConcat":
        return first.input[0]
    if first.op_type == "QLinearLeakyRelu":
        return first.input[3]
    return next(node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear")


def scale_names(model: onnx.ModelProto) -> list[str]:
    return [*_operands(model), _result(model)]
