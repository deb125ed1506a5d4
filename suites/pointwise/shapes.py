"""Shapes of element-wise cases, and pairs that broadcast."""

from __future__ import annotations

import math

from .. import draws as d
from ..draws import Draw, Shape, between, pick, rarely


def any_shape(draw: Draw, limit: int = 1500, low_rank: int = 0) -> Shape:
    """Mostly a few hundred elements of rank 1 to 4; now and then a scalar, and many more."""
    rank = pick(draw, (1, 2, 2, 3, 4))
    if low_rank == 0 and rarely(draw, 24):
        return ()
    if rank == 1:
        return d.larger(draw, (pick(draw, (65, 127, 255, 256, 257, 511, 1023, 1025)),))
    head = d.shape_of(draw, rank - 1, 60)
    last = pick(draw, (17, 31, 32, 33, 63, 65, 96)) if math.prod(head) > 8 else pick(draw, (65, 127, 129, 257))
    return d.larger(draw, (*head, max(min(last, limit // math.prod(head)), 1)))


def partner(draw: Draw, shape: Shape) -> tuple[Shape, Shape]:
    """Two shapes that broadcast together: equal, expanded on either side, equal counts of unequal shape."""
    form = pick(draw, ("same", "same", "ones", "suffix", "outer", "both", "scalar"))
    if form == "outer":
        k = pick(draw, (2, 3, 7, 8, 15, 16, 17, 31, 32, 33)) * (7 if math.prod(shape) > 2000 else 1)
        pair: tuple[Shape, Shape] = ((k, 1), (1, k))
    elif form == "ones" and shape:
        axis = between(draw, 0, len(shape) - 1)
        pair = (shape, (*shape[:axis], 1, *shape[axis + 1 :]))
    elif form == "suffix" and shape:
        pair = (shape, shape[between(draw, 1, len(shape)) :])
    elif form == "both" and len(shape) >= 2:
        pair = ((shape[0], *(1 for _ in shape[1:])), shape[1:])
    elif form == "scalar":
        pair = (shape, ())
    else:
        pair = (shape, shape)
    return pair[::-1] if rarely(draw, 2) else pair


# shapes of no elements that still broadcast
EMPTY_PAIRS: tuple[tuple[Shape, Shape], ...] = (((0,), (1,)), ((2, 0), (2, 0)), ((0, 3), (1, 3)), ((1, 0, 4), (4,)))
