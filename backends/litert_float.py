"""ONNX operators as LiteRT's operator of the same meaning, node by node: on float32, on integers, and what only moves.

Portable: the worker of a foreign environment runs this file on Python 3.8 with numpy.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from opgauge.reference_engine.errors import UnsupportedError

from . import litert_windows as windows
from .litert_builder import NO_TENSOR, Quantization
from .litert_net import FLAT, LAST, Made, Net, Node, Shape

MOST_AXES = 4  # beyond them LiteRT's kernels check in debug builds only
WHOLE = ("int32", "int64")


def _wants(net: Net, node: Node, *dtypes: str) -> str:
    dtype = net.dtype(node.inputs[0])
    if dtype not in dtypes:
        raise UnsupportedError(f"{node.op} of {dtype}: LiteRT's kernel takes {', '.join(dtypes)}")
    return dtype


def _binary(kind: str, *dtypes: str) -> Callable[[Net, Node], None]:
    def lower(net: Net, node: Node) -> None:
        dtype = _wants(net, node, *dtypes)
        a, b = (net.shape(name) for name in node.inputs)
        if a != b and max(len(a), len(b)) > MOST_AXES:
            raise UnsupportedError(f"{node.op} broadcasts over more than {MOST_AXES} axes")
        shape = np.broadcast_shapes(a, b)
        net.made[node.outputs[0]] = Made(net.op(kind, [net.plain(n) for n in node.inputs], dtype, shape), shape)

    return lower


def _unary(kind: str, *dtypes: str) -> Callable[[Net, Node], None]:
    def lower(net: Net, node: Node) -> None:
        dtype = _wants(net, node, *dtypes)
        shape = net.shape(node.inputs[0])
        net.made[node.outputs[0]] = Made(net.op(kind, (net.plain(node.inputs[0]),), dtype, shape), shape)

    return lower


def _clip(net: Net, node: Node) -> None:
    """min(max(x, low), high)"""
    dtype = _wants(net, node, "float32")
    if net.opset < 11:
        raise UnsupportedError("Clip before opset 11")
    if net.known(node.inputs[0]):
        raise UnsupportedError("Clip of float32 data: LiteRT does not say what MAXIMUM and MINIMUM make of NaN")
    shape = net.shape(node.inputs[0])
    x = net.plain(node.inputs[0])
    if not any(node.inputs[1:]):
        raise UnsupportedError("Clip without limits is no operator of LiteRT")
    for kind, name in zip(("MAXIMUM", "MINIMUM"), node.inputs[1:]):
        if name:
            x = net.op(kind, (x, net.constant(net.data(name), dtype)), dtype, shape)
    net.made[node.outputs[0]] = Made(x, shape)


def _softmax(net: Net, node: Node) -> None:
    dtype = _wants(net, node, "float32")
    shape = net.shape(node.inputs[0])
    name = node.inputs[0]
    x = net.plain(name)
    net.made[node.outputs[0]] = softmax(net, node, x, shape, dtype, None)


def softmax(net: Net, node: Node, x: int, shape: Shape, dtype: str, y: Quantization | None) -> Made:
    """SOFTMAX over the last axis; before opset 13 over all axes from `axis` on."""
    if net.opset < 13:
        axis = int(node.attributes.get("axis", 1)) % max(len(shape), 1)
        flat = (math.prod(shape[:axis]), math.prod(shape[axis:]))
        x = net.op("RESHAPE", (x, net.constant(flat)), dtype, flat, net.tensors[x].quantization)
        return Made(net.op("SOFTMAX", (x,), dtype, flat, y, beta=1.0), shape, FLAT)
    axis = int(node.attributes.get("axis", -1)) % max(len(shape), 1)
    if axis == len(shape) - 1:
        return Made(net.op("SOFTMAX", (x,), dtype, shape, y, beta=1.0), shape)
    perm = (*(i for i in range(len(shape)) if i != axis), axis)
    turned = tuple(shape[p] for p in perm)
    x = net.op("TRANSPOSE", (x, net.constant(perm)), dtype, turned, net.tensors[x].quantization)
    x = net.op("SOFTMAX", (x,), dtype, turned, y, beta=1.0)
    return Made(net.op("TRANSPOSE", (x, net.constant(np.argsort(perm))), dtype, shape, y), shape)


# ---- products


def _matmul(net: Net, node: Node) -> None:
    _wants(net, node, "float32")
    a, b = node.inputs
    constant = b in net.constants and len(net.shape(b)) == 2 and len(net.shape(a)) > 1
    made = fully_connected(net, a, (b, None), NO_TENSOR) if constant else batched(net, a, (b, None))
    net.made[node.outputs[0]] = made


def fully_connected(
    net: Net,
    a: str,
    b: tuple[str, Quantization | None],
    bias: int,
    a_of: Quantization | None = None,
    y_of: Quantization | None = None,
    transposed: bool = False,
) -> Made:
    """a @ b + bias of a constant matrix b, which is [N, K] where `transposed`."""
    name, of = b
    x = net.plain(a, a_of)
    weights = net.source(name, None, None if transposed else (1, 0), None if of is None else of._replace(axis=0))
    out = (*net.shape(a)[:-1], net.shape(name)[0 if transposed else 1])
    inputs = (x, weights, bias)
    return Made(net.op("FULLY_CONNECTED", inputs, net.tensors[x].dtype, out, y_of, keep_num_dims=True), out)


def batched(
    net: Net,
    a: str,
    b: tuple[str, Quantization | None],
    a_of: Quantization | None = None,
    y_of: Quantization | None = None,
    transposed: bool = False,
) -> Made:
    """a @ b of any two operands, b's last two axes exchanged where `transposed`. Raises: UnsupportedError."""
    name, of = b
    left, right = net.shape(a), net.shape(name)
    if not left or not right or max(len(left), len(right)) > MOST_AXES:
        raise UnsupportedError(f"MatMul of a scalar or of more than {MOST_AXES} axes")
    x = net.source(a, (1, *left), None, a_of) if len(left) == 1 else net.plain(a, a_of)
    w = net.source(name, (*right, 1), None, of) if len(right) == 1 else net.plain(name, of)
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    rows = left[-2:-1]
    columns = right[-2:-1] if transposed else right[-1:] if len(right) > 1 else ()
    stored = (*batch, *(rows or (1,)), *(columns or (1,)))
    options = {"adj_x": False, "adj_y": transposed}
    index = net.op("BATCH_MATMUL", (x, w), net.tensors[x].dtype, stored, y_of, **options)
    return Made(index, (*batch, *rows, *columns), FLAT)


