"""Injected misbehaviours by the thousand: none may cost another case. Prints figures, exit 1 on collateral.

python tests/soak/crashes.py [CASES] [SEED]
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from opgauge.backends import resolve
from opgauge.client import Client
from opgauge.reference_engine.types import Status

SOURCE = Path(__file__).parents[1] / "native" / "misbehaviour.c"
# NULL_WRITE, DIVIDE_BY_ZERO, ABORTS, ILLEGAL, BUS, RECURSES, EXITS, QUITS, KILLS_ITSELF, TERMINATES
CRASHES = tuple(range(1, 11))


def main() -> int:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    random_ = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    seen_as: Counter[str] = Counter()
    collateral, missed, done, honest = 0, 0, 0, 0
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        compiler = shutil.which("cc") or "gcc"
        subprocess.run(
            [compiler, "-O1", "-w", "-shared", "-fPIC", "-o", library, SOURCE, "-lpthread", "-lm"], check=True
        )
        with Client(resolve(f"native:{library}:kernel")) as client:
            while done < wanted:
                kind = random_.choice((0, *CRASHES))
                x = np.arange(random_.choice((3, 64, 1000)), dtype=np.float32)
                right = x * 2
                x[0] = kind
                client.submit(f"case{done}", b"", {"x": x})
                seen = client.receive()
                if kind:
                    done += 1
                    seen_as[str(seen.status)] += 1
                    missed += seen.status is not Status.CRASH
                else:
                    honest += 1
                    collateral += seen.status is not Status.PASS or not np.array_equal(seen.outputs[0], right)
            collateral += len(client.late_deaths)
    seconds = time.monotonic() - start
    print(
        f"{done} injected crashes read {dict(seen_as)}, {missed} misread; {honest} honest cases, {collateral} lost; ",
        end="",
    )
    print(f"{seconds:.1f} s, {seconds / done * 1e3:.1f} ms per crash")
    return 1 if collateral or missed else 0


if __name__ == "__main__":
    sys.exit(main())
