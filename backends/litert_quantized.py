"""Quantized operators and QDQ regions as LiteRT's operators on quantized tensors, where it has a kernel for them.

A region DequantizeLinear -> operator -> QuantizeLinear is one operator here if its parameters are those that LiteRT's
kernel honours. Anything else is written node by node, or refused with the reason.

Portable: the worker of a foreign environment runs this file on Python 3.8 with numpy.
"""

from __future__ import annotations

from typing import Callable, Mapping, NamedTuple

import numpy as np

from opgauge.reference_engine.errors import UnsupportedError

from . import litert_float as plain
from . import litert_windows as windows
from .litert_builder import NO_TENSOR, Quantization
from .litert_net import FLAT, Made, Net, Node

BYTES = ("int8", "uint8")
DTYPES = (*BYTES, "int16")
MEAN_RATIOS = (1.0 / 256.0, 128.0)  # of scales, for which XNNPACK takes MEAN
LOGISTIC_SCALE = 1.0 / 256.0  # LOGISTIC and SOFTMAX have this output scale and the lowest zero point, no other


class Operand(NamedTuple):
    """A quantized input: the ONNX value that holds its integers, and what they mean."""

    name: str
    dtype: str
    of: Quantization


class Result(NamedTuple):
    dtype: str
    of: Quantization


class Core(NamedTuple):
    """An operator between quantized operands and a quantized result; `others` are inputs that are not quantized."""

    node: Node
    operands: tuple[Operand, ...]
    others: tuple[str, ...]
    result: Result


def quantization(net: Net, scale: str, zero_point: str, axis: int = 0) -> Quantization:
    """Raises: UnsupportedError for what LiteRT cannot say of a tensor."""
    scales = np.asarray(net.data(scale))
    if scales.dtype != np.float32:
        raise UnsupportedError(f"scales of {scales.dtype}; LiteRT's are float32")
    if scales.ndim > 1:
        raise UnsupportedError("scales for each row or block; LiteRT has one, or one for each index of an axis")
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise UnsupportedError("a scale that is not positive")
    values = tuple(float(s) for s in scales.ravel())
    zeros = np.ravel(net.data(zero_point)).astype(np.int64) if zero_point else np.zeros(1, np.int64)
    if zeros.size not in (1, len(values)):
        raise UnsupportedError("as many zero points as scales, or one")
    points = tuple(int(z) for z in np.broadcast_to(zeros, (len(values),)))
    if len(set(zip(values, points))) == 1 and scales.size:
        values, points, axis = values[:1], points[:1], 0
    return Quantization(values, points, axis)


def _one(q: Quantization, what: str) -> None:
    if len(q.scale) > 1:
        raise UnsupportedError(f"{what} with a scale for each index of an axis; LiteRT takes one")


def _same_type(core: Core, *dtypes: str) -> str:
    """The one element type of all operands and the result. Raises: UnsupportedError."""
    seen = {operand.dtype for operand in core.operands} | {core.result.dtype}
    if len(seen) > 1:
        raise UnsupportedError(f"operands of {' and '.join(sorted(seen))}; LiteRT's kernel takes one type")
    dtype = seen.pop()
    if dtype not in dtypes:
        raise UnsupportedError(f"quantized {core.node.op} of {dtype}; LiteRT's kernel takes {', '.join(dtypes)}")
    for operand in core.operands:
        _one(operand.of, "an operand")
        symmetric(operand.dtype, operand.of)
    _one(core.result.of, "a result")
    symmetric(dtype, core.result.of)
    return dtype


def symmetric(dtype: str, q: Quantization) -> None:
    if dtype == "int16" and any(q.zero_point):
        raise UnsupportedError("int16 with a zero point; LiteRT's int16 has none")


# ---- sums of products


def _weights(x: Operand, w: Operand, y: Result) -> None:
    """Raises: UnsupportedError for types and zero points that LiteRT's kernels of products do not honour."""
    _one(x.of, "an operand")
    _one(y.of, "a result")
    types = (x.dtype, w.dtype, y.dtype)
    if types not in (("int8", "int8", "int8"), ("uint8", "uint8", "uint8")):
        # int16 by int8 is requantized with 16 bits of a multiplier, which no policy describes.
        raise UnsupportedError(f"{x.dtype} by {w.dtype} to {y.dtype}: int8 and uint8 are taken")
    if w.dtype == "int8" and any(w.of.zero_point):
        raise UnsupportedError("int8 weights with a zero point; LiteRT's have none")
    if w.dtype == "uint8" and len(w.of.scale) > 1:
        raise UnsupportedError("uint8 weights with a scale for each channel; LiteRT takes one")
    symmetric(x.dtype, x.of)
    symmetric(y.dtype, y.of)


