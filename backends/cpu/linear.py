"""Gemm on the CPU: one tile for floats and for pairs of int16."""

from __future__ import annotations

import math

import numpy as np

from opgauge.reference_engine.types import Array, Kernel

from .compile import host_codegen, jit, plain
from .tile import ROWS, lanes, tile


@jit
def gemm_tiles(a, panels, out, scratch, a_batch, b_batch):
    """out[i] = a[a_batch[i]] @ b[b_batch[i]], b in panels of L columns

    Shapes: a [*,M,K], panels [*,P,K,L], out [*,M,N], scratch [ROWS,L].
    Dtypes: as `tile`.
    """
    _, M, N = out.shape
    L = panels.shape[3]
    for i in range(out.shape[0]):
        for p in range(panels.shape[1]):
            n = p * L
            width = min(L, N - n)
            for m in range(0, M, ROWS):
                tile(a, a_batch[i], m, panels, b_batch[i], p, scratch)  # type: ignore[call-arg]
                for r in range(min(ROWS, M - m)):
                    for l in range(width):
                        out[i, m + r, n + l] = scratch[r, l]


def copy_to_panels(b: Array, panels: Array) -> None:
    """panels[b,p,k,l] = b[b,k,p*L+l]; lanes past N stay as they are."""
    L = panels.shape[3]
    full, rest = divmod(b.shape[2], L)
    by_row = panels.swapaxes(1, 2)
    by_row[:, :, :full] = b[:, :, : full * L].reshape(*b.shape[:2], full, L)
    if rest:
        by_row[:, :, full, :rest] = b[:, :, full * L :]


def batch_index(batch: tuple[int, ...], full: tuple[int, ...]) -> Array:
    """Which matrix of a stack shaped `batch` each matrix of the broadcast stack `full` reads."""
    own = np.arange(math.prod(batch)).reshape(batch)
    return own.ravel() if batch == full else np.broadcast_to(own, full).ravel()


def run_tiles(a: Array, panels: Array, out: Array, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    batch = out.shape[:-2]
    scratch = np.empty((ROWS, panels.shape[3]), out.dtype)
    stack = out.reshape(batch_size(out), *out.shape[-2:])
    gemm_tiles(a, panels, stack, scratch, batch_index(a_shape[:-2], batch), batch_index(b_shape[:-2], batch))


def gemm_float(a: Array, b: Array, out: Array) -> None:
    """out[m,n] = sum_k a[m,k] * b[k,n], one accumulator per element, k in sequence

    Shapes: a [*,M,K], b [*,K,N] -> out [*,M,N], batch dimensions broadcast.
    Dtypes: float32, float64; every step fused where the CPU fuses, so the bits do not depend on the shape.
    """
    (M, K), N = a.shape[-2:], b.shape[-1]
    stack_a = plain(a).reshape(batch_size(a), M, K)
    stack_b = b.reshape(batch_size(b), K, N)
    L = lanes(host_codegen())
    panels = np.zeros((batch_size(b), -(-N // L), K, L), b.dtype)
    copy_to_panels(stack_b, panels)
    run_tiles(stack_a, panels, out, a.shape, b.shape)


def gemm_half(a: Array, b: Array, out: Array) -> None:
    """gemm_float in float32, rounded once at the end."""
    wide = np.empty(out.shape, np.float32)
    gemm_float(a.astype(np.float32), b.astype(np.float32), wide)
    with np.errstate(over="ignore"):
        out[...] = wide


def gemm_integer(a: Array, b: Array, a_zero_point: Array, b_zero_point: Array, out: Array) -> None:
    """out[m,n] = sum_k (a[m,k] - a_zero_point[m]) * (b[k,n] - b_zero_point[n]) modulo 2^32

    Shapes: a [*,M,K], b [*,K,N], zero points [] or [*,M,1] and [*,1,N] -> out [*,M,N].
    Dtypes: int8 or uint8 each; out int32.
    """
    (M, K), N = a.shape[-2:], b.shape[-1]
    pairs = -(-K // 2)
    # -255..255 needs int16; an odd K is filled up with a zero.
    wide_a = np.zeros((*a.shape[:-1], 2 * pairs), np.int16)
    np.subtract(a, a_zero_point, out=wide_a[..., :K], dtype=np.int16)
    wide_b = np.subtract(b, b_zero_point, dtype=np.int16).reshape(batch_size(b), K, N)
    L = lanes(host_codegen())
    panels = np.zeros((batch_size(b), -(-N // L), pairs, L, 2), np.int16)
    copy_to_panels(wide_b[:, 0::2], panels[..., 0])
    copy_to_panels(wide_b[:, 1::2], panels[:, :, : K // 2, :, 1])
    pairs_a = wide_a.reshape(batch_size(a), M, 2 * pairs).view(np.int32)
    run_tiles(pairs_a, panels.view(np.int32)[..., 0], out, a.shape, b.shape)


def batch_size(x: Array) -> int:
    return math.prod(x.shape[:-2])


BYTES = ("int8", "uint8")
KERNELS = (
    Kernel("Gemm", "", ("float32", "float32", "float32"), gemm_float),
    Kernel("Gemm", "", ("float64", "float64", "float64"), gemm_float),
    Kernel("Gemm", "", ("float16", "float16", "float16"), gemm_half),
    Kernel("Gemm", "", ("bfloat16", "bfloat16", "bfloat16"), gemm_half),
    *(Kernel("Gemm", "", (a, b, a, b, "int32"), gemm_integer) for a in BYTES for b in BYTES),
)
