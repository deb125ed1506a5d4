"""What a computed tensor must hold: shape arithmetic followed back to constants and run-time inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from . import dtypes as dt
from . import real as r
from .errors import OpgaugeError
from .primitives import primitive_of
from .real import Real
from .types import Array, Node, TensorSpec

# Shape arithmetic is small; what is larger is data, and waits until the graph runs.
MAX_ELEMENTS = 4096
MAX_NODES = 512


class Unknowable(OpgaugeError):
    """Why a tensor's content is not known before the graph runs."""


def content(
    name: str,
    nodes: Sequence[Node],
    specs: Mapping[str, TensorSpec],
    constants: Mapping[str, Array],
    feeds: Mapping[str, Array],
) -> tuple[Array, set[str]]:
    """The tensor's elements and the run-time inputs that they depend on.

    Raises: Unknowable where it is large, or where an honest kernel may give more than one value.
    """
    needed = _ancestors(name, nodes, specs)
    values: dict[str, Real] = {}
    used: set[str] = set()
    for node in needed:
        for source in node.inputs:
            if source in values:
                continue
            array = constants[source] if source in constants else np.asarray(feeds[source])
            if source not in constants:
                used.add(source)
            values[source] = r.leaf(array, specs[source].dtype)
        values[node.output] = settled(node, [values[source] for source in node.inputs])
    return as_array(values[name]), used


def _ancestors(name: str, nodes: Sequence[Node], specs: Mapping[str, TensorSpec]) -> list[Node]:
    producers = {node.output: node for node in nodes}
    wanted = [name]
    found: dict[str, Node] = {}
    while wanted:
        node = producers.get(wanted.pop())
        if node is None or node.output in found:
            continue
        if specs[node.output].size > MAX_ELEMENTS or len(found) >= MAX_NODES:
            raise Unknowable(f"{node.source} computes {specs[node.output]}, which is more than shape arithmetic")
        found[node.output] = node
        wanted.extend(node.inputs)
    return [node for node in nodes if node.output in found]


def settled(node: Node, operands: Sequence[Real]) -> Real:
    """The node's result as a leaf. Raises: Unknowable where honest kernels may differ in it."""
    made = primitive_of(node.primitive).exact(*operands, fn=node.fn, **node.attrs)
    if not is_settled(made):
        raise Unknowable(f"{node.source} ({node.kind}) may be rounded in more than one way")
    return r.leaf(as_array(made), made.dtype)


def is_settled(x: Real) -> bool:
    """Does every honest kernel return the same elements."""
    if np.any(x.hazard) or len(x.members) > 1:
        return False
    if not dt.is_float(x.dtype):
        return x.lo is None or x.hi is None or bool(np.array_equal(x.lo, x.hi))
    return x.exact or (x.ieee and x.dtype in ("float32", "float64")) or not np.any(r.radius(x))


def as_array(x: Real) -> Array:
    """The elements in the tensor's own type."""
    with np.errstate(all="ignore"):
        return np.asarray(x.value).astype(dt.numpy_dtype(x.dtype))
