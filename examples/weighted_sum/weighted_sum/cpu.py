"""The primitive on the CPU. numba is imported where opgauge imports its own kernels, in the worker."""

from __future__ import annotations

from opgauge.backends.cpu.compile import jit, plain
from opgauge.reference_engine.types import Array, Kernel

from .operator import PRIMITIVE


@jit
def _weighted_sum(x1, x2, w1, w2, out):
    for i in range(out.size):
        out[i] = w1 * x1[i] + w2 * x2[i]


def weighted_sum(x1: Array, x2: Array, w1: Array, w2: Array, out: Array) -> None:
    """out[i] = w1 * x1[i] + w2 * x2[i]"""
    _weighted_sum(plain(x1).reshape(-1), plain(x2).reshape(-1), w1[()], w2[()], out.reshape(-1))


KERNELS = (Kernel(PRIMITIVE, "", ("float32",) * 5, weighted_sum),)
