"""Numbers with a proof: a value, how far an honest kernel may be from it, and when it may not be at all.

A float tensor is carried as float64 `value` with a running error model (docs/numerics.md N1): every honest
evaluation order of the same expression lies within

    radius = g(k) * mag + err

where `mag` >= |value| is the sum of the magnitudes that were added up, `k` the number of roundings on the
longest path, g(k) = min(k u / (1 - k u), 4 sqrt(k) u), and `err` what functions and inherited sets add.
Where all inputs are multiples of a power of two `grid` and mag <= 2^24 grid (N3), every float32 order is
exact and the radius is 0: that is what makes ties and integer-valued data a test of single bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from . import dtypes as dt
from .types import Array

Mask = Array | bool


@dataclass(frozen=True)
class Real:
    """A tensor of exact numbers with what an honest kernel may make of it.

    Floats: `value` float64 (longdouble for float64 tensors), see the module's docstring. Integers and
    bool: `value` in the tensor's own type, exact; `lo`, `hi` int64 where a rounding left a choice.
    `members` the enumerated admissible values of an element-wise conversion. `grid` may hold one power
    of two per element. `nan_free`: whether a NaN here survives is not specified. `hazard` elements whose
    result the specification does not decide (N6). `ieee` one IEEE operation on exact inputs: its
    rounding is specified. `real`, `zero_point` what a quantized value was before rounding.
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


def grid_of(value: Array) -> float:
    """The largest power of two that divides every element; 0 where there is none worth having.

    Source: N3. Zero has every grid; infinities and NaN have none.
    """
    finite = np.asarray(value, np.float64).ravel()
    finite = finite[finite != 0]
    if finite.size == 0:
        return 1.0
    if not np.isfinite(finite).all():
        return 0.0
    mantissa, exponent = np.frexp(finite)
    bits = np.abs(mantissa * 2.0**53).astype(np.int64)
    trailing = np.log2((bits & -bits).astype(np.float64)).astype(np.int64)
    low = int((exponent - 53 + trailing).min())
    # An order of evaluation may also form products and reciprocals: stay well inside the normal range.
    return float(2.0**low) if -100 < low < 100 else 0.0


def leaf(array: Array, dtype: str) -> Real:
    """An input: exact by definition."""
    if not dt.is_float(dtype):
        return Real(np.asarray(array), dtype)
    value = np.asarray(array).astype(wide(dtype))
    return Real(value, dtype, grid=grid_of(value))


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
    """The type in which honest kernels accumulate: 16-bit floats in float32 (policy `acc`)."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def orders_agree(x: Real) -> Array:
    """Elements for which every evaluation order is exact (N3)."""
    unit = dt.UNIT[computes_in(x.dtype)]
    if not np.any(x.grid) or not (np.ndim(x.err) == 0 and x.err == 0.0):
        return np.zeros(x.shape, bool)
    return np.asarray(x.magnitude <= x.grid / unit)


def radius(x: Real) -> Array:
    """Largest |y - value| of an honest evaluation before the final rounding to a narrower type."""
    acc = computes_in(x.dtype)
    unit = dt.UNIT[acc]
    if x.k == 0:
        return np.broadcast_to(np.asarray(x.err, np.float64), x.shape)
    bound = g(x.k, unit) * x.magnitude + x.err + x.k * dt.TINY[acc]
    if x.dtype == "float64":
        bound = 2.0 * bound  # the reference's own longdouble or float64 sums err as much
    return np.where(orders_agree(x), 0.0, bound).astype(np.float64)


def _hazard(*reals: Real, also: Mask = False) -> Mask:
    mask: Mask = also
    for r in reals:
        if not (isinstance(r.hazard, bool) and not r.hazard):
            mask = mask | r.hazard
    return mask


def _range_hazard(mag: Array, dtype: str, k: int) -> Mask:
    """A partial sum may overflow although the total does not: undecided (N6)."""
    if k < 2:
        return False
    mask = (mag > dt.MAX[computes_in(dtype)]) & np.isfinite(mag)
    return mask if mask.any() else False


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
    hazard = _hazard(a, b, also=_range_hazard(mag, a.dtype, k))
    return Real(value, a.dtype, mag, k, _err_sum(a.err, b.err), grid, hazard, ieee=_both_exact(a, b))


def mul(a: Real, b: Real) -> Real:
    """a * b, one rounding; relative errors add up."""
    with np.errstate(all="ignore"):
        value = a.value * b.value
        mag = a.magnitude * b.magnitude
        err = _err_sum(_cross(a.err, b.magnitude), _cross(b.err, a.magnitude), _cross(a.err, b.err))
    k = a.k + b.k + 1
    hazard = _hazard(a, b, also=_product_hazard(value, mag, a, b))
    return Real(value, a.dtype, mag, k, err, own_grid(a) * own_grid(b), hazard, ieee=_both_exact(a, b))


def own_grid(x: Real) -> Array | float:
    """Per element where everything is a power of two (scales per channel), else the tensor's."""
    return np.abs(x.value) if np.any(x.grid) and x.exact and _all_powers(x.value) else x.grid


def _cross(err: Array | float, other: Array | float) -> Array | float:
    if np.ndim(err) == 0 and err == 0.0:
        return 0.0
    with np.errstate(all="ignore"):
        return np.where(np.asarray(err) == 0, 0.0, err * np.asarray(other))


