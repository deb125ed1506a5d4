"""Runs a primitive graph with one device's kernels, in topological order, and counts what moved."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import dtypes as dt
from .errors import UnsupportedError
from .extensions import added
from .memory import empty
from .primitives import primitive_of
from .types import Array, Bound, Graph, Kernel, Node

Find = Callable[[str, str, tuple[str, ...]], Kernel | None]


def finder(kernels: Sequence[Kernel]) -> Find:
    """A lookup by (primitive, fn, dtypes): the exact row first, then the row for every dtype."""
    table = {(k.primitive, k.fn, k.dtypes): k for k in kernels}

    def find(primitive: str, fn: str, dtypes: tuple[str, ...]) -> Kernel | None:
        return table.get((primitive, fn, dtypes)) or table.get((primitive, fn, ("*",)))

    return find


def with_added(kernels: Sequence[Kernel], device: str) -> tuple[Kernel, ...]:
    """The kernel rows of a device, and those that other packages add through `opgauge.kernels.DEVICE`.

    Raises: ExtensionError.
    """

    def place(row: Kernel) -> tuple[str, str, tuple[str, ...]]:
        return row.primitive, row.fn, row.dtypes

    return (*kernels, *added(f"opgauge.kernels.{device}", Kernel, map(place, kernels), place).values())


@dataclass(frozen=True)
class Step:
    """A bound node: the kernel to call, its attribute values in order, shape and type of what it gives."""

    node: Node
    kernel: Kernel | None
    attrs: tuple[object, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Plan:
    """A graph whose every node has a kernel."""

    graph: Graph
    steps: tuple[Step, ...]
    counts: Mapping[str, int]
    shared: frozenset[str]  # outputs in the memory of an input or a constant


def plan(graph: Graph, find: Find, device: str) -> Plan:
    """Bind each node to a kernel.

    Raises: UnsupportedError naming the node and the dtypes for which the device has no kernel.
    """
    steps = []
    constants = dict(graph.constants)
    for node in graph.nodes:
        attrs = tuple(node.attrs.get(name, "") for name in primitive_of(node.primitive).fns[node.fn])
        spec = graph.specs[node.output]
        made = spec.shape, dt.numpy_dtype(spec.dtype)
        if node.kind == "DataMove.reshape":
            steps.append(Step(node, None, attrs, *made))
            if node.inputs[0] in constants:
                constants[node.output] = constants[node.inputs[0]].reshape(spec.shape)
            continue
        dtypes = tuple(graph.specs[name].dtype for name in (*node.inputs, node.output))
        kernel = find(node.primitive, node.fn, dtypes)
        if kernel is None:
            raise UnsupportedError(f"{node.source}: {device} has no kernel for {node.kind} with {', '.join(dtypes)}")
        steps.append(Step(node, prepared(kernel, graph, node, constants), attrs, *made))
    return Plan(graph, tuple(steps), counts(graph), _shared(graph))


def _shared(graph: Graph) -> frozenset[str]:
    """Outputs that are an input or a constant, or one under another shape."""
    found = {*graph.inputs, *graph.constants}
    for node in graph.nodes:
        if node.kind == "DataMove.reshape" and node.inputs[0] in found:
            found.add(node.output)
    return frozenset(found & set(graph.outputs))


def prepared(kernel: Kernel, graph: Graph, node: Node, constants: Mapping[str, Array]) -> Kernel:
    """The kernel with what it makes of the node's constants already made."""
    known = {n: constants[name] for n, name in enumerate(node.inputs) if name in constants}
    if kernel.bind is None or not known:
        return kernel
    made = kernel.bind(known, tuple(graph.specs[name] for name in node.inputs))
    return replace(kernel, call=made.call, hold=made.hold) if isinstance(made, Bound) else replace(kernel, call=made)


def counts(graph: Graph) -> dict[str, int]:
    """How many nodes of each kind, and the bytes that they write (DataMove apart)."""
    tally: Counter[str] = Counter()
    for node in graph.nodes:
        size = graph.specs[node.output].size * dt.numpy_dtype(graph.specs[node.output].dtype).itemsize
        if node.kind == "DataMove.reshape":
            continue
        tally[f"{node.kind}_count"] += 1
        tally["moved_bytes" if node.primitive == "DataMove" else "written_bytes"] += size
    tally["dispatch_count"] = sum(n.kind != "DataMove.reshape" for n in graph.nodes)
    return dict(sorted(tally.items()))


