"""Cases for each distinct node of a model: shapes, element types, attributes, quantization parameters, value ranges."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine import lower
from opgauge.reference_engine.case import id_of, parse_id
from opgauge.reference_engine.errors import CaseError, ModelError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.types import Arg, Array, Attr, Case

from . import model, segments
from .models import Loaded

# A tensor of up to so many elements is spelled out: quantization parameters, axes, shapes.
LITERAL = 64
KINDS = (int, float, str)


def extract(loaded: Loaded) -> tuple[dict[str, int], dict[str, str]]:
    """({case id: how many nodes it stands for}, {node: why it is none}) in order of the graph.

    Values are the reference's own, from the model's inputs.
    Raises: ModelError where the model cannot be lowered.
    """
    tensors = observe(loaded)
    opsets = {e.domain or "": e.version for e in loaded.model.opset_import}
    found: Counter[str] = Counter()
    skipped: dict[str, str] = {}
    for index, node in enumerate(loaded.model.graph.node):
        if node.op_type == "Constant":
            continue
        try:
            found[_checked(case_of(node, tensors, stored(loaded), opsets))] += 1
        except (CaseError, ModelError, KeyError) as error:
            skipped[lower.describe(node, index)] = f"{type(error).__name__}: {error}"
    return dict(found), skipped


def stored(loaded: Loaded) -> frozenset[str]:
    return frozenset(segments.stored(loaded.model.graph))


def observe(loaded: Loaded) -> dict[str, Array]:
    """Every tensor of the model, as the reference computes it."""
    graph = loaded.model.graph
    constant = segments.stored(graph)
    names = [n for node in graph.node for n in node.output if n and n not in constant]
    lowered = lower.lower(segments.exposed(loaded.model, names), loaded.feeds)
    exacts = evaluate(lowered, loaded.feeds)
    tensors = dict(loaded.feeds) | {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    tensors |= dict(zip(lowered.output_names, (e.value for e in exacts), strict=True))
    for node in graph.node:
        if node.op_type == "Constant":
            tensors[node.output[0]] = constant_of(node)
    return tensors


def constant_of(node: onnx.NodeProto) -> Array:
    attribute = node.attribute[0]
    if attribute.type == onnx.AttributeProto.TENSOR:
        return numpy_helper.to_array(attribute.t)
    kind = np.float32 if "float" in attribute.name else np.int64
    return np.asarray(onnx.helper.get_attribute_value(attribute), kind)


def case_of(node: onnx.NodeProto, tensors: dict[str, Array], constant: frozenset[str], opsets: dict[str, int]) -> Case:
    """Raises: CaseError for an attribute that a case cannot spell."""
    names = input_names(node)
    args = tuple(
        argument(names[i], tensors[name], name in constant) if name else Arg(names[i])
        for i, name in enumerate(node.input)
    )
    attrs = tuple((a.name, attribute_of(a)) for a in sorted(node.attribute, key=lambda a: a.name))
    outputs = tuple(dt.word_of(tensors[name].dtype) for name in node.output if name)
    domain = "" if node.domain == "ai.onnx" else node.domain
    return Case(node.op_type, domain, opsets[""], args, outputs, attrs, 0, "plain")


def input_names(node: onnx.NodeProto) -> list[str]:
    """ONNX's own names where the schema is known, numbered where it repeats."""
    try:
        schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
        known = [i.name for i in schema.inputs]
    except onnx.defs.SchemaError:
        known = []
    named = known[: len(node.input)]
    return [named[i] if i < len(named) and len(node.input) <= len(known) else f"x{i}" for i in range(len(node.input))]


def attribute_of(attribute: onnx.AttributeProto) -> Attr:
    value: Any = onnx.helper.get_attribute_value(attribute)
    many = attribute.type in (6, 7, 8)
    items = [v.decode() if isinstance(v, bytes) else v for v in (value if many else [value])]
    if not all(isinstance(v, KINDS) for v in items):
        raise CaseError(f"attribute {attribute.name} is no number, text or list of these")
    return tuple(items) if many else items[0]


def argument(name: str, array: Array, const: bool) -> Arg:
    """Literal where it is short; else the profile that comes nearest to what the tensor held."""
    word = dt.word_of(array.dtype)
    parameter = "scale" in name or "zero_point" in name or word == "int64"
    if array.size <= (LITERAL if parameter else 1):
        return Arg(name, word, array.shape, values=tuple(_number(v, word) for v in array.ravel()), const=const)
    return Arg(name, word, array.shape, *profile(array, word), const=const)


def _number(value: Any, word: str) -> float:
    """The shortest number that reads as this element."""
    return float(str(value)) if dt.is_float(word) else int(value)


def profile(array: Array, word: str) -> tuple[str, tuple[float, ...]]:
    """How a seed becomes data like these: integers within their range, floats with their mean and deviation."""
    if word == "bool":
        return "bool", ()
    if not dt.is_float(word):
        return "uniform", (int(array.min()), int(array.max()))
    wide = array.astype(np.float64)
    wide = wide[np.isfinite(wide)]
    if not wide.size:
        return "normal", ()
    if wide.min() >= 0:
        return "uniform", (0.0, _short(wide.max()))
    std, mean = float(wide.std()), float(wide.mean())
    return "normal", (_short(std),) if abs(mean) < std / 4 else (_short(std), _short(mean))


def _short(value: float) -> float:
    """One digit: nodes of about one range are one case."""
    return float(f"{value:.1g}")


def _checked(case: Case) -> str:
    """The id, after the case was built, parsed back and lowered. Raises: CaseError, ModelError."""
    text = id_of(case, ",".join(dict.fromkeys(a.dtype for a in case.args if a.dtype)))
    data, inputs = model.build(parse_id(text)[0])
    lower.lower(data, inputs)
    return text
