"""The oracle: an observation against the acceptance set of the exact reference. Knows no backend, file or test.

A verdict per output element: inside the set, outside, or undecided by the specification. A case passes when
no element is outside; it is `untrusted` when it passes but proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from opgauge.backends.result import CONTRADICTED
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine import rounding
from opgauge.reference_engine.types import Array, Exact, Observation, Policy, Status, Verdict

from .relations import relation
from .spread import spread

SHOWN = 8
POSITIONS = 512
LARGE = 1 << 22
# A judged case must decide at least one element, and leave this share of them unsaturated.
UNSATURATED = 0.02


def judge(exacts: Sequence[Exact], observation: Observation, policy: Policy) -> Verdict:
    """The verdict on all outputs of one case: the worst of each output's.

    Source: N1 to N8 through `Exact`; a wrong count, shape or element type is a failure by itself, and so is a
        shape that the runtime's own inference contradicts: callers make room by it.
    """
    if observation.status is not Status.PASS:
        return Verdict(observation.status, observation.message)
    if len(observation.outputs) != len(exacts):
        return Verdict(Status.FAIL, f"returned {len(observation.outputs)} outputs, expected {len(exacts)}")
    parts = [
        judge_output(e, o, policy, f"output {i}")
        for i, (e, o) in enumerate(zip(exacts, observation.outputs, strict=True))
    ]
    failed = [p for p in parts if p.status is Status.FAIL]
    if failed:
        return replace(
            _sum(parts), status=Status.FAIL, message=failed[0].message, detail=failed[0].detail, explained=""
        )
    total = _sum(parts)
    if contradicted := observation.counts.get(CONTRADICTED, 0):
        message = f"the runtime infers another shape than it returns, of {contradicted} of {len(parts)} outputs"
        return replace(total, status=Status.FAIL, message=message, explained="", detail={CONTRADICTED: contradicted})
    reason = proves_nothing(exacts, total)
    if reason:
        return replace(total, status=Status.UNTRUSTED, message=reason)
    return total


def _sum(parts: Sequence[Verdict]) -> Verdict:
    """Counts added up; the mean set size weighted by the elements that it was measured on."""
    weight = sum(p.sized for p in parts)
    size = sum(p.set_size * p.sized for p in parts) / weight if weight else 0.0
    explained = "exact" if all(p.explained == "exact" for p in parts) else "within"
    return Verdict(
        Status.PASS,
        "",
        explained,
        sum(p.elements for p in parts),
        sum(p.outside for p in parts),
        sum(p.undecided for p in parts),
        sum(p.saturated for p in parts),
        sum(p.ties for p in parts),
        size,
        weight,
    )


def judge_output(exact: Exact, actual: Array, policy: Policy, name: str) -> Verdict:
    """One output tensor against its set.

    Shapes: exact.value and actual must be equal, and their dtypes.
    """
    if dt.WORD.get(np.dtype(actual.dtype)) != exact.dtype:
        return Verdict(
            Status.FAIL,
            f"{name} is {actual.dtype}, expected {exact.dtype}",
            detail={"got": str(actual.dtype), "expected": exact.dtype},
        )
    if tuple(actual.shape) != exact.value.shape:
        return Verdict(
            Status.FAIL,
            f"{name} has shape {list(actual.shape)}, expected {list(exact.value.shape)}",
            detail={"got": list(actual.shape), "expected": list(exact.value.shape)},
        )
    if actual.size > LARGE:
        parts = []
        for some, values in pieces(exact, actual):
            parts.append(judge_output(some, values, policy, name))
            if parts[-1].status is not Status.PASS:
                break  # what it takes to say where and why is paid on a failure only
        else:
            return _sum(parts)
    inside = inside_set(exact, actual)
    free = np.zeros(inside.shape, bool) if exact.free is None else exact.free
    outside = ~inside & ~free
    saturated = saturated_elements(exact)
    sized = ~saturated & ~free
    measured = _measured(exact, sized)
    counts = {
        "elements": int(actual.size),
        "outside": int(outside.sum()),
        "undecided": int(free.sum()),
        "saturated": int(saturated.sum()),
        "ties": int((tie_elements(exact) & sized).sum()),
        "set_size": float(measured.mean()) if measured.size else 0.0,
        "sized": int(measured.size),
    }
    if not counts["outside"]:
        same = inside_value(exact, actual) | free
        return Verdict(Status.PASS, "", "exact" if same.all() else "within", **counts)  # type: ignore[arg-type]
    detail = explain(exact, actual, outside, policy)
    at = [int(i) for i in np.unravel_index(detail["index"][0], exact.value.shape)] if exact.value.shape else []
    seen = f"got {detail['got'][0]}, expected {detail['expected'][0]}"
    message = f"{name}: {counts['outside']} of {actual.size} elements outside; first at {at}: {seen}"
    return Verdict(Status.FAIL, message, "", detail=detail, **counts)  # type: ignore[arg-type]


def pieces(exact: Exact, actual: Array) -> Iterator[tuple[Exact, Array]]:
    """A large output along its longest axis, so that what is computed of it need not fit in memory at once."""
    axis = int(np.argmax(actual.shape))
    step = max(1, LARGE * actual.shape[axis] // actual.size)
    for begin in range(0, actual.shape[axis], step):
        where = (*(slice(None),) * axis, slice(begin, begin + step))
        yield _part(exact, where), actual[where]


def _part(exact: Exact, where: tuple[slice, ...]) -> Exact:
    parts: dict[str, Any] = {
        f.name: p[where] for f in fields(exact) if isinstance(p := getattr(exact, f.name), np.ndarray)
    }
    also = None if exact.also is None else _part(exact.also, where)
    return replace(exact, **parts, members=tuple(m[where] for m in exact.members), also=also)


def inside_set(exact: Exact, actual: Array) -> Array:
    """Per element: is it one of the values that an honest kernel may return. NaN only where NaN is required."""
    if exact.also is not None:
        free = False if exact.also.free is None else exact.also.free
        return np.asarray(inside_set(replace(exact, also=None), actual) | inside_set(exact.also, actual) | free)
    if exact.dtype == "bool":
        return np.asarray(actual == exact.value)
    if not dt.is_float(exact.dtype):
        if actual.dtype == np.uint64:
            return np.asarray((actual >= exact.lo) & (actual <= exact.hi))
        value = actual.astype(np.int64)
        if exact.members:
            return np.asarray(np.logical_or.reduce([value == m for m in exact.members]))
        return np.asarray((value >= exact.lo) & (value <= exact.hi))
    value = actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        if exact.members:
            inside = np.logical_or.reduce([value == m.astype(np.float64) for m in exact.members])
        else:
            inside = (value >= exact.lo) & (value <= exact.hi)
    return np.asarray(inside if exact.nan is None else np.where(exact.nan, np.isnan(value), inside))


def inside_value(exact: Exact, actual: Array) -> Array:
    """Per element: equals the correctly rounded value (NaN equals NaN)."""
    if dt.is_float(exact.dtype):
        a, b = actual.astype(np.float64), exact.value.astype(np.float64)
        return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))
    return np.asarray(actual == exact.value)


def _measured(exact: Exact, sized: Array) -> Array:
    """Set sizes of unsaturated elements of quantized outputs."""
    if exact.zero_point is None:
        return np.zeros(0)
    if exact.members:
        several = np.sort(np.stack(exact.members), 0)
        return np.asarray((1 + (np.diff(several, axis=0) != 0).sum(0))[sized], np.float64)
    return np.asarray((exact.hi - exact.lo + 1)[sized], np.float64)


def saturated_elements(exact: Exact) -> Array:
    """Elements of a quantized output whose set lies wholly at a limit although the real number lies beyond it."""
    if exact.real is None or exact.zero_point is None:
        return np.zeros(exact.value.shape, bool)
    low, high = dt.limits(exact.dtype)
    with np.errstate(invalid="ignore"):
        v = exact.real + exact.zero_point
        return np.asarray(((exact.hi <= low) & (v < low)) | ((exact.lo >= high) & (v > high)))


def tie_elements(exact: Exact) -> Array:
    """Elements of a quantized output that lie exactly half-way between two integers and have one answer."""
    if exact.real is None or exact.zero_point is None:
        return np.zeros(exact.value.shape, bool)
    with np.errstate(invalid="ignore"):
        return np.asarray((rounding.tie_distance(exact.real) == 0) & np.isfinite(exact.real) & (exact.lo == exact.hi))


def proves_nothing(exacts: Sequence[Exact], verdict: Verdict) -> str:
    """Why a pass is no evidence, or an empty string.

    Empty tensors prove their shape. A constant tensor is what some operators return by right; only
    quantized outputs at their limits and outputs that are undecided throughout are vacuous.
    """
    if verdict.elements == 0:
        return ""
    if verdict.undecided == verdict.elements:
        return "every element is undecided by the specification"
    quantized = [e for e in exacts if e.zero_point is not None and e.value.size]
    if quantized and len(quantized) == len(exacts):
        decided = verdict.elements - verdict.undecided
        if decided - verdict.saturated < UNSATURATED * decided:
            return "every element saturates"
        if all((e.real == 0).all() for e in quantized if e.real is not None):
            return "every element is zero"
    return ""


def explain(exact: Exact, actual: Array, outside: Array, policy: Policy) -> dict[str, Any]:
    """Evidence for a failure, in parallel lists: where, what, what was expected, how near a tie.

    `index` are flat positions of the first offending elements, `positions` of many; `wider` what other
    policy would have accepted them all.
    """
    flat = np.flatnonzero(outside)
    shown = flat[:SHOWN]
    found: dict[str, Any] = {
        "index": [int(i) for i in shown],
        "got": [_text(actual.ravel()[i]) for i in shown],
        "expected": [expected(exact, int(i)) for i in shown],
        "positions": [int(i) for i in flat[:POSITIONS]],
        "shape": [int(d) for d in exact.value.shape],
        "wider": wider(exact, actual, outside, policy),
        "relation": relation(exact, actual, outside),
        "largest_error": largest_error(exact, actual, outside),
        "spread": spread(exact, actual, outside),
    }
    if exact.real is not None:
        real = exact.real.ravel()[shown]
        found["real"] = [_text(v) for v in real]
        if exact.zero_point is not None:
            found["tie_distance"] = [float(d) if np.isfinite(d) else None for d in rounding.tie_distance(real)]
    return found


def expected(exact: Exact, flat: int) -> str:
    """The admissible values of one element in words."""
    if exact.also is not None:
        both = (expected(replace(exact, also=None), flat), expected(exact.also, flat))
        return " or ".join(dict.fromkeys(both))
    if exact.nan is not None and exact.nan.ravel()[flat]:
        return "NaN"
    if exact.members:
        return " or ".join(sorted({_text(m.ravel()[flat]) for m in exact.members}))
    lo, hi = exact.lo.ravel()[flat], exact.hi.ravel()[flat]
    return _text(lo) if lo == hi else f"{_text(lo)} to {_text(hi)}"


def _text(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    number = float(value)
    if np.issubdtype(type(value), np.integer):
        return str(int(value))
    return f"{number:.9g}"


# Wider policies for quantized outputs: (name, round modes, zero point inside). The simple ones are all tried, the
# compound ones where no simple one is enough.
WIDER: tuple[tuple[tuple[str, tuple[str, ...], bool], ...], ...] = (
    (
        ("round=even", ("even",), False),
        ("round=away", ("away",), False),
        ("round=up", ("up",), False),
        ("round=floor", ("floor",), False),
        ("round=trunc", ("trunc",), False),
        ("zp_inside", ("even",), True),
    ),
    (("any rounding to nearest", ("even", "away", "up"), True),),
    (("any rounding", ("even", "away", "up", "floor", "trunc"), True),),
)


def wider(exact: Exact, actual: Array, outside: Array, policy: Policy) -> str:
    """The wider policies under which every element would have passed."""
    if exact.real is None or exact.zero_point is None:
        return ""
    real = np.nan_to_num(exact.real[outside], nan=0.0, posinf=1e300, neginf=-1e300)
    value, zero_point = actual[outside].astype(np.int64), exact.zero_point[outside]

    def accepted(roundings: int, modes: tuple[str, ...], inside: bool) -> bool:
        radius = roundings * rounding.U * np.abs(real)
        lo, hi = rounding.accept(real, radius, zero_point, exact.dtype, Policy(round=modes, zp_inside=inside))
        return bool(((value >= lo) & (value <= hi)).all())

    for roundings, also in ((0, ""), (8, " and 8 more float32 roundings")):
        for group in WIDER:
            if names := [name for name, modes, inside in group if accepted(roundings, modes, inside)]:
                return f"would pass with {' or '.join(names)}{also}"
    return "no rounding policy accepts it"


def largest_error(exact: Exact, actual: Array, outside: Array) -> str:
    """How far the worst element lies outside, in quanta (integers) or in multiples of the set's half-width."""
    if exact.dtype == "bool":
        return ""
    with np.errstate(all="ignore"):
        value = actual.astype(np.float64)[outside]
        lo, hi = exact.lo[outside].astype(np.float64), exact.hi[outside].astype(np.float64)
        gap = np.maximum(lo - value, value - hi)
        if not dt.is_float(exact.dtype):
            return f"{int(np.nanmax(gap, initial=0))} quanta"
        half = (hi - lo) / 2
        scaled = np.where(half > 0, gap / half, np.inf)
        scaled = scaled[np.isfinite(scaled)]
        return f"{scaled.max():.3g} times the bound" if scaled.size else ""
