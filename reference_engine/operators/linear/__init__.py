"""Products: matrices, convolutions, Einsum, attention, recurrent layers, and their integer and quantized forms."""

from __future__ import annotations

from ...emit import OperatorDef
from .attention import ATTENTION
from .conv import CONV
from .einsum import EINSUM
from .integer import INTEGER
from .matmul import MATMUL
from .recurrent import RECURRENT
from .requantized import REQUANTIZED

LINEAR: dict[tuple[str, str], OperatorDef] = {
    **MATMUL,
    **CONV,
    **INTEGER,
    **REQUANTIZED,
    **EINSUM,
    **ATTENTION,
    **RECURRENT,
}
