"""Where the time of a run goes on the GPU: all passes by the device's clock, each node in a graph of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from opgauge.backends import RunResult, profiled
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.placement import HOST, is_transfer, place
from opgauge.reference_engine.types import Array, Graph, Node

if TYPE_CHECKING:
    from . import Engine

ALONE_RUNS = 3


def profile(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
    """A profile of the model after the rules; options as of the engine. A node alone is fed zeros of its shapes."""
    from opgauge.reference_engine import passes
    from opgauge.reference_engine.lower import lower

    from . import load

    feeds, options = profiled.taken(inputs)
    engine = load(**options)
    engine(model, feeds)
    whole, clock, uploads = [], [], []
    for _ in range(profiled.rounds(profiled.timed(lambda: engine(model, feeds)))):
        times: list[Mapping[str, int]] = []

        def run(times: list[Mapping[str, int]] = times) -> None:
            times.append(engine(model, feeds).times_ns)

        whole.append(profiled.timed(run))
        clock.append(times[0].get("passes", 0))
        uploads.append(times[0]["upload"])
    graph = lower(model, feeds)
    graph = passes.optimise(graph, engine.rules)[0] if engine.rules else graph
    device = place(graph, engine.wanted or (lambda node: False)).device
    known: dict[object, int] = {}
    nodes, at = [], 0
    for node in graph.nodes:
        if node.kind == "DataMove.reshape" or is_transfer(node) or device[node.output] == HOST:
            continue
        alone = alone_ns(engine, graph, node, known)
        nodes.append(profiled.node(node.source, node.kind, profiled.moves(node.kind), None, alone, at))
        at += alone
    return profiled.result(nodes, whole, passes_ns=min(clock), transfer_ns=min(uploads))


def alone_ns(engine: Engine, graph: Graph, node: Node, known: dict[object, int]) -> int:
    """The least time of one node's passes; nodes of one kind and one set of shapes and attributes are asked once."""
    from . import dispatch
    from .plan import bind

    specs = tuple(graph.specs[name] for name in (*node.inputs, node.output))
    key = node.kind, specs, repr(sorted(node.attrs.items())), tuple(n in graph.constants for n in node.inputs)
    if key in known:
        return known[key]
    given = tuple(dict.fromkeys(n for n in node.inputs if n not in graph.constants))
    constants = {n: graph.constants[n] for n in node.inputs if n in graph.constants}
    single = Graph((node,), given, (node.output,), ("y",), graph.specs, constants)
    loaded = dispatch.load_program(engine.device, bind(single, engine.find, engine.device.limit, engine.fallback))
    zeros = {n: np.zeros(graph.specs[n].shape, dt.numpy_dtype(graph.specs[n].dtype)) for n in given}
    try:
        seen = [dispatch.run_program(engine.device, loaded, zeros).times_ns for _ in range(ALONE_RUNS)]
    finally:
        dispatch.unload(engine.device, loaded)
    known[key] = max(min(t.get("passes", t["run"]) for t in seen), 1)
    return known[key]
