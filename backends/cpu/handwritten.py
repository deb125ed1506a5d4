"""A network of layers as one compiled function on the kernels of this engine: what a graph of them is timed against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from opgauge.reference_engine.memory import empty
from opgauge.reference_engine.types import Array

from .compile import flat, jit
from .integer import Finish, Left, arrange, byte_product, settled_right


@dataclass(frozen=True)
class Layer:
    """y = clip(rint(float32((x - x_zero) @ weights) * factor) + y_zero): uint8 in and out, int8 weights [K,N]."""

    weights: Array
    x_zero: int
    factor: np.float32
    y_zero: int


@jit
def three(x, b, c, d, p, q, r, s, t, u, f, g, h, first, second, out):
    byte_product(x, b, first, p, s, f, 0, 1)
    byte_product(first, c, second, q, t, g, 0, 1)
    byte_product(second, d, out, r, u, h, 0, 1)


def three_layers(layers: Sequence[Layer], x: Array, out: Array) -> Callable[[], None]:
    """A call that takes x [B,K] through three layers into out."""
    batch, packed, made, sizes = x.shape[0], [], [], []
    for layer in layers:
        right, panels = settled_right(layer.weights, False)
        finish = Finish(np.zeros((), np.int32), np.asarray(layer.factor), (layer.y_zero, 0, 255))
        left = Left((batch, layer.weights.shape[0]), False)
        made.append(arrange(left, right, layer.x_zero, 0, finish, ()))
        packed.append(panels)
        sizes.append(batch * layer.weights.shape[1])
    first, second = (empty(n, np.uint8) for n in sizes[:2])
    source, target = flat(x), out.ravel()
    parts = (*packed, *(m.plan for m in made), *(m.starts for m in made), *(m.factors for m in made))

    def run() -> None:
        three(source, *parts, first, second, target)

    return run
