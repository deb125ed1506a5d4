"""What a report shows besides the run itself: the run before, counts of models, latency, what probes told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .diff import Difference


@dataclass(frozen=True)
class Moves:
    """Counts of one model side by side, before optimisation first. `head` names the columns after the first.

    `came` says in words which nodes came from one column to the next.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    source: str
    came: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trend:
    """One measured ratio over commits or releases.

    `points` are (ratio, low, high), `labels` name them; `changes` are (position, what was found there, link).
    """

    name: str
    points: tuple[tuple[float, float, float], ...]
    labels: tuple[str, ...]
    changes: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True)
class Extras:
    """All of it may be missing. `cards` are (trait, property, answer) for each backend that was fingerprinted."""

    before: Difference | None = None
    moves: tuple[Moves, ...] = ()
    trends: tuple[Trend, ...] = ()
    cards: Mapping[str, tuple[tuple[str, str, str], ...]] = field(default_factory=dict)


NOTHING = Extras()
