"""Faults planted on purpose, and honest variants: what `opgauge sensitivity` counts the catches of.

`FAULTS` and `BENIGN` hold objects with id, op, ops, cls, title, `run(model_bytes, inputs, base)` and `reset()`.
"""

from __future__ import annotations

# Absolute: `opgauge sensitivity --faults` loads this file by its path, outside its package.
from opgauge.suites.faults import benign, linear, movement, pointwise, reduce, sizes
from opgauge.suites.faults.planted import Planted

FAULTS: tuple[Planted, ...] = (*linear.FAULTS, *pointwise.FAULTS, *reduce.FAULTS, *movement.FAULTS, *sizes.FAULTS)
BENIGN: tuple[Planted, ...] = benign.BENIGN
