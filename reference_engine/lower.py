"""ONNX model -> primitive graph: checked, bounded, every shape and dtype inferred while emitting."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from . import dtypes as dt
from .admission import admit
from .emit import Emitter, OperatorDef, Value
from .errors import DtypeError, ModelError, ShapeError, UnknownOperatorError
from .operators import OPERATORS, table
from .types import Array, Graph, TensorSpec

# A tensor or a model beyond these is refused before anything runs (docs/numerics.md does not depend on them).
MAX_ELEMENTS = 2**28
MAX_NODES = 20_000


def lower(model: bytes | onnx.ModelProto, feeds: Mapping[str, Array]) -> Graph:
    """The primitive graph of a model for the given run-time inputs.

    Raises: ModelError and its kinds, naming the node: malformed model, unknown operator, attribute or
        element type, impossible shape, quantization parameters that nobody can honour.
    """
    proto = parse(model) if isinstance(model, bytes) else model
    graph = proto.graph
    if len(graph.node) > MAX_NODES:
        raise ModelError(f"the model has {len(graph.node)} nodes; at most {MAX_NODES} are accepted")
    admit(proto)
    _refuse(proto)
    opsets = {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}
    emit = Emitter(feeds=feeds)
    values: dict[str, Value] = {}
    for tensor in graph.initializer:
        values[tensor.name] = _initializer(emit, tensor)
    inputs = _inputs(emit, graph, feeds, values)
    inside, expanded = regions(graph)
    for index, node in enumerate(graph.node):
        emit.zp_inside, emit.expanded = index in inside, index in expanded
        _lower_node(emit, node, index, opsets, values)
    outputs = tuple(_output(emit, name.name, values) for name in graph.output)
    names = tuple(o.name for o in graph.output)
    bound = tuple(sorted(emit.bound))
    return Graph(
        tuple(emit.nodes),
        inputs,
        outputs,
        names,
        emit.specs,
        emit.constants,
        bound,
        _forced(graph, names),
        emit.uncertain,
    )


CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")


def _refuse(proto: onnx.ModelProto) -> None:
    """Raises: UnknownOperatorError for what needs more than one straight line: control flow, functions, sequences."""
    if proto.functions:
        names = ", ".join(f.name for f in proto.functions[:3])
        raise UnknownOperatorError(f"the model defines functions ({names}); inline them first (onnx.inliner)")
    for index, node in enumerate(proto.graph.node):
        if node.op_type in CONTROL_FLOW and node.domain in ("", "ai.onnx"):
            raise UnknownOperatorError(
                f"{describe(node, index)}: control flow is not supported, only straight-line graphs are"
            )
    for info in (*proto.graph.input, *proto.graph.output):
        kind = info.type.WhichOneof("value")
        if kind not in (None, "tensor_type"):
            raise UnknownOperatorError(f"{info.name!r} is a {kind.removesuffix('_type')}; only tensors are supported")
    if proto.graph.sparse_initializer:
        raise UnknownOperatorError("the model has sparse initializers; only dense tensors are supported")


FUSED_SUMS = ("Add", "Mul", "AveragePool", "GlobalAveragePool")


def regions(graph: onnx.GraphProto) -> tuple[frozenset[int], frozenset[int]]:
    """QuantizeLinear nodes before which the zero point may be added, and DequantizeLinear nodes that may be expanded.

    Source: N4: DequantizeLinear -> Add, Mul or an average -> QuantizeLinear may be computed as one contributed
        operator, whose text does not place the zero point; a sum expands the brackets of its operands.
    """
    makers = {name: (i, node) for i, node in enumerate(graph.node) for name in node.output}
    inside: set[int] = set()
    expanded: set[int] = set()
    for index, node in enumerate(graph.node):
        if node.op_type != "QuantizeLinear" or not node.input or node.input[0] not in makers:
            continue
        middle = makers[node.input[0]][1]
        if middle.op_type not in FUSED_SUMS or middle.domain not in ("", "ai.onnx"):
            continue
        sources = [makers[name] for name in middle.input if name in makers]
        if len(sources) == len(middle.input) and all(s.op_type == "DequantizeLinear" for _, s in sources):
            inside.add(index)
            expanded.update(i for i, _ in sources if middle.op_type == "Add")
    return frozenset(inside), frozenset(expanded)


def _forced(graph: onnx.GraphProto, outputs: tuple[str, ...]) -> tuple[int, ...]:
    """Graph outputs that other outputs of the same node are judged against as returned."""
    names = {
        node.output[i]
        for k, node in enumerate(graph.node)
        if node.op_type != "Constant"
        for i in operator_of(node, describe(node, k)).forced
        if i < len(node.output)
    }
    return tuple(i for i, name in enumerate(outputs) if name in names)


def parse(model: bytes) -> onnx.ModelProto:
    """A ModelProto. Raises: ModelError."""
    try:
        proto = onnx.load_model_from_string(model)
    except Exception as error:  # protobuf raises its own types by backend
        raise ModelError(f"the model is not a readable ONNX protobuf: {str(error)[:200]}") from error
    if not proto.graph.node:
        raise ModelError("the model has no node")
    return proto


def _initializer(emit: Emitter, tensor: onnx.TensorProto) -> Value:
    return emit.constant(_elements(tensor))


def _elements(tensor: onnx.TensorProto) -> Array:
    """Raises: ModelError, ShapeError, DtypeError naming the tensor."""
    dtype = dt.word_of_onnx(tensor.data_type)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ModelError(f"initializer {tensor.name!r} is stored outside the model; only embedded data is read")
    if min(tensor.dims, default=1) < 0:
        raise ShapeError(f"initializer {tensor.name!r} has a negative dimension: {list(tensor.dims)}")
    try:
        array = numpy_helper.to_array(tensor)
    except Exception as error:  # numpy and protobuf raise several kinds for one cause
        raise ModelError(f"initializer {tensor.name!r} cannot be read: {str(error)[:200]}") from error
    return np.asarray(array, dt.numpy_dtype(dtype))


def _inputs(
    emit: Emitter, graph: onnx.GraphProto, feeds: Mapping[str, Array], values: dict[str, Value]
) -> tuple[str, ...]:
    names = []
    for info in graph.input:
        if info.name in values and info.name not in feeds:
            continue
        if info.name not in feeds:
            raise ModelError(f"input {info.name!r} was given no tensor; given: {', '.join(feeds) or 'none'}")
        array = feeds[info.name]
        declared = info.type.tensor_type
        word = dt.word_of(array.dtype)
        if declared.elem_type and dt.word_of_onnx(declared.elem_type) != word:
            raise DtypeError(f"input {info.name!r} is {word}, the model declares {dt.word_of_onnx(declared.elem_type)}")
        # Some exporters write -1 for a dimension that is bound at run time.
        dims = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in declared.shape.dim]
        if declared.HasField("shape") and (
            len(dims) != array.ndim or any(d not in (None, a) for d, a in zip(dims, array.shape, strict=True))
        ):
            raise ShapeError(f"input {info.name!r} has shape {array.shape}, the model declares {dims}")
        emit.specs[info.name] = TensorSpec(tuple(array.shape), word)
        values[info.name] = Value(info.name, emit.specs[info.name])
        names.append(info.name)
    return tuple(names)


def _output(emit: Emitter, name: str, values: Mapping[str, Value]) -> str:
    if name not in values:
        raise ModelError(f"graph output {name!r} is produced by no node")
    return values[name].name


def describe(node: onnx.NodeProto, index: int) -> str:
    """How messages name a node."""
    op = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return f"node {index} {node.name[:60]!r} ({op})" if node.name else f"node {index} ({op})"


def operator_of(node: onnx.NodeProto, where: str) -> OperatorDef:
    """The operator's row. Raises: UnknownOperatorError."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    row = OPERATORS.get((domain, node.op_type)) or table().get((domain, node.op_type))
    if row is None:
        raise UnknownOperatorError(f"{where}: no lowering for this operator; `opgauge list --operators` shows all")
    return row


