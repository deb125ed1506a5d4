"""A plan that is run again: tensors that stay where they are, and calls that hold them.

What `execute` does at every step of every run (a lookup for each operand, memory for each result) is done once. The
kernels, their order and the bits are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from . import dtypes as dt
from .arena import Layout, lay_out, nbytes, root, tensor
from .executor import Plan, Step, execute
from .memory import empty
from .types import Array, Kernel

Run = Callable[[Mapping[str, Array]], tuple[Array, ...]]
MOST = 1 << 24  # bytes that one plan may keep between its runs
# An input or output up to so many bytes is copied sooner than a call is made for where it lies: of kernels that only
# have `call`, and of those with `hold`.
COPIED = (1 << 12, 1 << 15)


def ready(bound: Plan) -> Run:
    """`execute` of this plan, ready to run again where its tensors are not more than is kept.

    One run at a time has the tensors; one that comes meanwhile is executed with tensors of its own.
    """
    layout = lay_out(bound.graph, in_place=False)
    if layout.peak > MOST:
        return partial(execute, bound)
    kept = _kept(bound, layout)
    late: dict[str, Array] = {}  # tensors that differ from run to run, while one lasts
    inputs = tuple((name, kept[name]) for name in bound.graph.inputs if name in kept)
    given = tuple(name for name in bound.graph.inputs if name not in kept)
    steps = tuple(made for step in bound.steps if (made := _made(step, kept, late)) is not None)
    outputs = tuple((name, kept.get(name)) for name in bound.graph.outputs)
    lock = threading.Lock()

    def own(name: str) -> Array:
        return late[name].copy() if name in bound.shared else late[name]

    def run(feeds: Mapping[str, Array]) -> tuple[Array, ...]:
        if not lock.acquire(False):
            return execute(bound, feeds)
        try:
            for name, place in inputs:
                np.copyto(place, feeds[name])
            for name in given:
                x = feeds[name]
                late[name] = x if x.flags.c_contiguous else np.ascontiguousarray(x)
            for step in steps:
                step()
            return tuple([own(name) if place is None else place.copy() for name, place in outputs])
        finally:
            late.clear()
            lock.release()

    return run


def _kept(bound: Plan, layout: Layout) -> dict[str, Array]:
    """Constants, small inputs and outputs, and all that lies between."""
    graph, memory = bound.graph, empty(layout.peak, np.uint8)
    kept = dict(graph.constants)
    kept.update((n, made) for n in graph.inputs if (made := _small(bound, n)) is not None)
    for step in bound.steps:
        name = step.node.output
        slot = layout.slots.get(root(layout.alias, name))
        if step.kernel is None:
            if step.node.inputs[0] in kept:
                kept[name] = kept[step.node.inputs[0]].reshape(step.shape)
        elif slot is not None:
            kept[name] = tensor(memory, slot, step.dtype, step.shape)
        elif (made := _small(bound, name)) is not None:
            kept[name] = made
    return kept


def _small(bound: Plan, name: str) -> Array | None:
    kernels = [s.kernel for s in bound.steps if s.kernel and name in (*s.node.inputs, s.node.output)]
    spec, limit = bound.graph.specs[name], COPIED[bool(kernels) and all(kernel.hold for kernel in kernels)]
    return empty(spec.shape, dt.numpy_dtype(spec.dtype)) if nbytes(bound.graph, name) <= limit else None


def _made(step: Step, kept: Mapping[str, Array], late: dict[str, Array]) -> Callable[[], None] | None:
    """The step as a call of no arguments; None for a view that is there already."""
    output, kernel = step.node.output, step.kernel
    if kernel is None:
        source = step.node.inputs[0]
        return None if output in kept else lambda: late.update({output: late[source].reshape(step.shape)})
    arguments = (*(kept.get(name) for name in (*step.node.inputs, output)), *step.attrs)
    missing = [(at, name) for at, name in enumerate(step.node.inputs) if name not in kept]
    fresh = len(step.node.inputs) if output not in kept else None
    if not missing and fresh is None:
        return _held(kernel, arguments)

    def at_last() -> None:
        found = list(arguments)
        for at, name in missing:
            found[at] = late[name]
        if fresh is not None:
            found[fresh] = late[output] = empty(step.shape, step.dtype)
        _held(kernel, found)()

    return at_last


def _held(kernel: Kernel, arguments: Sequence[object]) -> Callable[[], None]:
    made = kernel.hold(*arguments) if kernel.hold else None
    return made or partial(kernel.call, *arguments)
