"""`kill -9` of the supervisor or of a worker at random moments, then `run --resume`: no acknowledged verdict is lost.

    python tests/soak/kills.py [KILLS] [SEED]

A kill comes after a random number of bytes in the journal, one in ten anywhere in the start of the processes; one in
four hits the supervisor, the others a worker of either kind. Acknowledged is what the journal holds at the moment of
the kill. Prints figures, exit 1 on a loss, an orphan, shared memory left, a case judged twice, or too few verdicts.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from opgauge import store

Key = tuple[str, str, str]  # case, backend, status

COMMAND = [sys.executable, "-m", "opgauge", "run", "-b", "exact", "--no-shrink", "--jobs", "1"]
SELECTION = ["-k", "Relu/int32 or Neg/int32 or Abs/int32", "--budget", "300"]
PATIENCE_S = 300.0  # for a journal that does not grow any more
CHARGED = ("crash", "flaky")  # a process that was killed: said of the case in flight, and of one that has its verdict
GONE_S = 60.0  # a process that is starting looks for its parent when it is up


def descendants(pid: int) -> list[int]:
    """All living processes below one."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def left_after(pids: list[int], limit_s: float) -> int:
    """How many of the processes still live when the time is up."""
    deadline = time.monotonic() + limit_s
    while (left := sum(map(alive, pids))) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def verdicts(out: Path) -> Counter[Key]:
    """How often each case and backend was judged, and as what."""
    if not (out / store.LATEST).exists() or not store.latest(out).exists():
        return Counter()
    records = store.read(store.latest(out)).records
    return Counter((r.case, r.backend, str(r.status)) for r in records if r.suite == "operators")


def complete(out: Path) -> bool:
    """Did a run end that lost none of its reference workers?"""
    if not (out / store.LATEST).exists() or not store.latest(out).exists():
        return False
    ends = [e for e in store.entries(store.latest(out)) if e["kind"] == "end"]
    return bool(ends) and not ends[-1]["errors"]


def size_of(out: Path) -> int:
    try:
        return store.latest(out).stat().st_size
    except (OSError, store.BaselineError):
        return 0


def wait_for_the_moment(process: subprocess.Popen[bytes], out: Path, random_: random.Random) -> None:
    """Once in ten anywhere in the start, else a random number of bytes later in the journal, and a little more."""
    if random_.randrange(10) == 0:
        time.sleep(random_.uniform(0.0, 3.0))
        return
    before = size_of(out)
    more, deadline = random_.choice((1, 400, 2_000, 8_000)), time.monotonic() + PATIENCE_S
    while size_of(out) < before + more and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(random_.uniform(0, 0.01))


class Totals(NamedTuple):
    """What a soak counts."""

    kills: int = 0
    supervisors: int = 0
    runs: int = 0
    verdicts: int = 0
    lost: int = 0
    twice: int = 0
    orphans: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in self._asdict().items())


def one_process(words: list[str], out: Path, random_: random.Random, acknowledged: Counter[Key]) -> Totals:
    """Kill workers of one run at random moments until it ends or its supervisor is the victim."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    kills = supervisors = lost = orphans = 0
    while process.poll() is None:
        wait_for_the_moment(process, out, random_)
        below = descendants(process.pid)
        victim = process.pid if random_.randrange(4) == 0 or not below else random_.choice(below)
        if process.poll() is not None or not alive(victim):
            continue
        held = verdicts(out)
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:  # it ended by itself meanwhile
            continue
        kills += 1
        if victim == process.pid:
            supervisors = 1
            orphans = left_after(below, GONE_S)
            process.wait()
        now = verdicts(out)
        lost += sum((held - now).values())
        acknowledged |= now
    lost += sum((acknowledged - verdicts(out)).values())
    return Totals(kills, supervisors, 1, 0, lost, 0, orphans)


def main() -> int:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    random_ = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    totals, start, before = Totals(), time.monotonic(), set(os.listdir("/dev/shm"))
    while totals.kills < wanted:
        with tempfile.TemporaryDirectory() as name:
            out, acknowledged = Path(name), Counter[Key]()
            words = [*COMMAND, *SELECTION, "--out", name]
            while True:
                found = one_process(words, out, random_, acknowledged)
                totals = Totals(*map(sum, zip(totals, found, strict=True)))
                print(f"{totals}; {acknowledged.total()} held", file=sys.stderr, flush=True)
                if complete(out):
                    break
                words = [*COMMAND, "--resume", "--out", name] if (out / store.LATEST).exists() else words
            held = verdicts(out)
            each = Counter((case, backend) for case, backend, status in held.elements() if status not in CHARGED)
            twice = sum(n > 1 for n in each.values())
            totals = totals._replace(verdicts=totals.verdicts + len(held), twice=totals.twice + twice)
    leaked = set(os.listdir("/dev/shm")) - before
    print(f"{totals}; {len(leaked)} pieces of shared memory left, {time.monotonic() - start:.0f} s")
    vacuous = totals.verdicts < totals.kills // 4  # of runs that came to an end
    if vacuous:
        print("hardly anything was judged between the kills: this proves nothing")
    return 1 if totals.lost or totals.orphans or totals.twice or leaked or vacuous else 0


if __name__ == "__main__":
    sys.exit(main())
