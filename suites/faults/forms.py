"""Other honest ways to write a function, a softmax, a normalisation, a requantization."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from opgauge.reference_engine.types import Array

from . import kernels as k
from .orders import TERMS, Fold, sequential
from .planted import Call, Outputs

F = np.float32
Form = Callable[[Array], Array]


def in_float64(function: Callable[[Array], Array]) -> Form:
    return lambda x: function(x.astype(np.float64)).astype(F)


def elementwise(function: Callable[[float], float]) -> Form:
    """A function of C's mathematical library, in float64."""
    each = np.vectorize(function, otypes=[np.float64])
    return lambda x: each(x.astype(np.float64)).astype(F) if x.size else x


# ---- functions


def sigmoid_by_tanh(x: Array) -> Array:
    return F(0.5) * np.tanh(F(0.5) * x) + F(0.5)


def sigmoid_by_sides(x: Array) -> Array:
    """e / (1 + e) on the left, so that nothing overflows."""
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, F(1)) / (F(1) + e)


def tanh_by_expm1(x: Array) -> Array:
    e = np.expm1(F(-2) * np.abs(x))
    return np.copysign(-e / (F(2) + e), x)


def exp_reduced(x: Array) -> Array:
    """2^n e^r with r = x - n ln 2 in two pieces, and a polynomial for e^r."""
    n = np.rint(np.clip(x, -200, 200) * F(1.4426950408889634))
    r = (x - n * F(0.693359375)) - n * F(-2.12194440e-4)
    p = F(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + F(c)
    y = np.ldexp((p * r) * r + r + F(1), np.nan_to_num(n).astype(np.int32))
    return np.where(np.isinf(x), np.where(x > 0, F(np.inf), F(0)), y).astype(F)


def log_by_log2(x: Array) -> Array:
    return np.log2(x) * F(0.6931471805599453)


def erf_series(x: Array) -> Array:
    """A polynomial in 1 / (1 + p |x|), off by 1.5e-7 at most (Abramowitz and Stegun 7.1.26), in float64."""
    a = np.abs(x.astype(np.float64))
    t = 1 / (1 + 0.3275911 * a)
    p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return np.copysign(1 - p * np.exp(-a * a), x).astype(F)


def erf_by_erfc(x: Array) -> Array:
    return (F(1) - elementwise(math.erfc)(x)).astype(F)


def root_by_reciprocal(x: Array) -> Array:
    """x r with the correctly rounded reciprocal root r: two roundings."""
    inner = np.isfinite(x) & (x > 0)
    return np.where(inner, x * (1 / np.sqrt(x.astype(np.float64))).astype(F), np.sqrt(x))


def root_by_quotient(x: Array) -> Array:
    """x (1 / sqrt(x)): three roundings, the limit of N5."""
    inner = np.isfinite(x) & (x > 0)
    return np.where(inner, x * (F(1) / np.sqrt(x)), np.sqrt(x))


def softplus_by_sides(x: Array) -> Array:
    return np.maximum(x, F(0)) + np.log1p(np.exp(-np.abs(x)))


FUNCTIONS: tuple[tuple[str, str, Form], ...] = (
    ("Sigmoid", "0.5 tanh(x / 2) + 0.5", sigmoid_by_tanh),
    ("Sigmoid", "the two sides apart", sigmoid_by_sides),
    ("Sigmoid", "1 / (1 + exp(-x)) in float32", lambda x: F(1) / (F(1) + np.exp(-x))),
    ("Tanh", "float64, rounded once", in_float64(np.tanh)),
    ("Tanh", "by expm1", tanh_by_expm1),
    ("Exp", "float64, rounded once", in_float64(np.exp)),
    ("Exp", "a reduced argument and a polynomial", exp_reduced),
    ("Log", "float64, rounded once", in_float64(np.log)),
    ("Log", "log2(x) ln 2", log_by_log2),
    ("Erf", "the C library", elementwise(math.erf)),
    ("Erf", "a short polynomial", erf_series),
    ("Erf", "1 - erfc(x)", erf_by_erfc),
    ("Sqrt", "x times the reciprocal root", root_by_reciprocal),
    ("Sqrt", "x times 1 / sqrt(x)", root_by_quotient),
    ("Sqrt", "float64, rounded once", in_float64(np.sqrt)),
    ("Softplus", "the two sides apart", softplus_by_sides),
    ("Softplus", "float64, rounded once", in_float64(lambda x: np.logaddexp(x, 0.0))),
)


# ---- rows


def softmax(fold: Fold, exp: Form = np.exp, reciprocal: bool = False) -> Callable[[Call], Outputs]:
    def inside(call: Call) -> Outputs:
        x = call.need(0)
        k.require(x.dtype == F and call.opset >= 13 and x.size > 0)
        axis = call.attrs.get("axis", -1)
        with np.errstate(all="ignore"):
            e = exp(x - x.max(axis, keepdims=True))
            total = np.expand_dims(fold(np.moveaxis(e, axis, -1)), axis)
            return [(e * (F(1) / total) if reciprocal else e / total).astype(F)]

    return inside


def layer_norm(fold: Fold, form: str) -> Callable[[Call], Outputs]:
    """Two passes; `form` how the last step is written: quotient, factor, folded (x s - mean s)."""

    def inside(call: Call) -> Outputs:
        x, scale, bias = call.need(0), call.need(1), call.operand(2)
        k.require(x.dtype == F and x.ndim > 0 and x.size > 0 and len(call.names) == 1)
        axis = call.attrs.get("axis", -1) % x.ndim
        flat = x.reshape(*x.shape[:axis], -1)
        n = F(flat.shape[-1])
        with np.errstate(all="ignore"):
            mean = (fold(flat) / n)[..., None]
            d = flat - mean
            root = np.sqrt((fold(d * d) / n)[..., None] + F(call.attrs.get("epsilon", 1e-5)))
            if form == "quotient":
                y = d / root
            elif form == "factor":
                y = d * (F(1) / root)
            else:
                s = F(1) / root
                y = flat * s - mean * s
            y = y.reshape(x.shape) * scale
            return [(y if bias is None else y + bias).astype(F)]

    return inside


def batch_norm(folded: bool) -> Callable[[Call], Outputs]:
    """(x - mean) (scale / root) + bias, or x s + (bias - mean s)."""

    def inside(call: Call) -> Outputs:
        x = call.need(0)
        k.require(x.dtype == F and x.ndim >= 2 and len(call.names) == 1 and not call.attrs.get("training_mode"))
        shape = (1, -1, *(1,) * (x.ndim - 2))
        scale, bias, mean, var = (call.need(i).reshape(shape) for i in (1, 2, 3, 4))
        with np.errstate(all="ignore"):
            s = scale / np.sqrt(var + F(call.attrs.get("epsilon", 1e-5)))
            return [(x * s + (bias - mean * s) if folded else (x - mean) * s + bias).astype(F)]

    return inside


def global_mean(fold: Fold) -> Callable[[Call], Outputs]:
    def inside(call: Call) -> Outputs:
        x = call.need(0)
        k.require(x.dtype == F and x.ndim >= 3 and x.size > 0)
        flat = x.reshape(*x.shape[:2], -1)
        with np.errstate(all="ignore"):
            return [(fold(flat) / F(flat.shape[-1])).reshape(*x.shape[:2], *(1,) * (x.ndim - 2)).astype(F)]

    return inside


def bias_first(call: Call) -> Outputs:
    """The sum starts from the bias; alpha is multiplied into A."""
    k.require(call.op in ("Gemm", "Conv"))
    c = call.need(2)
    k.require(call.attrs.get("beta", 1.0) == 1.0)

    def product(a: Array, b: Array) -> Array:
        k.require(a.shape[-2] * a.shape[-1] * b.shape[-1] * max(1, int(np.prod(b.shape[:-2]))) <= TERMS)
        first = c if call.op == "Gemm" else c.reshape(1, a.shape[1], -1, 1)
        a = a * F(call.attrs.get("alpha", 1.0)) if call.op == "Gemm" else a
        terms = a[..., :, None, :] * np.swapaxes(b, -1, -2)[..., None, :, :]
        start = np.broadcast_to(first, terms.shape[:-1])[..., None]
        return sequential(np.concatenate([start, terms], -1))

    with np.errstate(all="ignore"):
        plain = call.with_input(2, None).with_attrs(alpha=1.0) if call.op == "Gemm" else call.with_input(2, None)
        return k.float_product(plain, product)


# ---- requantization


def staged(
    value: Callable[..., Array], rounding: k.Rounding = np.rint, inside: bool = False
) -> Callable[[Call], Outputs]:
    """`value(acc, sa, sb, sy)` is the number before rounding, in one step or several."""

    def kernel(call: Call) -> Outputs:
        acc, q = k.int_sum(call)
        k.require(q.dtype != np.int32 and bool((np.abs(acc) < 2**31).all()))
        with np.errstate(all="ignore"):
            v = value(acc, *q.factors)
            whole = rounding(v + v.dtype.type(q.zero_point)) if inside else rounding(v) + q.zero_point
        return [k.clipped(whole, q.dtype).reshape(q.shape)]

    return kernel


def two_steps(acc: Array, a: Array, b: Array, y: Array) -> Array:
    return (acc.astype(F) * (a * b).astype(F)) / y


def three_steps(acc: Array, a: Array, b: Array, y: Array) -> Array:
    return ((acc.astype(F) * a) * b) / y


def inverse_last(acc: Array, a: Array, b: Array, y: Array) -> Array:
    return (acc.astype(F) * (a * b).astype(F)) * (F(1) / y)


def in_double(acc: Array, a: Array, b: Array, y: Array) -> Array:
    return acc.astype(np.float64) * a.astype(np.float64) * b.astype(np.float64) / y.astype(np.float64)


def fixed_point(acc: Array, a: Array, b: Array, y: Array) -> Array:
    """floor(acc M / 2^n + 1/2) with a multiplier M of 31 bits: one rounding, a tie goes up. In integers."""
    ratio = np.broadcast_to(in_double(np.ones((), np.int64), a, b, y), acc.shape)
    mantissa, exponent = np.frexp(ratio)
    multiplier = np.rint(mantissa * 2**31).astype(np.int64)
    shift = 31 - exponent.astype(np.int64)
    k.require(bool(((shift >= 1) & (shift < 62)).all()))
    return np.asarray((acc * multiplier + (np.int64(1) << (shift - 1))) >> shift)


def doubled_high(acc: Array, a: Array, b: Array, y: Array) -> Array:
    """Two roundings: the high half of 2 acc M, to nearest, then a division by 2^n, ties away from zero. In integers."""
    ratio = np.broadcast_to(in_double(np.ones((), np.int64), a, b, y), acc.shape)
    mantissa, exponent = np.frexp(ratio)
    multiplier = np.rint(mantissa * 2**31).astype(np.int64)
    right = -exponent.astype(np.int64)
    k.require(bool(((right >= 0) & (right < 31)).all()))
    both = acc * multiplier
    nudged = both + np.where(both >= 0, np.int64(1) << 30, 1 - (np.int64(1) << 30))
    high = np.sign(nudged) * (np.abs(nudged) >> 31)
    mask = (np.int64(1) << right) - 1
    return np.asarray((high >> right) + ((high & mask) > (mask >> 1) + (high < 0)))


def whole(x: Array) -> Array:
    return x
