"""A static site from many stored runs: each runtime over its versions, which operator changed in which release."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opgauge.reference_engine.types import FINDINGS, Record, Status

from .diff import Difference, compare, operators
from .html import anchor, cell, page
from .legend import JUDGED, MARKS, NO_RESULT, STATUSES
from .tables import repro_line

REFUSED = (Status.UNSUPPORTED, Status.UNAVAILABLE)
SHOWN = 40  # operators of one step between two versions


@dataclass(frozen=True)
class Column:
    """One backend of one run. `runtime` is its name without version; `options` tell its columns apart."""

    runtime: str
    options: str
    version: str
    backend: str
    run: str
    started: str
    machine: str
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        return f"{self.runtime}{':' if self.options else ''}{self.options}"


@dataclass(frozen=True)
class Known:
    """A recorded deviation, as the corpus shows it."""

    id: str
    runtime: str
    versions: str
    operators: tuple[str, ...]
    when: str
    predicate: str
    reason: str
    link: str
    witness: str


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Numbers compare as numbers; a word sorts below a number."""
    return tuple((1, int(p), "") if p.isdigit() else (0, 0, p) for p in re.split(r"[.+-]", version))


def runtimes(columns: Sequence[Column]) -> dict[str, list[Column]]:
    """Columns by runtime, versions in order; of one version twice the later run stays."""
    newest: dict[tuple[str, str], Column] = {}
    for column in sorted(columns, key=lambda c: (c.started, c.run)):
        newest[column.name, column.version] = column
    found: dict[str, list[Column]] = {}
    for name, version in sorted(newest, key=lambda key: (key[0], version_key(key[1]))):
        found.setdefault(name, []).append(newest[name, version])
    return found


def counts(records: Sequence[Record]) -> dict[str, dict[str, int]]:
    """{operator: {status: cases}}."""
    tally: Counter[tuple[str, Status]] = Counter((r.op, r.status) for r in records)
    return {
        op: {str(s): tally[op, s] for s in STATUSES} for op in sorted({op for op, _ in tally}, key=lambda o: o.lower())
    }


def steps(versions: Sequence[Column]) -> list[dict[str, Any]]:
    """What changed between one version and the next, on the cases that both judged."""
    out = []
    for old, new in itertools.pairwise(versions):
        found = compare(old.records, new.records, (old.version, new.version))
        out.append({"old": old.version, "new": new.version, "common": found.common, "rows": _changed(found)})
    return out


def _changed(found: Difference) -> list[dict[str, Any]]:
    rows = []
    for op, counted in operators(found.changes):
        mine = [c for c in found.changes if c.after.op == op]
        gained = [c for c in mine if c.before.status in REFUSED and c.after.status not in (*REFUSED, *FINDINGS)]
        lost = [c for c in mine if c.after.status in REFUSED and c.before.status not in REFUSED]
        red = [c for c in mine if c.kind == "newly red"]
        mended = [c for c in mine if c.before.status in FINDINGS and c.kind == "newly green"]
        words = (("broke", red), ("mended", mended), ("newly supported", gained), ("support lost", lost))
        for word, changes in words:
            if changes:
                first = changes[0]
                shown = first.after if word in ("broke", "support lost") else first.before
                rows.append(
                    {"op": op, "word": word, "cases": len(changes), "label": first.after.label}
                    | {
                        "message": shown.message,
                        "line": repro_line(shown, 600),
                        "untrusted": counted["newly untrusted"],
                    }
                )
    order = {"broke": 0, "support lost": 1, "mended": 2, "newly supported": 3}
    return sorted(rows, key=lambda r: (order[str(r["word"])], -int(r["cases"]), str(r["op"])))


def summary(versions: Sequence[Column]) -> list[dict[str, Any]]:
    """For each version its cases; a version that judged nothing has no result, never 0 %."""
    out = []
    for column in versions:
        tally = Counter(r.status for r in column.records)
        judged = sum(tally[s] for s in JUDGED) + sum(tally[s] for s in FINDINGS if s is not Status.FAIL)
        red = len({r.op for r in column.records if r.status in FINDINGS})
        out.append(
            {"version": column.version, "run": column.run, "started": column.started, "machine": column.machine}
            | {"cases": len(column.records), "judged": judged, "red_operators": red}
            | {"operators": len({r.op for r in column.records if r.status in JUDGED or r.status in FINDINGS})}
            | {"failing": sum(tally[s] for s in FINDINGS), "passing": tally[Status.PASS]}
            | {"deviation": tally[Status.DEVIATION], "refused": sum(tally[s] for s in REFUSED)}
        )
    return out


def matrix(versions: Sequence[Column]) -> list[dict[str, Any]]:
    """Operators by version, those that are red somewhere first."""
    counted = [counts(column.records) for column in versions]
    rows = []
    for op in sorted({op for each in counted for op in each}, key=lambda o: o.lower()):
        cells = [each.get(op) for each in counted]
        present = {str(s) for row in cells if row for s in STATUSES if row[str(s)]}
        bad = any(MARKS[s].tone == "bad" and str(s) in present for s in STATUSES)
        rows.append(
            {"op": op, "bad": bad, "terms": " ".join([op.lower(), *sorted(present)]), "cells": [cell(c) for c in cells]}
        )
    return sorted(rows, key=lambda r: not r["bad"])


def document(columns: Sequence[Column], known: Sequence[Known]) -> dict[str, Any]:
    """What the pages show, as plain values."""
    body: dict[str, Any] = {"schema": "opgauge.site/1", "result": "" if columns else NO_RESULT, "runtimes": {}}
    for name, versions in runtimes(columns).items():
        body["runtimes"][name] = {"versions": summary(versions), "steps": steps(versions)}
    body["deviations"] = [vars(row) for row in known]
    return body


def pages(columns: Sequence[Column], known: Sequence[Known], title: str, reports: Mapping[str, str]) -> dict[str, str]:
    """File name -> content. `reports` are pages of whole runs by the run's name, already written."""
    names = {name: f"runtime-{index}-{slug(name)}.html" for index, name in enumerate(runtimes(columns), 1)}
    body = document(columns, known)
    shared = {"title": title, "files": names, "reports": reports, "marks": {str(s): m for s, m in MARKS.items()}}
    found = {"data.json": json.dumps(body, indent=1, ensure_ascii=False) + "\n"}
    found["index.html"] = _page({**shared, "page": "index", "heading": title, "body": body})
    for name, versions in runtimes(columns).items():
        entry = {"name": name, "versions": body["runtimes"][name]["versions"], "steps": body["runtimes"][name]["steps"]}
        mine = [row for row in known if row.runtime == versions[0].runtime]
        context = {"page": "runtime", "heading": name, "entry": entry, "rows": matrix(versions), "known": mine}
        found[names[name]] = _page({**shared, **context}, [v.version for v in versions])
    found["deviations.html"] = _page({**shared, "page": "deviations", "heading": "Known deviations", "known": known})
    return found


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "backend"


def _page(context: Mapping[str, Any], columns: Sequence[str] = ("",)) -> str:
    return page("site.html.j2", {**context, "no_result": NO_RESULT, "anchor": anchor, "shown": SHOWN}, columns)
