"""Two sides of one case in fresh processes that take turns block by block: the measuring of latency.

    compare(workload("ID or model"), Side("onnxruntime==1.24.4"), Side("onnxruntime"))

Within a pair the sides go A B B A, so that a drift in speed hits both alike, and they share their cores, since two
cores need not run at one speed. With a control the base runs twice, and the new side is
held against the mean of both. Blocks are short: a process that has just been woken is seldom interrupted in one.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import BackendUnavailableError, OpgaugeError

from . import isolation, spawn
from .latency import (
    CONTROLLED,
    decide,
    estimate,
    noise_of,
    spread,
    unchanged,
    untold,
    visible,
)
from .latency import Call as Call
from .latency import Estimate as Estimate
from .latency import Plan as Plan
from .worker import clean
from .workloads import Side as Side
from .workloads import Workload as Workload
from .workloads import identity
from .workloads import workload as workload

LEAST_ROUNDS = 5


class MeasureError(OpgaugeError):
    """A side cannot run the case, or its process ended: there is no time to compare."""


class Meter:
    """The worker process of a side, told to time."""

    def __init__(self, side: Side, plan: Plan, cores: Sequence[int]) -> None:
        """Raises: BackendUnavailableError."""
        self.side, self._plan, self._cores = side, plan, list(cores)
        spec = side.spec
        variables = {**spawn.variables_of(False), **dict(side.variables)}
        self._kernel = spawn.Kernel(spec, spec.definition.memory_limit, spawn.PLAIN, variables, None, side.python)
        self._load_s = spec.definition.load_timeout_s

    def wait(self) -> None:
        """Until the adapter is loaded. Raises: BackendUnavailableError."""
        try:
            reply, _ = self._kernel.receive(time.monotonic() + self._load_s)
        except (spawn.Ended, spawn.Late) as error:
            raise BackendUnavailableError(f"{self.side.backend}: {self._kernel.evidence(str(error))}") from error
        if "unavailable" in reply:
            raise BackendUnavailableError(f"{self.side.backend}: {clean(reply['unavailable'])}")

    def _ask(self, header: dict[str, Any], tensors: Sequence[Any] = ()) -> dict[str, Any]:
        """Raises: MeasureError."""
        limit = self._plan.timeout_s
        try:
            self._kernel.send({"want": "time", **header}, tensors, limit)
            reply, _ = self._kernel.receive(time.monotonic() + limit)
        except spawn.Late:
            self._kernel.stop()
            raise MeasureError(f"{self.side.backend}: no answer in {limit:g} s; killed") from None
        except spawn.Ended as error:
            raise MeasureError(f"{self.side.backend}: {self._kernel.evidence(str(error))}") from error
        if "error" in reply:
            raise MeasureError(f"{self.side.backend}: {clean(reply['error'])}: {clean(reply['message'])}")
        return reply

    def keep(self, work: Workload) -> dict[str, Any]:
        """Send the case, let it run and warm up; the worker's `timed.start`."""
        tensors = [("uint8", (len(work.model),), work.model)]
        tensors += [(dt.word_of(x.dtype), x.shape, np.asarray(x).tobytes()) for x in work.inputs.values()]
        header = {"do": "keep", "key": work.name, "names": list(work.inputs), "cores": self._cores}
        return self._ask({**header, "warm_s": self._plan.warm_s}, tensors)

    def block(self, work: Workload, calls: int) -> dict[str, Any]:
        return self._ask({"do": "block", "key": work.name, "calls": calls})

    def each(self, work: Workload, calls: int) -> dict[str, Any]:
        return self._ask({"do": "each", "key": work.name, "calls": calls})

    def drop(self, work: Workload) -> None:
        self._ask({"do": "drop", "key": work.name})

    def stop(self) -> None:
        self._kernel.stop()


# ---- one pair


@dataclass(frozen=True)
class Conditions:
    """What a measurement was made under: cores that may be used, and for each side speed and share of a core."""

    cores: int
    pace_ns: tuple[float, ...]
    busy: tuple[float, ...]


@dataclass(frozen=True)
class Taken:
    """One case in one set of processes: for each side its low times of each round, and how it started."""

    lows: tuple[tuple[tuple[float, ...], ...], ...]  # [side][round][turn], ns
    starts: tuple[dict[str, Any], ...]
    before: Conditions
    after: Conditions
    seconds: float

    def log_ratio(self, base: int = 0, new: int = 1) -> float:
        """Median over rounds, and turns of a round, of ln(new / base)."""
        rounds = zip(self.lows[base], self.lows[new], strict=True)
        return median(math.log(b / a) for one, other in rounds for a in one for b in other)

    def value(self) -> float:
        """ln(new / base), against the mean of both bases where there is a control."""
        if len(self.lows) == 2:
            return self.log_ratio()
        return (self.log_ratio(0, 1) + self.log_ratio(2, 1)) / 2

    @property
    def disturbed(self) -> str:
        """What changed between the sides or during the pair, empty where nothing did."""
        if self.before.cores != self.after.cores:
            return f"{self.before.cores} cores, then {self.after.cores}"
        for what, seen in (("frequency", "pace_ns"), ("load", "busy")):
            a, b = getattr(self.before, seen), getattr(self.after, seen)
            moved = [math.log(max(y, 1e-3) / max(x, 1e-3)) for x, y in zip(a, b, strict=True)]
            if max(moved) - min(moved) > APART[what]:
                return f"{what} changed for one side: {', '.join(f'{math.expm1(m):+.0%}' for m in moved)}"
        return ""


