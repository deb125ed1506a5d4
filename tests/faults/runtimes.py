"""Whole runtimes with one planted fault each: `run(model, inputs)` on models of many nodes."""

from __future__ import annotations

import os

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

Arrays = dict[str, np.ndarray]


def right(data: bytes, inputs: Arrays) -> list[np.ndarray]:
    """Node by node in float32."""
    return [np.asarray(y) for y in ReferenceEvaluator(onnx.load_from_string(data)).run(None, dict(inputs))]


def wrong_node(data: bytes, inputs: Arrays) -> list[np.ndarray]:
    """Every Tanh is a Sigmoid."""
    model = onnx.load_from_string(data)
    for node in model.graph.node:
        node.op_type = "Sigmoid" if node.op_type == "Tanh" else node.op_type
    return right(model.SerializeToString(), inputs)


def wrong_fusion(data: bytes, inputs: Arrays) -> list[np.ndarray]:
    """MatMul and Add become one node that forgets to add; where the product is an output they are not fused."""
    model = onnx.load_from_string(data)
    shown = {o.name for o in model.graph.output}
    products = {n.output[0] for n in model.graph.node if n.op_type == "MatMul"} - shown
    for node in model.graph.node:
        if node.op_type == "Add" and node.input[0] in products:
            node.op_type = "Identity"
            del node.input[1:]
    return right(model.SerializeToString(), inputs)


def dies(data: bytes, inputs: Arrays) -> list[np.ndarray]:
    """Two Mul in one model end the process."""
    if sum(n.op_type == "Mul" for n in onnx.load_from_string(data).graph.node) >= 2:
        os.abort()
    return right(data, inputs)
