"""One case many times in one process: does its tail hold, does memory grow, what does a launch cost?

soak(workload("ID or model"), Side("cpu"), Limits(), runs=1000)
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from opgauge.reference_engine.errors import BackendUnavailableError, BaselineError, OpgaugeError

from . import pairs
from .latency import Call, Plan
from .workloads import Side, Workload, workload

WINDOWS = 10
LEAST_CALLS = 20  # of a window: P99 of fewer is their maximum
# Dispatch, allocation and adapter, and next to no arithmetic.
LAUNCH = "Add/float32,float32/op13/A=float32:1:normal/B=float32:1:normal/y=float32/plain/s0"
LAUNCH_CALLS = 200


@dataclass(frozen=True)
class Limits:
    """[soak] of gates.toml. `p99` as a share about its median, `grown_bytes` over 1,000 runs, `fallbacks` a run."""

    p99: float = 0.05
    grown_bytes: int = 1 << 20
    fallbacks: int = 0


@dataclass(frozen=True)
class Window:
    """A stretch of a soak. Units: ns and bytes; `paces_ns` are a fixed loop that runs nothing of the case."""

    times_ns: tuple[int, ...]
    paces_ns: tuple[int, ...]
    rss_bytes: int


@dataclass(frozen=True)
class Soaked:
    """What a soak says. `call` is about the tail: same (it holds), slower (it does not), or cannot tell.

    `p99_off` is how far the P99 of any window lies from the median of all, `noise_off` the same of a loop that runs
    nothing of the case. `plan_hit_rate` of the calls and `plan_evictions` of the engine's kept plans, since it was
    loaded. None is a figure that the backend does not report.
    """

    case: str
    backend: str
    runs: int
    p50_ns: float
    p99_ns: float
    p99_off: float
    noise_off: float
    call: Call
    grown_bytes: float
    peak_rss_bytes: int
    first_run_ns: int
    launch_ns: float | None
    fallbacks: int
    fragmentation: float | None
    plan_hit_rate: float | None
    plan_evictions: int | None
    findings: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "call": str(self.call), "findings": list(self.findings)}


# ---- figures


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return float(ordered[max(0, math.ceil(share * len(ordered)) - 1)])


def off(tails: Sequence[float]) -> float:
    """How far the farthest lies from their median, as a share."""
    middle = median(tails)
    return max(abs(t - middle) for t in tails) / middle if middle else 0.0


def tail(windows: Sequence[Window], limit: float) -> tuple[Call, float, float]:
    """(what can be said of P99, how far it wanders, how far that of the loop wanders).

    The loop has the same windows: where its own P99 leaves the limit, the machine would make any case leave it.
    """
    seen = off([quantile(w.times_ns, 0.99) for w in windows])
    machine = off([quantile(w.paces_ns, 0.99) for w in windows])
    if seen <= limit:
        return Call.SAME, seen, machine
    return (Call.UNCLEAR if machine > limit else Call.SLOWER), seen, machine


def growth(rss: Sequence[int], calls: int) -> float:
    """Bytes that 1,000 runs add: the median slope over all pairs of windows, of `calls` runs each.

    Source: Theil 1950, Sen 1968; a single jump, such as a cache that fills once, does not move it.
    """
    slopes = [(rss[j] - rss[i]) / (j - i) for i in range(len(rss)) for j in range(i + 1, len(rss))]
    return 1000 * median(slopes) / calls if slopes else 0.0


def judge(
    case: str,
    backend: str,
    windows: Sequence[Window],
    start: Mapping[str, Any],
    counts: Mapping[str, int],
    limits: Limits,
    launch_ns: float | None = None,
    fragmentation: float | None = None,
) -> Soaked:
    """Figures and findings of recorded windows. Raises: BaselineError for fewer than three windows."""
    if len(windows) < 3:
        raise BaselineError(f"a soak of {len(windows)} windows says nothing of a tail: --runs 60 at least")
    times = [t for w in windows for t in w.times_ns]
    call, seen, machine = tail(windows, limits.p99)
    grown = growth([w.rss_bytes for w in windows], len(windows[0].times_ns))
    fallbacks = sum(v for k, v in counts.items() if "fallback" in k)
    lookups = counts.get("plan_lookups", 0)
    hit_rate = counts.get("plan_hits", 0) / lookups if lookups else None
    findings = []
    if call is Call.SLOWER:
        findings.append(f"P99 wanders {seen:.0%} about its median, the machine's own loop {machine:.0%}")
    if grown > limits.grown_bytes:
        findings.append(
            f"memory grows by {grown / 2**20:.2f} MiB in 1,000 runs, {limits.grown_bytes / 2**20:g} allowed"
        )
    if fallbacks > limits.fallbacks:
        findings.append(f"{fallbacks} fallbacks in each run, {limits.fallbacks} allowed")
    return Soaked(
        case, backend, len(times), quantile(times, 0.5), quantile(times, 0.99), seen, machine, call, grown,
        int(start.get("peak_rss_bytes", 0)), int(start.get("first_ns", 0)), launch_ns, fallbacks, fragmentation,
        hit_rate, counts.get("plan_eviction_count"), tuple(findings),
    )  # fmt: skip


# ---- measuring


def soak(
    work: Workload,
    side: Side,
    limits: Limits = Limits(),
    runs: int = 1000,
    say: Callable[[str], None] = lambda text: None,
    seed: int = 0,
) -> Soaked:
    """Raises: BackendUnavailableError, MeasureError."""
    calls = max(LEAST_CALLS, runs // WINDOWS)
    plan = replace(Plan(), seed=seed, timeout_s=600.0)
    meters = pairs.opened((side,), plan, random.Random(seed))
    try:
        (meter,) = meters
        start = meter.keep(work)
        windows: list[Window] = []
        counts: dict[str, int] = {}
        for i in range(max(3, math.ceil(runs / calls))):
            seen = meter.each(work, calls)
            windows.append(Window(tuple(seen["times_ns"]), tuple(seen["paces_ns"]), seen["rss_bytes"]))
            counts = seen["counts"]
            say(f"{side.backend}: {(i + 1) * calls} runs")
        meter.drop(work)
        launch = _launch(meter)
    finally:
        pairs.close(meters)
    return judge(work.name, side.backend, windows, start, counts, limits, launch, fragmentation(side, work))


def _launch(meter: pairs.Meter) -> float | None:
    """P50 of one call on one element, None for a backend that does not add."""
    smallest = workload(LAUNCH)
    try:
        meter.keep(smallest)
        return quantile(meter.each(smallest, LAUNCH_CALLS)["times_ns"], 0.5)
    except (pairs.MeasureError, BackendUnavailableError):
        return None


def fragmentation(side: Side, work: Workload) -> float | None:
    """The share of the arena's peak that no moment needs; None for engines that do not plan one."""
    if side.spec.name != "cpu" or side.python:
        return None
    from opgauge.reference_engine import passes
    from opgauge.reference_engine.arena import lay_out
    from opgauge.reference_engine.lower import lower

    options = dict(side.spec.options)
    try:
        graph = lower(work.model, work.inputs)
        rules = passes.select(options.get("disable", ""), options.get("only", ""))
        return lay_out(passes.optimise(graph, rules)[0] if rules else graph).fragmentation
    except OpgaugeError:
        return None


