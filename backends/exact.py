"""The exact reference as a backend: whatever it returns must pass, or the judge contradicts itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from opgauge.reference_engine.types import Array

from . import RunResult

if TYPE_CHECKING:
    from onnx import ModelProto


def load() -> Callable[[bytes, Mapping[str, Array]], RunResult]:
    from opgauge.reference_engine.evaluate import rounded
    from opgauge.reference_engine.lower import lower
    from opgauge.reference_engine.types import Policy

    def run(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
        shown, count = whole(model)
        return RunResult(rounded(lower(shown, inputs), inputs, Policy())[:count])

    return run


def whole(data: bytes) -> tuple[ModelProto, int]:
    """The model with every tensor between its nodes as an output, behind its own; how many are its own.

    Between nodes numbers are of their type: a sum of two tensors is one of what was stored.
    """
    from opgauge.reference_engine.lower import parse

    model = parse(data)
    count = len(model.graph.output)
    own = {o.name for o in model.graph.output}
    for node in model.graph.node if len(model.graph.node) > 1 else ():
        for name in node.output if node.op_type != "Constant" else ():
            if name and name not in own:
                model.graph.output.add().name = name
    return model, count


def info() -> dict[str, str]:
    import numpy

    return {
        "version": numpy.__version__,
        "engine": "reference_engine on numpy",
        "sums": "float64, then one rounding for each node",
    }
