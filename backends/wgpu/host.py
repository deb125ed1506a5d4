"""The stretches of a program that the CPU computes between those of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Array

from .plan import HostCall, Program


def begin(program: Program, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What the host knows before anything ran: constants and inputs, where it has a part at all."""
    if program.host is None:
        return {}
    given = {name: np.ascontiguousarray(feeds[name]).reshape(feeds[name].shape) for name in program.host.inputs}
    return {**program.host.constants, **given}


def compute(program: Program, call: HostCall, read: Sequence[Array], values: dict[str, Array]) -> None:
    """One stretch: `read` are the tensors that came from the device, results join `values`."""
    assert program.host is not None
    values.update(zip((name for name, _ in call.reads), read, strict=True))
    for step in call.nodes:
        spec = program.host.specs[step.node.output]
        if step.kernel is None:
            values[step.node.output] = values[step.node.inputs[0]].reshape(spec.shape)
            continue
        out = np.empty(spec.shape, dt.numpy_dtype(spec.dtype))
        step.kernel.call(*(values[name] for name in step.node.inputs), out, *step.attrs)
        values[step.node.output] = out
