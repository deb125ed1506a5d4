"""The exact reference: an unoptimised graph in exact or float64 arithmetic, and the acceptance set of its outputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from . import dtypes as dt
from . import real as r
from .primitives import primitive_of
from .real import Real
from .types import Array, Exact, Graph, Policy


def evaluate(
    graph: Graph, feeds: Mapping[str, Array], policy: Policy | None = None, forced: Mapping[int, Array] | None = None
) -> tuple[Exact, ...]:
    """Acceptance sets of all outputs, in graph order.

    `forced` gives output tensors as a backend returned them: what is computed from them is judged
    against those values (the outputs themselves keep their own sets).
    Source: N1 to N8.
    """
    policy = policy or Policy()
    return tuple(accept(x, policy) for x in reals(graph, feeds, policy, forced))


def reals(
    graph: Graph, feeds: Mapping[str, Array], policy: Policy, forced: Mapping[int, Array] | None = None
) -> tuple[Real, ...]:
    """The numbers that `evaluate` makes sets of, with their error models."""
    values: dict[str, Real] = {}
    results: dict[int, Real] = {}
    for name, array in graph.constants.items():
        values[name] = r.leaf(array, graph.specs[name].dtype, policy.ftz)
        if name in graph.uncertain:
            values[name] = r.uncertain(values[name], graph.uncertain[name])
    for name in graph.inputs:
        values[name] = r.leaf(feeds[name], graph.specs[name].dtype, policy.ftz)
    wanted = {name: index for index, name in enumerate(graph.outputs)}
    for node in graph.nodes:
        primitive = primitive_of(node.primitive)
        made = primitive.exact(*(values[n] for n in node.inputs), fn=node.fn, policy=policy, **node.attrs)
        values[node.output] = made
        index = wanted.get(node.output, -1)
        if forced and index in forced:
            results[index] = made
            values[node.output] = r.leaf(forced[index].reshape(made.shape), made.dtype, policy.ftz)
    return tuple(results.get(i, values[name]) for i, name in enumerate(graph.outputs))


def accept(x: Real, policy: Policy) -> Exact:
    """The values that an honest kernel may return for `x`, in the output's own type."""
    if not dt.is_float(x.dtype):
        return _accept_integer(x)
    return _accept_float(x, policy)


def _mask(mask: r.Mask, shape: tuple[int, ...]) -> Array | None:
    return np.broadcast_to(mask, shape) if np.any(mask) else None


def _accept_integer(x: Real) -> Exact:
    value = np.asarray(x.value)
    if x.lo is None or x.hi is None:
        lo = hi = value
    else:
        lo, hi = x.lo, x.hi
    quantized = x.real if x.zero_point is not None else None
    return Exact(
        x.dtype,
        value,
        np.asarray(lo),
        np.asarray(hi),
        x.members,
        None,
        _mask(x.hazard, x.shape),
        quantized,
        x.zero_point,
    )


def _accept_float(x: Real, policy: Policy) -> Exact:
    """[value - radius, value + radius] widened by the final rounding of a narrower type; overflow is infinity."""
    kind = dt.numpy_dtype(x.dtype)
    with np.errstate(all="ignore"):
        nearest = np.asarray(x.value).astype(kind)
        point = nearest.astype(np.float64)
        if x.members:
            stack = np.stack([m.astype(np.float64) for m in x.members])
            lo, hi = stack.min(0), stack.max(0)
        elif x.ieee and x.dtype != "float64":
            lo = hi = point
        else:
            lo, hi = _interval(x, point)
        if policy.ftz:
            small = np.abs(x.value) <= dt.NORMAL[x.dtype]
            lo, hi = np.where(small, np.minimum(lo, 0.0), lo), np.where(small, np.maximum(hi, 0.0), hi)
        lo, hi = _overflow(lo, x.dtype), _overflow(hi, x.dtype)
        real = np.asarray(x.value if x.real is None else x.real, np.float64)
    nan = np.isnan(x.value)
    free = np.broadcast_to(x.hazard, x.shape)
    free = free | nan if x.nan_free else free
    members = x.members if len(x.members) > 1 else ()
    return Exact(
        x.dtype,
        nearest,
        np.asarray(lo, np.float64),
        np.asarray(hi, np.float64),
        members,
        _mask(nan, x.shape),
        _mask(free, x.shape),
        real,
    )


def _interval(x: Real, point: Array) -> tuple[Array, Array]:
    radius = r.radius(x)
    if x.dtype in ("float16", "bfloat16") and x.k:  # at k = 0 the error already holds the last rounding
        radius = np.where(radius == 0, 0.0, r.narrowed(radius, x.value, x.dtype))
    finite = np.isfinite(x.value)
    lo = np.where(radius == 0, point, np.where(finite, x.value - radius, point))
    hi = np.where(radius == 0, point, np.where(finite, x.value + radius, point))
    return np.asarray(lo, np.float64), np.asarray(hi, np.float64)


def _overflow(edge: Array, dtype: str) -> Array:
    """Beyond the largest finite number plus half an ulp a correct rounding gives infinity."""
    top = dt.MAX[dtype]
    half = top * dt.UNIT[dtype]
    return np.where(np.abs(edge) >= top + half / 2, np.copysign(np.inf, edge), edge) if dtype != "float64" else edge
