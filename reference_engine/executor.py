"""Runs a primitive graph with one device's kernels, in topological order, and counts what moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from . import dtypes as dt
from .errors import UnsupportedError
from .extensions import added
from .primitives import primitive_of
from .types import Array, Graph, Kernel, Node

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
    """A bound node: the kernel to call and its attribute values in order."""

    node: Node
    kernel: Kernel | None
    attrs: tuple[object, ...]


@dataclass(frozen=True)
class Plan:
    """A graph whose every node has a kernel."""

    graph: Graph
    steps: tuple[Step, ...]
    counts: Mapping[str, int]


def plan(graph: Graph, find: Find, device: str) -> Plan:
    """Bind each node to a kernel.

    Raises: UnsupportedError naming the node and the dtypes for which the device has no kernel.
    """
    steps = []
    for node in graph.nodes:
        attrs = tuple(node.attrs.get(name, "") for name in primitive_of(node.primitive).fns[node.fn])
        if node.kind == "DataMove.reshape":
            steps.append(Step(node, None, attrs))
            continue
        dtypes = tuple(graph.specs[name].dtype for name in (*node.inputs, node.output))
        kernel = find(node.primitive, node.fn, dtypes)
        if kernel is None:
            raise UnsupportedError(f"{node.source}: {device} has no kernel for {node.kind} with {', '.join(dtypes)}")
        steps.append(Step(node, kernel, attrs))
    return Plan(graph, tuple(steps), counts(graph))


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
    graph = bound.graph
    values: dict[str, Array] = dict(graph.constants)
    for name in graph.inputs:
        values[name] = np.ascontiguousarray(feeds[name]).reshape(feeds[name].shape)
    for step in bound.steps:
        node = step.node
        spec = graph.specs[node.output]
        if step.kernel is None:
            values[node.output] = values[node.inputs[0]].reshape(spec.shape)
            continue
        out = np.empty(spec.shape, dt.numpy_dtype(spec.dtype))
        step.kernel.call(*(values[name] for name in node.inputs), out, *step.attrs)
        values[node.output] = out
    given = [values[name] for name in graph.inputs] + list(graph.constants.values())
    return tuple(_own(values[name], given) for name in graph.outputs)


def _own(array: Array, given: Sequence[Array]) -> Array:
    """A reshape of an input must not hand the caller's memory back to the caller."""
    return array.copy() if any(np.shares_memory(array, g) for g in given) else array
