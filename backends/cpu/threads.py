"""Threads for one kernel: parts of its output side by side where there is enough to do.

Parts never share an element, so the bits are those of one thread. Nobody spins: a thread that waits sleeps. Kernels
of branches that already run side by side are lent nothing.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar

# Handing over and waiting cost 10 to 60 us; two hyperthreads of one core make up for that from 0.6 ms on.
LEAST_NS = 600_000
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

    def work() -> None:
        while (part := next(tickets)) < parts:
            try:
                kernel(*operands, part, parts)
            except BaseException as error:
                ended.put(error)
            else:
                ended.put(None)

    for _ in range(count - 1):
        pool.submit(work)
    work()
    failed = [error for error in (ended.get() for _ in range(parts)) if error is not None]
    if failed:
        raise failed[0]