def execute(bound: Plan, feeds: Mapping[str, Array]) -> tuple[Array, ...]:
    """The outputs of a bound graph, each an array of its own."""
    values = _begin(bound.graph, feeds)
    for step in bound.steps:
        _run(step, values)
    return _outputs(bound, values)


def watched(bound: Plan, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], list[tuple[int, int]]]:
    """What `execute` does with a clock: every tensor by name; (start, duration) of each kernel with its allocation.

    Units: ns since the first node.
    """
    values = _begin(bound.graph, feeds)
    spans = []
    began = time.perf_counter_ns()
    for step in bound.steps:
        start = time.perf_counter_ns()
        _run(step, values)
        if step.kernel is not None:
            spans.append((start - began, time.perf_counter_ns() - start))
    return values, spans


def _begin(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    given = {name: np.ascontiguousarray(feeds[name]).reshape(feeds[name].shape) for name in graph.inputs}
    return {**graph.constants, **given}


def _run(step: Step, values: dict[str, Array]) -> None:
    node = step.node
    if step.kernel is None:
        values[node.output] = values[node.inputs[0]].reshape(step.shape)
        return
    out = empty(step.shape, step.dtype)
    step.kernel.call(*[values[name] for name in node.inputs], out, *step.attrs)
    values[node.output] = out


def _outputs(bound: Plan, values: Mapping[str, Array]) -> tuple[Array, ...]:
    """What the caller gets is never memory of his or of the graph."""
    return tuple(values[n].copy() if n in bound.shared else values[n] for n in bound.graph.outputs)


@dataclass(frozen=True)
class Branch:
    """Steps that follow one another and wait for nothing else: one task. `after`: branches that it reads from."""

    steps: tuple[int, ...]
    after: tuple[int, ...]


def branches(bound: Plan) -> tuple[Branch, ...]:
    """The graph cut where it forks and joins, in an order in which it can run."""
    maker = {step.node.output: i for i, step in enumerate(bound.steps)}
    before = [sorted({maker[n] for n in step.node.inputs if n in maker}) for step in bound.steps]
    readers = Counter(p for found in before for p in found)
    home: dict[int, int] = {}
    steps: list[list[int]] = []
    after: list[set[int]] = []
    for i, found in enumerate(before):
        if len(found) == 1 and readers[found[0]] == 1:  # its only source has no other reader
            home[i] = home[found[0]]
            steps[home[i]].append(i)
            continue
        home[i] = len(steps)
        steps.append([i])
        after.append({home[p] for p in found})
    return tuple(Branch(tuple(s), tuple(sorted(a))) for s, a in zip(steps, after, strict=True))


def execute_parallel(
    bound: Plan, tasks: Sequence[Branch], feeds: Mapping[str, Array], pool: Executor
) -> tuple[Array, ...]:
    """As `execute`, independent branches side by side: the same kernels on the same operands, so the same bits.

    Raises: what a kernel raised, after all that had begun has ended.
    """
    values = _begin(bound.graph, feeds)
    ended: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
    missing = [len(task.after) for task in tasks]
    readers: list[list[int]] = [[] for _ in tasks]
    for i, task in enumerate(tasks):
        for source in task.after:
            readers[source].append(i)

    def work(i: int) -> None:
        try:
            for at in tasks[i].steps:
                _run(bound.steps[at], values)
        except BaseException as error:
            ended.put((i, error))
        else:
            ended.put((i, None))

    ready = [i for i, count in enumerate(missing) if not count]
    running, failed = 0, None
    while ready or running:
        for i in ready:
            pool.submit(work, i)
        running += len(ready)
        i, error = ended.get()
        running -= 1
        failed = failed or error
        ready = []
        for reader in readers[i] if failed is None else ():
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    if failed is not None:
        raise failed
    return _outputs(bound, values)
