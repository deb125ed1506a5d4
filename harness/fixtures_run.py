"""Exported cases on a backend of opgauge: the outputs as a runtime in another language would write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from opgauge.backends import resolve
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import CaseError
from opgauge.reference_engine.types import Array, Status

from . import fixtures
from .client import Client


def index(folder: Path) -> dict[str, Any]:
    """Raises: CaseError."""
    try:
        found = json.loads((folder / "index.json").read_text("utf-8"))
        if found["schema"] != fixtures.SCHEMA:
            raise ValueError(f"schema {found['schema']!r}, expected {fixtures.SCHEMA}")
        return dict(found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CaseError(f"{folder} holds no fixtures: {error}") from error


def inputs_of(entry: dict[str, Any], data: bytes) -> dict[str, Array]:
    found = {}
    for each in entry["inputs"]:
        kind, shape = dt.numpy_dtype(each["type"]), tuple(each["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        found[each["name"]] = np.frombuffer(data, kind, count, each["offset"]).reshape(shape)
    return found


def run(folder: Path, outputs: Path, backend: str, timeout_s: float) -> tuple[int, int]:
    """(cases with outputs, cases without). Raises: CaseError."""
    entries = index(folder)["cases"]
    outputs.mkdir(parents=True, exist_ok=True)
    written = 0
    with Client(resolve(backend), timeout_s) as client:
        for entry in entries:
            stem = folder / "cases" / entry["number"]
            feeds = inputs_of(entry, stem.with_suffix(".in").read_bytes())
            client.submit(entry["id"], stem.with_suffix(".onnx").read_bytes(), feeds, repeats=1)
            seen = client.receive()
            if seen.status is Status.PASS:
                (outputs / f"{entry['number']}.raw").write_bytes(fixtures.raw(seen.outputs))
                written += 1
    return written, len(entries) - written
