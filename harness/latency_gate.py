"""The gate on latency: key cases of two builds side by side; a ratio, never a stored absolute."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from opgauge.reference_engine.errors import BackendUnavailableError, BaselineError
from opgauge.reference_engine.types import Finding

from . import pairs
from .latency import CONTROLLED, Call, Estimate, Plan, noise_of, threshold, untold, upper_rate
from .workloads import Side, Workload, workload

SECTIONS = {
    "verdicts": {"backends", "budget"},
    "coverage": {"backends"},
    "sensitivity": {"least", "cases", "faults"},
    "latency": {"backends", "limit", "alarm", "key"},
    "certify": None,
    "soak": None,
}


@dataclass(frozen=True)
class Key:
    """A key scenario: a case id, or a model (file or built-in network); `limit` as a share, 0.05 is +5 %."""

    name: str
    case: str = ""
    model: str = ""
    limit: float = 0.05
    key: bool = True

    def work(self) -> Workload:
        """Raises: CaseError, ModelError."""
        made = workload(self.case or self.model)
        return Workload(self.name, made.model, made.inputs)


@dataclass(frozen=True)
class Gates:
    """baselines/gates.toml, read."""

    backends: tuple[str, ...]
    keys: tuple[Key, ...]
    alarm: float
    sections: Mapping[str, Mapping[str, Any]]


def read(path: Path | None = None) -> Gates:
    """The file, or the shipped one. Raises: BaselineError naming a key that it does not know."""
    place = path or resources.files("opgauge.baselines") / "gates.toml"
    try:
        document = tomllib.loads(place.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BaselineError(f"{place}: cannot be read: {error}") from error
    for name, section in document.items():
        if name not in SECTIONS:
            raise BaselineError(f"{place}: no section [{name}]; there are {', '.join(SECTIONS)}")
        known = SECTIONS[name]
        unknown = set(section) - known if known is not None else set()
        if unknown:
            raise BaselineError(f"{place}: [{name}] has no {', '.join(sorted(unknown))}")
    latency = document.get("latency", {})
    limit = float(latency.get("limit", 0.05))
    try:
        keys = tuple(Key(**{"limit": limit, **row}) for row in latency.get("key", ()))
    except TypeError as error:
        raise BaselineError(f"{place}: [[latency.key]]: {error}; it takes name, case or model, limit, key") from error
    if len({k.name for k in keys}) < len(keys) or not all(bool(k.case) != bool(k.model) for k in keys):
        raise BaselineError(f"{place}: each [[latency.key]] has a name of its own, and a case or a model")
    backends = tuple(latency.get("backends", ("cpu", "onnxruntime")))
    return Gates(backends, keys, float(latency.get("alarm", Plan.alarm)), document)


Limits = TypeVar("Limits")


def limits_of(kind: type[Limits], name: str, section: Mapping[str, Any]) -> Limits:
    """The limits of a section, a dataclass of defaults. Raises: BaselineError naming a key that it does not know."""
    unknown = set(section) - {f.name for f in fields(kind)}  # type: ignore[arg-type]  # any dataclass
    if unknown:
        raise BaselineError(f"gates.toml: [{name}] has no {', '.join(sorted(unknown))}")
    return kind(**section)


def plan_of(gates: Gates, **changed: Any) -> Plan:
    """The plan of a gate: `limit` is the smallest of its key cases."""
    limit = min((k.limit for k in gates.keys), default=0.05)
    return Plan(**{"alarm": gates.alarm, "limit": limit, **changed})


# ---- what is measured


def sides(backend: str, base_python: str) -> tuple[Side, Side]:
    """(base, new) of a backend: another checkout's interpreter against this one."""
    return Side(backend, python=base_python), Side(backend)


def measure(
    gates: Gates,
    backends: Sequence[str],
    plan: Plan,
    sides_of: Callable[[str], tuple[Side, Side]],
    progress: Callable[[str], None] = lambda text: None,
) -> list[tuple[str, Key, Estimate]]:
    """(backend, key case, estimate) of every key case on every backend of the gate.

    A case that a backend cannot run at all is told as 'cannot tell', with the reason.
    """
    found = []
    for backend in backends:
        base, new = sides_of(backend)

        def show(pairs_done: int, open_cases: int, cases: int, backend: str = backend) -> None:
            progress(f"latency on {backend}: pair {pairs_done}, {open_cases} of {cases} cases open")

        try:
            estimates = pairs.compare_all([k.work() for k in gates.keys], base, new, plan, show)
        except (BackendUnavailableError, OSError) as error:
            estimates = [untold(k.name, str(error)) for k in gates.keys]
        found += [(backend, key, e) for key, e in zip(gates.keys, estimates, strict=True)]
    return found


# ---- what it means


def findings(measured: Sequence[tuple[str, Key, Estimate]]) -> list[Finding]:
    """A finding for each confirmed slowdown that may reach its limit, and for each key case that cannot be told."""
    found = []
    for backend, key, e in measured:
        subject = f"{key.name} on {backend}"
        if e.verdict is Call.SLOWER and math.expm1(e.high) >= key.limit:
            found.append(Finding("latency", subject, f"slower: {said(e)}; limit {key.limit:+.0%}", detail=plain(e)))
        elif e.verdict is Call.UNCLEAR and key.key:
            why = e.reason or f"{said(e)}; only {e.detail.get('visible', math.inf):+.1%} would be visible"
            found.append(Finding("latency", subject, f"cannot tell: {why}", detail=plain(e)))
    return found


def said(e: Estimate) -> str:
    """`+4.8 % (+3.9 to +5.6 %), 12 pairs, 6.1 s`."""
    if e.reason:
        return e.reason
    interval = f"{math.expm1(e.low):+.1%} to {math.expm1(e.high):+.1%}"
    again = f", {e.repeated} repeated" if e.repeated else ""
    return f"{e.change:+.1%} ({interval}), {e.pairs} pairs{again}, {e.seconds:.1f} s"


def plain(e: Estimate) -> dict[str, Any]:
    """The estimate as JSON: infinities, which JSON has not, become null."""

    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {k: finite(v) if not isinstance(v, tuple) else list(v) for k, v in asdict(e).items()} | {
        "change": finite(e.change),
        "verdict": str(e.verdict),
    }


def statement(measured: Sequence[tuple[str, Key, Estimate]], plan: Plan) -> str:
    """What this run could see and how often it errs, in one sentence of figures.

    The base against itself is judged by the rule of the gate, so that false alarms of this very run would show.
    """
    timed = [e for _, _, e in measured if e.pairs]
    if not timed:
        return "no case was timed"
    controls = [e.control for e in timed if e.control]
    false = sum(
        abs(median(c)) > threshold(plan, noise_of((), c, e.detail["suite_sd"]) / CONTROLLED, len(c), len(timed))
        for c, e in zip(controls, [e for e in timed if e.control], strict=True)
    )
    seen = sorted(e.detail.get("visible", math.inf) for e in timed)
    text = f"at this noise {seen[len(seen) // 2]:+.1%} is visible in the middle case, {seen[-1]:+.1%} in the worst"
    if controls:
        bound = upper_rate(false, len(controls))
        text += f"; the base against itself: {false} alarms in {len(controls)} (95 % bound {bound:.1%} each)"
    return f"{text}; thresholds hold the whole suite to 1 % false alarms"
