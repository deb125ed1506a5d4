"""Rows of the operators that move, pick, place, make and resample elements."""

from __future__ import annotations

from opgauge.reference_engine.types import CaseSpec

from .generated import GENERATED
from .indexing import INDEXING
from .layout import LAYOUT
from .resample import RESAMPLE

CASES: tuple[CaseSpec, ...] = (*LAYOUT, *INDEXING, *GENERATED, *RESAMPLE)
