"""An ONNX model cut into pieces that can be judged alone: nodes, or regions between quantized tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Array

# What a runtime may fuse between a product and the quantization of its result.
ACTIVATIONS = frozenset({"Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid"})
# What it may quantize before instead of after: these only put elements elsewhere.
PLACES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten"})


# Products whose result a runtime scales, shifts or clamps in one kernel where nothing else reads it.
PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True)
class Segment:
    """Nodes that are judged together: fed by `inputs`, seen at `outputs`; `index` of the last node in the model."""

    index: int
    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def op(self) -> str:
        """The operator that the segment is about: no conversion, activation or move where there is another."""
        kinds = [n.op_type for n in self.nodes]
        core = [k for k in kinds if k not in ("QuantizeLinear", "DequantizeLinear")]
        return ([k for k in core if k not in ACTIVATIONS | PLACES | {"BatchNormalization"}] or core or kinds)[-1]

    @property
    def fused(self) -> str:
        """The contributed operator that runtimes make of DequantizeLinear -> operator -> QuantizeLinear, or empty."""
        first, last = {n.op_type for n in self.nodes[:-1]}, self.nodes[-1].op_type
        return f"QLinear{self.op}" if "DequantizeLinear" in first and last == "QuantizeLinear" else ""

    @property
    def name(self) -> str:
        node = self.nodes[-1]
        return node.name or node.output[0]


def stored(graph: onnx.GraphProto) -> set[str]:
    """Names whose content is in the model: initializers and outputs of Constant nodes."""
    constants = {n.output[0] for n in graph.node if n.op_type == "Constant" and n.domain in ("", "ai.onnx")}
    return constants | {t.name for t in graph.initializer}


def inner_tensors(graph: onnx.GraphProto) -> set[str]:
    """Float tensors inside DQ -> operator -> Q regions and between a product and its activation, lost to fusion.

    To show one would keep the runtime from fusing, and what it ships would go unjudged.
    Source: docs/numerics.md, QDQ regions: both the fused and the unfused form are honest. Q(T(x)) = T(Q(x)): a runtime
        may quantize before it moves, and what it then shows as the moved tensor is already quantized.
    """
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    outputs = {o.name for o in graph.output}
    inner: set[str] = set()
    for node in reversed(graph.node):
        for name in node.output:
            users = readers.get(name, [])
            if not users or name in outputs:
                continue
            fused = all(
                u.op_type == "QuantizeLinear" or (u.op_type in ACTIVATIONS | PLACES and u.output[0] in inner)
                for u in users
            )
            if node.op_type == "DequantizeLinear" or fused or _feeds_its_activation(node, users, inner):
                inner.add(name)
    return inner


def _feeds_its_activation(node: onnx.NodeProto, users: Sequence[onnx.NodeProto], inner: Collection[str]) -> bool:
    """Conv, Gemm, MatMul -> BatchNormalization or not -> Relu and its like, each read by the next alone."""
    user = users[0]
    if len(users) > 1 or user.input[0] != node.output[0]:
        return False
    if node.op_type == "BatchNormalization":
        return user.op_type in ACTIVATIONS
    normalised = user.op_type == "BatchNormalization" and user.output[0] in inner
    return node.op_type in PRODUCTS and (user.op_type in ACTIVATIONS or normalised)


def cut(graph: onnx.GraphProto, regions: bool = True) -> list[Segment]:
    """Segments in topological order; with `regions`, DQ -> operator -> Q stays together."""
    inner = inner_tensors(graph) if regions else set()
    constant = stored(graph)
    producers = {name: (i, node) for i, node in enumerate(graph.node) for name in node.output if name}
    segments = []
    for i, node in enumerate(graph.node):
        seen = [name for name in node.output if name and name not in inner]
        if not seen or node.output[0] in constant:
            continue
        nodes, inputs = _closure(i, node, producers, inner, constant)
        segments.append(Segment(i, nodes, inputs, tuple(seen)))
    return segments


def _closure(
    at: int, node: onnx.NodeProto, producers: dict[str, tuple[int, onnx.NodeProto]], inner: set[str], constant: set[str]
) -> tuple[tuple[onnx.NodeProto, ...], tuple[str, ...]]:
    found = {at: node}
    wanted, inputs = list(node.input), []
    while wanted:
        name = wanted.pop()
        if not name or name in constant:
            continue
        if name in inner:
            index, maker = producers[name]
            if index not in found:
                found[index] = maker
                wanted.extend(maker.input)
        elif name not in inputs:
            inputs.append(name)
    return tuple(found[i] for i in sorted(found)), tuple(sorted(inputs))


def with_readers(graph: onnx.GraphProto, segment: Segment) -> Segment | None:
    """The segment and the Transpose and QuantizeLinear that read one of its tensors which is the model's output too."""
    shown = {o.name for o in graph.output} & set(segment.outputs)
    moves = [n for n in graph.node if n.op_type == "Transpose" and n.input[0] in shown]
    made = {n.output[0] for n in moves}
    quantizers = [n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] in made]
    return replace(segment, nodes=(*segment.nodes, *moves, *quantizers)) if quantizers else None


def exposed(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """The model with more outputs, in the order of the names; their types are the runtime's to find."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    have = {o.name for o in made.graph.output}
    for name in names:
        if name not in have:
            made.graph.output.add().name = name
    return made


def alone(model: onnx.ModelProto, segment: Segment, feeds: Mapping[str, Array]) -> onnx.ModelProto:
    """The segment as a model of its own, with the constants that it reads; its inputs are typed as fed."""
    made = onnx.ModelProto(ir_version=model.ir_version, producer_name="opgauge")
    made.opset_import.extend(model.opset_import)
    graph = made.graph
    graph.name = segment.name
    read = {name for node in segment.nodes for name in node.input}
    graph.initializer.extend(t for t in model.graph.initializer if t.name in read)
    graph.node.extend(n for n in model.graph.node if n.op_type == "Constant" and n.output[0] in read)
    graph.node.extend(segment.nodes)
    for name in segment.inputs:
        word, shape = dt.word_of(feeds[name].dtype), feeds[name].shape
        graph.input.append(onnx.helper.make_tensor_value_info(name, dt.ONNX[word], shape))
    for name in segment.outputs:
        graph.output.add().name = name
    return made


def windows(segments: Sequence[Segment], sizes: dict[str, int], limit: int) -> Iterator[list[Segment]]:
    """Runs of segments whose tensors together stay below `limit` bytes."""
    current: list[Segment] = []
    names: set[str] = set()
    for segment in segments:
        more = names | set(segment.inputs) | set(segment.outputs)
        if current and sum(sizes.get(n, 0) for n in more) > limit:
            yield current
            current, more = [], set(segment.inputs) | set(segment.outputs)
        current.append(segment)
        names = more
    if current:
        yield current