def _lower_node(
    emit: Emitter, node: onnx.NodeProto, index: int, opsets: Mapping[str, int], values: dict[str, Value]
) -> None:
    where = describe(node, index)
    if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
        _constant(emit, node, where, values)
        return
    operator = operator_of(node, where)
    domain = node.domain or "ai.onnx"
    if domain not in opsets:
        raise ModelError(f"{where}: the model imports no opset for domain {domain!r}")
    emit.source, emit.opset, emit.onnx_opset = where, opsets[domain], opsets.get("ai.onnx", 0)
    if emit.opset < operator.since or (domain == "ai.onnx" and emit.opset > MAX_OPSET):
        raise UnknownOperatorError(f"{where}: opset {emit.opset} is not supported, {operator.since} to {MAX_OPSET} are")
    emit.n_outputs = len(node.output)
    missing = [name for name in node.input if name and name not in values]
    if missing:
        raise ModelError(f"{where}: input {missing[0]!r} is produced by no earlier node")
    arguments = [values[name] if name else None for name in node.input]
    attributes = _attributes(node, operator, where)
    _check_arity(operator, len(arguments), where)
    before = len(emit.nodes)
    results = operator.lower(emit, *arguments, **attributes)
    for made in emit.nodes[before:]:
        if emit.specs[made.output].size > MAX_ELEMENTS:
            raise ShapeError(
                f"{where}: {made.kind} would hold {emit.specs[made.output]}, more than {MAX_ELEMENTS} elements"
            )
    results = results if isinstance(results, tuple) else (results,)
    for name, value in zip(node.output, results, strict=False):
        if name in values:
            raise ModelError(f"{where}: output {name!r} already exists")
        if name:
            values[name] = value
    if sum(map(bool, node.output)) > len(results):
        raise UnknownOperatorError(f"{where}: only the first {len(results)} outputs are lowered")