def _gemm(net: Net, node: Node) -> None:
    _wants(net, node, "float32")
    alpha, beta = float(node.attributes.get("alpha", 1.0)), float(node.attributes.get("beta", 1.0))
    a, b, c = (*node.inputs, "")[:3]
    if alpha != 1.0 or (c and beta != 1.0) or node.attributes.get("transA"):
        raise UnsupportedError("Gemm with alpha, beta or transA: FULLY_CONNECTED has none of them")
    bias = NO_TENSOR
    columns = net.shape(b)[0 if node.attributes.get("transB") else 1]
    if c:
        if net.shape(c) not in ((columns,), (1, columns)):
            raise UnsupportedError("Gemm with a C that is no row: FULLY_CONNECTED adds a row")
        bias = net.source(c, (columns,))
    transposed = bool(node.attributes.get("transB"))
    if b in net.constants:
        net.made[node.outputs[0]] = fully_connected(net, a, (b, None), bias, transposed=transposed)
        return
    if c:
        raise UnsupportedError("Gemm with a C beside a B that is no constant: BATCH_MATMUL has no bias")
    net.made[node.outputs[0]] = batched(net, a, (b, None), transposed=transposed)


# ---- windows


def _conv(net: Net, node: Node) -> None:
    dtype = _wants(net, node, "float32")
    x, weights, bias = (*node.inputs, "")[:3]
    shape, kernel = net.shape(x), net.shape(weights)
    w = windows.window(node.attributes, shape[2:], kernel[2:])
    image = windows.padded(net, net.last(x), w, None)
    offset = net.source(bias) if bias else net.constant(np.zeros(kernel[0]), dtype)
    index = windows.convolution(net, image, (weights, None), offset, w, int(node.attributes.get("group", 1)), None)
    net.made[node.outputs[0]] = imaged(net, index, len(shape))