def _product_hazard(value: Array, mag: Array, a: Real, b: Real) -> Mask:
    """A product of already rounded factors outside the normal range loses relative accuracy (N6)."""
    if _both_exact(a, b):
        return False
    acc = computes_in(a.dtype)
    small = (np.abs(value) < dt.NORMAL[acc]) & (a.value != 0) & (b.value != 0)
    return (small & (a.k + b.k > 1)) | _range_hazard(mag, a.dtype, 2)


def div(a: Real, b: Real, ulp: float = 0.5) -> Real:
    """a / b, one rounding of `ulp` (0.5 is IEEE; WGSL allows 2.5)."""
    with np.errstate(all="ignore"):
        value = a.value / b.value
        mag = a.magnitude / np.abs(b.value)
        rel_b = np.where(b.value == 0, 0.0, np.asarray(b.err) / np.abs(b.value))
        err = _err_sum(np.asarray(a.err) / np.abs(b.value), mag * rel_b * 1.01)
        err = np.where(np.isfinite(err), err, 0.0)
    grid = own_grid(a) / np.abs(b.value) if np.any(b.grid) and _all_powers(b.value) and orders_agree(b).all() else 0.0
    k = a.k + b.k + 1 + round(2 * ulp - 1)
    hazard = _hazard(a, b, also=_product_hazard(value, mag, a, b))
    return Real(value, a.dtype, mag, k, err if np.any(err) else 0.0, grid, hazard, ieee=_both_exact(a, b) and ulp == 0.5)


def _all_powers(value: Array) -> bool:
    mantissa, _ = np.frexp(np.asarray(value, np.float64))
    return bool((np.abs(mantissa) == 0.5).all())


def dot(a: Real, b: Real) -> Real:
    """sum_k A[m,k] B[k,n]: K roundings on sum_k |A||B| (N1), whatever the order and with or without FMA."""
    with np.errstate(all="ignore"):
        value = np.matmul(a.value, b.value)
        mag = np.matmul(a.magnitude, b.magnitude)
        err = _err_sum(_dot_err(a.err, a.shape, b.magnitude), _dot_err_right(a.magnitude, b.err, b.shape))
    terms = a.shape[-1]
    k = a.k + b.k + terms
    hazard = _spread(a, b, value.shape, also=_range_hazard(mag, a.dtype, k))
    return Real(value, a.dtype, mag, k, err, _least(a.grid) * _least(b.grid), hazard)


def _least(grid: Array | float) -> float:
    return float(np.min(grid)) if np.size(grid) else 1.0


def _dot_err(err: Array | float, shape: tuple[int, ...], other: Array) -> Array | float:
    return 0.0 if np.ndim(err) == 0 and err == 0.0 else np.matmul(np.broadcast_to(err, shape), other)


def _dot_err_right(other: Array, err: Array | float, shape: tuple[int, ...]) -> Array | float:
    return 0.0 if np.ndim(err) == 0 and err == 0.0 else np.matmul(other, np.broadcast_to(err, shape))


def _spread(a: Real, b: Real, shape: tuple[int, ...], also: Mask = False) -> Mask:
    """An undecided element of a factor makes its whole row or column undecided."""
    mask = also
    if np.any(a.hazard):
        mask = mask | np.broadcast_to(np.broadcast_to(a.hazard, a.shape).any(-1)[..., None], shape)
    if np.any(b.hazard):
        mask = mask | np.broadcast_to(np.broadcast_to(b.hazard, b.shape).any(-2)[..., None, :], shape)
    return mask


def total(x: Real) -> Real:
    """sum over the last axis: n-1 roundings on sum |x| (N1)."""
    with np.errstate(all="ignore"):
        value = x.value.sum(-1)
        mag = x.magnitude.sum(-1)
    err = 0.0 if np.ndim(x.err) == 0 and x.err == 0.0 else np.broadcast_to(x.err, x.shape).sum(-1)
    k = x.k + max(x.shape[-1] - 1, 0)
    hazard: Mask = np.broadcast_to(x.hazard, x.shape).any(-1) if np.any(x.hazard) else False
    return Real(value, x.dtype, mag, k, err, _least(x.grid), hazard | _range_hazard(mag, x.dtype, k))


def function(x: Real, fn: Callable[[Array], Array], slope: Callable[[Array, Array], Array], limit: Callable[[Array, float], Array]) -> Real:
    """y = fn(x): |slope| times the inherited radius plus the function's own limit (N5).

    `slope(x, y)` bounds |fn'| near x; `limit(y, unit)` is the accuracy that honest libraries reach.
    """
    with np.errstate(all="ignore"):
        y = fn(x.value)
        inherited = radius(x)
        # np.where first: 0 * inf would turn a clean element into NaN.
        carried = np.where(inherited == 0, 0.0, inherited * np.abs(slope(x.value, y)) * 1.01)
        acc = computes_in(x.dtype)
        err = carried + limit(y, dt.UNIT[acc]) + dt.TINY[acc]
        if x.dtype == "float64":
            err = err + np.abs(y) * 2.0**-50  # libm in the reference itself
    err = np.where(np.isfinite(err), err, 0.0)
    return Real(y, x.dtype, None, 0, err, 0.0, x.hazard)


def elementwise(x: Real, fn: Callable[[Array], Array]) -> Real:
    """Apply an exact map that keeps order within [value-radius, value+radius] (Relu, Neg, Abs)."""
    return replace(x, value=fn(x.value), mag=x.magnitude, ieee=False, members=(), nan_free=False)


def move(x: Real, fn: Callable[[Array], Array]) -> Real:
    """Apply the same movement to everything that a Real carries."""

    def maybe(part: Array | float | bool | None) -> Array | float | bool | None:
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
    )