APART = {"frequency": 0.10, "load": 0.35}
ASSUMED = 0.01  # noise of a pair before the controls of a run tell
WALL_FACTOR = 3.0  # how much longer than asked a pair may take to reach its least rounds on a busy machine


def take(
    meters: Sequence[Meter],
    work: Workload,
    plan: Plan,
    rng: random.Random,
    others: Mapping[int, Workload] | None = None,
    pair_s: float = 0.0,
) -> Taken:
    """Time one case on loaded workers, block by block in mirrored order; `others` go to the sides of those numbers.

    `pair_s` where it is not the plan's.

    Raises: MeasureError.
    """
    works = [dict(others or {}).get(i, work) for i in range(len(meters))]
    kept = {i: meters[i].keep(works[i]) for i in _shuffled(len(meters), rng)}
    starts = [kept[i] for i in range(len(meters))]
    calls = max(1, int(plan.block_s * 1e9 / max(s["call_ns"] for s in starts)))
    began = time.perf_counter()
    wanted = (pair_s or plan.pair_s) * len(meters) / 2
    rounds: list[list[tuple[float, ...]]] = []
    states: list[list[tuple[float, float]]] = [[] for _ in meters]
    cores = len(isolation.cores())
    while True:
        passed = time.perf_counter() - began
        if (passed >= wanted and len(rounds) >= LEAST_ROUNDS) or (passed >= WALL_FACTOR * wanted and len(rounds) >= 3):
            break
        lows: list[list[float]] = [[] for _ in meters]
        order = _shuffled(len(meters), rng)
        for i in order + order[::-1]:
            seen = meters[i].block(works[i], calls)
            lows[i].append(max(seen["low_ns"], 1))
            states[i].append((seen["pace_ns"], seen["busy"]))
        rounds.append([tuple(x) for x in lows])
    for meter, dropped in zip(meters, works, strict=True):
        meter.drop(dropped)
    before, after = (
        Conditions(n, *zip(*(_state(part(seen)) for seen in states), strict=True))
        for n, part in ((cores, _first_half), (len(isolation.cores()), _last_half))
    )
    return Taken(tuple(zip(*rounds, strict=True)), tuple(starts), before, after, time.perf_counter() - began)


def _shuffled(n: int, rng: random.Random) -> list[int]:
    return rng.sample(range(n), n)


