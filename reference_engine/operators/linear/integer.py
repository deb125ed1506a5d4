"""Matrix products of 8-bit integers: sums in int32, requantized or scaled to floats."""

from __future__ import annotations

from typing import Any

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, cast, elementwise, expand, reshape, scalar, transpose
from ...errors import ModelError, ParameterError, ShapeError, UnknownOperatorError
from ..checks import one_of, same_dtype, widen
from ..pointwise.conversion import lower_dynamicquantizelinear
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


def _scaled(emit: Emitter, acc: Value, factor: Value, bias: Value | None, dtype: str) -> Value:
    """float(acc) * factor + bias."""
    y = elementwise(emit, "mul", cast(emit, acc, "float32"), factor)
    if bias is not None:
        one_of(emit, "bias", bias, (dtype,))
        check_length(emit, "bias", bias, acc.shape[-1:], "one per column of the second matrix")
        y = elementwise(emit, "add", y, cast(emit, bias, "float32"))
    return cast(emit, y, dtype)


def lower_matmulintegertofloat(
    emit: Emitter,
    A: Value,
    B: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero_point: Value | None = None,
    b_zero_point: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """Y = acc * (a_scale * b_scale) + bias, acc as MatMulInteger

    Shapes: as MatMul; parameters of A per tensor or per row, of B per tensor or per column, bias [N].
    Dtypes: 8-bit integers; scales, bias and Y float32 or float16.
    Source: com.microsoft MatMulIntegerToFloat-1.
    """
    one_of(emit, "A", A, BYTES)
    one_of(emit, "B", B, BYTES)
    for name, scale in (("a_scale", a_scale), ("b_scale", b_scale)):
        check_scale(emit, name, scale)
    a, b, shape = matrices(emit, A, B)
    acc = emit("Gemm", a, b, *_zero_points(emit, a, a_zero_point, b, b_zero_point))
    rows = cast(emit, _of_rows(emit, "a_scale", a_scale, a), "float32")
    columns = cast(emit, _of_columns(emit, "b_scale", b_scale, b), "float32")
    y = _scaled(emit, acc, elementwise(emit, "mul", rows, columns), bias, a_scale.dtype)
    return reshape(emit, y, shape)


def lower_dynamicquantizematmul(
    emit: Emitter, A: Value, B: Value, b_scale: Value, b_zero_point: Value | None = None, bias: Value | None = None
) -> Value:
    """Y = acc * (s * b_scale) + bias, acc = (q - z) @ (B - b_zero_point), (q, s, z) = DynamicQuantizeLinear(A)

    Shapes: as MatMul; parameters of B per tensor or per column, bias [N].
    Dtypes: A, b_scale, bias, Y float32; B 8-bit.
    Source: com.microsoft DynamicQuantizeMatMul-1.
    """
    one_of(emit, "A", A, ("float32",))
    one_of(emit, "B", B, BYTES)
    check_scale(emit, "b_scale", b_scale)
    q, scale, zero_point = lower_dynamicquantizelinear(emit, A)
    a, b, shape = matrices(emit, q, B)
    acc = emit("Gemm", a, b, *_zero_points(emit, a, zero_point, b, b_zero_point))
    columns = cast(emit, _of_columns(emit, "b_scale", b_scale, b), "float32")
    return reshape(emit, _scaled(emit, acc, elementwise(emit, "mul", scale, columns), bias, "float32"), shape)


def unpacked(emit: Emitter, x: Value, bits: int) -> Value:
    """The fields of bytes along the last axis, the lowest bits first: [.., n] -> [.., n * 8 / bits]."""
    if bits == 8:
        return x
    size = scalar(emit, 1 << bits, "uint8")
    rest, fields = x, []
    for _ in range(8 // bits):
        above = elementwise(emit, "div", rest, size)
        fields.append(
            reshape(emit, elementwise(emit, "sub", rest, elementwise(emit, "mul", above, size)), (*x.shape, 1))
        )
        rest = above
    return reshape(emit, emit("DataMove", *fields, fn="concat", axis=x.rank), (*x.shape[:-1], x.shape[-1] * 8 // bits))


def lower_matmulnbits(
    emit: Emitter,
    A: Value,
    B: Value,
    scales: Value,
    zero_points: Value | None = None,
    g_idx: Value | None = None,
    bias: Value | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
) -> Value:
    """Y = A @ W^T + bias, W[n,k] = (q[n,k] - zero_point[n,k/block_size]) * scale[n,k/block_size]

    Shapes: A [*,K], B [N,ceil(K/block_size),block_size*bits/8] of packed fields, scales and zero_points one per
        block (packed like B, or of A's type), bias [N] -> Y [*,N]. The default zero point is 2^(bits-1).
    Dtypes: A, scales, bias, Y one float type; B uint8.
    Source: com.microsoft MatMulNBits-1; at accuracy_level 4 A may be quantized to int8 by blocks (N1).
    """
    same_dtype(emit, A=A, scales=scales, **({} if bias is None else {"bias": bias}))
    one_of(emit, "A", A, dt.FLOATS)
    one_of(emit, "B", B, ("uint8",))
    if g_idx is not None:
        raise UnknownOperatorError(f"{emit.source}: g_idx is deprecated and not lowered")
    if bits not in (2, 4, 8) or block_size < 16 or block_size & (block_size - 1):
        raise ParameterError(
            f"{emit.source}: bits {bits} and block_size {block_size} must be 2, 4 or 8 and a power of two from 16"
        )
    blocks = -(-K // block_size)
    if not A.rank or A.shape[-1] != K or B.spec.size != N * blocks * block_size * bits // 8:
        raise ShapeError(
            f"{emit.source}: A {A.spec} and B {B.spec} do not fit K={K}, N={N}, {bits} bits by {block_size}"
        )
    if scales.spec.size != N * blocks:
        raise ShapeError(f"{emit.source}: scales {scales.spec}, expected one for each of {N} x {blocks} blocks")
    q = reshape(emit, unpacked(emit, reshape(emit, B, (N, B.spec.size // N)), bits), (1, N * blocks, block_size))
    scale = reshape(emit, widen(emit, scales), (N * blocks,))
    weights = _dequantized(emit, q, scale, zero_points, N, blocks, bits)
    rows = reshape(emit, weights, (N, blocks * block_size))
    rows = emit("DataMove", rows, fn="slice", starts=(0, 0), ends=(N, K), steps=(1, 1)) if rows.shape[1] > K else rows
    a = reshape(emit, widen(emit, A), (A.spec.size // K, K))
    lenience: dict[str, Any] = {"int8_blocks": block_size} if accuracy_level == 4 else {}
    y = emit("Gemm", a, transpose(emit, rows, (1, 0)), **lenience)
    if bias is not None:
        y = elementwise(emit, "add", y, widen(emit, bias))
    return cast(emit, reshape(emit, y, (*A.shape[:-1], N)), A.dtype)


def _dequantized(
    emit: Emitter, q: Value, scale: Value, zero_points: Value | None, rows: int, blocks: int, bits: int
) -> Value:
    """(q - zero_point) * scale for q [1, rows * blocks, block_size]."""
    if zero_points is not None and zero_points.dtype != "uint8":
        one_of(emit, "zero_points", zero_points, (*dt.FLOATS,))
        zero = reshape(emit, cast(emit, zero_points, scale.dtype), (1, rows * blocks, 1))
        bracket = elementwise(emit, "sub", cast(emit, q, scale.dtype), zero)
        return elementwise(emit, "mul", bracket, reshape(emit, scale, (1, rows * blocks, 1)))
    if zero_points is None:
        zero = expand(emit, reshape(emit, scalar(emit, 1 << (bits - 1), "uint8"), (1,)), (rows * blocks,))
    else:
        packed = -(-blocks * bits // 8)
        if zero_points.spec.size != rows * packed:
            raise ShapeError(f"{emit.source}: zero_points {zero_points.spec}, expected {rows} x {packed} bytes")
        fields = unpacked(emit, reshape(emit, zero_points, (rows, packed)), bits)
        if fields.shape[1] > blocks:
            fields = emit("DataMove", fields, fn="slice", starts=(0, 0), ends=(rows, blocks), steps=(1, 1))
        zero = reshape(emit, fields, (rows * blocks,))
    return emit("Dequantize", q, scale, zero, to=scale.dtype)


INTEGER: dict[tuple[str, str], OperatorDef] = {
    ("", "MatMulInteger"): OperatorDef(lower_matmulinteger, since=10),
    ("", "QLinearMatMul"): OperatorDef(lower_qlinearmatmul, since=10),
    ("com.microsoft", "QGemm"): OperatorDef(lower_qgemm, domain="com.microsoft"),
    ("com.microsoft", "MatMulIntegerToFloat"): OperatorDef(lower_matmulintegertofloat, domain="com.microsoft"),
    ("com.microsoft", "DynamicQuantizeMatMul"): OperatorDef(lower_dynamicquantizematmul, domain="com.microsoft"),
    ("com.microsoft", "MatMulNBits"): OperatorDef(lower_matmulnbits, domain="com.microsoft"),
}
