"""The catalogue of planted faults as a page: what opgauge sees, and what the criteria of others would have seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEAD = """# How many faults are seen

A test suite is an instrument, and an instrument has an accuracy. opgauge plants faults of its own in small kernels of
all families (`suites/faults`), runs its suite over them without knowing which is which, and counts. The last columns
are the acceptance criteria of others, asked about the *same outputs*: what their tests would have said, had they
drawn these cases. Each compares with the best reference there is, the correctly rounded result.

This page is made by

```sh
opgauge sensitivity --cases {cases} --markdown docs/sensitivity.md
```
"""


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "none"


def render(summary: Mapping[str, Any], cases: int) -> str:
    """Markdown of a summary with `others`."""
    outcomes = summary["outcomes"]
    others: Mapping[str, Any] = summary["others"]
    benign = summary["benign"]
    lines = [HEAD.replace("{cases}", str(cases)), "## Totals", ""]
    lines += ["| criterion | accepts | faults seen | honest variants accused |", "|---|---|---|---|"]
    lines.append(
        f"| **opgauge** | its [acceptance sets](numerics.md) | {share(summary['caught'], summary['applicable'])} "
        f"| {share(len({f.split()[0] for f in summary['benign_flagged']}), len(benign))} |"
    )
    for name, row in others.items():
        lines.append(
            f"| {name} | {row['text']} | {share(len(row['caught']), summary['applicable'])} "
            f"| {share(len(row['benign_flagged']), len(benign))} |"
        )
    lines += ["", *CAVEATS, "", "## By class", "", "| class | faults | seen |", "|---|---|---|"]
    lines += [f"| {c} | {n['applicable']} | {n['caught']} |" for c, n in sorted(summary["classes"].items())]
    lines += ["", "## Sources of the criteria", ""]
    lines += [f"- {name}: {row['source']}." for name, row in others.items()]
    heads = ["fault", "operators", "what is wrong", "opgauge: after cases", *others]
    lines += ["", "## Every fault", "", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += _rows([o for o in outcomes if not o["benign"]], others)
    lines += ["", "## Honest variants", "", "A mark is a false alarm.", ""]
    lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += _rows([o for o in outcomes if o["benign"]], others)
    if summary["missed"]:
        lines += ["", "## Not seen", "", f"In {cases} cases of each row of the suite; more cases see more.", ""]
        lines += [f"- {text}" for text in summary["missed"]]
    return "\n".join(lines) + "\n"


CAVEATS = (
    "The other criteria were made for data of their own: oneDNN and TOSA choose inputs that fit their thresholds,",
    "so that alarms on honest variants here are no fault of theirs, but what comes of a criterion taken elsewhere.",
    "A criterion that accuses many honest variants also sees faults by accusing everything: read both columns.",
    "Faults that need more than one call, or a look at memory, cannot be seen by any comparison of one output.",
)


def _rows(outcomes: list[Mapping[str, Any]], others: Mapping[str, Any]) -> list[str]:
    """One row for each fault, its operators together."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for outcome in outcomes:
        found.setdefault(outcome["id"], []).append(outcome)
    rows = []
    for identity, mine in found.items():
        after = [str(o["caught_after"]) if o["caught"] else "-" for o in mine]
        marks = ["x" if any(name in o["others"] for o in mine) else "" for name in others]
        cells = [identity, ", ".join(o["op"] for o in mine), mine[0]["title"].replace("|", "\\|"), ", ".join(after)]
        rows.append(f"| {' | '.join([*cells, *marks])} |")
    return rows
