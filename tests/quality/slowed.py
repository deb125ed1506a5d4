"""A backend whose calls do a given share of real work more: what gate_power.py plants.

Both sides run it. OPGAUGE_TRIAL_BASE names the adapter; OPGAUGE_TRIAL_SHARES, on the new side, gives by the end of
the model's text the share of the call's own time for which it stays busy afterwards (a fixed number of loop
iterations would be hidden in part by out-of-order execution, and be another share of a call whenever the core's other
thread is busy). The end is a mark that gate_power.py adds.
"""

from __future__ import annotations

import json
import os
import time

from opgauge import adapters
from opgauge.backends import resolve

_SPEC = resolve(os.environ.get("OPGAUGE_TRIAL_BASE", "onnxruntime"))
_SHARES = json.loads(os.environ.get("OPGAUGE_TRIAL_SHARES", "{}"))
_HONEST = adapters.load(_SPEC.kind, _SPEC.target, dict(_SPEC.options)).run
MARK = 8  # bytes


def run(model, inputs):
    share = _SHARES.get(model[-MARK:].decode("latin-1"), 0.0)
    begin = time.perf_counter_ns()
    returned = _HONEST(model, inputs)
    now = time.perf_counter_ns()
    until = now + share * (now - begin)
    while time.perf_counter_ns() < until:
        pass
    return returned
