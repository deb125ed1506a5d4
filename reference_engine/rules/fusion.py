"""Rules that give one kernel what several did: a product of bytes, its bias, its activation and its requantization."""

from __future__ import annotations

import math

import numpy as np

from .. import dtypes as dt
from ..types import Graph, Node
from .rewrite import Draft, Index, constant_view, is_move, repeating, through, uniform

BYTES = ("int8", "uint8")
FUSED = ("Gemm.requantize", "Gemm.im2col_requantize", "Gemm.im2row_requantize")
Ints = tuple[int, ...]


def requantize_into_gemm(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """Requantize(A @ B + b), and max or min of it with a constant, in one kernel: no int32 tensor is written.

    Where B are the columns of an image the kernel reads the image, and no columns are written either; between two
    transposes it reads and writes the layout outside of them.
    """
    if is_move(node, "transpose"):
        return _channels_last(graph, at, node, draft)
    if node.primitive == "Requantize":
        return _requantized(graph, at, node, draft)
    return _clamped(graph, at, node, draft) if node.primitive == "Elementwise" else None


def _requantized(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    if node.attrs["to"] not in BYTES:
        return None
    name, private = through(at, node.inputs[0])
    maker = at.producer.get(name)
    if maker is None or not private or not at.private(node.inputs[0]) or not at.private(name):
        return None
    for gemm, bias in _sums(graph, at, maker):
        shape = graph.specs[gemm.output].shape
        factor = _placed(graph.specs[node.output].shape, shape)
        zero_point = _scalar(graph, at, node.inputs[2], draft)
        added = draft.constant(np.zeros((), np.int32)) if bias is None else _operand(graph, at, bias, shape, draft)
        if factor is None or zero_point is None or added is None:
            continue
        low, high = dt.limits(node.attrs["to"])
        image = _image(graph, at, gemm)
        b, fn, geometry = (gemm.inputs[1], "requantize", {}) if image is None else (
            image.inputs[0], "im2col_requantize", image.attrs
        )  # fmt: skip
        made = draft(
            "Gemm", gemm.inputs[0], b, *gemm.inputs[2:], added, _reshaped(graph, at, node.inputs[1], factor, draft),
            zero_point, fn=fn, low=low, high=high, **node.attrs, **geometry,
        )  # fmt: skip
        return draft.reshape(made, graph.specs[node.output].shape)
    return None


def _sums(graph: Graph, at: Index, maker: Node) -> list[tuple[Node, str | None]]:
    """The product of bytes behind the sums that are requantized, and what was added to it."""
    if maker.kind == "Gemm":
        return [(maker, None)] if len(maker.inputs) == 4 else []
    found: list[tuple[Node, str | None]] = []
    for x, b in ((0, 1), (1, 0)) if maker.kind == "Elementwise.add" else ():
        name, private = through(at, maker.inputs[x])
        gemm = at.producer.get(name)
        if gemm is None or gemm.kind != "Gemm" or len(gemm.inputs) != 4 or maker.inputs[0] == maker.inputs[1]:
            continue
        if private and at.private(maker.inputs[x]) and at.private(name):
            found.append((gemm, maker.inputs[b]))
    return found


def _placed(blocks: Ints, shape: Ints) -> Ints | None:
    """Values along C of blocks [O,C,I] as they broadcast to the product: one for all, by row or by column.

    None where C spans neither rows nor columns alone.
    """
    _, channels, inner = blocks
    if channels == 1:
        return ()
    for end in range(len(shape), 0, -1):
        for begin in range(end - 1, -1, -1):
            if math.prod(shape[end:]) == inner and math.prod(shape[begin:end]) == channels:
                made = (*(1,) * begin, *shape[begin:end], *(1,) * (len(shape) - end))
                return made if made[-1] == 1 or made[-2] == 1 else None
    return None


def _operand(graph: Graph, at: Index, name: str, shape: Ints, draft: Draft) -> str | None:
    """What is added, without what it repeats, as it broadcasts to the product."""
    full = graph.specs[name].shape
    view = constant_view(graph, at, name)
    if view is not None:
        view = repeating(view)
        compact = view[tuple(slice(0, 1) if s == 0 else slice(None) for s in view.strides)]
        placed = _placed(blocks, shape) if (blocks := _blocks(compact.shape, full)) else None
        return None if placed is None else draft.constant(np.ascontiguousarray(compact).reshape(placed))
    source, _ = through(at, name)
    maker = at.producer.get(source)
    if maker is None or maker.kind != "DataMove.expand":
        return None
    before = graph.specs[maker.inputs[0]].shape
    placed = _placed(blocks, shape) if (blocks := _blocks(before, graph.specs[source].shape)) else None
    return None if placed is None else draft.reshape(maker.inputs[0], placed)


def _blocks(compact: Ints, full: Ints) -> Ints | None:
    """`full` as [O,C,I], C the axes along which `compact` varies; None where they are not side by side."""
    compact = (*(1,) * (len(full) - len(compact)), *compact)
    varies = [i for i, d in enumerate(compact) if d != 1]
    first, last = (varies[0], varies[-1] + 1) if varies else (0, 0)
    if 0 in full or compact[first:last] != full[first:last]:
        return None
    return math.prod(full[:first]), math.prod(full[first:last]), math.prod(full[last:])


def _reshaped(graph: Graph, at: Index, name: str, shape: Ints, draft: Draft) -> str:
    view = constant_view(graph, at, name)
    return draft.reshape(name, shape) if view is None else draft.constant(np.ascontiguousarray(view).reshape(shape))


def _scalar(graph: Graph, at: Index, name: str, draft: Draft) -> str | None:
    """The one value of a parameter, None where it may differ along its axis."""
    view = constant_view(graph, at, name)
    if view is not None:
        one = uniform(repeating(view))
        return None if one is None else draft.constant(np.asarray(one))
    source, _ = through(at, name, ("reshape", "expand"))
    return draft.reshape(source, ()) if graph.specs[source].size == 1 else None


def _clamped(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """max, min and relu of a requantized product are tighter limits of its saturation."""
    if node.fn not in ("max", "min", "relu"):
        return None
    for x in range(len(node.inputs)):
        name, private = through(at, node.inputs[x])
        gemm = at.producer.get(name)
        bound = 0 if node.fn == "relu" else uniform(constant_view(graph, at, node.inputs[1 - x]))
        if gemm is None or gemm.kind not in FUSED or bound is None:
            continue
        if not private or not at.private(node.inputs[x]) or not at.private(name):
            continue
        pick = min if node.fn == "min" else max
        limits = {key: pick(gemm.attrs[key], int(bound)) for key in ("low", "high")}
        made = draft("Gemm", *gemm.inputs, fn=gemm.fn, **{**gemm.attrs, **limits})
        return draft.reshape(made, graph.specs[node.output].shape)
    return None


def _channels_last(graph: Graph, at: Index, node: Node, draft: Draft) -> str | None:
    """A quantized convolution between two transposes reads and writes the layout that lies outside of them."""
    if node.attrs["perm"] != (0, *range(2, len(node.attrs["perm"])), 1):
        return None
    name, private = through(at, node.inputs[0])
    gemm = at.producer.get(name)
    if gemm is None or gemm.kind not in FUSED[:2] or not private:
        return None
    if not at.private(node.inputs[0]) or not at.private(name):
        return None
    image, _ = through(at, gemm.inputs[1])
    before, shape = at.producer.get(image), graph.specs[node.inputs[0]].shape
    if before is None or not is_move(before, "transpose"):
        return None
    axes = len(before.attrs["perm"])
    if before.attrs["perm"] != (0, axes - 1, *range(1, axes - 1)):
        return None
    if gemm.kind == "Gemm.requantize":
        made = _pixels(graph, at, gemm, before, shape, draft)
        return None if made is None else draft.reshape(made, graph.specs[node.output].shape)
    n, groups, m = graph.specs[name].shape[:3]
    if image != gemm.inputs[1] or shape[:2] != (n, groups * m):
        return None
    inputs = (gemm.inputs[0], before.inputs[0], *gemm.inputs[2:])
    made = draft("Gemm", *inputs, fn="im2row_requantize", **gemm.attrs)
    return draft.reshape(made, graph.specs[node.output].shape)


def _pixels(graph: Graph, at: Index, gemm: Node, before: Node, shape: Ints, draft: Draft) -> str | None:
    """A 1x1 convolution: pixels by channels times the transposed weights, (A B)' = B' A'."""
    weights = constant_view(graph, at, gemm.inputs[0])
    product, b = graph.specs[gemm.output].shape, graph.specs[gemm.inputs[1]].shape
    n, *_, c = graph.specs[before.inputs[0]].shape
    if weights is None or len(product) != 4 or product[1] != 1 or b != (n, 1, c, product[-1]):
        return None
    if weights.shape[:2] != (1, 1) or shape[:2] != (n, product[2]):
        return None
    turned = []
    for name in gemm.inputs[2:6]:
        size = graph.specs[name].shape
        if len(size) >= 2 and 1 not in size[-2:]:
            return None
        turned.append(name if len(size) < 2 else draft.reshape(name, (*size[:-2], size[-1], size[-2])))
    rows = draft.reshape(before.inputs[0], (n, 1, product[-1], c))
    flipped = draft.constant(np.ascontiguousarray(weights.swapaxes(-1, -2)))
    a_zero, b_zero, bias, factor = turned
    return draft("Gemm", rows, flipped, b_zero, a_zero, bias, factor, gemm.inputs[6], fn=gemm.fn, **gemm.attrs)


def _image(graph: Graph, at: Index, gemm: Node) -> Node | None:
    """The Im2col whose columns this product alone reads, and whose pads hold the zero point: implicit im2col."""
    name, private = through(at, gemm.inputs[1])
    columns = at.producer.get(name)
    if columns is None or columns.primitive != "Im2col" or not private or not at.private(name):
        return None
    if not at.private(gemm.inputs[1]) or not _same(graph, at, columns.inputs[1], gemm.inputs[3]):
        return None
    a, b, x = (graph.specs[n].shape for n in (gemm.inputs[0], gemm.inputs[1], columns.inputs[0]))
    return columns if len(a) == len(b) == 4 and a[:2] == (1, b[1]) and b[0] == x[0] and 0 not in (*a, *b, *x) else None


def _same(graph: Graph, at: Index, pad_value: str, zero_point: str) -> bool:
    """Does the padding hold the one zero point of the image."""
    if graph.specs[zero_point].size != 1:
        return False
    if through(at, pad_value)[0] == through(at, zero_point)[0]:
        return True
    pad, zero = (constant_view(graph, at, n) for n in (pad_value, zero_point))
    return pad is not None and zero is not None and np.array_equal(pad.ravel(), zero.ravel())