def imaged(net: Net, index: int, rank: int) -> Made:
    """An NHWC tensor as the ONNX value of this rank."""
    n, h, width, c = net.tensors[index].shape
    return Made(index, (n, c, h, width) if rank == 4 else (n, c, width), LAST)


def _max_pool(net: Net, node: Node) -> None:
    _wants(net, node, "float32", "int8", "uint8")
    net.made[node.outputs[0]] = max_pool(net, node, None)


def max_pool(net: Net, node: Node, quantization: Quantization | None) -> Made:
    if len([name for name in node.outputs if name]) > 1:
        raise UnsupportedError("MaxPool with Indices")
    name = node.inputs[0]
    shape, dtype = net.shape(name), net.dtype(name)
    if dtype != "float32" and quantization is None:
        quantization = Quantization((1.0,), (0,))
    w = windows.window(node.attributes, shape[2:], node.attributes["kernel_shape"])
    if w.dilations != (1, 1):
        raise UnsupportedError("MaxPool with dilations: MAX_POOL_2D has none")
    lowest = -math.inf if dtype == "float32" else np.iinfo(dtype).min
    x = windows.padded(net, net.last(name, quantization), w, quantization, lowest)
    return imaged(net, windows.pool(net, "MAX_POOL_2D", x, w, False, quantization), len(shape))


def _average_pool(net: Net, node: Node) -> None:
    _wants(net, node, "float32")
    name = node.inputs[0]
    shape = net.shape(name)
    net.made[node.outputs[0]] = imaged(net, average_pool(net, node, net.last(name), shape[2:], None), len(shape))


def average_pool(net: Net, node: Node, x: int, spatial: Shape, quantization: Quantization | None) -> int:
    """AVERAGE_POOL_2D of an NHWC tensor. Raises: UnsupportedError."""
    w = windows.window(node.attributes, spatial, node.attributes["kernel_shape"])
    if w.dilations != (1, 1):
        raise UnsupportedError("AveragePool with dilations: AVERAGE_POOL_2D has none")
    if w.overhang:
        raise UnsupportedError("AveragePool with windows beyond the pads (ceil_mode)")
    same = w.padded and not node.attributes.get("count_include_pad", 0)
    if same and not windows.is_same(w, spatial):
        raise UnsupportedError("AveragePool that does not count its pads, which are not those of SAME")
    if not same:
        x = windows.padded(net, x, w, quantization)
    return windows.pool(net, "AVERAGE_POOL_2D", x, w, same, quantization)


def _global_average_pool(net: Net, node: Node) -> None:
    dtype = _wants(net, node, "float32")
    name = node.inputs[0]
    net.made[node.outputs[0]] = mean(net, net.last(name), dtype, len(net.shape(name)), None)


def mean(net: Net, x: int, dtype: str, rank: int, quantization: Quantization | None) -> Made:
    n, _, _, c = net.tensors[x].shape
    index = net.op("MEAN", (x, net.constant((1, 2))), dtype, (n, 1, 1, c), quantization, keep_dims=True)
    return imaged(net, index, rank)


# ---- what only moves

MOVED = "float32 int8 uint8 int16 int32 int64 bool".split()


def _moved(move: Callable[..., Made]) -> Callable[[Net, Node], None]:
    """A movement on plain tensors of any element type that LiteRT moves."""

    def lower(net: Net, node: Node) -> None:
        dtype = _wants(net, node, *MOVED)
        names = node.inputs if node.op == "Concat" else node.inputs[:1]
        made = move(net, node, [net.plain(name) for name in names], dtype, None)
        net.made[node.outputs[0]] = made

    return lower


def transpose(net: Net, node: Node, xs: Sequence[int], dtype: str, q: Quantization | None) -> Made:
    shape = net.tensors[xs[0]].shape
    perm = tuple(node.attributes.get("perm") or reversed(range(len(shape))))
    out = tuple(shape[p] for p in perm)
    return Made(net.op("TRANSPOSE", (xs[0], net.constant(perm)), dtype, out, q), out)


