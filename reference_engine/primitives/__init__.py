"""The primitives: every operator is lowered to these, and every device implements these."""

from __future__ import annotations

import functools

from .. import extensions
from . import fused, movement, pointwise, reduce
from .definition import PrimitiveDef

PRIMITIVES: dict[str, PrimitiveDef] = {
    **fused.PRIMITIVES,
    **pointwise.PRIMITIVES,
    **reduce.PRIMITIVES,
    **movement.PRIMITIVES,
}


def table() -> dict[str, PrimitiveDef]:
    """PRIMITIVES and those that other packages add. Raises: ExtensionError."""
    return {**PRIMITIVES, **_added()}


def primitive_of(name: str) -> PrimitiveDef:
    """The row of a primitive, ours or one that another package adds. Raises: KeyError."""
    return PRIMITIVES[name] if name in PRIMITIVES else _added()[name]


@functools.cache
def _added() -> dict[str, PrimitiveDef]:
    return extensions.added("opgauge.primitives", PrimitiveDef, PRIMITIVES)
