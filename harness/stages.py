"""Three numbers of a case: end to end, the sum of its operators, what of it is data movement; first run and memory.

Our engine times each node of its plan, onnxruntime says shares in its profile. Profiling slows small nodes, so end to
end is timed without it and the shares are laid on that: source of each figure in `Stages`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from opgauge.backends import resolve
from opgauge.backends.profiled import moves
from opgauge.reference_engine.types import Status

from . import pairs
from .client import Client
from .latency import Plan
from .workloads import Side, Workload

# Adapters that run a case and tell where its time goes: times_ns is `node|KIND|NAME`.
TRACERS = {"cpu": "opgauge.backends.cpu_trace:run", "onnxruntime": "opgauge.backends.onnxruntime_profile:run"}
TRACE_S = 120.0


@dataclass(frozen=True)
class Stages:
    """Units: ns and bytes. `operators_ns` is the sum over nodes, movement among them; both None where no tracer is.

    `overhead_ns` is what end to end has beyond its nodes: dispatch, allocation, Python.
    """

    end_to_end_ns: float
    first_run_ns: float
    peak_memory_bytes: int
    operators_ns: float | None = None
    movement_ns: float | None = None
    by_kind_ns: Mapping[str, float] | None = None
    source: str = "no tracer for this backend"

    @property
    def overhead_ns(self) -> float | None:
        return None if self.operators_ns is None else max(0.0, self.end_to_end_ns - self.operators_ns)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "overhead_ns": self.overhead_ns}


def sums(times_ns: Mapping[str, int]) -> tuple[float, float, dict[str, float]]:
    """(all nodes, those that only move data, by kind) of a tracer's `node|KIND|NAME` times."""
    kinds: Counter[str] = Counter()
    for name, ns in times_ns.items():
        head, _, rest = name.partition("|")
        if head == "node":
            kinds[rest.partition("|")[0]] += ns
    moved = sum(ns for kind, ns in kinds.items() if moves(kind))
    return float(kinds.total()), float(moved), {k: float(v) for k, v in kinds.most_common()}


def measure(work: Workload, side: Side, plan: Plan = Plan(control=False)) -> Stages:  # noqa: B008
    """Raises: BackendUnavailableError, MeasureError."""
    meters = pairs.opened((side,), plan, random.Random(plan.seed))
    try:
        taken = pairs.take(meters, work, plan, random.Random(plan.seed))
    finally:
        pairs.close(meters)
    whole, first = median(min(turns) for turns in taken.lows[0]), taken.starts[0]
    plain = Stages(whole, first["first_ns"], first["peak_rss_bytes"])
    tracer = TRACERS.get(side.spec.name, "")
    if not tracer or side.python or side.spec.environment or side.spec.options:
        return plain
    with Client(resolve(tracer), TRACE_S, side.spec.definition.memory_limit, guarded="plain") as client:
        client.submit(work.name, work.model, work.inputs, repeats=1)
        seen = client.receive()
    if seen.status is not Status.PASS:
        return Stages(whole, first["first_ns"], first["peak_rss_bytes"], source=f"{tracer}: {seen.message}")
    nodes, moved, kinds = sums(seen.times_ns)
    traced = float(seen.times_ns.get("traced", 0)) or nodes
    scale = whole / traced if side.spec.name == "onnxruntime" else 1.0
    source = "shares of its profile, on end to end" if side.spec.name == "onnxruntime" else "each node timed"
    scaled = {k: round(v * scale, 1) for k, v in kinds.items()}
    return Stages(whole, first["first_ns"], first["peak_rss_bytes"], nodes * scale, moved * scale, scaled, source)


def text(stages: Stages) -> str:
    """One line: `end to end 210.1 us, operators 180.2 us, movement 12.0 us; first run 30.1 ms, peak 90.2 MiB`."""
    parts = [f"end to end {stages.end_to_end_ns / 1e3:.1f} us"]
    if stages.operators_ns is not None and stages.movement_ns is not None:
        parts += [f"operators {stages.operators_ns / 1e3:.1f} us", f"movement {stages.movement_ns / 1e3:.1f} us"]
    peak = stages.peak_memory_bytes / 2**20
    return ", ".join(parts) + f"; first run {stages.first_run_ns / 1e6:.1f} ms, peak {peak:.1f} MiB"
