"""What is tried: case rows, input strategies, graph templates, model list, benchmarks.

`cases()` lists the rows of every family; importing this room imports none of them.
"""

from __future__ import annotations

import importlib
from dataclasses import replace

from opgauge.reference_engine import extensions
from opgauge.reference_engine.types import CaseSpec

FAMILIES = ("linear", "pointwise", "reduce", "movement", "regions", "chains")


def cases() -> tuple[CaseSpec, ...]:
    """Every row of every family, in the order of the families, then those that other packages add.

    Raises: ExtensionError.
    """
    spread = importlib.import_module(".draws", __name__).spread
    families = [importlib.import_module(f".{name}", __name__) for name in FAMILIES]
    own = tuple(replace(row, draw=spread(row.draw)) for family in families for row in family.CASES)
    others = extensions.added("opgauge.suites", CaseSpec, (row.name for row in own), lambda row: row.name)
    return (*own, *others.values())
