"""Gemm: the one product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import real as r
from ..errors import ShapeError
from ..real import Real
from ..types import Array, Policy, TensorSpec
from .definition import require_dtype, require_shape

BYTES = ("int8", "uint8")
FLOATS = ("float32", "float64", "float16", "bfloat16")


def infer_gemm(a: TensorSpec, b: TensorSpec, *zero_points: TensorSpec, **lenience: int) -> TensorSpec:
    require_shape(len(a.shape) >= 2 and len(b.shape) >= 2, f"Gemm: A {a} and B {b} need rank 2 or more")
    require_shape(a.shape[-1] == b.shape[-2], f"Gemm: A {a} has K={a.shape[-1]} but B {b} has K={b.shape[-2]}")
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ShapeError(f"Gemm: batch dimensions of A {a} and B {b} do not broadcast") from None
    shape = (*batch, a.shape[-2], b.shape[-1])
    if not zero_points:
        require_dtype(a, FLOATS, "Gemm: A")
        require_dtype(b, (a.dtype,), "Gemm: B")
        return TensorSpec(shape, a.dtype)
    require_dtype(a, BYTES, "Gemm: A")
    require_dtype(b, BYTES, "Gemm: B")
    for zero_point, operand, name, unit in zip(zero_points, (a, b), ("a", "b"), (-1, -2), strict=True):
        require_dtype(zero_point, (operand.dtype,), f"Gemm: {name}_zero_point")
        fits = zero_point.shape == () or (
            len(zero_point.shape) == len(operand.shape)
            and zero_point.shape[unit] == 1
            and all(z in (1, d) for z, d in zip(zero_point.shape, operand.shape, strict=True))
        )
        require_shape(fits, f"Gemm: {name}_zero_point {zero_point} fits no operand {operand}")
    return TensorSpec(shape, "int32")


def exact_gemm(a: Real, b: Real, *zero_points: Real, policy: Policy | None = None, int8_blocks: int = 0) -> Real:
    """C[m,n] = sum_k (A[m,k] - a_zero_point[m]) * (B[k,n] - b_zero_point[n])

    Shapes: A [*,M,K], B [*,K,N] -> C [*,M,N], batch dimensions broadcast.
    Dtypes: f,f -> f with K roundings (N1); int8|uint8 twice -> int32 modulo 2^32 (N2). `int8_blocks`: A may be
        quantized to int8 by blocks of so many k, each with a step of its own.
    Source: BLAS gemm with alpha=1, beta=0; zero points as ONNX MatMulInteger-10.
    """
    if not zero_points:
        made = r.dot(a, b)
        return replace(made, err=made.err + int8_error(a, b, int8_blocks)) if int8_blocks else made
    # float64 holds every sum: K * 255^2 < 2^53 for any K that fits in memory.
    left = a.value.astype(np.float64) - zero_points[0].value
    right = b.value.astype(np.float64) - zero_points[1].value
    acc = np.matmul(left, right).astype(np.int64)
    hazard = r.spread(a, b, acc.shape)
    if any(z.lo is not None and (z.lo != z.hi).any() for z in zero_points):
        hazard = True  # another zero point may saturate other elements
    if a.lo is None or a.hi is None:
        return Real(wrap32(acc), "int32", hazard=hazard, real=acc)
    reach = np.maximum(a.hi - a.value, a.value - a.lo).astype(np.float64)
    off = np.matmul(reach, np.abs(right)).astype(np.int64)
    return Real(wrap32(acc), "int32", hazard=hazard, lo=acc - off, hi=acc + off, real=acc)


def int8_error(a: Real, b: Real, block: int) -> Array:
    """sum over blocks of (max |A| / 127) (1/2 + 2^-10) sum |B|: each element rounded once to the block's own step.

    Source: N1.
    """
    K = a.shape[-1]
    blocks = -(-K // block)
    rows = np.zeros((*a.shape[:-1], blocks * block))
    rows[..., :K] = np.abs(np.nan_to_num(a.value, nan=0.0, posinf=0.0, neginf=0.0))
    columns = np.zeros((*b.shape[:-2], blocks * block, b.shape[-1]))
    columns[..., :K, :] = np.abs(b.value)
    step = rows.reshape(*a.shape[:-1], blocks, block).max(-1) / 127.0
    sums = columns.reshape(*b.shape[:-2], blocks, block, b.shape[-1]).sum(-2)
    return np.matmul(step * (0.5 + 2.0**-10), sums)


def wrap32(acc: Array) -> Array:
    """acc modulo 2^32 as int32."""
    return np.asarray(acc).astype(np.int64).astype(np.int32)
