"""From log ratios of process pairs to a verdict: numbers in, numbers out, no process and no clock.

The unit of noise is the pair of fresh processes: addresses and placement differ by process, so rounds inside one
pair agree with each other more than with the next pair, and intervals come from resampling pairs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist, median

TO_SD = 1.4826  # median absolute deviation to standard deviation, for normal numbers
MEDIAN_WIDTH = 1.2533  # sd of a median of n over sd of a mean of n
RESAMPLES = 2000
PRIOR = 6  # pairs that the suite's noise counts for in the noise of a case
CONTROLLED = math.sqrt(0.75)  # noise of ln(new / mean of two bases) over that of ln(base / base)


class Call(StrEnum):
    """What a comparison says."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    UNCLEAR = "cannot tell"


@dataclass(frozen=True)
class Plan:
    """How a comparison is made. Shares (`alarm`, `limit`) are of the time of one call: 0.02 is +2 %.

    `first` pairs of `pair_s` seconds (per side beyond the first) for every case, then pairs of `more_s` seconds for
    those not yet decided, until `most`. A case is the same as soon as `settle` errors above its estimate are still
    below `alarm`; an alarm is an estimate beyond `alarm` and beyond `sigmas` times the noise of this case, and still
    is one after `confirm` more pairs (beyond `most`, if need be). `control` measures the base against itself too.
    """

    first: int = 2
    most: int = 16
    confirm: int = 4
    pair_s: float = 0.25
    more_s: float = 0.5
    block_s: float = 0.001
    warm_s: float = 0.02
    alarm: float = 0.014
    limit: float = 0.05
    settle: float = 1.0
    sigmas: float = 4.0
    confidence: float = 0.99
    control: bool = True
    skip_unchanged: bool = True
    retries: int = 1
    timeout_s: float = 120.0
    seed: int = 0


@dataclass(frozen=True)
class Estimate:
    """One comparison. `log_ratio` = ln(new / base) with its interval; `noise` the sd of the estimate at no change.

    `values` are the pairs, `control` the base against itself; times in ns; `repeated` pairs were measured again
    because load, frequency or cores changed; `reason` says why a case was not timed or cannot be told.
    """

    name: str
    log_ratio: float
    low: float
    high: float
    pairs: int
    seconds: float
    verdict: Call
    noise: float
    values: tuple[float, ...] = ()
    control: tuple[float, ...] = ()
    base_ns: float = 0.0
    new_ns: float = 0.0
    repeated: int = 0
    reason: str = ""
    detail: dict[str, float] = field(default_factory=dict)

    @property
    def change(self) -> float:
        """new / base - 1."""
        return math.expm1(self.log_ratio)


def spread(values: Sequence[float]) -> float:
    """A standard deviation that a few wild values do not move; about their median.

    Source: Croux and Rousseeuw, Time-efficient algorithms for two highly robust estimators of scale (1992): few
    values lie closer to their own median, by n / (n - 0.8).
    """
    middle, n = median(values), len(values)
    return TO_SD * n / (n - 0.8) * median(abs(v - middle) for v in values)


