"""Numbers with a proof: a value, how far an honest kernel may be from it, and when it may not be at all.

A float tensor is carried as float64 `value` with a running error model (docs/numerics.md N1): every honest
evaluation order of the same expression lies within

    radius = g(k) * mag + err

where `mag` >= |value| is the sum of the magnitudes that were added up, `k` the number of roundings on the
longest path, g(k) = min(k u / (1 - k u), 4 sqrt(k) u), and `err` what functions, underflow, terms that vanish
beside larger ones and inherited sets add. Data of few distinct values make roundings repeat: they get
k u / (1 - k u) alone.
Where all inputs are multiples of a power of two `grid` and mag <= 2^24 grid (N3), every float32 order is
exact and the radius is 0: that is what makes ties and integer-valued data a test of single bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import dtypes as dt
from . import summation
from .grids import few_values as few_values
from .grids import grid_of as grid_of
from .types import Array

Mask = Array | np.bool | bool
Part = Array | np.bool | float | bool | None


@dataclass(frozen=True)
class Real:
    """A tensor of exact numbers with what an honest kernel may make of it.

    Floats: `value` float64 (longdouble for float64 tensors), see the module's docstring. Integers and
    bool: `value` in the tensor's own type, exact; `lo`, `hi` int64 where a rounding left a choice.
    `members` the enumerated admissible values of an element-wise conversion. `grid` may hold one power
    of two per element. `nan_free`: whether a NaN here survives is not specified. `hazard` elements whose
    result the specification does not decide (N6). `ieee` one IEEE operation on exact inputs: its
    rounding is specified. `real`, `zero_point` what a quantized value was before rounding. `structured`
    few distinct values, so that roundings are not random. `floor` the absolute error of one underflow.
    """

    value: Array
    dtype: str
    mag: Array | None = None
    k: int = 0
    err: Array | float = 0.0
    grid: Array | float = 0.0
    hazard: Mask = False
    ieee: bool = False
    lo: Array | None = None
    hi: Array | None = None
    members: tuple[Array, ...] = ()
    real: Array | None = None
    zero_point: Array | None = None
    nan_free: bool = False
    structured: bool = False
    floor: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def magnitude(self) -> Array:
        return np.abs(self.value) if self.mag is None else self.mag

    @property
    def exact(self) -> bool:
        """Nothing was rounded yet and nothing is uncertain."""
        return self.k == 0 and np.ndim(self.err) == 0 and self.err == 0.0 and self.lo is None


def wide(dtype: str) -> type:
    """The type in which a float tensor is evaluated: float64 is judged in longdouble."""
    return np.longdouble if dtype == "float64" else np.float64


def leaf(array: Array, dtype: str, ftz: bool = False) -> Real:
    """An input: exact by definition."""
    if not dt.is_float(dtype):
        return Real(np.asarray(array), dtype)
    value: Array = np.asarray(array).astype(wide(dtype))
    floor = (dt.NORMAL if ftz else dt.TINY)[computes_in(dtype)]
    return Real(value, dtype, grid=grid_of(value), structured=few_values(value), floor=floor)


def traits(*reals: Real) -> dict[str, Any]:
    """What a sum or a quotient inherits from its operands."""
    return {
        "structured": any(x.structured for x in reals),
        "floor": max((x.floor for x in reals), default=0.0),
        "nan_free": any(x.nan_free for x in reals),
    }


def product_traits(a: Real, b: Real) -> dict[str, Any]:
    """Products of one random factor have random roundings."""
    return {**traits(a, b), "structured": a.structured and b.structured}


def gamma(k: float, unit: float) -> float:
    """gamma_k = k u / (1 - k u), the proven bound for any order of k roundings."""
    return k * unit / (1.0 - k * unit) if k * unit < 0.5 else float("inf")


def g(k: float, unit: float) -> float:
    """min(gamma_k, 4 sqrt(k) u); gamma_k beyond 2^16 terms.

    Source: N1, Higham and Mary's probabilistic bound with the constant that NUMERICS.md measured.
    """
    if k <= 0:
        return 0.0
    return gamma(k, unit) if k > 2**16 else min(gamma(k, unit), 4.0 * np.sqrt(k) * unit)


def computes_in(dtype: str) -> str:
    """The type in which honest kernels accumulate: narrower floats in float32 (policy `acc`)."""
    return "float32" if dtype in ("float16", "bfloat16", *dt.FLOAT8) else dtype


def orders_agree(x: Real) -> Array:
    """Elements for which every evaluation order is exact (N3)."""
    acc = computes_in(x.dtype)
    if not np.any(x.grid):
        return np.zeros(x.shape, bool)
    with np.errstate(invalid="ignore"):
        fits = (x.magnitude <= x.grid / dt.UNIT[acc]) & (np.asarray(x.grid) >= max(x.floor, dt.TINY[acc]))
        return np.asarray(fits & (np.asarray(x.err) == 0.0))


def radius(x: Real) -> Array:
    """Largest |y - value| of an honest evaluation before the final rounding to a narrower type."""
    acc = computes_in(x.dtype)
    unit = dt.UNIT[acc]
    if x.k == 0:
        return np.broadcast_to(np.asarray(x.err, np.float64), x.shape)
    growth = gamma(x.k, unit) if x.structured else g(x.k, unit)
    bound = growth * x.magnitude + x.err + x.k * max(x.floor, dt.TINY[acc])
    if x.dtype == "float64":
        bound = 2.0 * bound  # the reference's own longdouble or float64 sums err as much
    return np.where(orders_agree(x), 0.0, bound).astype(np.float64)


def hazard_of(*reals: Real, also: Mask = False) -> Mask:
    """Undecided elements of what is computed from these: inherited, or of an operand that overflowed (N6)."""
    mask: Mask = also
    for r in reals:
        if not (isinstance(r.hazard, bool) and not r.hazard):
            mask = mask | r.hazard
        if r.k and r.dtype in dt.MAX:
            beyond = (np.abs(r.value) > dt.MAX[computes_in(r.dtype)]) & np.isfinite(r.value)
            mask = mask | beyond if np.any(beyond) else mask
    return mask


def underflow(value: Array, floor: float, dtype: str) -> Array | float:
    """The absolute error of a product or quotient below the normal range; 0 where there is none."""
    normal = dt.NORMAL[computes_in(dtype)]
    small = (np.abs(value) < normal) & (value != 0)
    return np.where(small, max(floor, dt.TINY[computes_in(dtype)]), 0.0) if np.any(small) else 0.0


def _range_hazard(mag: Array, dtype: str, k: int) -> Mask:
    """A partial sum may overflow although the total does not: undecided (N6)."""
    if k < 2:
        return False
    mask = (mag > dt.MAX[computes_in(dtype)]) & np.isfinite(mag)
    return mask if np.any(mask) else False


def _finite_only(x: Array) -> Array:
    """|x| without its infinities and NaN: the other terms of a sum may overflow beside them."""
    return np.nan_to_num(np.abs(x), nan=0.0, posinf=0.0)


def _err_sum(*errs: Array | float) -> Array | float:
    return 0.0 if all(np.ndim(e) == 0 and e == 0.0 for e in errs) else sum(errs)


def _both_exact(a: Real, b: Real) -> bool:
    return a.exact and b.exact


def add(a: Real, b: Real, sign: int = 1) -> Real:
    """a + sign * b, one rounding; magnitudes add up, so that any order of a longer sum is covered."""
    with np.errstate(all="ignore"):
        value = a.value + sign * b.value
        mag = a.magnitude + b.magnitude
    k = max(a.k, b.k) + 1
    grid = np.minimum(a.grid, b.grid)
    hazard = hazard_of(a, b, also=_range_hazard(mag, a.dtype, k))
    return Real(value, a.dtype, mag, k, _err_sum(a.err, b.err), grid, hazard, ieee=_both_exact(a, b), **traits(a, b))


def mul(a: Real, b: Real) -> Real:
    """a * b, one rounding; relative errors add up."""
    with np.errstate(all="ignore"):
        value = a.value * b.value
        mag = a.magnitude * b.magnitude
        err = _err_sum(_cross(a.err, _largest(b)), _cross(b.err, _largest(a)), _cross(a.err, b.err))
        err = _err_sum(err, underflow(value, max(a.floor, b.floor), a.dtype))
    k = a.k + b.k + 1
    hazard = hazard_of(a, b, also=_range_hazard(mag, a.dtype, k))
    grid = own_grid(a) * own_grid(b)
    return Real(value, a.dtype, mag, k, err, grid, hazard, ieee=_both_exact(a, b), **product_traits(a, b))


def own_grid(x: Real) -> Array | float:
    """Per element where everything is a power of two (scales per channel), else the tensor's."""
    return np.abs(x.value) if np.any(x.grid) and x.exact and _all_powers(x.value) else x.grid


