"""Short chains as cases: what graph optimizers fold, fuse and eliminate, each spelled as one case.

`Chain.Links` sends x through operators that change nothing; the others put two or three operators behind each other
that runtimes are known to fuse. An attribute `pool.strides` belongs to the node `pool`, `links` and `act` say which
nodes there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from opgauge.reference_engine.types import Arg, Attr, Case

from . import draws as d
from .draws import Draw, Shape, between, pick, rarely
from .linear.conv import PAIRS, WORDS, qlinear_conv
from .reduce.pooling import pool_axis
from .regions import DOMAIN, Step, attributes_of

FLOAT = 1  # TensorProto.FLOAT
Link = Callable[[str, str, Shape], tuple[Step, ...]]  # (what it reads, what it makes, the shape of both) -> nodes


def constant(name: str, dtype: str, shape: Shape, values: tuple[float, ...]) -> Step:
    return Step("Constant", (), (name,), (("value", Arg(name, dtype, shape, values=values)),))


def plain(op: str, **attrs: Attr) -> Link:
    """One node."""
    return lambda x, y, shape: (Step(op, (x,), (y,), tuple(attrs.items())),)


def twice(op: str) -> Link:
    return lambda x, y, shape: (Step(op, (x,), (f"{y}_half",)), Step(op, (f"{y}_half",), (y,)))


def with_lists(op: str, *lists: Callable[[Shape], tuple[float, ...]]) -> Link:
    """A movement told by lists of int64."""

    def nodes(x: str, y: str, shape: Shape) -> tuple[Step, ...]:
        given = [list_of(shape) for list_of in lists]
        names = [f"{y}_list{i}" for i in range(len(given))]
        made = [constant(n, "int64", (len(values),), values) for n, values in zip(names, given, strict=True)]
        return (*made, Step(op, (x, *names), (y,)))

    return nodes


def neutral(op: str, value: float) -> Link:
    """x op value."""
    return lambda x, y, shape: (constant(f"{y}_value", "float32", (), (value,)), Step(op, (x, f"{y}_value"), (y,)))


def times_quotient(x: str, y: str, shape: Shape) -> tuple[Step, ...]:
    """x * (1 / 1): a constant that has to be computed first."""
    one, other = constant(f"{y}_one", "float32", (), (1,)), constant(f"{y}_other", "float32", (), (1,))
    return one, other, Step("Div", (f"{y}_one", f"{y}_other"), (f"{y}_k",)), Step("Mul", (x, f"{y}_k"), (y,))


def there_and_back(x: str, y: str, shape: Shape) -> tuple[Step, ...]:
    order = tuple(reversed(range(len(shape))))
    return tuple(Step("Transpose", (a,), (b,), (("perm", order),)) for a, b in ((x, f"{y}_moved"), (f"{y}_moved", y)))


def axis_more(x: str, y: str, shape: Shape) -> tuple[Step, ...]:
    axes = constant(f"{y}_axes", "int64", (1,), (0,))
    return (
        axes,
        Step("Unsqueeze", (x, f"{y}_axes"), (f"{y}_wide",)),
        Step("Squeeze", (f"{y}_wide", f"{y}_axes"), (y,)),
    )


def same_order(x: str, y: str, shape: Shape) -> tuple[Step, ...]:
    return (Step("Transpose", (x,), (y,), (("perm", tuple(range(len(shape)))),)),)


LINKS: dict[str, Link] = {
    "Identity": plain("Identity"),
    "Dropout": plain("Dropout"),
    "Cast": plain("Cast", to=FLOAT),
    "Concat": plain("Concat", axis=0),
    "Sum": plain("Sum"),
    "Neg": twice("Neg"),
    "Transpose": same_order,
    "Transposes": there_and_back,
    "Unsqueeze": axis_more,
    "Reshape": with_lists("Reshape", lambda shape: shape),
    "Flatten": with_lists("Reshape", lambda shape: (0,) * (len(shape) - 1) + (-1,)),
    "Expand": with_lists("Expand", lambda shape: (1,)),
    "Slice": with_lists("Slice", lambda shape: (0,), lambda shape: (shape[0],)),
    "Pad": with_lists("Pad", lambda shape: (0,) * (2 * len(shape))),
    "Tile": with_lists("Tile", lambda shape: (1,) * len(shape)),
    "MulOne": neutral("Mul", 1),
    "DivOne": neutral("Div", 1),
    "AddZero": neutral("Add", 0),
    "SubZero": neutral("Sub", 0),
    "MulQuotient": times_quotient,
}
ACTIVATIONS: dict[str, tuple[tuple[str, Attr], ...]] = {
    "": (),
    "Relu": (),
    "LeakyRelu": (("alpha", 0.25),),
    "HardSigmoid": (),
    "Sigmoid": (),
    "Tanh": (),
}


def links(case: Case) -> tuple[Step, ...]:
    """x through each of `links`, then through `act`."""
    words: tuple[str, ...] = dict(case.attrs)["links"]  # type: ignore[assignment]
    steps: list[Step] = []
    at = "x"
    for i, word in enumerate(words):
        steps += LINKS[word](at, f"t{i}", case.args[0].shape)
        at = f"t{i}"
    return (*steps, *activated(case, at))


def activated(case: Case, at: str) -> tuple[Step, ...]:
    act = str(dict(case.attrs).get("act", ""))
    return (Step(act or "Identity", (at,), ("y0",), ACTIVATIONS[act]),)


def pooled(op: str) -> Callable[[Case], tuple[Step, ...]]:
    """Conv, then a pooling."""

    def nodes(case: Case) -> tuple[Step, ...]:
        names = tuple(a.name for a in case.args)
        return (
            Step("Conv", names, ("conv_out",), attributes_of(case, "conv")),
            Step(op, ("conv_out",), ("y0",), attributes_of(case, "pool")),
        )

    return nodes


def padded(op: str) -> Callable[[Case], tuple[Step, ...]]:
    """Pad, then an operator with pads of its own."""

    def nodes(case: Case) -> tuple[Step, ...]:
        names = [a.name for a in case.args if a.name in ("pads", "value")]
        rest = [a.name for a in case.args if a.name in ("w", "b")]
        return (
            Step("Pad", ("x", *names), ("padded",), attributes_of(case, "pad")),
            Step(op, ("padded", *rest), ("y0",), attributes_of(case, "node")),
        )

    return nodes


def residual(case: Case) -> tuple[Step, ...]:
    """act(Conv(x) + z), the sum in either order."""
    names = tuple(a.name for a in case.args if a.name != "z")
    both = ("z", "conv_out") if "swap" in dict(case.attrs) else ("conv_out", "z")
    return (
        Step("Conv", names, ("conv_out",), attributes_of(case, "conv")),
        Step("Add", both, ("sum",)),
        *activated(case, "sum"),
    )


def product(case: Case) -> tuple[Step, ...]:
    """act(a' b' * scale + bias), each operand transposed or not."""
    steps: list[Step] = []
    operands = []
    for name in ("a", "b"):
        perm = attributes_of(case, name)
        if perm:
            steps.append(Step("Transpose", (name,), (f"{name}_moved",), perm))
        operands.append(f"{name}_moved" if perm else name)
    steps.append(Step("MatMul", tuple(operands), ("product",)))
    at = "product"
    for op, name in (("Mul", "scale"), ("Add", "bias")):
        if any(a.name == name for a in case.args):
            steps.append(Step(op, (at, name), (f"{name}_out",)))
            at = f"{name}_out"
    return (*steps, *activated(case, at))


def channels_last(case: Case) -> tuple[Step, ...]:
    """QLinearConv between two transposes, so that image and result have their channels last."""
    rank = len(case.args[0].shape)
    names = ["moved", *("" if a.absent else a.name for a in case.args[1:])]
    return (
        Step("Transpose", (case.args[0].name,), ("moved",), (("perm", (0, rank - 1, *range(1, rank - 1))),)),
        Step("QLinearConv", tuple(names), ("conv_out",), case.attrs),
        Step("Transpose", ("conv_out",), ("y0",), (("perm", (0, *range(2, rank), 1)),)),
    )


PADDED = ("Conv", "MaxPool", "AveragePool")
POOLED = ("MaxPool", "AveragePool")
LAST = "Chain.Last.QLinearConv"
TEMPLATES: dict[str, Callable[[Case], tuple[Step, ...]]] = {
    "Chain.Links": links,
    "Chain.Conv.Add": residual,
    "Chain.MatMul.Add": product,
    LAST: channels_last,
    **{f"Chain.Conv.{op}": pooled(op) for op in POOLED},
    **{f"Chain.Pad.{op}": padded(op) for op in PADDED},
}


# ---- what is drawn


def finish(draw: Draw, op: str, args: list[Arg], attrs: dict[str, Attr | None], opset: int = 13) -> Case:
    return d.make_case(draw, op, args, ("float32",), attrs, opset, "plain", DOMAIN)


def data(name: str, shape: Shape, const: bool = False) -> Arg:
    return Arg(name, "float32", shape, "normal", const=const)


@st.composite
def linked(draw: Draw, op: str, dtype: str) -> Case:
    words = tuple(pick(draw, tuple(LINKS)) for _ in range(pick(draw, (2, 3, 4))))
    shape = d.larger(draw, pick(draw, ((3,), (2, 5), (2, 3, 4), (1, 17))))
    return finish(draw, op, [data("x", shape)], {"links": words, "act": pick(draw, tuple(ACTIVATIONS)) or None})


def convolution(draw: Draw, channels: tuple[int, ...]) -> tuple[list[Arg], dict[str, Attr | None], Shape]:
    """(x, w and perhaps b, attributes, the shape of the result); channels around the blocks of NCHWc layouts."""
    c, m = pick(draw, channels), pick(draw, channels)
    kernel, stride = pick(draw, (1, 3)), pick(draw, (1, 1, 2))
    size = (pick(draw, (8, 7, 11)), pick(draw, (8, 6, 9)))
    pad = kernel // 2 if rarely(draw, 2) else 0
    (n,) = d.larger(draw, (1,), each=max(c, m) * math.prod(size))
    args = [data("x", (n, c, *size)), data("w", (m, c, kernel, kernel), True)]
    if rarely(draw, 2):
        args.append(data("b", (m,), True))
    attrs: dict[str, Attr | None] = {
        "conv.kernel_shape": (kernel, kernel),
        "conv.pads": (pad,) * 4 if pad else None,
        "conv.strides": (stride, stride) if stride > 1 else None,
    }
    return args, attrs, (n, m, *((side + 2 * pad - kernel) // stride + 1 for side in size))


BLOCKS = (16, 8, 32, 3, 20)


def pool_attributes(draw: Draw, op: str, lengths: Shape) -> dict[str, Attr | None]:
    """A pooling that fits images of this size, with everything that optimizers get wrong about edges."""
    kernels = tuple(min(pick(draw, (2, 3)), n) for n in lengths)
    ceil = rarely(draw, 2)
    pads = [(0, 0)] * len(lengths)
    if rarely(draw, 2):
        pads = [pool_axis(draw, k, 2, 1, True, ceil, (2, 3))[1:] for k in kernels]
    begins, ends = zip(*pads, strict=True)
    return {
        "kernel_shape": kernels,
        "strides": tuple(pick(draw, (2, 1, 3)) for _ in lengths),
        "pads": (*begins, *ends) if any((*begins, *ends)) else None,
        "ceil_mode": 1 if ceil else None,
        "count_include_pad": 1 if op == "AveragePool" and rarely(draw, 2) else None,
    }


@st.composite
def conv_pool(draw: Draw, op: str, dtype: str) -> Case:
    args, attrs, made = convolution(draw, BLOCKS)
    pool = pool_attributes(draw, op.rpartition(".")[2], made[2:])
    opset = 19 if rarely(draw, 3) else 13
    return finish(draw, op, args, {**attrs, **{f"pool.{k}": v for k, v in pool.items()}}, opset)


@st.composite
def pad_then(draw: Draw, op: str, dtype: str) -> Case:
    node = op.rpartition(".")[2]
    args, attrs, _ = convolution(draw, (3, 16, 4))
    attrs = {k.replace("conv.", "node."): v for k, v in attrs.items()}
    if node != "Conv":
        args = args[:1]
        pool = pool_attributes(draw, node, args[0].shape[2:])
        attrs = {f"node.{k}": v for k, v in pool.items()}
    around = [between(draw, 0, 2) for _ in range(4)]
    outer = pick(draw, ((0, 0), (0, 0), (0, 1)))  # batch and channels are no part of a window: this must stay a Pad
    if node == "Conv":
        outer = (outer[1], 0)
    mode = pick(draw, ("constant", "constant", "edge", "reflect"))
    if mode != "constant":
        outer = (0, 0)
    pads = (*outer, *around[:2], 0, 0, *around[2:])
    args.insert(1, d.vector("pads", "int64", pads, const=True))
    if mode == "constant" and rarely(draw, 2):
        args.insert(2, d.scalar("value", "float32", pick(draw, (0.0, 1.5, -3.0)), const=True))
    return finish(draw, op, args, {"pad.mode": mode, **attrs})


@st.composite
def conv_add(draw: Draw, op: str, dtype: str) -> Case:
    args, attrs, made = convolution(draw, BLOCKS)
    shape = pick(draw, (made, made, (1, made[1], 1, 1), made[-1:]))  # a residual, a bias per channel, a row
    args.append(data("z", shape, shape != made and rarely(draw, 2)))
    attrs |= {"act": pick(draw, tuple(ACTIVATIONS)) or None, "swap": 1 if rarely(draw, 2) else None}
    return finish(draw, op, args, attrs)


@st.composite
def matmul_add(draw: Draw, op: str, dtype: str) -> Case:
    batch = pick(draw, ((), (2,), (2, 3)))
    m, k, n = pick(draw, (4, 1, 7)), pick(draw, (8, 3, 33)), pick(draw, (5, 16, 1))
    attrs: dict[str, Attr | None] = {}
    args = []
    (m,) = d.larger(draw, (m,), each=6 * max(k, n))
    for name, rows, columns in (("a", m, k), ("b", k, n)):
        lead = batch if name == "a" or rarely(draw, 2) else ()
        shape = (*lead, rows, columns)
        turned = rarely(draw, 2)
        if turned:
            order = list(range(len(shape)))
            order[-2:] = order[:-3:-1]
            if len(shape) > 3 and rarely(draw, 3):
                order[:2] = order[1::-1]  # batch axes swapped too: no transA stands for that
                shape = (shape[1], shape[0], *shape[2:])
            attrs[f"{name}.perm"] = tuple(order)
            shape = (*shape[:-2], shape[-1], shape[-2])
        args.append(data(name, shape, name == "b" and rarely(draw, 2)))
    if rarely(draw, 2):
        args.append(d.scalar("scale", "float32", pick(draw, (0.125, 0.3)), const=True))
    if rarely(draw, 2):
        args.append(data("bias", pick(draw, ((n,), (1, n), (m, 1))), not rarely(draw, 3)))
    attrs["act"] = pick(draw, tuple(ACTIVATIONS)) or None
    return finish(draw, op, args, attrs)


@st.composite
def conv_last(draw: Draw, op: str, x_dtype: str, w_dtype: str) -> Case:
    made: Case = draw(qlinear_conv(x_dtype, w_dtype, WORDS, True))
    x, *others = made.args
    moved = replace(x, shape=(x.shape[0], *x.shape[2:], x.shape[1]))
    return replace(made, op=op, domain=DOMAIN, args=(moved, *others))


SOURCE = "ONNX: the operators of the chain one after another; what an optimizer makes of it must stay in the same set"
ROWS: tuple[tuple[str, Callable[..., st.SearchStrategy[Case]]], ...] = (
    ("Chain.Links", linked),
    ("Chain.Conv.Add", conv_add),
    ("Chain.MatMul.Add", matmul_add),
    *((f"Chain.Conv.{op}", conv_pool) for op in POOLED),
    *((f"Chain.Pad.{op}", pad_then) for op in PADDED),
)
CASES = tuple(row for op, f in ROWS for row in d.rows(op, SOURCE, ("float32",), f, op, domain=DOMAIN))
CASES += d.rows(LAST, SOURCE, PAIRS, conv_last, LAST, domain=DOMAIN)
