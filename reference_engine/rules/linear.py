"""Rules on products: what scales or shifts the rows of a product moves into its constant operand."""

from __future__ import annotations

import numpy as np

from ..types import Array, Graph, Node
from .rewrite import Draft, Index, constant_view, repeating, through


def affine_into_gemm(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """c * (A @ B + b) = (c * A) @ B + c * b for constant A, b, c: how BatchNormalization disappears into Conv."""
    if (
        node.primitive != "Elementwise"
        or node.fn not in ("mul", "add", "sub")
        or graph.specs[node.output].dtype != "float32"
    ):
        return None
    for x, c in ((0, 1), (1, 0)):
        view = constant_view(graph, at, node.inputs[c])
        if view is None or (node.fn == "sub" and c == 0):
            continue
        view = repeating(view)
        name, private = through(at, node.inputs[x])
        before = at.producer.get(name)
        if before is None or not private or not at.private(node.inputs[x]) or not at.private(name):
            continue
        if (before.primitive, before.fn) == ("Elementwise", "add"):
            made = _through_add(graph, at, node, before, view.reshape(graph.specs[name].shape), draft)
        else:
            made = _into_gemm(graph, at, node, before, node.inputs[x], view, draft)
        if made is not None:
            return draft.reshape(made, graph.specs[node.output].shape)
    return None


def _into_gemm(graph: Graph, at: Index, node: Node, gemm: Node, x: str, view: Array, draft: Draft) -> str | None:
    if node.fn != "mul" or gemm.primitive != "Gemm":
        return None
    a = constant_view(graph, at, gemm.inputs[0])
    rows = None if a is None else _per_row(view, graph.specs[gemm.output].shape, graph.specs[x].shape, a.shape)
    if a is None or rows is None or not np.isfinite(rows).all():
        return None
    return draft("Gemm", draft.constant((a * rows).astype(np.float32)), gemm.inputs[1])


def _through_add(graph: Graph, at: Index, node: Node, before: Node, view: Array, draft: Draft) -> str | None:
    """(y + b) op c with both constant: y + (b op c), or y * c + b * c."""
    for y, b in ((0, 1), (1, 0)):
        bias = constant_view(graph, at, before.inputs[b])
        if bias is None or constant_view(graph, at, before.inputs[y]) is not None:
            continue
        bias = repeating(bias)
        if not _leads_to_gemm(graph, at, node, before, y, view):
            return None
        with np.errstate(all="ignore"):
            if node.fn == "mul":
                scaled = draft("Elementwise", before.inputs[y], draft.view(view), fn="mul")
                return draft("Elementwise", scaled, draft.view(_op(np.multiply, bias, view)), fn="add")
            joined = _op(np.add if node.fn == "add" else np.subtract, bias, view)
        return draft("Elementwise", before.inputs[y], draft.view(joined), fn="add")
    return None


def _leads_to_gemm(graph: Graph, at: Index, node: Node, before: Node, y: int, view: Array) -> bool:
    """Is y the product of a constant, whose rows can take the factor."""
    source, _ = through(at, before.inputs[y])
    gemm = at.producer.get(source)
    a = constant_view(graph, at, gemm.inputs[0]) if gemm is not None and gemm.primitive == "Gemm" else None
    if gemm is None or a is None:
        return False
    shape = graph.specs[before.inputs[y]].shape
    return node.fn != "mul" or _per_row(view, graph.specs[gemm.output].shape, shape, a.shape) is not None


def _op(fn: np.ufunc, left: Array, right: Array) -> Array:
    """fn on what the two views hold, broadcast again where both repeat."""
    keep = tuple(
        slice(None) if (s and d > 1) or (t and d > 1) else slice(0, 1)
        for s, t, d in zip(left.strides, right.strides, left.shape, strict=True)
    )
    return np.broadcast_to(fn(left[keep], right[keep]), left.shape)


def _per_row(view: Array, product: tuple[int, ...], shape: tuple[int, ...], a: tuple[int, ...]) -> Array | None:
    """The factors as [..,M,1] beside A, where they vary along the rows of the product only."""
    if view.size == 0 or view.shape != shape:
        return None
    varies = [i for i, (s, d) in enumerate(zip(view.strides, view.shape, strict=True)) if s and d > 1]
    m = product[-2]
    if not varies:
        return np.asarray(view.reshape(-1)[:1].reshape((1,) * len(a))) if view.size else None
    if len(varies) != 1:
        return None
    axis = varies[0]
    inner, outer = int(np.prod(shape[axis + 1 :])), int(np.prod(shape[:axis]))
    channels = shape[axis]
    groups = int(np.prod(product[1:-2])) if len(product) > 2 else 1
    # Rows of all groups together are the channels: [N, groups, M, L] holds N * (groups M) * L elements.
    lead = product[0] if len(product) > 2 else 1
    if inner != product[-1] or channels != groups * m or outer != lead or int(np.prod(a[:-2])) not in (1, groups):
        return None
    if groups > 1 and int(np.prod(a[:-2])) != groups:
        return None
    values = view[tuple(slice(None) if i == axis else 0 for i in range(view.ndim))]
    rows = values.reshape(groups, m, 1)
    return np.asarray(rows.reshape((*a[:-2], m, 1)) if groups > 1 else rows.reshape((*(1,) * (len(a) - 2), m, 1)))
