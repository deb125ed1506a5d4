"""Gemm and convolution with their integer and quantized forms, all through one Gemm."""

from __future__ import annotations

import math

import numpy as np

from .. import dtypes as dt
from ..emit import (
    Emitter,
    OperatorDef,
    Value,
    broadcast_shape,
    cast,
    elementwise,
    expand,
    reshape,
    scalar,
    transpose,
)
from ..errors import ModelError, ParameterError, ShapeError
from .checks import one_of, same_dtype, text, widen
from .geometry import Ints, windows
from .quantization import (
    BYTES,
    check_length,
    check_scale,
    multiplier,
    requantize,
    scale_of,
    zero_point_of,
)

WIDE_INTS = ("int32", "int64", "uint32", "uint64")


def _matrices(emit: Emitter, A: Value, B: Value) -> tuple[Value, Value, Ints]:
    """A and B with at least two axes, and the shape of the product without the axes that were added.

    Raises: ShapeError. Source: numpy.matmul.
    """
    if not A.rank or not B.rank:
        raise ShapeError(f"{emit.source}: A is {text(A.shape)} and B is {text(B.shape)}, a scalar is not a matrix")
    a = reshape(emit, A, (1, *A.shape)) if A.rank == 1 else A
    b = reshape(emit, B, (*B.shape, 1)) if B.rank == 1 else B
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"{emit.source}: A is {text(A.shape)} but B is {text(B.shape)}: the inner sizes differ")
    batch = broadcast_shape(emit, a.shape[:-2], b.shape[:-2])
    return a, b, (*batch, *a.shape[-2 : -1 if A.rank > 1 else -2], *b.shape[-1 if B.rank > 1 else b.rank :])


def _product(emit: Emitter, a: Value, b: Value) -> Value:
    """A @ B for floats through Gemm; wide integers, for which there is no Gemm, as a sum of products."""
    if dt.is_float(a.dtype):
        return emit("Gemm", a, b)
    columns = transpose(emit, b, (*range(b.rank - 2), b.rank - 1, b.rank - 2))
    rows = reshape(emit, a, (*a.shape[:-1], 1, a.shape[-1]))
    columns = reshape(emit, columns, (*columns.shape[:-2], 1, *columns.shape[-2:]))
    return emit("Reduce", elementwise(emit, "mul", rows, columns), fn="sum")


def lower_matmul(emit: Emitter, A: Value, B: Value) -> Value:
    """Y = A @ B

    Shapes: as numpy.matmul, 1-D operands promoted, batch axes broadcast.
    Dtypes: floats, int32 int64 uint32 uint64.
    Source: ONNX MatMul-13.
    """
    same_dtype(emit, A=A, B=B)
    one_of(emit, "A", A, (*dt.FLOATS, *WIDE_INTS))
    a, b, shape = _matrices(emit, A, B)
    return cast(emit, reshape(emit, _product(emit, widen(emit, a), widen(emit, b)), shape), A.dtype)


def _transposed(emit: Emitter, A: Value, B: Value, transA: int, transB: int) -> tuple[Value, Value]:
    if A.rank != 2 or B.rank != 2:
        raise ShapeError(f"{emit.source}: A is {text(A.shape)} and B is {text(B.shape)}, both must be matrices")
    a = transpose(emit, A, (1, 0)) if transA else A
    b = transpose(emit, B, (1, 0)) if transB else B
    if a.shape[1] != b.shape[0]:
        raise ShapeError(
            f"{emit.source}: A is {text(A.shape)} but B is {text(B.shape)}: the inner sizes differ "
            f"(transA={transA}, transB={transB})"
        )
    return a, b


def _broadcast_to(emit: Emitter, name: str, x: Value, shape: Ints) -> Value:
    if broadcast_shape(emit, x.shape, shape) != shape:
        raise ShapeError(f"{emit.source}: {name} is {text(x.shape)}, it does not broadcast to {text(shape)}")
    return expand(emit, x, shape)


