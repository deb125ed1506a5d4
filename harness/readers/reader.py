"""Judges outputs by exported cases, with nothing but Python: python reader.py CASES OUTPUTS

OUTPUTS holds NNNN.raw for each CASES/cases/NNNN.set: all outputs of the case one after another, little-endian, as the
runtime stores them (bfloat16 and float16 by their bits, bool as one byte). A case without a file was not run."""

import math
import os
import struct
import sys

TYPES = {1: (4, "f"), 2: (1, "B"), 3: (1, "b"), 4: (2, "H"), 5: (2, "h"), 6: (4, "i"), 7: (8, "q"), 9: (1, "B"),
         10: (2, "e"), 11: (8, "d"), 12: (4, "I"), 13: (8, "Q"), 16: (2, "H")}  # fmt: skip


def values(kind, raw):
    size, code = TYPES[kind]
    found = struct.unpack(f"<{len(raw) // size}{code}", raw)
    # bfloat16 is the upper half of a float32
    return found if kind != 16 else [struct.unpack("<f", struct.pack("<I", v << 16))[0] for v in found]


def judge(expected, actual):
    """An empty string, or what is wrong with the first element outside. The two compares are in the middle."""
    assert expected[:8] == b"OPGSET1\n", "not a set file of version 1"
    (outputs,), at, used = struct.unpack_from("<I", expected, 8), 12, 0
    for index in range(outputs):
        kind, rank, ranges = struct.unpack_from("<III", expected, at)
        dims = struct.unpack_from(f"<{rank}I", expected, at + 12)
        at += 12 + 4 * rank
        count, size = math.prod(dims), TYPES[kind][0]
        if len(actual) < used + count * size:
            return f"output {index}: {len(actual) - used} bytes, expected {count * size}"
        got = values(kind, actual[used : used + count * size])
        bounds = struct.unpack_from(f"<{2 * count * ranges}d", expected, at)
        pairs_of = list(zip(bounds[::2], bounds[1::2]))  # noqa: B905
        used, at = used + count * size, at + 16 * count * ranges
        for i, y in enumerate(got):
            pairs = pairs_of[i * ranges : (i + 1) * ranges]
            if not any((lo <= y and y <= hi) or (y != y and lo != lo) for lo, hi in pairs):  # NaN where NaN is due
                return f"output {index}, element {i}: {y} is in none of {pairs}"
    return "" if used == len(actual) else f"{len(actual) - used} bytes too many"


def main(cases, outputs):
    passed = failed = missing = 0
    for name in sorted(n for n in os.listdir(os.path.join(cases, "cases")) if n.endswith(".set")):
        path = os.path.join(outputs, name[:-4] + ".raw")
        if not os.path.exists(path):
            missing += 1
            continue
        with open(os.path.join(cases, "cases", name), "rb") as left, open(path, "rb") as right:
            wrong = judge(left.read(), right.read())
        failed, passed = failed + (wrong != ""), passed + (wrong == "")
        print(f"FAIL {name[:-4]}: {wrong}\n" if wrong else "", end="")
    print(f"{passed} pass, {failed} fail, {missing} not run")
    return 1 if failed else 0 if passed else 5


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
