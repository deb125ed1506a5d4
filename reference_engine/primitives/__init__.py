"""The primitives: every operator is lowered to these, and every device implements these."""

from __future__ import annotations

from . import linear, movement, pointwise, reduce
from .definition import PrimitiveDef

PRIMITIVES: dict[str, PrimitiveDef] = {
    **linear.PRIMITIVES,
    **pointwise.PRIMITIVES,
    **reduce.PRIMITIVES,
    **movement.PRIMITIVES,
}
