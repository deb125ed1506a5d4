"""A small ONNX graph written down node by node: what templates and models are made with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Array

OPSET = 17
IR_VERSION = 8


@dataclass
class Sketch:
    """Names are given on the way; `rng` draws every number in the graph."""

    rng: np.random.Generator
    opset: int = OPSET
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    declared: list[onnx.ValueInfoProto] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)

    def input(self, array: Array, dims: tuple[str | int, ...] | None = None) -> str:
        """A run-time input with this content; `dims` may name dimensions that vary."""
        name = f"x{len(self.inputs)}"
        word = dt.word_of(array.dtype)
        self.declared.append(helper.make_tensor_value_info(name, dt.ONNX[word], array.shape if dims is None else dims))
        self.inputs[name] = array
        return name

    def const(self, value: Any, dtype: str = "float32") -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dt.numpy_dtype(dtype)), name))
        return name

    def __call__(self, op: str, *inputs: str, domain: str = "", outputs: int = 1, **attrs: Any) -> str:
        """A node; the name of its first output (`name`, then `name.1`...)."""
        name = f"{op.lower()}{len(self.nodes)}"
        names = [name, *(f"{name}.{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=name, domain=domain, **attrs))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def integers(self, shape: tuple[int, ...], dtype: str) -> Array:
        low, high = dt.limits(dtype)
        return self.rng.integers(low, high + 1, shape).astype(dt.numpy_dtype(dtype))

    def build(self, *outputs: tuple[str, str]) -> tuple[bytes, dict[str, Array]]:
        """(ModelProto bytes, run-time inputs); outputs are (name, element type)."""
        infos = [helper.make_tensor_value_info(name, dt.ONNX[word], None) for name, word in outputs]
        graph = helper.make_graph(self.nodes, "sketch", self.declared, infos, self.initializers)
        opsets = [helper.make_opsetid("", self.opset)]
        if any(n.domain for n in self.nodes):
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="opgauge")
        return model.SerializeToString(deterministic=True), dict(self.inputs)
