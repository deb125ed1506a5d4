"""Rows of products: matrices, convolutions, Einsum, attention, recurrent layers, integer and quantized forms."""

from __future__ import annotations

from opgauge.reference_engine.types import CaseSpec

from . import attention, conv, integer, matmul, recurrent, requantized

CASES: tuple[CaseSpec, ...] = tuple(
    row for group in (matmul, conv, integer, requantized, attention, recurrent) for row in group.CASES
)