def _bias(net: Net, name: str, given: Quantization | None, x: Operand, w: Operand, count: int) -> int:
    """int32 with the scale x_scale * w_scale, which is the only one that LiteRT honours."""
    if not name:
        return NO_TENSOR
    of = _of_products(x, w)
    if given is not None and (given.scale != of.scale or any(given.zero_point)):
        raise UnsupportedError("a bias whose scale is not x_scale * w_scale; LiteRT takes no other")
    if net.dtype(name) != "int32" or net.shape(name) not in ((count,), (1, count)):
        raise UnsupportedError("a bias that is not int32, one for each channel")
    return net.source(name, (count,), None, of)


def _of_products(x: Operand, w: Operand) -> Quantization:
    """What the sums of products mean: x_scale * w_scale, no zero point."""
    scales = tuple(float(np.float32(x.of.scale[0]) * np.float32(s)) for s in w.of.scale)
    return Quantization(scales, (0,) * len(scales), 0)


def _quantized_bias(core: Core) -> tuple[str, Quantization | None]:
    if len(core.operands) > 2:
        return core.operands[2].name, core.operands[2].of
    return (core.others[0], None) if core.others else ("", None)


def conv(net: Net, core: Core) -> Made:
    x, weights = core.operands[:2]
    _weights(x, weights, core.result)
    shape, kernel = net.shape(x.name), net.shape(weights.name)
    if len(weights.of.scale) > 1 and weights.of.axis != 0:
        raise UnsupportedError("a scale for each index of an axis that is not the output channels")
    bias = _bias(net, *_quantized_bias(core), x, weights, kernel[0])
    group = int(core.node.attributes.get("group", 1))
    w = windows.window(core.node.attributes, shape[2:], kernel[2:])
    if bias == NO_TENSOR:
        bias = net.constant(np.zeros(kernel[0]), "int32", _of_products(x, weights))
    image = windows.padded(net, net.last(x.name, x.of), w, x.of)
    index = windows.convolution(net, image, (weights.name, weights.of), bias, w, group, core.result.of)
    return plain.imaged(net, index, len(shape))


def matmul(net: Net, core: Core) -> Made:
    x, w = core.operands[:2]
    node = core.node
    left, right = net.shape(x.name), net.shape(w.name)
    transposed = bool(node.attributes.get("transB", 0))
    alpha, beta = float(node.attributes.get("alpha", 1.0)), float(node.attributes.get("beta", 1.0))
    name, given = _quantized_bias(core)
    if alpha != 1.0 or (name and beta != 1.0) or node.attributes.get("transA"):
        raise UnsupportedError(f"quantized {node.op} with alpha, beta or transA: LiteRT's FULLY_CONNECTED has none")
    constant = w.name in net.constants and len(right) == 2 and len(left) > 1
    if not constant or (any(w.of.zero_point) and w.dtype == "int8"):
        return _batched(net, core, x, w, transposed, name)
    _weights(x, w, core.result)
    columns = 0 if transposed else 1
    if len(w.of.scale) > 1 and w.of.axis % 2 != columns:
        raise UnsupportedError("a scale for each row of B; LiteRT takes one for each column")
    bias = _bias(net, name, given, x, w, right[columns])
    return plain.fully_connected(net, x.name, (w.name, w.of), bias, x.of, core.result.of, transposed)


def _batched(net: Net, core: Core, x: Operand, w: Operand, transposed: bool, bias: str) -> Made:
    """BATCH_MATMUL of two int8 operands with a zero point each."""
    if bias:
        raise UnsupportedError("a bias beside a B that is no constant without a zero point: BATCH_MATMUL has none")
    if (x.dtype, w.dtype, core.result.dtype) != ("int8", "int8", "int8"):
        raise UnsupportedError(f"{x.dtype} by {w.dtype}: LiteRT's BATCH_MATMUL takes int8")
    for q in (x.of, w.of, core.result.of):
        _one(q, "an operand of BATCH_MATMUL")
    return plain.batched(net, x.name, (w.name, w.of), x.of, core.result.of, transposed)