def _largest(x: Real) -> Array:
    """The largest that x may be, whatever it was added up from: one factor multiplies every term of it."""
    return x.magnitude if x.mag is None else np.abs(x.value) + radius(x)


def _cross(err: Array | float, other: Array | float) -> Array | float:
    if np.ndim(err) == 0 and err == 0.0:
        return 0.0
    with np.errstate(all="ignore"):
        return np.where(np.asarray(err) == 0, 0.0, err * np.asarray(other))


def div(a: Real, b: Real, ulp: float = 0.5, recip: bool = False) -> Real:
    """a / b, one rounding of `ulp` (0.5 is IEEE; WGSL allows 2.5); `recip` admits a * (1 / b) too."""
    with np.errstate(all="ignore"):
        value = a.value / b.value
        size = np.abs(b.value)
        # What the divisor may be in the worst case: a first-order bound fails where it may come near 0.
        worst = 1.0 if b.exact else size / np.maximum(size - radius(b), 0.0)
        ratio = np.where(b.magnitude == size, 1.0, b.magnitude / size)  # of an infinity too
        mag = a.magnitude * ratio / size * worst
        err = _err_sum(np.asarray(a.err) / size * worst, _cross(b.err, _largest(a) / size / size * worst))
        err = _err_sum(err, underflow(value, max(a.floor, b.floor), a.dtype))
    lost = ~np.isfinite(err) & np.isfinite(value) if np.any(err) else False
    if ulp > 0.5 or not np.any(b.grid) or not _all_powers(b.value) or not orders_agree(b).all():
        grid: Array | float = 0.0
    else:
        grid = own_grid(a) / size
    k = a.k + b.k + round(2 * ulp) + recip
    hazard = hazard_of(a, b, also=lost | _range_hazard(mag, a.dtype, k))
    err = np.where(np.isfinite(err), err, 0.0) if np.any(err) else 0.0
    single = _both_exact(a, b) and ulp == 0.5 and not recip
    return Real(value, a.dtype, mag, k, err, grid, hazard, ieee=single, **traits(a, b))


