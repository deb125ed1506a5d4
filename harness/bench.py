"""Backends side by side on the same cases, and one backend on data of different kinds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import BackendUnavailableError, CaseError
from opgauge.reference_engine.types import Array

from . import pairs, stages
from .latency import Call, Estimate, Plan, untold
from .workloads import Side, Workload

MOVED = 0.20  # a path that takes a fifth more or less time on other data


@dataclass(frozen=True)
class Row:
    """A case on a backend, against the first backend (or on other data, against the first kind)."""

    case: str
    backend: str
    estimate: Estimate
    stages: stages.Stages | None = None


def table(
    works: Sequence[Workload],
    backends: Sequence[str],
    plan: Plan,
    with_stages: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """One row for each case and each backend after the first; ratios are backend / first.

    Raises: CaseError for fewer than one backend.
    """
    if not backends:
        raise CaseError("no backend: give --backend once for the times, twice or more for ratios")
    first = Side(backends[0])
    for work in works:
        say(f"{work.name} on {backends[0]}")
        yield Row(work.name, backends[0], untold(work.name, "the base"), _stages(work, first, plan, with_stages))
    for other in backends[1:]:
        say(f"{other} against {backends[0]}")
        for work, e in zip(works, pairs.compare_all(works, first, Side(other), plan), strict=True):
            yield Row(work.name, other, e, _stages(work, Side(other), plan, with_stages))


def _stages(work: Workload, side: Side, plan: Plan, wanted: bool) -> stages.Stages | None:
    if not wanted:
        return None
    try:
        return stages.measure(work, side, replace(plan, control=False))
    except (BackendUnavailableError, pairs.MeasureError):
        return None


# ---- data


Fill = Callable[[Array, np.random.Generator], Array]


def _floats(values: Callable[[np.random.Generator, tuple[int, ...], str], Array]) -> Fill:
    def fill(x: Array, rng: np.random.Generator) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(values(rng, x.shape, dt.word_of(x.dtype))).astype(x.dtype)

    return fill


def _zeros(x: Array, rng: np.random.Generator) -> Array:
    return np.zeros_like(x)


def _sparse(x: Array, rng: np.random.Generator) -> Array:
    return np.where(rng.random(x.shape) < 0.875, np.zeros((), x.dtype), x)


def _saturating(x: Array, rng: np.random.Generator) -> Array:
    word = dt.word_of(x.dtype)
    low, high = dt.limits(word) if dt.is_integer(word) else (-dt.MAX[word] / 2, dt.MAX[word] / 2)
    return np.where(rng.random(x.shape) < 0.5, low, high).astype(x.dtype)


# `as drawn` is what the case itself holds. The last three change floats alone.
PROFILES: Mapping[str, Fill] = {
    "as drawn": lambda x, rng: x,
    "normal": _floats(lambda rng, shape, word: rng.standard_normal(shape)),
    "zero": _zeros,
    "sparse": _sparse,
    "saturating": _saturating,
    "subnormal": _floats(lambda rng, shape, word: rng.uniform(1, 9, shape) * dt.TINY[word]),
    "nan": _floats(lambda rng, shape, word: np.full(shape, np.nan)),
    "wide": _floats(lambda rng, shape, word: rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 7, shape)),
}
FLOAT_ONLY = ("normal", "subnormal", "nan", "wide")


def varied(work: Workload, profile: str, seed: int = 0) -> Workload | None:
    """The same case on other data; None where no input may hold it. Indices, shapes, scales stay: only data change.

    An input is data when it is a float or an 8-bit tensor of more than one element.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    fill, inputs, changed = PROFILES[profile], {}, profile == "as drawn"
    for name, x in work.inputs.items():
        word = dt.word_of(x.dtype)
        is_data = x.size > 1 and (word in dt.MAX or word in ("int8", "uint8"))
        fits = is_data and (profile not in FLOAT_ONLY or word in dt.MAX) and "scale" not in name
        inputs[name] = np.ascontiguousarray(fill(x, rng)) if fits else x
        changed |= fits
    return Workload(f"{work.name} [{profile}]", work.model, inputs) if changed else None


def by_data(work: Workload, backend: str, plan: Plan, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """The case on each kind of data against the data that it was drawn with, on one backend."""
    kinds = {p: made for p in PROFILES if (made := varied(work, p, plan.seed)) is not None}
    base, rows = kinds.pop("as drawn"), []
    for profile, other in kinds.items():
        say(f"{profile} on {backend}")
        rows.append(Row(profile, backend, pairs.compare_inputs(base, other, Side(backend), plan)))
    return rows


def moved(row: Row) -> bool:
    """Whether the speed changes with the data, confirmed and by more than MOVED."""
    e = row.estimate
    return e.verdict in (Call.SLOWER, Call.FASTER) and abs(e.log_ratio) > math.log1p(MOVED)