MAX_OPSET = 28
CONSTANTS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def _constant(emit: Emitter, node: onnx.NodeProto, where: str, values: dict[str, Value]) -> None:
    """A Constant node is an initializer in another place. Source: ONNX Constant-13."""
    if len(node.attribute) != 1 or len(node.output) != 1 or node.input:
        raise ModelError(f"{where}: a Constant has no input, one output and one attribute")
    attribute = node.attribute[0]
    if attribute.name == "value" and attribute.type == onnx.AttributeProto.TENSOR:
        tensor = onnx.TensorProto()
        tensor.CopyFrom(attribute.t)
        tensor.name = tensor.name or node.output[0]
        value = _initializer(emit, tensor)
    elif attribute.name in CONSTANTS:
        value = emit.constant(np.asarray(_stated(attribute, where), CONSTANTS[attribute.name]))
    else:
        raise UnknownOperatorError(f"{where}: a Constant of {attribute.name!r} is not supported, only tensors are")
    if node.output[0] in values:
        raise ModelError(f"{where}: output {node.output[0]!r} already exists")
    values[node.output[0]] = value


@lru_cache(maxsize=1024)
def _float_defaults(lower_fn: Any) -> dict[str, Any]:
    """Defaults that are floats, as a model would hold them: ONNX's are 32 bits wide, 0.01 is not a hundredth."""
    parameters = inspect.signature(lower_fn).parameters.values()
    later = getattr(lower_fn, "versions", {})  # of `checks.versioned`: what is passed there counts as given
    return {
        p.name: float(np.float32(p.default)) for p in parameters if isinstance(p.default, float) and p.name not in later
    }


@lru_cache(maxsize=1024)
def _signature(lower_fn: Any) -> tuple[frozenset[str], int, int | None]:
    """Attribute names, least and most inputs."""
    parameters = list(inspect.signature(lower_fn).parameters.values())[1:]
    names = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    least = sum(p.default is p.empty for p in positional)
    most = None if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(positional)
    return names, least, most


def _stated(attribute: onnx.AttributeProto, where: str) -> Any:
    """Raises: ModelError where the attribute refers to one of a function around it, or has no type."""
    try:
        return onnx.helper.get_attribute_value(attribute)
    except ValueError as error:
        raise ModelError(f"{where}: attribute {attribute.name[:60]!r} has no value: {str(error)[:80]!r}") from error


def _attributes(node: onnx.NodeProto, operator: OperatorDef, where: str) -> dict[str, Any]:
    names, _, _ = _signature(operator.lower)
    found: dict[str, Any] = dict(_float_defaults(operator.lower))
    for attribute in node.attribute:
        if attribute.name not in names:
            known = ", ".join(sorted(names)) or "none"
            raise UnknownOperatorError(f"{where}: unknown attribute {attribute.name!r}; known: {known}")
        value = _stated(attribute, where)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, onnx.TensorProto):
            value.name = value.name or attribute.name
            value = _elements(value)
        elif isinstance(value, onnx.GraphProto):
            raise UnknownOperatorError(f"{where}: attribute {attribute.name!r} holds a graph, which is not supported")
        if isinstance(value, list):
            value = tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)
        found[attribute.name] = value
    return found


def _check_arity(operator: OperatorDef, count: int, where: str) -> None:
    _, least, most = _signature(operator.lower)
    if count < least or (most is not None and count > most):
        raise ModelError(
            f"{where}: {count} inputs, expected {least}{'' if most == least else f' to {most}' if most else ' or more'}"
        )
