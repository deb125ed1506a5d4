"""Cases as files, for runtimes that cannot be called from Python: model, inputs, and the set of each output element.

A folder holds `index.json` (its form is reports/schema/fixtures-1.json), `cases/NNNN.onnx`, `NNNN.in` (inputs one after
another, little-endian), `NNNN.set` (what is accepted) and the two readers, which judge with two compares. The same
version and arguments give the same bytes.

A set file: `OPGSET1` and a newline, the number of outputs, and for each its ONNX element type, rank, ranges for each
element and dimensions, all uint32, then float64 pairs lo, hi: y is accepted where lo <= y <= hi for one of the ranges
of its element. A pair of NaN accepts NaN alone. An enumerated set is one range lo = hi for each member.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import ModelError, OpgaugeError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Array, Case, CaseSpec, Exact, Observation, Policy, Status

from . import check, generate
from .oracles import judge

SCHEMA = "opgauge.fixtures/1"
MAGIC = b"OPGSET1\n"
READERS = ("reader.py", "reader.c")
# What both readers know, by ONNX's number.
TYPES = frozenset("float32 float64 float16 bfloat16 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool".split())
EXACT = 1 << 53  # larger integers are no float64
OUTPUT_ELEMENTS, INPUT_BYTES = 256, 4096
QUANTIZED = re.compile(r"QLinear|Quantize|Integer|QGemm|NBits|QDQ|DQ|Requantize|GatherBlock")


class NoFixturesError(OpgaugeError):
    """No case of the selection can be exported."""


@dataclass(frozen=True)
class Fixture:
    """One case ready to be written."""

    case: str
    op: str
    domain: str
    quantized: bool
    model: bytes
    inputs: tuple[tuple[str, Array], ...]
    exacts: tuple[Exact, ...]
    names: tuple[str, ...]
    opsets: tuple[tuple[str, int], ...]


def fixture_of(case: Case, label: str) -> Fixture | None:
    """The case as a fixture; None where it is too large, undecided in places, proves nothing, or no reader knows it."""
    subject = check.subject_of(case, label)
    if sum(x.nbytes for x in subject.inputs.values()) > INPUT_BYTES:
        return None
    if any(dt.word_of(x.dtype) not in TYPES for x in subject.inputs.values()):
        return None
    try:
        graph = lower(subject.model, subject.inputs)
        exacts = evaluate(graph, subject.inputs)
    except ModelError:
        return None
    if graph.forced or not all(map(_portable, exacts)) or sum(e.value.size for e in exacts) > OUTPUT_ELEMENTS:
        return None
    if judge(exacts, Observation(Status.PASS, tuple(e.value for e in exacts)), Policy()).status is not Status.PASS:
        return None
    model = onnx.load_from_string(subject.model)
    return Fixture(
        subject.case,
        case.op,
        case.domain,
        bool(QUANTIZED.search(f"{case.domain}::{case.op}")),
        model.SerializeToString(deterministic=True),
        tuple(subject.inputs.items()),
        exacts,
        tuple(o.name for o in model.graph.output),
        tuple(sorted((e.domain, e.version) for e in model.opset_import)),
    )


def _portable(exact: Exact) -> bool:
    """Every element decided, and every bound a float64."""
    if exact.dtype not in TYPES or exact.also is not None or (exact.free is not None and exact.free.any()):
        return False
    if exact.dtype in ("int64", "uint64"):
        return all(bool((np.abs(b.astype(np.float64)) < EXACT).all()) for b in (exact.lo, exact.hi, *exact.members))
    return True


def ranges_of(exact: Exact) -> Array:
    """[elements, ranges, 2] float64: what is accepted of each element."""
    if exact.members:
        each = [m.astype(np.float64).ravel() for m in exact.members]
        pairs = np.stack([np.stack([m, m], -1) for m in each], 1)
    else:
        source = (exact.value, exact.value) if exact.dtype == "bool" else (exact.lo, exact.hi)
        pairs = np.stack([b.astype(np.float64).ravel() for b in source], -1)[:, None, :]
    if exact.nan is not None:
        pairs = np.where(exact.nan.reshape(-1, 1, 1), np.nan, pairs)
    return np.ascontiguousarray(pairs)


def set_bytes(exacts: Sequence[Exact]) -> bytes:
    parts = [MAGIC, struct.pack("<I", len(exacts))]
    for exact in exacts:
        ranges, shape = ranges_of(exact), exact.value.shape
        parts.append(struct.pack(f"<3I{len(shape)}I", dt.ONNX[exact.dtype], len(shape), ranges.shape[1], *shape))
        parts.append(ranges.astype("<f8").tobytes())
    return b"".join(parts)


def raw(arrays: Sequence[Array]) -> bytes:
    """Tensors one after another, as `NNNN.in` and a runtime's `NNNN.raw` hold them."""
    return b"".join(x.astype(x.dtype.newbyteorder("<"), copy=False).tobytes() for x in arrays)


