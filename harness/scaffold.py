"""`opgauge init`: a folder for known deviations and a workflow. What exists is left as it is."""

from __future__ import annotations

from pathlib import Path

EXPECTATIONS = """\
# Known, true deviations of the runtimes that you test; opgauge's own list is read beside this one.
# A row excuses only the elements that its predicate explains. Its witness is replayed in every run: when it passes,
# the row is stale and the run fails. It looks like this:
#
# [[deviation]]
# id = "my-runtime-rounds-away"
# operators = ["QuantizeLinear"]
# runtime = "my_runtime.py:run"      # as given to --backend, options aside
# versions = "*"                     # or ">=1.2,<1.5"
# predicate = "v >= 0"               # v before rounding, w with the zero point, got, lo, hi
# witness = "QuantizeLinear/..."     # a case id that shows it
# reason = "documented: ties are rounded away from zero"
# link = "https://..."
"""

WORKFLOW = """\
name: opgauge

on:
  push:
    branches: [main]
  pull_request:

permissions:
  contents: read

jobs:
  conformance:
    runs-on: ubuntu-latest
    timeout-minutes: 30
    steps:
      - uses: actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2
        with:
          persist-credentials: false
      - uses: actions/setup-python@a309ff8b426b58ec0e2a45f0f869d46889d02405 # v6.2.0
        with:
          python-version: "3.13"
      - run: python -m pip install opgauge
      - run: opgauge run --html opgauge-report.html --junit opgauge-report.xml --markdown "$GITHUB_STEP_SUMMARY"
      - uses: actions/upload-artifact@043fb46d1a93c77aae656e7c1c64a875d1fc6a0a # v7.0.1
        if: ${{ !cancelled() }}
        with:
          name: opgauge-report
          path: opgauge-report.*
"""

FILES: tuple[tuple[str, str], ...] = (
    ("baselines/expectations.toml", EXPECTATIONS),
    (".github/workflows/opgauge.yml", WORKFLOW),
)
SETTINGS = """\
[tool.opgauge]
backend = ["my_runtime.py:run"]
budget = 100
baselines = "baselines"
"""


def create(folder: Path) -> list[tuple[str, bool]]:
    """(file, was it made) for each; nothing is overwritten."""
    made = []
    for name, text in FILES:
        path = folder / name
        if path.exists():
            made.append((name, False))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        made.append((name, True))
    return made
