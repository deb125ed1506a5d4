"""Where the time of a run goes on this engine: each node in the graph, and alone on the same operands."""

from __future__ import annotations

from collections.abc import Mapping

from opgauge.backends import RunResult, profiled
from opgauge.reference_engine.executor import execute, finder, plan, watched, with_added
from opgauge.reference_engine.types import Array

ALONE_S = 2.0


def profile(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
    """A profile of the model after the rules; options `disable`, `only`."""
    from opgauge.reference_engine import passes
    from opgauge.reference_engine.lower import lower

    from . import kernels

    feeds, options = profiled.taken(inputs)
    graph, _ = passes.optimise(lower(model, feeds), passes.select(options.get("disable", ""), options.get("only", "")))
    bound = plan(graph, finder(with_added(kernels(), "cpu")), "cpu")
    execute(bound, feeds)  # compiles
    watched(bound, feeds)
    whole: list[int] = []
    seen: list[list[tuple[int, int]]] = []
    for _ in range(profiled.rounds(profiled.timed(lambda: execute(bound, feeds)))):
        whole.append(profiled.timed(lambda: execute(bound, feeds)))
        seen.append(watched(bound, feeds)[1])
    best = min(seen, key=lambda times: sum(ns for _, ns in times))  # the least disturbed run
    values, _ = watched(bound, feeds)
    called = [step for step in bound.steps if step.kernel is not None]
    nodes = []
    for i, step in enumerate(called):
        node, kernel = step.node, step.kernel
        assert kernel is not None
        operands = [values[name] for name in node.inputs]
        out = values[node.output].copy()

        def run(kernel=kernel, operands=operands, out=out, step=step) -> None:
            kernel.call(*operands, out, *step.attrs)

        nodes.append(
            profiled.node(
                node.source,
                node.kind,
                profiled.moves(node.kind),
                best[i][1],
                profiled.alone(run, ALONE_S / len(called)),
                best[i][0],
            )
        )
    return profiled.result(nodes, whole, counts=dict(bound.counts))
