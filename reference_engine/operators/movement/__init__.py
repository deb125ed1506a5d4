"""Operators that move, pick, place, make and resample elements."""

from __future__ import annotations

from ...emit import OperatorDef
from .generated import GENERATED
from .indexing import INDEXING
from .layout import LAYOUT
from .resample import RESAMPLE

MOVEMENT: dict[tuple[str, str], OperatorDef] = {**LAYOUT, **INDEXING, **GENERATED, **RESAMPLE}
