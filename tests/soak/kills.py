"""`kill -9` of the supervisor or of a worker at random moments, then `run --resume`: no acknowledged verdict is lost.

    python tests/soak/kills.py [KILLS] [SEED]

Acknowledged is what the journal holds at the moment of the kill. Prints figures, exit 1 on a loss or an orphan.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from opgauge import store

COMMAND = [sys.executable, "-m", "opgauge", "run", "-b", "exact", "--no-shrink", "--jobs", "1"]
SELECTION = ["-k", "Relu/int32 or Neg/int32 or Abs/int32", "--budget", "300"]


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


def judged(journal: Path) -> set[tuple[str, str]]:
    return {(r.case, str(r.status)) for r in store.read(journal).records} if journal.exists() else set()


def main() -> int:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    random_ = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    lost = orphans = completed = kills = 0
    acknowledged: set[tuple[str, str]] = set()
    start = time.monotonic()
    before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        fresh = True
        while kills < wanted:
            words = [*COMMAND, *SELECTION, "--out", name] if fresh else [*COMMAND, "--resume", "--out", name]
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(random_.uniform(0.5, 6))
            below = descendants(process.pid)
            victim = random_.choice([process.pid, *below])
            if process.poll() is None:
                kills += 1
                if alive(victim):
                    os.kill(victim, signal.SIGKILL)
                if victim == process.pid:
                    time.sleep(0.3)
                    orphans += sum(alive(pid) for pid in below)
            process.wait(120)
            journal = store.latest(out) if (out / store.LATEST).exists() else None
            if journal is None:
                continue
            held = judged(journal)
            lost += len(acknowledged - held)
            fresh = any(e["kind"] == "end" for e in store.entries(journal))
            completed += fresh
            acknowledged = set() if fresh else held
        if not fresh:
            subprocess.run([*COMMAND, "--resume", "--out", name], capture_output=True, check=True, timeout=600)
            lost += len(acknowledged - judged(store.latest(out)))
            completed += 1
    leaked = set(os.listdir("/dev/shm")) - before
    print(f"{kills} kills, {completed} runs completed, {lost} acknowledged verdicts lost, {orphans} orphans, ", end="")
    print(f"{len(leaked)} pieces of shared memory left, {time.monotonic() - start:.0f} s")
    return 1 if lost or orphans or leaked else 0


if __name__ == "__main__":
    sys.exit(main())
