"""Reduce, Scan and Sort: rows of the last axis become one value, running values, or an order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .. import dtypes as dt
from .. import real as r
from .. import summation
from ..errors import ShapeError
from ..real import Real
from ..types import Array, Policy, TensorSpec
from .definition import PrimitiveDef, require_dtype, require_shape

_PICKS: dict[str, tuple[str, ...]] = {"argmax": ("last",), "argmin": ("last",)}
REDUCE: dict[str, tuple[str, ...]] = {"sum": (), "prod": (), "max": (), "min": (), **_PICKS}


def infer_reduce(x: TensorSpec, fn: str = "", last: int = 0, **lenience: bool) -> TensorSpec:
    if not x.shape:
        raise ShapeError(f"Reduce.{fn}: x {x} has no axis to reduce")
    if fn not in _PICKS:
        return TensorSpec(x.shape[:-1], x.dtype)
    made = TensorSpec(x.shape[:-1], "int64")
    require_shape(x.shape[-1] > 0 or made.size == 0, f"Reduce.{fn}: x {x} has no element to pick")
    return made


def exact_reduce(
    x: Real,
    fn: str = "",
    policy: Policy | None = None,
    last: int = 0,
    tie_free: bool = False,
    nan_kept: bool = False,
    running: bool = False,
) -> Real:
    """y[*] = fn over n of x[*,n]

    Shapes: x [*,n] -> y [*]; n = 0 gives 0 for sum, 1 for prod and the type's own limit for max and min.
    Dtypes: same in and out, argmax and argmin int64; integer sums and products exact within the type;
        float sums and products n-1 roundings (N1). `last` picks the last of equal extremes, else the first;
        `tie_free` leaves equal ones undecided; `nan_kept`: what is computed from it is NaN for a row with NaN;
        `running`: the sum may be updated as a mean, so that no order is exact (N3 does not apply).
    Source: ONNX ReduceSum-13, ReduceProd-18, ReduceMax-20, ReduceMin-20, ArgMax-13. Whether max and min
        keep a NaN, and where one lies for argmax, is not specified (N7): such rows are left undecided.
    """
    if fn in _PICKS:
        return pick(x, fn, bool(last), tie_free)
    if fn == "sum":
        made = r.total(x) if dt.is_float(x.dtype) else integer_total(x)
        # A mean that is updated turns an infinity into inf - inf.
        return (
            replace(made, grid=0.0, hazard=made.hazard | np.isinf(made.value)) if running and x.shape[-1] > 1 else made
        )
    if fn == "prod":
        return product(x) if dt.is_float(x.dtype) else integer_product(x)
    picked = extreme(x, fn)
    return replace(picked, nan_free=x.nan_free) if nan_kept else picked


def _beyond(whole: Array, dtype: str) -> Array | bool:
    """Elements outside an integer type: ONNX does not say what such a sum or product is (N6)."""
    low, high = dt.limits(dtype)
    mask = (whole < low) | (whole > high)
    return mask if np.any(mask) else False


def integer_total(x: Real) -> Real:
    """Exact while it fits."""
    whole = x.value.sum(-1, dtype=np.longdouble)
    hazard = _any_row(x) | _beyond(whole, x.dtype)
    return Real(np.asarray(x.value.sum(-1, dtype=x.value.dtype)), x.dtype, hazard=hazard)


def integer_product(x: Real) -> Real:
    """Exact while it fits."""
    with np.errstate(all="ignore"):
        whole = x.value.astype(np.longdouble).prod(-1)
        value = np.asarray(x.value.prod(-1, dtype=x.value.dtype))
    return Real(value, x.dtype, hazard=_any_row(x) | _beyond(whole, x.dtype))


def _any_row(x: Real) -> Array | bool:
    """Rows that hold an undecided element."""
    return np.asarray(np.broadcast_to(x.hazard, x.shape).any(-1)) if np.any(x.hazard) else False


def product(x: Real) -> Real:
    """n numbers multiplied: n-1 roundings on the result's size, undecided where some order leaves the range (N6)."""
    n = x.shape[-1]
    with np.errstate(all="ignore"):
        value = x.value.prod(-1)
        own = r.radius(x)
        relative = np.log1p(np.where(own == 0, 0.0, own / np.abs(x.value))).sum(-1).astype(np.float64)
        err = np.where(relative == 0, 0.0, np.abs(value) * np.expm1(relative))
        grid = float(np.power(np.float64(r._least(x.grid)), n))
    hazard = _any_row(x) | _leaves_range(x, lambda part: part.sum(-1))
    lost = ~np.isfinite(err) & np.isfinite(value)
    known: Array | float = np.where(np.isfinite(err), err, 0.0) if np.any(err) else 0.0
    grid = grid if np.isfinite(grid) else 0.0
    return Real(value, x.dtype, None, max(n - 1, 0), known, grid, hazard | lost, **r.traits(x))


