"""Convolutions through one Gemm: Im2col, the product, the bias."""

from __future__ import annotations

import math

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, cast, elementwise, reshape, scalar
from ...errors import ShapeError
from ..checks import one_of, same_dtype, text, widen
from ..geometry import Ints, windows
from ..quantization import BYTES, check_length, check_scale, multiplier, requantize, scale_of, zero_point_of

def _convolve(
    emit: Emitter,
    X: Value,
    W: Value,
    x_zero_point: Value,
    w_zero_point: Value | None,
    group: int,
    kernel_shape: Ints | None,
    strides: Ints | None,
    dilations: Ints | None,
    pads: Ints | None,
    auto_pad: str,
) -> tuple[Value, Ints]:
    """The accumulator [N,M,L] of a convolution and its spatial shape; pads hold x_zero_point.

    The weights are Gemm's A and the columns its B, so that nothing is transposed.
    Shapes: X [N,C,*S], W [M,C/group,*kernel_shape]. Raises: ShapeError.
    """
    if X.rank < 3 or W.rank != X.rank:
        raise ShapeError(
            f"{emit.source}: X is {text(X.shape)} and W is {text(W.shape)}: both need [N,C,...] of one rank"
        )
    (n, c), (m, c_group), kernel = X.shape[:2], W.shape[:2], W.shape[2:]
    if group < 1 or c != c_group * group or m % group:
        raise ShapeError(
            f"{emit.source}: X is {text(X.shape)} and W is {text(W.shape)}, which do not form {group} groups"
        )
    if kernel_shape is not None and tuple(kernel_shape) != kernel:
        raise ShapeError(f"{emit.source}: kernel_shape is {text(tuple(kernel_shape))} but W is {text(W.shape)}")
    window = windows(emit, X.shape[2:], kernel, strides, dilations, pads, auto_pad)
    depth = c_group * math.prod(kernel)
    columns = emit("Im2col", X, x_zero_point, **window.attrs)
    columns = reshape(emit, columns, (n, group, depth, columns.shape[-1]))
    weights = reshape(emit, W, (1, group, m // group, depth))
    zeros: tuple[Value, ...] = ()
    if w_zero_point is not None:
        per_channel = w_zero_point.shape == (m,) and m > 1
        rows = reshape(emit, w_zero_point, (1, group, m // group, 1) if per_channel else ())
        zeros = (rows, x_zero_point)
    acc = emit("Gemm", weights, columns, *zeros)
    return reshape(emit, acc, (n, m, columns.shape[-1])), window.out_shape


def _check_bias(emit: Emitter, B: Value, W: Value, dtype: str) -> None:
    one_of(emit, "B", B, (dtype,))
    if B.shape != W.shape[:1]:
        raise ShapeError(f"{emit.source}: B is {text(B.shape)} but W is {text(W.shape)}: one bias per output channel")


def lower_conv(
    emit: Emitter,
    X: Value,
    W: Value,
    B: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    """Y[n,m,o] = sum_ck W[m,c,k] X[n,c,o*stride + k*dilation - pad] + B[m]

    Shapes: X [N,C,*S], W [M,C/group,*kernel_shape], B [M] -> Y [N,M,*O].
    Dtypes: floats.
    Source: ONNX Conv-22.
    """
    same_dtype(emit, X=X, W=W)
    one_of(emit, "X", X, dt.FLOATS)
    x, w = widen(emit, X), widen(emit, W)
    zero = scalar(emit, 0, x.dtype)
    acc, out = _convolve(emit, x, w, zero, None, group, kernel_shape, strides, dilations, pads, auto_pad)
    if B is not None:
        _check_bias(emit, B, W, X.dtype)
        acc = elementwise(emit, "add", acc, reshape(emit, widen(emit, B), (*B.shape, 1)))
    return cast(emit, reshape(emit, acc, (*acc.shape[:2], *out)), X.dtype)


def _channel_zero_point(emit: Emitter, zero_point: Value | None, w: Value) -> Value:
    if zero_point is None:
        return scalar(emit, 0, w.dtype)
    one_of(emit, "w_zero_point", zero_point, (w.dtype,))
    check_length(emit, "w_zero_point", zero_point, w.shape[:1], "one per output channel")
    return zero_point


def lower_convinteger(
    emit: Emitter,
    x: Value,
    w: Value,
    x_zero_point: Value | None = None,
    w_zero_point: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    """y[n,m,o] = sum_ck (w[m,c,k] - w_zero_point[m]) (x[...] - x_zero_point) in int32; pads are real zeros

    Shapes: as Conv; x_zero_point [], w_zero_point [] or [M].
    Source: ONNX ConvInteger-10.
    """
    one_of(emit, "x", x, BYTES)
    one_of(emit, "w", w, BYTES)
    x_zero = zero_point_of(emit, "x_zero_point", x_zero_point, x)
    w_zero = _channel_zero_point(emit, w_zero_point, w)
    acc, out = _convolve(emit, x, w, x_zero, w_zero, group, kernel_shape, strides, dilations, pads, auto_pad)
    return reshape(emit, acc, (*acc.shape[:2], *out))


def lower_qlinearconv(
    emit: Emitter,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    w: Value,
    w_scale: Value,
    w_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    B: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    """y = saturate(round((acc + B) * ((x_scale * w_scale[m]) / y_scale)) + y_zero_point), acc as ConvInteger

    Shapes: as Conv; w_scale and w_zero_point [] or [M]; B int32 [M], added modulo 2^32.
    Source: ONNX QLinearConv-10.
    """
    for name, value in (("x", x), ("w", w), ("y_zero_point", y_zero_point)):
        one_of(emit, name, value, BYTES)
    check_scale(emit, "w_scale", w_scale)
    check_length(emit, "w_scale", w_scale, w.shape[:1], "one per output channel")
    x_zero = zero_point_of(emit, "x_zero_point", x_zero_point, x)
    w_zero = _channel_zero_point(emit, w_zero_point, w)
    acc, out = _convolve(emit, x, w, x_zero, w_zero, group, kernel_shape, strides, dilations, pads, auto_pad)
    if B is not None:
        _check_bias(emit, B, w, "int32")
        acc = elementwise(emit, "add", acc, reshape(emit, B, (*B.shape, 1)))
    channels = reshape(emit, cast(emit, w_scale, "float32"), (w_scale.spec.size, 1) if w_scale.spec.size > 1 else ())
    x_s, y_s = scale_of(emit, "x_scale", x_scale), scale_of(emit, "y_scale", y_scale)
    factor = multiplier(emit, x_s, channels, y_s)
    y = requantize(emit, acc, factor, zero_point_of(emit, "y_zero_point", y_zero_point, y_zero_point))
    return reshape(emit, y, (*acc.shape[:2], *out))
