"""What is tried: case rows, input strategies, graph templates, model list, benchmarks.

`cases()` lists the rows of every family; importing this room imports none of them.
"""

from __future__ import annotations

import importlib

from opgauge.reference_engine import extensions
from opgauge.reference_engine.types import CaseSpec

FAMILIES = ("linear", "pointwise", "reduce", "movement", "regions", "chains")


def cases() -> tuple[CaseSpec, ...]:
    """Every row of every family, in the order of the families, then those that other packages add.

    Raises: ExtensionError.
    """
    own = tuple(row for name in FAMILIES for row in importlib.import_module(f".{name}", __name__).CASES)
    others = extensions.added("opgauge.suites", CaseSpec, (row.name for row in own), lambda row: row.name)
    return (*own, *others.values())
