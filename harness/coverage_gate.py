"""The gate on coverage: what was judged before must be judged now, by the same kernels; exact, in both directions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opgauge.reference_engine.types import Finding, Record, Status

from . import accepted

NOT_JUDGED = (Status.UNSUPPORTED, Status.UNAVAILABLE, Status.INVALID)
Rows = Mapping[str, Sequence[str]]


def measure(records: Sequence[Record], kernels: Sequence[str] = ()) -> dict[str, list[str]]:
    """Rows (operator and element types) by backend on which a case was judged, and our kernels' places.

    Of a runtime only the operators count: which element types it takes is its own business, and its release's.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for r in records:
        if r.suite == "operators" and r.status not in NOT_JUDGED:
            name = r.backend.partition(":")[0]
            found[name].add(f"{r.op} {r.label}" if name in ("cpu", "wgpu") else r.op)
    if kernels:
        found["cpu kernels"] = set(kernels)
    return {k: sorted(v) for k, v in sorted(found.items())}


def places() -> list[str]:
    """Every kernel row of our engine: `Gemm float32,float32,float32`, `*` where a row serves any type."""
    from opgauge.backends.cpu import kernels

    return sorted(f"{k.primitive}{'.' if k.fn else ''}{k.fn} {','.join(k.dtypes)}" for k in kernels())


def compare(baseline: Rows, now: Rows) -> list[Finding]:
    """A finding for each row that is gone or new."""
    found = []
    for name in sorted(baseline.keys() | now.keys()):
        if name not in now:
            found.append(Finding("coverage", name, "nothing was judged on it: it is in the baseline"))
            continue
        gone = sorted(set(baseline.get(name, ())) - set(now[name]))
        new = sorted(set(now[name]) - set(baseline.get(name, ())))
        said = "the row is gone: its nodes fall back to another kernel or are refused"
        for row in gone:
            text = said if name.endswith("kernels") else "dropped: it was judged before and no case of it is judged now"
            found.append(Finding("coverage", f"{row} on {name}", text))
        if new and name in baseline:
            text = f"{len(new)} more than the baseline knows ({', '.join(new[:4])}): accept them"
            found.append(Finding("coverage", name, text))
    return found


def read(path: Path | None = None) -> dict[str, Any]:
    """The baseline file, or the shipped one. Raises: BaselineError."""
    return accepted.read("coverage", "rows", path)


def accept(path: Path, now: Rows, reason: str) -> list[Finding]:
    """Write what is judged now as what must be judged, with the reason. Raises: BaselineError without a reason."""
    document = accepted.begun("coverage", "rows", path, reason, read)
    changes = compare(document["rows"], now)
    if changes or document["rows"] != now:
        document["rows"].update(now)
        accepted.write(path, document, reason, [f"{c.subject}: {c.message}" for c in changes][:20])
    return changes