def _leaves_range(x: Real, add: Any) -> Array:
    """Where some order of the factors overflows or underflows on the way to a result that does not say so."""
    acc = r.computes_in(x.dtype)
    with np.errstate(all="ignore"):
        size = np.abs(x.value.astype(np.float64))
        bits = np.where(np.isfinite(size) & (size > 0), np.log2(size), 0.0)
        up, down = add(np.maximum(bits, 0.0)), add(np.minimum(bits, 0.0))
        whole = up + down
        zero = add((size == 0).astype(np.float64)) > 0
        infinite = add(np.isinf(size).astype(np.float64)) > 0
    top, bottom = np.log2(dt.MAX[acc]) - 1e-3, np.log2(dt.NORMAL[acc]) + 1e-3
    overflows = (up > top) & ((whole <= top + 2e-3) | zero) & ~infinite
    underflows = (down < bottom) & (~zero | infinite)
    return np.asarray(overflows | underflows)


def extreme(x: Real, fn: str) -> Real:
    """max or min over the last axis; its radius is the largest of those elements of the row that may be it."""
    pick_ = np.maximum if fn == "max" else np.minimum
    value = pick_.reduce(x.value, axis=-1, initial=identity(x, fn))
    if not dt.is_float(x.dtype):
        bounds = {} if x.lo is None or x.hi is None else {"lo": pick_.reduce(x.lo, -1), "hi": pick_.reduce(x.hi, -1)}
        return Real(value.astype(x.value.dtype), x.dtype, hazard=_any_row(x), **bounds)
    near = _contenders(x, fn)
    # An element that is infinite is so exactly: masked entries do not blur the row.
    mag = None if x.mag is None else np.where(np.isinf(x.value), np.abs(value)[..., None], x.mag)
    mag = None if mag is None else np.where(near, mag, 0.0).max(-1, initial=0.0)
    err = np.where(near, x.err, 0.0).max(-1, initial=0.0) if np.any(x.err) else 0.0
    grid = float(np.min(x.grid)) if np.size(x.grid) else 1.0
    return Real(value, x.dtype, mag, x.k, err, grid, _any_row(x), **{**r.traits(x), "nan_free": True})


def _contenders(x: Real, fn: str) -> Array:
    """Floats that may be the max or min in some honest evaluation: a mask of -1e9 is off by 64 and is none."""
    if x.k == 0 and not np.any(x.err):
        return np.ones(x.shape, bool)
    with np.errstate(all="ignore"):
        own = r.radius(x) + dt.UNIT[x.dtype] * np.abs(x.value)  # and stored in its own type
        own = np.where(np.isinf(x.value), 0.0, own)
        value = x.value if fn == "max" else -x.value
        least = (value - own).max(-1, keepdims=True, initial=-np.inf)
        return np.asarray(~(value + own < least))


def identity(x: Real, fn: str) -> Array | float | int:
    """The value of an empty max or min."""
    if dt.is_float(x.dtype):
        return -np.inf if fn == "max" else np.inf
    if x.dtype == "bool":
        return fn == "min"
    low, high = dt.limits(x.dtype)
    return x.value.dtype.type(low if fn == "max" else high)


def _ends(x: Real) -> tuple[Array, Array] | None:
    """Least and largest value of each element; None where every one is exact."""
    if not dt.is_float(x.dtype):
        return None if x.lo is None or x.hi is None else (x.lo, x.hi)
    own = np.where(np.isinf(x.value), 0.0, r.radius(x))  # an infinity of exact arithmetic is no rounding
    return (x.value - own, x.value + own) if np.any(own) else None


