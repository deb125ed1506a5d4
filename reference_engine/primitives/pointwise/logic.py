"""Comparisons, logic and bits: one answer, unless the operands themselves leave a choice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ... import dtypes as dt
from ... import real as r
from ...real import Mask, Real
from ...types import Array, Policy
from .arithmetic import high, low, uncertain


def _overlap(a: Real, b: Real) -> Mask:
    """Elements whose order depends on how the operands were rounded."""
    if not dt.is_float(a.dtype):
        if a.lo is None and b.lo is None:
            return False
        return (low(a) <= high(b)) & (low(b) <= high(a)) & ((low(a) != high(a)) | (low(b) != high(b)))
    if a.exact and b.exact:
        return False
    with np.errstate(invalid="ignore"):
        gap = r.radius(a) + r.radius(b)
        return (np.abs(a.value - b.value) <= gap) & (gap > 0)


def comparison(fn: Callable[[Array, Array], Array]) -> Callable[..., Real]:
    """fn(a, b) as bool; NaN compares false, or with `nan_free` to nothing certain (N7)."""

    def exact(a: Real, b: Real, policy: Policy, nan_free: bool = False) -> Real:
        undecided: Mask = r.hazard_of(a, b) | _overlap(a, b)
        if nan_free and dt.is_float(a.dtype):
            undecided = undecided | np.isnan(a.value) | np.isnan(b.value)
        with np.errstate(invalid="ignore"):
            return Real(np.asarray(fn(a.value, b.value)), "bool", hazard=undecided if np.any(undecided) else False)

    return exact


def bitwise(fn: Callable[..., Array]) -> Callable[..., Real]:
    """fn on each bit; bool has one."""

    def exact(*xs: Real, policy: Policy) -> Real:
        return Real(np.asarray(fn(*(x.value for x in xs))), xs[0].dtype, hazard=uncertain(*xs))

    return exact


def shift(fn: Callable[[Array, Array], Array], *, right: bool = False) -> Callable[..., Real]:
    """fn(a, b); a shift by a negative number or by the width of the type leaves the sign, or is undecided (N6)."""

    def exact(a: Real, b: Real, policy: Policy, decided: bool = False) -> Real:
        width = 8 * a.value.dtype.itemsize
        beyond = (b.value < 0) | (b.value >= width)
        value = fn(a.value, np.where(beyond, 0, b.value).astype(a.value.dtype))
        sign = np.where((a.value < 0) & right, -1, 0).astype(a.value.dtype)
        undecided = uncertain(a, b) | (beyond & (not decided))
        return Real(np.where(beyond, sign, value), a.dtype, hazard=undecided if np.any(undecided) else False)

    return exact
