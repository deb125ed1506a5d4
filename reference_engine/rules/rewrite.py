"""How a rule changes a graph: every name keeps its value, so that changes of one sweep never contradict each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .. import dtypes as dt
from ..primitives import primitive_of
from ..types import Array, Graph, Node, TensorSpec

MOST_VIEW_COPY = 2**16


@dataclass(frozen=True)
class Index:
    """Who makes and who reads each tensor."""

    producer: Mapping[str, Node]
    readers: Mapping[str, tuple[Node, ...]]
    outputs: frozenset[str]

    def sole_reader(self, name: str) -> Node | None:
        """The only node that reads the tensor, None where it is an output or has other readers."""
        readers = self.readers.get(name, ())
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def private(self, name: str) -> bool:
        """Nobody but one node sees the tensor."""
        return self.sole_reader(name) is not None


def index(graph: Graph) -> Index:
    readers: dict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            readers[name].append(node)
    return Index(
        {n.output: n for n in graph.nodes}, {k: tuple(v) for k, v in readers.items()}, frozenset(graph.outputs)
    )


@dataclass
class Draft:
    """New nodes and constants in place of `node`, the last of which gives its output."""

    graph: Graph
    node: Node
    nodes: list[Node] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)

    def spec(self, name: str) -> TensorSpec:
        return self.specs[name] if name in self.specs else self.graph.specs[name]

    def _fresh(self) -> str:
        k = len(self.specs)
        while (name := f"{self.node.output}.{k}") in self.graph.specs or name in self.specs:
            k += 1
        return name

    def __call__(self, primitive: str, *inputs: str, fn: str = "", **attrs: Any) -> str:
        spec = primitive_of(primitive).infer(*(self.spec(n) for n in inputs), fn=fn, **attrs)
        name = self._fresh()
        self.nodes.append(Node(primitive, fn, inputs, name, attrs, self.node.source))
        self.specs[name] = spec
        return name

    def constant(self, array: Array) -> str:
        data = np.ascontiguousarray(array).reshape(np.shape(array))
        name = self._fresh()
        self.constants[name] = data
        self.specs[name] = TensorSpec(data.shape, dt.word_of(data.dtype))
        return name

    def reshape(self, name: str, shape: tuple[int, ...]) -> str:
        return name if self.spec(name).shape == shape else self("DataMove", name, fn="reshape", shape=shape)

    def transpose(self, name: str, perm: tuple[int, ...]) -> str:
        return name if perm == tuple(range(len(perm))) else self("DataMove", name, fn="transpose", perm=perm)

    def view(self, array: Array) -> str:
        """A constant, stored without what it repeats."""
        compact = array[
            tuple(
                slice(0, 1) if s == 0 and d > 1 else slice(None)
                for s, d in zip(array.strides, array.shape, strict=True)
            )
        ]
        name = self.constant(compact)
        return name if compact.shape == array.shape else self("DataMove", name, fn="expand", shape=array.shape)


# A match gives what computes node.output instead: a Draft with the name of its result, or None.
Match = Callable[[Graph, Index, Node, Draft], str | None]


def rewrite(graph: Graph, match: Match) -> Graph:
    """One sweep over the graph; the same object where nothing matched."""
    at = index(graph)
    nodes: list[Node] = []
    specs, constants = dict(graph.specs), dict(graph.constants)
    renamed: dict[str, str] = {}
    changed = False
    for node in graph.nodes:
        draft = Draft(graph, node)
        result = match(graph, at, node, draft)
        if result is None or not _fits(graph, draft, node, result):
            nodes.append(node)
            continue
        changed = True
        specs.update(draft.specs)
        constants.update(draft.constants)
        nodes.extend(draft.nodes)
        if node.output in at.outputs:
            last = draft.nodes[-1]
            nodes[-1] = replace(last, output=node.output)
        else:
            renamed[node.output] = result
    return _renamed(replace(graph, nodes=tuple(nodes), specs=specs, constants=constants), renamed) if changed else graph


def _fits(graph: Graph, draft: Draft, node: Node, result: str) -> bool:
    """Same shape and type; an output of the graph must be computed by a node of its own."""
    if draft.spec(result) != graph.specs[node.output]:
        return False
    return node.output not in graph.outputs or bool(draft.nodes and draft.nodes[-1].output == result)


def _renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    def final(name: str) -> str:
        while name in names:
            name = names[name]
        return name

    return replace(graph, nodes=tuple(replace(n, inputs=tuple(map(final, n.inputs))) for n in graph.nodes))


def prune(graph: Graph) -> Graph:
    """Without what no output needs."""
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if node.output in needed:
            kept.append(node)
            needed.update(node.inputs)
    if len(kept) == len(graph.nodes) and all(name in needed for name in graph.constants):
        return graph
    constants = {k: v for k, v in graph.constants.items() if k in needed}
    made = {n.output for n in kept} | set(graph.inputs) | set(constants)
    specs = {k: v for k, v in graph.specs.items() if k in made}
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants, specs=specs)


# ---- what rules ask


def is_move(node: Node | None, fn: str) -> bool:
    return node is not None and node.primitive == "DataMove" and node.fn == fn


def nbytes(spec: TensorSpec) -> int:
    return spec.size * dt.numpy_dtype(spec.dtype).itemsize


def through(at: Index, name: str, fns: tuple[str, ...] = ("reshape",)) -> tuple[str, bool]:
    """The tensor before a chain of such moves, and whether nobody else saw what lies between."""
    private = True
    while True:
        node = at.producer.get(name)
        if node is None or node.primitive != "DataMove" or node.fn not in fns:
            return name, private
        name = node.inputs[0]
        private = private and at.private(name)


def constant_view(graph: Graph, at: Index, name: str) -> Array | None:
    """The content of a constant that was moved, as a numpy view; None where it is not constant or would be copied."""
    if name in graph.constants:
        return graph.constants[name]
    node = at.producer.get(name)
    if node is None or node.primitive != "DataMove" or node.fn not in ("reshape", "expand", "transpose"):
        return None
    base = constant_view(graph, at, node.inputs[0])
    if base is None:
        return None
    if node.fn == "expand":
        return np.broadcast_to(base, node.attrs["shape"])
    if node.fn == "transpose":
        return base.transpose(node.attrs["perm"])
    made = base.reshape(node.attrs["shape"])
    return made if np.shares_memory(made, base) or made.size <= MOST_VIEW_COPY else None


def repeating(view: Array) -> Array:
    """The same content, with stride 0 along every axis on which it repeats."""
    if not 1 < view.size <= MOST_VIEW_COPY:
        return view
    for axis, size in enumerate(view.shape):
        first = view[tuple(slice(0, 1) if i == axis else slice(None) for i in range(view.ndim))]
        if size > 1 and view.strides[axis] and (view == first).all():
            view = np.broadcast_to(first, view.shape)
    return view


def uniform(view: Array | None) -> Any | None:
    """The one value of a constant of equal elements, else None."""
    if view is None or not view.size:
        return None
    first = (
        view.reshape(-1)[0] if all(s == 0 or d == 1 for s, d in zip(view.strides, view.shape, strict=True)) else None
    )
    if first is not None:
        return first
    if view.size > MOST_VIEW_COPY:
        return None
    flat = view.ravel()
    return flat[0] if flat.tobytes() == np.full_like(flat, flat[0]).tobytes() else None
