"""Element-wise functions, casts, and conversions to and from quantized types."""

from __future__ import annotations

from ...emit import OperatorDef
from .activations import ACTIVATIONS
from .arithmetic import ARITHMETIC
from .contrib import CONTRIB
from .conversion import CONVERSIONS
from .conversion import lower_dynamicquantizelinear as lower_dynamicquantizelinear

POINTWISE: dict[tuple[str, str], OperatorDef] = {**ARITHMETIC, **ACTIVATIONS, **CONVERSIONS, **CONTRIB}
