"""Every graph rule on its templates, optimised against unoptimised, on many random draws each.

    python tests/quality/rules_on_templates.py [DRAWS] [PART OF A NAME]

A result outside the reference's set, a changed bit under a rule that keeps bits, a pattern that a rule leaves too
often or a near miss that it takes is a fault. Prints one line a template and the sums; exits 1 where there was one.
"""

from __future__ import annotations

import sys

from opgauge.backends.cpu import kernels
from opgauge.reference_engine.executor import finder
from opgauge.rule_trials import tried
from opgauge.suites.templates import TEMPLATES


def main(draws: int, part: str) -> int:
    find = finder(kernels())
    chosen = [t for t in TEMPLATES if part in t.name]
    sums = [0, 0, 0]
    for template in chosen:
        found = tried(template, draws, find)
        sums = [a + b for a, b in zip(sums, (found.outside, found.changed, len(found.faults)), strict=True)]
        line = f"{template.name:45} applied {found.applied:3}/{draws}, {found.outside} outside, {found.changed} changed"
        line += f" by {found.effect:g} at most" if found.changed else ""
        print("; ".join([line, *found.faults[:2]]), flush=True)
    rules = len({t.rule for t in chosen})
    print(f"{len(chosen)} templates of {rules} rules, {draws} draws each: {sums[0]} outside, {sums[2]} faults")
    return int(sums[2] > 0 or not chosen)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 200, sys.argv[2] if sys.argv[2:] else ""))