def lower_gemm(
    emit: Emitter,
    A: Value,
    B: Value,
    C: Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """Y = alpha * A' @ B' + beta * C

    Shapes: A' [M,K], B' [K,N], C broadcastable to [M,N] -> Y [M,N].
    Dtypes: floats, int32 int64 uint32 uint64.
    Source: ONNX Gemm-13.
    """
    values = {"A": A, "B": B} | ({} if C is None else {"C": C})
    same_dtype(emit, **values)
    one_of(emit, "A", A, (*dt.FLOATS, *WIDE_INTS))
    a, b = _transposed(emit, A, B, transA, transB)
    y = _times(emit, _product(emit, widen(emit, a), widen(emit, b)), alpha, "alpha")
    if C is not None:
        y = elementwise(emit, "add", y, _broadcast_to(emit, "C", _times(emit, widen(emit, C), beta, "beta"), y.shape))
    return cast(emit, y, A.dtype)


def _times(emit: Emitter, x: Value, factor: float, name: str) -> Value:
    """factor * x; the factor is a float32 attribute whatever x is. Nothing is emitted for 1."""
    if factor == 1:
        return x
    if not dt.is_float(x.dtype) and not float(factor).is_integer():
        raise ParameterError(f"{emit.source}: {name} is {factor} but the matrices are {x.dtype}")
    lenience = {"zero_free": True} if factor == 0 and dt.is_float(x.dtype) else {}  # BLAS may skip 0 * x
    return elementwise(emit, "mul", x, scalar(emit, float(np.float32(factor)), x.dtype), **lenience)


# Zero points and scales of matrices: a scalar, one per row of A, one per column of B.


def _of_rows(emit: Emitter, name: str, param: Value, A: Value) -> Value:
    """[] or [..,M,1]. Raises: ParameterError."""
    if param.rank <= 1:
        check_length(emit, name, param, A.shape[-2:-1], "one per row of the first matrix")
        return reshape(emit, param, () if param.spec.size == 1 else (*(1,) * (A.rank - 2), *param.shape, 1))
    check_length(emit, name, param, (*A.shape[:-1], 1), "one per row of the first matrix")
    return param


def _of_columns(emit: Emitter, name: str, param: Value, B: Value) -> Value:
    """[] or [..,1,N]. Raises: ParameterError."""
    if param.rank <= 1:
        check_length(emit, name, param, B.shape[-1:], "one per column of the second matrix")
        return reshape(emit, param, () if param.spec.size == 1 else (*(1,) * (B.rank - 1), *param.shape))
    check_length(emit, name, param, (*B.shape[:-2], 1, B.shape[-1]), "one per column of the second matrix")
    return param


def _zero_points(
    emit: Emitter, a: Value, a_zero_point: Value | None, b: Value, b_zero_point: Value | None
) -> tuple[Value, Value]:
    a_zero = scalar(emit, 0, a.dtype) if a_zero_point is None else _of_rows(emit, "a_zero_point", a_zero_point, a)
    b_zero = scalar(emit, 0, b.dtype) if b_zero_point is None else _of_columns(emit, "b_zero_point", b_zero_point, b)
    one_of(emit, "a_zero_point", a_zero, (a.dtype,))
    one_of(emit, "b_zero_point", b_zero, (b.dtype,))
    return a_zero, b_zero


def lower_matmulinteger(
    emit: Emitter, A: Value, B: Value, a_zero_point: Value | None = None, b_zero_point: Value | None = None
) -> Value:
    """Y = (A - a_zero_point) @ (B - b_zero_point) in int32, modulo 2^32

    Shapes: as MatMul; a_zero_point [], [M] or [..,M,1]; b_zero_point [], [N] or [..,1,N].
    Source: ONNX MatMulInteger-10.
    """
    one_of(emit, "A", A, BYTES)
    one_of(emit, "B", B, BYTES)
    a, b, shape = _matrices(emit, A, B)
    return reshape(emit, emit("Gemm", a, b, *_zero_points(emit, a, a_zero_point, b, b_zero_point)), shape)


def lower_qlinearmatmul(
    emit: Emitter,
    a: Value,
    a_scale: Value,
    a_zero_point: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
) -> Value:
    """y = saturate(round(acc * ((a_scale * b_scale) / y_scale)) + y_zero_point), acc as MatMulInteger

    Shapes: as MatMul; parameters of a per tensor or per row, of b per tensor or per column, of y per tensor.
    Source: ONNX QLinearMatMul-21.
    """
    for name, value in (("a", a), ("b", b), ("y_zero_point", y_zero_point)):
        one_of(emit, name, value, BYTES)
    for name, scale in (("a_scale", a_scale), ("b_scale", b_scale), ("y_scale", y_scale)):
        check_scale(emit, name, scale)
    rows, columns, shape = _matrices(emit, a, b)
    acc = emit("Gemm", rows, columns, *_zero_points(emit, rows, a_zero_point, columns, b_zero_point))
    factor = multiplier(
        emit,
        cast(emit, _of_rows(emit, "a_scale", a_scale, rows), "float32"),
        cast(emit, _of_columns(emit, "b_scale", b_scale, columns), "float32"),
        scale_of(emit, "y_scale", y_scale),
    )
    zero = zero_point_of(emit, "y_zero_point", y_zero_point, y_zero_point)
    return reshape(emit, requantize(emit, acc, factor, zero), shape)


def lower_qgemm(
    emit: Emitter,
    A: Value,
    a_scale: Value,
    a_zero_point: Value | None,
    B: Value,
    b_scale: Value,
    b_zero_point: Value | None,
    C: Value | None = None,
    y_scale: Value | None = None,
    y_zero_point: Value | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """Y = saturate(round((acc + C) * (((alpha * a_scale) * b_scale) / y_scale)) + y_zero_point)

    Without y_scale and y_zero_point Y is the float32 (acc + C) * ((alpha * a_scale) * b_scale).
    Shapes: A' [M,K], B' [K,N], C int32 broadcastable to [M,N]; parameters of B per tensor or per column.
    Source: com.microsoft QGemm-1.
    """
    one_of(emit, "A", A, BYTES)
    one_of(emit, "B", B, BYTES)
    if (y_scale is None) != (y_zero_point is None):
        raise ModelError(f"{emit.source}: y_scale and y_zero_point must both be given or both be absent")
    a, b = _transposed(emit, A, B, transA, transB)
    acc = emit("Gemm", a, b, *_zero_points(emit, a, a_zero_point, b, b_zero_point))
    if C is not None:
        one_of(emit, "C", C, ("int32",))
        acc = elementwise(emit, "add", acc, _broadcast_to(emit, "C", C, acc.shape))
    check_scale(emit, "b_scale", b_scale)
    columns = cast(emit, _of_columns(emit, "b_scale", b_scale, b), "float32")
    factor = elementwise(emit, "mul", _times(emit, scale_of(emit, "a_scale", a_scale), alpha, "alpha"), columns)
    if y_scale is None or y_zero_point is None:
        return elementwise(emit, "mul", cast(emit, acc, "float32"), factor)
    one_of(emit, "y_zero_point", y_zero_point, BYTES)
    factor = elementwise(emit, "div", factor, scale_of(emit, "y_scale", y_scale))
    return requantize(emit, acc, factor, zero_point_of(emit, "y_zero_point", y_zero_point, y_zero_point))


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


LINEAR: dict[tuple[str, str], OperatorDef] = {
    ("", "MatMul"): OperatorDef(lower_matmul),
    ("", "Gemm"): OperatorDef(lower_gemm, since=7),
    ("", "Conv"): OperatorDef(lower_conv),
    ("", "ConvInteger"): OperatorDef(lower_convinteger, since=10),
    ("", "MatMulInteger"): OperatorDef(lower_matmulinteger, since=10),
    ("", "QLinearMatMul"): OperatorDef(lower_qlinearmatmul, since=10),
    ("", "QLinearConv"): OperatorDef(lower_qlinearconv, since=10),
    ("com.microsoft", "QGemm"): OperatorDef(lower_qgemm, domain="com.microsoft"),
}
