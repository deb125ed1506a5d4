"""What a runtime computes in place of the operator that it was given: another model, and so an exact set.

A deviation row that names one of INSTEAD excuses an element only inside the acceptance set of that other model.
Each rewrite edits a model of its own (the caller's copy) and returns the inputs that go with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from opgauge.reference_engine import lower
from opgauge.reference_engine.errors import ModelError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.types import Array, Exact, Policy

from . import requantized

Feeds = Mapping[str, Array]
Rewrite = Callable[[onnx.ModelProto, Feeds], Feeds]


def exacts(name: str, model: bytes, feeds: Feeds, policy: Policy) -> tuple[Exact, ...]:
    """The acceptance sets of what a row says is computed instead; none where that is no legal model."""
    other = onnx.load_from_string(model)
    try:
        inputs = INSTEAD[name](other, feeds)
        told = replace(policy, requant="fixed") if name in IN_FIXED_POINT else policy
        return evaluate(lower.lower(other, inputs), inputs, told)
    except (ModelError, LookupError, StopIteration, ValueError):  # a region of a model is not the case it was made for
        return ()


def content(model: onnx.ModelProto, feeds: Feeds, name: str) -> Array:
    if name in feeds:
        return feeds[name]
    return numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == name))


def with_content(model: onnx.ModelProto, feeds: Feeds, name: str, array: Array) -> Feeds:
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(array, name))
            return feeds
    return {**feeds, name: array}


def attributes(node: NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def set_attributes(node: NodeProto, **values: object) -> None:
    kept = [a for a in node.attribute if a.name not in values]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in values.items())])


def not_causal(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """Attention without is_causal."""
    set_attributes(model.graph.node[0], is_causal=0)
    return feeds


def bias_scaled(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """bias * b_scale for bias."""
    node = model.graph.node[0]
    node.input[list(node.input).index("bias")] = "bias_scaled"
    model.graph.node.insert(0, helper.make_node("Mul", ["bias", "b_scale"], ["bias_scaled"]))
    return feeds


def through_float32(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """A float64 operator of one input and one output on float32, and back."""
    node = model.graph.node[0]
    given, made = node.input[0], node.output[0]
    node.input[0], node.output[0] = "narrow", "narrow_result"
    model.graph.node.insert(0, helper.make_node("Cast", [given], ["narrow"], to=TensorProto.FLOAT))
    model.graph.node.append(helper.make_node("Cast", ["narrow_result"], [made], to=TensorProto.DOUBLE))
    return feeds


def _narrower(model: onnx.ModelProto, wide: int, *chain: int, saturate: tuple[float, float] | None = None) -> None:
    """Every operand of one type through narrower ones; lists of axes, shapes and sizes stay what they are.

    `saturate` clamps what is too large for the narrower type first.
    """
    (node,) = model.graph.node
    if node.domain not in ("", "ai.onnx"):
        raise LookupError(f"no schema of {node.domain}")
    opset = next(imported.version for imported in model.opset_import if imported.domain in ("", "ai.onnx"))
    schema = onnx.defs.get_schema(node.op_type, opset)
    variables = {constraint.type_param_str for constraint in schema.type_constraints}
    types = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    before: list[NodeProto] = []
    for i, name in enumerate(node.input):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        if types.get(name) != wide or formal.type_str not in variables:
            continue
        last = name
        if saturate is not None:
            ends = [f"{name}/lowest", f"{name}/highest"]
            of = helper.tensor_dtype_to_np_dtype(wide)
            for end, value in zip(ends, saturate, strict=True):
                model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, of), end))
            before.append(helper.make_node("Clip", [name, *ends], [f"{name}/clamped"]))
            last = f"{name}/clamped"
        for each in chain:
            before.append(helper.make_node("Cast", [last], [f"{last}/{each}"], to=each))
            last = before[-1].output[0]
        node.input[i] = last
    if not before:
        raise LookupError("nothing to narrow")
    shown = {info.name: info.type.tensor_type.elem_type for info in model.graph.output}
    after: list[NodeProto] = []
    for i, name in enumerate(node.output):
        formal = schema.outputs[min(i, len(schema.outputs) - 1)]
        if shown.get(name) == wide and formal.type_str in variables:
            backwards = [*chain[-2::-1], wide]
            words = [f"{name}/narrow", *(f"{name}/{each}" for each in backwards[:-1]), name]
            after += [
                helper.make_node("Cast", [have], [make], to=each)
                for have, make, each in zip(words[:-1], words[1:], backwards, strict=True)
            ]
            node.output[i] = words[0]
    nodes = [*before, NodeProto.FromString(node.SerializeToString()), *after]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def all_in_float32(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """Every float64 operand clamped to the finite float32 numbers and rounded, the operator in float32."""
    most = float(np.finfo(np.float32).max)
    _narrower(model, TensorProto.DOUBLE, TensorProto.FLOAT, saturate=(-most, most))
    return feeds


def all_in_int32(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """The low 32 bits of every 64-bit operand (of a constant int64 its nearest), the operator in int32."""
    ends = np.iinfo(np.int32)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.INT64:
            near = np.clip(numpy_helper.to_array(tensor), ends.min, ends.max)
            tensor.CopyFrom(numpy_helper.from_array(near, tensor.name))
    types = {info.type.tensor_type.elem_type for info in model.graph.input}
    _narrower(model, TensorProto.UINT64 if TensorProto.UINT64 in types else TensorProto.INT64, TensorProto.INT32)
    return feeds


def integers_in_float32(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """Every int32 operand as float32, the operator in float32, its result as int32; int64 through int32."""
    types = {info.type.tensor_type.elem_type for info in model.graph.input}
    if TensorProto.INT32 in types:
        _narrower(model, TensorProto.INT32, TensorProto.FLOAT)
    else:
        _narrower(model, TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT)
    return feeds


def reciprocal_multiplied(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """Div as A * (1 / B)."""
    (node,) = model.graph.node
    a, b = node.input
    inverse = helper.make_node("Reciprocal", [b], ["inverse"])
    product = helper.make_node("Mul", [a, "inverse"], list(node.output))
    del model.graph.node[:]
    model.graph.node.extend([inverse, product])
    return feeds


def copied(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """Identity of the first input."""
    node = model.graph.node[0]
    node.CopyFrom(helper.make_node("Identity", [node.input[0]], list(node.output)))
    return feeds


def cropped_where_resized(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """Resize with the roi of each axis whose length stays replaced by the whole axis."""
    node = model.graph.node[0]
    shape = content(model, feeds, "X").shape
    roi, sizes = content(model, feeds, "roi"), content(model, feeds, "sizes")
    axes = attributes(node).get("axes", range(len(shape)))
    stays = np.asarray([size == shape[a] for a, size in zip(axes, sizes, strict=True)])
    half = len(roi) // 2
    whole = np.where(np.tile(stays, 2), np.repeat([0.0, 1.0], half), roi).astype(roi.dtype)
    return with_content(model, feeds, "roi", whole)


def bias_scale_ignored(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """x_scale * w_scale for bias_scale."""
    product = content(model, feeds, "x_scale") * content(model, feeds, "w_scale")
    if product.ndim:
        for node in model.graph.node:
            if "bias_scale" in node.input:
                set_attributes(node, axis=0)
    if "bias_scale" in feeds:
        shape = next(i for i in model.graph.input if i.name == "bias_scale").type.tensor_type.shape
        del shape.dim[:]
        shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=n) for n in product.shape)
    return with_content(model, feeds, "bias_scale", np.asarray(product, np.float32))


def overhang_padded(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """A pool, alone or in a QDQ region, whose padding reaches to the end of its last windows."""
    node = next(n for n in model.graph.node if "kernel_shape" in attributes(n))
    given = attributes(node)
    read = next((n.input[0] for n in model.graph.node if n.output[0] == node.input[0]), node.input[0])
    shape = content(model, feeds, read).shape
    spatial = shape[1:-1] if given.get("channels_last") else shape[2:]
    kernel, n = given["kernel_shape"], len(spatial)
    strides, pads = given.get("strides", [1] * n), given.get("pads", [0] * 2 * n)
    ends = []
    for length, k, stride, begin, end in zip(spatial, kernel, strides, pads[:n], pads[n:], strict=True):
        room = length + begin + end - k
        count = -(-room // stride) + 1
        if (count - 1) * stride >= length + begin:
            count -= 1  # no window starts beyond the data and its leading pad
        ends.append(end + max((count - 1) * stride - room, 0))
    set_attributes(node, pads=[*pads[:n], *ends], ceil_mode=0)
    return feeds


def one_window_where_none_fits(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """A pool that divides towards zero: an axis shorter than its window by less than a stride gets one window."""
    node = model.graph.node[0]
    given, spatial = attributes(node), content(model, feeds, "X").shape[2:]
    n = len(spatial)
    kernel, strides = given["kernel_shape"], given.get("strides", [1] * n)
    dilations, pads = given.get("dilations", [1] * n), given.get("pads", [0] * 2 * n)
    rooms = [
        length + begin + end - (k - 1) * dilation - 1
        for length, begin, end, k, dilation in zip(spatial, pads[:n], pads[n:], kernel, dilations, strict=True)
    ]
    lacks = [-room if -stride < room < 0 else 0 for room, stride in zip(rooms, strides, strict=True)]
    if not any(lacks):
        raise LookupError("every window fits")
    set_attributes(node, pads=[*pads[:n], *(end + lack for end, lack in zip(pads[n:], lacks, strict=True))])
    return feeds


def shown_as_quantized(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """An output that a Transpose and a QuantizeLinear of one scale read, as that QuantizeLinear would leave it."""
    graph = model.graph
    moved = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Transpose"}
    shown = {info.name: info for info in graph.output}
    for node in [n for n in graph.node if n.op_type == "QuantizeLinear"]:
        name = moved.get(node.input[0], "")
        if name in shown and not content(model, feeds, node.input[1]).shape:
            made = [f"{name}/quantized", f"{name}/shown"]
            graph.node.append(helper.make_node("QuantizeLinear", [name, *node.input[1:]], made[:1]))
            graph.node.append(helper.make_node("DequantizeLinear", [made[0], *node.input[1:]], made[1:]))
            shown.pop(name).name = made[1]
    return feeds


def subnormals_read_as_zero(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """Every subnormal float32 operand replaced by 0 of its sign."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(_flushed(numpy_helper.to_array(tensor)), tensor.name))
    return {name: _flushed(array) if array.dtype == np.float32 else array for name, array in feeds.items()}


