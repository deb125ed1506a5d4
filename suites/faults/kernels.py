"""Small numpy kernels with seams: where faults are planted, and honest variants made.

Only float32 and 8-bit forms with per-tensor or per-channel parameters are known; anything else raises Skip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from opgauge.reference_engine.types import Array

from .planted import Call, Outputs, Skip

Product = Callable[[Array, Array], Array]
Rounding = Callable[[Array], Array]
F = np.float32


def require(condition: bool) -> None:
    """Raises: Skip."""
    if not condition:
        raise Skip


def scalar(x: Array | None, default: float = 0) -> float:
    """A per-tensor parameter. Raises: Skip."""
    if x is None:
        return default
    require(x.size == 1)
    return x.reshape(()).item()


# Convolution as a product: W [1,G,M/G,K] by columns [N,G,K,L].


class Folded(NamedTuple):
    """A convolution written as a product, and the shape that its result has."""

    weights: Array
    columns: Array
    shape: tuple[int, ...]


def folded(call: Call, x: Array, w: Array, pad: float) -> Folded:
    """Explicit padding only. Raises: Skip."""
    rank = x.ndim - 2
    require(call.attrs.get("auto_pad", "NOTSET") == "NOTSET")
    group, kernel = call.attrs.get("group", 1), w.shape[2:]
    strides = call.attrs.get("strides", [1] * rank)
    dilations = call.attrs.get("dilations", [1] * rank)
    pads = call.attrs.get("pads", [0] * 2 * rank)
    width = [(0, 0), (0, 0), *((pads[i], pads[rank + i]) for i in range(rank))]
    padded = np.pad(x, width, constant_values=pad)
    out = [(padded.shape[2 + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(rank)]
    taps = []
    for at in np.ndindex(*kernel):
        where = tuple(
            slice(at[i] * dilations[i], at[i] * dilations[i] + (out[i] - 1) * strides[i] + 1, strides[i])
            for i in range(rank)
        )
        taps.append(padded[(slice(None), slice(None), *where)].reshape(x.shape[0], x.shape[1], -1))
    columns = np.stack(taps, 2).reshape(x.shape[0], group, -1, int(np.prod(out)))
    weights = w.reshape(1, group, w.shape[0] // group, -1)
    return Folded(weights, columns, (x.shape[0], w.shape[0], *out))


def float_product(call: Call, product: Product) -> Outputs:
    """MatMul, Gemm and Conv in float32 through `product`. Raises: Skip."""
    a, b, c = call.need(0), call.need(1), call.operand(2)
    require(a.dtype == F)
    if call.op == "MatMul":
        require(a.ndim >= 2 and b.ndim >= 2)
        return [product(a, b).astype(F)]
    if call.op == "Gemm":
        a = a.T if call.attrs.get("transA") else a
        b = b.T if call.attrs.get("transB") else b
        y = product(a, b).astype(F) * F(call.attrs.get("alpha", 1.0))
        return [y if c is None else (y + F(call.attrs.get("beta", 1.0)) * c).astype(F)]
    require(call.op == "Conv")
    f = folded(call, a, b, 0.0)
    y = product(f.weights, f.columns).astype(F).reshape(f.shape)
    return [y if c is None else y + c.reshape(1, -1, *(1,) * (a.ndim - 2))]


# Sums of 8-bit products.


class Quantized(NamedTuple):
    """Operands without their zero points, and how the sum becomes the output."""

    a: Array
    b: Array
    bias: Array | None
    factors: tuple[Array, Array, Array]  # scales of a, of b, of y; broadcastable to the sum
    zero_point: int
    dtype: np.dtype
    shape: tuple[int, ...]


def quantized(call: Call, pad_with_zero: bool = False) -> Quantized:
    """The operands of an integer or QLinear product. Raises: Skip."""
    one = np.asarray(1.0, F)
    if call.op in ("MatMulInteger", "ConvInteger"):
        a, b = call.need(0), call.need(1)
        scales, zeros, bias, y = (one, one, one), (call.operand(2), call.operand(3)), None, (0, np.dtype(np.int32))
    elif call.op in ("QLinearMatMul", "QLinearConv"):
        a, b = call.need(0), call.need(3)
        scales, zeros = (call.need(1), call.need(4), call.need(6)), (call.need(2), call.need(5))
        bias, y = call.operand(8), (int(scalar(call.need(7))), call.need(7).dtype)
    else:
        require(call.op == "QGemm" and call.operand(7) is not None)
        a = call.need(0).T if call.attrs.get("transA") else call.need(0)
        b = call.need(3).T if call.attrs.get("transB") else call.need(3)
        scales = (call.need(1) * F(call.attrs.get("alpha", 1.0)), call.need(4), call.need(7))
        zeros, bias, y = (
            (call.operand(2), call.operand(5)),
            call.operand(6),
            (int(scalar(call.need(8))), call.need(8).dtype),
        )
    require(a.ndim >= 2 and b.ndim >= 2 and scales[0].size == 1)
    z = int(scalar(zeros[0]))
    if "Conv" in call.op:
        f = folded(call, a, b, 0 if pad_with_zero else z)
        w, group = f.weights, f.weights.shape[1]
        channel = (1, group, -1, 1)
        w_zero = np.asarray(0) if zeros[1] is None else zeros[1].astype(np.int64)
        w_scale = scales[1].reshape(channel) if scales[1].size > 1 else scales[1].reshape(())
        return Quantized(
            w.astype(np.int64) - (w_zero.reshape(channel) if w_zero.size > 1 else w_zero.reshape(())),
            f.columns.astype(np.int64) - z,
            None if bias is None else bias.astype(np.int64).reshape(channel),
            (scales[0].reshape(()), w_scale, scales[2].reshape(())),
            *y,
            f.shape,
        )
    columns = np.asarray(0) if zeros[1] is None else zeros[1].astype(np.int64)
    left, right = a.astype(np.int64) - z, b.astype(np.int64) - columns
    whole = None if bias is None else bias.astype(np.int64)
    shape = (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1])
    return Quantized(left, right, whole, (scales[0].reshape(()), scales[1], scales[2].reshape(())), *y, shape)


def int_product(a: Array, b: Array) -> Array:
    return np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)


def multiplier(a: Array, b: Array, y: Array) -> Array:
    return (a.astype(F) * b.astype(F)) / y.astype(F)


def requantized(
    acc: Array,
    q: Quantized,
    *,
    rounding: Rounding = np.rint,
    factor: Callable[[Array, Array, Array], Array] = multiplier,
    saturate: Callable[[Array, np.dtype], Array] | None = None,
    inside: bool = False,
) -> Array:
    """saturate(rounding(acc * factor) + zero_point); `inside` adds the zero point first."""
    v = acc.astype(F) * factor(*q.factors)
    whole = rounding(v + F(q.zero_point)) if inside else rounding(v) + q.zero_point
    return clipped(whole, q.dtype) if saturate is None else saturate(whole, q.dtype)


def clipped(x: Array, dtype: np.dtype) -> Array:
    info = np.iinfo(dtype)
    # asarray: of a tensor without dimensions numpy makes a scalar.
    return np.asarray(np.clip(np.nan_to_num(x.astype(np.float64), nan=info.min), info.min, info.max)).astype(dtype)


def int_sum(call: Call, product: Product = int_product, pad_with_zero: bool = False) -> tuple[Array, Quantized]:
    """The accumulator with its bias, unwrapped."""
    q = quantized(call, pad_with_zero)
    acc = product(q.a, q.b)
    return (acc if q.bias is None else acc + q.bias), q


def integer(product: Product = int_product, pad_with_zero: bool = False, **seams) -> Callable[[Call], Outputs]:
    """A kernel of the integer and QLinear products."""

    def kernel(call: Call) -> Outputs:
        acc, q = int_sum(call, product, pad_with_zero)
        y = acc.astype(np.int32) if q.dtype == np.int32 else requantized(acc.astype(np.int32), q, **seams)
        return [y.reshape(q.shape)]

    return kernel


def floating(product: Product) -> Callable[[Call], Outputs]:
    """A kernel of the float products."""
    return lambda call: float_product(call, product)


def half_up(x: Array) -> Array:
    return np.floor(x + F(0.5))


def half_away(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + F(0.5)), x)


# Rows: the axis of interest last.


def softmax(call: Call, exp: Callable[[Array], Array] = np.exp, shift: bool = True, axis: int | None = None) -> Outputs:
    x = call.need(0)
    require(x.dtype == F and call.opset >= 13 and x.size > 0)
    at = call.attrs.get("axis", -1) if axis is None else axis
    with np.errstate(all="ignore"):
        e = exp(x - x.max(at, keepdims=True)) if shift else exp(x)
        return [(e / e.sum(at, keepdims=True, dtype=F)).astype(F)]


def reduce_axes(call: Call) -> tuple[tuple[int, ...], bool] | None:
    """(axes, keepdims) of a reduction; None where nothing is reduced."""
    given = call.operand(1)
    axes = call.attrs.get("axes") if given is None else [int(a) for a in given]
    if not axes and call.attrs.get("noop_with_empty_axes", 0):
        return None
    rank = call.need(0).ndim
    return (tuple(sorted(a % rank for a in axes)) if axes else tuple(range(rank))), bool(call.attrs.get("keepdims", 1))


def rows(call: Call, fold: Callable[[Array], Array]) -> Outputs:
    """`fold` over the last axis of float32 data, as a reduction. Raises: Skip."""
    x, found = call.need(0), reduce_axes(call)
    require(x.dtype == F and found is not None and x.size > 0)
    assert found is not None
    axes, keep = found
    others = [i for i in range(x.ndim) if i not in axes]
    flat = x.transpose(*others, *axes).reshape(*(x.shape[i] for i in others), -1)
    shape = [1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes]
    with np.errstate(all="ignore"):
        return [np.asarray(fold(flat)).astype(F).reshape(shape)]
