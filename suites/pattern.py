"""What a graph template is, and the small draws that all of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Array

from .sketch import Sketch

Built = tuple[bytes, dict[str, Array]]
Draw = Callable[[Sketch], Built]
F32 = "float32"


@dataclass(frozen=True)
class Template:
    """One row. `applies`: the rule has to change the graph; a near miss has to stay as it is.

    A rule that depends on the numbers too (is every table entry settled) applies to `share` of the draws at least.
    """

    rule: str
    label: str
    applies: bool
    draw: Draw
    share: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.rule}/{self.label}"

    def build(self, seed: int) -> Built:
        """The model and its inputs; the same seed gives the same bytes."""
        return self.draw(Sketch(np.random.Generator(np.random.PCG64(seed))))


def dims(s: Sketch, rank: int, high: int = 6) -> tuple[int, ...]:
    return tuple(int(d) for d in s.rng.integers(2, high + 1, rank))


def scale(s: Sketch) -> float:
    """A power of two in half of the draws: ties show there."""
    return float(2.0 ** s.rng.integers(-6, 0)) if s.rng.integers(2) else float(np.float32(s.rng.uniform(0.004, 0.1)))


def word(s: Sketch) -> str:
    return ("int8", "uint8")[int(s.rng.integers(2))]


def zero(s: Sketch, word: str) -> int:
    low, high = dt.limits(word)
    return int(s.rng.integers(low, high + 1))
