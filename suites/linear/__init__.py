"""Rows of products: matrices, convolutions, Einsum, attention, and their integer and quantized forms."""

from __future__ import annotations

from opgauge.reference_engine.types import CaseSpec

from . import attention, conv, integer, matmul, requantized

CASES: tuple[CaseSpec, ...] = tuple(
    row for group in (matmul, conv, integer, requantized, attention) for row in group.CASES
)
