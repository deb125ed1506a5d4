"""The ONNX operators that can be lowered, by domain and name."""

from __future__ import annotations

import functools
from dataclasses import replace

from .. import extensions
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