# ---- element by element


def _elementwise(kind: str, *dtypes: str) -> Callable[[Net, Core], Made]:
    def lower(net: Net, core: Core) -> Made:
        dtype = _same_type(core, *dtypes)
        shapes = [net.shape(operand.name) for operand in core.operands]
        if len(set(shapes)) > 1 and max(map(len, shapes)) > plain.MOST_AXES:
            raise UnsupportedError(f"{core.node.op} broadcasts over more than {plain.MOST_AXES} axes")
        shape = tuple(np.broadcast_shapes(*shapes))
        options = {"alpha": float(core.node.attributes.get("alpha", 0.01))} if kind == "LEAKY_RELU" else {}
        inputs = [net.plain(operand.name, operand.of) for operand in core.operands]
        return Made(net.op(kind, inputs, dtype, shape, core.result.of, **options), shape)

    return lower


def _of_256(core: Core, dtype: str) -> None:
    lowest = int(np.iinfo(dtype).min)
    if core.result.of != Quantization((LOGISTIC_SCALE,), (lowest,)):
        raise UnsupportedError(f"{core.node.op} to another scale than 1/256, or another zero point than the lowest")


def sigmoid(net: Net, core: Core) -> Made:
    _of_256(core, _same_type(core, *BYTES))
    return _elementwise("LOGISTIC", *BYTES)(net, core)


def softmax(net: Net, core: Core) -> Made:
    dtype = _same_type(core, *BYTES)
    _of_256(core, dtype)
    x = core.operands[0]
    return plain.softmax(net, core.node, net.plain(x.name, x.of), net.shape(x.name), dtype, core.result.of)


# ---- pools and movement: they keep the parameters, and a QUANTIZE behind them changes those


def _requantized(net: Net, made: Made, core: Core) -> Made:
    """The one rounding of a region that only picks values. Raises: UnsupportedError where LiteRT has no kernel."""
    x, y = net.tensors[made.place].quantization, core.result.of
    if x == y:
        return made
    return made._replace(place=net.op("QUANTIZE", (made.place,), core.result.dtype, net.tensors[made.place].shape, y))


def max_pool(net: Net, core: Core) -> Made:
    _same_type(core, *BYTES)
    x = core.operands[0]
    node = core.node._replace(inputs=(x.name,))
    return _requantized(net, plain.max_pool(net, node, x.of), core)


def average_pool(net: Net, core: Core) -> Made:
    """Raises: UnsupportedError where the parameters change: AVERAGE_POOL_2D keeps them."""
    _same_type(core, *BYTES)
    x = core.operands[0]
    if x.of != core.result.of:
        raise UnsupportedError("an average with other parameters than its input; AVERAGE_POOL_2D keeps them")
    shape = net.shape(x.name)
    if not core.node.attributes.get("channels_last", 0):
        pooled = plain.average_pool(net, core.node, net.last(x.name, x.of), shape[2:], x.of)
        return plain.imaged(net, pooled, len(shape))
    return _last(net, plain.average_pool(net, core.node, _as_last(net, x), shape[1:-1], x.of), len(shape))


def global_average_pool(net: Net, core: Core) -> Made:
    dtype = _same_type(core, *BYTES)
    x = core.operands[0]
    ratio = x.of.scale[0] / core.result.of.scale[0]
    if not net.xnnpack or not MEAN_RATIOS[0] <= ratio < MEAN_RATIOS[1]:
        raise UnsupportedError("a quantized MEAN without XNNPACK; its requantization is none that a policy describes")
    rank = len(net.shape(x.name))
    if core.node.attributes.get("channels_last", 0):
        return _last(net, plain.mean(net, _as_last(net, x), dtype, 4, core.result.of).place, rank)
    return plain.mean(net, net.last(x.name, x.of), dtype, rank, core.result.of)


def _as_last(net: Net, x: Operand) -> int:
    shape = net.shape(x.name)
    if len(shape) not in (3, 4):
        raise UnsupportedError(f"an image of {len(shape) - 2} axes; LiteRT's operators take one or two")
    return net.source(x.name, shape if len(shape) == 4 else (shape[0], 1, *shape[1:]), None, x.of)


