"""Arithmetic, order, selection and rounding to whole numbers: one exact value, or one IEEE operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ... import dtypes as dt
from ... import real as r
from ...real import Mask, Real
from ...types import Array, Policy
from ..linear import wrap32


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
    return Real(value, a.dtype, real=whole, hazard=uncertain(a, b))


def uncertain(*xs: Real) -> Mask:
    """Elements of integer operands that are undecided, or where a rounding left a choice."""
    mask: Mask = False
    for x in xs:
        mask = mask | x.hazard
        if x.lo is not None and x.hi is not None:
            mask = mask | (x.lo != x.hi)
    return mask if np.any(mask) else False


def add(a: Real, b: Real, policy: Policy, optional: bool = False) -> Real:
    if optional:
        made = r.add(a, b)
        return replace(made, err=made.err + np.abs(b.value), ieee=False)
    return r.add(a, b) if dt.is_float(a.dtype) else _integer(np.add, a, b)


def sub(a: Real, b: Real, policy: Policy, settled: bool = False) -> Real:
    if settled:
        a, b = r.settle(a), r.settle(b)
    return r.add(a, b, -1) if dt.is_float(a.dtype) else _integer(np.subtract, a, b)


def mul(a: Real, b: Real, policy: Policy, zero_free: bool = False, settled: bool = False, roundings: int = 0) -> Real:
    if not dt.is_float(a.dtype):
        return _integer(np.multiply, a, b)
    if settled:
        a, b = r.settle(a), r.settle(b)
    made = r.mul(a, b)
    if roundings:
        made = replace(made, k=made.k + roundings, ieee=False)
    return replace(made, hazard=made.hazard | ((b.value == 0) & ~np.isfinite(a.value))) if zero_free else made


def div(a: Real, b: Real, policy: Policy, recip: bool = False, zero_free: bool = False, inf_free: bool = False) -> Real:
    if dt.is_float(a.dtype):
        made = r.div(a, b, policy.div_ulp, recip)
        made = replace(made, hazard=made.hazard | np.isinf(a.value)) if inf_free else made
        return replace(made, hazard=made.hazard | (b.value == 0)) if zero_free else made
    # Truncation toward zero; numpy's // floors, and division by zero is not specified.
    zero = (b.value == 0) | uncertain(a, b)
    if a.dtype.startswith("int"):
        zero = zero | ((a.value == dt.limits(a.dtype)[0]) & (b.value == -1))  # the quotient does not fit
    with np.errstate(all="ignore"):
        divisor = np.where(zero, 1, b.value).astype(a.value.dtype)
        quotient = np.floor_divide(a.value, divisor)
        inexact = quotient * divisor != a.value
        quotient = quotient + (inexact & ((a.value < 0) != (divisor < 0)))
    return Real(quotient.astype(a.value.dtype), a.dtype, hazard=zero if zero.any() else False)


def remainder(fn: Callable[[Array, Array], Array]) -> Callable[..., Real]:
    """A remainder is exact; one of inexact operands may be any number, and by an integer 0 none (N6)."""

    def exact(a: Real, b: Real, policy: Policy) -> Real:
        with np.errstate(all="ignore"):
            if dt.is_float(a.dtype):
                hazard = a.hazard | b.hazard | np.full(a.shape, not (a.exact and b.exact))
                return replace(r.leaf(fn(a.value, b.value), a.dtype), hazard=hazard if np.any(hazard) else False)
            zero = (b.value == 0) | uncertain(a, b)
            value = fn(a.value, np.where(b.value == 0, 1, b.value).astype(b.value.dtype))
        return Real(value.astype(a.value.dtype), a.dtype, hazard=zero if np.any(zero) else False)

    return exact


def extreme(pick: Callable[[Array, Array], Array], a: Real, b: Real) -> Real:
    """max and min keep order, so that their radius is that of operands that may be taken; NaN in either is NaN (N7)."""
    value = pick(a.value, b.value)
    if not dt.is_float(a.dtype):
        hazard = a.hazard | b.hazard
        if a.lo is None and b.lo is None:
            return Real(value, a.dtype, hazard=hazard)
        bounds = [pick(low(a), low(b)), pick(high(a), high(b))]
        return Real(value, a.dtype, lo=bounds[0], hi=bounds[1], hazard=hazard)
    with np.errstate(all="ignore"):
        below, above = ([x.value + sign * r.radius(x) for x in (a, b)] for sign in (-1, 1))
    out = (
        [above[0] < below[1], above[1] < below[0]] if pick is np.maximum else [below[0] > above[1], below[1] > above[0]]
    )
    # An operand that is not the one taken adds nothing, nor does the magnitude of an exact one.
    rounded = [np.where(gone, 0.0, x.magnitude) for x, gone in zip((a, b), out, strict=True) if not x.exact]
    mag = None if a.mag is None and b.mag is None else np.maximum.reduce([np.abs(value), *rounded])
    blurred = np.any(a.err) or np.any(b.err)
    err = np.maximum(np.where(out[0], 0.0, a.err), np.where(out[1], 0.0, b.err)) if blurred else 0.0
    grid = np.minimum(a.grid, b.grid)
    return Real(value, a.dtype, mag, max(a.k, b.k), err, grid, r.hazard_of(a, b), **r.traits(a, b))


def low(x: Real) -> Array:
    return x.value.astype(np.int64) if x.lo is None else x.lo


def high(x: Real) -> Array:
    return x.value.astype(np.int64) if x.hi is None else x.hi


def ordered(pick: Callable[[Array, Array], Array]) -> Callable[..., Real]:
    def exact(a: Real, b: Real, policy: Policy, inf_free: bool = False) -> Real:
        made = extreme(pick, a, b)
        return replace(made, hazard=made.hazard | np.isinf(a.value)) if inf_free else made

    return exact


def monotone(fn: Callable[[Array], Array]) -> Callable[..., Real]:
    def exact(x: Real, policy: Policy) -> Real:
        with np.errstate(all="ignore"):
            moved = r.elementwise(x, fn)
            if dt.is_float(x.dtype) and not x.exact:
                # Below zero for sure is 0 after Relu, however far below.
                reach = r.radius(x)
                flat = (fn(x.value - reach) == moved.value) & (fn(x.value + reach) == moved.value)
                err = np.where(flat, 0.0, moved.err) if np.any(moved.err) else moved.err
                moved = replace(moved, mag=np.where(flat, np.abs(moved.value), moved.magnitude), err=err)
        if x.lo is None or x.hi is None:
            return moved
        ends = fn(x.lo), fn(x.hi)
        crosses = (x.lo < 0) & (x.hi > 0)  # abs has its least value inside
        return replace(moved, lo=np.where(crosses, np.minimum(0, fn(x.lo)), np.minimum(*ends)), hi=np.maximum(*ends))

    return exact


def step(fn: Callable[[Array], Array], nan_free: bool = False) -> Callable[..., Real]:
    """A monotone step function of a float: exact, or any step that the operand's interval touches (N4)."""

    def exact(x: Real, policy: Policy) -> Real:
        with np.errstate(all="ignore"):
            value = fn(x.value)
            undecided = x.hazard | (np.isnan(x.value) if nan_free and dt.is_float(x.dtype) else False)
            if not dt.is_float(x.dtype):
                return Real(value.astype(x.value.dtype), x.dtype, hazard=undecided | uncertain(x))
            if x.exact:
                return replace(r.leaf(value, x.dtype), hazard=undecided, floor=x.floor)
            radius = r.radius(x)
            err = np.maximum(fn(x.value + radius) - value, value - fn(x.value - radius))
            err = np.where(np.isfinite(err), err, 0.0)
        return Real(value, x.dtype, None, 0, err, 0.0, r.hazard_of(x, also=undecided), floor=x.floor)

    return exact


