"""Failures that somebody is at work on: `[[quarantine]]` rows of expectations.toml, for two weeks at most.

A row changes no verdict: what it names stays a finding, red and with exit 1, and says who looks after it. A row that
has expired is a finding of its own.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opgauge.backends import OURS
from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.types import Finding, Record

KEYS = ("id", "operators", "runtime", "owner", "issue", "expires", "case", "reason")
OPTIONAL = ("case", "reason")
LONGEST = datetime.timedelta(days=14)


@dataclass(frozen=True)
class Quarantine:
    """`case` is a regular expression found in the case id, empty for every case of the operators."""

    id: str
    operators: tuple[str, ...]
    runtime: str
    owner: str
    issue: str
    expires: datetime.date
    case: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"quarantine {self.id}: {self.owner}, {self.issue}, until {self.expires}"


def today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def parse(listed: Any, name: str, now: datetime.date) -> tuple[Quarantine, ...]:
    """Raises: BaselineError naming the row and what is wrong."""
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise BaselineError(f"{name}: write each quarantine as a table of its own: [[quarantine]]")
    rows = tuple(_row(entry, f"{name}: quarantine {entry.get('id', i)!r}", now) for i, entry in enumerate(listed))
    ids = [row.id for row in rows]
    if doubled := {i for i in ids if ids.count(i) > 1}:
        raise BaselineError(f"{name}: quarantine id {sorted(doubled)[0]!r} appears twice")
    return rows


def _row(entry: Mapping[str, Any], where: str, now: datetime.date) -> Quarantine:
    if missing := [k for k in KEYS if k not in entry and k not in OPTIONAL]:
        raise BaselineError(f"{where}: {missing[0]!r} is missing")
    if extra := sorted(set(entry) - set(KEYS)):
        raise BaselineError(f"{where}: unknown key {extra[0]!r}; known: {', '.join(KEYS)}")
    named, expires = entry["operators"], entry["expires"]
    if not isinstance(named, list) or not named or not all(isinstance(op, str) for op in named):
        raise BaselineError(f"{where}: operators = {named!r:.80} is not a list of names")
    if type(expires) is not datetime.date:
        raise BaselineError(f"{where}: expires = {expires!r:.80} is not a date like 2027-01-31, without quotes")
    if expires - now > LONGEST:
        raise BaselineError(f"{where}: expires {expires}, more than {LONGEST.days} days ahead: take an earlier date")
    words = {key: entry.get(key, "") for key in KEYS if key not in ("operators", "expires")}
    for key, value in words.items():
        if not isinstance(value, str) or (key not in OPTIONAL and not value.strip()):
            raise BaselineError(f"{where}: {key} = {value!r:.80} says nothing")
    if words["runtime"] in OURS:
        raise BaselineError(f"{where}: our own backends are mended, not put aside")
    try:
        re.compile(words["case"])
    except re.error as error:
        raise BaselineError(f"{where}: case: {error}") from error
    return Quarantine(operators=tuple(named), expires=expires, **words)


def of(record: Record, runtime: str, rows: Sequence[Quarantine], now: datetime.date) -> Quarantine | None:
    """The row that names this record's failure, unless it has expired."""
    for row in rows:
        named = row.expires >= now and row.runtime == runtime and record.op in row.operators
        if named and re.search(row.case, record.case):
            return row
    return None


def expired(rows: Sequence[Quarantine], now: datetime.date) -> list[Finding]:
    return [
        Finding("quarantine", row.id, f"expired on {row.expires}: {row.owner}, {row.issue}: mend it or decide again")
        for row in rows
        if row.expires < now
    ]
