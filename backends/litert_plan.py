"""The .tflite file of an ONNX model: a QDQ region as one quantized operator where LiteRT has it, else node by node.

Portable: the worker of a foreign environment runs this file on Python 3.8 with numpy and onnx.
"""

from __future__ import annotations

from typing import Mapping

import numpy as np
import onnx

from opgauge.reference_engine.errors import UnsupportedError

from . import litert_float, litert_quantized
from .litert_builder import Quantization
from .litert_net import Made, Net, Node, Plan
from .litert_quantized import Core, Operand, Result

MICROSOFT = "com.microsoft"
LINEAR = ("QuantizeLinear", "DequantizeLinear")


def plan(model: bytes, inputs: Mapping[str, np.ndarray], xnnpack: bool = True) -> Plan:
    """The file for LiteRT with XNNPACK, or without. Raises: UnsupportedError with the reason."""
    proto = onnx.load_from_string(model)
    why = ""
    net = Net(proto, inputs, xnnpack)
    try:
        core = region(net)
        if core is not None:
            net.made[net.outputs[0]] = litert_quantized.FUSED[core.node.op](net, core)
            return net.plan()
    except UnsupportedError as error:
        why = str(error)
    net = Net(proto, inputs, xnnpack)
    try:
        for node in net.nodes:
            _as_written(net, node)
        return net.plan()
    except UnsupportedError as error:
        raise UnsupportedError(f"{why}; as written: {error}" if why else str(error)) from error


def _as_written(net: Net, node: Node) -> None:
    if node.op in litert_quantized.QLINEAR or node.op == "QLinearConcat":
        core = litert_quantized.qlinear(net, node)
        net.made[node.outputs[0]] = litert_quantized.FUSED[core.node.op](net, core)
    elif node.op in LINEAR:
        (quantize if node.op == "QuantizeLinear" else dequantize)(net, node)
    elif node.domain == "" and node.op in litert_float.AS_WRITTEN:
        litert_float.AS_WRITTEN[node.op](net, node)
    else:
        raise UnsupportedError(f"{node.op}: opgauge's builder has no operator of LiteRT's for it")


def quantize(net: Net, node: Node) -> None:
    """QUANTIZE of float32. Raises: UnsupportedError."""
    x, scale, zero_point = (*node.inputs, "")[:3]
    attributes = node.attributes
    given = net.data(zero_point) if zero_point else None
    dtype = given.dtype.name if given is not None else _WORDS.get(int(attributes.get("output_dtype", 0) or 2), "")
    if net.dtype(x) != "float32" or dtype not in litert_quantized.DTYPES:
        raise UnsupportedError(f"QuantizeLinear of {net.dtype(x)} to {dtype or 'another type'}")
    if attributes.get("precision", 0) not in (0, 1) or attributes.get("block_size", 0):
        raise UnsupportedError("QuantizeLinear with a precision or blocks")
    of = _along(net, node, scale, zero_point, net.shape(x))
    litert_quantized.symmetric(dtype, of)
    shape = net.shape(x)
    net.made[node.outputs[0]] = Made(net.op("QUANTIZE", (net.plain(x),), dtype, shape, of), shape)


def dequantize(net: Net, node: Node) -> None:
    """DEQUANTIZE to float32. Raises: UnsupportedError."""
    x, scale, zero_point = (*node.inputs, "")[:3]
    if net.dtype(x) not in litert_quantized.DTYPES or node.attributes.get("block_size", 0):
        raise UnsupportedError(f"DequantizeLinear of {net.dtype(x)}, or of blocks")
    if node.attributes.get("output_dtype", 0) not in (0, 1):
        raise UnsupportedError("DequantizeLinear to another type than float32")
    shape = net.shape(x)
    of = _along(net, node, scale, zero_point, shape)
    litert_quantized.symmetric(net.dtype(x), of)
    if x in net.made:
        raise UnsupportedError("DequantizeLinear of a computed value")
    index = net.op("DEQUANTIZE", (net.source(x, quantization=of),), "float32", shape)
    net.made[node.outputs[0]] = Made(index, shape)


_WORDS = {2: "uint8", 3: "int8", 4: "uint16", 5: "int16"}  # element types of ONNX


def _along(net: Net, node: Node, scale: str, zero_point: str, shape: tuple[int, ...]) -> Quantization:
    axis = int(node.attributes.get("axis", 1))
    if net.data(scale).size == 1:
        axis = 0
    elif not -len(shape) <= axis < len(shape):
        raise UnsupportedError(f"axis {axis} of {len(shape)} axes")
    return litert_quantized.quantization(net, scale, zero_point, axis % max(len(shape), 1))


def region(net: Net) -> Core | None:
    """DequantizeLinear for the operands, one operator, QuantizeLinear of its result, which is the only output; or None.

    Raises: UnsupportedError for parameters that LiteRT cannot say.
    """
    cores = [node for node in net.nodes if node.op not in LINEAR]
    ends = [node for node in net.nodes if node.op == "QuantizeLinear"]
    if len(cores) != 1 or len(ends) != 1 or len(net.outputs) != 1:
        return None
    (core,), (end,) = cores, ends
    starts = {node.outputs[0]: node for node in net.nodes if node.op == "DequantizeLinear"}
    if core.domain or core.op not in litert_quantized.FUSED or end.inputs[0] != core.outputs[0]:
        return None
    if end.outputs[0] != net.outputs[0] or not all(net.known(s.inputs[0]) for s in starts.values()):
        return None
    operands = []
    for name in core.inputs:
        if name in starts:
            x, scale, zero_point = (*starts[name].inputs, "")[:3]
            of = _along(net, starts[name], scale, zero_point, net.shape(x))
            operands.append(Operand(x, net.dtype(x), of))
    others = tuple(name for name in core.inputs if name and name not in starts)
    x, scale, zero_point = (*end.inputs, "")[:3]
    if not zero_point or not operands:
        return None
    result = Result(net.dtype(zero_point), litert_quantized.quantization(net, scale, zero_point))
    return Core(core, tuple(operands), others, result)
