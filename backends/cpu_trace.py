"""Our engine with a clock at every node: where the time of a model goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median

import numpy as np

from opgauge.backends import RunResult
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine import passes
from opgauge.reference_engine.executor import Plan, finder, plan, with_added
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Array

from .cpu import kernels

RUNS = 15  # the median over them; the first two compile and warm
WARM = 2


def run(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
    """Outputs, and ns of every node as `node|KIND|NAME`, with `traced` for the whole traced run."""
    graph, _ = passes.optimise(lower(model, inputs), passes.RULES)
    bound = plan(graph, finder(with_added(kernels(), "cpu")), "cpu")
    seen: list[list[int]] = []
    outputs: tuple[Array, ...] = ()
    for _ in range(WARM + RUNS):
        outputs, times = traced(bound, inputs)
        seen.append(times)
    middle = [int(median(column)) for column in zip(*seen[WARM:], strict=True)]
    names = [f"node|{s.node.kind}|{i:04d} {s.node.source}" for i, s in enumerate(bound.steps) if s.kernel]
    return RunResult(outputs, bound.counts, {**dict(zip(names, middle, strict=True)), "traced": sum(middle)})


def traced(bound: Plan, feeds: Mapping[str, Array]) -> tuple[tuple[Array, ...], list[int]]:
    """`executor.execute` with the ns of each node that has a kernel, its result's allocation included."""
    graph = bound.graph
    values: dict[str, Array] = dict(graph.constants)
    for name in graph.inputs:
        values[name] = np.ascontiguousarray(feeds[name]).reshape(feeds[name].shape)
    times = []
    for step in bound.steps:
        node, spec = step.node, graph.specs[step.node.output]
        if step.kernel is None:
            values[node.output] = values[node.inputs[0]].reshape(spec.shape)
            continue
        begin = time.perf_counter_ns()
        out = np.empty(spec.shape, dt.numpy_dtype(spec.dtype))
        step.kernel.call(*(values[name] for name in node.inputs), out, *step.attrs)
        times.append(time.perf_counter_ns() - begin)
        values[node.output] = out
    return tuple(values[name].copy() for name in graph.outputs), times
