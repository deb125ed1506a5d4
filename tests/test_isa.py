"""Every level of vector instructions gives the same bits; a level that is not there is refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from opgauge.backends.cpu import isa
from opgauge.reference_engine.errors import BackendUnavailableError

# Products of every pair at ragged shapes, sums and requantized, against numpy in wide integers; one float chain.
SCRIPT = """
import json, math
from fractions import Fraction
import numpy as np
from opgauge.backends import cpu
from opgauge.reference_engine.executor import finder

find, rng, bad = finder(cpu.kernels()), np.random.default_rng(0), 0
for M, K, N in [(1, 9, 40), (13, 70, 33), (9, 64, 64), (3, 5, 7)]:
    for a_word, b_word in [("uint8", "int8"), ("int8", "uint8")]:
        a = rng.integers(0, 256, (M, K)).astype(np.uint8).view(a_word)
        b = rng.integers(0, 256, (K, N)).astype(np.uint8).view(b_word)
        za, zb = np.array(-3 if a_word == "int8" else 200, a_word), np.array(7, b_word)
        acc = (a.astype(np.int64) - int(za)) @ (b.astype(np.int64) - int(zb))
        out = np.empty((M, N), np.int32)
        find("Gemm", "", (a_word, b_word, a_word, b_word, "int32")).call(a, b, za, zb, out)
        bad += int((out != acc).sum())
        bias, factor, zero = np.arange(M, dtype=np.int32)[:, None], np.float32(2.0**-9), np.array(5, np.int8)
        y = np.empty((M, N), np.int8)
        row = find("Gemm", "requantize", (a_word, b_word, a_word, b_word, "int32", "float32", "int8", "int8"))
        row.call(a, b, za, zb, bias, np.asarray(factor), zero, y, "int8", -100, 90, False)
        bad += int((y != np.clip(np.rint((acc + bias).astype(np.float32) * factor) + 5, -100, 90)).sum())
info = cpu.info()
print(json.dumps({"bad": bad, "isa": info["isa"], "features": info["features"]}))
"""


def at(level):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, "OPGAUGE_ISA": level}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("level", ["portable", "avx2", "vnni"])
def test_every_level_multiplies_bytes_exactly(level):
    try:
        isa.check(level, isa.host_features())
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    found = at(level)
    assert found["bad"] == 0
    assert found["isa"] == f"{level} (forced)"
    assert ("avx2" in found["features"].split()) == (level != "portable")


def test_a_level_that_is_not_there_is_refused_by_name():
    with pytest.raises(BackendUnavailableError, match="OPGAUGE_ISA=sse9: write portable"):
        isa.check("sse9", frozenset())
    with pytest.raises(BackendUnavailableError, match="does not offer avx2, fma"):
        isa.check("avx2", frozenset({"sse2"}))
    with pytest.raises(BackendUnavailableError, match="does not offer amx-int8"):
        isa.check("amx", frozenset({"avx512vnni"}))
    isa.check("vnni", frozenset({"avxvnni"}))  # control: either kind of VNNI will do
