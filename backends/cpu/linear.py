"""Gemm on the CPU: register tiles over packed panels; a constant operand is packed when the graph is bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from opgauge.reference_engine.memory import empty
from opgauge.reference_engine.types import Array, Kernel, TensorSpec

from .compile import flat, host_codegen, jit
from .integer import bind_integer, bind_requantize, gemm_integer, gemm_requantize
from .lastchannel import bind_rows, gemm_rows
from .panels import batch_index, batch_size, copy_rows
from .threads import spread
from .tile import FLOAT_ROWS, float_lanes, float_tile
from .windows import bind_window, gemm_window

FLOAT_COST = 0.02  # ns of a product
NEAR = 2**19  # bytes of panels that stay near while rows of A pass


@jit
def float_product(a, b, out, plan, part, parts):
    """out[i] = a[a_of[i]] @ b[b_of[i]], b in panels of L columns; part `part` of `parts` of it

    Shapes: flat a [*,M,K], panels b [*,P,K,L], out [*,M,N]; plan M, K, N, L, G, then a_of, then b_of: G panels are
        passed over while the rows of A are near. Dtypes: as float_tile.
    """
    M, K, N, L, G = plan[0], plan[1], plan[2], plan[3], plan[4]
    count = (len(plan) - 5) // 2
    P, T = (N + L - 1) // L, (M + FLOAT_ROWS - 1) // FLOAT_ROWS
    spare = np.empty(FLOAT_ROWS * L, out.dtype)
    by_panel = parts > T
    units = P if by_panel else T
    low, high = count * units * part // parts, count * units * (part + 1) // parts
    for i in range(count):
        first, last = max(low - i * units, 0), min(high - i * units, units)
        p_low, p_high = (first, last) if by_panel else (0, P)
        top, bottom = (0, M) if by_panel else (first * FLOAT_ROWS, min(last * FLOAT_ROWS, M))
        for group in range(p_low, p_high, G):
            for m in range(top, bottom, FLOAT_ROWS):
                row, left = (plan[5 + i] * M + m) * K, M - 1 - m
                for q in range(group, min(group + G, p_high)):
                    n, at = q * L, (plan[5 + count + i] * P + q) * K * L
                    to = (i * M + m) * N + n
                    if n + L <= N:
                        float_tile(M == 1, a, row, K, left, b, at, K, out, to, N)  # type: ignore[call-arg]
                        continue
                    float_tile(M == 1, a, row, K, left, b, at, K, spare, 0, L)  # type: ignore[call-arg]
                    copy_rows(spare, L, min(FLOAT_ROWS, M - m), N - n, out, to, N)


def float_panels(b: Array) -> Array:
    """b [*,K,N] as flat panels [*,P,K,L], zeros past N."""
    L, (K, N) = float_lanes(host_codegen(), b.itemsize), b.shape[-2:]
    count, P = batch_size(b), -(-N // L)
    flat = empty(count * P * K * L, b.dtype.type)
    panels, stack = flat.reshape(count, P, K, L), b.reshape(count, K, N)
    full, rest = divmod(N, L)
    panels.swapaxes(1, 2)[:, :, :full] = stack[:, :, : full * L].reshape(count, K, full, L)
    if rest:
        panels[:, full, :, :rest] = stack[:, :, full * L :]
        panels[:, full, :, rest:] = 0
    return flat


def gemm_float(a: Array, b: Array, out: Array) -> None:
    """out[m,n] = sum_k a[m,k] * b[k,n], one accumulator per element, k in sequence

    Shapes: a [*,M,K], b [*,K,N] -> out [*,M,N], batch dimensions broadcast.
    Dtypes: float32, float64; every step fused where the CPU fuses, so the bits do not depend on the shape.
    """
    spread(out.size * a.shape[-1] * FLOAT_COST, float_product, flat(a), float_panels(b), out.ravel(),
           float_plan(a.shape, b.shape, out.itemsize))  # fmt: skip


@lru_cache(maxsize=256)
def float_plan(a: tuple[int, ...], b: tuple[int, ...], itemsize: int) -> Array:
    L, K = float_lanes(host_codegen(), itemsize), a[-1]
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    near = max(1, NEAR // max(K * L * itemsize, 1))
    head = (a[-2], K, b[-1], L, near)
    return np.concatenate([np.array(head, np.int64), batch_index(a[:-2], batch), batch_index(b[:-2], batch)])


def bind_float(constants: Mapping[int, Array], specs: Sequence[TensorSpec]) -> Callable[..., None]:
    """gemm_float where B never changes."""
    if 1 not in constants:
        return gemm_float
    b = constants[1]
    panels, plan = float_panels(b), float_plan(specs[0].shape, b.shape, b.itemsize)
    work = math.prod(specs[0].shape) * b.shape[-1] * FLOAT_COST

    def call(a: Array, b: Array, out: Array) -> None:
        spread(work, float_product, flat(a), panels, out.ravel(), plan)

    return call


def gemm_half(a: Array, b: Array, out: Array) -> None:
    """gemm_float in float32, rounded once at the end."""
    wide = empty(out.shape, np.float32)
    gemm_float(a.astype(np.float32), b.astype(np.float32), wide)
    with np.errstate(over="ignore"):
        out[...] = wide


BYTES = ("int8", "uint8")
KERNELS = (
    Kernel("Gemm", "", ("float32", "float32", "float32"), gemm_float, bind_float),
    Kernel("Gemm", "", ("float64", "float64", "float64"), gemm_float, bind_float),
    Kernel("Gemm", "", ("float16", "float16", "float16"), gemm_half),
    Kernel("Gemm", "", ("bfloat16", "bfloat16", "bfloat16"), gemm_half),
    *(Kernel("Gemm", "", (a, b, a, b, "int32"), gemm_integer, bind_integer) for a in BYTES for b in BYTES),
    *(
        Kernel("Gemm", fn, (a, b, a, b, "int32", "float32", y, y), call, bind)
        for fn, call, bind in (
            ("requantize", gemm_requantize, bind_requantize),
            ("im2col_requantize", gemm_window, bind_window),
            ("im2row_requantize", gemm_rows, bind_rows),
        )
        for a in BYTES
        for b in BYTES
        for y in BYTES
    ),
)
