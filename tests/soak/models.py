"""Runs one built-in network many times on an engine and prints how its memory grew.

    python tests/soak/models.py [RUNS] [NETWORK] [BACKEND]

The first tenth of the runs warms up; the growth is of resident memory from then to the end. Exits 1 above LIMIT bytes
a run.
"""

from __future__ import annotations

import gc
import importlib
import sys
import time

import psutil

from opgauge.backends import resolve
from opgauge.suites.networks import network

LIMIT = 64.0  # bytes a run: what one forgotten array object would cost


def growth(runs: int, name: str, backend: str) -> tuple[float, list[int], int]:
    """(bytes a run after the warm-up, resident bytes now and then, evicted plans)."""
    spec = resolve(backend)
    engine = importlib.import_module(spec.target).load(**dict(spec.options))
    data, feeds = network(name).build()
    process, seen = psutil.Process(), []
    warm, counts = max(runs // 10, 1), {}
    for i in range(runs):
        counts = engine(data, feeds).counts
        if i >= warm - 1 and (i - warm + 1) % max(runs // 10, 1) == 0:
            gc.collect()
            seen.append(process.memory_info().rss)
    return (seen[-1] - seen[0]) / max(runs - warm, 1), seen, counts.get("plan_eviction_count", 0)


def main(runs: int, name: str, backend: str) -> int:
    start = time.monotonic()
    each, seen, evicted = growth(runs, name, backend)
    print(
        f"{runs} runs of {name} on {backend} in {time.monotonic() - start:.1f} s: {each:+.1f} bytes a run after warm-up"
    )
    print("resident MiB: " + " ".join(f"{b / 2**20:.2f}" for b in seen) + f"; {evicted} plans evicted")
    return int(each > LIMIT)


if __name__ == "__main__":
    words = [*sys.argv[1:], *("1000", "residual-int8", "cpu")[len(sys.argv) - 1 :]]
    sys.exit(main(int(words[0]), words[1], words[2]))
