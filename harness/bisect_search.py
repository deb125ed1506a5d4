"""Where to look next when each look gives an exact answer: histories that branch, and lines with several changes.

Pure: what is asked of a commit or a release is the caller's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

GOOD, BAD, SKIP = "good", "bad", "skip"


@dataclass(frozen=True)
class History:
    """Candidates, older ones first. `ancestors[i]` is the bit set of those that i contains, itself among them.

    The good end is no candidate; the last candidate is the bad end and contains all.
    """

    names: tuple[str, ...]
    ancestors: tuple[int, ...]


def line(names: Sequence[str]) -> History:
    """A history without branches."""
    return History(tuple(names), tuple((2 << i) - 1 for i in range(len(names))))


def graph(names: Sequence[str], parents: Sequence[Sequence[str]]) -> History:
    """A history with merges; parents that are no candidates lie before the good end."""
    number = {name: i for i, name in enumerate(names)}
    ancestors: list[int] = []
    for i, above in enumerate(parents):
        held = 1 << i
        for parent in above:
            if parent in number:
                held |= ancestors[number[parent]]
        ancestors.append(held)
    return History(tuple(names), tuple(ancestors))


def indices(bits: int) -> list[int]:
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


@dataclass(frozen=True)
class Search:
    """What is known: the commits that may be the culprit, and those that cannot be built or judged."""

    history: History
    suspects: int
    skipped: int = 0


def start(history: History) -> Search:
    return Search(history, history.ancestors[-1])


def judged(search: Search, i: int, verdict: str) -> Search:
    """The search after candidate i was found `good`, `bad`, or could not be judged (`skip`)."""
    held = search.history.ancestors[i]
    if verdict == SKIP:
        return replace(search, skipped=search.skipped | 1 << i)
    return replace(search, suspects=search.suspects & held if verdict == BAD else search.suspects & ~held)


def trust(i: int, skipped: Sequence[int]) -> float:
    """How likely a candidate can be built, by its distance to those that cannot: they come in runs."""
    return 1 - 1 / (1 + min((abs(i - s) for s in skipped), default=1 << 30))


def next_test(search: Search) -> int | None:
    """The candidate whose verdict halves the suspects best, None where none would tell anything more."""
    total = search.suspects.bit_count()
    skipped = indices(search.skipped)
    best, most = None, 0.0
    for i in indices(search.suspects & ~search.skipped):
        inside = (search.history.ancestors[i] & search.suspects).bit_count()
        gain = min(inside, total - inside) * trust(i, skipped)
        if gain > most:
            best, most = i, gain
    return best


def culprits(search: Search) -> list[int]:
    """Who is left: first the candidate that was seen bad, then those before it that could not be judged."""
    left = indices(search.suspects)
    seen = [i for i in left if not search.skipped >> i & 1]
    return [*seen, *(i for i in left if i not in seen)]


def steps_left(search: Search) -> int:
    return max(0, (search.suspects & ~search.skipped).bit_count() - 1).bit_length()


# ---- lines on which a value may change several times


@dataclass(frozen=True)
class Change:
    """The value of place `before` is not that of place `after`; `between` lie places that gave none."""

    before: int
    after: int
    between: tuple[int, ...] = ()


def changes(count: int, value: Callable[[int], str | None], looks: int = 0) -> list[Change]:
    """Every change that halving finds on a line of `count` places; `value` gives None where there is none.

    Places without a value at the ends are left out. Up to `looks` evenly spaced places are tried first: what changes
    and changes back between two of them stays unseen.
    """
    low = next((i for i in range(count) if value(i) is not None), None)
    high = next((i for i in reversed(range(count)) if value(i) is not None), None)
    if low is None or high is None or low == high:
        return []
    tried = {low + round((high - low) * k / (looks + 1)) for k in range(1, looks + 1)} - {low, high}
    stops = [low, *(i for i in sorted(tried) if value(i) is not None), high]
    return [c for a, b in itertools.pairwise(stops) for c in _between(a, b, value)]


def _between(low: int, high: int, value: Callable[[int], str | None]) -> list[Change]:
    if value(low) == value(high):
        return []
    skipped: list[int] = []
    while True:
        inside = [i for i in range(low + 1, high) if i not in skipped]
        if not inside:
            return [Change(low, high, tuple(range(low + 1, high)))]
        middle = max(inside, key=lambda i: min(i - low, high - i) * trust(i, skipped))
        found = value(middle)
        if found is None:
            skipped.append(middle)
            continue
        return [*_between(low, middle, value), *_between(middle, high, value)]
