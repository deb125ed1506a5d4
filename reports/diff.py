"""Two runs, case by case: newly red, newly green, newly untrusted, by operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from opgauge.reference_engine.types import FINDINGS, Record, Status

from .legend import MARKS, clean
from .tables import quoted, repro_line

SHOWN = 3  # cases for each operator and kind of change
KINDS = ("newly red", "newly green", "newly untrusted", "other change", "new values")


class Change(NamedTuple):
    """One case whose status changed. `kind` is one of KINDS; `before` and `after` are its records."""

    kind: str
    before: Record
    after: Record


class Difference(NamedTuple):
    """`common` cases were compared; `gone` and `new` are only in one of the runs; `names` are the sides."""

    names: tuple[str, str]
    common: int
    gone: int
    new: int
    changes: tuple[Change, ...]

    def of(self, kind: str) -> list[Change]:
        return [change for change in self.changes if change.kind == kind]


def compare(old: Iterable[Record], new: Iterable[Record], names: tuple[str, str]) -> Difference:
    """Records of one case are compared; where a case is in a run twice, the graver record counts.

    Units: a case on the backends that both sides were reduced to, so `old` and `new` hold one backend each, or the
    same backends.
    """
    before, after = _graver(old), _graver(new)
    same_backends = {b for _, b in before} == {b for _, b in after}
    if not same_backends and len({b for _, b in before}) == len({b for _, b in after}) == 1:
        before, after = ({(case, ""): r for (case, _), r in side.items()} for side in (before, after))
    shared = sorted(before.keys() & after.keys())
    changes = [Change(kind, before[key], after[key]) for key in shared if (kind := kind_of(before[key], after[key]))]
    return Difference(names, len(shared), len(before) - len(shared), len(after) - len(shared), tuple(changes))


def kind_of(before: Record, after: Record) -> str:
    """What became of a case, or an empty string when nothing did."""
    if before.status == after.status:
        return "new values" if before.outside != after.outside else ""
    if after.status in FINDINGS:
        return "newly red" if before.status not in FINDINGS else "other change"
    if after.status is Status.UNTRUSTED:
        return "newly untrusted"
    return "newly green" if after.status in (Status.PASS, Status.DEVIATION) else "other change"


def _graver(records: Iterable[Record]) -> dict[tuple[str, str], Record]:
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        key = (record.case, record.backend)
        if key not in found or MARKS[record.status].rank < MARKS[found[key].status].rank:
            found[key] = record
    return found


def operators(changes: Sequence[Change]) -> list[tuple[str, Counter[str]]]:
    """(operator, changes per kind), most newly red first."""
    table: dict[str, Counter[str]] = {}
    for change in changes:
        table.setdefault(change.after.op, Counter())[change.kind] += 1
    return sorted(table.items(), key=lambda item: (-item[1]["newly red"], -item[1].total(), item[0]))


def render(difference: Difference) -> str:
    """Plain text: operators that changed, then cases with the lines that run them again."""
    found = difference
    lines = [f"{clean(found.names[0])} -> {clean(found.names[1])}"]
    lines.append(
        f"{found.common:,} cases in both, {found.gone:,} only in the old run, {found.new:,} only in the new one; "
        + (", ".join(f"{len(found.of(k)):,} {k}" for k in KINDS if found.of(k)) or "no change")
    )
    if not found.common:
        return "\n".join([*lines, "no result: the runs share no case"]) + "\n"
    for op, counted in operators(found.changes):
        lines.append(f"\n{clean(op, 80)}: " + ", ".join(f"{counted[k]:,} {k}" for k in KINDS if counted[k]))
        for kind in KINDS:
            for change in [c for c in found.of(kind) if c.after.op == op][:SHOWN]:
                lines += _case(change)
    return "\n".join(lines) + "\n"


def _case(change: Change) -> list[str]:
    before, after = change.before, change.after
    glyphs = (f"{MARKS[r.status].glyph} {r.status}" for r in (before, after))
    lines = [f"  {' -> '.join(glyphs)}  {clean(after.label, 80)} {clean(after.profile, 40)}"]
    lines += [
        f"    {clean(r.backend, 60)}: {clean(r.message, 300)}"
        for r in (before, after)
        if r.status is not Status.PASS and r.message
    ]
    # The red side's line: a case that is green again shows nothing where it is green.
    both = f" --backend {quoted(clean(after.backend, 200))}" if before.backend != after.backend else ""
    return [*lines, f"    {repro_line(before)}{both}" if both else f"    {repro_line(after)}"]


def document(difference: Difference) -> dict[str, object]:
    """The same as plain values."""
    return {
        "schema": "opgauge.diff/1",
        "old": difference.names[0],
        "new": difference.names[1],
        "cases": {"common": difference.common, "only_old": difference.gone, "only_new": difference.new},
        "operators": {op: dict(counted) for op, counted in operators(difference.changes)},
        "changes": [
            {
                "kind": c.kind,
                "case": c.after.case,
                "op": c.after.op,
                "backends": [c.before.backend, c.after.backend],
                "status": [str(c.before.status), str(c.after.status)],
                "message": [c.before.message, c.after.message],
            }
            for c in difference.changes
        ],
    }
