"""Rules on elements: folding, chains, quantization pairs, lookup tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import dtypes as dt
from .. import real as r
from .. import rounding
from ..known import as_array, is_settled
from ..primitives import primitive_of
from ..real import Real
from ..types import Array, Graph, Node
from .rewrite import Draft, Index, constant_view, nbytes, through, uniform

MOST_FOLDED = 2**26
MOST_GROWTH = 2**16


def _folded(graph: Graph, node: Node) -> Real | None:
    """What a node on constants gives; None where that would only make the graph larger."""
    if not node.inputs or any(n not in graph.constants for n in node.inputs) or node.output in graph.outputs:
        return None
    size = nbytes(graph.specs[node.output])
    if size > MOST_FOLDED or size > max(MOST_GROWTH, 2 * sum(graph.constants[n].nbytes for n in node.inputs)):
        return None
    operands = [r.leaf(graph.constants[n], graph.specs[n].dtype) for n in node.inputs]
    return primitive_of(node.primitive).exact(*operands, fn=node.fn, **node.attrs)


def constant_folding(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """What constants give in every honest kernel is a constant."""
    made = _folded(graph, node)
    return None if made is None or not is_settled(made) else draft.constant(as_array(made))


def constant_functions(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """Float results on constants, correctly rounded: inside the set, perhaps not the kernel's own bits."""
    made = _folded(graph, node)
    if made is None or not dt.is_float(made.dtype) or np.any(made.hazard):
        return None
    return draft.constant(as_array(made))


# ---- chains


def _same(graph: Graph, at: Index, name: str, value: float) -> bool:
    """Is the operand this number everywhere, in the same bits (0 is not -0)."""
    found = uniform(constant_view(graph, at, name))
    return found is not None and bool(found == value) and bool(np.signbit(found) == np.signbit(value))


