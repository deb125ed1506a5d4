"""A graph over two devices: which node runs where, and an explicit transfer wherever a tensor crosses.

Inputs and constants are on both sides; an output is read from where it was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .types import Graph, Node, TensorSpec

HOST, DEVICE = "cpu", "gpu"


@dataclass(frozen=True)
class Placed:
    """The graph in an order in which each device works for long stretches; `device` of each node by its output."""

    graph: Graph
    device: Mapping[str, str]

    def count(self, device: str) -> int:
        """Nodes that compute there: neither views nor transfers."""
        kinds = ("DataMove.reshape", "DataMove.transfer")
        return sum(n.kind not in kinds and self.device[n.output] == device for n in self.graph.nodes)


def is_transfer(node: Node) -> bool:
    return node.kind == "DataMove.transfer"


def place(graph: Graph, on_host: Callable[[Node], bool]) -> Placed:
    """Nodes that `on_host` picks on the CPU, the others on the device; views stay where their tensor is."""
    device: dict[str, str] = {}
    for node in graph.nodes:
        if node.kind == "DataMove.reshape":
            device[node.output] = device.get(node.inputs[0], DEVICE)
        else:
            device[node.output] = HOST if on_host(node) else DEVICE
    if HOST not in device.values():
        return Placed(graph, device)
    nodes: list[Node] = []
    specs = dict(graph.specs)
    crossed: dict[tuple[str, str], str] = {}
    for node in graph.nodes:
        own = device[node.output]
        inputs = []
        for name in node.inputs:
            if device.get(name, own) != own:
                name = _crossing(name, own, node, crossed, nodes, specs, device)
            inputs.append(name)
        nodes.append(replace(node, inputs=tuple(inputs)))
    return Placed(replace(graph, nodes=tuple(_ordered(nodes, device)), specs=specs), device)


def _crossing(
    name: str, to: str, reader: Node, crossed: dict[tuple[str, str], str], nodes: list[Node],
    specs: dict[str, TensorSpec], device: dict[str, str],
) -> str:  # fmt: skip
    """The tensor on the other side, transferred once however many read it."""
    if (name, to) not in crossed:
        made = f"{name}@{to}"
        nodes.append(Node("DataMove", "transfer", (name,), made, {"to": to}, reader.source))
        specs[made] = specs[name]
        device[made] = to
        crossed[name, to] = made
    return crossed[name, to]


def _side(node: Node, device: Mapping[str, str]) -> str:
    """Transfers belong to the stretch of the host, whichever way they go."""
    return HOST if is_transfer(node) else device[node.output]


def _ordered(nodes: Sequence[Node], device: Mapping[str, str]) -> list[Node]:
    """A topological order that changes sides only when one side has nothing left to do."""
    makers = {n.output: i for i, n in enumerate(nodes)}
    before = [sorted({makers[name] for name in n.inputs if name in makers}) for n in nodes]
    missing = [len(b) for b in before]
    readers: list[list[int]] = [[] for _ in nodes]
    for i, sources in enumerate(before):
        for source in sources:
            readers[source].append(i)
    ready: dict[str, list[int]] = {HOST: [], DEVICE: []}
    for i, count in enumerate(missing):
        if not count:
            ready[_side(nodes[i], device)].append(i)
    made: list[Node] = []
    side = DEVICE
    while ready[HOST] or ready[DEVICE]:
        if not ready[side]:
            side = HOST if side == DEVICE else DEVICE
        i = min(ready[side])
        ready[side].remove(i)
        made.append(nodes[i])
        for reader in readers[i]:
            missing[reader] -= 1
            if not missing[reader]:
                ready[_side(nodes[reader], device)].append(reader)
    return made


def crossings(placed: Placed) -> dict[str, int]:
    """Transfers in all, and by direction."""
    ways = Counter(n.attrs["to"] for n in placed.graph.nodes if is_transfer(n))
    return {
        "transfer_count": sum(ways.values()),
        "transfer_to_cpu_count": ways[HOST],
        "transfer_to_gpu_count": ways[DEVICE],
    }