def _not_a_number(x: Real) -> Array:
    return np.isnan(x.value) if dt.is_float(x.dtype) else np.zeros(x.shape, bool)


def pick(x: Real, fn: str, last: bool, tie_free: bool = False) -> Real:
    """The first (or last) place of the extreme; undecided beside a NaN, or where rounding decides which one it is."""
    find = np.argmax if fn == "argmax" else np.argmin
    n = x.shape[-1]
    if not n:
        return Real(np.zeros(x.shape[:-1], np.int64), "int64")
    value = n - 1 - find(x.value[..., ::-1], -1) if last else find(x.value, -1)
    hazard = np.asarray(_any_row(x) | _not_a_number(x).any(-1))
    ends = _ends(x) or ((x.value, x.value) if tie_free else None)
    if ends is not None:
        low, high = ends if fn == "argmax" else (-ends[1], -ends[0])
        hazard = hazard | ((high >= low.max(-1, keepdims=True)).sum(-1) > 1)
    return Real(np.asarray(value, np.int64), "int64", hazard=hazard if np.any(hazard) else False)


SCAN: dict[str, tuple[str, ...]] = {"sum": (), "prod": ()}
SCANNED = ("float32", "float64", *dt.INTS)


def infer_scan(x: TensorSpec, fn: str = "") -> TensorSpec:
    require_shape(len(x.shape) > 0, f"Scan.{fn}: x {x} has no axis to run along")
    require_dtype(x, SCANNED, f"Scan.{fn}: x")
    return x


def exact_scan(x: Real, fn: str = "", policy: Policy | None = None) -> Real:
    """y[*,i] = fn over j <= i of x[*,j]

    Shapes: x, y [*,n].
    Dtypes: same in and out; integers exact within the type; element i of a float result has i roundings,
        whatever tree of partial results was used (N1).
    Source: ONNX CumSum-14, CumProd-26.
    """
    run = np.add.accumulate if fn == "sum" else np.multiply.accumulate
    if not dt.is_float(x.dtype):
        with np.errstate(all="ignore"):
            hazard = np.logical_or.accumulate(np.broadcast_to(x.hazard, x.shape), -1) if np.any(x.hazard) else False
            return Real(
                run(x.value, -1, dtype=x.value.dtype),
                x.dtype,
                hazard=hazard | _beyond(run(x.value.astype(np.longdouble), -1), x.dtype),
            )
    return _scan_float(x, fn, run)


def _scan_float(x: Real, fn: str, run: Any) -> Real:
    unit, tiny = dt.UNIT[x.dtype], max(x.floor, dt.TINY[x.dtype])
    steps = np.arange(x.shape[-1])
    growth = np.array([r.gamma(k, unit) if x.structured else r.g(k, unit) for k in steps.tolist()])
    own, least = r.radius(x), r._least(x.grid)
    with np.errstate(all="ignore"):
        value = run(x.value, -1)
        if fn == "sum":
            mag = run(np.abs(x.value), -1)
            err = run(own, -1) + _one_way_so_far(x.value, mag, unit)
            grid = np.full(x.shape, least)
            hazard = (mag > dt.MAX[x.dtype]) & np.isfinite(mag)
        else:
            mag = np.abs(value)
            relative = np.where(own == 0, 0.0, own / np.abs(x.value))
            err = mag * np.expm1(np.add.accumulate(np.log1p(relative), -1))
            grid = np.broadcast_to(np.power(np.float64(least), steps + 1), x.shape)
            hazard = _leaves_range(x, lambda part: np.add.accumulate(part, -1))
        agree = (mag <= grid / unit) & (grid >= tiny) & (err == 0) & np.isfinite(grid)
        err = np.where(agree, 0.0, (err + growth * mag + steps * tiny) * (2.0 if x.dtype == "float64" else 1.0))
    hazard = (
        hazard
        | np.logical_or.accumulate(np.broadcast_to(x.hazard, x.shape), -1)
        | (np.isfinite(value) & ~np.isfinite(err))
    )
    err = np.where(np.isfinite(err) & (steps > 0), err, np.where(steps > 0, 0.0, own)).astype(np.float64)
    kept = r._least(grid) if agree.all() else 0.0
    return Real(value, x.dtype, None, 0, err, kept, hazard, **r.traits(x))