def _flushed(x: Array) -> Array:
    small = np.abs(x) < np.finfo(np.float32).tiny
    return np.asarray(np.where(small, np.copysign(np.float32(0), x), x), np.float32)


QLINEAR = {
    "Conv": "QLinearConv",
    "MatMul": "QLinearMatMul",
    "Gemm": "QGemm",
    "Mul": "QLinearMul",
}


def one_in_fixed_point(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """A QDQ region as the QLinear operator that it stands for, requantized in fixed point (N10).

    A bias has the scale x_scale * w_scale.
    """
    graph = model.graph
    triples = {node.output[0]: list(node.input) for node in graph.node if node.op_type == "DequantizeLinear"}
    (core,) = (node for node in graph.node if node.op_type in QLINEAR)
    end = next(node for node in graph.node if node.op_type == "QuantizeLinear")
    a, b, *bias = (triples[name] for name in core.input)
    parts = [*a, *b, *end.input[1:]]
    if core.op_type == "Gemm":
        parts[6:6] = bias[0][:1] if bias else [""]
    elif bias:
        parts.append(bias[0][0])
    made = helper.make_node(QLINEAR[core.op_type], parts, list(end.output))
    if core.op_type in ("Gemm", "Mul"):
        made.domain = "com.microsoft"
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    made.attribute.extend(core.attribute)
    del graph.node[:]
    graph.node.append(made)
    return feeds


def _requantized(rewrite: Callable[[onnx.ModelProto, dict[str, Array]], dict[str, Array]]) -> Rewrite:
    """A model of requantized.py, which changes nodes and gives other scales."""

    def instead(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
        scales = {name: content(model, feeds, name) for name in requantized.scale_names(model)}
        for name, array in rewrite(model, scales).items():
            feeds = with_content(model, feeds, name, array)
        return feeds

    return instead


IN_FIXED_POINT = ("one-in-fixed-point",)  # judged under requant=fixed (N10)
INSTEAD: dict[str, Rewrite] = {
    "not-causal": not_causal,
    "bias-scaled": bias_scaled,
    "through-float32": through_float32,
    "all-in-float32": all_in_float32,
    "all-in-int32": all_in_int32,
    "integers-in-float32": integers_in_float32,
    "reciprocal-multiplied": reciprocal_multiplied,
    "copied": copied,
    "cropped-where-resized": cropped_where_resized,
    "bias-scale-ignored": bias_scale_ignored,
    "overhang-padded": overhang_padded,
    "one-window-where-none-fits": one_window_where_none_fits,
    "shown-as-quantized": shown_as_quantized,
    "subnormals-read-as-zero": subnormals_read_as_zero,
    "one-in-fixed-point": one_in_fixed_point,
    "multiplier-of-16-bits": _requantized(requantized.multiplier_of_16_bits),
    "rounded-twice": _requantized(requantized.rounded_twice),
}
