"""What isolation costs: p50 per isolated case by size, crash to next case, hang overshoot. Prints a table.

    python tests/soak/overhead.py [ROUNDS]

One case is one round trip: `submit`, then `receive`. The kernel is `y = 2 * x` in C, so nearly all of it is overhead.
`plain` is isolation alone: one call in a process of its own, its state watched. `guard` is what a run does: three
calls with two poisons, guard pages on either side, canaries, inputs compared. `channel` is what no isolation can do
without: the same bytes to another process and back, nothing done with them. The three take turns. On a machine that
others use, the fastest and the quietest tenth of all blocks say more than the p50: all are printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from opgauge import isolation, spawn
from opgauge.backends import resolve
from opgauge.client import Client
from opgauge.reference_engine.types import Observation, Status

SOURCE = Path(__file__).parents[1] / "native" / "misbehaviour.c"
ABORTS, SPINS, SLEEPS = 3, 11, 12
BLOCK = 20
FRAME = 1 << 16
ECHO = """
import os, sys
while data := os.read(0, int(sys.argv[1])):
    while data:
        data = data[os.write(1, data) :]
"""
SIZES = (("256 B", 64), ("4 KB", 1 << 10), ("64 KB", 1 << 14), ("1 MB", 1 << 18))


def ask(client: Client, x: np.ndarray, kind: int = 0) -> Observation:
    x[0] = kind
    client.submit(f"kind{kind}", b"", {"x": x})
    return client.receive()


class Echo:
    """A process that sends back what it gets."""

    def __init__(self) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        self.process = subprocess.Popen([sys.executable, "-c", ECHO, str(FRAME)], **pipes)
        self._sink, self._source = self.process.stdin.fileno(), self.process.stdout.fileno()  # type: ignore[union-attr]
        for fd in (self._sink, self._source):
            isolation.enlarge_pipe(fd)

    def round_trip(self, nbytes: int) -> float:
        """Units: microseconds."""
        frame = bytes(nbytes)
        start = time.perf_counter()
        os.write(self._sink, frame)
        while nbytes > 0:
            nbytes -= len(os.read(self._source, FRAME))
        return (time.perf_counter() - start) * 1e6


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        compiler = shutil.which("cc") or "gcc"
        subprocess.run(
            [compiler, "-O1", "-w", "-shared", "-fPIC", "-o", library, SOURCE, "-lpthread", "-lm"], check=True
        )
        text = f"native:{library}:kernel"
        echo = Echo()
        clients = {guarded: Client(resolve(text), guarded=guarded) for guarded in (spawn.PLAIN, spawn.GUARD)}
        for name, n in SIZES:
            times: dict[str, list[float]] = {"channel": [], **{guarded: [] for guarded in clients}}
            for client, guarded in zip(clients.values(), clients, strict=True):
                round_trip(client, n, guarded)
            before = {guarded: processor_us(client) for guarded, client in clients.items()}
            for _ in range(rounds // BLOCK):
                times["channel"] += [echo.round_trip(4 * n) for _ in range(BLOCK)]
                for guarded, client in clients.items():
                    times[guarded] += [round_trip(client, n, guarded) for _ in range(BLOCK)]
            for what, all_ in times.items():
                blocks = sorted(median(all_[i : i + BLOCK]) for i in range(0, len(all_), BLOCK))
                worker = (
                    f"; {(processor_us(clients[what]) - before[what]) / rounds:.0f} us of processor in the worker"
                    if what in clients
                    else ""
                )
                quiet, p90 = blocks[len(blocks) // 10], sorted(all_)[len(all_) * 9 // 10]
                figures = f"p50 {median(all_):.0f} us, quietest tenth {quiet:.0f} us, least {min(all_):.0f} us"
                print(f"{what:7} {name:>6}: {figures}, p90 {p90:.0f} us{worker}", flush=True)
        for client in clients.values():
            client.close()
        echo.process.kill()
        with Client(resolve(text), timeout_s=0.5, spare=True) as client:
            x = np.arange(1024, dtype=np.float32)
            ask(client, x)
            crashes = sorted(after_crash(client, x) for _ in range(30))
            print(f"crash to next case: p50 {crashes[15]:.1f} ms, max {crashes[-1]:.1f} ms")
            for kind, name in ((SLEEPS, "sleeps"), (SPINS, "spins")):
                hangs = []
                for _ in range(5):
                    start = time.perf_counter()
                    assert ask(client, x, kind).status is Status.HANG
                    hangs.append((time.perf_counter() - start - 0.5) * 1e3)
                print(f"overshoot of a hang that {name}: p50 {median(hangs):.1f} ms, max {max(hangs):.1f} ms")
            print(
                "one that spins is given the processor time of its limit: where others use the core, that takes longer"
            )


def processor_us(client: Client) -> float:
    """Processor time of its worker so far, which other load on the machine changes less."""
    assert client._kernel is not None
    return int(Path(f"/proc/{client._kernel.process.pid}/schedstat").read_text().split()[0]) / 1e3


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
