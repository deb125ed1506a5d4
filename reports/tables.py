"""What every report tells, chosen once: the tables, the red records, the groups, the verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from opgauge.reference_engine.errors import OpgaugeError
from opgauge.reference_engine.types import FINDINGS, Finding, Record, Status

from .legend import MARKS, STATUSES, clean

if TYPE_CHECKING:
    import pandas as pd


_NUMBER = re.compile(r"\b\d[\d.,x]*\b")  # never the digits of float16


class Tables(NamedTuple):
    """The counts of one run, made by `opgauge.frames.tables` and only shown here.

    `matrix` is indexed by (op, backend), `dtypes` by (op, label, backend), `operators`, `backends` by name,
    `quality` by (op, special), `formulas` by (backend, explained), `profiles` by (op, profile). `records` is the
    number of records counted; verdicts of `informative` backends are no findings.
    """

    matrix: pd.DataFrame
    dtypes: pd.DataFrame
    operators: pd.DataFrame
    backends: pd.DataFrame
    quality: pd.DataFrame
    formulas: pd.DataFrame
    profiles: pd.DataFrame
    records: int
    informative: frozenset[str] = frozenset()


class Group(NamedTuple):
    """Records that say the same: one backend, status and reason; `message` is the first one's."""

    backend: str
    ops: tuple[str, ...]
    status: Status
    message: str
    links: tuple[str, ...]
    cases: int
    labels: tuple[str, ...]


class Verdict(NamedTuple):
    """`word` PASS, FAIL or NO RESULT; `tone` its colour class."""

    word: str
    tone: str
    text: str


def check_counts(tables: Tables, records: Sequence[Record]) -> None:
    """Hold the tables against the records. Raises: OpgaugeError naming the first cell that miscounts."""
    counted: Counter[tuple[str, str, str]] = Counter((r.op, r.backend, str(r.status)) for r in records)
    shown = {
        (op, backend, str(s)): row[str(s)]
        for op, cells in grid(tables)
        for backend, row in cells.items()
        for s in STATUSES
        if row[str(s)]
    }
    for key in counted.keys() | shown.keys():
        if counted[key] != shown.get(key, 0):
            op, backend, status = key
            raise OpgaugeError(
                f"report: {op} on {backend} shows {shown.get(key, 0)} cases as {status}, "
                f"the records hold {counted[key]}: build the tables from the same records (opgauge.frames.tables)"
            )
    if tables.records != len(records):
        raise OpgaugeError(f"report: the tables count {tables.records} records, the run holds {len(records)}")


def red(records: Iterable[Record]) -> list[Record]:
    """Failing and misbehaving records, one of each (operator, backend, dtypes) first, then the seconds, and so on."""
    seen: Counter[tuple[str, str, str]] = Counter()
    ranked: list[tuple[int, int, int, Record]] = []
    for record in records:
        if record.status in FINDINGS:
            key = (record.op, record.backend, record.label)
            ranked.append((seen[key], MARKS[record.status].rank, len(ranked), record))
            seen[key] += 1
    return [row[3] for row in sorted(ranked, key=lambda row: row[:3])]


def groups(
    records: Iterable[Record], statuses: Iterable[Status], *, apart: bool = True, limit: int = 300
) -> list[Group]:
    """Records of these statuses gathered by what they say, numbers aside; gravest and most frequent first.

    `apart` keeps operators apart; otherwise one group holds all operators of a backend that say the same.
    """
    wanted = frozenset(statuses)
    found: dict[tuple[str, str, Status, str], list[Record]] = {}
    for record in records:
        if record.status in wanted:
            reason = _NUMBER.sub("#", _reason(record, limit).replace(record.op, "…"))
            found.setdefault((record.backend, record.op if apart else "", record.status, reason), []).append(record)
    out = []
    for (backend, _, status, _), rows in found.items():
        ops, labels = (tuple(dict.fromkeys(words)) for words in ((r.op for r in rows), (r.label for r in rows)))
        message = _reason(rows[0], limit)
        if len(ops) > 1:
            message = message.replace(rows[0].op, "…")
        out.append(Group(backend, ops, status, message, _links(rows), len(rows), labels))
    return sorted(out, key=lambda g: (MARKS[g.status].rank, -g.cases, g.ops, g.backend, g.message))


def _reason(record: Record, limit: int) -> str:
    return clean(record.detail.get("reason") or record.message, limit)


def _links(records: Iterable[Record]) -> tuple[str, ...]:
    links = dict.fromkeys(str(r.detail["link"]) for r in records if r.detail.get("link"))
    # Only web addresses: an expectation file must not be able to plant `javascript:`.
    return tuple(link for link in links if link.startswith(("https://", "http://")))[:3]


def rule_findings(findings: Iterable[Finding], records: Iterable[Record]) -> list[Finding]:
    """Findings that are not simply a red record: stale deviations, untrusted shares, lost support, gates."""
    lines = {repro_line(r) for r in records if r.status in FINDINGS}
    statuses = {str(s) for s in FINDINGS}
    return [f for f in findings if f.rule not in statuses and f.repro not in lines]


def repro_line(record: Record, limit: int = 4000) -> str:
    """The shell line that runs a record again: the smaller case where one was found, after those that it needs."""
    if record.suite == "model":
        model = clean(record.detail.get("model") or record.case.split("/")[1], limit)
        return f"opgauge model {quoted(model)} --backend {quoted(clean(record.backend, 200))}"
    case = clean(smaller(record.detail) or record.case, limit)
    after = "".join(f" --after {quoted(clean(one, limit))}" for one in record.detail.get("after") or ())
    return f"opgauge repro {quoted(case)}{after} --backend {quoted(clean(record.backend, 200))}"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def smaller(detail: Mapping[str, Any]) -> str:
    """The id of a smaller case that fails in the same way, or nothing."""
    return str((detail.get("smaller") or {}).get("case", ""))


