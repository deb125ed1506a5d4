"""Models of one node, and what the reference and onnx's own evaluator make of them: for the tests of operators."""

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower


def ints(*values):
    return np.array(values, np.int64)


def data(*shape, dtype="float32", seed=7):
    rng = np.random.default_rng(seed + sum(shape))
    if dt.is_float(dtype):
        return rng.normal(size=shape).astype(dt.NUMPY[dtype])
    low, high = max(dt.limits(dtype)[0], -200), min(dt.limits(dtype)[1], 200)
    return rng.integers(low, high + 1, shape).astype(dt.NUMPY[dtype])


def tensor(name, word, shape):
    return helper.make_tensor_value_info(name, dt.ONNX[word], shape)


def model(op, inputs, opset=21, outputs=1, domain="", fold=False, **attrs):
    """(model, feeds). `outputs` is their number, or their element types where the model shall state them.

    `fold`: inputs that decide shapes are initializers, that is all lists of integers except the first input.
    """
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    arrays = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if n}
    const = [n for n, a in arrays.items() if fold and n != names[0] and a.dtype == np.int64 and a.ndim == 1]
    feeds = {n: a for n, a in arrays.items() if n not in const}
    if isinstance(outputs, int):
        made = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    else:
        made = [tensor(f"y{i}", word, None) for i, word in enumerate(outputs)]
    node = helper.make_node(op, names, [y.name for y in made], domain=domain, **attrs)
    given = [tensor(n, dt.word_of(a.dtype), a.shape) for n, a in feeds.items()]
    stored = [onnx.numpy_helper.from_array(arrays[n], n) for n in const]
    graph = helper.make_graph([node], "g", given, made, stored)
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets), feeds


def lowered(op, *inputs, **options):
    """(graph, feeds)."""
    proto, feeds = model(op, inputs, **options)
    return lower(proto, feeds), feeds


def exacts(op, *inputs, **options):
    return evaluate(*lowered(op, *inputs, **options))


def ours(op, *inputs, **options):
    """The exact outputs; one array where there is one output."""
    values = [exact.value for exact in exacts(op, *inputs, **options)]
    return values[0] if len(values) == 1 else values


def onnx_says(op, *inputs, **options):
    proto, feeds = model(op, inputs, **options)
    found = ReferenceEvaluator(proto).run(None, feeds)
    return found[0] if len(found) == 1 else found