def _last(net: Net, index: int, rank: int) -> Made:
    """An NHWC tensor as the ONNX value with channels_last."""
    n, h, width, c = net.tensors[index].shape
    return Made(index, (n, h, width, c) if rank == 4 else (n, width, c), FLAT)


def move(net: Net, core: Core) -> Made:
    """Transpose, Reshape and Slice of integers as they are."""
    dtype = _same_type(core, *DTYPES)
    x = core.operands[0]
    node = core.node._replace(inputs=(x.name, *core.others))
    made = plain.MOVES[node.op](net, node, [net.plain(x.name, x.of)], dtype, x.of)
    return _requantized(net, made, core)


def concat(net: Net, core: Core) -> Made:
    """Every operand with the parameters of the result, which costs it one rounding, then CONCATENATION."""
    dtype = _same_type(core, *BYTES)
    parts = []
    for x in core.operands:
        index = net.plain(x.name, x.of)
        if x.of != core.result.of:
            index = net.op("QUANTIZE", (index,), dtype, net.tensors[index].shape, core.result.of)
        parts.append(index)
    return plain.concat(net, core.node, parts, dtype, core.result.of)


FUSED: Mapping[str, Callable[[Net, Core], Made]] = {
    "Conv": conv,
    "MatMul": matmul,
    "Gemm": matmul,
    "Add": _elementwise("ADD", *BYTES),
    "Mul": _elementwise("MUL", *BYTES),
    "Relu": _elementwise("RELU", *DTYPES),
    "LeakyRelu": _elementwise("LEAKY_RELU", *BYTES),
    "Sigmoid": sigmoid,
    "Softmax": softmax,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average_pool,
    "Transpose": move,
    "Reshape": move,
    "Slice": move,
    "Concat": concat,
}
# Single quantized operators: which region they are, and where their inputs stand (operands, bias, result).
QLINEAR: Mapping[str, tuple[str, tuple[int, ...], int | None, int]] = {
    "QLinearConv": ("Conv", (0, 3), 8, 6),
    "QLinearMatMul": ("MatMul", (0, 3), None, 6),
    "QGemm": ("Gemm", (0, 3), 6, 7),
    "QLinearAdd": ("Add", (0, 3), None, 6),
    "QLinearMul": ("Mul", (0, 3), None, 6),
    "QLinearLeakyRelu": ("LeakyRelu", (0,), None, 3),
    "QLinearSigmoid": ("Sigmoid", (0,), None, 3),
    "QLinearSoftmax": ("Softmax", (0,), None, 3),
    "QLinearAveragePool": ("AveragePool", (0,), None, 3),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,), None, 3),
}


def qlinear(net: Net, node: Node) -> Core:
    """A QLinear operator as the region that it stands for. Raises: UnsupportedError."""
    if node.op == "QLinearConcat":
        starts: tuple[int, ...] = tuple(range(2, len(node.inputs), 3))
        op, bias, out = "Concat", None, 0
    else:
        op, starts, bias, out = QLINEAR[node.op]
    inputs = (*node.inputs, "", "", "")
    operands = []
    for i in starts:
        axis = 1 if node.op == "QLinearMatMul" and i else 0
        if node.op == "QGemm" and i:
            axis = 0 if node.attributes.get("transB") else 1
        name = inputs[i]
        operands.append(Operand(name, net.dtype(name), quantization(net, inputs[i + 1], inputs[i + 2], axis)))
    if not inputs[out]:
        raise UnsupportedError(f"{node.op} to float32")
    zero_point = inputs[out + 1]
    dtype = net.dtype(zero_point) if zero_point else operands[0].dtype
    others = (inputs[bias],) if bias is not None and inputs[bias] else ()
    core = node._replace(op=op)
    if node.op == "QLinearSoftmax":
        core = _softmax_of(net, core)
    return Core(core, tuple(operands), others, Result(dtype, quantization(net, inputs[out], zero_point)))


def _softmax_of(net: Net, node: Node) -> Node:
    """QLinearSoftmax says itself which opset's Softmax it means."""
    if int(node.attributes.get("opset", 13)) < 13:
        rank = len(net.shape(node.inputs[0]))
        axis = int(node.attributes.get("axis", -1)) % max(rank, 1)
        if axis != rank - 1:
            raise UnsupportedError("Softmax over several axes")
    return node
