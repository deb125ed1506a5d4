"""Honest variants: what a correct kernel may do, and must not be flagged for."""

from __future__ import annotations

import numpy as np

from opgauge.reference_engine.types import Array

from . import kernels as k
from .planted import Call, Outputs, Planted, Skip
from .pointwise import fn, quantize
from .reduce import SUMS, summing

F = np.float32
FLOAT = ("MatMul", "Gemm", "Conv")
QUANTIZED = ("QLinearMatMul", "QLinearConv", "QGemm")


def stepwise(a: Array, b: Array, order: list[int], wide: bool) -> Array:
    """One term after another; `wide` rounds product and sum together, as a fused multiply-add does."""
    acc = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), F)
    with np.errstate(all="ignore"):
        for i in order:
            left, right = a[..., i : i + 1], b[..., i : i + 1, :]
            acc = (acc + left.astype(np.float64) * right).astype(F) if wide else acc + left * right
    return acc


def sequential(a: Array, b: Array) -> Array:
    return stepwise(a, b, list(range(a.shape[-1])), False)


def backward(a: Array, b: Array) -> Array:
    return stepwise(a, b, list(range(a.shape[-1]))[::-1], False)


def fused(a: Array, b: Array) -> Array:
    return stepwise(a, b, list(range(a.shape[-1])), True)


def blocked(a: Array, b: Array) -> Array:
    """Blocks of 16 along K, their sums added up."""
    with np.errstate(all="ignore"):
        acc = F(0) * np.matmul(a[..., :1], b[..., :1, :]) if a.shape[-1] == 0 else None
        for i in range(0, a.shape[-1], 16):
            part = sequential(a[..., i : i + 16], b[..., i : i + 16, :])
            acc = part if acc is None else acc + part
    if acc is None:
        raise Skip
    return acc


def pairwise(a: Array, b: Array) -> Array:
    """Products first, then sums of two, of four..."""
    if a.shape[-1] == 0 or a.shape[-2] * b.shape[-1] * a.shape[-1] > 100_000:
        raise Skip
    with np.errstate(all="ignore"):
        terms = a[..., :, None, :] * np.swapaxes(b, -1, -2)[..., None, :, :]
        while terms.shape[-1] > 1:
            if terms.shape[-1] % 2:
                terms = np.concatenate([terms, np.zeros((*terms.shape[:-1], 1), F)], -1)
            terms = terms[..., ::2] + terms[..., 1::2]
    return terms[..., 0]


def kahan(a: Array, b: Array) -> Array:
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise Skip  # the compensation of an infinity is NaN
    acc = lost = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), F)
    with np.errstate(all="ignore"):
        for i in range(a.shape[-1]):
            term = a[..., i : i + 1] * b[..., i : i + 1, :] - lost
            total = acc + term
            lost, acc = (total - acc) - term, total
    return acc


def in_float64(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(F)


def quotient_first(a: Array, b: Array, y: Array) -> Array:
    return (a.astype(F) / y.astype(F)) * b.astype(F)


def reciprocal(a: Array, b: Array, y: Array) -> Array:
    return (a.astype(F) * b.astype(F)) * (F(1) / y.astype(F))


def in_double(a: Array, b: Array, y: Array) -> Array:
    return (a.astype(np.float64) * b.astype(np.float64)) / y.astype(np.float64)


def kahan_fold(x: Array) -> Array:
    if not np.isfinite(x).all():
        raise Skip
    acc = lost = np.zeros(x.shape[:-1], F)
    for i in range(x.shape[-1]):
        term = x[..., i] - lost
        total = acc + term
        lost, acc = (total - acc) - term, total
    return acc


def sequential_fold(x: Array) -> Array:
    acc = np.zeros(x.shape[:-1], F)
    for i in range(x.shape[-1]):
        acc = acc + x[..., i]
    return acc


def lanes_fold(x: Array) -> Array:
    """Eight running sums, as vectors have them."""
    full = np.concatenate([x, np.zeros((*x.shape[:-1], -x.shape[-1] % 8), F)], -1)
    return sequential_fold(sequential_fold(np.swapaxes(full.reshape(*x.shape[:-1], -1, 8), -1, -2)))


def other_nan(call: Call, outputs: Outputs) -> Outputs:
    """NaN with another payload and sign."""
    y = outputs[0].copy()
    if y.dtype != F:
        raise Skip
    y.view(np.uint32)[np.isnan(y)] = 0xFFC12345
    return [y, *outputs[1:]]


def other_zero(call: Call, outputs: Outputs) -> Outputs:
    """Zeros of the other sign."""
    if outputs[0].dtype.kind != "f":
        raise Skip
    return [np.where(outputs[0] == 0, -outputs[0], outputs[0]), *outputs[1:]]


def two_step_softmax(call: Call) -> Outputs:
    """exp of float64 rounded, the sum from the end, a product with the reciprocal."""
    x = call.need(0)
    k.require(x.dtype == F and call.opset >= 13 and x.size > 0)
    axis = call.attrs.get("axis", -1)
    with np.errstate(all="ignore"):
        e = np.exp((x - x.max(axis, keepdims=True)).astype(np.float64)).astype(F)
        total = sequential_fold(np.moveaxis(e, axis, -1)[..., ::-1])
        return [e * np.expand_dims(F(1) / total, axis)]


BENIGN = (
    Planted("H01", FLOAT, "benign", "sums in sequence", inside=k.floating(sequential)),
    Planted("H02", FLOAT, "benign", "sums from the end", inside=k.floating(backward)),
    Planted("H03", FLOAT, "benign", "fused multiply-add", inside=k.floating(fused)),
    Planted("H04", FLOAT, "benign", "blocks of 16", inside=k.floating(blocked)),
    Planted("H05", FLOAT, "benign", "pairwise sums", inside=k.floating(pairwise)),
    Planted("H06", FLOAT, "benign", "compensated sums", inside=k.floating(kahan)),
    Planted("H07", FLOAT, "benign", "float64, rounded once", inside=k.floating(in_float64)),
    Planted("H08", QUANTIZED, "benign", "acc * ((sa * sb) / sy)", inside=k.integer()),
    Planted("H09", QUANTIZED, "benign", "multiplier (sa / sy) * sb", inside=k.integer(factor=quotient_first)),
    Planted("H10", QUANTIZED, "benign", "multiplier (sa * sb) * (1 / sy)", inside=k.integer(factor=reciprocal)),
    Planted("H11", QUANTIZED, "benign", "multiplier in float64", inside=k.integer(factor=in_double)),
    Planted("H12", ("QuantizeLinear",), "benign", "the quotient in float32, ties to even", inside=quantize()),
    Planted("H13", SUMS, "benign", "sums in sequence", inside=summing(sequential_fold)),
    Planted("H14", SUMS, "benign", "eight running sums", inside=summing(lanes_fold)),
    Planted("H15", SUMS, "benign", "compensated sums", inside=summing(kahan_fold)),
    Planted("H16", ("Softmax",), "benign", "a product with the reciprocal of the sum", inside=two_step_softmax),
    Planted("H17", ("Max", "Min", "Add", "Relu"), "benign", "another NaN", after=other_nan),
    Planted("H18", ("Max", "Min", "Relu", "Abs"), "benign", "zeros of the other sign", after=other_zero),
    Planted(
        "H19",
        ("Sigmoid",),
        "benign",
        "1 / (1 + exp(-x)) in float64",
        inside=fn(lambda x: 1 / (1 + np.exp(-x.astype(np.float64)))),
    ),
    Planted("H20", ("MatMulInteger", "ConvInteger"), "benign", "sums modulo 2^32", inside=k.integer()),
)