def _first_half(seen: list[Any]) -> list[Any]:
    return seen[: len(seen) // 2]


def _last_half(seen: list[Any]) -> list[Any]:
    return seen[len(seen) // 2 :]


def _state(seen: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(low quantile of the pace, median share of a core)."""
    paces = sorted(p for p, _ in seen)
    return paces[len(paces) // 4], median(b for _, b in seen)


def opened(sides: Sequence[Side], plan: Plan, rng: random.Random) -> list[Meter]:
    """Fresh processes for the sides, all on the same cores, loaded. Raises: BackendUnavailableError."""
    available = isolation.cores()
    cores = rng.sample(available, min(max(s.threads for s in sides), len(available)))
    meters: dict[int, Meter] = {}
    try:
        # Whatever depends on who is started first is no lead of one side.
        for i in _shuffled(len(sides), rng):
            meters[i] = Meter(sides[i], plan, cores)
        for meter in meters.values():
            meter.wait()
    except BaseException:
        close(list(meters.values()))
        raise
    return [meters[i] for i in range(len(sides))]


def close(meters: Sequence[Meter]) -> None:
    for meter in meters:
        meter.stop()


def one_pair(case: str | Workload, base: Side, new: Side, plan: Plan = Plan(), seed: int = 0) -> float:  # noqa: B008
    """ln(new / base) of one fresh pair of processes, taken again while the machine changes under it.

    Raises: BackendUnavailableError, MeasureError, CaseError.
    """
    work, rng = workload(case), random.Random(seed or time.time_ns())
    for left in reversed(range(plan.retries + 1)):
        meters = opened((base, new), plan, rng)
        try:
            taken = take(meters, work, plan, rng)
        finally:
            close(meters)
        if not taken.disturbed or not left:
            break
    return taken.log_ratio()


# ---- comparisons


def compare(case: str | Workload, base: Side, new: Side, plan: Plan = Plan()) -> Estimate:  # noqa: B008
    """Is `new` slower than `base` on this case? Raises: BackendUnavailableError where a side cannot be loaded."""
    return compare_all([workload(case)], base, new, plan)[0]


def compare_inputs(base: Workload, new: Workload, side: Side, plan: Plan = Plan()) -> Estimate:  # noqa: B008
    """Does one side take longer on other inputs of the same model? Raises: BackendUnavailableError."""
    return compare_all([base], side, side, replace(plan, skip_unchanged=False), others={base.name: new})[0]


@dataclass
class _Open:
    """A case under way."""

    work: Workload
    values: list[float]
    control: list[float]
    other: Workload | None = None
    seconds: float = 0.0
    repeated: int = 0
    starts: tuple[dict[str, Any], ...] = ()
    last: Taken | None = None
    failure: str = ""
    verdict: Call | None = None


def compare_all(
    works: Sequence[Workload],
    base: Side,
    new: Side,
    plan: Plan = Plan(),  # noqa: B008
    progress: Callable[[int, int, int], None] = lambda pairs, open_cases, cases: None,
    others: Mapping[str, Workload] | None = None,
) -> list[Estimate]:
    """Every case in each set of fresh processes; later sets only for cases that are not decided yet.

    `others` gives the new side another workload under the name of a case.

    Raises: BackendUnavailableError where a side cannot be loaded.
    """
    rng = random.Random(plan.seed or time.time_ns())
    found: dict[str, Estimate] = {}
    timed: list[_Open] = []
    for work in works:
        same = plan.skip_unchanged and identity(base, work) == identity(new, work)
        if same:
            found[work.name] = unchanged(work.name, "the same model, feeds, options, kernels and build: not timed")
        else:
            timed.append(_Open(work, [], [], other=dict(others or {}).get(work.name)))
    sides = (base, new, base) if plan.control else (base, new)
    suite_sd = ASSUMED
    for done in itertools.count(1):
        waiting = [c for c in timed if c.verdict is None]
        if not waiting:
            break
        progress(done, len(waiting), len(timed))
        _one_pass(waiting, sides, plan, rng, plan.pair_s if done <= plan.first else plan.more_s)
        suite_sd = _suite_sd(timed, suite_sd)
        for case in waiting:
            case.verdict = (
                Call.UNCLEAR if case.failure else decide(plan, case.values, case.control, suite_sd, len(timed))
            )
    for case in timed:
        found[case.work.name] = _closed(case, plan, suite_sd, len(timed))
    return [found[w.name] for w in works]


def _one_pass(waiting: Sequence[_Open], sides: Sequence[Side], plan: Plan, rng: random.Random, pair_s: float) -> None:
    meters = opened(sides, plan, rng)
    try:
        for case in waiting:
            try:
                for left in reversed(range(plan.retries + 1)):
                    taken = take(meters, case.work, plan, rng, {1: case.other} if case.other else None, pair_s)
                    case.starts = case.starts or taken.starts  # only the first in a process is a start
                    case.seconds += taken.seconds
                    if not taken.disturbed or not left:
                        break
                    case.repeated += 1
            except MeasureError as error:
                case.failure = str(error)
                close(meters)
                meters = opened(sides, plan, rng)
                continue
            case.last = taken
            case.values.append(taken.value())
            if len(sides) > 2:
                case.control.append(taken.log_ratio(0, 2))
    finally:
        close(meters)


def _suite_sd(cases: Sequence[_Open], assumed: float) -> float:
    """Spread of one pair at no change over the whole suite, from all controls so far."""
    controls = [v for c in cases for v in c.control]
    if len(controls) < 6:
        return assumed
    return max(CONTROLLED * spread([*controls, *(-v for v in controls)]), 1e-4)


def _closed(case: _Open, plan: Plan, suite_sd: float, comparisons: int) -> Estimate:
    if case.failure or case.last is None:
        return untold(case.work.name, case.failure, case.seconds)
    low = [median(min(turns) for turns in x) for x in case.last.lows]
    sd = noise_of(case.values, case.control, suite_sd)
    starts = case.starts
    detail = {
        "visible": visible(plan, sd, len(case.values), comparisons),
        "suite_sd": suite_sd,
        "first_base_ns": starts[0]["first_ns"],
        "first_new_ns": starts[1]["first_ns"],
        "peak_rss_base_bytes": starts[0]["peak_rss_bytes"],
        "peak_rss_new_bytes": starts[1]["peak_rss_bytes"],
    }
    assert case.verdict is not None
    return estimate(
        plan, case.work.name, case.values, case.control, suite_sd, case.verdict, seconds=round(case.seconds, 3),
        base_ns=low[0], new_ns=low[1], repeated=case.repeated, detail=detail,
    )  # fmt: skip
