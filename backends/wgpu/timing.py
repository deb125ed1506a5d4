"""How long compute passes take by the device's own clock, where it has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import wgpu

PASS_BYTES = 16  # two ticks of 64 bits
MOST_TIMED = 2048  # passes: a query set holds 4,096 ticks


@dataclass(frozen=True)
class Timer:
    """Two ticks of the device's clock around each compute pass of a segment."""

    queries: Any
    ticks: Any  # the buffer that they are resolved into


def tick_ns(gpu: Any) -> float:
    """Nanoseconds per tick of the device's clock, 0 where wgpu does not tell."""
    try:  # wgpu-py has no public name for it
        from wgpu.backends.wgpu_native import lib

        return float(lib.wgpuQueueGetTimestampPeriod(gpu.queue._internal))
    except (ImportError, AttributeError, TypeError):
        return 0.0


def make_timer(gpu: Any, passes: int) -> Timer | None:
    if not 0 < passes <= MOST_TIMED:
        return None
    queries = gpu.create_query_set(type="timestamp", count=2 * passes)
    usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
    return Timer(queries, gpu.create_buffer(size=PASS_BYTES * passes, usage=usage))


def timed(timer: Timer | None, number: int) -> dict[str, Any]:
    """Arguments of `begin_compute_pass` for pass `number`."""
    if timer is None:
        return {}
    ends = {"beginning_of_pass_write_index": 2 * number, "end_of_pass_write_index": 2 * number + 1}
    return {"timestamp_writes": {"query_set": timer.queries, **ends}}


def ticks_of(raw: bytes | memoryview) -> int:
    """The sum over passes; a clock that was reset in between counts nothing."""
    ends = np.frombuffer(bytes(raw), np.int64).reshape(-1, 2)
    return int(np.diff(ends).clip(0).sum())
