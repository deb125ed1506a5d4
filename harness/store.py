"""The journal of a run: append-only JSON lines, each with the CRC32 of its entry, synchronised batch by batch.

{"crc":"9a1b2c3d","entry":{"kind":"record",...}}
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.types import Record, Status
from opgauge.reports.jsonfile import plain

HOME = Path(".opgauge") / "runs"
JOURNAL = "journal.jsonl"
LATEST = "latest"
_HEAD, _MIDDLE, _TAIL = b'{"crc":"', b'","entry":', b"}\n"
_START = len(_HEAD) + 8 + len(_MIDDLE)
_TYPES: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str, "Status": str}
BATCH_LINES, BATCH_S = 512, 1.0


def record_to_dict(record: Record) -> dict[str, Any]:
    """Fields that say nothing are left out."""
    values = ((f, getattr(record, f.name)) for f in fields(Record))
    return {f.name: plain(v) for f, v in values if not (v == f.default or v == {})}


@cache
def _record_fields() -> dict[str, str]:
    return {f.name: str(f.type) for f in fields(Record)}


def record_from_dict(entry: Mapping[str, Any]) -> Record:
    """Raises: BaselineError naming the field that is missing, unknown or of a wrong type."""
    kinds = _record_fields()
    for name, value in entry.items():
        wanted = _TYPES.get(kinds.get(name, ""), dict)
        if name not in kinds or not isinstance(value, wanted) or isinstance(value, bool):
            raise BaselineError(f"record field {name!r} = {value!r:.80} is not one that a record has")
    try:
        return Record(**{**entry, "status": Status(entry["status"])})
    except (KeyError, TypeError, ValueError) as error:
        raise BaselineError(f"not a record: {error}") from error


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError(f"a key is there twice among {[k for k, _ in pairs]!r:.200}")
    return result


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)  # json.loads makes one each time


def strict_json(text: str | bytes, where: str) -> Any:
    """JSON without duplicate keys, NaN, infinities or lone surrogates. Raises: BaselineError."""
    try:
        value = _DECODER.decode(text.decode() if isinstance(text, bytes) else text)
        if b"\\ud" in (text if isinstance(text, bytes) else text.encode()).lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"{where}: {error}") from error


def line_of(entry: Mapping[str, Any]) -> bytes:
    body = json.dumps(entry, allow_nan=False, separators=(",", ":")).encode()
    return b"%s%08x%s%s%s" % (_HEAD, zlib.crc32(body), _MIDDLE, body, _TAIL)


def timeless(record: Record) -> bytes:
    """The line of a record without what differs between two runs of one case: times, and where files were saved."""
    detail = {key: value for key, value in record.detail.items() if key not in ("times_ns", "saved")}
    return line_of({"kind": "record", **plain(record_to_dict(replace(record, us=0.0, detail=detail)))})


def parse_line(line: bytes, where: str) -> dict[str, Any]:
    """The entry of a complete line. Raises: BaselineError where its bytes are not those that were written."""
    body = line[_START : -len(_TAIL)]
    expected = b"%s%08x%s%s%s" % (_HEAD, zlib.crc32(body), _MIDDLE, body, _TAIL)
    if line != expected:
        raise BaselineError(f"{where}: damaged (its CRC32 does not match): restore the file or remove the line")
    entry = strict_json(body, where)
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        raise BaselineError(f"{where}: not an entry of a journal")
    return entry


class Journal:
    """An open journal. `append` returns at once; an entry is safe on disk after the next `flush`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Unbuffered: what was appended survives the death of this process, flush protects from that of the machine.
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        self._pending, self._flushed = 0, time.monotonic()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, kind: str, entry: Mapping[str, Any]) -> None:
        self._file.write(line_of({"kind": kind, **plain(entry)}))
        self._pending += 1
        if self._pending >= BATCH_LINES or time.monotonic() - self._flushed > BATCH_S:
            self.flush()

    def record(self, record: Record) -> None:
        self.append("record", record_to_dict(record))

    def flush(self) -> None:
        getattr(os, "fdatasync", os.fsync)(self._file.fileno())
        self._pending, self._flushed = 0, time.monotonic()

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()


def create(home: Path = HOME, clock: Callable[[], float] = time.time) -> Journal:
    """A new journal in a folder named by the time, and `latest` pointing to it."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(clock()))
    home.mkdir(parents=True, exist_ok=True)
    for attempt in range(1000):
        folder = home / (f"{stamp}-{attempt}" if attempt else stamp)
        try:
            folder.mkdir()
            break
        except FileExistsError:
            continue
    pointer = home / f".{LATEST}-{os.getpid()}"
    pointer.write_text(folder.name + "\n")
    pointer.replace(home / LATEST)
    return Journal(folder / JOURNAL)


def latest(home: Path = HOME) -> Path:
    """The journal of the last run. Raises: BaselineError where there is none."""
    try:
        name = (home / LATEST).read_text().strip()
    except OSError:
        raise BaselineError(f"no run in {home}: start one with `opgauge run`") from None
    if Path(name).name != name:
        raise BaselineError(f"{home / LATEST} points to {name!r}, outside its folder")
    return home / name / JOURNAL


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """All entries in order. A torn last line is skipped: its batch was never acknowledged.

    Raises: BaselineError naming the line that is damaged anywhere else.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            yield parse_line(line, f"{path}:{number}")


def reopen(path: Path) -> Journal:
    """An existing journal to append to; a torn last line is cut off first."""
    with open(path, "r+b") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
    return Journal(path)


class Contents(NamedTuple):
    """What a journal holds: the run's own entry, its records, and every other entry."""

    run: dict[str, Any]
    records: list[Record]
    others: list[dict[str, Any]]


def read(path: Path) -> Contents:
    """Raises: BaselineError."""
    run: dict[str, Any] = {}
    records, others = [], []
    for entry in entries(path):
        if (kind := entry["kind"]) not in ("run", "record"):
            others.append(entry)
            continue
        del entry["kind"]
        if kind == "run":
            run = entry
        else:
            records.append(record_from_dict(entry))
    return Contents(run, records, others)