def resampled(values: Sequence[float], confidence: float, seed: int = 0) -> tuple[float, float]:
    """Interval of the median by resampling pairs with replacement."""
    if len(values) < 2:
        return (values[0], values[0]) if values else (0.0, 0.0)
    rng = random.Random(seed)
    middles = sorted(median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    cut = int((1 - confidence) / 2 * RESAMPLES)
    return middles[cut], middles[-1 - cut]


def sd_of_estimate(pairs: int, sd: float) -> float:
    """sd of the median of `pairs` log ratios of spread `sd`; the median of two is their mean."""
    return sd * (MEDIAN_WIDTH if pairs > 2 else 1.0) / math.sqrt(max(pairs, 1))


def noise_of(values: Sequence[float], control: Sequence[float], suite_sd: float) -> float:
    """Spread of one pair for this case: what its own pairs and its control show, and the suite's where they are few.

    The spread about the median is not a measure of the effect: a real slowdown does not widen it. A case is never
    taken for quieter than it shows itself to be, and the less it has shown the noisier: few values agree by luck.
    """
    own = [(spread(v) * scale) ** 2 for v, scale in ((values, 1.0), (control, CONTROLLED)) for _ in v if len(v) > 2]
    pooled = math.sqrt((sum(own) + PRIOR * suite_sd**2) / (len(own) + PRIOR))
    return max(pooled, (1 + 2 / len(own)) * math.sqrt(sum(own) / len(own))) if own else pooled


def threshold(plan: Plan, sd: float, pairs: int, comparisons: int = 1, floor: bool = True) -> float:
    """The log ratio that is an alarm: `alarm`, or more where noise or the number of comparisons asks for it.

    `sigmas` (4) allow one comparison in 30,000 a false alarm if noise is normal; a suite of m comparisons is kept
    at 1 % for all of them together.
    """
    needed = max(plan.sigmas, NormalDist().inv_cdf(1 - 0.01 / 2 / max(comparisons, 1)))
    return max(math.log1p(plan.alarm) if floor else 0.0, needed * sd_of_estimate(pairs, sd))


def visible(plan: Plan, sd: float, pairs: int, comparisons: int = 1) -> float:
    """The smallest slowdown, as a share, that nine of ten runs with this noise would confirm."""
    return math.expm1(threshold(plan, sd, pairs, comparisons) + 1.2816 * sd_of_estimate(pairs, sd))


def decide(
    plan: Plan, values: Sequence[float], control: Sequence[float], suite_sd: float, comparisons: int = 1
) -> Call | None:
    """The verdict on log ratios of pairs so far, or None: more pairs are needed.

    The question is whether the new side is slower, so a case whose estimate is low enough is the same after any
    number of pairs from `first` on, if they would show `limit`; one that seems faster is measured on to be told so.
    An early alarm needs pairs that all agree and a margin that is wider the fewer they are, since there are many
    looks. At `most` an estimate between is `same` where its interval excludes `limit`, else it cannot be told. A
    control that alarms as well says that the noise is not what it was thought to be: then nothing can be told.

    An alarm is the look at which the estimate stood highest above a noise that few pairs made look small. So `confirm`
    fresh pairs must show half of `alarm` by themselves, and all pairs together be an alarm still.
    """
    said = None
    for n in range(plan.first, len(values) + 1):
        said = _look(plan, values[:n], control[:n], suite_sd, comparisons)
        if plan.confirm and said in (Call.SLOWER, Call.FASTER):
            return _confirmed(plan, values, control, suite_sd, comparisons, n)
    return said


def _confirmed(
    plan: Plan, values: Sequence[float], control: Sequence[float], suite_sd: float, comparisons: int, alarmed: int
) -> Call | None:
    """What became of an alarm at so many pairs."""
    n = len(values)
    if n < alarmed + plan.confirm:
        return None
    sd, middle, fresh = noise_of(values, control, suite_sd), median(values), median(values[alarmed:])
    again = fresh * middle > 0 and abs(fresh) > math.log1p(plan.alarm) / 2
    if again and abs(middle) > threshold(plan, sd, n, comparisons):
        return _direction(plan, middle, control, sd, comparisons)
    return None if n < plan.most else _settled(plan, middle, sd_of_estimate(n, sd))


def _look(
    plan: Plan, values: Sequence[float], control: Sequence[float], suite_sd: float, comparisons: int
) -> Call | None:
    n = len(values)
    sd = noise_of(values, control, suite_sd)
    middle, error = median(values), sd_of_estimate(n, sd)
    alarm = math.log1p(plan.alarm)
    if n < plan.most:
        seen = visible(plan, sd, n, comparisons) <= plan.limit
        if seen and -alarm <= middle <= alarm - plan.settle * error:
            return Call.SAME
        agreed = min(values) > 0 or max(values) < 0
        early = max(alarm, (1 + 2 / n) * threshold(plan, sd, n, comparisons, floor=False))
        if n >= max(4, 2 * plan.first) and agreed and abs(middle) > early:
            return _direction(plan, middle, control, sd, comparisons)
        return None
    if abs(middle) > threshold(plan, sd, n, comparisons):
        return _direction(plan, middle, control, sd, comparisons)
    return _settled(plan, middle, error)


def _settled(plan: Plan, middle: float, error: float) -> Call:
    """The same where the interval excludes the limit, else nothing can be told."""
    return Call.SAME if abs(middle) + 2.576 * error < math.log1p(plan.limit) else Call.UNCLEAR


def _direction(plan: Plan, middle: float, control: Sequence[float], sd: float, comparisons: int) -> Call:
    if control and abs(median(control)) > threshold(plan, sd / CONTROLLED, len(control), comparisons):
        return Call.UNCLEAR
    return Call.SLOWER if middle > 0 else Call.FASTER


def estimate(
    plan: Plan,
    name: str,
    values: Sequence[float],
    control: Sequence[float],
    suite_sd: float,
    verdict: Call,
    **more: object,
) -> Estimate:
    """The estimate of a decided case: median over pairs, interval by resampling them, never narrower than the noise."""
    sd = noise_of(values, control, suite_sd)
    middle, error = median(values), sd_of_estimate(len(values), sd)
    low, high = resampled(values, plan.confidence, plan.seed)
    z = NormalDist().inv_cdf((1 + plan.confidence) / 2)
    return Estimate(
        name, middle, min(low, middle - z * error), max(high, middle + z * error), len(values), verdict=verdict,
        noise=error, values=tuple(values), control=tuple(control), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def unchanged(name: str, reason: str) -> Estimate:
    """A case that is the same by construction and was not timed."""
    return Estimate(name, 0.0, 0.0, 0.0, 0, 0.0, Call.SAME, 0.0, reason=reason)


def untold(name: str, reason: str, seconds: float = 0.0) -> Estimate:
    """A case that could not be measured."""
    return Estimate(name, 0.0, -math.inf, math.inf, 0, seconds, Call.UNCLEAR, math.inf, reason=reason)


def upper_rate(alarms: int, trials: int, confidence: float = 0.95) -> float:
    """Clopper-Pearson upper bound of a rate: what `alarms` in `trials` still allow."""
    if trials == 0 or alarms >= trials:
        return 1.0
    low, high = alarms / trials, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        tail = sum(math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(alarms + 1))
        low, high = (rate, high) if tail > 1 - confidence else (low, rate)
    return high
