"""What wrong elements have in common with the right ones: a number, a factor, another place. A hint, no verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Array, Exact

LEAST = 4  # wrong elements that may show a rule
SHARE = 0.9  # of them that must follow it
SHIFTS = 64  # places tried for where a wrong number belongs
FEW = 0.25  # of the numbers near the right ones: beyond, one is met by chance


class Wrong(NamedTuple):
    """Elements outside their sets: flat places, what was got and wanted there, and how far a right one may be off."""

    places: Array
    got: Array
    want: Array
    slack: Array
    whole: Array  # all of the right result, flat
    shape: tuple[int, ...]
    integer: bool
    real: Array | None  # before rounding, without the zero point
    zero_point: float


class Relation(NamedTuple):
    said: str
    next: str


def relation(exact: Exact, actual: Array, outside: Array) -> Relation | None:
    """The first of RULES that nearly all elements outside follow; none for few or for boolean elements.

    Shapes: actual and outside that of the exact value.
    """
    places = np.flatnonzero(outside)
    if exact.dtype == "bool" or len(places) < LEAST:
        return None
    with np.errstate(all="ignore"):
        whole = exact.value.astype(np.float64).ravel()
        got, want = actual.astype(np.float64).ravel()[places], whole[places]
        width = (exact.hi.astype(np.float64) - exact.lo.astype(np.float64)).ravel()
        integer = not dt.is_float(exact.dtype)
        least = 0.0 if integer else 4 * dt.UNIT[exact.dtype] * np.abs(whole)
        slack = np.nan_to_num(np.maximum(width, least))
        real = exact.real.astype(np.float64).ravel()[places] if exact.real is not None else None
        zero = np.asarray(0.0 if exact.zero_point is None else exact.zero_point, np.float64)
        zero_point = float(zero.ravel()[0]) if zero.size and (zero == zero.ravel()[0]).all() else math.nan
        wrong = Wrong(places, got, want, slack[places], whole, exact.value.shape, integer, real, zero_point)
        return next((Relation(said, rule.next) for rule in RULES if (said := rule.holds(wrong))), None)


def most(holds: Array) -> bool:
    return bool(np.mean(holds) >= SHARE)


def varied(numbers: Array) -> bool:
    """Enough different numbers that to agree in them is no accident."""
    return len(np.unique(numbers[np.isfinite(numbers)])) >= LEAST


# ---- rules: a sentence, or nothing


def not_numbers(w: Wrong) -> str:
    return "every wrong element is NaN" if most(np.isnan(w.got) & ~np.isnan(w.want)) else ""


def clipped_at_zero(w: Wrong) -> str:
    zero = w.got == 0
    return "0 where negative numbers belong" if most(zero & (w.want < 0)) and varied(w.want) else ""


def one_number(w: Wrong) -> str:
    first = float(np.median(w.got))
    if not most(w.got == first) or not varied(w.want):
        return ""
    name = "the zero point" if first == w.zero_point and w.real is not None else "0" if first == 0 else f"{first:g}"
    return f"every wrong element is {name}"


def other_sign(w: Wrong) -> str:
    turned = (np.abs(w.got + w.want) <= w.slack) & (w.want != 0)
    return "every wrong element has the other sign" if most(turned) and varied(w.want) else ""


def exchanged(w: Wrong) -> str:
    if not varied(w.want) or not np.isfinite(w.got).all():
        return ""
    order = np.argsort(w.want, kind="stable")
    agree = np.abs(np.sort(w.got) - w.want[order]) <= w.slack[order]
    return "the wrong elements are the right numbers in each other's places" if agree.all() else ""


def shifted(w: Wrong) -> str:
    """One distance for all: got[i] is what belongs at i + distance."""
    if not varied(w.got):
        return ""
    candidates: set[int] = set()
    for i in (0, len(w.places) // 2, -1):  # one of them may be beyond an edge
        candidates.update((np.flatnonzero(np.abs(w.whole - w.got[i]) <= w.slack[i])[:SHIFTS] - w.places[i]).tolist())
    for distance in sorted(candidates, key=abs):
        there = w.places + distance
        inside = (there >= 0) & (there < w.whole.size)
        from_there = w.whole[np.clip(there, 0, w.whole.size - 1)]
        if distance and most(inside & (np.abs(from_there - w.got) <= w.slack)):
            return f"every wrong element is what belongs {_distance(distance, w.shape)}"
    return ""


def _distance(distance: int, shape: tuple[int, ...]) -> str:
    side = "further on" if distance > 0 else "before it"
    for axis in range(len(shape)):
        stride = math.prod(shape[axis + 1 :])
        if abs(distance) % stride == 0 and shape[axis] > abs(distance) // stride:
            steps = abs(distance) // stride
            return f"{steps} {side} along axis {axis}"
    return f"{abs(distance)} elements {side}"


def elsewhere(w: Wrong) -> str:
    """Numbers of the right result, where that has few of all that there are near them."""
    known = np.unique(w.whole[np.isfinite(w.whole)])
    if not varied(w.got) or known.size < LEAST:
        return ""
    if w.integer and known.size > FEW * (known[-1] - known[0] + 1):
        return ""
    return "every wrong element is a right number of another place" if most(np.isin(w.got, known)) else ""


def factor(w: Wrong) -> str:
    """got = k times what belongs there; of a quantized result before its rounding."""
    base, got = (w.want, w.got) if w.real is None else (w.real, w.got - w.zero_point)
    usable = (np.abs(base) > (2 if w.integer else 0)) & np.isfinite(base) & np.isfinite(got)
    if usable.sum() < LEAST or not varied(base[usable]):
        return ""
    base, got, slack = base[usable], got[usable], w.slack[usable]
    k = float(np.median(got / base))
    near = np.abs(got - k * base) <= (0.51 if w.integer else np.maximum(slack, 1e-3 * np.abs(k * base)))
    if not most(near) or abs(k) < 1e-3 or abs(k - 1) < 0.02:
        return ""
    return f"every wrong element is {k:.{2 if w.integer else 4}g} times what belongs there"


def offset(w: Wrong) -> str:
    step = float(np.median(w.got - w.want))
    if not step or not most(np.abs(w.got - w.want - step) <= w.slack) or not varied(w.want):
        return ""
    unit = "" if not w.integer else f" quant{'um' if abs(step) == 1 else 'a'}" if w.real is not None else ""
    return f"every wrong element is {abs(step):.6g}{unit} too {'large' if step > 0 else 'small'}"


class Rule(NamedTuple):
    holds: Callable[[Wrong], str]
    next: str


INDEX = "look at how places are computed: strides, tiles, threads that share the work; an index kept in few bits"
RULES = (
    Rule(not_numbers, "look for 0 / 0, inf - inf, and memory that was never written"),
    Rule(clipped_at_zero, "look at where a maximum begins, and for numbers that are read as unsigned"),
    Rule(one_number, "look for elements that are never written, or cleared, and for a clamp that catches all"),
    Rule(other_sign, "look at the sign of a factor, and at which operand is subtracted"),
    Rule(shifted, INDEX),
    Rule(exchanged, INDEX),
    Rule(factor, "look at scales and divisors: one that is missing, taken twice or taken from another channel"),
    Rule(offset, "look at zero points and biases, and at the rounding of the last step"),
    Rule(elsewhere, INDEX),
)