def _one_way_so_far(terms: Array, mag: Array, unit: float) -> Array | float:
    """Of each element of a running sum, what terms may add that vanish or round alike (N1)."""
    size = np.abs(terms)
    if not terms.size:
        return 0.0
    if np.all(summation.lost(size, mag[..., -1], unit) == 0) and np.all(summation.lean(terms, mag[..., -1], unit) == 0):
        return 0.0
    lengths = _prefixes(terms.shape[-1])
    upto = [(terms[..., :n], size[..., :n], mag[..., n - 1]) for n in lengths]
    parts = [summation.lost(s, m, unit) + summation.lean(t, m, unit) for t, s, m in upto]
    found = np.stack([np.broadcast_to(part, mag.shape[:-1]) for part in parts], -1)
    found[..., DENSE:] = np.maximum.accumulate(found[..., DENSE:], -1)
    return found[..., np.searchsorted(lengths, np.arange(terms.shape[-1]) + 1)]


DENSE = 512  # prefixes looked at one by one


def _prefixes(n: int) -> list[int]:
    """Lengths 1, 2, 3 .. DENSE, then each a quarter longer: what is between them has the bound of the next one."""
    found = list(range(1, min(n, DENSE) + 1))
    while found[-1] < n:
        found.append(min(found[-1] * 5 // 4, n))
    return found


SORT: dict[str, tuple[str, ...]] = {"values": ("largest",), "order": ("largest",)}


def infer_sort(x: TensorSpec, fn: str = "", largest: int = 1, unordered: bool = False) -> TensorSpec:
    require_shape(len(x.shape) > 0, f"Sort.{fn}: x {x} has no axis to sort")
    return x if fn == "values" else TensorSpec(x.shape, "int64")


def sorting(x: Array, largest: bool) -> Array:
    """Indices that sort the last axis, equal elements in their old order, whichever way it goes."""
    if not largest:
        return np.argsort(x, -1, kind="stable")
    return x.shape[-1] - 1 - np.argsort(x[..., ::-1], -1, kind="stable")[..., ::-1]


def exact_sort(x: Real, fn: str = "", policy: Policy | None = None, largest: int = 1, unordered: bool = False) -> Real:
    """values: x[*,p(0)] >= x[*,p(1)] >= ... (<= where largest is 0); order: p itself, lower index first among equals

    Shapes: x [*,n] -> [*,n].
    Dtypes: values as x, order int64. `unordered`: any order may be returned, so that nothing is decided.
    Source: ONNX TopK-24. A NaN has no place in an order (N7): its row is undecided.
    """
    at = sorting(x.value, bool(largest))
    hazard = np.broadcast_to(_any_row(x) | _not_a_number(x).any(-1) | unordered, x.shape[:-1])[..., None] | np.zeros(
        x.shape, bool
    )
    value = np.take_along_axis(x.value, at, -1)
    ends = _ends(x)
    if fn == "order":
        if ends is not None:
            # Neighbours whose ranges meet may change places.
            reach = (ends[1] - ends[0]).max(-1, keepdims=True)
            near = np.abs(np.diff(value.astype(np.float64), axis=-1)) <= reach
            hazard[..., :-1] |= near
            hazard[..., 1:] |= near
        return Real(at.astype(np.int64), "int64", hazard=hazard)
    if ends is None:
        return Real(value, x.dtype, grid=r._least(x.grid), hazard=hazard, **r.traits(x))
    flip = slice(None, None, -1) if largest else slice(None)
    if not dt.is_float(x.dtype):
        return Real(
            value, x.dtype, hazard=hazard, lo=np.sort(ends[0], -1)[..., flip], hi=np.sort(ends[1], -1)[..., flip]
        )
    low, high = (np.sort(end, -1)[..., flip] for end in ends)
    with np.errstate(invalid="ignore"):
        err = np.where(np.isinf(value), 0.0, np.maximum(value - low, high - value))
    return Real(value, x.dtype, err=err, hazard=hazard, **r.traits(x))


PRIMITIVES = {
    "Reduce": PrimitiveDef(infer_reduce, exact_reduce, REDUCE),
    "Scan": PrimitiveDef(infer_scan, exact_scan, SCAN),
    "Sort": PrimitiveDef(infer_sort, exact_sort, SORT),
}
