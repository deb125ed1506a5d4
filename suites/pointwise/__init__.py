"""Rows of element-wise operators: arithmetic, activations, casts, quantization and dequantization."""

from __future__ import annotations

from .activations import ACTIVATIONS
from .arithmetic import ARITHMETIC
from .contrib import CONTRIB
from .conversion import CONVERSIONS
from .functions import FUNCTIONS
from .narrow import NARROW

CASES = (*CONVERSIONS, *CONTRIB, *ARITHMETIC, *FUNCTIONS, *ACTIVATIONS, *NARROW)
