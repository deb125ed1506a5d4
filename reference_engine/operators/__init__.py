"""The ONNX operators that can be lowered, by domain and name."""

from __future__ import annotations

import functools
from dataclasses import replace

from .. import extensions, primitives
from ..emit import OperatorDef
from .checks import complete
from .linear import LINEAR
from .movement import MOVEMENT
from .pointwise import POINTWISE
from .reduce import REDUCE

OPERATORS: dict[tuple[str, str], OperatorDef] = {
    key: replace(row, lower=complete(row.lower)) for key, row in {**LINEAR, **POINTWISE, **REDUCE, **MOVEMENT}.items()
}


@functools.cache
def table() -> dict[tuple[str, str], OperatorDef]:
    """OPERATORS and those that other packages add.

    Raises: ExtensionError.
    """
    rows = extensions.added("opgauge.operators", OperatorDef, OPERATORS)
    return {**OPERATORS, **{key: replace(row, lower=complete(row.lower)) for key, row in rows.items()}}


def summary() -> str:
    """How many operators there are, and what they are lowered to, in a sentence."""
    rows = primitives.table()
    pairs = sum(len(row.fns) for row in rows.values())
    return f"{len(table())} operators, lowered to {len(rows)} primitives ({pairs} pairs of primitive and function)"
