"""A planted fault: one node's call, changed before, inside or after an honest computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import ModelError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Array


@dataclass(frozen=True)
class Call:
    """One node with the content of its inputs (None where absent); `names` are its outputs in the graph's order."""

    op: str
    domain: str
    opset: int
    inputs: tuple[Array | None, ...]
    attrs: Mapping[str, Any]
    names: tuple[str, ...]

    def operand(self, index: int) -> Array | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def need(self, index: int) -> Array:
        """An input that must be there. Raises: Skip."""
        found = self.operand(index)
        if found is None:
            raise Skip
        return found

    def with_input(self, index: int, value: Array | None) -> Call:
        padded = (*self.inputs, *(None,) * (index + 1 - len(self.inputs)))
        return replace(self, inputs=(*padded[:index], value, *padded[index + 1 :]))

    def with_attrs(self, **changed: Any) -> Call:
        return replace(self, attrs={**self.attrs, **changed})


class Skip(Exception):
    """The fault does not meet its trigger here: the honest result stands."""


Outputs = list[Array]
Before = Callable[[Call], Call]
After = Callable[[Call, Outputs], Outputs]
Inside = Callable[[Call], Outputs]


def parse(model_bytes: bytes, inputs: Mapping[str, Array]) -> Call:
    """The only node of a model. Raises: Skip where there are more."""
    model = onnx.load_model_from_string(model_bytes)
    if len(model.graph.node) != 1:
        raise Skip
    node = model.graph.node[0]
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attrs = {k: v.decode() if isinstance(v, bytes) else v for k, v in attrs.items()}
    operands = tuple(inputs.get(n, stored.get(n)) if n else None for n in node.input)
    opset = next((i.version for i in model.opset_import if not i.domain), 1)
    return Call(node.op_type, node.domain, opset, operands, attrs, tuple(node.output))


def honest(call: Call) -> Outputs:
    """What exact arithmetic, rounded once, gives. Raises: ModelError where the call is not legal."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(call.inputs)]
    node = helper.make_node(call.op, names, call.names, domain=call.domain, **call.attrs)
    feeds = {n: x for n, x in zip(names, call.inputs, strict=True) if x is not None}
    declared = [helper.make_tensor_value_info(n, dt.ONNX[dt.word_of(x.dtype)], x.shape) for n, x in feeds.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in call.names if name]
    graph = helper.make_graph([node], "planted", declared, outputs)
    imports = [helper.make_opsetid("", call.opset), *([helper.make_opsetid(call.domain, 1)] if call.domain else [])]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    return [np.array(e.value) for e in evaluate(lower(model, feeds), feeds)]


def same(call: Call) -> Call:
    return call


def kept(call: Call, outputs: Outputs) -> Outputs:
    return outputs


@dataclass
class Planted:
    """`run` as `opgauge sensitivity` calls it: `before` changes the call, `inside` replaces the computation, `after`
    changes the result. A `Skip` from any of them leaves the honest result.
    """

    id: str
    ops: tuple[str, ...]
    cls: str
    title: str
    before: Before = same
    inside: Inside = honest
    after: After = kept
    memory: dict[Any, Any] = field(default_factory=dict)

    @property
    def op(self) -> str:
        return self.ops[0]

    def reset(self) -> None:
        self.memory.clear()

    def run(self, model_bytes: bytes, inputs: dict[str, Array], base: str = "ort") -> Outputs:
        call = parse(model_bytes, inputs)
        try:
            changed = self.before(call)
            return self.after(changed, self.inside(changed))
        except (Skip, ModelError):
            return honest(call)


@dataclass
class Remembering(Planted):
    """A fault that depends on earlier calls: `recall(memory, call, outputs)` changes the result."""

    recall: Callable[[dict[Any, Any], Call, Outputs], Outputs] = lambda memory, call, outputs: outputs

    def run(self, model_bytes: bytes, inputs: dict[str, Array], base: str = "ort") -> Outputs:
        call = parse(model_bytes, inputs)
        return self.recall(self.memory, call, self.inside(call))
