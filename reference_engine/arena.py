"""One block of memory for all intermediate tensors: lifetimes first, then offsets, 64-byte aligned.

The planner decides who shares memory with whom. A checking mode poisons what is not live and names the node
that read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import dtypes as dt
from .errors import OpgaugeError
from .executor import Plan
from .memory import ALIGNMENT, empty
from .types import Array, Graph, Node

POISON = 0xA5
# Kernels that read element i before they write element i, and nothing after: they may write over an input.
IN_PLACE = frozenset({"Elementwise"})


class ArenaError(OpgaugeError):
    """A node read bytes that were not live, or wrote outside its own."""


@dataclass(frozen=True)
class Slot:
    """Where one tensor lives: from the step that writes it to the last step that reads it."""

    offset: int
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Layout:
    """The plan of an arena. `alias` tensors that are another one under a new shape, or written over it."""

    slots: Mapping[str, Slot]
    alias: Mapping[str, str]
    peak: int
    peak_without_reuse: int
    largest_live: int

    @property
    def fragmentation(self) -> float:
        """The share of the peak that no moment needs."""
        return 1.0 - self.largest_live / self.peak if self.peak else 0.0


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def nbytes(graph: Graph, name: str) -> int:
    spec = graph.specs[name]
    return spec.size * dt.numpy_dtype(spec.dtype).itemsize


def lay_out(graph: Graph, in_place: bool = True) -> Layout:
    """Offsets for all intermediate tensors; outputs, inputs and constants live elsewhere.

    Largest tensors are placed first, each at the lowest offset where nothing overlaps it in time and space.
    """
    outside = {*graph.inputs, *graph.constants}
    roots, written_over = _aliases(graph, outside, in_place)
    kept = {root(roots, name) for name in graph.outputs}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    size: dict[str, int] = {}
    for step, node in enumerate(graph.nodes):
        for name in (*node.inputs, node.output):
            home = root(roots, name)
            if home in outside or home in kept:
                continue
            first.setdefault(home, step)
            last[home] = step
            size[home] = max(size.get(home, 0), aligned(nbytes(graph, name)))
    slots = _place(first, last, size)
    peak = max((s.offset + s.size for s in slots.values()), default=0)
    single = sum(
        aligned(nbytes(graph, n.output)) for n in graph.nodes if not _elsewhere(n, roots, kept, outside, written_over)
    )
    live = [sum(s.size for s in slots.values() if s.first <= t <= s.last) for t in range(len(graph.nodes))]
    return Layout(slots, roots, peak, single, max(live, default=0))


def _elsewhere(node: Node, roots: Mapping[str, str], kept: set[str], outside: set[str], written_over: set[str]) -> bool:
    """Without reuse a tensor needs bytes of its own, unless it is a view or an output."""
    home = root(roots, node.output)
    return home in kept or home in outside or (node.output in roots and node.output not in written_over)


def root(roots: Mapping[str, str], name: str) -> str:
    """The tensor in whose memory this one lies."""
    while name in roots:
        name = roots[name]
    return name


def _aliases(graph: Graph, outside: set[str], in_place: bool) -> tuple[dict[str, str], set[str]]:
    """Reshapes are views. An elementwise node writes over an input of its size that nobody reads later."""
    roots: dict[str, str] = {}
    over: set[str] = set()
    last_read = _last_reads(graph)
    outputs = set(graph.outputs)
    family: dict[str, int] = {}  # the last step that reads any tensor in a root's memory
    for step, node in enumerate(graph.nodes):
        if node.kind == "DataMove.reshape":
            roots[node.output] = node.inputs[0]
        elif in_place and node.primitive in IN_PLACE and node.output not in outputs:
            for name in node.inputs:
                home = root(roots, name)
                free = home not in outside and home not in outputs and family.get(home, -1) <= step
                if free and _same_bytes(graph, name, node.output) and not _leads_out(graph, node.output, outputs):
                    roots[node.output] = name
                    over.add(node.output)
                    break
        home = root(roots, node.output)
        family[home] = max(family.get(home, -1), last_read.get(node.output, step), step)
        if node.output in outputs and node.output in roots:
            outputs.add(home)
    return roots, over


def _leads_out(graph: Graph, name: str, outputs: set[str]) -> bool:
    """Is the tensor an output under another shape: then it has memory of its own."""
    views = [n.output for n in graph.nodes if n.kind == "DataMove.reshape" and n.inputs[0] == name]
    return any(view in outputs or _leads_out(graph, view, outputs) for view in views)


def _same_bytes(graph: Graph, a: str, b: str) -> bool:
    return nbytes(graph, a) == nbytes(graph, b) and graph.specs[a].dtype == graph.specs[b].dtype


def _last_reads(graph: Graph) -> dict[str, int]:
    """The last step that reads each tensor, or a view of it."""
    last: dict[str, int] = {}
    for step, node in enumerate(graph.nodes):
        for name in node.inputs:
            last[name] = step
    for node in reversed(graph.nodes):
        if node.kind == "DataMove.reshape":
            last[node.inputs[0]] = max(last.get(node.inputs[0], -1), last.get(node.output, -1))
    return last


def _place(first: Mapping[str, int], last: Mapping[str, int], size: Mapping[str, int]) -> dict[str, Slot]:
    placed: dict[str, Slot] = {}
    for name in sorted(size, key=lambda n: (-size[n], first[n], n)):
        busy = sorted(
            (s.offset, s.offset + s.size) for s in placed.values() if s.first <= last[name] and first[name] <= s.last
        )
        offset = 0
        for low, high in busy:
            if offset + size[name] <= low:
                break
            offset = max(offset, high)
        placed[name] = Slot(offset, size[name], first[name], last[name])
    return placed


def execute_in_arena(bound: Plan, layout: Layout, feeds: Mapping[str, Array], check: bool = False) -> tuple[Array, ...]:
    """The outputs of a bound graph, intermediate tensors in one block.

    `check` keeps a second copy of what each node wrote: before a node runs its inputs must still hold it, after
    it has run everything outside its output must be untouched, and bytes that nobody needs any more are poisoned.
    Raises: ArenaError naming the node.
    """
    graph = bound.graph
    memory = empty(layout.peak, np.uint8)
    memory.fill(POISON)
    watch = Watch(graph, layout, memory) if check else None
    values: dict[str, Array] = dict(graph.constants)
    for name in graph.inputs:
        values[name] = np.ascontiguousarray(feeds[name]).reshape(feeds[name].shape)
    for step, made in enumerate(bound.steps):
        node = made.node
        spec = graph.specs[node.output]
        kind = dt.numpy_dtype(spec.dtype)
        if watch:
            watch.before(step, node, values)
        if made.kernel is None:
            values[node.output] = values[node.inputs[0]].reshape(spec.shape)
        else:
            slot = layout.slots.get(root(layout.alias, node.output))
            out = empty(spec.shape, kind) if slot is None else tensor(memory, slot, kind, spec.shape)
            made.kernel.call(*(values[name] for name in node.inputs), out, *made.attrs)
            values[node.output] = out
        if watch:
            watch.after(step, node, values[node.output])
    given = [memory, *(values[name] for name in graph.inputs), *graph.constants.values()]
    return tuple(
        y.copy() if any(np.shares_memory(y, g) for g in given) else y for y in (values[n] for n in graph.outputs)
    )


def tensor(memory: Array, slot: Slot, kind: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """The tensor that lies in this slot."""
    size = math.prod(shape) * kind.itemsize
    return memory[slot.offset : slot.offset + size].view(kind).reshape(shape)


@dataclass
class Watch:
    """What every live tensor must hold."""

    graph: Graph
    layout: Layout
    memory: Array

    def __post_init__(self) -> None:
        self.held: dict[str, bytes] = {}
        # From the graph itself, not from the layout: a planner that errs cannot vouch for itself.
        self.last = _last_reads(self.graph)

    def before(self, step: int, node: Node, values: Mapping[str, Array]) -> None:
        for name in dict.fromkeys(node.inputs):
            if name in self.held and values[name].tobytes() != self.held[name]:
                raise ArenaError(
                    f"{node.source} ({node.kind}), step {step}: read {name} after its memory was given away"
                )

    def after(self, step: int, node: Node, out: Array) -> None:
        if out.size and node.output not in self.graph.outputs:
            self.held[node.output] = out.tobytes()
        for name in [n for n in self.held if self.last.get(n, -1) <= step]:
            del self.held[name]
        for slot in self.layout.slots.values():
            if slot.last == step:  # free as the layout sees it: whoever still needs these bytes finds poison
                self.memory[slot.offset : slot.offset + slot.size] = POISON