def _all_powers(value: Array) -> bool:
    mantissa, _ = np.frexp(np.asarray(value, np.float64))
    return bool((np.abs(mantissa) == 0.5).all())


def dot(a: Real, b: Real) -> Real:
    """sum_k A[m,k] B[k,n]: K roundings on sum_k |A||B| (N1), whatever the order and with or without FMA."""
    left, right = a.magnitude, b.magnitude  # once: a large operand's is made anew each time
    with np.errstate(all="ignore"):
        value = np.matmul(a.value, b.value)
        mag = np.matmul(left, right)
        err = _err_sum(_dot_err(a.err, a.shape, right), _dot_err_right(left, b.err, b.shape))
    unit = dt.UNIT[computes_in(a.dtype)]
    err = _err_sum(err, summation.lost_products(left, right, mag, unit))
    k = a.k + b.k + a.shape[-1]
    summed = mag if np.isfinite(mag).all() else np.matmul(_finite_only(left), _finite_only(right))
    hazard = spread(a, b, value.shape, also=_range_hazard(summed, a.dtype, k))
    inherited = product_traits(a, b)
    factors = sorted(((left, -1), (right, -2)), key=lambda factor: factor[0].size)  # sorting is dear
    inherited["structured"] = inherited["structured"] or all(summation.tight(x, axis, unit) for x, axis in factors)
    return Real(value, a.dtype, mag, k, err, _least(a.grid) * _least(b.grid), hazard, **inherited)


def _least(grid: Array | float) -> float:
    return float(np.min(grid)) if np.size(grid) else 1.0


def _dot_err(err: Array | float, shape: tuple[int, ...], other: Array) -> Array | float:
    return 0.0 if np.ndim(err) == 0 and err == 0.0 else np.matmul(np.broadcast_to(err, shape), other)


