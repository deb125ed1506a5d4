"""What an adapter gives. Portable: adapters of foreign environments import it on Python 3.8."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None  # type: ignore[assignment]

_NAMES = {"bfloat16": "bfloat16", **{word: word for word in ("int4", "uint4", "int2", "uint2")}}
_NAMES.update({f"float8{form}": f"float8_{form}" for form in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")})


def _dtype_of(word: str, name: str) -> np.dtype:
    if hasattr(ml_dtypes, name):
        return np.dtype(getattr(ml_dtypes, name))
    # Its bits, marked: numpy has no such type.
    return np.dtype(np.uint16 if word == "bfloat16" else np.uint8, metadata={"onnx": word})


# Element types that numpy has not, one element a byte or two.
FOREIGN = {word: _dtype_of(word, name) for word, name in _NAMES.items()}


def foreign_word(dtype: np.dtype) -> str:
    """The ONNX word of an element type that numpy has not, empty for any other."""
    marked = dict(dtype.metadata or {}).get("onnx", "")
    return marked or next((w for w, d in FOREIGN.items() if d == dtype and not d.metadata), "")


# A count: outputs whose shape the runtime had inferred, and that came out otherwise.
CONTRADICTED = "shapes_contradicted"


class RunResult(NamedTuple):
    """What an adapter returns: outputs in graph order, what it counted, what it timed."""

    outputs: Tuple[np.ndarray, ...]  # noqa: UP006  (evaluated on Python 3.8)
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