# ---- for node-exporter

FAMILIES: tuple[tuple[str, str, str, float], ...] = (
    ("p99_off", "opgauge_soak_p99_off_ratio", "How far P99 of any window lies from the median of all", 1.0),
    ("noise_off", "opgauge_soak_noise_off_ratio", "The same of a loop that runs nothing of the case", 1.0),
    ("grown_bytes", "opgauge_soak_grown_bytes", "Memory that 1000 runs add", 1.0),
    ("peak_rss_bytes", "opgauge_soak_peak_rss_bytes", "Peak memory of the worker", 1.0),
    ("first_run_ns", "opgauge_soak_first_run_seconds", "First run, which compiles and plans", 1e-9),
    ("launch_ns", "opgauge_soak_launch_seconds", "One call on one element", 1e-9),
    ("fallbacks", "opgauge_soak_fallbacks", "Fallbacks in each run", 1.0),
    ("fragmentation", "opgauge_soak_fragmentation_ratio", "Share of the arena that no moment needs", 1.0),
    ("plan_hit_rate", "opgauge_soak_plan_hit_ratio", "Share of the calls that found a kept plan", 1.0),
    ("plan_evictions", "opgauge_soak_plan_evictions", "Kept plans that had to leave", 1.0),
    ("runs", "opgauge_soak_runs", "Runs", 1.0),
)


def prometheus(soaked: Sequence[Soaked]) -> str:
    """Text for node-exporter's textfile collector: gauges, in base units, without time stamps.

    Source: Prometheus text format 0.0.4.
    """
    lines = ["# HELP opgauge_soak_latency_seconds Latency of one run", "# TYPE opgauge_soak_latency_seconds gauge"]
    for s in soaked:
        for share, ns in (("0.5", s.p50_ns), ("0.99", s.p99_ns)):
            lines.append(f"opgauge_soak_latency_seconds{_labels(s, quantile=share)} {ns * 1e-9!r}")
    for field, name, text, factor in FAMILIES:
        rows = [(s, getattr(s, field)) for s in soaked]
        if all(value is None for _, value in rows):
            continue
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels(s)} {float(value) * factor!r}" for s, value in rows if value is not None]
    lines += ["# HELP opgauge_soak_stable 1 where the tail holds, 0 where not, NaN where nothing can be told"]
    lines += ["# TYPE opgauge_soak_stable gauge"]
    said = {Call.SAME: "1", Call.SLOWER: "0", Call.UNCLEAR: "NaN"}
    lines += [f"opgauge_soak_stable{_labels(s)} {said[s.call]}" for s in soaked]
    return "\n".join(lines) + "\n"


def _labels(s: Soaked, **more: str) -> str:
    pairs_of = {"backend": s.backend, "case": s.case, **more}
    escaped = {k: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in pairs_of.items()}
    return "{" + ",".join(f'{k}="{v}"' for k, v in escaped.items()) + "}"


def write_prometheus(soaked: Sequence[Soaked], path: Path) -> None:
    """At once: the collector may read at any moment."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(prometheus(soaked), encoding="utf-8")
    os.replace(partial, path)
