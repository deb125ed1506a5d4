"""Rules that save movement and never touch a value."""

from __future__ import annotations

import numpy as np

from ..types import Graph, Node
from .rewrite import Draft, Index, constant_view, is_move, nbytes, through

Ints = tuple[int, ...]


def copy_elimination(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """A copy is read where it came from."""
    return node.inputs[0] if is_move(node, "copy") else None


def no_op_movement(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """A move that moves nothing is a reshape at most."""
    if node.primitive != "DataMove":
        return None
    x, y = graph.specs[node.inputs[0]], graph.specs[node.output]
    if node.fn == "reshape":
        source, _ = through(at, node.inputs[0])
        return draft.reshape(source, y.shape) if source != node.inputs[0] or x.shape == y.shape else None
    same = {
        "transpose": lambda: _order(x.shape, node.attrs["perm"]),
        "expand": lambda: x.size == y.size,
        "slice": lambda: x.shape == y.shape and min(node.attrs["steps"], default=1) > 0,
        "pad": lambda: not any(node.attrs["pads"]),
        "concat": lambda: len(node.inputs) == 1,
    }
    if node.fn in same and same[node.fn]():
        return draft.reshape(node.inputs[0], y.shape)
    if node.fn == "concat" and any(graph.specs[n].size == 0 for n in node.inputs):
        kept = [n for n in node.inputs if graph.specs[n].shape[node.attrs["axis"]]]
        if kept and len(kept) < len(node.inputs):
            return kept[0] if len(kept) == 1 else draft("DataMove", *kept, fn="concat", axis=node.attrs["axis"])
    return None


def _order(shape: Ints, perm: Ints) -> bool:
    """Do the axes that hold more than one element stay in their order."""
    moved = [p for p in perm if shape[p] != 1]
    return moved == sorted(moved) or 0 in shape


def im2col_pointwise(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """Columns of a 1x1 window without stride or padding are the image itself."""
    if node.primitive != "Im2col":
        return None
    a, y = node.attrs, graph.specs[node.output]
    x = graph.specs[node.inputs[0]]
    one = all(v == 1 for v in (*a["kernel_shape"], *a["strides"])) and not any(a["pads"])
    return draft.reshape(node.inputs[0], y.shape) if one and a["out_shape"] == x.shape[2:] else None


def transpose_pairs(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """Two transposes are one, or none."""
    if not is_move(node, "transpose"):
        return None
    before = at.producer.get(node.inputs[0])
    if before is None or not is_move(before, "transpose"):
        return None
    perm = tuple(before.attrs["perm"][p] for p in node.attrs["perm"])
    return draft.transpose(before.inputs[0], perm)


def _inverse(perm: Ints) -> Ints:
    return tuple(int(i) for i in np.argsort(perm))


def transpose_through_elementwise(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """f(T(x), T(y)) = T(f(x, y)) where that moves fewer bytes or meets another transpose."""
    if node.primitive != "Elementwise":
        return None
    makers = [at.producer.get(n) for n in node.inputs]
    moved = [m for m in makers if m is not None and is_move(m, "transpose")]
    if not moved or len({m.attrs["perm"] for m in moved}) != 1 or not all(at.private(m.output) for m in moved):
        return None
    perm = moved[0].attrs["perm"]
    if nbytes(graph.specs[node.output]) > sum(
        nbytes(graph.specs[m.output]) for m in {m.output: m for m in moved}.values()
    ):
        return None
    operands = []
    for name, maker in zip(node.inputs, makers, strict=True):
        if maker is not None and maker in moved:
            operands.append(maker.inputs[0])
            continue
        view = constant_view(graph, at, name)
        if view is None:
            return None
        operands.append(draft.view(view.transpose(_inverse(perm))))
    return draft.transpose(draft("Elementwise", *operands, fn=node.fn, **node.attrs), perm)


PER_TENSOR = ("Quantize", "Dequantize", "Requantize")


def transpose_through_quantize(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """Q(T(x)) = T(Q(x)) per tensor, where the result is no wider than x."""
    if node.primitive not in PER_TENSOR or graph.specs[node.output].shape[1] != 1:
        return None
    name, private = through(at, node.inputs[0])
    maker = at.producer.get(name)
    if maker is None or not is_move(maker, "transpose") or not private or not at.private(node.inputs[0]):
        return None
    if nbytes(graph.specs[node.output]) > nbytes(graph.specs[name]):
        return None
    blocks = draft.reshape(maker.inputs[0], (1, 1, graph.specs[name].size))
    made = draft(node.primitive, blocks, *node.inputs[1:], **node.attrs)
    moved = draft.transpose(draft.reshape(made, graph.specs[maker.inputs[0]].shape), maker.attrs["perm"])
    return draft.reshape(moved, graph.specs[node.output].shape)


def layout(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """T(f(x)) = f(T(x)) where x is narrower than f(x): the transpose moves to where it costs fewest bytes."""
    if not is_move(node, "transpose"):
        return None
    chain, narrow = _narrowest(graph, at, node)
    if not narrow:
        return None
    x = chain[narrow - 1].inputs[0]
    size = graph.specs[x].size
    name = draft.transpose(draft.reshape(x, graph.specs[node.inputs[0]].shape), node.attrs["perm"])
    for maker in reversed(chain[:narrow]):
        blocks = draft.reshape(name, (1, 1, size)) if maker.primitive in PER_TENSOR else name
        name = draft(maker.primitive, blocks, *maker.inputs[1:], fn=maker.fn, **maker.attrs)
    return draft.reshape(name, graph.specs[node.output].shape)


def _narrowest(graph: Graph, at: Index, node: Node) -> tuple[list[Node], int]:
    """The unary chain above a transpose, last first, and after how many of it the tensor is narrowest (0: as it is)."""
    least, narrow = nbytes(graph.specs[node.output]), 0
    chain: list[Node] = []
    name = node.inputs[0]
    while at.private(name):
        name, private = through(at, name)
        maker = at.producer.get(name)
        unary = maker is not None and maker.primitive == "Elementwise" and len(maker.inputs) == 1
        per_tensor = maker is not None and maker.primitive in PER_TENSOR and graph.specs[maker.output].shape[1] == 1
        if maker is None or not private or not at.private(name) or not (unary or per_tensor):
            break
        chain.append(maker)
        name = maker.inputs[0]
        if nbytes(graph.specs[name]) < least:
            least, narrow = nbytes(graph.specs[name]), len(chain)
    return chain, narrow


def slice_and_concat(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """Slices of slices, slices of one part of a concat, and a concat of what a split had cut."""
    if is_move(node, "slice"):
        before = at.producer.get(node.inputs[0])
        if before is not None and is_move(before, "slice"):
            return _slice_of_slice(node, before, draft)
        if before is not None and is_move(before, "concat"):
            return _slice_of_concat(graph, node, before, draft)
    return _rejoined(graph, at, node, draft) if is_move(node, "concat") else None


def _slice_of_slice(node: Node, before: Node, draft: Draft) -> str | None:
    inner, outer = before.attrs, node.attrs
    if min((*inner["steps"], *outer["steps"]), default=1) < 1:
        return None
    starts, ends, steps = [], [], []
    for s1, t1, s2, e2, t2 in zip(
        inner["starts"], inner["steps"], outer["starts"], outer["ends"], outer["steps"], strict=True
    ):
        count = len(range(s2, e2, t2))
        starts.append(s1 + s2 * t1)
        steps.append(t1 * t2)
        ends.append(starts[-1] + (count - 1) * steps[-1] + 1 if count else starts[-1])
    return draft("DataMove", before.inputs[0], fn="slice", starts=tuple(starts), ends=tuple(ends), steps=tuple(steps))


def _slice_of_concat(graph: Graph, node: Node, before: Node, draft: Draft) -> str | None:
    axis, a = before.attrs["axis"], node.attrs
    start, end, step = a["starts"][axis], a["ends"][axis], a["steps"][axis]
    if step < 1 or start >= end:
        return None
    low = 0
    for part in before.inputs:
        high = low + graph.specs[part].shape[axis]
        if low <= start and end <= high:
            starts, ends = list(a["starts"]), list(a["ends"])
            starts[axis], ends[axis] = start - low, end - low
            return draft("DataMove", part, fn="slice", starts=tuple(starts), ends=tuple(ends), steps=a["steps"])
        low = high
    return None


def _rejoined(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    axis = node.attrs["axis"]
    parts: list[str] = []
    last: Node | None = None
    for name in node.inputs:
        maker = at.producer.get(name)
        piece = maker if maker is not None and is_move(maker, "slice") and _plain(graph, maker, axis) else None
        if piece is not None and last is not None and _follows(last, piece, axis):
            a = last.attrs
            ends = tuple(piece.attrs["ends"][i] if i == axis else e for i, e in enumerate(a["ends"]))
            parts[-1] = draft("DataMove", last.inputs[0], fn="slice", starts=a["starts"], ends=ends, steps=a["steps"])
            last = draft.nodes[-1]
            continue
        parts.append(name)
        last = piece
    if len(parts) == len(node.inputs):
        return None
    return parts[0] if len(parts) == 1 else draft("DataMove", *parts, fn="concat", axis=axis)


def _plain(graph: Graph, piece: Node, axis: int) -> bool:
    """Does the slice cut along this axis only, in steps of one."""
    shape, a = graph.specs[piece.inputs[0]].shape, piece.attrs
    whole = all(
        (s, e) == (0, d) for i, (s, e, d) in enumerate(zip(a["starts"], a["ends"], shape, strict=True)) if i != axis
    )
    return whole and all(t == 1 for t in a["steps"])


def _follows(left: Node, right: Node, axis: int) -> bool:
    return left.inputs[0] == right.inputs[0] and left.attrs["ends"][axis] == right.attrs["starts"][axis]


def gemm_transposes(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """A @ B = (B' @ A')' where that saves more transposed bytes than it adds."""
    if node.kind != "Gemm":
        return None
    a, b, *zeros = node.inputs
    reader = at.sole_reader(node.output)
    size = nbytes(graph.specs[node.output])
    cost = -size if reader is not None and _swaps(reader) else size
    cost += sum(_cost(graph, at, name) for name in dict.fromkeys((a, b)))
    if cost >= 0:
        return None
    points = [draft.reshape(z, _turned(graph.specs[z].shape)) for z in reversed(zeros)]
    made = draft("Gemm", _transposed(graph, at, b, draft), _transposed(graph, at, a, draft), *points)
    return draft.transpose(made, _swap(len(draft.spec(made).shape)))


def _turned(shape: Ints) -> Ints:
    """[..,M,1] -> [..,1,M]: no element moves."""
    return shape if len(shape) < 2 else (*shape[:-2], shape[-1], shape[-2])


def _swap(rank: int) -> Ints:
    return (*range(rank - 2), rank - 1, rank - 2)


def _swaps(node: Node | None) -> bool:
    return node is not None and is_move(node, "transpose") and node.attrs["perm"] == _swap(len(node.attrs["perm"]))


def _cost(graph: Graph, at: Index, name: str) -> int:
    if constant_view(graph, at, name) is not None:
        return 0
    size = nbytes(graph.specs[name])
    return -size if _swaps(at.producer.get(name)) and at.private(name) else size


def _transposed(graph: Graph, at: Index, name: str, draft: Draft) -> str:
    maker = at.producer.get(name)
    if maker is not None and _swaps(maker):
        return maker.inputs[0]
    view = constant_view(graph, at, name)
    swap = _swap(len(graph.specs[name].shape))
    return draft.transpose(name, swap) if view is None else draft.view(view.transpose(swap))
