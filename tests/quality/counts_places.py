"""Plants an extra Transpose, Copy or fallback in many places of the built-in networks and asks the counts gate.

    python tests/quality/counts_places.py [PLACES] [RERUNS]

Every plant must turn the gate red and be named with its node and, where a rule did it, the rule; unchanged reruns must
stay green. Prints one line a place and the rates; exits 1 where one was missed, misnamed or falsely accused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from opgauge import counts_gate
from opgauge.backends import wgpu
from opgauge.reference_engine import passes
from opgauge.reference_engine.executor import Find, finder
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.rules.rewrite import Draft, Index
from opgauge.reference_engine.types import Finding, Graph, Kernel, Node
from opgauge.suites.networks import NETWORKS, Network


class Place(NamedTuple):
    """What is planted where: the node is one of the optimised graph."""

    what: str
    network: Network
    node: Node


def places(count: int) -> list[Place]:
    """Kinds and networks in turn, nodes spread over each graph."""
    graphs = {n.name: passes.optimise(lower(*n.build()))[0] for n in NETWORKS}
    found: list[Place] = []
    kinds = ("Transpose", "Copy", "fallback")
    # A network that is one fused kernel may have no node with two axes to turn.
    fit = {what: [(n, [m for m in graphs[n.name].nodes if able(graphs[n.name], m, what)]) for n in NETWORKS]
           for what in kinds}  # fmt: skip
    while len(found) < count:
        i = len(found)
        what = kinds[i % 3]
        rows = [(network, nodes) for network, nodes in fit[what] if nodes]
        network, nodes = rows[(i // 3) % len(rows)]
        turn = i // (3 * len(rows))
        found.append(Place(what, network, nodes[(7 * turn + 3 * i) % len(nodes)]))
    return found


def able(graph: Graph, node: Node, what: str) -> bool:
    """A transpose needs two axes that hold something; a view has no kernel that could be missing."""
    shape = graph.specs[node.output].shape
    wide = sum(d > 1 for d in shape) > 1
    return node.kind != "DataMove.reshape" and (what != "Transpose" or wide)


def planted(place: Place) -> passes.Rule:
    """A rule that appends the mover to one node, in every round, for the other rules would take it away again."""

    def match(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
        if (node.kind, node.source) != (place.node.kind, place.node.source):
            return None
        made = draft(node.primitive, *node.inputs, fn=node.fn, **node.attrs)
        if place.what == "Copy":
            return draft("DataMove", made, fn="copy")
        rank = len(graph.specs[node.output].shape)
        perm = (*range(1, rank), 0)
        back = (rank - 1, *range(rank - 1))
        return draft.transpose(draft.transpose(made, perm), back)

    return passes.Rule(f"planted-{place.what.lower()}", match, "planted")


def without(node: Node, graph: Graph) -> Find:
    """The kernels of wgpu, the one for this kind and these types taken away."""
    find = finder(wgpu.kernels())
    gone = node.primitive, node.fn, tuple(graph.specs[name].dtype for name in (*node.inputs, node.output))

    def look(primitive: str, fn: str, dtypes: tuple[str, ...]) -> Kernel | None:
        return None if (primitive, fn, dtypes) == gone else find(primitive, fn, dtypes)

    return look


def measured(place: Place) -> dict[str, dict[str, Any]]:
    name = place.network.name
    if place.what == "fallback":
        graph = passes.optimise(lower(*place.network.build()))[0]
        return {"wgpu": {name: counts_gate.planned_on_gpu(place.network, find=without(place.node, graph))}}
    return {"cpu": {name: counts_gate.ours(place.network, (*passes.RULES, planted(place)))}}


def named(place: Place, findings: list[Finding]) -> bool:
    """Do the findings name the node, and the rule where one did it."""
    text = " ".join(f.message for f in findings)
    rule = place.what == "fallback" or f"planted-{place.what.lower()}" in text
    return rule and place.node.source in text and any("rose" in f.message for f in findings)


def baseline(now: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The shipped baseline of what was measured, and of nothing else."""
    shipped = counts_gate.read()["counts"]
    return {backend: {name: shipped[backend][name] for name in models} for backend, models in now.items()}


def reds(count: int) -> Iterator[tuple[Place, bool, bool, str]]:
    for place in places(count):
        now = measured(place)
        found = counts_gate.compare(baseline(now), now)
        yield place, bool(found), named(place, found), found[0].message[:90] if found else "green"


def main(count: int, reruns: int) -> int:
    red = right = 0
    for place, seen, told, said in reds(count):
        red, right = red + seen, right + told
        print(f"{place.what:9} {place.network.name:16} {place.node.source[:40]:40} {said}", flush=True)
    green = 0
    for _ in range(reruns):
        now = counts_gate.measure(NETWORKS, runtimes=False)
        green += not counts_gate.compare(baseline(now), now)
    print(f"{red} of {count} plants red, {right} of {count} with node and rule named, {green} of {reruns} reruns green")
    return 0 if (red, right, green) == (count, count, reruns) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 30, int(sys.argv[2]) if sys.argv[2:] else 20))
