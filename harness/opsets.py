"""The opset sweep: one case at every version of its operator; results agree where the meaning did not change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import FINDINGS, Array, Case, CaseSpec, Exact, Record, Status
from opgauge.suites.versions import opsets as opsets

from . import check, expectations, generate
from .client import Client
from .oracles import inside_set

SUITE = "opsets"


def always(case: Case) -> bool:
    return True


def _broadcasts(case: Case) -> bool:
    shapes = [arg.shape for arg in case.args if not arg.absent]
    return len(set(shapes)) > 1


def _has(*names: str) -> Callable[[Case], bool]:
    """One of the attributes is stated."""
    return lambda case: any(name in names for name, _ in case.attrs)


def _has_mask(case: Case) -> bool:
    return len(case.outputs) > 1


def _half(case: Case) -> bool:
    return any(arg.dtype in ("float16", "bfloat16") for arg in case.args)


@dataclass(frozen=True)
class Change:
    """From opset `since` on the same node means something else, for the cases that `when` holds of."""

    ops: tuple[str, ...]
    since: int
    what: str
    when: Callable[[Case], bool] = always
    source: str = "ONNX Changelog"


CHANGES: tuple[Change, ...] = (
    Change(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"), 7,
           "shapes broadcast as in numpy instead of by the attributes axis and broadcast", _broadcasts),
    Change(("Gemm",), 7, "C broadcasts by itself", _broadcasts),
    Change(("Max", "Min", "Mean", "Sum"), 8, "operands broadcast", _broadcasts),
    Change(("PRelu",), 9, "slope broadcasts to X instead of being one number or one per channel", _broadcasts),
    Change(("BatchNormalization",), 9, "no form without spatial"),
    Change(("BatchNormalization",), 14, "outputs of training", _has("training_mode")),
    Change(("Resize",), 11, "coordinates by coordinate_transformation_mode instead of x / scale"),
    Change(("Resize",), 13, "tf_half_pixel_for_nn is gone", _has("coordinate_transformation_mode")),
    Change(("ConvTranspose",), 11, "SAME_UPPER and SAME_LOWER change sides", _has("auto_pad", "output_shape")),
    Change(("Softmax", "LogSoftmax", "Hardmax"), 13,
           "one axis, by default the last, instead of all axes from axis (1) on"),
    Change(("Dropout",), 12, "the mask of inference is True; before it is anything", _has_mask),
    Change(("Clip",), 13, "min above max gives max"),
    Change(("AveragePool",), 19, "ceil_mode counts padded elements of a window", _has("ceil_mode")),
    Change(("AveragePool", "MaxPool", "LpPool"), 22, "windows that start in the padding after the end are left out",
           _has("ceil_mode")),
    Change(("GroupNormalization",), 21, "scale and bias for each channel instead of each group"),
    Change(("Attention",), 24, "rows without any key are 0; causal masks are aligned with past keys"),
    Change(("Attention",), 25, "causal masks are aligned at the bottom right", _has("is_causal")),
    Change(("QuantizeLinear",), 23, "the division is made in `precision`, by default the type of y_scale", _half),
    Change(("Range",), 27, "sums of 16-bit floats are formed in float32", _half),
    Change(("Mod",), 28, "fmod=0 for floats; signs of zero", _has("fmod")),
)  # fmt: skip


def changes(case: Case, opset: int) -> list[Change]:
    """What lies between the case's own opset and another one."""
    low, high = sorted((case.opset, opset))
    return [c for c in CHANGES if not case.domain and case.op in c.ops and low < c.since <= high and c.when(case)]


@dataclass(frozen=True)
class Seen:
    """What a backend returned at one opset, and what it was allowed to return."""

    exacts: Sequence[Exact]
    outputs: Sequence[Array]


def disagreement(one: Seen, other: Seen) -> str:
    """Where two results of one backend differ although nothing changed, or an empty string.

    Integers must be equal. Floats may be rounded otherwise: an element that differs must lie in both sets.
    """
    for i, (a, b) in enumerate(zip(one.outputs, other.outputs, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {i} is {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
        differ = a != b
        if dt.is_float(dt.word_of(a.dtype)):
            wide = (a.astype(np.float64), b.astype(np.float64))
            differ = differ & ~(np.isnan(wide[0]) & np.isnan(wide[1]))
            differ = differ & ~(inside_set(one.exacts[i], b) & inside_set(other.exacts[i], a))
        for exact in (one.exacts[i], other.exacts[i]):
            if exact.free is not None:
                differ = differ & ~exact.free
        if differ.any():
            flat = int(np.flatnonzero(differ)[0])
            values = f"{a.ravel()[flat]!s} and {b.ravel()[flat]!s}"
            return f"output {i} differs in {int(differ.sum())} of {a.size} elements, first at {flat}: {values}"
    return ""


def sweep(
    case: Case,
    label: str,
    clients: Sequence[Client],
    rows: Sequence[expectations.Deviation],
    emit: Callable[[Record], None],
) -> None:
    """One record for each backend, and those of other opsets that fail by themselves."""
    base = check.subject_of(case, label, SUITE)
    first: dict[str, Seen] = {}

    def listening(seen: dict[str, Seen]) -> Callable[..., None]:
        def listen(client: Client, graph: Any, exacts: Sequence[Exact], observation: Any) -> None:
            seen[client.spec.text] = Seen(exacts, observation.outputs)

        return listen

    found = {r.backend: r for r in check.check(base, clients, rows, listen=listening(first))}
    tried: dict[str, list[int]] = {backend: [case.opset] for backend in found}
    for opset in opsets(case):
        subject = check.subject_of(replace(case, opset=opset), label, SUITE)
        here: dict[str, Seen] = {}
        moved = changes(case, opset)
        for record in check.check(subject, clients, rows, listen=listening(here)):
            if record.status in (Status.UNSUPPORTED, Status.UNAVAILABLE, Status.INVALID):
                continue
            tried[record.backend].append(opset)
            if record.status in FINDINGS:
                emit(record)
            elif not moved and record.backend in first and record.backend in here:
                why = disagreement(first[record.backend], here[record.backend])
                if why and found[record.backend].status not in FINDINGS:
                    message = f"opset {case.opset} and {opset} disagree although {case.op} means the same: {why}"
                    detail = {**found[record.backend].detail, "other": subject.case}
                    found[record.backend] = replace(
                        found[record.backend],
                        status=Status.FAIL,
                        message=f"{message}; see {subject.case}",
                        detail=detail,
                    )
    for backend, record in found.items():
        detail = {**record.detail, "opsets": sorted(tried[backend])}
        emit(replace(record, detail=detail, counts={**record.counts, "opsets": len(tried[backend])}))


def sweep_row(
    row: CaseSpec,
    budget: int,
    seed: int,
    clients: Sequence[Client],
    emit: Callable[[Record], None],
    skip: Collection[str] = (),
) -> generate.Explored:
    """Every case of a row at every opset that can spell it."""
    deviations = expectations.load()

    def visit(text: str, case: Case) -> None:
        if text not in skip:
            sweep(case, row.label, clients, deviations, emit)

    return generate.explore(row, budget, seed, visit)
