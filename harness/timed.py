"""A kernel worker as a stopwatch: it keeps cases, warms them up and times blocks of calls around the adapter alone.

Portable: runs on Python 3.8 with numpy and nothing else.
"""

from __future__ import annotations

import gc
import time
from typing import Any, Callable, Mapping, NamedTuple

import numpy as np

from . import guard, isolation, watch, wire

LEAST_CALLS = 3  # of a warm-up: a runtime plans memory in the first two
LOW = 0.1  # quantile of the calls of a block
MOST_LOOPS = 200  # of SPIN iterations beside a call
SPIN = 2000  # iterations of the loop that tells how fast this core runs now


class Kept(NamedTuple):
    """A case that stays: the same model object in every call, so that an adapter finds its session or plan."""

    run: Callable[..., Any]
    model: bytes
    inputs: Mapping[str, np.ndarray]


def keep(run: Any, header: Mapping[str, Any], payload: Any) -> Kept:
    """The case of a message, its tensors in memory of their own, 64-byte aligned."""
    model, *arrays = wire.tensors_of(dict(header), payload)
    inputs = {}
    for name, x in zip(header["names"], arrays):
        held = guard.aligned(x.nbytes)
        held[:] = np.frombuffer(x.tobytes(), np.uint8)
        inputs[name] = held.view(x.dtype).reshape(x.shape)
    return Kept(run, model.tobytes(), inputs)


def pace() -> int:
    """ns of a fixed loop of the interpreter: how fast this core runs just now."""
    start = time.perf_counter_ns()
    for _ in range(SPIN):
        pass
    return time.perf_counter_ns() - start


def start(kept: Kept, warm_s: float) -> dict[str, Any]:
    """The first call, which compiles and plans, then calls until `warm_s` have passed; ns and bytes."""
    rss = watch.load(0).rss
    begin = time.perf_counter_ns()
    returned = kept.run(kept.model, dict(kept.inputs))
    first = time.perf_counter_ns() - begin
    times: list[int] = []
    until = time.perf_counter_ns() + int(warm_s * 1e9)
    while len(times) < LEAST_CALLS or time.perf_counter_ns() < until:
        times.append(_once(kept))
    times.sort()
    counts = {str(k): int(v) for k, v in getattr(returned, "counts", {}).items()}
    peak = isolation.peak_memory()
    low = times[int(LOW * len(times))]
    return {"first_ns": first, "call_ns": low, "grown_bytes": watch.load(0).rss - rss, "peak_rss_bytes": peak,
            "counts": counts}  # fmt: skip


def _once(kept: Kept) -> int:
    inputs = dict(kept.inputs)
    begin = time.perf_counter_ns()
    kept.run(kept.model, inputs)
    return time.perf_counter_ns() - begin


def block(kept: Kept, calls: int) -> dict[str, Any]:
    """`calls` calls in a row: their low quantile and mean in ns, the share of the time that this process had a core."""
    speed = pace()
    busy, begin = time.process_time_ns(), time.perf_counter_ns()
    times = [_once(kept) for _ in range(calls)]
    wall, busy = time.perf_counter_ns() - begin, time.process_time_ns() - busy
    times.sort()
    return {"low_ns": times[int(LOW * calls)], "mean_ns": sum(times) / calls, "busy": busy / max(wall, 1),
            "pace_ns": speed}  # fmt: skip


def each(kept: Kept, calls: int) -> dict[str, Any]:
    """ns of each of `calls` calls, and before it of a loop that takes about as long: the machine without the case."""
    paces, times = [], []
    counts: dict[str, int] = {}
    loops = max(1, min(MOST_LOOPS, min(_once(kept) for _ in range(3)) // max(pace(), 1)))
    for _ in range(calls):
        paces.append(sum(pace() for _ in range(loops)))
        inputs = dict(kept.inputs)
        begin = time.perf_counter_ns()
        returned = kept.run(kept.model, inputs)
        times.append(time.perf_counter_ns() - begin)
        counts = {str(k): int(v) for k, v in getattr(returned, "counts", {}).items()}
        del returned
    return {"times_ns": times, "paces_ns": paces, "rss_bytes": watch.load(0).rss, "counts": counts}


def answer(run: Any, kept: dict[str, Kept], header: Mapping[str, Any], payload: Any) -> dict[str, Any]:
    """One request of the stopwatch: `keep` a case, time a `block` of it or `each` call, `drop` it."""
    key = header["key"]
    try:
        if header["do"] == "keep":
            isolation.pin(header["cores"])
            gc.disable()
            kept[key] = keep(run, header, payload)
            return start(kept[key], header["warm_s"])
        if header["do"] == "drop":
            kept.pop(key, None)
            return {}
        if header["do"] == "each":
            return each(kept[key], header["calls"])
        return block(kept[key], header["calls"])
    except MemoryError as error:
        return {"error": "oom", "message": str(error)}
    except BaseException as error:  # an adapter may raise anything
        return {"error": type(error).__name__, "message": str(error)}
