"""Rows of reductions, orders, normalisation and pooling."""

from __future__ import annotations

from opgauge.reference_engine.types import CaseSpec

from . import normalization, ordering, pooling, reductions

CASES: tuple[CaseSpec, ...] = tuple(
    row for group in (reductions, ordering, normalization, pooling) for row in group.CASES
)
