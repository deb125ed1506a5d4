"""What onnxruntime's graph holds at each optimisation level: nodes by kind, subgraphs included."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError
from opgauge.reference_engine.types import Array

from . import RunResult

LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
QUIET = 4


def kind(node: onnx.NodeProto) -> str:
    """`Conv`, `com.microsoft.nchwc::Conv`."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def kinds(graph: onnx.GraphProto, tally: Counter[str] | None = None) -> Counter[str]:
    """Nodes by kind, those of subgraphs too."""
    tally = Counter() if tally is None else tally
    for node in graph.node:
        tally[kind(node)] += 1
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
                kinds(inner, tally)
    return tally


def _session_options(ort: Any, level: str, path: str) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    name = LEVELS[level]
    if not hasattr(ort.GraphOptimizationLevel, name):  # older releases have no level of its own for layout
        name = "ORT_ENABLE_ALL"
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, name)
    options.optimized_model_filepath = path
    return options


def count(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
    """Counts `level/kind` for every level; the output is JSON in uint8: kinds by the tensor they make, by level.

    Raises: UnsupportedError, BackendUnavailableError.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise BackendUnavailableError(f"onnxruntime: {error}; pip install onnxruntime") from error
    found: dict[str, int] = {}
    nodes: dict[str, dict[str, list[str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for level in LEVELS:
            path = Path(folder) / f"{level}.onnx"
            try:
                ort.InferenceSession(model, _session_options(ort, level, str(path)), providers=["CPUExecutionProvider"])
            except Exception as error:  # its errors have no common class
                raise UnsupportedError(f"{type(error).__name__}: {error}") from error
            graph = onnx.load(str(path)).graph
            nodes[level] = makers(graph)
            for name, number in sorted(kinds(graph).items()):
                found[f"{level}/{name}"] = number
    return RunResult((np.frombuffer(json.dumps(nodes).encode(), np.uint8).copy(),), found)


def makers(graph: onnx.GraphProto) -> dict[str, list[str]]:
    """The kind of each node by the first tensor that it makes."""
    return {next(filter(None, node.output), node.name): [kind(node)] for node in graph.node}


# ---- quantizing where the tools are: a model in, a model out


def quantize_qdq(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
    """The int8 model in QDQ form, as bytes in a uint8 tensor; calibrated on the inputs."""
    return _quantized(model, inputs, "QDQ", False)


def quantize_qdq_per_channel(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
    return _quantized(model, inputs, "QDQ", True)


def quantize_qoperator(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
    return _quantized(model, inputs, "QOperator", False)


def quantize_dynamic(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
    """The model with DynamicQuantizeLinear and MatMulInteger for its products, as bytes in a uint8 tensor."""
    from onnxruntime import quantization as q

    return _prepared(model, lambda source, target: q.quantize_dynamic(source, target, op_types_to_quantize=["MatMul"]))


class _Feeds:
    """Calibration data as onnxruntime.quantization reads it."""

    def __init__(self, feeds: list[dict[str, Array]]) -> None:
        self._left = iter(feeds)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._left, None)


def _quantized(model: bytes, inputs: Mapping[str, Array], form: str, per_channel: bool) -> RunResult:
    """The opset must be 13 for per-channel forms."""
    from onnxruntime import quantization as q

    def quantize(source: str, target: str) -> None:
        q.quantize_static(
            source,
            target,
            _Feeds([dict(inputs)]),
            quant_format=getattr(q.QuantFormat, form),
            per_channel=per_channel,
            activation_type=getattr(q.QuantType, "QInt8" if form == "QDQ" else "QUInt8"),
            weight_type=q.QuantType.QInt8,
        )

    return _prepared(model, quantize)


def _prepared(model: bytes, quantize: Callable[[str, str], None]) -> RunResult:
    """Paddle's constants become initializers first, or the tools refuse."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        source, prepared, target = (str(Path(folder) / f"{name}.onnx") for name in ("source", "prepared", "target"))
        Path(source).write_bytes(model)
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        quantize(prepared, target)
        return RunResult((np.frombuffer(Path(target).read_bytes(), np.uint8).copy(),))
