"""Faults planted by opgauge's own tests: each object has id, op, ops, cls, title, run and reset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

Arrays = list[np.ndarray]


@dataclass
class Planted:
    id: str
    op: str
    cls: str
    title: str
    change: Callable[[Arrays, Arrays], Arrays]

    @property
    def ops(self) -> tuple[str, ...]:
        return (self.op,)

    def reset(self) -> None:
        pass

    def run(self, model_bytes: bytes, inputs: dict[str, np.ndarray], base: str = "ort") -> Arrays:
        model = onnx.load_model_from_string(model_bytes)
        stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        operands = [inputs.get(n, stored.get(n)) for n in model.graph.node[0].input if n]
        right = ReferenceEvaluator(model).run(None, dict(inputs))
        return [np.asarray(y) for y in self.change(operands, right)]


def _first(fn: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays, Arrays], Arrays]:
    return lambda _, outputs: [fn(np.array(y)) for y in outputs]


def _drop_nan(operands: Arrays, outputs: Arrays) -> Arrays:
    with np.errstate(invalid="ignore"):
        return [
            np.where(np.isnan(outputs[0]), np.fmax.reduce(np.broadcast_arrays(*operands)), outputs[0]).astype(
                outputs[0].dtype
            )
        ]


FAULTS = [
    Planted(
        "T1", "Relu", "numeric", "negative values leak", _first(lambda y: np.where(y == 0, -(y + 1), y).astype(y.dtype))
    ),
    Planted(
        "T2",
        "Transpose",
        "indexing",
        "result in reversed order",
        _first(lambda y: y.ravel()[::-1].reshape(y.shape).copy()),
    ),
    Planted("T3", "Max", "numeric", "NaN dropped", _drop_nan),
    Planted("T4", "Neg", "shape", "a leading dimension appears", _first(lambda y: y[None])),
]
BENIGN = [
    Planted("H1", "Relu", "benign", "minus zero becomes zero", _first(lambda y: (y + y.dtype.type(0)).astype(y.dtype))),
    Planted("H2", "Transpose", "benign", "the reference itself", _first(lambda y: y)),
]
