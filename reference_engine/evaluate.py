"""The exact reference: an unoptimised graph in exact or float64 arithmetic, and the acceptance set of its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from . import dtypes as dt
from . import real as r
from .primitives import primitive_of
from .real import Real
from .types import Array, Exact, Graph, Policy

LARGE = 1 << 20


def evaluate(
    graph: Graph, feeds: Mapping[str, Array], policy: Policy | None = None, forced: Mapping[int, Array] | None = None
) -> tuple[Exact, ...]:
    """Acceptance sets of all outputs, in graph order.

    `forced` gives output tensors as a backend returned them: what is computed from them is judged
    against those values (the outputs themselves keep their own sets).
    Source: N1 to N8, N10.
    """
    policy = policy or Policy()
    made = tuple(accept(x, policy) for x in reals(graph, feeds, policy, forced))
    if not policy.ftz or (read := _flushed(graph, feeds)) is None:
        return made
    others = tuple(accept(x, policy) for x in reals(*read, policy, forced))
    return tuple(replace(one, also=other) for one, other in zip(made, others, strict=True))


def _flushed(graph: Graph, feeds: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]] | None:
    """The graph and its inputs with zeros for subnormal numbers, their signs kept; None where there are none."""

    def zeros(given: Mapping[str, Array]) -> dict[str, Array]:
        found = {}
        for name, x in given.items():
            word = graph.specs[name].dtype
            small = (np.abs(x) < dt.NORMAL[word]) & (x != 0) if word in dt.NORMAL else np.False_
            if np.any(small):
                found[name] = np.where(small, np.copysign(np.zeros((), x.dtype), x), x)
        return found

    constants, inputs = zeros(graph.constants), zeros({name: feeds[name] for name in graph.inputs})
    if not constants and not inputs:
        return None
    return replace(graph, constants={**graph.constants, **constants}), {**feeds, **inputs}


def rounded(graph: Graph, feeds: Mapping[str, Array], policy: Policy) -> tuple[Array, ...]:
    """All outputs, each rounded to its type before anything else is computed from it: what a kernel may return."""
    made = reals(graph, feeds, policy, settled=True)
    return tuple(accept(x, policy).value for x in made)


def reals(
    graph: Graph,
    feeds: Mapping[str, Array],
    policy: Policy,
    forced: Mapping[int, Array] | None = None,
    settled: bool = False,
) -> tuple[Real, ...]:
    """The numbers that `evaluate` makes sets of, with their error models; `settled` ones go on as `rounded`."""
    values: dict[str, Real] = {}
    results: dict[int, Real] = {}

    def value(name: str) -> Real:
        if name not in values:
            array = graph.constants[name] if name in graph.constants else feeds[name]
            made = r.leaf(array, graph.specs[name].dtype, policy.ftz)
            values[name] = r.uncertain(made, graph.uncertain[name]) if name in graph.uncertain else made
        return values[name]

    wanted = {name: index for index, name in enumerate(graph.outputs)}
    last = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs}
    for i, node in enumerate(graph.nodes):
        primitive = primitive_of(node.primitive)
        made = primitive.exact(*(value(n) for n in node.inputs), fn=node.fn, policy=policy, **node.attrs)
        values[node.output] = made
        index = wanted.get(node.output, -1)
        if settled and index >= 0:
            results[index] = made
            values[node.output] = r.leaf(accept(made, policy).value, made.dtype, policy.ftz)
        elif forced and index in forced:
            results[index] = made
            values[node.output] = r.leaf(forced[index].reshape(made.shape), made.dtype, policy.ftz)
        for name in set(node.inputs):  # a whole model's tensors do not fit side by side
            if last[name] == i and name not in wanted:
                del values[name]
    return tuple(results[i] if i in results else value(name) for i, name in enumerate(graph.outputs))


def accept(x: Real, policy: Policy) -> Exact:
    """The values that an honest kernel may return for `x`, in the output's own type."""
    once = r.once(x) if x.value.size > LARGE else x
    made = _accept_float(once, policy) if dt.is_float(x.dtype) else _accept_integer(once)
    if once is x:
        return made

    def repeated(part: Array | None) -> Array | None:
        return None if part is None else np.broadcast_to(part, x.shape)

    parts: dict[str, Any] = {
        name: repeated(getattr(made, name)) for name in ("value", "lo", "hi", "nan", "free", "real", "zero_point")
    }
    return replace(made, **parts, members=tuple(np.broadcast_to(m, x.shape) for m in made.members))


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
