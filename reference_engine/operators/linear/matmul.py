"""Matrix products of floats and of wide integers."""

from __future__ import annotations

import numpy as np

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, broadcast_shape, cast, elementwise, expand, reshape, scalar, transpose
from ...errors import ParameterError, ShapeError
from ..checks import one_of, same_dtype, text, widen
from ..geometry import Ints

WIDE_INTS = ("int32", "int64", "uint32", "uint64")


def matrices(emit: Emitter, A: Value, B: Value) -> tuple[Value, Value, Ints]:
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


def product(emit: Emitter, a: Value, b: Value) -> Value:
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
    a, b, shape = matrices(emit, A, B)
    return cast(emit, reshape(emit, product(emit, widen(emit, a), widen(emit, b)), shape), A.dtype)


def transposed(emit: Emitter, A: Value, B: Value, transA: int, transB: int) -> tuple[Value, Value]:
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


def broadcast_to(emit: Emitter, name: str, x: Value, shape: Ints) -> Value:
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
    a, b = transposed(emit, A, B, transA, transB)
    y = times(emit, product(emit, widen(emit, a), widen(emit, b)), alpha, "alpha")
    if C is not None:
        y = elementwise(emit, "add", y, broadcast_to(emit, "C", times(emit, widen(emit, C), beta, "beta"), y.shape))
    return cast(emit, y, A.dtype)


def times(emit: Emitter, x: Value, factor: float, name: str) -> Value:
    """factor * x; the factor is a float32 attribute whatever x is. Nothing is emitted for 1."""
    if factor == 1:
        return x
    if not dt.is_float(x.dtype) and not float(factor).is_integer():
        raise ParameterError(f"{emit.source}: {name} is {factor} but the matrices are {x.dtype}")
    lenience = {"zero_free": True} if factor == 0 and dt.is_float(x.dtype) else {}  # BLAS may skip 0 * x
    return elementwise(emit, "mul", x, scalar(emit, float(np.float32(factor)), x.dtype), **lenience)


def _with_rows_first(emit: Emitter, x: Value, name: str) -> Value:
    """The first axis moved before the last: [r, *batch, c] -> [*batch, r, c]."""
    if x.rank < 2:
        raise ShapeError(f"{emit.source}: {name} is {text(x.shape)}, a transposed batch needs at least two axes")
    return transpose(emit, x, (*range(1, x.rank - 1), 0, x.rank - 1))


def lower_fusedmatmul(
    emit: Emitter,
    A: Value,
    B: Value,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Value:
    """Y = alpha * A' @ B'; transBatch moves the first axis before the last, trans then swaps the last two

    Shapes: as MatMul after the moves; a vector is never transposed.
    Dtypes: floats.
    Source: com.microsoft FusedMatMul-1.
    """
    same_dtype(emit, A=A, B=B)
    one_of(emit, "A", A, dt.FLOATS)
    moved = []
    for name, x, batch, swap in (("A", A, transBatchA, transA), ("B", B, transBatchB, transB)):
        y = _with_rows_first(emit, x, name) if batch else x
        moved.append(transpose(emit, y, (*range(y.rank - 2), y.rank - 1, y.rank - 2)) if swap and y.rank > 1 else y)
    a, b, shape = matrices(emit, *moved)
    y = times(emit, product(emit, widen(emit, a), widen(emit, b)), alpha, "alpha")
    return cast(emit, reshape(emit, y, shape), A.dtype)


MATMUL: dict[tuple[str, str], OperatorDef] = {
    ("", "MatMul"): OperatorDef(lower_matmul),
    ("", "Gemm"): OperatorDef(lower_gemm, since=7),
    ("com.microsoft", "FusedMatMul"): OperatorDef(lower_fusedmatmul, domain="com.microsoft"),
}