def offending(detail: Mapping[str, Any], limit: int = 8) -> list[dict[str, Any]]:
    """The first offending elements of a record's detail, one mapping each."""
    columns = {k: list(detail.get(k) or ()) for k in ("index", "expected", "got", "real", "tie_distance")}
    length = min(limit, max(map(len, columns.values())))
    rows = [{k: v[i] if i < len(v) else None for k, v in columns.items()} for i in range(length)]
    return [row | {"index": _coordinates(row["index"], detail.get("shape"))} for row in rows]


def _coordinates(index: Any, shape: Any) -> Any:
    """`130 = 0,0,8,2`: a flat index with its coordinates, where the shape is known."""
    if not isinstance(index, int) or not shape or len(shape) < 2 or not 0 <= index < prod(shape):
        return index
    rest, out = index, []
    for dim in reversed(shape):
        rest, at = divmod(rest, int(dim))
        out.append(str(at))
    return f"{index} = {','.join(reversed(out))}"


def relation(detail: Mapping[str, Any]) -> str:
    """What the wrong elements have in common, in words."""
    found = detail.get("relation")
    return clean(found[0], 200) if isinstance(found, (list, tuple)) and found else ""


def hints(detail: Mapping[str, Any]) -> list[str]:
    """What wrong elements have in common and what a wider policy would accept, a line each."""
    policy = wider(detail)
    return [line for line in (relation(detail), policy and f"a wider policy: {policy}") if line]


def wider(detail: Mapping[str, Any]) -> str:
    """What a wider rounding policy would accept, in words."""
    said = detail.get("wider")
    if not said:
        return ""
    if isinstance(said, Mapping):
        return "; ".join(f"{clean(k, 60)}: {clean(v, 120)}" for k, v in said.items())
    return clean("; ".join(map(str, said)) if isinstance(said, (list, tuple)) else said, 300)


def judged_cases(tables: Tables) -> int:
    return int(tables.backends["judged"].sum() + tables.backends["misbehaviour"].sum())


def totals(tables: Tables) -> dict[str, int]:
    """Cases per status over the whole run, and the denominators."""
    out = {str(s): int(tables.matrix[str(s)].sum()) for s in STATUSES}
    ops = tables.matrix.index.get_level_values("op")
    return {
        **out,
        "cases": int(tables.matrix["cases"].sum()),
        "judged": int(tables.backends["judged"].sum()),
        "elements": int(tables.backends["elements"].sum()),
        "undecided": int(tables.backends["undecided"].sum()),
        "operators": len(set(ops)),
        "backends": len(tables.backends),
    }


def verdict(tables: Tables, findings: Sequence[Finding], exit_code: int | None = None) -> Verdict:
    """The run in one word and one sentence. A run that judged nothing has no result, whatever else it did."""
    sums = totals(tables)
    rest = ", ".join(
        f"{sums[str(s)]:,} {s}" for s in STATUSES if s is not Status.PASS and MARKS[s].tone != "bad" and sums[str(s)]
    )
    wrong, beside = _wrong(tables)
    where = f"{sums['operators']:,} operators on {sums['backends']} backend{'s' * (sums['backends'] != 1)}"
    if not judged_cases(tables):
        said = [f"{len(findings):,} findings" if findings else "", rest]
        return Verdict("NO RESULT", "none", "nothing ran" + "".join(f"; {p}" for p in said if p))
    passed = f"{sums['pass']:,} of {sums['cases']:,} cases pass, {where}" + (f"; {rest}" if rest else "")
    if wrong or findings or exit_code:
        parts = [f"{len(findings):,} finding{'s' * (len(findings) != 1)}" if findings else "", wrong]
        why = " · ".join(p for p in parts if p) or f"exit code {exit_code}"
        return Verdict("FAIL", "bad", f"{why} · {passed}")
    passed += f"; for information only: {beside}" if beside else ""
    if not sums["pass"] and not sums["deviation"]:
        return Verdict("NO RESULT", "none", f"no case proved anything: {rest}")
    return Verdict("PASS", "ok", passed)


def _wrong(tables: Tables) -> tuple[str, str]:
    """`3 fail, 1 crash` of the backends that are held to it, and of those that are there for information."""
    aside = tables.matrix.index.get_level_values("backend").isin(tables.informative)
    bad = [str(s) for s in STATUSES if MARKS[s].tone == "bad"]
    sums = [tables.matrix.loc[rows, bad].sum() for rows in (~aside, aside)]
    held, beside = (", ".join(f"{int(n[s]):,} {s}" for s in bad if n[s]) for n in sums)
    return held, beside


def worst(row: Mapping[str, int]) -> Status | None:
    """The gravest status that occurs in a row of counts."""
    return next((s for s in STATUSES if row[str(s)]), None)


def grid(tables: Tables) -> list[tuple[str, dict[str, dict[str, int]]]]:
    """(operator, {backend: counts}), the gravest operators first, then by name."""
    cells: dict[str, dict[str, dict[str, int]]] = {}
    for (op, backend), row in zip(tables.matrix.index, tables.matrix.to_dict("records"), strict=True):
        cells.setdefault(str(op), {})[str(backend)] = row

    def gravity(op: str) -> tuple[int, str]:
        found = [worst(row) for row in cells[op].values()]
        return min((MARKS[s].rank for s in found if s in FINDINGS), default=len(STATUSES)), op.lower()

    return [(op, cells[op]) for op in sorted(cells, key=gravity)]
