"""Our engine with a clock at every node: where the time of a model goes."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from opgauge.backends import RunResult
from opgauge.reference_engine import passes
from opgauge.reference_engine.executor import finder, plan, watched, with_added
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
    for _ in range(WARM + RUNS):
        values, spans = watched(bound, inputs)
        seen.append([ns for _, ns in spans])
    middle = [int(median(column)) for column in zip(*seen[WARM:], strict=True)]
    names = [f"node|{s.node.kind}|{i:04d} {s.node.source}" for i, s in enumerate(bound.steps) if s.kernel]
    outputs = tuple(values[name].copy() for name in graph.outputs)
    return RunResult(outputs, bound.counts, {**dict(zip(names, middle, strict=True)), "traced": sum(middle)})
