"""Elementwise, Quantize, Dequantize, Requantize: one output element from the same place of each input."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import dtypes as dt
from .. import real as r
from .. import rounding
from ..real import Real
from ..types import Array, Policy, TensorSpec
from .definition import PrimitiveDef, require_dtype, require_shape
from .linear import wrap32

QUANTIZED = ("int8", "uint8", "int16", "uint16")


@dataclass(frozen=True)
class ElementwiseFn:
    """One function: `exact(*reals, policy, **attrs)`, the dtypes it takes, its kernel attributes."""

    exact: Callable[..., Real]
    arity: int
    dtypes: tuple[str, ...]
    attrs: tuple[str, ...] = ()


NUMBERS = (*dt.FLOATS, *dt.INTS)
SIGNED = (*dt.FLOATS, "int8", "int16", "int32", "int64")


def _integer(fn: Callable[[Array, Array], Array], a: Real, b: Real) -> Real:
    """Integer arithmetic wraps in its own type; int32 keeps the unwrapped value beside it (N2)."""
    with np.errstate(all="ignore"):
        value = fn(a.value, b.value).astype(a.value.dtype)
    whole = None
    if a.dtype == "int32":
        left = a.value.astype(np.int64) if a.real is None else a.real
        right = b.value.astype(np.int64) if b.real is None else b.real
        whole = fn(left, right)
        value = wrap32(whole)
    return Real(value, a.dtype, real=whole, hazard=_uncertain(a, b))


def _uncertain(*xs: Real) -> r.Mask:
    """Elements of integer operands that are undecided, or where a rounding left a choice."""
    mask: r.Mask = False
    for x in xs:
        mask = mask | x.hazard
        if x.lo is not None and x.hi is not None:
            mask = mask | (x.lo != x.hi)
    return mask if np.any(mask) else False


def _add(a: Real, b: Real, policy: Policy) -> Real:
    return r.add(a, b) if dt.is_float(a.dtype) else _integer(np.add, a, b)


def _sub(a: Real, b: Real, policy: Policy) -> Real:
    return r.add(a, b, -1) if dt.is_float(a.dtype) else _integer(np.subtract, a, b)


def _mul(a: Real, b: Real, policy: Policy, zero_free: bool = False) -> Real:
    if not dt.is_float(a.dtype):
        return _integer(np.multiply, a, b)
    made = r.mul(a, b)
    return replace(made, hazard=made.hazard | ((b.value == 0) & ~np.isfinite(a.value))) if zero_free else made


def _div(a: Real, b: Real, policy: Policy, recip: bool = False) -> Real:
    if dt.is_float(a.dtype):
        return r.div(a, b, policy.div_ulp, recip)
    # Truncation toward zero; numpy's // floors, and division by zero is not specified.
    zero = (b.value == 0) | _uncertain(a, b)
    if a.dtype.startswith("int"):
        zero = zero | ((a.value == dt.limits(a.dtype)[0]) & (b.value == -1))  # the quotient does not fit
    with np.errstate(all="ignore"):
        divisor = np.where(zero, 1, b.value).astype(a.value.dtype)
        quotient = np.floor_divide(a.value, divisor)
        inexact = quotient * divisor != a.value
        quotient = quotient + (inexact & ((a.value < 0) != (divisor < 0)))
    return Real(quotient.astype(a.value.dtype), a.dtype, hazard=zero if zero.any() else False)


def _extreme(pick: Callable[[Array, Array], Array], a: Real, b: Real) -> Real:
    """max and min keep order, so their radius is the larger of the two; NaN in either gives NaN (N7)."""
    value = pick(a.value, b.value)
    if not dt.is_float(a.dtype):
        hazard = a.hazard | b.hazard
        if a.lo is None and b.lo is None:
            return Real(value, a.dtype, hazard=hazard)
        bounds = [pick(_low(a), _low(b)), pick(_high(a), _high(b))]
        return Real(value, a.dtype, lo=bounds[0], hi=bounds[1], hazard=hazard)
    mag = None if a.mag is None and b.mag is None else np.maximum(a.magnitude, b.magnitude)
    err = np.maximum(a.err, b.err) if np.any(a.err) or np.any(b.err) else 0.0
    grid = np.minimum(a.grid, b.grid)
    return Real(value, a.dtype, mag, max(a.k, b.k), err, grid, r.hazard_of(a, b), **r.traits(a, b))


def _low(x: Real) -> Array:
    return x.value.astype(np.int64) if x.lo is None else x.lo


def _high(x: Real) -> Array:
    return x.value.astype(np.int64) if x.hi is None else x.hi


def _ordered(pick: Callable[[Array, Array], Array]) -> Callable[..., Real]:
    def exact(a: Real, b: Real, policy: Policy, inf_free: bool = False) -> Real:
        made = _extreme(pick, a, b)
        return replace(made, hazard=made.hazard | np.isinf(a.value)) if inf_free else made

    return exact


def _monotone(fn: Callable[[Array], Array]) -> Callable[..., Real]:
    def exact(x: Real, policy: Policy) -> Real:
        with np.errstate(all="ignore"):
            moved = r.elementwise(x, fn)
        if x.lo is None or x.hi is None:
            return moved
        ends = fn(x.lo), fn(x.hi)
        crosses = (x.lo < 0) & (x.hi > 0)  # abs has its least value inside
        return replace(moved, lo=np.where(crosses, np.minimum(0, fn(x.lo)), np.minimum(*ends)), hi=np.maximum(*ends))

    return exact


def _erf(x: Array) -> Array:
    return np.fromiter(map(math.erf, x.ravel().astype(np.float64)), np.float64, x.size).reshape(x.shape)


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _flushed(relative: float) -> Callable[[Array, float], Array]:
    """A relative limit; a result below the normal range may be flushed to zero."""

    def limit(y: Array, u: float) -> Array:
        normal = dt.NORMAL["float32" if u == U else "float64"]
        return relative * u * np.abs(y) + np.where(np.abs(y) < normal, np.abs(y), 0.0)

    return limit


U = dt.UNIT["float32"]
# Limits of N5: what honest libraries reach, in units of the float type's u.
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array, Array], Array], Callable[[Array, float], Array]]] = {
    "exp": (np.exp, lambda x, y: y, _flushed(8.0)),
    "log": (np.log, lambda x, y: 1.0 / x, lambda y, u: 8.0 * u * np.abs(y) + 2.0 * u * u),
    "tanh": (np.tanh, lambda x, y: 1.0 - y * y, _flushed(16.0)),
    "sigmoid": (_sigmoid, lambda x, y: y * (1.0 - y), lambda y, u: np.full_like(y, 4.0 * u)),
    "erf": (_erf, lambda x, y: 1.1283791670955126 * np.exp(-x * x), lambda y, u: np.full_like(y, 12.0 * u)),
    "sqrt": (np.sqrt, lambda x, y: 0.5 / y, lambda y, u: 2.0 * u * np.abs(y)),
}


def _function(name: str) -> Callable[..., Real]:
    fn, slope, limit = FUNCTIONS[name]

    def exact(x: Real, policy: Policy) -> Real:
        return r.function(x, fn, slope, limit)

    return exact


def _where(cond: Real, x: Real, y: Real, policy: Policy) -> Real:
    chosen = cond.value

    def pick(left: Any, right: Any) -> Array:
        return np.where(chosen, left, right)

    value = pick(x.value, y.value)
    if not dt.is_float(x.dtype):
        hazard = pick(x.hazard, y.hazard) if np.any(x.hazard) or np.any(y.hazard) else False
        if x.lo is None and y.lo is None:
            return Real(value, x.dtype, hazard=hazard)
        return Real(value, x.dtype, lo=pick(_low(x), _low(y)), hi=pick(_high(x), _high(y)), hazard=hazard)
    mag = None if x.mag is None and y.mag is None else pick(x.magnitude, y.magnitude)
    err = pick(x.err, y.err) if np.any(x.err) or np.any(y.err) else 0.0
    hazard = pick(x.hazard, y.hazard) if np.any(x.hazard) or np.any(y.hazard) else False
    return Real(value, x.dtype, mag, max(x.k, y.k), err, np.minimum(x.grid, y.grid), hazard, **r.traits(x, y))


def _cast(x: Real, policy: Policy, to: str) -> Real:
    """Float to integer truncates; what lies outside the type, and NaN, is not specified (N8)."""
    target = dt.numpy_dtype(to)
    if dt.is_float(to):
        return _cast_to_float(x, to)
    with np.errstate(all="ignore"):
        if to == "bool":
            return Real(x.value != 0, to, hazard=x.hazard)
        if not dt.is_float(x.dtype):
            return Real(x.value.astype(target), to, hazard=_uncertain(x))
        low, high = dt.limits(to)
        radius = r.radius(x)
        below, above = np.trunc(x.value - radius), np.trunc(x.value + radius)
        out = ~np.isfinite(x.value) | (below < low) | (above >= float(high + 1))  # high itself may not be a float
        value = np.where(out, 0, np.trunc(x.value)).astype(target)
        hazard = out | x.hazard
        if x.exact:
            return Real(value, to, hazard=hazard)
        bounds = [np.where(out, 0, edge).astype(np.int64) for edge in (below, above)]
        return Real(value, to, hazard=hazard, lo=bounds[0], hi=bounds[1])


def _rounded(x: Real, to: str) -> Real:
    """One rounding, half to even; wider types may go through float32 and so round twice (N8)."""
    if dt.UNIT[to] <= dt.UNIT["float32"] or x.dtype in ("float16", "bfloat16", "float32"):
        return replace(r.leaf(x.value.astype(dt.numpy_dtype(to)), to), hazard=x.hazard)
    once = r.leaf(dt.narrow(x.value.astype(np.float64), to), to)
    twice = r.leaf(dt.narrow(x.value.astype(np.float32).astype(np.float64), to), to)
    if np.array_equal(once.value, twice.value, equal_nan=True):
        return replace(once, hazard=x.hazard)
    err = np.nan_to_num(np.abs(once.value - twice.value))
    return replace(once, hazard=x.hazard, err=err, grid=0.0, members=(once.value, twice.value))


def _cast_to_float(x: Real, to: str) -> Real:
    target = dt.numpy_dtype(to)
    with np.errstate(all="ignore"):
        if not dt.is_float(x.dtype) or x.exact:
            return _rounded(x, to)
        err = r.radius(x)
        value: Array = x.value.astype(r.wide(to))
        if dt.UNIT[to] > dt.UNIT[x.dtype]:
            err = np.where(err == 0, 0.0, r.narrowed(err, x.value, to))
            value = np.where(err == 0, x.value.astype(target).astype(r.wide(to)), value)
    return Real(value, to, None, 0, err, 0.0, x.hazard, floor=x.floor)


ELEMENTWISE: dict[str, ElementwiseFn] = {
    "add": ElementwiseFn(_add, 2, NUMBERS),
    "sub": ElementwiseFn(_sub, 2, NUMBERS),
    "mul": ElementwiseFn(_mul, 2, NUMBERS),
    "div": ElementwiseFn(_div, 2, NUMBERS),
    "max": ElementwiseFn(_ordered(np.maximum), 2, NUMBERS),
    "min": ElementwiseFn(_ordered(np.minimum), 2, NUMBERS),
    "neg": ElementwiseFn(_monotone(np.negative), 1, SIGNED),
    "abs": ElementwiseFn(_monotone(np.abs), 1, NUMBERS),
    "relu": ElementwiseFn(_monotone(lambda v: np.maximum(v, v.dtype.type(0))), 1, SIGNED),
    "where": ElementwiseFn(_where, 3, (*NUMBERS, "bool")),
    "cast": ElementwiseFn(_cast, 1, (*NUMBERS, "bool"), ("to",)),
    **{name: ElementwiseFn(_function(name), 1, dt.FLOATS) for name in FUNCTIONS},
}


def infer_elementwise(*inputs: TensorSpec, fn: str = "", to: str = "", **lenience: bool) -> TensorSpec:
    row = ELEMENTWISE[fn]
    require_shape(len(inputs) == row.arity, f"Elementwise.{fn}: {len(inputs)} inputs, expected {row.arity}")
    operands = inputs[1:] if fn == "where" else inputs
    if fn == "where":
        require_dtype(inputs[0], ("bool",), "Elementwise.where: condition")
    require_dtype(operands[0], row.dtypes, f"Elementwise.{fn}: input")
    for other in operands[1:]:
        require_dtype(other, (operands[0].dtype,), f"Elementwise.{fn}: every input")
    for other in inputs[1:]:
        require_shape(other.shape == inputs[0].shape, f"Elementwise.{fn}: shapes {inputs[0]} and {other} differ")
    return TensorSpec(inputs[0].shape, to or operands[0].dtype)


def exact_elementwise(*inputs: Real, fn: str = "", policy: Policy | None = None, **attrs: Any) -> Real:
    """y[i] = fn(x1[i], x2[i], ...)

    Shapes: all equal; lowering writes broadcasts as DataMove.expand.
    Dtypes: the row's; where: bool, x, x -> x; cast: any -> `to`. `inf_free`: max and min leave an infinite
        first operand undecided; `zero_free`: mul leaves 0 * NaN and 0 * inf undecided; `recip`: div may be
        a product with the reciprocal.
    Source: ONNX Add-14 .. Where-16; limits of functions N5.
    """
    return ELEMENTWISE[fn].exact(*inputs, policy=policy or Policy(), **attrs)


def _infer_parameters(x: TensorSpec, name: str, **parameters: TensorSpec) -> None:
    require_shape(len(x.shape) == 3, f"{name}: x {x} must be [O,C,I]")
    for what, spec in parameters.items():
        require_shape(spec.shape == (x.shape[1],), f"{name}: {what} {spec} must have {x.shape[1]} elements")


def infer_quantize(
    x: TensorSpec, scale: TensorSpec, zero_point: TensorSpec, *, to: str, precision: str = "", fn: str = "", **lenience: int
) -> TensorSpec:
    _infer_parameters(x, "Quantize", scale=scale, zero_point=zero_point)
    require_dtype(x, (*dt.FLOATS, "int32"), "Quantize: x")
    require_dtype(zero_point, (to,), "Quantize: zero_point")
    return TensorSpec(x.shape, to)


def _channels(p: Array) -> Array:
    return p[None, :, None]


def _channel_real(p: Real) -> Real:
    return r.move(p, _channels)


def exact_quantize(
    x: Real,
    scale: Real,
    zero_point: Real,
    *,
    to: str,
    precision: str = "",
    zp_inside: bool = False,
    roundings: int = 0,
    fn: str = "",
    policy: Policy | None = None,
) -> Real:
    """y = saturate(round(x / scale) + zero_point)

    Shapes: x, y [O,C,I]; scale, zero_point [C].
    Dtypes: f32|f16 -> int8|uint8|int16|uint16.
    Source: ONNX QuantizeLinear-10..28; N4 (enumerated quotients of exact inputs, interval otherwise, and
        where `roundings` more are admitted). zp_inside counts two more roundings on |zero_point|.
    """
    policy = policy or Policy()
    zp = np.broadcast_to(_channels(zero_point.value.astype(np.int64)), x.shape)
    divisor = _channel_real(scale)
    quotient = r.div(x, divisor, policy.div_ulp)
    undecided = np.isnan(quotient.value) | quotient.hazard
    nearest = rounding.saturate(np.rint(quotient.value) + zp, to)
    if roundings or not (x.exact and scale.exact) or policy.q_div == "recip" or policy.offset_qmin or policy.div_ulp > 0.5:
        around = replace(quotient, k=quotient.k + roundings)
        if zp_inside:
            grid = np.minimum(quotient.grid, 1.0)
            around = replace(around, k=around.k + 2, mag=quotient.magnitude + np.abs(zp), grid=grid)
        radius = r.radius(around)
        if policy.q_div == "recip":
            recip = r.gamma(2, dt.UNIT["float32"]) * np.abs(quotient.value)
            radius = np.where(r.orders_agree(quotient), 0.0, np.maximum(radius, recip))
        lo, hi = rounding.accept(_finite(quotient.value), _finite(radius), zp, to, policy, zp_inside)
        return Real(nearest.astype(dt.numpy_dtype(to)), to, hazard=undecided, lo=lo, hi=hi, real=quotient.value, zero_point=zp)
    members = _quotients(x, divisor, quotient.value, precision, policy)
    choices = [rounding.saturate(rounding.MODES[m](q) + zp, to) for q in members for m in policy.round]
    if policy.zp_inside or zp_inside:
        choices += [rounding.saturate(rounding.MODES[m]((q + zp).astype(np.float32).astype(np.float64)), to) for q in members for m in policy.round]
    lo, hi = np.minimum.reduce(choices), np.maximum.reduce(choices)
    return Real(nearest.astype(dt.numpy_dtype(to)), to, hazard=undecided, lo=lo, hi=hi, members=_distinct(choices), real=quotient.value, zero_point=zp)


def _finite(v: Array) -> Array:
    return np.nan_to_num(np.asarray(v, np.float64), nan=0.0, posinf=1e300, neginf=-1e300)


def _distinct(choices: list[Array]) -> tuple[Array, ...]:
    kept: list[Array] = []
    for choice in choices:
        if not any(np.array_equal(choice, k) for k in kept):
            kept.append(choice)
    return tuple(kept) if len(kept) > 1 else ()


def _quotients(x: Real, divisor: Real, exact: Array, precision: str, policy: Policy) -> list[Array]:
    """The admissible quotients before rounding: in `precision` (or the scale's type), in float32, exact (N4)."""
    types = {"float32", precision or divisor.dtype} - {"float64"}
    found = []
    with np.errstate(all="ignore"):
        for word in sorted(types):
            kind = dt.numpy_dtype(word)
            found.append((x.value.astype(kind) / divisor.value.astype(kind)).astype(np.float64))
    return [*found, np.asarray(exact, np.float64)] if policy.q_div == "wide" else found


def infer_dequantize(x: TensorSpec, scale: TensorSpec, zero_point: TensorSpec, *, to: str, fn: str = "") -> TensorSpec:
    _infer_parameters(x, "Dequantize", scale=scale, zero_point=zero_point)
    require_dtype(x, (*QUANTIZED, "int32"), "Dequantize: x")
    require_dtype(zero_point, (x.dtype,), "Dequantize: zero_point")
    return TensorSpec(x.shape, to)


def exact_dequantize(x: Real, scale: Real, zero_point: Real, *, to: str, fn: str = "", policy: Policy | None = None) -> Real:
    """y = (x - zero_point) * scale

    Shapes: x, y [O,C,I]; scale, zero_point [C].
    Dtypes: int8|uint8|int16|uint16|int32 -> f32|f16.
    Source: ONNX DequantizeLinear-10..28; N4: the product in the output type, or in float32 and then
        rounded; int32 may first be rounded to float. As an operand it counts three roundings on
        (|x| + |zero_point|) * scale, since fused kernels expand the bracket.
    """
    zp = _channels(zero_point.value.astype(np.int64))
    step = _channels(scale.value)
    bracket = x.value.astype(np.int64) - zp
    kind = dt.numpy_dtype(to)
    with np.errstate(all="ignore"):
        value = bracket.astype(np.float64) * step
        mag = (np.abs(x.value.astype(np.float64)) + np.abs(zp)) * np.abs(step)
        members = _distinct_values([
            (bracket.astype(kind) * step.astype(kind)).astype(kind),
            (bracket.astype(np.float32) * step.astype(np.float32)).astype(kind),
            value.astype(kind),
        ])
    low = 0.0 if x.lo is None or x.hi is None else (x.hi - x.lo) * np.abs(step)
    grid = np.abs(step) * np.ones(x.shape) if r._all_powers(scale.value) else 0.0
    return Real(value, to, mag, 3, low, grid, x.hazard, members=members if x.lo is None else ())


def _distinct_values(choices: list[Array]) -> tuple[Array, ...]:
    kept: list[Array] = []
    for choice in choices:
        if not any(np.array_equal(choice, k, equal_nan=True) for k in kept):
            kept.append(choice)
    return tuple(kept)


def infer_requantize(
    acc: TensorSpec, multiplier: TensorSpec, zero_point: TensorSpec, *, to: str, zp_inside: bool = False, fn: str = ""
) -> TensorSpec:
    _infer_parameters(acc, "Requantize", multiplier=multiplier, zero_point=zero_point)
    require_dtype(acc, ("int32",), "Requantize: acc")
    require_dtype(multiplier, ("float32",), "Requantize: multiplier")
    require_dtype(zero_point, (to,), "Requantize: zero_point")
    return TensorSpec(acc.shape, to)


def exact_requantize(
    acc: Real, multiplier: Real, zero_point: Real, *, to: str, zp_inside: bool = False, fn: str = "", policy: Policy | None = None
) -> Real:
    """y = saturate(round(acc * multiplier) + zero_point)

    Shapes: acc, y [O,C,I]; multiplier, zero_point [C].
    Dtypes: int32 -> int8|uint8|int16|uint16.
    Source: ONNX QLinearMatMul-21, QLinearConv-10; N4 with gamma_6 |acc * multiplier| for every way to
        form the multiplier from its scales, 0 where all are powers of two (N3). |acc| >= 2^31 is
        undecided: ONNX permits the overflow (N6).
    """
    policy = policy or Policy()
    whole = acc.value.astype(np.int64) if acc.real is None else acc.real
    overflow = (whole < -(2**31)) | (whole >= 2**31)
    sums = Real(whole.astype(np.float64), "float32", grid=1.0, hazard=overflow if overflow.any() else False)
    v = r.mul(sums, _channel_real(multiplier))
    v = replace(v, k=v.k + 3)
    radius = _finite(r.radius(v) + np.where(r.orders_agree(v), 0.0, np.abs(v.value) * 2.0**-50))
    zp = np.broadcast_to(_channels(zero_point.value.astype(np.int64)), v.shape)
    lo, hi = rounding.accept(_finite(v.value), radius, zp, to, policy, zp_inside)
    nearest = np.clip(rounding.saturate(np.rint(v.value) + zp, to), lo, hi)
    hazard = np.isnan(v.value) | v.hazard
    return Real(nearest.astype(dt.numpy_dtype(to)), to, hazard=hazard, lo=lo, hi=hi, real=v.value, zero_point=zp)


PRIMITIVES: dict[str, PrimitiveDef] = {
    "Elementwise": PrimitiveDef(infer_elementwise, exact_elementwise, {name: row.attrs for name, row in ELEMENTWISE.items()}),
    "Quantize": PrimitiveDef(infer_quantize, exact_quantize, {"": ("to", "precision")}),
    "Dequantize": PrimitiveDef(infer_dequantize, exact_dequantize, {"": ("to",)}),
    "Requantize": PrimitiveDef(infer_requantize, exact_requantize, {"": ("to", "zp_inside")}),
}