def elementwise_chains(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """Chains that end where they began, bit for bit."""
    if node.primitive != "Elementwise":
        return None
    x = node.inputs[0]
    before = at.producer.get(x)
    inner = before.fn if before is not None and before.primitive == "Elementwise" else ""
    if node.fn == "relu" and inner == "relu":
        return x
    if node.fn == "neg" and inner == "neg" and before is not None:
        return before.inputs[0]
    if node.fn == "abs" and inner in ("abs", "neg") and before is not None:
        # abs of the least integer wraps to itself, and so does neg: either way the same.
        return x if inner == "abs" else draft("Elementwise", before.inputs[0], fn="abs")
    if node.fn in ("mul", "div") and _same(graph, at, node.inputs[1], 1):
        return x
    if node.fn == "mul" and _same(graph, at, x, 1):
        return node.inputs[1]
    if node.fn in ("max", "min") and node.inputs[0] == node.inputs[1]:
        return x
    if node.fn in ("add", "sub") and not dt.is_float(graph.specs[x].dtype) and _same(graph, at, node.inputs[1], 0):
        return x
    if node.fn == "cast" and inner == "cast" and before is not None:
        return _cast_of_cast(graph, node, before, draft)
    return None


def _cast_of_cast(graph: Graph, node: Node, before: Node, draft: Draft) -> str | None:
    first, middle, last = (graph.specs[n].dtype for n in (before.inputs[0], before.output, node.output))
    if not lossless(first, middle):
        return None
    return before.inputs[0] if first == last else draft("Elementwise", before.inputs[0], fn="cast", to=last)


# Integers below 2^bits and floats of this many significant bits pass unchanged.
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def lossless(first: str, middle: str) -> bool:
    """Does every value of `first`, NaN and -0 included, survive a visit to `middle`."""
    if first == middle:
        return True
    if first == "bool":
        return middle != "bool"
    if middle == "bool":
        return False
    if dt.is_float(first):
        wider = _DIGITS.get(middle, 0) > _DIGITS[first]
        return wider and not (first == "bfloat16" and middle == "float16")
    low, high = dt.limits(first)
    if dt.is_float(middle):
        return max(-low, high) <= min(2 ** _DIGITS[middle], int(dt.MAX[middle]))
    bottom, top = dt.limits(middle)
    return bottom <= low and high <= top


def relu_into_quantize(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """Q(relu(x)) = Q(x) where the zero point is the type's least value: saturation does what Relu does."""
    if node.primitive != "Quantize":
        return None
    name, _ = through(at, node.inputs[0])
    relu = at.producer.get(name)
    scale, zero = (constant_view(graph, at, n) for n in node.inputs[1:3])
    if relu is None or (relu.primitive, relu.fn) != ("Elementwise", "relu") or scale is None or zero is None:
        return None
    if not (scale.astype(np.float64) > 0).all() or not (zero == dt.limits(node.attrs["to"])[0]).all():
        return None
    shape = graph.specs[node.inputs[0]].shape
    return draft("Quantize", draft.reshape(relu.inputs[0], shape), *node.inputs[1:], **node.attrs)


def quantize_pairs(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """Q(DQ(q)) = q where the parameters are equal and every value of the type comes back. DQ(Q(x)) rounds and stays."""
    if node.primitive != "Quantize":
        return None
    name, _ = through(at, node.inputs[0])
    maker = at.producer.get(name)
    if maker is None or maker.primitive != "Dequantize":
        return None
    views = [constant_view(graph, at, n) for n in (*maker.inputs[1:], *node.inputs[1:])]
    if any(v is None for v in views):
        return None
    scale, zero, scale2, zero2 = (np.asarray(v) for v in views)
    blocks = graph.specs[maker.output].shape
    aligned = blocks == graph.specs[node.inputs[0]].shape or scale.size == scale2.size == 1
    equal = scale.dtype == scale2.dtype and np.array_equal(scale, scale2) and np.array_equal(zero, zero2)
    if not (aligned and equal and zero.dtype == zero2.dtype and node.attrs["to"] == graph.specs[maker.inputs[0]].dtype):
        return None
    if not _comes_back(scale, zero, maker, node):
        return None
    return draft.reshape(maker.inputs[0], graph.specs[node.output].shape)


def _comes_back(scale: Array, zero: Array, maker: Node, node: Node) -> bool:
    """Tried on every value of the type and every pair of parameters, in the formula of our kernels."""
    if maker.attrs["to"] != "float32" or scale.dtype != np.float32 or node.attrs.get("precision"):
        return False
    low, high = dt.limits(node.attrs["to"])
    every = np.arange(low, high + 1, dtype=np.int64)
    with np.errstate(all="ignore"):
        for s, z in set(zip(scale.ravel().tolist(), zero.ravel().tolist(), strict=True)):
            x = (every - z).astype(np.float32) * np.float32(s)
            back = rounding.saturate(np.rint((x / np.float32(s)).astype(np.float64)) + z, node.attrs["to"])
            if not np.array_equal(back, every):
                return False
    return True


# ---- lookup tables

COSTLY = frozenset("exp log tanh sigmoid erf sqrt div".split())
LONGEST = 16


def lookup_table(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """Q(f(DQ(q))) = table[q] for 8-bit q, where each of the 256 entries is the only honest one."""
    if node.primitive != "Quantize" or node.attrs["to"] not in ("int8", "uint8"):
        return None
    region = _region(graph, at, node)
    if region is None:
        return None
    source, nodes = region
    if not any(n.fn in COSTLY for n in nodes) or not all(
        n is node or at.private(n.output) or _inside(at, n, nodes) for n in nodes
    ):
        return None
    table = _table(graph, at, source, nodes)
    if table is None:
        return None
    flat = draft.reshape(source, (graph.specs[source].size,))
    at_index = draft("Elementwise", flat, fn="cast", to="int64")
    made = draft("Gather", draft.constant(table.reshape(1, 256, 1)), at_index)
    return draft.reshape(made, graph.specs[node.output].shape)


def _inside(at: Index, node: Node, nodes: Sequence[Node]) -> bool:
    readers = at.readers.get(node.output, ())
    return node.output not in at.outputs and all(any(reader is n for n in nodes) for reader in readers)


def _region(graph: Graph, at: Index, last: Node) -> tuple[str, list[Node]] | None:
    """The 8-bit tensor that an elementwise region starts from, and the nodes in order."""
    found: dict[str, Node] = {}
    sources: set[str] = set()

    def walk(node: Node) -> bool:
        if node.output in found:
            return True
        if len(found) >= LONGEST:
            return False
        found[node.output] = node
        if node.primitive in ("Quantize", "Dequantize"):
            if (
                any(constant_view(graph, at, n) is None for n in node.inputs[1:])
                or graph.specs[node.output].shape[1] != 1
            ):
                return False
            if node.primitive == "Dequantize":
                sources.add(through(at, node.inputs[0])[0])
                return graph.specs[node.inputs[0]].dtype in ("int8", "uint8")
            return follow(node.inputs[0])
        if node.primitive == "DataMove" and node.fn == "reshape":
            return follow(node.inputs[0])
        return node.primitive == "Elementwise" and node.fn != "where" and all(map(follow, node.inputs))

    def follow(name: str) -> bool:
        if uniform(constant_view(graph, at, name)) is not None:
            return True
        maker = at.producer.get(name)
        return maker is not None and walk(maker)

    if not walk(last) or len(sources) != 1:
        return None
    order = [n for n in graph.nodes if n.output in found]
    return sources.pop(), order


def _table(graph: Graph, at: Index, source: str, nodes: Sequence[Node]) -> Array | None:
    """Entries by index modulo 256: negative indices of int8 count from the end. None where one is not settled."""
    every = np.arange(256, dtype=np.uint8).view(dt.numpy_dtype(graph.specs[source].dtype))
    values: dict[str, Real] = {}

    def operand(name: str, shape: tuple[int, ...]) -> Real:
        if name in values:
            return r.move(values[name], lambda part: part.reshape(shape))
        view = constant_view(graph, at, name)
        return r.leaf(np.broadcast_to(np.asarray(uniform(view)), shape), graph.specs[name].dtype)

    made: Real | None = None
    for node in nodes:
        rank3 = (1, 1, 256)
        if node.primitive == "Dequantize":
            operands = [r.leaf(every.reshape(rank3), graph.specs[source].dtype)]
            operands += [r.leaf(np.asarray(constant_view(graph, at, n)), graph.specs[n].dtype) for n in node.inputs[1:]]
        elif node.primitive == "Quantize":
            operands = [operand(node.inputs[0], rank3)]
            operands += [r.leaf(np.asarray(constant_view(graph, at, n)), graph.specs[n].dtype) for n in node.inputs[1:]]
        elif node.primitive == "DataMove":
            values[node.output] = operand(node.inputs[0], (256,))
            continue
        else:
            operands = [operand(n, (256,)) for n in node.inputs]
        made = primitive_of(node.primitive).exact(*operands, fn=node.fn, **node.attrs)
        values[node.output] = made
    if made is None or not is_settled(made):
        return None
    return as_array(made).ravel()
