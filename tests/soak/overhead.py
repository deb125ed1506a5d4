"""What isolation costs: p50 and p90 per case by size, crash to next case, hang overshoot. Prints a table.

    python tests/soak/overhead.py [ROUNDS]

The kernel is `y = 2 * x` in C; overhead is the whole round trip. `plain` is isolation alone: one call in a process of
its own, its state watched, no copies to guarded pages. `guard` is what a run does: three calls with two poisons, guard
pages on either side, canaries, other data in between. On a machine that others use, the p50 of the quietest tenth of
all blocks says more than that of all of them: both are printed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from opgauge import spawn
from opgauge.backends import resolve
from opgauge.client import Client
from opgauge.reference_engine.types import Observation, Status

SOURCE = Path(__file__).parents[1] / "native" / "misbehaviour.c"
ABORTS, SPINS = 3, 11
BLOCK = 20
SIZES = (("256 B", 64), ("4 KB", 1 << 10), ("64 KB", 1 << 14), ("1 MB", 1 << 18))


def ask(client: Client, x: np.ndarray, kind: int = 0) -> Observation:
    x[0] = kind
    client.submit(f"kind{kind}", b"", {"x": x})
    return client.receive()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        compiler = shutil.which("cc") or "gcc"
        subprocess.run(
            [compiler, "-O1", "-w", "-shared", "-fPIC", "-o", library, SOURCE, "-lpthread", "-lm"], check=True
        )
        text = f"native:{library}:kernel"
        for guarded in (spawn.PLAIN, spawn.GUARD):
            with Client(resolve(text), guarded=guarded) as client:
                for name, n in SIZES:
                    round_trip(client, n, guarded)
                    before = processor_us(client)
                    times = [round_trip(client, n, guarded) for _ in range(rounds)]
                    ours, theirs = ((b - a) / rounds for a, b in zip(before, processor_us(client), strict=True))
                    blocks = sorted(median(times[i : i + BLOCK]) for i in range(0, rounds, BLOCK))
                    p10, p50, p90 = (sorted(times)[rounds * q // 100] for q in (10, 50, 90))
                    print(
                        f"{guarded:6} {name:>6}: p10 {p10:.0f}, p50 {p50:.0f}, p90 {p90:.0f} us; "
                        f"quietest {blocks[len(blocks) // 10]:.0f} us; "
                        f"processor {ours:.0f} us here, {theirs:.0f} us in the worker",
                        flush=True,
                    )
        with Client(resolve(text), timeout_s=0.5, spare=True) as client:
            x = np.arange(1024, dtype=np.float32)
            ask(client, x)
            crashes = sorted(after_crash(client, x) for _ in range(30))
            print(f"crash to next case: p50 {crashes[15]:.1f} ms, max {crashes[-1]:.1f} ms")
            hangs = []
            for _ in range(5):
                start = time.perf_counter()
                assert ask(client, x, SPINS).status is Status.HANG
                hangs.append((time.perf_counter() - start - 0.5) * 1e3)
            print(f"hang overshoot: max {max(hangs):.1f} ms")


def processor_us(client: Client) -> tuple[float, float]:
    """Processor time of this process and of its worker so far, which other load on the machine does not change much."""
    assert client._kernel is not None
    spent = int(Path(f"/proc/{client._kernel.process.pid}/schedstat").read_text().split()[0])
    return time.process_time_ns() / 1e3, spent / 1e3


def round_trip(client: Client, n: int, guarded: str) -> float:
    x = np.arange(n, dtype=np.float32)
    x[0] = 0
    repeats = 1 if guarded == spawn.PLAIN else 2
    start = time.perf_counter()
    client.submit("honest", b"", {"x": x}, repeats=repeats)
    seen = client.receive()
    elapsed = (time.perf_counter() - start) * 1e6
    assert seen.status is Status.PASS, seen
    return elapsed


def after_crash(client: Client, x: np.ndarray) -> float:
    """Units: milliseconds from the submission of a crashing case to the result of the case after it."""
    start = time.perf_counter()
    assert ask(client, x, ABORTS).status is Status.CRASH
    assert ask(client, x).status is Status.PASS
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
