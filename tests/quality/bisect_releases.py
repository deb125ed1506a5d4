"""Does `opgauge bisect --releases` name the releases that are known to have changed cases of your own?

    python tests/quality/bisect_releases.py ROWS.json [--span 1.15..1.32]

ROWS.json is a list of {"name": ..., "words": ["model.onnx", "--what", "count"], "before": "1.19.2", "after": "1.20.1"}:
the change must lie after `before` (the last release known to be old) and not after `after` (the first known new one).
Files in `words` are found relative to ROWS.json. Exit 1 where a release is named wrongly or none is. Takes minutes, and
gigabytes for the environments of the releases.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from opgauge.bisect_releases import numbers

LIMIT_S = 3600


def bisected(row: dict[str, Any], package: str, span: str, folder: Path, home: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "opgauge", "bisect", *row["words"], "--releases", package, span]
    command += ["--json", "--timeout", "120", "--out", str(Path(home) / row["name"])]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        return {"result": f"exit {done.returncode}", "reason": done.stderr.strip()[-200:], "found": []}


def right(row: dict[str, Any], found: list[dict[str, Any]]) -> bool:
    """Whether one of the changes named lies where the row says."""
    low, high = numbers(row["before"]), numbers(row["after"])
    return any(low < numbers(f["place"]) <= high for f in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--package", default="onnxruntime")
    parser.add_argument("--span", default="1.15..1.32")
    options = parser.parse_args()
    rows = json.loads(options.rows.read_text())
    good = 0
    with tempfile.TemporaryDirectory() as home:
        for row in rows:
            report = bisected(row, options.package, options.span, options.rows.resolve().parent, home)
            well = right(row, report["found"])
            good += well
            word = "right" if well else "WRONG"
            print(f"{row['name']}: {word}: {report['result']}: {report['reason'][:160]}", flush=True)
    print(f"{good} of {len(rows)} releases named right")
    return int(good < len(rows) or not rows)


if __name__ == "__main__":
    sys.exit(main())
