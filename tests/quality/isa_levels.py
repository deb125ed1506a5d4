"""Conformance of products and convolutions at every level of vector instructions, in figures.

    python tests/quality/isa_levels.py [BUDGET]     BUDGET cases per operator and pair of types, 1,000 by default

Each level runs in processes of its own (OPGAUGE_ISA). With onnxruntime beside it, so that requantized results are
judged by the same sets. Exit 1 on any finding.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

from opgauge.backends.cpu import isa
from opgauge.reference_engine.errors import BackendUnavailableError

OPERATORS = ("MatMulInteger", "QLinearMatMul", "ConvInteger", "QLinearConv", "MatMul", "Conv")
TIMEOUT = "120"


def main(budget: int) -> int:
    worst = 0
    for level in isa.NEEDED:
        try:
            isa.check(level, isa.host_features())
        except BackendUnavailableError as error:
            print(f"{level}: not run: {error}")
            continue
        command = [sys.executable, "-m", "opgauge", "run", "--backend", "cpu", "--backend", "onnxruntime"]
        command += ["--no-shrink", "--budget", str(budget), "--timeout", TIMEOUT]
        command += [word for op in OPERATORS for word in ("--op", op)]
        done = subprocess.run(command, env={**os.environ, isa.VARIABLE: level}, capture_output=True, text=True)
        verdict = [line for line in done.stdout.splitlines() if re.match(r"[A-Z ]+ \(exit \d+\)", line)]
        print(f"{level}: {verdict[-1] if verdict else done.stderr[-500:]}", flush=True)
        worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
