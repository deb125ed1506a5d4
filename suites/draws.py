"""What rows draw with: bounded integers, the plainest choice first, so that a failing case shrinks towards it.

Every choice is one `st.integers` draw: cheap, shrinkable, and of the probability written here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case, CaseSpec

T = TypeVar("T")
Draw = Callable[[Any], Any]
Shape = tuple[int, ...]

# Around the vector widths of common processors.
WIDTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96)
# Just above the block sizes of matrix kernels (I/O pipelines of several blocks of 256 included).
LONG = (255, 256, 257, 259, 511, 513, 768, 1023, 1024, 1025, 1027, 1090, 1153, 1279, 1300, 2049, 2063, 2100)
# Quantized rows: two draws of ten are the tie probe (NUMERICS section 6).
KINDS = ("plain",) * 11 + ("ties",) * 5 + ("extremes",) * 2 + ("saturate",) * 2


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
    """One quantized input: its data, and the moments of (x - zero_point) that decide a fitting y_scale."""

    dtype: str
    zero_point: int
    profile: str
    params: tuple[float, ...]
    mean: float
    std: float

    def arg(self, name: str, shape: Shape, const: bool = False) -> Arg:
        return Arg(name, self.dtype, shape, self.profile, self.params, const=const)


def operand(draw: Draw, dtype: str, kind: str, weight: bool = False) -> Operand:
    """Data and zero point of one quantized input for a case of this kind."""
    low, high = dt.limits(dtype)
    middle = (low + high + 1) // 2
    half = (high - low) / 2
    if kind == "ties":
        radius = 1 if weight else 12
        z = pick(draw, (middle, middle + 1, between(draw, low + 12, high - 12)))
        return Operand(dtype, z, "near", (z, radius), 0.0, math.sqrt(radius * (radius + 1) / 3))
    z = pick(draw, (middle, 0, middle + 3)) if weight and not rarely(draw, 3) else zero_point(draw, dtype)
    if kind == "extremes":
        return Operand(dtype, z, "extremes", (), low + half - z, half)
    profile = pick(draw, ("uniform", "uniform", "normal", "near", "sparse"))
    if profile == "uniform":
        return Operand(dtype, z, "uniform", (), low + half - z, half / math.sqrt(3))
    if profile == "sparse":
        second = ((low + half - z) ** 2 + half**2 / 3) / 8
        mean = (low + half - z) / 8
        return Operand(dtype, z, "sparse", (z,), mean, math.sqrt(max(second - mean**2, 1.0)))
    if profile == "normal":
        std = pick(draw, (20, 4, 50))
        clipped = 0.4 * std if z - low < std else -0.4 * std if high - z < std else 0.0
        return Operand(dtype, z, "normal", (std, z), clipped, 0.6 * std if clipped else std)
    radius = pick(draw, (12, 3, 40))
    clipped = radius / 4 if z - low < radius else -radius / 4 if high - z < radius else 0.0
    return Operand(dtype, z, "near", (z, radius), clipped, radius * (0.35 if clipped else 0.6))


def fitting_zero_point(draw: Draw, dtype: str, centre: float, std: float) -> int:
    """A zero point that leaves some of `centre +- std` inside the range."""
    low, high = dt.limits(dtype)
    wanted = zero_point(draw, dtype)
    if low + 0.3 * std <= centre + wanted + std and centre + wanted - std <= high - 0.3 * std:
        return wanted
    return int(min(max(round((low + high) / 2 - centre), low), high))


def requantization(draw: Draw, kind: str, dtype: str, in_scale: float, mean: float, std: float) -> tuple[float, int]:
    """(y_scale, y_zero_point) that spread `in_scale * (mean +- std)` over the output range.

    Source: NUMERICS section 6, a standard deviation of 4 to 200 quanta; drawn freely, four cases of five saturate
    everywhere.
    """
    low, high = dt.limits(dtype)
    std = max(std, 0.5)
    if kind == "ties":
        y_scale = in_scale * pick(draw, (2.0, 4.0))
        centre = (low + high + 1) // 2
        return y_scale, pick(draw, (centre, centre + 1, between(draw, centre - 40, centre + 40)))
    target = pick(draw, (300.0, 150.0, 1000.0) if kind == "saturate" else (16.0, 40.0, 4.0, 80.0))
    target = min(target, 0.7 * (high - low) * std / abs(mean)) if mean else target
    if kind == "plain" and rarely(draw, 24):
        target *= 2.0 ** between(draw, -5, 5)
    y_scale = scale_near(draw, in_scale * std / target)
    unit = in_scale / y_scale
    return y_scale, fitting_zero_point(draw, dtype, mean * unit, std * unit)


def power_scale(draw: Draw) -> float:
    return 2.0 ** -between(draw, 0, 10)


def pair_scales(draw: Draw, kind: str) -> tuple[float, float]:
    """Two input scales: powers of two where ties are wanted, three times such powers now and then."""
    if kind != "ties":
        return scale(draw), scale(draw)
    factor = 3.0 if rarely(draw, 6) else 1.0
    return factor * power_scale(draw), power_scale(draw)


def constants(draw: Draw) -> tuple[bool, bool]:
    """(weights, quantization parameters) stored as initializers or given at run time."""
    return pick(draw, ((True, True), (False, False), (False, True), (True, False)))


def scalar(name: str, dtype: str, value: float, const: bool = False) -> Arg:
    return Arg(name, dtype, (), values=(value,), const=const)


def vector(name: str, dtype: str, values: Sequence[float], const: bool = False) -> Arg:
    return Arg(name, dtype, (len(values),), values=tuple(values), const=const)


def make_case(
    draw: Draw,
    op: str,
    args: Sequence[Arg],
    outputs: Sequence[str],
    attrs: dict[str, Attr | None] | None = None,
    opset: int = 13,
    profile: str = "plain",
    domain: str = "",
) -> Case:
    """A case with a drawn data seed, now and then at a higher opset; attributes of None are left out."""
    if rarely(draw, 12):
        opset = max(opset, pick(draw, (17, 18, 19, 20, 21)) if op not in UNSTABLE else opset)
    while args and args[-1].absent:
        args = args[:-1]
    stated = tuple((k, v) for k, v in (attrs or {}).items() if v is not None)
    return Case(op, domain, opset, tuple(args), tuple(outputs), stated, draw(_below(2**31)), profile)


# Their attributes or inputs changed after opset 13: a row states the opset itself.
UNSTABLE = frozenset({"ReduceMax", "ReduceMin", "ReduceMean", "Split"})


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
