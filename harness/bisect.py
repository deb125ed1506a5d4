"""Which commit or release changed a verdict, bits, a count, or a latency; with the evidence of each look."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import bisect_noise, bisect_search
from .bisect_git import UnbuildableError, history
from .bisect_notebook import (
    CANNOT_TELL,
    CULPRIT,
    GIT,
    NO_STEP,
    UNAVAILABLE,
    Notebook,
    Report,
)
from .bisect_probe import COUNT, LATENCY, Answer
from .bisect_search import BAD, GOOD, SKIP, History

LOOKS = 7  # releases tried between the ends before halving


# ---- exact answers


def like(value: str, good: str, bad: str, what: str) -> str:
    """Whether a value belongs to the good end, to the bad end, or to neither.

    A count belongs to the nearer end, and another symptom of a failure to the end that fails.
    """
    if value in (good, bad):
        return GOOD if value == good else BAD
    kind, old, new = (v.partition(":")[0] for v in (value, good, bad))
    if old != new and kind in (old, new):
        return GOOD if kind == old else BAD
    if what.partition(":")[0] == COUNT and all(v.isdecimal() for v in (value, good, bad)):
        return BAD if abs(int(value) - int(bad)) < abs(int(value) - int(good)) else GOOD
    return SKIP


def exact_commits(notebook: Notebook, lines: History, good: str) -> Report:
    """The first commit whose answer is that of the bad end, one run a step."""
    q, bad = notebook.question, lines.names[-1]
    ends = [notebook.answer(place) for place in (good, bad)]
    if None in ends:
        missing = good if ends[0] is None else bad
        return notebook.report(UNAVAILABLE, f"the {'good' if missing == good else 'bad'} end gives no answer")
    old, new = (a for a in ends if a is not None)
    _say(notebook, good, old, "the good end")
    _say(notebook, bad, new, f"the bad end, {len(lines.names)} commits away")
    if old.value == new.value:
        return notebook.report(NO_STEP, f"both ends give {old.value}")
    search, last_good = bisect_search.start(lines), good
    while (i := bisect_search.next_test(search)) is not None:
        answer = notebook.answer(lines.names[i])
        verdict = SKIP if answer is None else like(answer.value, old.value, new.value, q.what)
        search = bisect_search.judged(search, i, verdict)
        if verdict == GOOD:
            last_good = lines.names[i]
        if answer is not None:
            left, more = search.suspects.bit_count(), bisect_search.steps_left(search)
            _say(notebook, lines.names[i], answer, f"{verdict}; {left} left, about {more} steps")
    first, *also = bisect_search.culprits(search)
    found = notebook.found(last_good, lines.names[first], [lines.names[i] for i in also])
    reason = f"{found.title}: {old.value} -> {new.value}"
    if also:
        reason += f" (or one of {len(also)} before it that cannot be judged)"
    return notebook.report(CULPRIT, reason, found=(found,))


def _say(notebook: Notebook, place: str, answer: Answer, why: str) -> None:
    evidence = f" ({answer.message[:100]})" if answer.message else ""
    notebook.tell(f"{notebook.title(place)}: {answer.value}{evidence} - {why}")


def exact_releases(notebook: Notebook, places: Sequence[str]) -> Report:
    """Every change of the answer along releases: also what broke and was mended between ends that agree."""

    def value(i: int) -> str | None:
        known = places[i] in seen
        answer = notebook.answer(places[i])
        if answer is not None and not known:
            _say(notebook, places[i], answer, "asked")
        seen.add(places[i])
        return answer.value if answer else None

    seen: set[str] = set()
    changes = bisect_search.changes(len(places), value, LOOKS)
    if not notebook.looks:
        return notebook.report(UNAVAILABLE, "no release could be installed and asked")
    if not changes:
        return notebook.report(NO_STEP, f"all {len(seen) - notebook.unbuildable} releases asked give the same")
    found = tuple(notebook.found(places[c.before], places[c.after], [places[i] for i in c.between]) for c in changes)
    reason = "; ".join(f"{f.title}: {f.before.value} -> {f.after.value}" for f in found)
    return notebook.report(CULPRIT, reason, found=found)


# ---- noisy answers


def noisy(notebook: Notebook, lines: History, good: str) -> Report:
    """The commit at which a latency steps, to the confidence asked for; `no step` and `cannot tell` are answers too."""
    bad = lines.names[-1]
    try:
        ends = _ends(notebook, good, bad)
    except UnbuildableError as error:
        return notebook.report(UNAVAILABLE, f"an end cannot be measured: {error}")
    interval = tuple(math.expm1(ends.effect + s * 1.96 * ends.error) for s in (-1, 1))
    told: dict[str, Any] = {"effect": math.expm1(ends.effect), "interval": interval}
    if ends.decision != bisect_noise.STEP:
        return _no_step(notebook, ends, told)
    belief = bisect_noise.believe(lines, ends)
    spent = [0] * len(lines.names)
    while True:
        group, share = bisect_noise.best(belief)
        if share >= notebook.question.confidence:
            break
        i = bisect_noise.next_look(belief, spent, notebook.question.pairs)
        if i is None:
            reason = f"{notebook.question.pairs} pairs of each commit leave the likeliest at {share:.0%}"
            return notebook.report(CANNOT_TELL, reason, confidence=share, **told)
        place = lines.names[i]
        try:
            pair = notebook.pair(place, good)
        except UnbuildableError:
            belief = bisect_noise.cannot(belief, i)
            continue
        spent[i] += 1
        belief = bisect_noise.looked(belief, i, pair)
        top, share = bisect_noise.best(belief)
        likely = notebook.title(lines.names[top[0]])
        notebook.tell(f"{notebook.title(place)}: {math.expm1(pair):+.1%} - likeliest {likely} at {share:.1%}")
    return _name(notebook, lines, belief, ends, group, share, good, told)


def _ends(notebook: Notebook, good: str, bad: str) -> bisect_noise.Ends:
    """Pairs of the two ends, and of the good end with itself, until they decide. Raises: UnbuildableError."""
    step: list[float] = []
    same: list[float] = []
    smallest = math.log1p(notebook.question.smallest)
    while True:
        step.append(notebook.pair(bad, good))
        same.append(notebook.pair(good, good))
        ends = bisect_noise.verify(step, same, smallest)
        if len(step) < bisect_noise.FEW:
            notebook.tell(f"ends: {math.expm1(step[0]):+.1%}, the good end against itself {math.expm1(same[0]):+.1%}")
        else:
            notebook.tell(
                f"ends: {_size(ends)} in {len(step)} pairs, noise of a pair {ends.sigma:.1%}: {ends.decision}"
            )
        if ends.decision != bisect_noise.MORE or len(step) >= notebook.question.pairs:
            return ends


def _confirmed(notebook: Notebook, culprit: str, before: str, ends: bisect_noise.Ends) -> bisect_noise.Ends:
    """Fresh pairs of the two, until they decide."""
    fresh: list[float] = []
    while True:
        fresh.append(notebook.pair(culprit, before))
        seen = bisect_noise.confirm(fresh, ends, math.log1p(notebook.question.smallest))
        if seen.decision != bisect_noise.MORE or len(fresh) >= notebook.question.pairs:
            break
    told = f"{_size(seen)} in {len(fresh)} fresh pairs"
    notebook.tell(f"{notebook.title(culprit)} against the commit before it: {told}: {seen.decision}")
    return seen


def _size(ends: bisect_noise.Ends) -> str:
    """The step with its 95 % interval."""
    return f"{math.expm1(ends.effect):+.1%} +- {1.96 * ends.error:.1%}"


def _no_step(notebook: Notebook, ends: bisect_noise.Ends, told: Mapping[str, Any]) -> Report:
    smallest = notebook.question.smallest
    if ends.decision == bisect_noise.NONE:
        reason = f"the ends differ by {math.expm1(ends.effect):+.1%}: less than {smallest:.1%}"
        return notebook.report(NO_STEP, reason, **told)
    if ends.decision == bisect_noise.UNSTEADY:
        reason = "the good end differs from itself: the machine is not steady enough"
        return notebook.report(CANNOT_TELL, reason, **told)
    reason = f"the ends differ by {_size(ends)}: neither a step nor none"
    return notebook.report(CANNOT_TELL, reason, **told)


def _name(
    notebook: Notebook,
    lines: History,
    belief: bisect_noise.Belief,
    ends: bisect_noise.Ends,
    group: Sequence[int],
    share: float,
    good: str,
    told: Mapping[str, Any],
) -> Report:
    """The culprit, after it and the commit before it were measured once more."""
    first, *also = group
    inside = belief.history.ancestors[first]
    older = [i for i in bisect_search.indices(inside) if i not in group and notebook.pairs(lines.names[i])]
    before = lines.names[older[-1]] if older else good
    culprit = lines.names[first]
    step = ""
    try:
        for place in (before, culprit):
            while place != good and len(notebook.pairs(place)) < bisect_noise.enough(ends.effect):
                notebook.pair(place, good)
        pairs_before = notebook.pairs(before) if before != good else ()
        wrong = bisect_noise.contradicts(notebook.pairs(culprit), pairs_before, ends)
        if not wrong:
            seen = _confirmed(notebook, culprit, before, ends)
            step = f"{_size(seen)} against the commit before it"
            wrong = "" if seen.decision == bisect_noise.STEP else f"it measures {step}"
    except UnbuildableError as error:
        return notebook.report(CANNOT_TELL, f"{notebook.title(place)}: {error}", **told)
    found = notebook.found(before, culprit, [lines.names[i] for i in also])
    if wrong:
        return notebook.report(CANNOT_TELL, f"likely {found.title}, but {wrong}", confidence=share, **told)
    reason = f"{found.title}: {math.expm1(ends.effect):+.1%} against the good end, {step}, confidence {share:.2%}"
    if also:
        reason += f" (or one of {len(also)} before it that cannot be built)"
    return notebook.report(CULPRIT, reason, found=(found,), confidence=share, **told)


# ---- a whole bisect


def answer(notebook: Notebook) -> Report:
    """The answer to the notebook's question. Raises: CaseError where the question itself is at fault."""
    question = notebook.question
    good, bad = question.places[0], question.places[-1]
    if question.where == GIT:
        lines = history(Path(question.repository), good, bad, question.first_parent)
    else:
        lines = bisect_search.line(question.places[1:])
    if question.what == LATENCY:
        return noisy(notebook, lines, good)
    return exact_commits(notebook, lines, good) if question.where == GIT else exact_releases(notebook, question.places)
