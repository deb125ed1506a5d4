"""Threads for one kernel: parts of its output side by side where there is enough to do.

Parts never share an element, so the bits are those of one thread. Nobody spins: a thread that waits sleeps. Kernels
of branches that already run side by side are lent nothing.

Linux wakes a thread beside the one that wakes it and may leave both on one processor for longer than a kernel takes:
there a helper leaves its caller's processor first.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import queue
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache

LEAST_NS = 200_000  # handing over and waiting cost 10 to 60 us
PARTS = 2  # for each thread
_lent: ContextVar[tuple[Executor, int] | None] = ContextVar("opgauge_cpu_threads", default=None)


@contextmanager
def lent(pool: Executor, count: int) -> Iterator[None]:
    """Kernels called here may use `count` threads: this one and `count - 1` of the pool."""
    before = _lent.set((pool, count))
    try:
        yield
    finally:
        _lent.reset(before)


def spread(work_ns: float, kernel: Callable[..., None], *operands: object) -> None:
    """kernel(*operands, part, parts) for every part; all in one where `work_ns`, the time on one thread, is too short.

    Parts are taken as threads come free, so that one that is kept waiting by others holds nobody up.
    Raises: what a part raised, after all parts have ended.
    """
    given = _lent.get()
    if given is None or work_ns < LEAST_NS:
        kernel(*operands, 0, 1)
        return
    pool, count = given
    parts = PARTS * count
    tickets = itertools.count()
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    here = processor()

    def help_out() -> None:
        with away_from(here):
            work()

    def work() -> None:
        while (part := next(tickets)) < parts:
            try:
                kernel(*operands, part, parts)
            except BaseException as error:
                ended.put(error)
            else:
                ended.put(None)

    for _ in range(count - 1):
        pool.submit(help_out)
    work()
    failed = [error for error in (ended.get() for _ in range(parts)) if error is not None]
    if failed:
        raise failed[0]


@cache
def _getcpu() -> Callable[[], int]:
    found: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None) if os.name == "posix" else None
    return found or (lambda: -1)


def processor() -> int:
    """The one that this thread is on; -1 where that cannot be told."""
    return _getcpu()()


@contextmanager
def away_from(taken: int) -> Iterator[None]:
    """This thread on another processor than `taken`, where it has a choice."""
    if sys.platform != "linux" or taken < 0 or processor() != taken:
        yield
        return
    allowed = os.sched_getaffinity(0)  # of this thread
    try:
        with suppress(OSError, ValueError):  # none is left, or a container forbids it
            os.sched_setaffinity(0, allowed - {taken})
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)