def where(cond: Real, x: Real, y: Real, policy: Policy) -> Real:
    """The chosen operand with all that it carries; an undecided condition decides nothing."""
    chosen = cond.value

    def pick(left: Any, right: Any) -> Array:
        return np.where(chosen, left, right)

    value = pick(x.value, y.value)
    hazard: Mask = pick(x.hazard, y.hazard) if np.any(x.hazard) or np.any(y.hazard) else False
    hazard = hazard | cond.hazard if np.any(cond.hazard) else hazard
    if not dt.is_float(x.dtype):
        if x.lo is None and y.lo is None:
            return Real(value, x.dtype, hazard=hazard)
        origin: dict[str, Any] = {}  # what was rounded, where both sides were
        if x.real is not None and y.real is not None and x.zero_point is not None and y.zero_point is not None:
            origin = {"real": pick(x.real, y.real), "zero_point": pick(x.zero_point, y.zero_point)}
        return Real(value, x.dtype, lo=pick(low(x), low(y)), hi=pick(high(x), high(y)), hazard=hazard, **origin)
    mag = None if x.mag is None and y.mag is None else pick(x.magnitude, y.magnitude)
    err = pick(x.err, y.err) if np.any(x.err) or np.any(y.err) else 0.0
    # One IEEE operation or none at each element is still one specified rounding.
    ieee = (x.ieee or y.ieee) and all(v.ieee or v.exact for v in (x, y))
    grid = np.minimum(x.grid, y.grid)
    return Real(value, x.dtype, mag, max(x.k, y.k), err, grid, hazard, ieee=ieee, **r.traits(x, y))
