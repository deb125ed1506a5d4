"""What rows draw with: bounded integers, the plainest choice first, so that a failing case shrinks towards it.

Every choice is one `st.integers` draw: cheap, shrinkable, and of the probability written here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case, CaseSpec

T = TypeVar("T")
Draw = Callable[[Any], Any]
Shape = tuple[int, ...]
Data = tuple[str, tuple[float, ...]]  # a profile and its parameters

# Around the vector widths of common processors.
WIDTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96)
# Just above the block sizes of matrix kernels (I/O pipelines of several blocks of 256 included).
LONG = (255, 256, 257, 259, 511, 513, 768, 1023, 1024, 1025, 1027, 1090, 1153, 1279, 1300, 2049, 2063, 2100)
# Quantized rows: two draws of ten are the tie probe (NUMERICS section 6).
KINDS = ("plain",) * 20 + ("ties",) * 9 + ("extremes",) * 4 + ("saturate",) * 4 + ("wild",)
LATER = 3  # one case in so many is drawn at a later version of its operator
LARGE = 16  # one case in so many is large
# Elements of large tensors: kernels tile, split and count otherwise from some thousand on, or beyond 16 bits.
SIZES = (2503, 6007, 20011, 40009, 70001)


@functools.cache
def _below(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, n - 1)


def pick(draw: Draw, options: Sequence[T]) -> T:
    return options[draw(_below(len(options)))]


def between(draw: Draw, low: int, high: int) -> int:
    return low + draw(_below(high - low + 1))


def rarely(draw: Draw, n: int) -> bool:
    """True in one draw of n."""
    return draw(_below(n)) == n - 1


def shape_of(draw: Draw, rank: int, limit: int = 1500, low: int = 1) -> Shape:
    """Dimensions whose product stays below the limit, the last one near a vector width."""
    shape: list[int] = []
    for axis in range(rank):
        room = max(limit // max(math.prod(shape), 1), low)
        shape.append(min(pick(draw, WIDTHS) if axis == rank - 1 else between(draw, max(low, 1), 9), room))
    return tuple(shape)


def others(rank: int, *axes: int) -> tuple[int, ...]:
    """The axes that are none of these."""
    return tuple(i for i in range(rank) if i not in axes)


def larger(draw: Draw, shape: Shape, axes: Sequence[int] | None = None, each: int = 1) -> Shape:
    """In one draw of LARGE the shape with one of these axes (of all) stretched to some ten thousand elements.

    `each`: how many elements of the largest tensor one of the shape stands for.
    """
    free = range(len(shape)) if axes is None else axes
    if not free or not rarely(draw, LARGE):
        return shape
    axis = pick(draw, free) % len(shape)
    rest = math.prod(n for i, n in enumerate(shape) if i != axis) * each
    stretched = pick(draw, SIZES) // rest if rest else 0
    return (*shape[:axis], max(stretched, shape[axis]), *shape[axis + 1 :])


def float32(value: float) -> float:
    """The shortest number that reads as the float32 nearest to `value`: case ids stay short."""
    return float(str(np.float32(value)))


def scale(draw: Draw) -> float:
    """A positive float32: 2^k, 3 * 2^k, a float16, a decimal of three digits, or log-uniform over 1e-8..1e4."""
    kind, position = divmod(draw(_below(6 << 24)), 1 << 24)
    digits = position * 0x9E3779B1 & 0xFFFFFF
    exponent = -(position % 14)
    if kind == 0:
        return 2.0**exponent
    if kind == 1:
        return 3.0 * 2.0 ** (exponent - 1)
    if kind == 2:
        return float32((1024 + digits % 1024) * 2.0 ** (exponent - 10))
    if kind == 3:
        return float(f"{100 + digits % 900}e{-3 - position % 4}")
    return float32((1 + digits * 2.0**-24) * 2.0 ** (position % 40 - 26 if kind == 5 else exponent))


def scale_near(draw: Draw, ideal: float) -> float:
    """A scale of one of those kinds beside the ideal one."""
    kind = draw(_below(6))
    power = 2.0 ** math.floor(math.log2(ideal))
    if kind == 0:
        return power
    if kind == 1:
        return 0.75 * power
    if kind == 2 and 2.0**-14 <= ideal <= 60000.0:
        return float32(float(np.float16(ideal)))
    if kind == 3:
        return float(f"{ideal:.2e}")
    return float32(ideal)


def zero_point(draw: Draw, dtype: str) -> int:
    """0, the middle, either end, or anything."""
    low, high = dt.limits(dtype)
    if dtype == "int32":
        return 0
    return pick(draw, (0, (low + high + 1) // 2, low, high, between(draw, low, high)))


class Operand(NamedTuple):
    """One quantized input: its data, and the moments and ends of (x - zero_point) that decide a fitting y_scale."""

    dtype: str
    zero_point: int
    profile: str
    params: tuple[float, ...]
    mean: float
    std: float
    least: float
    most: float

    def arg(self, name: str, shape: Shape, const: bool = False) -> Arg:
        return Arg(name, self.dtype, shape, self.profile, self.params, const=const)


class Moments(NamedTuple):
    """Mean, standard deviation and ends of what is going to be quantized, in units of the input scale."""

    mean: float
    std: float
    least: float
    most: float


def operand(draw: Draw, dtype: str, kind: str, shape: Shape, weight: bool = False) -> Operand:
    """Data and zero point of one quantized input for a case of this kind; few elements are never all zero points."""
    size = math.prod(shape)
    if size == 1:
        return single(draw, dtype, kind)
    low, high = dt.limits(dtype)
    middle = (low + high + 1) // 2
    half = (high - low) / 2
    if kind == "ties":
        radius = 12 if not weight else 1 if size >= 8 else 3
        z = pick(draw, (middle, middle + 1, between(draw, low + 12, high - 12)))
        return Operand(dtype, z, "near", (z, radius), 0.0, math.sqrt(radius * (radius + 1) / 3), -radius, radius)
    z = pick(draw, (middle, 0, middle + 3)) if weight and not rarely(draw, 3) else zero_point(draw, dtype)
    centre, ends = low + half - z, (low - z, high - z)
    if kind == "extremes":
        return Operand(dtype, z, "extremes", (), centre, half, *ends)
    profile = pick(draw, ("uniform", "uniform", "normal", "near", "sparse"))
    if profile == "sparse" and (weight or size < 64):
        profile = "uniform"
    if profile == "uniform":
        return Operand(dtype, z, "uniform", (), centre, half / math.sqrt(3), *ends)
    if profile == "sparse":
        variance = (centre**2 + half**2 / 3) / 8 - (centre / 8) ** 2
        return Operand(dtype, z, "sparse", (z,), centre / 8, math.sqrt(variance), *ends)
    radius = pick(draw, (40, 8, 100)) if profile == "normal" else pick(draw, (12, 3, 40))
    params = (radius / 2, z) if profile == "normal" else (z, radius)
    # A zero point at the end of the range leaves half of the data.
    side = 0.0 if min(z - low, high - z) >= radius / 2 else 1.0 if z < middle else -1.0
    ends = (max(-radius, low - z), min(radius, high - z))
    return Operand(dtype, z, profile, params, side * radius / 4, radius * (0.3 if side else 0.55), *ends)


def single(draw: Draw, dtype: str, kind: str) -> Operand:
    """The one element of a tensor, never equal to its zero point."""
    low, high = dt.limits(dtype)
    z = zero_point(draw, dtype)
    reach = (max(low, z - 12), min(high, z + 12)) if kind == "ties" else (low, high)
    value = between(draw, *reach)
    if value == z:
        value += 1 if value < high else -1
    return Operand(dtype, z, "fill", (value,), value - z, 0.0, value - z, value - z)


def product_moments(a: Operand, b: Operand, terms: int = 1) -> Moments:
    """Of the sum of that many (a - za)(b - zb) for independent data."""
    variance = a.std**2 * b.std**2 + a.std**2 * b.mean**2 + a.mean**2 * b.std**2
    corners = [x * y for x in (a.least, a.most) for y in (b.least, b.most)]
    return Moments(terms * a.mean * b.mean, math.sqrt(terms * variance), terms * min(corners), terms * max(corners))


def fitting_zero_point(draw: Draw, dtype: str, expected: Moments, unit: float) -> int:
    """A zero point that leaves a good part of the expected values inside the range."""
    low, high = dt.limits(dtype)
    wanted = zero_point(draw, dtype)
    first = max(expected.mean - 1.2 * expected.std, expected.least) * unit
    last = min(expected.mean + 1.2 * expected.std, expected.most) * unit
    inside = min(last + wanted, high) - max(first + wanted, low)
    if inside >= 0.4 * min(last - first, high - low):
        return wanted
    return int(min(max(round((low + high) / 2 - expected.mean * unit), low), high))


def requantization(draw: Draw, kind: str, dtype: str, in_scale: float, expected: Moments) -> tuple[float, int]:
    """(y_scale, y_zero_point) that spread the expected values over the output range.

    Source: NUMERICS section 6, a standard deviation of 4 to 200 quanta; drawn freely, four cases of five saturate
    everywhere.
    """
    low, high = dt.limits(dtype)
    if kind == "ties":
        y_scale = in_scale * pick(draw, (2.0, 2.0, 4.0))
        centre = (low + high + 1) // 2
        return y_scale, pick(draw, (centre, centre + 1, between(draw, centre - 40, centre + 40)))
    std = max(expected.std, 0.5)
    target = pick(draw, (300.0, 150.0, 1000.0) if kind == "saturate" else (16.0, 40.0, 4.0, 80.0))
    # Far from its zero point only a part of the range is left.
    target = min(target, 0.7 * (high - low) * std / abs(expected.mean)) if expected.mean else target
    if kind == "wild":
        target *= 2.0 ** between(draw, -4, 4)
    y_scale = unambiguous(in_scale, scale_near(draw, in_scale * std / target))
    wanted = fitting_zero_point(draw, dtype, expected, in_scale / y_scale)
    # Where no zero point reaches the mean, only a coarser scale keeps the values inside the range.
    for _ in range(40 if kind not in ("wild", "saturate") else 0):
        unit = in_scale / y_scale
        if (expected.mean + expected.std) * unit + wanted >= low and (
            expected.mean - expected.std
        ) * unit + wanted <= high:
            break
        y_scale *= 2.0
    return y_scale, wanted


def unambiguous(in_scale: float, y_scale: float) -> float:
    """The first scale at or just above y_scale for which few sums come within a rounding of a tie.

    A ratio such as 3/4 of scales that are no powers of two puts sums exactly on ties, where every honest order
    of the float32 factors may round either way; a ratio of powers of two is exact, so that its ties count.
    """
    if math.frexp(in_scale)[0] == math.frexp(y_scale)[0] == 0.5:
        return y_scale
    for step in range(20):
        candidate = float32(y_scale * (1.0 + 0.00713 * step))
        at = (np.arange(256) + 0.5) * (candidate / in_scale)  # the sums that would be ties
        if (np.abs(at - np.rint(at)) <= 4e-7 * at).mean() * in_scale <= 4e-4 * candidate:
            break
    return candidate


def power_scale(draw: Draw) -> float:
    return 2.0 ** -between(draw, 0, 10)


def pair_scales(draw: Draw, kind: str) -> tuple[float, float]:
    """Two input scales: powers of two where ties are wanted, so that every order of the factors is exact (N3)."""
    return (power_scale(draw), power_scale(draw)) if kind == "ties" else (scale(draw), scale(draw))


def constants(draw: Draw) -> tuple[bool, bool]:
    """(weights, quantization parameters) stored as initializers or given at run time."""
    return pick(draw, ((True, True), (False, False), (False, True), (True, False)))


def filled(name: str, dtype: str, shape: Shape, data: Data, const: bool = False) -> Arg:
    return Arg(name, dtype, shape, data[0], data[1], const=const)


def scalar(name: str, dtype: str, value: float, const: bool = False) -> Arg:
    return Arg(name, dtype, (), values=(value,), const=const)


def vector(name: str, dtype: str, values: Sequence[float], const: bool = False) -> Arg:
    return Arg(name, dtype, (len(values),), values=tuple(values), const=const)


def make_case(
    draw: Draw,
    op: str,
    args: Sequence[Arg],
    outputs: Sequence[str],
    attrs: Mapping[str, Attr | Arg | None] | None = None,
    opset: int = 13,
    profile: str = "plain",
    domain: str = "",
) -> Case:
    """A case with a drawn data seed; attributes of None are left out."""
    while args and args[-1].absent:
        args = args[:-1]
    stated = tuple((k, v) for k, v in (attrs or {}).items() if v is not None)
    return Case(op, domain, opset, tuple(args), tuple(outputs), stated, draw(_below(2**31)), profile)


@st.composite
def spread(draw: Draw, cases: st.SearchStrategy[Case]) -> Case:
    """These cases, one in LATER at the first opset of a later version of its operator, each version as often.

    Runtimes register a kernel for each version: one that is wrong from opset 19 on may be right at opset 13.
    """
    case = draw(cases)
    if not rarely(draw, LATER):
        return case
    from .versions import later  # onnx is slow to import

    found = later(case)
    return replace(case, opset=pick(draw, found)) if found else case


def rows(
    op: str,
    source: str,
    labels: Sequence[str],
    strategy: Callable[..., st.SearchStrategy[Case]],
    *extra: Any,
    domain: str = "",
) -> tuple[CaseSpec, ...]:
    """One row per dtype combination: `strategy(*extra, *dtypes of the label)`."""
    return tuple(CaseSpec(op, label, strategy(*extra, *label.split(",")), source, domain) for label in labels)
