"""Planted faults of reductions, pooling, softmax and normalisation."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from opgauge.reference_engine.types import Array

from . import kernels as k
from .planted import Call, Outputs, Planted, Skip, honest

F = np.float32
H = np.float16
B16 = ml_dtypes.bfloat16
SUMS = ("ReduceSum", "ReduceMean")
EXTREMES = ("ReduceMax", "ReduceMin")
POOLS = ("MaxPool", "AveragePool")


def added_in(kind: type) -> k.Rounding:
    def fold(x: Array) -> Array:
        acc: Array = np.zeros(x.shape[:-1], kind)
        for i in range(x.shape[-1]):
            acc = (acc.astype(F) + x[..., i]).astype(kind)
        return acc.astype(F)

    return fold


def mean(fold: k.Rounding) -> k.Rounding:
    return lambda x: fold(x) / F(x.shape[-1])


def summing(fold: k.Rounding):
    """ReduceSum and ReduceMean over this sum."""
    return lambda call: k.rows(call, mean(fold) if call.op == "ReduceMean" else fold)


def without_rest(width: int) -> k.Rounding:
    def fold(x: Array) -> Array:
        n = x.shape[-1]
        return x[..., : n - n % width if n > width else n].sum(-1, dtype=F)

    return fold


def first_row_length(call: Call) -> Outputs:
    x = call.need(0)
    if x.ndim < 2 or x.shape[0] == x.shape[-1]:
        raise Skip
    y = honest(call)[0]
    return [(y * F(x.shape[-1]) / F(x.shape[0])).astype(y.dtype)]


def rank_one(call: Call, outputs: Outputs) -> Outputs:
    y = outputs[0]
    if y.ndim:
        raise Skip
    return [y.reshape(1), *outputs[1:]]


def keeps_axes(call: Call) -> Call:
    if call.attrs.get("keepdims", 1):
        raise Skip
    return call.with_attrs(keepdims=1)


def last_axis(call: Call) -> Call:
    """A negative axis is the last one."""
    if call.attrs.get("axis", -1) >= -1:
        raise Skip
    return call.with_attrs(axis=-1)


def first_axis_only(call: Call) -> Call:
    axes = call.operand(1)
    if axes is not None and axes.size > 1:
        return call.with_input(1, axes[:1])
    if len(call.attrs.get("axes", ())) < 2:
        raise Skip
    return call.with_attrs(axes=call.attrs["axes"][:1])


def flattened_softmax(call: Call) -> Outputs:
    """Normalises over the axis and everything after it."""
    x = call.need(0)
    axis = call.attrs.get("axis", -1) % x.ndim
    if axis == x.ndim - 1 or x.dtype != F:
        raise Skip
    rows = x.reshape(*x.shape[:axis], -1)
    return [k.softmax(call.with_input(0, rows), axis=-1)[0].reshape(x.shape)]


def masked_rows(call: Call, outputs: Outputs) -> Outputs:
    """A row of -inf gives 0."""
    x, y = call.need(0), outputs[0].copy()
    axis = call.attrs.get("axis", -1)
    if not x.size:
        raise Skip
    y[np.broadcast_to((x == -np.inf).all(axis, keepdims=True), x.shape)] = 0
    return [y]


def infinite_logit(call: Call, outputs: Outputs) -> Outputs:
    """A row with +inf keeps zeros beside its NaN."""
    x, y = call.need(0), outputs[0].copy()
    axis = call.attrs.get("axis", -1)
    if not x.size:
        raise Skip
    hit = np.broadcast_to((x == np.inf).any(axis, keepdims=True), x.shape) & (x != np.inf)
    y[hit & ~np.isnan(x)] = 0
    return [y]


def last_of_equals(call: Call) -> Call:
    if call.attrs.get("select_last_index", 0):
        raise Skip
    return call.with_attrs(select_last_index=1)


def as_int32(call: Call, outputs: Outputs) -> Outputs:
    return [outputs[0].astype(np.int32)]


def padded_with(value: float):
    """Pads of a maximum hold this number."""

    def inside(call: Call) -> Outputs:
        x, kernel = call.need(0), call.attrs["kernel_shape"]
        pads = call.attrs.get("pads", [0] * 2 * len(kernel))
        if x.dtype != F or not any(pads) or call.attrs.get("ceil_mode") or "auto_pad" in call.attrs:
            raise Skip
        rank = len(kernel)
        width = [(0, 0), (0, 0), *((pads[i], pads[rank + i]) for i in range(rank))]
        filled = np.pad(x, width, constant_values=value).astype(F)
        return honest(call.with_input(0, filled).with_attrs(pads=[0] * 2 * rank))

    return inside


def other_count(call: Call) -> Call:
    """count_include_pad the other way."""
    return call.with_attrs(count_include_pad=1 - call.attrs.get("count_include_pad", 0))


def changed(name: str, change):
    def before(call: Call) -> Call:
        if not call.attrs.get(name):
            raise Skip
        return call.with_attrs(**{name: change(call.attrs[name])})

    return before


def swapped_ends(pads: list[int]) -> list[int]:
    half = len(pads) // 2
    return [*pads[half:], *pads[:half]]


def normalised(call: Call, count: int = 0, epsilon: bool = True, inner: bool = False) -> Outputs:
    """LayerNormalization over the axes from `axis`, with a seam for the divisor and for epsilon."""
    x = call.need(0)
    k.require(x.dtype == F and x.ndim > 0 and x.size > 0 and len(call.names) == 1)
    axis = call.attrs.get("axis", -1) % x.ndim
    axes = (x.ndim - 1,) if inner else tuple(range(axis, x.ndim))
    n = int(np.prod([x.shape[a] for a in axes]))
    wide = x.astype(np.float64)
    d = wide - wide.mean(axes, keepdims=True)
    eps = call.attrs.get("epsilon", 1e-5) if epsilon else 0.0
    with np.errstate(all="ignore"):
        y = d / np.sqrt((d * d).sum(axes, keepdims=True) / (n - count) + eps) * call.need(1)
        return [(y if call.operand(2) is None else y + call.need(2)).astype(F)]


def one_pass(call: Call) -> Outputs:
    """The variance as E[x^2] - E[x]^2 in float16 steps."""
    x = call.need(0)
    k.require(x.dtype == F and x.size > 0 and len(call.names) == 1)
    axes = tuple(range(call.attrs.get("axis", -1) % x.ndim, x.ndim))
    mean_ = x.mean(axes, keepdims=True)
    with np.errstate(all="ignore"):
        variance = (x * x).mean(axes, keepdims=True).astype(H).astype(F) - mean_ * mean_
        y = (x - mean_) / np.sqrt(variance + F(call.attrs.get("epsilon", 1e-5))) * call.need(1)
        return [(y if call.operand(2) is None else y + call.need(2)).astype(F)]


def exclusive(call: Call) -> Call:
    return call.with_attrs(exclusive=1 - call.attrs.get("exclusive", 0))


def backwards(call: Call) -> Call:
    return call.with_attrs(reverse=1 - call.attrs.get("reverse", 0))


def smallest(call: Call) -> Call:
    return call.with_attrs(largest=1 - call.attrs.get("largest", 1))


def swapped_statistics(call: Call) -> Call:
    """The mean shifted by one channel."""
    m = call.need(3)
    if m.size < 2:
        raise Skip
    return call.with_input(3, np.roll(m, 1))


FAULTS = (
    Planted("R01", SUMS, "numeric", "adds in float16", inside=summing(added_in(H))),
    Planted("R02", SUMS, "numeric", "adds in bfloat16", inside=summing(added_in(B16))),
    Planted("R03", SUMS, "indexing", "the rest after 8 is dropped", inside=summing(without_rest(8))),
    Planted(
        "R04", SUMS, "indexing", "the last element is dropped", inside=summing(lambda x: x[..., :-1].sum(-1, dtype=F))
    ),
    Planted(
        "R05",
        ("ReduceMean",),
        "numeric",
        "divides by n - 1",
        inside=lambda call: k.rows(call, lambda x: x.sum(-1, dtype=F) / F(x.shape[-1] - 1)),
    ),
    Planted("R06", ("GlobalAveragePool",), "numeric", "divides by the size of another axis", inside=first_row_length),
    Planted("R07", (*SUMS, *EXTREMES), "shape", "a scalar of one axis", after=rank_one),
    Planted("R08", (*SUMS, *EXTREMES), "shape", "axes kept", before=keeps_axes),
    Planted("R09", (*SUMS, *EXTREMES), "indexing", "only the first axis is reduced", before=first_axis_only),
    Planted(
        "R10",
        EXTREMES,
        "numeric",
        "starts from 0",
        inside=lambda call: k.rows(
            call, lambda x: np.maximum(x.max(-1), 0) if call.op == "ReduceMax" else np.minimum(x.min(-1), 0)
        ),
    ),
    Planted(
        "R11",
        EXTREMES,
        "indexing",
        "the last element is not seen",
        inside=lambda call: k.rows(
            call,
            lambda x: (
                x[..., : max(x.shape[-1] - 1, 1)].max(-1)
                if call.op == "ReduceMax"
                else x[..., : max(x.shape[-1] - 1, 1)].min(-1)
            ),
        ),
    ),
    Planted(
        "R12",
        ("Softmax",),
        "numeric",
        "the maximum is not subtracted",
        inside=lambda call: k.softmax(call, shift=False),
    ),
    Planted(
        "R13",
        ("Softmax",),
        "numeric",
        "exponentials in float16",
        inside=lambda call: k.softmax(call, exp=lambda x: np.exp(x).astype(H).astype(F)),
    ),
    Planted("R14", ("Softmax", "LogSoftmax", "Hardmax"), "indexing", "a negative axis is the last", before=last_axis),
    Planted("R15", ("Softmax",), "dispatch", "flattened from the axis", inside=flattened_softmax),
    Planted("R16", ("Softmax",), "numeric", "a row of -inf gives 0", after=masked_rows),
    Planted("R17", ("Softmax",), "numeric", "+inf leaves zeros beside it", after=infinite_logit),
    Planted(
        "R18", ("Softmax",), "numeric", "powers of two instead of e", inside=lambda call: k.softmax(call, exp=np.exp2)
    ),
    Planted("R19", ("ArgMax", "ArgMin"), "indexing", "the last of equals", before=last_of_equals),
    Planted("R20", ("ArgMax", "ArgMin"), "shape", "int32 indices", after=as_int32),
    Planted("R21", ("MaxPool",), "indexing", "pads hold 0", inside=padded_with(0.0)),
    Planted("R22", ("AveragePool",), "numeric", "count_include_pad the other way", before=other_count),
    Planted("R23", POOLS, "indexing", "begin and end pads swapped", before=changed("pads", swapped_ends)),
    Planted(
        "R24", POOLS, "indexing", "the first stride for all axes", before=changed("strides", lambda s: [s[0]] * len(s))
    ),
    Planted("R25", POOLS, "shape", "ceil_mode ignored", before=changed("ceil_mode", lambda v: 0)),
    Planted("R26", ("MaxPool",), "indexing", "dilations ignored", before=changed("dilations", lambda s: [1] * len(s))),
    Planted(
        "R27", ("LayerNormalization",), "numeric", "divides by n - 1", inside=lambda call: normalised(call, count=1)
    ),
    Planted(
        "R28",
        ("LayerNormalization",),
        "numeric",
        "epsilon left out",
        inside=lambda call: normalised(call, epsilon=False),
    ),
    Planted(
        "R29",
        ("LayerNormalization",),
        "indexing",
        "only the last axis",
        inside=lambda call: normalised(call, inner=True),
    ),
    Planted("R30", ("LayerNormalization",), "numeric", "variance in one pass, squares in float16", inside=one_pass),
    Planted("R31", ("CumSum",), "indexing", "exclusive the other way", before=exclusive),
    Planted("R32", ("CumSum",), "indexing", "reverse the other way", before=backwards),
    Planted("R33", ("TopK",), "indexing", "the smallest instead of the largest", before=smallest),
    Planted("R34", ("BatchNormalization",), "indexing", "means shifted by one channel", before=swapped_statistics),
)
