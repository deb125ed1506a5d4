"""Gemm on the CPU: register tiles over packed panels; a constant operand is packed when the graph is bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from opgauge.reference_engine.types import Array, Kernel, TensorSpec

from .compile import host_codegen, jit, plain
from .integer import bind_integer, bind_requantize, bind_window, gemm_integer, gemm_requantize, gemm_window
from .panels import aligned, batch_index, batch_size
from .tile import float_tile, lanes, tile_rows


@jit
def float_product(a, a_batch, M, K, step, panels, b_batch, out, N, L):
    """out[i] = a[a_batch[i]] @ b[b_batch[i]], b in panels of L columns

    Shapes: flat a [*,M,K], panels [*,P,K,L], out [*,M,N]. Dtypes: as float_tile.
    """
    P = (N + L - 1) // L
    spare = np.empty(step * L, out.dtype)
    for i in range(len(a_batch)):
        for q in range(P):
            n, at = q * L, (b_batch[i] * P + q) * K * L
            for m in range(0, M, step):
                row = (a_batch[i] * M + m) * K
                if n + L <= N:
                    float_tile(a, row, K, M - 1 - m, panels, at, K, out, (i * M + m) * N + n, N)  # type: ignore[call-arg]
                    continue
                float_tile(a, row, K, M - 1 - m, panels, at, K, spare, 0, L)  # type: ignore[call-arg]
                for r in range(min(step, M - m)):
                    for l in range(N - n):
                        out[(i * M + m + r) * N + n + l] = spare[r * L + l]


def float_panels(b: Array) -> Array:
    """b [*,K,N] as flat panels [*,P,K,L], zeros past N."""
    L, (K, N) = lanes(host_codegen()), b.shape[-2:]
    count, P = batch_size(b), -(-N // L)
    flat = aligned(count * P * K * L, b.dtype.type)
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
    float_tiles(a, float_panels(b), b.shape, out)


def float_tiles(a: Array, panels: Array, b_shape: tuple[int, ...], out: Array) -> None:
    codegen, batch = host_codegen(), out.shape[:-2]
    M, K = a.shape[-2:]
    float_product(
        plain(a).reshape(-1), batch_index(a.shape[:-2], batch), M, K, tile_rows(codegen, out.itemsize), panels,
        batch_index(b_shape[:-2], batch), out.reshape(-1), b_shape[-1], lanes(codegen),
    )  # fmt: skip


def bind_float(constants: Mapping[int, Array], specs: Sequence[TensorSpec]) -> Callable[..., None]:
    """gemm_float where B never changes."""
    if 1 not in constants:
        return gemm_float
    panels, shape = float_panels(constants[1]), constants[1].shape

    def call(a: Array, b: Array, out: Array) -> None:
        float_tiles(a, panels, shape, out)

    return call


def gemm_half(a: Array, b: Array, out: Array) -> None:
    """gemm_float in float32, rounded once at the end."""
    wide = np.empty(out.shape, np.float32)
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
        )
        for a in BYTES
        for b in BYTES
        for y in BYTES
    ),
)