def reshape(net: Net, node: Node, xs: Sequence[int], dtype: str, q: Quantization | None) -> Made:
    shape = net.tensors[xs[0]].shape
    wanted = [int(n) for n in net.data(node.inputs[1])]
    if not node.attributes.get("allowzero", 0):
        wanted = [shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    if -1 in wanted:
        rest = math.prod(n for n in wanted if n != -1)
        if not rest:
            raise UnsupportedError("Reshape with -1 beside an empty axis")
        wanted[wanted.index(-1)] = math.prod(shape) // rest
    return Made(net.op("RESHAPE", (xs[0], net.constant(wanted)), dtype, wanted, q), tuple(wanted))


def concat(net: Net, node: Node, xs: Sequence[int], dtype: str, q: Quantization | None) -> Made:
    shapes = [net.tensors[x].shape for x in xs]
    axis = int(node.attributes["axis"]) % max(len(shapes[0]), 1)
    out = (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])
    return Made(net.op("CONCATENATION", xs, dtype, out, q, axis=axis), out)


def slice_(net: Net, node: Node, xs: Sequence[int], dtype: str, q: Quantization | None) -> Made:
    if net.opset < 10:
        raise UnsupportedError("Slice before opset 10")
    shape = net.tensors[xs[0]].shape
    starts, ends = (np.ravel(net.data(n)).tolist() for n in node.inputs[1:3])
    axes, steps = ([*node.inputs[3:5], "", ""])[:2]
    listed = np.ravel(net.data(axes)).tolist() if axes else list(range(len(starts)))
    if steps and any(step != 1 for step in np.ravel(net.data(steps)).tolist()):
        raise UnsupportedError("Slice with steps: SLICE has none")
    begin, out = [0] * len(shape), list(shape)
    for axis, start, end in zip(listed, starts, ends):
        first, last, _ = slice(start, end).indices(shape[axis])
        begin[axis], out[axis] = first, max(last - first, 0)
    inputs = (xs[0], net.constant(begin), net.constant(out))
    return Made(net.op("SLICE", inputs, dtype, out, q), tuple(out))


def pad(net: Net, node: Node, xs: Sequence[int], dtype: str, q: Quantization | None) -> Made:
    """PADV2 with the constant of Pad, 0 where it has none. Raises: UnsupportedError for any other mode."""
    if node.attributes.get("mode", "constant") != "constant" or net.opset < 11:
        raise UnsupportedError(f"Pad with mode {node.attributes.get('mode')}, opset {net.opset}")
    shape = net.tensors[xs[0]].shape
    _, pads, value, axes = (*node.inputs, "", "")[:4]
    amounts = np.ravel(net.data(pads)).astype(int).tolist()
    listed = [int(a) % len(shape) for a in np.ravel(net.data(axes))] if axes else list(range(len(shape)))
    around = [(0, 0)] * len(shape)
    for i, axis in enumerate(listed):
        around[axis] = (amounts[i], amounts[len(listed) + i])
    if min(map(min, around), default=0) < 0:
        raise UnsupportedError("Pad that crops: PAD takes no negative numbers")
    out = tuple(n + sum(p) for n, p in zip(shape, around))
    fill = net.constant(np.reshape(net.data(value) if value else np.zeros(1), (1,)), dtype, q)
    return Made(net.op("PADV2", (xs[0], net.constant(around), fill), dtype, out, q), out)


AS_WRITTEN: Mapping[str, Callable[[Net, Node], None]] = {
    "Add": _binary("ADD", "float32", *WHOLE),
    "Sub": _binary("SUB", "float32", *WHOLE),
    "Mul": _binary("MUL", "float32", *WHOLE),
    "Div": _binary("DIV", "float32"),
    "Relu": _unary("RELU", "float32"),
    "Neg": _unary("NEG", "float32"),
    "Abs": _unary("ABS", "float32"),
    "Sigmoid": _unary("LOGISTIC", "float32"),
    "Clip": _clip,
    "Softmax": _softmax,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "Transpose": _moved(transpose),
    "Reshape": _moved(reshape),
    "Concat": _moved(concat),
    "Slice": _moved(slice_),
    "Pad": _moved(pad),
}
MOVES: Mapping[str, Callable[..., Any]] = {
    "Transpose": transpose,
    "Reshape": reshape,
    "Slice": slice_,
}
