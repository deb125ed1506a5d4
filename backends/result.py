"""What an adapter gives. Portable: adapters of foreign environments import it on Python 3.8."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Sequence, Tuple

import numpy as np


class RunResult(NamedTuple):
    """What an adapter returns: outputs in graph order, what it counted, what it timed."""

    outputs: Tuple[np.ndarray, ...]
    counts: Mapping[str, int] = {}
    times_ns: Mapping[str, int] = {}


class Runner:
    """An adapter that can do more than `run(model, inputs)`.

    `into(model, inputs, outputs)` computes into given arrays, so that they can be guarded and poisoned.
    `shapes(model, inputs)` gives [(dtype, shape)] of the outputs beforehand; without it the first call tells.
    `strict` kernels start no threads and take any address: nothing at all may be left behind.
    """

    def __init__(
        self,
        run: Callable[[bytes, Mapping[str, np.ndarray]], Any],
        into: Callable[[bytes, Mapping[str, np.ndarray], Sequence[np.ndarray]], Any] | None = None,
        shapes: Callable[[bytes, Mapping[str, np.ndarray]], Sequence[Any]] | None = None,
        strict: bool = False,
    ) -> None:
        self.run, self.into, self.shapes, self.strict = run, into, shapes, strict

    def __call__(self, model: bytes, inputs: Mapping[str, np.ndarray]) -> Any:
        return self.run(model, inputs)
