"""Conformance of products and convolutions at every level of vector instructions, in figures.

    python tests/quality/isa_levels.py [BUDGET] [LEVEL | OPERATOR ...]

BUDGET cases per operator and pair of types, 1,000 by default, at the levels and of the operators named, else all.
Each level runs in processes of its own: OPGAUGE_ISA, or NUMBA_CPU_NAME and NUMBA_CPU_FEATURES. With onnxruntime beside
it, so that requantized results are judged by the same sets. Exit 1 on any finding.
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


RESTRICTED = {
    "nehalem": {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse2,+sse4.2"},
    "haswell": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+sse2,+sse4.2,+avx,+avx2,+fma"},
}
LEVELS = {level: {isa.VARIABLE: level} for level in isa.NEEDED} | RESTRICTED


def main(budget: int, words: list[str]) -> int:
    unknown = [w for w in words if w not in (*LEVELS, *OPERATORS)]
    if unknown:
        print(f"{unknown[0]}: write {', '.join((*LEVELS, *OPERATORS))}")
        return 2
    worst = 0
    for level in [w for w in words if w in LEVELS] or LEVELS:
        try:
            if level in isa.NEEDED:
                isa.check(level, isa.host_features())
        except BackendUnavailableError as error:
            print(f"{level}: not run: {error}")
            continue
        command = [sys.executable, "-m", "opgauge", "run", "--backend", "cpu", "--backend", "onnxruntime"]
        command += ["--no-shrink", "--budget", str(budget), "--timeout", TIMEOUT]
        command += [word for op in [w for w in words if w in OPERATORS] or OPERATORS for word in ("--op", op)]
        done = subprocess.run(command, env={**os.environ, **LEVELS[level]}, capture_output=True, text=True)
        verdict = [line for line in done.stdout.splitlines() if re.match(r"[A-Z ]+ \(exit \d+\)", line)]
        print(f"{level}: {verdict[-1] if verdict else done.stderr[-500:]}", flush=True)
        worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    number = [w for w in sys.argv[1:] if w.isdigit()]
    sys.exit(main(int(number[0]) if number else 1000, [w for w in sys.argv[1:] if not w.isdigit()]))
