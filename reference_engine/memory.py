"""Memory for tensors: every one begins at a cache line.

numpy begins at any multiple of 16 bytes, at another one in each process. A kernel that writes whole lines to such a
place took up to a tenth longer than in the process before, which a gate of latency then had to average away.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .types import Array

ALIGNMENT = 64


def empty(shape: int | tuple[int, ...], dtype: Any) -> Array:
    """Unset elements, the first at a multiple of ALIGNMENT; `numpy.empty` otherwise."""
    kind = np.dtype(dtype)
    size = shape if isinstance(shape, int) else math.prod(shape)
    raw = np.empty(size * kind.itemsize + ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT  # a third of the time of `raw.ctypes.data`
    return np.ndarray(shape, kind, raw, start)
