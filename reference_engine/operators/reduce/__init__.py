"""Reductions, orders, normalisation and pooling: rows of the last axis become values."""

from __future__ import annotations

from ...emit import OperatorDef
from .normalization import NORMALIZATION
from .ordering import ORDERING
from .pooling import POOLING
from .reductions import REDUCTIONS

REDUCE: dict[tuple[str, str], OperatorDef] = {**REDUCTIONS, **ORDERING, **NORMALIZATION, **POOLING}