def _dot_err_right(other: Array, err: Array | float, shape: tuple[int, ...]) -> Array | float:
    return 0.0 if np.ndim(err) == 0 and err == 0.0 else np.matmul(other, np.broadcast_to(err, shape))


def spread(a: Real, b: Real, shape: tuple[int, ...], also: Mask = False) -> Mask:
    """An undecided element of a factor makes its whole row or column undecided."""
    mask = also
    if np.any(a.hazard):
        mask = mask | np.broadcast_to(np.expand_dims(np.broadcast_to(a.hazard, a.shape).any(-1), -1), shape)
    if np.any(b.hazard):
        mask = mask | np.broadcast_to(np.expand_dims(np.broadcast_to(b.hazard, b.shape).any(-2), -2), shape)
    return mask


def total(x: Real) -> Real:
    """sum over the last axis: n-1 roundings on sum |x| (N1)."""
    with np.errstate(all="ignore"):
        value = x.value.sum(-1)
        mag = x.magnitude.sum(-1)
    err = 0.0 if np.ndim(x.err) == 0 and x.err == 0.0 else np.broadcast_to(x.err, x.shape).sum(-1)
    unit = dt.UNIT[computes_in(x.dtype)]
    err = _err_sum(err, summation.lost(x.magnitude, mag, unit), summation.lean(x.value, mag, unit))
    k = x.k + max(x.shape[-1] - 1, 0)
    hazard: Mask = np.broadcast_to(x.hazard, x.shape).any(-1) if np.any(x.hazard) else False
    also = _range_hazard(mag if np.isfinite(mag).all() else _finite_only(x.magnitude).sum(-1), x.dtype, k)
    return Real(value, x.dtype, mag, k, err, _least(x.grid), hazard | also, **traits(x))


def function(
    x: Real,
    fn: Callable[[Array], Array],
    slope: Callable[[Array, Array], Array],
    limit: Callable[[Array, float], Array],
) -> Real:
    """y = fn(x): |slope| times the inherited radius plus the function's own limit (N5).

    `slope(x, y)` bounds |fn'| near x; `limit(y, unit)` is the accuracy that honest libraries reach.
    """
    acc = computes_in(x.dtype)
    unit, tiny = dt.UNIT[acc], max(x.floor, dt.TINY[acc])
    with np.errstate(all="ignore"):
        y = fn(x.value)
        # One IEEE operation is off by u |value| however large what it cancelled.
        inherited = unit * np.abs(x.value) + tiny if x.ieee else radius(x)
        inherited = np.where(np.isinf(x.value), 0.0, inherited)  # an infinity of exact arithmetic is no rounding
        # np.where first: 0 * inf would turn a clean element into NaN.
        carried = np.where(inherited == 0, 0.0, inherited * np.abs(slope(x.value, y)) * 1.01)
        carried = np.where(
            inherited > 0.01 * np.abs(x.value), np.fmax(carried, _at_ends(x.value, inherited, fn)), carried
        )
        err = carried + limit(y, unit) + tiny
        if x.dtype == "float64":
            err = err + np.abs(y) * 2.0**-50  # libm in the reference itself
        if x.dtype != acc:
            err = narrowed(err, y, x.dtype)
    # An interval that leaves the domain on one side only: NaN or not, nobody can say.
    lost = (~np.isfinite(err) & np.isfinite(y)) | (np.isinf(carried) & np.isnan(y))
    err = np.where(np.isfinite(err), err, 0.0)
    return Real(y, x.dtype, None, 0, err, 0.0, hazard_of(x, also=lost if np.any(lost) else False), floor=x.floor)


def _at_ends(value: Array, reach: Array, fn: Callable[[Array], Array]) -> Array:
    """How far fn moves at the ends of a wide interval, where one slope says little; infinite where one end is NaN."""
    low, middle, high = fn(value - reach), fn(value), fn(value + reach)
    moved = np.maximum(np.abs(low - middle), np.abs(high - middle))
    moved = np.where(np.isnan(low) != np.isnan(high), np.inf, moved)
    return np.asarray(np.where((reach == 0) | (np.isnan(low) & np.isnan(high)), 0.0, moved))


