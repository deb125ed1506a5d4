"""Matrix products of 8-bit integers: sums in int32, requantized or scaled to floats."""

from __future__ import annotations

from ...emit import Emitter, OperatorDef, Value, cast, elementwise, reshape, scalar
from ...errors import ModelError
from ..checks import one_of
from ..quantization import BYTES, check_length, check_scale, multiplier, requantize, scale_of, zero_point_of
from .matmul import broadcast_to, matrices, times, transposed

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
    a, b, shape = matrices(emit, A, B)
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
    rows, columns, shape = matrices(emit, a, b)
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
    a, b = transposed(emit, A, B, transA, transB)
    acc = emit("Gemm", a, b, *_zero_points(emit, a, a_zero_point, b, b_zero_point))
    if C is not None:
        one_of(emit, "C", C, ("int32",))
        acc = elementwise(emit, "add", acc, broadcast_to(emit, "C", C, acc.shape))
    check_scale(emit, "b_scale", b_scale)
    columns = cast(emit, _of_columns(emit, "b_scale", b_scale, b), "float32")
    factor = elementwise(emit, "mul", times(emit, scale_of(emit, "a_scale", a_scale), alpha, "alpha"), columns)
    if y_scale is None or y_zero_point is None:
        return elementwise(emit, "mul", cast(emit, acc, "float32"), factor)
    one_of(emit, "y_zero_point", y_zero_point, BYTES)
    factor = elementwise(emit, "div", factor, scale_of(emit, "y_scale", y_scale))
    return requantize(emit, acc, factor, zero_point_of(emit, "y_zero_point", y_zero_point, y_zero_point))
