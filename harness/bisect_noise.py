"""Where to look next when each look is a noisy latency: a posterior over commits and over the size of the step.

A look is the log ratio of one fresh pair of processes, a commit against the good end. Pure: measuring is the caller's.
Source: noisy binary search; anchored pairs, so that drift of the machine cancels within each look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from opgauge.reference_engine.types import Array

from .bisect_search import History, indices, trust

STEP, NONE, MORE, UNSTEADY = "step", "no step", "more", "unsteady"
FREEDOM = 3.0  # of Student's t: pairs have outliers
FLOOR = 0.004  # pairs may agree by luck; no machine of ours repeats better
SURE = 3.3  # standard errors, for a decision that may be taken after any pair
ABSENT = 2.6
MEDIAN_SE = math.sqrt(math.pi / 2)
FIRST = 5  # pairs before anything is decided
OBVIOUS, FEW = math.log(1.5), 2  # a step that large needs no more pairs, nor a fine notion of the noise
EFFECTS = 11
SIGMAS = (0.7, 1.0, 1.5, 2.2)  # a few pairs of the ends say little of the noise: the later ones decide among these
NEW_BUILD = 0.5  # what a look at a commit that must first be built is worth against one that is there


def enough(effect: float) -> int:
    """Pairs before anything is decided of a step of this size."""
    return FEW if abs(effect) > OBVIOUS else FIRST


def scale(pairs: Sequence[float], center: float) -> float:
    """The robust spread of log ratios."""
    return float(1.4826 * np.median(np.abs(np.asarray(pairs) - center)))


@dataclass(frozen=True)
class Ends:
    """What the pairs of the two ends say: the step as a log ratio, its error, and the noise of one pair."""

    decision: str
    effect: float
    error: float
    sigma: float


def verify(step: Sequence[float], same: Sequence[float], smallest: float) -> Ends:
    """Is there a step between the ends? `step` are pairs bad/good, `same` pairs good/good, `smallest` a log ratio.

    `unsteady` where the good end differs from itself by more than `smallest`.
    """
    effect = float(np.median(step))
    middle = float(np.median(same))
    spread = [*(x - effect for x in step), *(x - middle for x in same)]
    few = math.sqrt(len(spread) / max(1, len(spread) - 2))  # two medians were taken from these pairs
    nearest = min(abs(x) for x in step)
    obvious = nearest > OBVIOUS and max(abs(x) for x in same) < nearest / 4
    sigma = max(few * scale(spread, 0.0), FLOOR, abs(effect) / 20 if obvious else 0.0)
    error = MEDIAN_SE * sigma / math.sqrt(len(step))
    decision = MORE
    if min(len(step), len(same)) >= (FEW if obvious else FIRST):
        if abs(middle) - SURE * MEDIAN_SE * sigma / math.sqrt(len(same)) > smallest / 2:
            decision = UNSTEADY
        elif abs(effect) - SURE * error > smallest / 2:
            decision = STEP
        elif abs(effect) + ABSENT * error < smallest:
            decision = NONE
    return Ends(decision, effect, error, sigma)


@dataclass(frozen=True)
class Belief:
    """log P(culprit, effect, noise | pairs), not normalised, [candidates, columns]; `built`, `skipped` are bit sets.

    A column is a size of the step with a size of the noise.
    """

    history: History
    effects: Array
    sigmas: Array
    log_weight: Array
    built: int
    skipped: int = 0


def believe(history: History, ends: Ends) -> Belief:
    """Before any look: every candidate alike, the effect as the ends show it."""
    offsets, factors = (x.ravel() for x in np.meshgrid(np.linspace(-3, 3, EFFECTS), SIGMAS))
    effects, sigmas = ends.effect + offsets * factors * ends.error, factors * ends.sigma
    prior = np.tile(-0.5 * offsets**2, (len(history.names), 1))
    return Belief(history, effects, sigmas, prior, 1 << (len(history.names) - 1))


def _log_density(residual: Array | float, sigmas: Array) -> Array:
    """Student's t but for its constant: outliers decide nothing."""
    return -np.log(sigmas) - (FREEDOM + 1) / 2 * np.log1p((np.asarray(residual) / sigmas) ** 2 / FREEDOM)


