"""A plan that is run again: tensors that stay where they are, and calls that hold them.

What `execute` does at every step of every run (a lookup for each operand, memory for each result) is done once. The
kernels, their order and the bits are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from . import dtypes as dt
from .arena import Layout, block, lay_out, nbytes, root, tensor
from .executor import Plan, Step, execute
from .types import Array

Run = Callable[[Mapping[str, Array]], tuple[Array, ...]]
MOST = 1 << 24  # bytes that one plan may keep between its runs
# An input or output up to so many bytes is copied sooner than a call is made for where it lies: of kernels that only
# have `call`, and of those with `hold`.
COPIED = (1 << 12, 1 << 15)


@dataclass(frozen=True)
class Late:
    """A step with operands that differ from run to run: their places among the arguments, and their names."""

    step: Step
    arguments: tuple[object, ...]
    late: tuple[tuple[int, str], ...]
    fresh: int | None  # the place of an output that is the caller's own memory


def ready(bound: Plan) -> Run:
    """`execute` of this plan, ready to run again where its tensors are not more than is kept.

    One run at a time has the tensors; one that comes meanwhile is executed with tensors of its own.
    """
    layout = lay_out(bound.graph, in_place=False)
    if layout.peak > MOST:
        return partial(execute, bound)
    kept = _kept(bound, layout)
    inputs = tuple((name, kept[name]) for name in bound.graph.inputs if name in kept)
    given = tuple(name for name in bound.graph.inputs if name not in kept)
    steps = tuple(made for step in bound.steps if (made := _made(step, kept)) is not None)
    outputs = tuple((name, kept.get(name)) for name in bound.graph.outputs)
    lock = threading.Lock()

    def _own(made: Array, name: str) -> Array:
        return made.copy() if name in bound.shared else made

    def run(feeds: Mapping[str, Array]) -> tuple[Array, ...]:
        if not lock.acquire(False):
            return execute(bound, feeds)
        try:
            for name, place in inputs:
                np.copyto(place, feeds[name])
            late = {name: _plain(feeds[name]) for name in given}
            for step in steps:
                if isinstance(step, Late):
                    _run(step, late)
                else:
                    step()
            return tuple([place.copy() if place is not None else _own(late[name], name) for name, place in outputs])
        finally:
            lock.release()

    return run


def _kept(bound: Plan, layout: Layout) -> dict[str, Array]:
    """Constants, small inputs and outputs, and all that lies between."""
    graph, memory = bound.graph, block(layout.peak)
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


def _plain(x: Array) -> Array:
    return x if x.flags.c_contiguous else np.ascontiguousarray(x)


def _small(bound: Plan, name: str) -> Array | None:
    kernels = [s.kernel for s in bound.steps if s.kernel and name in (*s.node.inputs, s.node.output)]
    spec, limit = bound.graph.specs[name], COPIED[bool(kernels) and all(kernel.hold for kernel in kernels)]
    return np.empty(spec.shape, dt.numpy_dtype(spec.dtype)) if nbytes(bound.graph, name) <= limit else None


def _made(step: Step, kept: Mapping[str, Array]) -> Late | Callable[[], None] | None:
    """The step as a call of no arguments where all its operands are kept; None for a view that is there already."""
    names = (*step.node.inputs, step.node.output)
    if step.kernel is None:
        return None if step.node.output in kept else Late(step, (), (), None)
    arguments = (*(kept.get(name) for name in names), *step.attrs)
    missing = tuple((at, name) for at, name in enumerate(names) if name not in kept)
    if missing:
        fresh = len(names) - 1 if step.node.output not in kept else None
        return Late(step, arguments, tuple((at, name) for at, name in missing if at != fresh), fresh)
    made = step.kernel.hold(*arguments) if step.kernel.hold else None
    return made or partial(step.kernel.call, *arguments)


def _run(made: Late, late: dict[str, Array]) -> None:
    step = made.step
    if step.kernel is None:
        late[step.node.output] = late[step.node.inputs[0]].reshape(step.shape)
        return
    arguments = list(made.arguments)
    for at, name in made.late:
        arguments[at] = late[name]
    if made.fresh is not None:
        arguments[made.fresh] = late[step.node.output] = np.empty(step.shape, step.dtype)
    call = step.kernel.hold(*arguments) if step.kernel.hold else None
    if call is None:
        step.kernel.call(*arguments)
    else:
        call()
