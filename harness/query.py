"""Records by SQL: an SQLite index beside the journal, made again whenever the journal is newer."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.types import Record

from . import store

INDEX = "index.sqlite"
COLUMNS = tuple(f.name for f in fields(Record))
_SQL_TYPES = {"int": "INTEGER", "float": "REAL"}
# Reading, and the functions of SQLite itself; no ATTACH, no PRAGMA, no write.
_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)


class Rows(NamedTuple):
    """The answer to a query."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def index(journal: Path) -> Path:
    """The index of a journal: one table `records`. Raises: BaselineError."""
    made = journal.with_name(INDEX)
    if made.exists() and made.stat().st_mtime_ns > journal.stat().st_mtime_ns:
        return made
    records = store.read(journal).records
    scratch = made.with_name(f".{INDEX}-{os.getpid()}")
    scratch.unlink(missing_ok=True)
    connection = sqlite3.connect(scratch)
    with connection:
        described = ", ".join(f'"{f.name}" {_SQL_TYPES.get(str(f.type), "TEXT")}' for f in fields(Record))
        connection.execute(f"CREATE TABLE records ({described})")
        places = ", ".join("?" * len(COLUMNS))
        connection.executemany(f"INSERT INTO records VALUES ({places})", map(_row, records))
    connection.close()
    scratch.replace(made)
    os.utime(made)
    return made


def _row(record: Record) -> list[Any]:
    values = (getattr(record, name) for name in COLUMNS)
    return [json.dumps(store.plain(v)) if hasattr(v, "keys") else v for v in values]


def ask(journal: Path, sql: str, parameters: Sequence[Any] = ()) -> Rows:
    """The rows of a SELECT on `records`. Raises: BaselineError with SQLite's own words."""
    connection = sqlite3.connect(f"{index(journal).as_uri()}?mode=ro", uri=True)
    try:
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY)
        cursor = connection.execute(sql, tuple(parameters))
        return Rows(tuple(name for name, *_ in cursor.description or ()), cursor.fetchall())
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise BaselineError(f"query {sql!r:.200}: {error}; columns: {', '.join(COLUMNS)}") from error
    finally:
        connection.close()
