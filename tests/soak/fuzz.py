"""Mutants by the hundred thousand at every front door: values or typed errors, in time, and nobody dies.

    python tests/soak/fuzz.py [MUTANTS] [SEED] [DOOR ...]

The doors and the mutants are those of tests/test_fuzz.py; each batch runs in a process of its own, as the reference
does. One door more, `worker`: mutated models go through `check` to kernel workers (exact and onnxruntime), so that what
a runtime does with them is charged to the case. Prints figures, exit 1 on an untyped error, a dead process, an answer
that took longer than the limit, or a mutant without a verdict.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from opgauge import check, isolation
from opgauge.backends import resolve
from opgauge.client import Client
from opgauge.reference_engine.types import FINDINGS, Status

BATCH = 500
BATCH_S = 600.0
WORKERS = ("exact", "onnxruntime")
SHARE = 20  # one mutant of so many goes to the workers: a process takes its time


def doors() -> ModuleType:
    spec = importlib.util.spec_from_file_location("test_fuzz", Path(__file__).parents[1] / "test_fuzz.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["test_fuzz"] = module
    spec.loader.exec_module(module)
    return module


def batch(name: str, count: int, seed: int, answer: Connection) -> None:
    isolation.limit_memory(6 << 30)
    with tempfile.TemporaryDirectory() as folder:
        found = doors().knock(name, count, seed, Path(folder))
    answer.send((found.accepted, found.slowest_s, [(data[:300], text[:300]) for data, text in found.wrong]))


def knock_apart(name: str, count: int, seed: int) -> tuple[int, float, list[Any]] | str:
    """What a batch found in its own process, or how that ended."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=batch, args=(name, count, seed, theirs))
    process.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(BATCH_S) else f"no answer in {BATCH_S:g} s"
    except EOFError:
        process.join()
        found = isolation.how_it_ended(process.exitcode or 0)
    process.kill()
    process.join()
    return found


def through_workers(fuzz: ModuleType, count: int, seed: int) -> tuple[Counter[str], float, int]:
    """(statuses, slowest, processes started anew) of mutated models judged like any case."""
    statuses: Counter[str] = Counter()
    slowest = 0.0
    random_ = random.Random(seed)
    models = [name for name, door in fuzz.DOORS.items() if fuzz.model_changed in door.mutators]
    clients = [Client(resolve(text), 5.0) for text in WORKERS]
    for i in range(count):
        door = fuzz.DOORS[random_.choice(models)]
        data = door.mutators[i % len(door.mutators)](door.good, random_)
        feeds = fuzz.IMAGE if door.good == fuzz.CONV else fuzz.FEEDS
        subject = check.Subject(f"mutant{i}", "fuzz", "?", "?", "fuzz", data, feeds)
        start = time.monotonic()
        records = check.check(subject, clients)
        slowest = max(slowest, time.monotonic() - start)
        statuses.update(str(r.status) for r in records)
        for r in records:
            if r.status in FINDINGS:
                print(f"  worker: mutant {i} of seed {seed}: {r.status} on {r.backend}: {r.message[:200]}", flush=True)
        if len(records) != len(clients):
            statuses["no verdict"] += 1
    restarts = sum(client.restarts for client in clients)
    for client in clients:
        client.close()
    return statuses, slowest, restarts


def main() -> int:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    fuzz = doors()
    names = sys.argv[3:] or [*fuzz.DOORS]
    each = max(1, wanted // len(names))
    total = bad = 0
    began = time.monotonic()
    for name in names:
        done = accepted = 0
        slowest, start = 0.0, time.monotonic()
        while done < each:
            count = min(BATCH, each - done)
            found = knock_apart(name, count, seed * 100_000 + done)
            done += count
            if isinstance(found, str):
                bad += 1
                print(f"  {name}: a batch ended: {found} (seed {seed * 100_000 + done - count})", flush=True)
                continue
            accepted += found[0]
            slowest = max(slowest, found[1])
            bad += len(found[2])
            for data, text in found[2][:3]:
                print(f"  {name}: {text} from {data!r}", flush=True)
        total += done
        bad += slowest > fuzz.LIMIT_S
        took = time.monotonic() - start
        print(f"{name}: {done} mutants, {accepted} accepted, slowest {slowest * 1e3:.0f} ms, {took:.0f} s", flush=True)
    statuses, slowest, restarts = through_workers(fuzz, 0 if sys.argv[3:] else wanted // SHARE, seed)
    bad += statuses["no verdict"] + statuses[str(Status.UNAVAILABLE)]
    print(
        f"workers: {wanted // SHARE} mutants of models read {dict(statuses)}, {restarts} processes started anew, ",
        end="",
    )
    print(f"slowest {slowest * 1e3:.0f} ms")
    print(f"{total} mutants, {bad} wrong, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
