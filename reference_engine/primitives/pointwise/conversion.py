"""Cast, Quantize, Dequantize, Requantize: from one element type to another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ... import dtypes as dt
from ... import real as r
from ... import rounding
from ...real import Real
from ...types import Array, Policy, TensorSpec
from ..definition import require_dtype, require_shape
from .arithmetic import uncertain

QUANTIZED = ("int8", "uint8", "int16", "uint16", *dt.SUBBYTE)


def cast(x: Real, policy: Policy, to: str, nearest: bool = False) -> Real:
    """Float to integer truncates; what lies outside the type, and NaN, is not specified (N8).

    `nearest`: rounding to the nearest is as good, where an operator does not say how its floats become integers.
    """
    target = dt.numpy_dtype(to)
    if dt.is_float(to):
        return _cast_to_float(x, to)
    with np.errstate(all="ignore"):
        if to == "bool":
            return Real(x.value != 0, to, hazard=x.hazard)
        if not dt.is_float(x.dtype):
            # ml_dtypes has no direct way from one narrow type to another.
            whole = x.value.astype(np.int64) if x.dtype in dt.SUBBYTE else x.value
            return Real(whole.astype(target), to, hazard=uncertain(x))
        low, high = dt.limits(to)
        radius = r.radius(x)
        below, above = np.trunc(x.value - radius), np.trunc(x.value + radius)
        if nearest:
            below = np.minimum(below, np.rint(x.value - radius))
            above = np.maximum(above, np.rint(x.value + radius))
        out = ~np.isfinite(x.value) | (below < low) | (above >= float(high + 1))  # high itself may not be a float
        value = np.where(out, 0, np.trunc(x.value)).astype(target)
        hazard = out | x.hazard
        if to in dt.SUBBYTE:  # what becomes of a fraction
            hazard = hazard | (np.trunc(x.value) != x.value)
        if x.exact and not nearest:
            return Real(value, to, hazard=hazard)
        bounds = [np.where(out, 0, edge).astype(np.int64) for edge in (below, above)]
        return Real(value, to, hazard=hazard, lo=bounds[0], hi=bounds[1])


def _rounded(x: Real, to: str) -> Real:
    """One rounding, half to even; wider types may go through float32 and so round twice (N8)."""
    if dt.UNIT[to] <= dt.UNIT["float32"]:
        return replace(r.leaf(x.value.astype(dt.numpy_dtype(to)), to), hazard=x.hazard)
    if x.dtype in ("float16", "bfloat16", "float32", *dt.FLOAT8):
        made = r.leaf(dt.narrow(np.asarray(x.value, np.float64), to), to)
        return replace(made, hazard=x.hazard, real=x.value if to in dt.FLOAT8 else None)
    once = r.leaf(dt.narrow(x.value.astype(np.float64), to), to)
    twice = r.leaf(dt.narrow(x.value.astype(np.float32).astype(np.float64), to), to)
    if np.array_equal(once.value, twice.value, equal_nan=True):
        return replace(once, hazard=x.hazard)
    hazard = x.hazard | (np.isnan(once.value) != np.isnan(twice.value))
    with np.errstate(invalid="ignore"):
        err = np.nan_to_num(np.abs(once.value - twice.value), posinf=0.0)
    return replace(once, hazard=hazard, err=err, grid=0.0, members=(once.value, twice.value))


def _cast_to_float(x: Real, to: str) -> Real:
    target = dt.numpy_dtype(to)
    with np.errstate(all="ignore"):
        if not dt.is_float(x.dtype) and x.lo is not None and x.hi is not None:
            made = _rounded(x, to)
            off = np.maximum(x.hi - x.value, x.value - x.lo) * (1.0 + dt.UNIT[to])
            return replace(made, err=made.err + off, ieee=False, members=())
        if not dt.is_float(x.dtype) or x.exact:
            return _rounded(x, to)
        err = r.radius(x)
        value: Array = x.value.astype(r.wide(to))
        if dt.UNIT[to] > dt.UNIT[x.dtype]:
            err = np.where(err == 0, 0.0, r.narrowed(err, x.value, to))
            value = np.where(err == 0, x.value.astype(target).astype(r.wide(to)), value)
    return Real(value, to, None, 0, err, 0.0, x.hazard, floor=x.floor)


def _infer_parameters(x: TensorSpec, name: str, **parameters: TensorSpec) -> None:
    require_shape(len(x.shape) == 3, f"{name}: x {x} must be [O,C,I]")
    for what, spec in parameters.items():
        require_shape(spec.shape == (x.shape[1],), f"{name}: {what} {spec} must have {x.shape[1]} elements")


def infer_quantize(
    x: TensorSpec,
    scale: TensorSpec,
    zero_point: TensorSpec,
    *,
    to: str,
    precision: str = "",
    fn: str = "",
    **lenience: int,
) -> TensorSpec:
    _infer_parameters(x, "Quantize", scale=scale, zero_point=zero_point)
    require_dtype(x, (*dt.FLOATS, "int32"), "Quantize: x")
    require_dtype(zero_point, (to,), "Quantize: zero_point")
    require_dtype(zero_point, dt.FLOAT8 if fn else QUANTIZED, "Quantize: zero_point")
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
    saturate: int = 1,
    fn: str = "",
    policy: Policy | None = None,
) -> Real:
    """y = saturate(round(x / scale) + zero_point); fn float8: y = cast(x / scale), saturated or not

    Shapes: x, y [O,C,I]; scale, zero_point [C].
    Dtypes: float32|float16|bfloat16 -> integers of 2 to 16 bits; float8: 8-bit floats, whose zero point is 0.
    Source: ONNX QuantizeLinear-10..28; N4 (enumerated quotients of exact inputs, interval otherwise, and
        where `roundings` more are admitted). zp_inside counts two more roundings on |zero_point|.
    """
    policy = policy or Policy()
    divisor = _channel_real(scale)
    quotient = r.div(x, divisor, policy.div_ulp)
    if fn == "float8":
        return _quantize_float8(x, divisor, quotient, zero_point, to, precision, saturate, policy)
    zp = np.broadcast_to(_channels(zero_point.value.astype(np.int64)), x.shape)
    undecided = np.isnan(quotient.value) | quotient.hazard
    nearest = rounding.saturate(np.rint(quotient.value) + zp, to)
    made = nearest.astype(dt.numpy_dtype(to))
    ordinary = x.exact and scale.exact and not roundings and policy.div_ulp <= 0.5
    if not ordinary or policy.q_div == "recip" or policy.offset_qmin:
        around = replace(quotient, k=quotient.k + roundings)
        if zp_inside:
            grid = np.minimum(quotient.grid, 1.0)
            around = replace(around, k=around.k + 2, mag=quotient.magnitude + np.abs(zp), grid=grid)
        radius = r.radius(around)
        if policy.q_div == "recip":
            recip = r.gamma(2, dt.UNIT["float32"]) * np.abs(quotient.value)
            radius = np.where(r.orders_agree(quotient), 0.0, np.maximum(radius, recip))
        lo, hi = rounding.accept(_finite(quotient.value), _finite(radius), zp, to, policy, zp_inside)
        return Real(made, to, hazard=undecided, lo=lo, hi=hi, real=quotient.value, zero_point=zp)
    members = _quotients(x, divisor, quotient.value, precision, policy)
    choices = [rounding.saturate(rounding.MODES[m](q) + zp, to) for q in members for m in policy.round]
    if policy.zp_inside or zp_inside:
        inside = [(q + zp).astype(np.float32).astype(np.float64) for q in members]
        choices += [rounding.saturate(rounding.MODES[m](q), to) for q in inside for m in policy.round]
    lo, hi = np.minimum.reduce(choices), np.maximum.reduce(choices)
    listed = _distinct(choices)
    return Real(made, to, hazard=undecided, lo=lo, hi=hi, members=listed, real=quotient.value, zero_point=zp)


def float8(value: Array, word: str, saturate: int) -> Array:
    """float64 -> an 8-bit float in one rounding, half to even; saturate: the largest number beyond it, also for Inf."""
    if saturate:
        value = np.clip(value, -dt.MAX[word], dt.MAX[word])
    return dt.narrow(value, word)


def _quantize_float8(
    x: Real, divisor: Real, quotient: Real, zero_point: Real, to: str, precision: str, saturate: int, policy: Policy
) -> Real:
    """The cast of each admissible quotient; undecided where one of them is NaN and another is not."""
    exact = np.asarray(quotient.value, np.float64)
    members = _quotients(x, divisor, exact, precision, replace(policy, q_div="wide"))
    stored = [float8(q, to, saturate) for q in members]
    values = [m.astype(np.float64) for m in stored]
    best = values[-1]
    mixed = np.logical_or.reduce([np.isnan(v) != np.isnan(best) for v in values])
    hazard = mixed | quotient.hazard | (_channels(zero_point.value) != 0)
    if not (x.exact and divisor.exact):
        hazard = hazard | True
    with np.errstate(invalid="ignore"):
        err = np.nan_to_num(np.maximum.reduce([np.abs(v - best) for v in values]), posinf=0.0)
    return Real(best, to, None, 0, err, 0.0, hazard, members=_distinct_values(stored), real=exact)


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


def infer_dequantize(
    x: TensorSpec, scale: TensorSpec, zero_point: TensorSpec, *, to: str, fn: str = "", expanded: bool = False
) -> TensorSpec:
    _infer_parameters(x, "Dequantize", scale=scale, zero_point=zero_point)
    require_dtype(x, (*QUANTIZED, "int32", *dt.FLOAT8), "Dequantize: x")
    require_dtype(zero_point, (x.dtype,), "Dequantize: zero_point")
    return TensorSpec(x.shape, to)


def exact_dequantize(
    x: Real,
    scale: Real,
    zero_point: Real,
    *,
    to: str,
    fn: str = "",
    expanded: bool = False,
    policy: Policy | None = None,
) -> Real:
    """y = (x - zero_point) * scale

    Shapes: x, y [O,C,I]; scale, zero_point [C].
    Dtypes: integers of 2 to 16 bits, int32, 8-bit floats -> float32|float16|bfloat16.
    Source: ONNX DequantizeLinear-10..28; N4: the product in the output type, or in float32 and then
        rounded; int32 may first be rounded to float. As an operand it counts three roundings on
        |x - zero_point| * scale; `expanded`: on (|x| + |zero_point|) * scale, since kernels expand the bracket.
    """
    wide = np.float64 if dt.is_float(x.dtype) else np.int64
    zp = _channels(zero_point.value.astype(wide))
    step = _channels(scale.value)
    bracket = x.value.astype(wide) - zp
    kind = dt.numpy_dtype(to)
    with np.errstate(all="ignore"):
        value = bracket.astype(np.float64) * step
        size = np.abs(x.value.astype(np.float64)) + np.abs(zp) if expanded else np.abs(bracket)
        mag = size * np.abs(step)
        members = _distinct_values(
            [
                (bracket.astype(kind) * step.astype(kind)).astype(kind),
                (bracket.astype(np.float32) * step.astype(np.float32)).astype(kind),
                value.astype(kind),
            ]
        )
    low = 0.0 if x.lo is None or x.hi is None else (x.hi - x.lo) * np.abs(step)
    grid = np.abs(step) * np.ones(x.shape) if r._all_powers(scale.value) else 0.0
    if dt.is_float(x.dtype):
        grid = 0.0
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
    acc: Real,
    multiplier: Real,
    zero_point: Real,
    *,
    to: str,
    zp_inside: bool = False,
    fn: str = "",
    policy: Policy | None = None,
) -> Real:
    """y = saturate(round(acc * multiplier) + zero_point)

    Shapes: acc, y [O,C,I]; multiplier, zero_point [C].
    Dtypes: int32 -> int8|uint8|int16|uint16.
    Source: ONNX QLinearMatMul-21, QLinearConv-10; N4 with gamma_6 |acc * multiplier| for every way to
        form the multiplier from its scales, 0 where all are powers of two (N3). |acc| >= 2^31 is
        undecided: ONNX permits the overflow (N6). Policy `requant=fixed` adds what Q31 may lose (N10).
    """
    policy = policy or Policy()
    whole = acc.value.astype(np.int64) if acc.real is None else acc.real
    overflow = (whole < -(2**31)) | (whole >= 2**31)
    sums = Real(whole.astype(np.float64), "float32", grid=1.0, hazard=overflow if overflow.any() else False)
    v = r.mul(sums, _channel_real(multiplier))
    v = replace(v, k=v.k + 3)
    radius = _finite(r.radius(v) + np.where(r.orders_agree(v), 0.0, np.abs(v.value) * 2.0**-50))
    if policy.requant == "fixed":
        radius = radius + rounding.fixed_point(v.value, _channel_real(multiplier).value)
        policy = replace(policy, round=tuple(dict.fromkeys((*policy.round, "away", "up"))))
    zp = np.broadcast_to(_channels(zero_point.value.astype(np.int64)), v.shape)
    lo, hi = rounding.accept(_finite(v.value), radius, zp, to, policy, zp_inside)
    nearest = np.clip(rounding.saturate(np.rint(v.value) + zp, to), lo, hi)
    hazard = np.isnan(v.value) | v.hazard
    return Real(nearest.astype(dt.numpy_dtype(to)), to, hazard=hazard, lo=lo, hi=hi, real=v.value, zero_point=zp)