def narrowed(err: Array, value: Array, dtype: str) -> Array:
    """The error after a last rounding to a 16-bit type."""
    return err + dt.UNIT[dtype] * (np.abs(value) + err) + dt.TINY[dtype]


def settle(x: Real) -> Real:
    """x as a tensor that was rounded and stored: what is computed from it takes its error, not its terms (N1)."""
    return x if x.k == 0 else replace(x, mag=None, k=0, err=radius(x), ieee=False)


def elementwise(x: Real, fn: Callable[[Array], Array]) -> Real:
    """Apply an exact map that keeps order within [value-radius, value+radius] (Relu, Neg, Abs)."""
    return replace(x, value=fn(x.value), mag=x.magnitude, ieee=False, members=(), nan_free=False, real=None)


def move(x: Real, fn: Callable[[Array], Array]) -> Real:
    """Apply the same movement to everything that a Real carries."""

    def maybe(part: Part) -> Part:
        return fn(np.broadcast_to(part, x.shape)) if isinstance(part, np.ndarray) else part

    return Real(
        fn(x.value),
        x.dtype,
        maybe(x.mag),  # type: ignore[arg-type]
        x.k,
        maybe(x.err),  # type: ignore[arg-type]
        maybe(x.grid),  # type: ignore[arg-type]
        maybe(x.hazard),  # type: ignore[arg-type]
        x.ieee,
        maybe(x.lo),  # type: ignore[arg-type]
        maybe(x.hi),  # type: ignore[arg-type]
        tuple(fn(m) for m in x.members),
        maybe(x.real),  # type: ignore[arg-type]
        maybe(x.zero_point),  # type: ignore[arg-type]
        x.nan_free,
        x.structured,
        x.floor,
    )


def once(x: Real) -> Real:
    """x without what it repeats by stride 0 (a fill, a bias), each such axis of size 1."""
    parts = [p for p in (x.value, x.mag, x.err, x.grid, x.hazard, x.lo, x.hi, *x.members, x.real, x.zero_point)
             if isinstance(p, np.ndarray)]  # fmt: skip
    strides = [np.broadcast_to(p, x.shape).strides for p in parts]
    repeats = [size > 1 and not any(s[axis] for s in strides) for axis, size in enumerate(x.shape)]
    if not any(repeats):
        return x
    return move(x, lambda part: part[tuple(slice(0, 1) if r else slice(None) for r in repeats)])


def uncertain(x: Real, other: Array) -> Real:
    """A constant that kernels compute themselves: within `other` of a float, or the integer `other` instead."""
    if dt.is_float(x.dtype):
        return replace(x, err=other)
    return replace(x, members=(x.value, other), lo=np.minimum(x.value, other), hi=np.maximum(x.value, other))


def either(options: Sequence[Real]) -> Real:
    """Any of several tensors of one shape, chosen element by element: a set where they are exact, else a radius."""
    first = options[0]
    values = [part for x in options for part in (x.members or (x.value,))]
    listed = all((x.members or x.exact) for x in options)
    hazard = hazard_of(*options)
    if first.dtype == "bool":
        return replace(first, hazard=hazard | np.logical_or.reduce([v != first.value for v in values]))
    if not dt.is_float(first.dtype):
        lo = np.minimum.reduce([v.astype(np.int64) for v in (*values, *(x.lo for x in options if x.lo is not None))])
        hi = np.maximum.reduce([v.astype(np.int64) for v in (*values, *(x.hi for x in options if x.hi is not None))])
        return replace(first, lo=lo, hi=hi, members=tuple(values) if listed else (), hazard=hazard)
    with np.errstate(invalid="ignore"):
        gap = np.maximum.reduce([np.where(v == first.value, 0.0, np.abs(v - first.value)) for v in values])
    # A set of values can hold infinities, a radius cannot; NaN beside a number is left undecided.
    hazard = hazard | np.isnan(gap) | (False if listed else np.isinf(gap))
    err = np.maximum.reduce([np.broadcast_to(x.err, x.shape) for x in options]) + np.nan_to_num(
        gap, nan=0.0, posinf=0.0
    )
    mag = None if all(x.mag is None for x in options) else np.maximum.reduce([x.magnitude for x in options])
    return replace(first, mag=mag, err=err, members=tuple(values) if listed else (), hazard=hazard, ieee=False)
