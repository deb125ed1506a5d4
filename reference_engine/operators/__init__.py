"""The ONNX operators that can be lowered, by domain and name."""

from __future__ import annotations

from ..emit import OperatorDef
from .linear import LINEAR
from .movement import MOVEMENT
from .pointwise import POINTWISE
from .reduce import REDUCE

OPERATORS: dict[tuple[str, str], OperatorDef] = {**LINEAR, **POINTWISE, **REDUCE, **MOVEMENT}
