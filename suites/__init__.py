"""What is tried: case rows, input strategies, graph templates, model list, benchmarks.

`cases()` lists the rows of every family; importing this room imports none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opgauge.reference_engine.types import CaseSpec

FAMILIES = ("linear", "pointwise", "reduce", "movement")


def cases() -> tuple[CaseSpec, ...]:
    """Every row of every family, in the order of the families."""
    return tuple(row for name in FAMILIES for row in importlib.import_module(f".{name}", __name__).CASES)
