"""Reduce: one value from each row of the last axis."""

from __future__ import annotations

import numpy as np

from .. import dtypes as dt
from .. import real as r
from ..errors import ShapeError
from ..real import Real
from ..types import Array, Policy, TensorSpec
from .definition import PrimitiveDef

FNS: dict[str, tuple[str, ...]] = {"sum": (), "max": (), "min": ()}


def infer_reduce(x: TensorSpec, fn: str = "") -> TensorSpec:
    if not x.shape:
        raise ShapeError(f"Reduce.{fn}: x {x} has no axis to reduce")
    return TensorSpec(x.shape[:-1], x.dtype)


def exact_reduce(x: Real, fn: str = "", policy: Policy | None = None) -> Real:
    """y[*] = fn over n of x[*,n]

    Shapes: x [*,n] -> y [*]; n = 0 gives 0 for sum and the type's own limit for max and min.
    Dtypes: same in and out; integer sums exact within the type; float sums n-1 roundings (N1).
    Source: ONNX ReduceSum-13, ReduceMax-20, ReduceMin-20. Whether max and min keep a NaN is not
        specified (N7): such rows are left undecided.
    """
    if fn == "sum":
        return r.total(x) if dt.is_float(x.dtype) else integer_total(x)
    return extreme(x, fn)


def integer_total(x: Real) -> Real:
    """Exact while it fits; ONNX does not say what an integer sum beyond its type is (N6)."""
    low, high = dt.limits(x.dtype)
    whole = x.value.sum(-1, dtype=np.longdouble)
    beyond = (whole < low) | (whole > high)
    return Real(np.asarray(x.value.sum(-1, dtype=x.value.dtype)), x.dtype, hazard=beyond if np.any(beyond) else False)


def extreme(x: Real, fn: str) -> Real:
    """max or min over the last axis; its radius is the largest of the row's."""
    pick = np.maximum if fn == "max" else np.minimum
    value = pick.reduce(x.value, axis=-1, initial=identity(x, fn))
    if not dt.is_float(x.dtype):
        bounds = {} if x.lo is None or x.hi is None else {"lo": pick.reduce(x.lo, -1), "hi": pick.reduce(x.hi, -1)}
        return Real(value.astype(x.value.dtype), x.dtype, **bounds)
    mag = None if x.mag is None else x.mag.max(-1, initial=0.0)
    err = np.broadcast_to(x.err, x.shape).max(-1, initial=0.0) if np.any(x.err) else 0.0
    hazard = np.broadcast_to(x.hazard, x.shape).any(-1) if np.any(x.hazard) else False
    grid = float(np.min(x.grid)) if np.size(x.grid) else 1.0
    return Real(value, x.dtype, mag, x.k, err, grid, hazard, **{**r.traits(x), "nan_free": True})


def identity(x: Real, fn: str) -> Array | float | int:
    """The value of an empty max or min."""
    if dt.is_float(x.dtype):
        return -np.inf if fn == "max" else np.inf
    if x.dtype == "bool":
        return fn == "min"
    low, high = dt.limits(x.dtype)
    return x.value.dtype.type(low if fn == "max" else high)


PRIMITIVES = {"Reduce": PrimitiveDef(infer_reduce, exact_reduce, FNS)}
