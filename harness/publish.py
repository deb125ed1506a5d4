"""Stored runs and recorded deviations as the values that the static site shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from opgauge.backends import resolve
from opgauge.reference_engine.errors import OpgaugeError
from opgauge.reference_engine.types import Record
from opgauge.reports.site import Column, Known, pages, slug

from . import expectations

STORED = "onnx-stored"


def columns(run: str, records: Sequence[Record], meta: Mapping[str, Any]) -> list[Column]:
    """One column for each backend of a run."""
    by_backend: dict[str, list[Record]] = {}
    for record in records:
        if record.backend != STORED:
            by_backend.setdefault(record.backend, []).append(_anonymous(record))
    machine = meta.get("machine") or {}
    where = ", ".join(str(machine[k]) for k in ("cpu", "os", "platform") if machine.get(k))
    found = []
    for backend, mine in by_backend.items():
        info = (meta.get("backends") or {}).get(backend) or {}
        runtime, options, version = named(backend)
        # A build's number and branch say nothing that a release's name does not.
        told = version or str(info.get("version", "")).partition("-")[0]
        found.append(Column(runtime, options, told, backend, run, str(meta.get("started", "")), where, tuple(mine)))
    return found


_PATH = re.compile(r"~?(?:/[\w.+~@-]+){2,}/(?=[\w.+-]+)")


def _anonymous(record: Record) -> Record:
    """Without the folders of this machine: what is published keeps the names of files only."""
    message = _PATH.sub("…/", record.message)
    return record if message == record.message else replace(record, message=message)


def named(backend: str) -> tuple[str, str, str]:
    """(runtime, options, version that its name asks for) of `onnxruntime==1.24.4:level=basic`."""
    head, _, options = backend.partition(":")
    runtime, _, version = head.partition("==")
    try:
        table = resolve(backend).kind == "table"
    except OpgaugeError:
        table = True
    return (runtime, options, version) if table else (backend, "", "")


def corpus() -> list[Known]:
    """The recorded deviations, shipped and the user's own."""
    return [
        Known(r.id, r.runtime, r.versions, r.operators, r.when, r.predicate or r.instead, r.reason, r.link, r.witness)
        for r in expectations.load()
    ]


def write(folder: Path, found: Sequence[Column], title: str, reports: Mapping[str, str] = {}) -> list[Path]:
    """The site's files; `reports` are whole reports by run name. Files of an earlier site stay where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {run: f"run-{slug(run)}.html" for run in reports}
    made = {names[run]: text for run, text in reports.items()}
    made |= pages(found, corpus(), title, names)
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in made]