def collect(
    rows: Sequence[CaseSpec], per_row: int, quantized_per_row: int, seed: int, done: Callable[[int], None]
) -> list[Fixture]:
    """The first cases of each row that can be exported, in the order of the suite."""
    found: list[Fixture] = []
    for number, row in enumerate(rows):
        mine: list[Fixture] = []
        wanted = quantized_per_row if QUANTIZED.search(f"{row.domain}::{row.op}") else per_row

        def visit(_: str, case: Case, row: CaseSpec = row, mine: list[Fixture] = mine, wanted: int = wanted) -> None:
            if len(mine) < wanted and (made := fixture_of(case, row.label)) is not None:
                mine.append(made)

        # Every third drawn case is too large or undecided somewhere; a row may give fewer than asked.
        generate.explore(row, 3 * wanted, seed, visit)
        found += mine
        done(number + 1)
    return found


def index_of(fixtures: Sequence[Fixture], version: str) -> dict[str, Any]:
    """What index.json holds."""
    return {
        "schema": SCHEMA,
        "version": version,
        "policy": str(Policy()),
        "quantized": sum(f.quantized for f in fixtures),
        "operators": dict(sorted(Counter(f"{f.domain}::{f.op}" if f.domain else f.op for f in fixtures).items())),
        "cases": [_entry(f, i) for i, f in enumerate(fixtures)],
    }


def _entry(fixture: Fixture, number: int) -> dict[str, Any]:
    inputs, at = [], 0
    for name, x in fixture.inputs:
        inputs.append({"name": name, "type": dt.word_of(x.dtype), "shape": list(x.shape), "offset": at})
        at += x.nbytes
    return {
        "number": f"{number:04d}",
        "id": fixture.case,
        "op": fixture.op,
        "domain": fixture.domain,
        "opsets": dict(fixture.opsets),
        "quantized": fixture.quantized,
        "inputs": inputs,
        "outputs": [
            {"name": name, "type": e.dtype, "shape": list(e.value.shape), "elements": math.prod(e.value.shape)}
            for name, e in zip(fixture.names, fixture.exacts, strict=True)
        ],
    }


def write(fixtures: Sequence[Fixture], folder: Path, version: str) -> int:
    """Write all files; how many bytes. Raises: NoFixturesError, OpgaugeError where other files are in the way."""
    if not fixtures:
        raise NoFixturesError("no case of the selection can be exported")
    cases = folder / "cases"
    if folder.exists() and any(folder.iterdir()) and not (folder / "index.json").is_file():
        raise OpgaugeError(f"{folder} holds other files: name an empty folder or one of fixtures")
    cases.mkdir(parents=True, exist_ok=True)
    for old in cases.iterdir():
        old.unlink()
    total = 0
    files = {folder / name: (resources.files("opgauge.readers") / name).read_bytes() for name in READERS}
    for i, fixture in enumerate(fixtures):
        files[cases / f"{i:04d}.onnx"] = fixture.model
        files[cases / f"{i:04d}.in"] = raw([x for _, x in fixture.inputs])
        files[cases / f"{i:04d}.set"] = set_bytes(fixture.exacts)
    document = json.dumps(index_of(fixtures, version), indent=1, sort_keys=True, allow_nan=False) + "\n"
    files[folder / "index.json"] = document.encode()
    for path, data in files.items():
        path.write_bytes(data)
        total += len(data)
    return total