def looked(belief: Belief, i: int, pair: float) -> Belief:
    """The belief after one pair of candidate i: culprits that i contains explain it by the effect, others by noise."""
    slow = _log_density(pair - belief.effects, belief.sigmas)
    same = _log_density(pair, belief.sigmas)
    held = belief.history.ancestors[i]
    inside = np.array([held >> k & 1 for k in range(len(belief.history.names))], bool)
    log_weight = belief.log_weight + np.where(inside[:, None], slow[None, :], same[None, :])
    return replace(belief, log_weight=log_weight - log_weight.max(), built=belief.built | 1 << i)


def cannot(belief: Belief, i: int) -> Belief:
    """The belief after candidate i could not be built."""
    return replace(belief, skipped=belief.skipped | 1 << i)


def posterior(belief: Belief) -> Array:
    """P(culprit), [candidates]."""
    weight = np.exp(belief.log_weight).sum(axis=1)
    return weight / weight.sum()


def groups(belief: Belief) -> list[tuple[int, ...]]:
    """Candidates that no look can tell apart: each that can be built, with those before it that cannot."""
    able = [i for i in range(len(belief.history.names)) if not belief.skipped >> i & 1]
    alike: dict[tuple[bool, ...], list[int]] = {}
    if belief.history.ancestors == tuple((2 << i) - 1 for i in range(len(belief.history.names))):
        run: list[int] = []  # the usual case, in one pass
        found = []
        for i in range(len(belief.history.names)):
            run.append(i)
            if not belief.skipped >> i & 1:
                found.append((i, *run[:-1]))
                run = []
        return found
    for k in range(len(belief.history.names)):
        alike.setdefault(tuple(bool(belief.history.ancestors[i] >> k & 1) for i in able), []).append(k)
    return [tuple(sorted(g, key=lambda k: (belief.skipped >> k & 1, k))) for g in alike.values()]


def best(belief: Belief) -> tuple[tuple[int, ...], float]:
    """The likeliest group, who can be built first, and its probability."""
    weight = posterior(belief)
    ranked = [(float(weight[list(group)].sum()), group) for group in groups(belief)]
    share, group = max(ranked)
    return group, share


def next_look(belief: Belief, spent: Sequence[int], limit: int) -> int | None:
    """The candidate to measure next; None where all that would tell something had `limit` pairs.

    `spent[i]` pairs were measured of i. A look tells most where P(slow) is near one half.
    """
    weight = posterior(belief)
    skipped = indices(belief.skipped)
    top, most = None, 0.0
    for i, held in enumerate(belief.history.ancestors):
        if belief.skipped >> i & 1 or spent[i] >= limit:
            continue
        slow = float(weight[indices(held)].sum())
        gain = min(slow, 1 - slow)
        if not belief.built >> i & 1:
            gain *= NEW_BUILD * trust(i, skipped)
        if gain > most:
            top, most = i, gain
    return top


def confirm(pairs: Sequence[float], ends: Ends, smallest: float) -> Ends:
    """Is the step between the culprit and the commit before it? `pairs` are fresh ones of the two.

    The pairs that chose a culprit are those that speak for it: under load a wrong one was chosen in one bisect of
    eight, at a confidence of 99 %. Their spread is their own where it is more than that of the ends.
    """
    effect = float(np.median(pairs))
    count = len(pairs)
    sigma = max(math.sqrt(count / max(1, count - 1)) * scale(pairs, effect), ends.sigma)
    error = MEDIAN_SE * sigma / math.sqrt(count)
    along = math.copysign(effect, effect * ends.effect)
    decision = MORE
    if count >= enough(ends.effect):
        if along - ABSENT * error > smallest / 2:
            decision = STEP
        elif along + ABSENT * error < abs(ends.effect) / 2:
            decision = NONE
    return Ends(decision, effect, error, sigma)


def contradicts(pairs_after: Sequence[float], pairs_before: Sequence[float], ends: Ends) -> str:
    """What the culprit and the one before it say against a single step of the effect's size, or an empty string."""
    for name, pairs, expected in (("culprit", pairs_after, ends.effect), ("commit before it", pairs_before, 0.0)):
        if not len(pairs):
            continue
        seen = float(np.median(pairs))
        allowed = max(SURE * MEDIAN_SE * ends.sigma * math.sqrt(1 / len(pairs)) + 2 * ends.error, abs(ends.effect) / 3)
        if abs(seen - expected) > allowed:
            told, wanted = math.expm1(seen), math.expm1(expected)
            return f"the {name} measures {told:+.1%}, expected {wanted:+.1%}: more than one step?"
    return ""
