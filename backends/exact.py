"""The exact reference as a backend: whatever it returns must pass, or the judge contradicts itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opgauge.reference_engine.types import Array

from . import RunResult


def load() -> Callable[[bytes, Mapping[str, Array]], RunResult]:
    from opgauge.reference_engine.evaluate import evaluate
    from opgauge.reference_engine.lower import lower

    def run(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
        graph = lower(model, inputs)
        exact = evaluate(graph, inputs)
        if graph.forced:  # what is computed from other outputs is computed from them as returned
            exact = evaluate(graph, inputs, forced={i: exact[i].value for i in graph.forced})
        return RunResult(tuple(e.value for e in exact))

    return run


def info() -> dict[str, str]:
    import numpy

    return {"version": numpy.__version__, "engine": "reference_engine on numpy", "sums": "float64, then one rounding"}
