"""A backend whose every call does a given share of real work more: what gate_power.py plants.

Both sides run it, the base with a share of 0. OPGAUGE_TRIAL_BASE names the adapter, OPGAUGE_TRIAL_SHARE the share of
the call's own time for which it stays busy afterwards (a fixed number of loop iterations would be hidden in part by
out-of-order execution, and be another share of a call whenever the core's other thread is busy).
"""

from __future__ import annotations

import os
import time

from opgauge import adapters
from opgauge.backends import resolve

_SPEC = resolve(os.environ.get("OPGAUGE_TRIAL_BASE", "onnxruntime"))
_SHARE = float(os.environ.get("OPGAUGE_TRIAL_SHARE", "0"))
_HONEST = adapters.load(_SPEC.kind, _SPEC.target, dict(_SPEC.options)).run


def run(model, inputs):
    begin = time.perf_counter_ns()
    returned = _HONEST(model, inputs)
    now = time.perf_counter_ns()
    until = now + _SHARE * (now - begin)
    while time.perf_counter_ns() < until:
        pass
    return returned
