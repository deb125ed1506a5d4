"""One case again in fresh processes: what the reference accepts, what the backend gave, whether its bits repeat."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from opgauge import suites
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.errors import CaseError, ModelError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Array, Observation, Record, Status

from . import check, expectations, model, oracles, statistics
from .client import Client

NODE_TEST = "onnx-node/"
SHOWN = oracles.SHOWN
COLUMNS = ("index", "expected", "got", "real", "tie_distance")


def subject_from(text: str) -> check.Subject:
    """The case that an id spells, a file holds or onnx brings. Raises: CaseError."""
    if text.startswith(NODE_TEST):
        test = check.node_test(text.removeprefix(NODE_TEST))
        if test is None:
            raise CaseError(f"{text}: the installed onnx has no such node test on operators that are lowered")
        return check.Subject(text, "repro", test.op, "node", "onnx-node", test.model, test.inputs)
    path = Path(text)
    if path.suffix in (".json", ".onnx", ".npz"):
        data, inputs, meta = model.load_saved(path)
        case, label = parse_id(meta["id"])
        return check.Subject(meta["id"], "repro", case.op, label, case.profile, data, inputs)
    case, label = parse_id(text)
    return check.subject_of(case, label, "repro")


def digest(outputs: Sequence[Array]) -> str:
    """The same for the same dtypes, shapes and bits."""
    total = hashlib.sha256()
    for y in outputs:
        total.update(f"{y.dtype}{y.shape}".encode() + y.tobytes())
    return total.hexdigest()[:16]


def reproduce(text: str, clients: Sequence[Client], emit: Callable[[Record], None], after: Sequence[str] = ()) -> None:
    """One record per backend; its detail tells `bits`, `same_bits` in a second process, and `elements_shown`.

    Each process does the cases of `after` before.
    """
    if text.startswith(statistics.PREFIX):
        _row_again(text, clients, emit)
        return
    subject = subject_from(text)
    earlier = [subject_from(one) for one in after]
    rows = expectations.load()
    for client in clients:
        for one in earlier:
            _ask(client, one)
        found = check.check(subject, [client], rows)[0]
        with Client(client.spec, client.timeout_s) as other:
            first, again = ([_ask(c, one) for one in (*earlier, subject)][-1] for c in (client, other))
        detail: dict[str, Any] = {"inputs": {k: f"{v.dtype}{list(v.shape)}" for k, v in subject.inputs.items()}}
        if first.status is Status.PASS:
            same = again.status is Status.PASS and digest(first.outputs) == digest(again.outputs)
            detail |= {"bits": digest(first.outputs), "same_bits": same}
            detail["elements_shown"] = _elements(subject, client, first)
        emit(replace(found, detail={**found.detail, **detail}))


def _row_again(text: str, clients: Sequence[Client], emit: Callable[[Record], None]) -> None:
    """The statistics of a whole row, `statistics/OP/LABEL/bBUDGET/sSEED`. Raises: CaseError."""
    match = re.fullmatch(rf"{statistics.PREFIX}(\S+)/b(\d+)/s(\d+)", text)
    rows = {row.name: row for row in suites.cases()}
    if not match or match[1] not in rows:
        raise CaseError(f"{text[:200]!r} names no row of the suite: statistics/OPERATOR/TYPES/b100/s0")
    budget, seed = int(match[2]), int(match[3])
    check.check_row(
        rows[match[1]], budget, seed, clients, lambda r: emit(r) if r.suite == "statistics" else None, None, False
    )


def _ask(client: Client, subject: check.Subject) -> Observation:
    client.submit(subject.case, subject.model, subject.inputs)
    return client.receive()


def _elements(subject: check.Subject, client: Client, seen: Observation) -> list[dict[str, Any]]:
    """Set and result of the first elements outside the set, or of the first ones where none is."""
    try:
        exacts = evaluate(lower(subject.model, subject.inputs), subject.inputs, client.spec.policy)
    except ModelError:
        return []
    shown: list[dict[str, Any]] = []
    for i, (exact, y) in enumerate(zip(exacts, seen.outputs, strict=False)):
        if y.shape == exact.value.shape and y.dtype == exact.value.dtype:
            picked = ~oracles.inside_set(exact, y)
            if not picked.any():
                picked = np.arange(y.size).reshape(y.shape) < SHOWN
            told = oracles.explain(exact, y, picked, client.spec.policy)
            columns = [told.get(k) or [None] * SHOWN for k in COLUMNS]
            shown += [{"output": i, **dict(zip(COLUMNS, row, strict=True))} for row in zip(*columns, strict=False)]
    return shown
