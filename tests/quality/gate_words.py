"""Does `opgauge gate` find what was planted, in the right words, and stay green on what was not?

    python tests/quality/gate_words.py [--green 20] [--touched 1] [--only NAME | --no-plants] [--parts counts,...]

Works on a clone of this repository in a temporary folder: plants one change at a time in its working tree, runs that
tree's own `gate --against HEAD` on it and looks for the words. An unchanged tree is not timed, its hashes being equal;
--touched adds a comment to both backends, so that every key case is. Prints a row for each plant; exit 1 on a miss.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Plant:
    """`pattern` in `file` becomes `text`, once; the gate's `parts` on `ops` must then say what matches `words`."""

    name: str
    parts: tuple[str, ...]
    ops: tuple[str, ...]
    file: str
    pattern: str
    text: str
    words: str


PLANTS = (
    Plant(
        "extra-transpose", ("counts",), (), "reference_engine/passes.py",
        r"for rule in rules:\n", 'for rule in [r for r in rules if r.id != "transpose-pairs"]:\n',
        r"counts: .*transpose_count rose",
    ),
    Plant(
        "rounding", ("verdicts",), ("QuantizeLinear", "QLinearMatMul"), "backends/cpu/pointwise.py",
        r"    y = np\.rint\(y\)\n", "    y = np.floor(y + 0.5)\n", r"fail: .*on cpu: .*elements outside",
    ),
    Plant(
        "silent-fallback", ("coverage",), ("Softmax",), "backends/cpu/__init__.py",
        r"return tuple\(row for family in families for row in family\.KERNELS\)",
        'return tuple(r for f in families for r in f.KERNELS if r.primitive != "Quantize" or r.dtypes[0] != "float16")',
        r"coverage: Quantize float16.*the row is gone",
    ),
    Plant(
        "dropped-operator", ("coverage",), ("Softmax",), "reference_engine/operators/__init__.py",
        r"\Z", '\nOPERATORS = {k: v for k, v in OPERATORS.items() if k != ("", "Softmax")}\n',
        r"coverage: Softmax float32 on cpu: dropped",
    ),
    Plant(
        "slow-kernel", ("latency",), (), "backends/cpu/__init__.py",
        r"( +)(outputs = kept\.again.*)\n",
        r"\1\2\n\1now = time.perf_counter_ns()\n\1until = now + (now - start) // 20"
        r"\n\1while time.perf_counter_ns() < until:\n\1    pass\n",
        r"latency: .* on cpu: slower: \+",
    ),
)  # fmt: skip


def clone(folder: Path) -> tuple[Path, str]:
    """A clone with the working tree's files committed, and an interpreter that runs it in place."""
    top = folder / "repository"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(top)], check=True)
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "-c", "-o", "--exclude-standard"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, top / name)
    who = ["-c", "user.name=gate", "-c", "user.email=gate@example.com"]
    subprocess.run(["git", "-C", str(top), "add", "-A"], check=True)
    subprocess.run(["git", "-C", str(top), *who, "commit", "-q", "--allow-empty", "-m", "as it is"], check=True)
    environment = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    site = next(environment.rglob("site-packages"))
    package = site / "opgauge"
    package.mkdir()
    for path in (top / "harness").iterdir():
        (package / path.name).symlink_to(path)
    for room in ("reference_engine", "backends", "suites", "reports", "baselines"):
        (package / room).symlink_to(top / room)
    (site / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return top, str(environment / "bin" / "python")


def gate(python: str, top: Path, parts: tuple[str, ...], ops: tuple[str, ...] = ()) -> tuple[int, str, float]:
    words = [python, "-P", "-m", "opgauge", "gate", *(w for p in parts for w in ("--only", p))]
    words += [w for op in ops for w in ("--op", op)]
    words += ["--against", "HEAD"] if "latency" in parts or not parts else []
    began = time.monotonic()
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, cwd=top, capture_output=True, text=True, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began


def planted(top: Path, plant: Plant) -> None:
    path = top / plant.file
    text, count = re.subn(plant.pattern, plant.text, path.read_text("utf-8"), count=1)
    if count != 1:
        raise SystemExit(f"{plant.name}: {plant.pattern!r} is not in {plant.file}")
    path.write_text(text, "utf-8")


TOUCHED = ("backends/cpu/__init__.py", "backends/onnxruntime.py")


def touched(top: Path) -> None:
    """Another hash of every kernel and build, and the same work."""
    for name in TOUCHED:
        with (top / name).open("a") as file:
            file.write("\n# touched\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--green", type=int, default=1, help="how often the unchanged tree must be green")
    parser.add_argument("--touched", type=int, default=0, help="how often a tree with new hashes alone must be green")
    parser.add_argument("--only", action="append", help="these plants, repeatable")
    parser.add_argument("--no-plants", action="store_true", help="green runs only")
    parser.add_argument("--parts", default="", help="parts of the gate for the green runs; all by default")
    asked = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        top, python = clone(Path(folder))
        for i in range(asked.green + asked.touched):
            name = "unchanged" if i < asked.green else "touched"
            if i == asked.green:
                touched(top)
            code, said, took = gate(python, top, tuple(filter(None, asked.parts.split(","))))
            missed += code != 0
            print(f"{name} {i + 1}: exit {code}, {took:.0f} s: {said.strip().splitlines()[-1]}", flush=True)
            if code or name == "touched":
                print(said[-3000:], flush=True)
        for plant in [p for p in PLANTS if not asked.no_plants and (not asked.only or p.name in asked.only)]:
            subprocess.run(["git", "-C", str(top), "checkout", "-q", "."], check=True)
            planted(top, plant)
            code, said, took = gate(python, top, plant.parts, plant.ops)
            line = next((text for text in said.splitlines() if re.search(plant.words, text)), "")
            missed += not (code == 1 and line)
            print(f"{plant.name}: exit {code}, {took:.0f} s: {line[:160] or 'NOT SAID: ' + said[-800:]}", flush=True)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
