"""What a model from a stranger must satisfy before anything is computed: sizes, names, versions, one meaning each."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from .errors import ModelError

MAX_NAME = 4096  # characters
MAX_ATTRIBUTE = 1 << 16  # numbers in one list


def admit(model: onnx.ModelProto) -> None:
    """Raises: ModelError naming what is too long, twice, negative or unknown."""
    if model.ir_version > onnx.IR_VERSION:
        raise ModelError(f"IR version {model.ir_version} is not known, {onnx.IR_VERSION} is the newest")
    _once([entry.domain or "ai.onnx" for entry in model.opset_import], "opset of domain")
    graph = model.graph
    if not graph.output:
        raise ModelError("the graph has no output")
    _once([value.name for value in graph.input], "graph input")
    _once([tensor.name for tensor in graph.initializer], "initializer")
    for value in (*graph.input, *graph.output):
        _name(value.name, "graph input or output")
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                raise ModelError(f"{value.name!r} has the dimension {dim.dim_value}")
    for index, node in enumerate(graph.node):
        _admit_node(node, f"node {index} ({node.op_type[:80]})")
    for value in graph.input:
        if not value.HasField("type"):
            raise ModelError(f"graph input {value.name!r} has no type")


def _admit_node(node: onnx.NodeProto, where: str) -> None:
    for text in (node.name, node.op_type, node.domain, *node.input, *node.output):
        _name(text, where)
    _once([attribute.name for attribute in node.attribute], f"{where}: attribute")
    for attribute in node.attribute:
        _name(attribute.name, where)
        count = max(len(attribute.ints), len(attribute.floats), len(attribute.strings))
        if count > MAX_ATTRIBUTE:
            raise ModelError(f"{where}: {attribute.name} has {count} elements; at most {MAX_ATTRIBUTE} are accepted")


def _name(text: str, where: str) -> None:
    if len(text) > MAX_NAME:
        raise ModelError(f"{where}: a name of {len(text)} characters; at most {MAX_NAME} are accepted")


def _once(names: Sequence[str], what: str) -> None:
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ModelError(f"{what} {twice[:80]!r} occurs twice")
