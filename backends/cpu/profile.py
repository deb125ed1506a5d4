"""Where the time of a run goes on this engine: each node in the graph, and alone on the same operands."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from opgauge.backends import RunResult, profiled
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.executor import Plan, execute, finder, plan, with_added
from opgauge.reference_engine.types import Array

MOVES = frozenset({"DataMove", "Im2col", "Gather", "Scatter"})
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
        seen.append(watched(bound, feeds)[0])
    best = min(seen, key=lambda times: sum(ns for _, ns in times))  # the least disturbed run
    values = watched(bound, feeds)[1]
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
                node.primitive in MOVES,
                best[i][1],
                profiled.alone(run, ALONE_S / len(called)),
                best[i][0],
            )
        )
    return profiled.result(nodes, whole, counts=dict(bound.counts))


def watched(bound: Plan, feeds: Mapping[str, Array]) -> tuple[list[tuple[int, int]], dict[str, Array]]:
    """(start, duration) in ns of each kernel of one run, and every tensor; what `execute` does, with a clock."""
    graph = bound.graph
    values: dict[str, Array] = dict(graph.constants)
    for name in graph.inputs:
        values[name] = np.ascontiguousarray(feeds[name]).reshape(feeds[name].shape)
    times = []
    began = time.perf_counter_ns()
    for step in bound.steps:
        spec = graph.specs[step.node.output]
        if step.kernel is None:
            values[step.node.output] = values[step.node.inputs[0]].reshape(spec.shape)
            continue
        out = np.empty(spec.shape, dt.numpy_dtype(spec.dtype))
        operands = [values[name] for name in step.node.inputs]
        start = time.perf_counter_ns()
        step.kernel.call(*operands, out, *step.attrs)
        times.append((start - began, time.perf_counter_ns() - start))
        values[step.node.output] = out
    return times, values
