"""Planted faults of example::WeightedSum, for `opgauge sensitivity --faults examples/weighted_sum/faults.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

Array = np.ndarray


@dataclass(frozen=True)
class Fault:
    """One wrong kernel (or, among BENIGN, an honest one): `compute(x1, x2, weights)`."""

    id: str
    title: str
    compute: Callable[[Array, Array, Array], Array]
    op: str = "WeightedSum"
    cls: str = "arithmetic"

    @property
    def ops(self) -> tuple[str, ...]:
        return (self.op,)

    def run(self, model: bytes, inputs: Mapping[str, Array], base: str = "") -> list[Array]:
        graph = onnx.load_model_from_string(model).graph
        values = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer} | dict(inputs)
        with np.errstate(all="ignore"):
            made = self.compute(*(values[name] for name in graph.node[0].input))
            return [np.asarray(made, np.float32)]


def wide(x1: Array, x2: Array, w: Array) -> Array:
    return w[0].astype(float) * x1 + w[1].astype(float) * x2


FAULTS = (
    Fault("W1", "the weights are exchanged", lambda x1, x2, w: w[1] * x1 + w[0] * x2),
    Fault("W2", "the second weight is left out", lambda x1, x2, w: w[0] * x1 + x2),
    Fault("W3", "products are rounded to float16", lambda x1, x2, w: np.float16(w[0] * x1) + np.float16(w[1] * x2)),
    Fault("W4", "NaN becomes 0", lambda x1, x2, w: np.nan_to_num(w[0] * x1 + w[1] * x2, nan=0.0)),
)
BENIGN = (
    Fault("B1", "rounded once", wide),
    Fault("B2", "the other product first", lambda x1, x2, w: w[1] * x2 + w[0] * x1),
)
