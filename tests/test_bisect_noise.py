"""Noisy search: simulated pairs, so that no clock decides a test."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from opgauge import bisect, store
from opgauge import bisect_noise as b
from opgauge.bisect_notebook import CANNOT_TELL, CULPRIT, RELEASES, Measure, Notebook, Question, Report
from opgauge.bisect_probe import Answer, Subject
from opgauge.bisect_search import History, graph, line
from opgauge.reference_engine.errors import BackendUnavailableError

LIMIT = 24


def draw(rng: np.random.Generator, effect: float, sigma: float = 0.012) -> float:
    """A pair with heavy tails, as real ones have."""
    return effect + sigma * float(rng.standard_t(4))


def simulate(
    history: History, culprit: int | None, effect: float, seed: int, broken: frozenset[int] = frozenset()
) -> tuple[str, int]:
    """(`no step`, `more`, `unsure` or the name that is found, builds)."""
    rng = np.random.default_rng(seed)
    step: list[float] = []
    same: list[float] = []
    while True:
        step.append(draw(rng, effect if culprit is not None else 0.0))
        same.append(draw(rng, 0.0))
        ends = b.verify(step, same, math.log1p(0.02))
        if ends.decision != b.MORE or len(step) == LIMIT:
            break
    if ends.decision != b.STEP:
        return ends.decision, 2
    belief, spent = b.believe(history, ends), [0] * len(history.names)
    while True:
        group, share = b.best(belief)
        if share >= 0.99:
            return history.names[group[0]], 2 + (belief.built | belief.skipped).bit_count() - 1
        i = b.next_look(belief, spent, LIMIT)
        if i is None:
            return "unsure", 2
        if i in broken:
            belief = b.cannot(belief, i)
            continue
        spent[i] += 1
        slow = culprit is not None and history.ancestors[i] >> culprit & 1
        belief = b.looked(belief, i, draw(rng, effect if slow else 0.0))


@pytest.mark.parametrize("share", [0.05, -0.05, 0.10, 39.0])
def test_the_culprit_of_a_step_is_named_with_few_builds(share: float) -> None:
    history = line([str(i) for i in range(100)])
    builds = []
    for seed in range(20):
        culprit = (seed * 37 + 11) % 100
        name, built = simulate(history, culprit, math.log1p(share), seed)
        assert name == str(culprit)
        builds.append(built)
    assert np.mean(builds) <= 12


def test_commits_that_cannot_be_built_are_stepped_over() -> None:
    history = line([str(i) for i in range(100)])
    broken = frozenset(range(3, 100, 10))
    for seed in range(15):
        culprit = (seed * 29 + 5) % 99
        culprit += culprit in broken
        name, _ = simulate(history, culprit, math.log1p(0.06), seed, broken)
        assert name == str(culprit)


def test_where_nothing_changed_no_commit_is_named() -> None:
    history = line([str(i) for i in range(100)])
    seen = [simulate(history, None, 0.0, seed)[0] for seed in range(60)]
    assert {*seen} <= {b.NONE, b.MORE}
    assert seen.count(b.NONE) > 50


def test_a_merge_is_searched_along_its_branches() -> None:
    names = ["a", "b", "x", "y", "c", "m", "d"]
    history = graph(names, [["good"], ["a"], ["a"], ["x"], ["b"], ["c", "y"], ["m"]])
    for seed, culprit in enumerate(range(len(names))):
        assert simulate(history, culprit, math.log1p(0.08), seed)[0] == names[culprit]


def test_a_good_end_that_differs_from_itself_decides_nothing() -> None:
    steady = [0.001, -0.002, 0.0015, 0.0, -0.001, 0.002]
    step = [x + 0.05 for x in steady]
    assert b.verify(step, steady, 0.02).decision == b.STEP
    assert b.verify(step, step, 0.02).decision == b.UNSTEADY
    assert b.verify(step[:2], steady[:2], 0.02).decision == b.MORE
    assert b.verify(steady, steady, 0.02).decision == b.NONE


def test_one_outlier_does_not_move_the_posterior_to_another_commit() -> None:
    ends = b.Ends(b.STEP, 0.05, 0.004, 0.01)
    belief = b.believe(line([str(i) for i in range(8)]), ends)
    for pair in (0.001, -0.6, 0.002, 0.0):  # candidate 3 is as fast as the good end, but for one pair
        belief = b.looked(belief, 3, pair)
    assert b.posterior(belief)[4:].sum() > 0.99
    assert b.posterior(b.looked(belief, 5, 0.05))[4:6].sum() > 0.9


def test_two_half_steps_are_not_told_as_one() -> None:
    ends = b.Ends(b.STEP, 0.10, 0.004, 0.01)
    assert b.contradicts([0.101, 0.1, 0.099, 0.1, 0.102], [0.001, 0.0, -0.001, 0.0, 0.001], ends) == ""
    assert "more than one step" in b.contradicts([0.101, 0.1, 0.099, 0.1], [0.05, 0.051, 0.049, 0.05], ends)


ENDS = b.Ends(b.STEP, math.log(1.05), 0.004, 0.006)


@pytest.mark.parametrize(
    ("middle", "spread", "count", "decision"),
    [
        (0.049, 0.004, 5, b.STEP),
        (0.049, 0.004, 4, b.MORE),
        (0.0, 0.004, 5, b.NONE),
        (-0.05, 0.004, 5, b.NONE),
        (0.049, 0.08, 5, b.MORE),
        (0.0, 0.08, 24, b.MORE),
    ],
    ids=["the step", "too few", "none", "the other way", "their own noise is larger", "and stays undecided"],
)
def test_fresh_pairs_confirm_a_culprit_or_do_not(middle: float, spread: float, count: int, decision: str) -> None:
    pairs = middle + spread * np.linspace(-1, 1, count)
    assert b.confirm(list(pairs), ENDS, math.log1p(0.02)).decision == decision


class Pretended(Notebook):
    """Builds nothing: places are numbers."""

    def title(self, place: str) -> str:
        return place

    def backend(self, place: str) -> str:
        return place


def asked(home: Path, measure: Measure) -> Report:
    question = Question(bisect.LATENCY, RELEASES, "", Subject("none"), tuple(str(i) for i in range(20)))
    with store.create(home) as journal:
        journal.append("question", {})
        return bisect.answer(Pretended(question, journal, lambda _: None, lambda *_: Answer(""), measure))


def slower(base: str, new: str, culprit: int = 7) -> float:
    """A step of 5 % at the culprit, with a little noise of its own for each pair."""
    noise = 0.002 * float(RNG.standard_normal())
    return noise + math.log(1.05) * ((int(new) >= culprit) - (int(base) >= culprit))


RNG = np.random.default_rng(0)


def drifting(base: str, new: str) -> float:
    """What looks like a step against the good end is none between neighbours."""
    return slower(base, new) if base == "0" else 0.002 * float(RNG.standard_normal())


def unloadable(base: str, new: str) -> float:
    if base != "0":
        raise BackendUnavailableError("died while loading")
    return slower(base, new)


@pytest.mark.parametrize(
    ("measure", "result", "words"),
    [
        (slower, CULPRIT, "against the commit before it, confidence"),
        (drifting, CANNOT_TELL, "likely 7, but it measures"),
        (unloadable, CANNOT_TELL, "7: died while loading"),
    ],
    ids=["a step", "none between neighbours", "not measured"],
)
def test_a_culprit_is_named_after_fresh_pairs_with_the_one_before(
    tmp_path: Path, measure: Measure, result: str, words: str
) -> None:
    report = asked(tmp_path, measure)
    assert report.result == result
    assert words in report.reason
    assert [found.place for found in report.found] == (["7"] if result == CULPRIT else [])
