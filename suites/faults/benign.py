"""Honest variants: what a correct kernel may do, and must not be flagged for."""

from __future__ import annotations

import numpy as np

from opgauge.reference_engine.types import Array, Policy

from . import forms
from . import kernels as k
from . import orders as o
from .planted import Call, Outputs, Planted, Skip
from .pointwise import fn, qlinear, quantize
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
    if a.shape[-1] == 0:
        raise Skip
    return o.product(o.pairwise)(a, b)


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


def library(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.matmul(a, b)


def quotient_first(a: Array, b: Array, y: Array) -> Array:
    return (a.astype(F) / y.astype(F)) * b.astype(F)


def reciprocal(a: Array, b: Array, y: Array) -> Array:
    return (a.astype(F) * b.astype(F)) * (F(1) / y.astype(F))


def in_double(a: Array, b: Array, y: Array) -> Array:
    return (a.astype(np.float64) * b.astype(np.float64)) / y.astype(np.float64)


def by_inverse(fold: o.Fold):
    """A mean by the rounded reciprocal of the count; a sum as it is."""
    inverse = lambda x: fold(x) * (F(1) / F(x.shape[-1]))  # noqa: E731
    return lambda call: k.rows(call, inverse if call.op == "ReduceMean" else fold)


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


def half_away(x: Array) -> Array:
    """In float64: |x| + 0.5 in float32 would make 1 of the largest number below 0.5, which is no honest rounding."""
    wide = x.astype(np.float64)
    return np.copysign(np.floor(np.abs(wide) + 0.5), wide)


def rounded_exp(x: Array) -> Array:
    return np.exp(x.astype(np.float64)).astype(F)


WRITTEN = (
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
    Planted("H13", SUMS, "benign", "sums in sequence", inside=summing(o.sequential)),
    Planted("H14", SUMS, "benign", "eight running sums", inside=summing(o.lanes(8))),
    Planted("H15", SUMS, "benign", "compensated sums", inside=summing(o.compensated)),
    Planted(
        "H16",
        ("Softmax",),
        "benign",
        "a product with the reciprocal of the sum",
        inside=forms.softmax(o.backward, rounded_exp, True),
    ),
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
    Planted("H21", FLOAT, "benign", "numpy's library", inside=k.floating(library)),
    Planted("H22", FLOAT, "benign", "fused multiply-add in 8 lanes", inside=k.floating(o.fused(8))),
    Planted("H23", FLOAT, "benign", "fused multiply-add in 4 lanes", inside=k.floating(o.fused(4))),
    Planted("H24", ("Gemm", "Conv"), "benign", "the bias first", inside=forms.bias_first),
    Planted("H25", QUANTIZED, "benign", "(acc * (sa * sb)) / sy", inside=forms.staged(forms.two_steps)),
    Planted("H26", QUANTIZED, "benign", "((acc * sa) * sb) / sy", inside=forms.staged(forms.three_steps)),
    Planted("H27", QUANTIZED, "benign", "(acc * (sa * sb)) * (1 / sy)", inside=forms.staged(forms.inverse_last)),
    Planted("H28", QUANTIZED, "benign", "all in float64", inside=forms.staged(forms.in_double)),
    Planted(
        "H29",
        ("QuantizeLinear",),
        "benign",
        "the quotient in float64",
        inside=quantize(divide=lambda x, s: x.astype(np.float64) / s.astype(np.float64)),
    ),
    Planted("H30", ("QLinearAdd", "QLinearMul"), "benign", "in float32, one step after another", inside=qlinear()),
    Planted("H31", ("BatchNormalization",), "benign", "one factor for scale and root", inside=forms.batch_norm(False)),
    Planted("H32", ("BatchNormalization",), "benign", "x s + (bias - mean s)", inside=forms.batch_norm(True)),
    Planted("H33", ("LayerNormalization",), "benign", "a quotient", inside=forms.layer_norm(o.sequential, "quotient")),
    Planted(
        "H34", ("LayerNormalization",), "benign", "a reciprocal root", inside=forms.layer_norm(o.lanes(8), "factor")
    ),
    Planted("H35", ("LayerNormalization",), "benign", "x s - mean s", inside=forms.layer_norm(o.pairwise, "folded")),
    Planted("H36", SUMS, "benign", "the reciprocal of the count", inside=by_inverse(o.sequential)),
)
FUNCTIONS = tuple(
    Planted(f"HF{i:02d}", (op,), "benign", title, inside=fn(form))
    for i, (op, title, form) in enumerate(forms.FUNCTIONS, 1)
)
PRODUCTS = tuple(
    Planted(f"HP{i:02d}", FLOAT, "benign", f"sums {title}", inside=k.floating(o.product(fold)))
    for i, (title, fold) in enumerate(o.FOLDS.items(), 1)
)
REDUCTIONS = tuple(
    Planted(f"HR{i:02d}", SUMS, "benign", f"sums {title}", inside=summing(fold))
    for i, (title, fold) in enumerate(o.FOLDS.items(), 1)
)
MEANS = tuple(
    Planted(f"HG{i:02d}", ("GlobalAveragePool",), "benign", f"sums {title}", inside=forms.global_mean(fold))
    for i, (title, fold) in enumerate(o.FOLDS.items(), 1)
)
SOFTMAXES = tuple(
    Planted(f"HS{i:02d}", ("Softmax",), "benign", f"sums {title}", inside=forms.softmax(fold))
    for i, (title, fold) in enumerate(o.FOLDS.items(), 1)
)
NORMS = tuple(
    Planted(f"HN{i:02d}", ("LayerNormalization",), "benign", f"sums {title}", inside=forms.layer_norm(fold, "quotient"))
    for i, (title, fold) in enumerate(o.FOLDS.items(), 1)
)
BENIGN = (*WRITTEN, *FUNCTIONS)
# Too many for `opgauge sensitivity`, which runs each in a process of its own: tests/quality/honest.py has them.
ORDERS = (*PRODUCTS, *REDUCTIONS, *MEANS, *SOFTMAXES, *NORMS)

# Honest only where the runtime declares it: without the policy these are faults of the catalogue (N10).
DECLARED = (
    (
        Planted("D01", QUANTIZED, "declared", "Q31, one rounding", inside=forms.staged(forms.fixed_point, forms.whole)),
        Policy(round=("up",)),
    ),
    (
        Planted(
            "D06", QUANTIZED, "declared", "Q31, two roundings", inside=forms.staged(forms.doubled_high, forms.whole)
        ),
        Policy(requant="fixed"),
    ),
    (
        Planted("D02", QUANTIZED, "declared", "ties away from zero", inside=k.integer(rounding=half_away)),
        Policy(round=("away",)),
    ),
    (
        Planted("D03", QUANTIZED, "declared", "zero point before rounding", inside=k.integer(inside=True)),
        Policy(zp_inside=True),
    ),
    (
        Planted(
            "D04",
            ("QuantizeLinear",),
            "declared",
            "the reciprocal of the scale",
            inside=quantize(divide=lambda x, s: (x * (F(1) / s)).astype(F)),
        ),
        Policy(q_div="recip"),
    ),
    (
        Planted("D05", ("QuantizeLinear",), "declared", "ties away from zero", inside=quantize(half_away)),
        Policy(round=("away",)),
    ),
)
