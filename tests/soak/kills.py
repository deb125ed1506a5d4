"""`kill -9` of the supervisor or of a worker at random moments, then `run --resume`: no acknowledged verdict is lost.

    python tests/soak/kills.py [KILLS] [SEED]

A kill comes after a random number of bytes in the journal, one in ten anywhere in the start of the processes; one in
four hits the supervisor, the others a worker of either kind, or the process that forks workers: runs take turns
between a backend that is started and one that is forked. Acknowledged is what the journal holds at the moment of the
kill. Prints figures, exit 1 on a loss, an orphan (of all processes ever seen below a supervisor), shared memory that
nobody holds any more, a case judged twice or by one run only, or too few verdicts.
"""

from __future__ import annotations

import contextlib
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

ADAPTER = """
import numpy as np

def run(model, inputs):
    (x,) = inputs.values()
    return [np.maximum(x, 0) if b"Relu" in model else np.abs(x) if b"Abs" in model else -x]
"""
COMMAND = [sys.executable, "-m", "opgauge", "run", "--no-shrink", "--jobs", "1"]
# With .pyc files a process starts in half the time.
VARIABLES = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
SELECTION = ["-k", "Relu/int32 or Neg/int32 or Abs/int32", "--budget", "300"]
PATIENCE_S = 300.0  # for a journal that does not grow any more
CHARGED = ("crash", "flaky")  # a process that was killed: said of the case in flight, and of one that has its verdict
GONE_S = 60.0  # a process that is starting looks for its parent when it is up


class Process(NamedTuple):
    """A number alone may be somebody else's later."""

    pid: int
    born: str


def seen(pid: int) -> tuple[Process, int] | None:
    """A living process and the number of its parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (Process(pid, fields[19]), int(fields[1]))


def descendants(pid: int) -> list[Process]:
    """All living processes below one."""
    children: dict[int, list[Process]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        if (found := seen(int(name))) is not None:
            children.setdefault(found[1], []).append(found[0])
    below, todo = [], [pid]
    while todo:
        these = children.get(todo.pop(), [])
        below += these
        todo += [process.pid for process in these]
    return below


def alive(process: Process) -> bool:
    found = seen(process.pid)
    return found is not None and found[0] == process


def left_after(processes: set[Process], limit_s: float) -> int:
    """How many of the processes still live when the time is up."""
    deadline = time.monotonic() + limit_s
    while (left := sum(map(alive, processes))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def unheld(names: set[str]) -> set[str]:
    """Those pieces of shared memory that no living process has mapped or open: others work on this machine too."""
    held = ""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            held += (folder / "maps").read_text()
            held += " ".join(os.readlink(fd) for fd in (folder / "fd").iterdir())
    return {name for name in names if f"/dev/shm/{name}" not in held}


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
        time.sleep(0.005)
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
    missing: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in self._asdict().items())


def one_process(words: list[str], out: Path, random_: random.Random, acknowledged: Counter[Key]) -> Totals:
    """Kill workers of one run at random moments until it ends or its supervisor is the victim."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=VARIABLES)
    kills = supervisors = lost = 0
    everybody: set[Process] = set()
    while process.poll() is None:
        wait_for_the_moment(process, out, random_)
        held = verdicts(out)
        below = descendants(process.pid)
        everybody.update(below)
        victim = process.pid if random_.randrange(4) == 0 or not below else random_.choice(below).pid
        if process.poll() is not None or seen(victim) is None:
            continue
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:  # it ended by itself meanwhile
            continue
        kills += 1
        if victim == process.pid:
            supervisors = 1
            process.wait()
        now = verdicts(out)
        lost += sum((held - now).values())
        acknowledged |= now
    orphans = left_after(everybody, GONE_S)
    lost += sum((acknowledged - verdicts(out)).values())
    return Totals(kills, supervisors, 1, 0, lost, 0, orphans)


def main() -> int:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    random_ = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    totals, start, before = Totals(), time.monotonic(), set(os.listdir("/dev/shm"))
    runs, everything = 0, set[str]()
    while totals.kills < wanted:
        with tempfile.TemporaryDirectory() as folder:
            out, acknowledged = Path(folder) / "out", Counter[Key]()
            (Path(folder) / "adapter.py").write_text(ADAPTER)
            name, backend = str(out), ("exact", f"{folder}/adapter.py:run")[runs % 2]
            runs += 1
            words = [*COMMAND, "-b", backend, *SELECTION, "--out", name]
            while True:
                found = one_process(words, out, random_, acknowledged)
                totals = Totals(*map(sum, zip(totals, found, strict=True)))
                print(f"{totals}; {acknowledged.total()} held", file=sys.stderr, flush=True)
                if complete(out):
                    break
                words = [*COMMAND, "-b", backend, "--resume", "--out", name] if (out / store.LATEST).exists() else words
            held = verdicts(out)
            each = Counter((case, backend) for case, backend, status in held.elements() if status not in CHARGED)
            twice = sum(n > 1 for n in each.values())
            cases = {case for case, *_ in held}
            missing = len(cases ^ (everything := everything or cases))
            totals = totals._replace(
                verdicts=totals.verdicts + len(held), twice=totals.twice + twice, missing=totals.missing + missing
            )
    leaked = unheld(set(os.listdir("/dev/shm")) - before)
    print(f"{totals}; {len(leaked)} pieces of shared memory left, {time.monotonic() - start:.0f} s")
    vacuous = totals.verdicts < totals.kills // 4  # of runs that came to an end
    if vacuous:
        print("hardly anything was judged between the kills: this proves nothing")
    return 1 if totals.lost or totals.orphans or totals.twice or totals.missing or leaked or vacuous else 0


if __name__ == "__main__":
    sys.exit(main())
