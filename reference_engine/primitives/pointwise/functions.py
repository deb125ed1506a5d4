"""Transcendental functions: the value in wide arithmetic, and how far honest libraries are from it (N5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ... import dtypes as dt
from ... import real as r
from ...real import Real
from ...types import Array, Policy
from .arithmetic import uncertain

U = dt.UNIT["float32"]


class Function(NamedTuple):
    """y = fn(x): `slope(x, y)` bounds |fn'|, `limit(x, y, u)` is what honest libraries reach, in u of the float type.

    Beyond `reach`, for float32 and float64, a usual formula overflows on its way to a finite result (N6).
    """

    fn: Callable[[Array], Array]
    slope: Callable[[Array, Array], Array]
    limit: Callable[[Array, Array, float], Array]
    reach: tuple[float, float] | None = None


def _erf(x: Array) -> Array:
    return np.fromiter(map(math.erf, x.ravel().astype(np.float64)), np.float64, x.size).reshape(x.shape)


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _normal(u: float) -> float:
    return dt.NORMAL["float32" if u == U else "float64"]


def _flushed(relative: float) -> Callable[[Array, Array, float], Array]:
    """A relative limit; a result below the normal range may be flushed to zero."""

    def limit(x: Array, y: Array, u: float) -> Array:
        return relative * u * np.abs(y) + np.where(np.abs(y) < _normal(u), np.abs(y), 0.0)

    return limit


def _mixed(relative: float, absolute: float) -> Callable[[Array, Array, float], Array]:
    return lambda x, y, u: u * (relative * np.abs(y) + absolute)


REDUCED = 100.0  # beyond, the reduction of the argument modulo pi may cost u |x|


def _reduction(x: Array, u: float) -> Array:
    return np.where(np.abs(x) > REDUCED, u * np.abs(x), 0.0)


def _circular(x: Array, y: Array, u: float) -> Array:
    return (4.0 if u == U else 8.0) * u + _reduction(x, u)


def _sine(x: Array, y: Array, u: float) -> Array:
    return (4.0 if u == U else 8.0) * u * np.minimum(1.0, np.abs(x)) + _reduction(x, u)


def _tangent(x: Array, y: Array, u: float) -> Array:
    return (8.0 * u * np.minimum(1.0, np.abs(x)) + _reduction(x, u)) * (1.0 + y * y)


def _acosh(x: Array, y: Array, u: float) -> Array:
    # log(x + sqrt(x x - 1)) loses u / (2 y) next to 1.
    return u * (8.0 * np.abs(y) + 4.0 + np.where(y > 0, 1.0 / y, 0.0))


EXPONENTIALS = (88.0, 709.0)  # exp(x) is still finite
SQUARES = (1e18, 1e153)  # and x^2


# Limits of N5: what honest libraries reach, in units of the float type's u.
FUNCTIONS: dict[str, Function] = {
    "exp": Function(np.exp, lambda x, y: y, _flushed(8.0)),
    "log": Function(np.log, lambda x, y: 1.0 / x, lambda x, y, u: 8.0 * u * np.abs(y) + 2.0 * u * u),
    "tanh": Function(np.tanh, lambda x, y: 1.0 - y * y, _flushed(16.0)),
    "sigmoid": Function(_sigmoid, lambda x, y: y * (1.0 - y), _mixed(0.0, 4.0)),
    "erf": Function(_erf, lambda x, y: 1.1283791670955126 * np.exp(-x * x), _mixed(0.0, 12.0)),
    "sqrt": Function(np.sqrt, lambda x, y: 0.5 / y, _mixed(3.0, 0.0)),
    "sin": Function(np.sin, lambda x, y: np.cos(x), _sine),
    "cos": Function(np.cos, lambda x, y: np.sin(x), _circular),
    "tan": Function(np.tan, lambda x, y: 1.0 + y * y, _tangent),
    "asin": Function(np.arcsin, lambda x, y: 1.0 / np.sqrt(1.0 - x * x), _mixed(12.0, 0.0)),
    "acos": Function(np.arccos, lambda x, y: 1.0 / np.sqrt(1.0 - x * x), _mixed(8.0, 8.0)),
    "atan": Function(np.arctan, lambda x, y: 1.0 / (1.0 + x * x), _mixed(8.0, 0.0)),
    "sinh": Function(np.sinh, lambda x, y: np.sqrt(1.0 + y * y), _mixed(8.0, 8.0), EXPONENTIALS),
    "cosh": Function(np.cosh, lambda x, y: np.abs(y), _mixed(8.0, 0.0), EXPONENTIALS),
    "asinh": Function(np.arcsinh, lambda x, y: 1.0 / np.sqrt(1.0 + x * x), _mixed(8.0, 4.0), SQUARES),
    "acosh": Function(np.arccosh, lambda x, y: 1.0 / np.sqrt(x * x - 1.0), _acosh, SQUARES),
    "atanh": Function(np.arctanh, lambda x, y: 1.0 / (1.0 - x * x), _mixed(8.0, 4.0)),
}


BY_EXP = 4.0


def function(name: str) -> Callable[..., Real]:
    row = FUNCTIONS[name]

    def exact(x: Real, policy: Policy, by_exp: bool = False) -> Real:
        """`by_exp`: it may be computed as (1 - exp(-2x)) / (1 + exp(-2x)), which has no relative accuracy near 0."""
        absolute = BY_EXP if by_exp else 0.0
        made = r.function(x, row.fn, row.slope, lambda y, u: row.limit(x.value, y, u) + absolute * u)
        if row.reach is None:
            return made
        beyond = np.abs(x.value) > row.reach[x.dtype == "float64"]
        undecided = beyond & np.isfinite(x.value)
        return replace(made, hazard=made.hazard | undecided) if undecided.any() else made

    return exact


def power(a: Real, b: Real, policy: Policy) -> Real:
    """a ^ b: 8 u (1 + |b ln a|) |y| covers exp(b log a) with both functions at their own limits (N5).

    What IEEE 754 says about 0^0, inf^0, 1^NaN and (-1)^inf those formulas do not give: undecided, as is
    the sign of (-0)^b for b < 0, and an integer power that is negative or leaves 53 bits.
    """
    if not dt.is_float(a.dtype):
        with np.errstate(all="ignore"):
            size = np.abs(np.power(a.value.astype(np.float64), b.value.astype(np.float64)))
            undecided = uncertain(a, b) | (b.value < 0) | (size >= min(2.0**53, dt.limits(a.dtype)[1]))
            value = np.power(a.value, np.where(b.value < 0, 0, b.value).astype(a.value.dtype))
        return Real(value, a.dtype, hazard=undecided)
    unit = dt.UNIT[r.computes_in(a.dtype)]
    with np.errstate(all="ignore"):
        y = np.power(a.value, b.value)
        size = np.abs(a.value)
        turns = np.nan_to_num(np.abs(b.value * np.log(size)), posinf=0.0)
        relative = 8.0 * unit * (1.0 + turns)
        near, there = r.radius(a), r.radius(b)
        relative = relative + np.where(near == 0, 0.0, 1.01 * np.abs(b.value) * near / size)
        relative = relative + np.where(there == 0, 0.0, 1.01 * np.abs(np.log(size)) * there)
        flushed = np.where(np.abs(y) < _normal(unit), np.abs(y), 0.0)
        err = np.abs(y) * relative + flushed + dt.TINY[r.computes_in(a.dtype)]
        # Next to overflow of float64 the reference is no better than what it judges.
        lost = ~np.isfinite(err) & np.isfinite(y)
        err = np.where(np.isfinite(err), err, 0.0)
        if a.dtype != r.computes_in(a.dtype):
            err = r.narrowed(err, np.where(np.isfinite(y), y, 0.0), a.dtype)
        odd = ((size == 0) | ~np.isfinite(size)) & (b.value == 0) | (a.value == 1) & ~np.isfinite(b.value)
        odd = odd | (a.value == -1) & ~np.isfinite(b.value) | (a.value == 0) & np.signbit(a.value) & (b.value < 0)
    return Real(y, a.dtype, None, 0, err, 0.0, r.hazard_of(a, b, also=odd | lost), floor=a.floor)
