"""The public API: judge outputs of your own, run suites from Python. Typed; everything here is documented in docs/.

from opgauge.api import assert_within_set, check, run
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from opgauge.backends import informative
from opgauge.reference_engine import lower
from opgauge.reference_engine.errors import ModelError, OpgaugeError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.types import (
    FINDINGS,
    Array,
    Exact,
    Finding,
    Observation,
    Policy,
    Record,
    Status,
    Verdict,
)
from opgauge.reports.legend import acceptance, element
from opgauge.reports.tables import offending, relation, wider

from .oracles import judge

if TYPE_CHECKING:
    from . import frames

Model = bytes | onnx.ModelProto | str | PathLike[str]
Tensors = Mapping[str, Array] | Sequence[Array] | Array


class InputError(OpgaugeError):
    """Inputs or outputs that do not belong to the model."""


@dataclass(frozen=True)
class Report:
    """What the oracle says about outputs. `sets` holds the acceptance set of each output, in graph order."""

    verdict: Verdict
    sets: tuple[Exact, ...]

    @property
    def status(self) -> Status:
        return self.verdict.status

    @property
    def within(self) -> bool:
        """No element lies outside its set. True for `untrusted` too: look at `status`."""
        return self.verdict.status not in FINDINGS

    def __str__(self) -> str:
        verdict = self.verdict
        said = f"{verdict.status}: {verdict.message or verdict.explained}"
        counts = f"{verdict.elements} elements, {verdict.outside} outside, {verdict.undecided} undecided"
        return "\n".join([f"{said} ({counts})", *evidence(verdict.detail)])


def evidence(detail: Mapping[str, Any]) -> list[str]:
    """Lines that say which elements are wrong, what was right, and which policy would explain them."""
    lines = []
    for row in offending(detail):
        line = f"  [{element(row['index'])}] expected {acceptance(row['expected'])}, got {element(row['got'])}"
        if row["tie_distance"] is not None:
            line += f"; real {element(row['real'])}, {element(row['tie_distance'])} from the nearest tie"
        lines.append(line)
    lines += [f"  {said}" for said in (relation(detail), wider(detail)) if said]
    return lines


def model_bytes(model: Model) -> bytes:
    """A ModelProto's bytes, from the bytes, the proto or a path. Raises: InputError."""
    if isinstance(model, bytes | bytearray):
        return bytes(model)
    if isinstance(model, onnx.ModelProto):
        return model.SerializeToString()
    try:
        return Path(model).read_bytes()
    except OSError as error:
        raise InputError(f"model {str(model)!r} cannot be read: {error.strerror}") from error


def named_inputs(model: bytes, inputs: Tensors) -> dict[str, Array]:
    """Run-time inputs by name; a sequence is in the order of the graph's inputs that are no initializers.

    Raises: InputError naming what is missing or not known.
    """
    graph = onnx.ModelProto.FromString(model).graph
    stored = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    names = [i.name for i in graph.input if i.name not in stored]
    return _named(inputs, names, "inputs")


def ordered_outputs(model: bytes, outputs: Tensors) -> tuple[Array, ...]:
    """Outputs in graph order. Raises: InputError."""
    names = [o.name for o in onnx.ModelProto.FromString(model).graph.output]
    if isinstance(outputs, Mapping):
        named = _named(outputs, names, "outputs")
        return tuple(named[name] for name in names)
    # Too few or too many are the runtime's mistake, and the oracle says so.
    listed = [outputs] if isinstance(outputs, np.ndarray | np.generic) else outputs
    return tuple(np.asarray(o) for o in listed)


def _named(tensors: Tensors, names: Sequence[str], what: str) -> dict[str, Array]:
    if not isinstance(tensors, Mapping):
        listed = [tensors] if isinstance(tensors, np.ndarray | np.generic) else list(tensors)
        if len(listed) != len(names):
            raise InputError(f"{len(listed)} {what} for a model that has {len(names)}: {', '.join(names) or 'none'}")
        tensors = dict(zip(names, listed, strict=True))
    if set(tensors) != set(names):
        wrong = sorted(set(tensors) ^ set(names))[0]
        state = "is missing" if wrong in names else "is not the model's"
        raise InputError(f"{what}: {wrong!r} {state}; the model has {', '.join(names) or 'none'}")
    return {name: np.asarray(array) for name, array in tensors.items()}


def check(model: Model, inputs: Tensors, outputs: Tensors, *, policy: Policy | None = None) -> Report:
    """Are these the outputs that an honest runtime may return for this model and these inputs?

    `model` is a ModelProto, its bytes or a path; `inputs` and `outputs` are by name or in graph order. `policy` is
    what the runtime declares about its rounding (docs/numerics.md, N10); the default is the standard's own.

    Raises: ModelError when the model is not legal or holds an operator that is not lowered; InputError.
    """
    data = model_bytes(model)
    given, observed = named_inputs(data, inputs), Observation(Status.PASS, ordered_outputs(data, outputs))
    declared = policy or Policy()
    graph = lower.lower(data, given)
    sets = evaluate(graph, given, declared)
    # Outputs that other outputs are computed from count as returned (DynamicQuantizeLinear).
    forced = {
        i: observed.outputs[i]
        for i in graph.forced
        if i < len(observed.outputs)
        and observed.outputs[i].shape == sets[i].value.shape
        and observed.outputs[i].dtype == sets[i].value.dtype
    }
    if forced:
        sets = evaluate(graph, given, declared, forced)
    return Report(judge(sets, observed, declared), tuple(sets))


def assert_within_set(actual: Tensors, model: Model, inputs: Tensors, *, policy: Policy | None = None) -> Report:
    """Raise AssertionError unless every element of `actual` lies in its acceptance set.

    The message lists elements, what was expected and the rounding policy that would explain them. Nothing is
    compared with a tolerance: see docs/numerics.md.
    """
    __tracebackhide__ = True
    report = check(model, inputs, actual, policy=policy)
    if not report.within:
        raise AssertionError(str(report))
    return report


@dataclass(frozen=True)
class Run:
    """The records of a run and its findings. `errors` are opgauge's own: with any of them the run proves nothing."""

    records: tuple[Record, ...]
    findings: tuple[Finding, ...]
    errors: tuple[str, ...]
    backends: Mapping[str, Mapping[str, str]]

    def frame(self) -> frames.pd.DataFrame:
        """One row a record (`opgauge.frames.frame`)."""
        from . import frames as tables

        return tables.frame(self.records)


def run(
    backends: Sequence[str] = ("cpu", "onnxruntime"),
    *,
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    k: str = "",
    budget: int = 100,
    seed: int = 0,
    jobs: int = 1,
    timeout_s: float = 20.0,
) -> Run:
    """What `opgauge run` does, without files: suite rows on backends, each kernel in a process of its own.

    Starts processes, so a script must call it under `if __name__ == "__main__":`.

    Raises: SelectionError, UnknownBackendError naming close matches.
    """
    from opgauge import suites

    from . import gate, generate
    from . import run as supervisor

    specs = supervisor.specs(backends)
    rows = generate.select(suites.cases(), ops, dtypes, k)
    tasks = [supervisor.Task("row", (row.name,)) for row in rows]
    settings = supervisor.Settings(tuple(s.text for s in specs), budget, seed, timeout_s, shrink=False)
    records: list[Record] = []
    outcome = supervisor.run(tasks, settings, jobs, records.append)
    found = gate.findings(records, informative([s.text for s in specs]))
    return Run(tuple(records), tuple(found), tuple(outcome.errors), outcome.backends)


__all__ = ["InputError", "ModelError", "Report", "Run", "assert_within_set", "check", "run"]
