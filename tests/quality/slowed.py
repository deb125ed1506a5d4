"""A backend whose calls do a given share of real work more: what gate_power.py plants.

Both sides run it, and both are slowed by BOTH: some of what follows a call hides behind it (the next call finds its
memory written back, say), so that the first 5 % after a call cost less than 5 %, while 5 % more do not.
OPGAUGE_TRIAL_BASE names the adapter; OPGAUGE_TRIAL_SHARES, on the new side, gives by the end of the model's text the
share of the call's own time for which it stays busy afterwards (a fixed number of loop iterations would be hidden by
out-of-order execution, and be another share of a call whenever the core's other thread is busy). The end is a mark
that gate_power.py adds.
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
BOTH = 0.15


def run(model, inputs):
    share = (1 + BOTH) * (1 + _SHARES.get(model[-MARK:].decode("latin-1"), 0.0)) - 1
    begin = time.perf_counter_ns()
    returned = _HONEST(model, inputs)
    now = time.perf_counter_ns()
    until = now + share * (now - begin)
    while time.perf_counter_ns() < until:
        pass
    return returned
