"""Kernels of known construction, written element by element and apart from opgauge's formulas: what the card must name.

`KERNELS[name]` is `run(model_bytes, inputs) -> outputs` for one operator; anything else raises NotImplementedError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

F = np.float32
Tensors = Mapping[str, np.ndarray]
Run = Callable[[bytes, Tensors], list[np.ndarray]]


def node_of(model: bytes, inputs: Tensors) -> tuple[str, list[Any], dict[str, Any]]:
    graph = onnx.load_from_string(model).graph
    (node,) = graph.node
    stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    attrs = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return node.op_type, [inputs.get(n, stored.get(n)) if n else None for n in node.input], attrs


def only(op: str, body: Callable[..., np.ndarray]) -> Run:
    def run(model: bytes, inputs: Tensors) -> list[np.ndarray]:
        name, operands, attrs = node_of(model, inputs)
        if name != op:
            raise NotImplementedError(f"only {op}")
        with np.errstate(all="ignore"):
            return [body(*operands, **attrs)]

    return run


# ---- rounding of one number


def even(v: float) -> int:
    return round(v)


def away(v: float) -> int:
    below = math.floor(abs(v))
    return int(math.copysign(1, v)) * (below + (abs(v) - below >= 0.5))


def up(v: float) -> int:
    below = math.floor(v)
    return below + (v - below >= 0.5)


def down(v: float) -> int:
    return -up(-v)


def odd(v: float) -> int:
    below = math.floor(v)
    return below + (v - below > 0.5 or (v - below == 0.5 and below % 2 == 0))


def stochastic(v: float) -> int:
    """No rounding that anybody knows: up from a fraction that depends on the number."""
    below = math.floor(v)
    return below + (v - below >= 0.35 + 0.3 * (below % 3 == 0))


def byte(v: int, dtype: Any) -> int:
    info = np.iinfo(dtype)
    return min(max(v, info.min), info.max)


# ---- quantization


def quantize(rounded: Callable[[float], int], number: Callable[[Any, Any], Any], inside: bool = False) -> Run:
    def body(x: Any, scale: Any, zero: Any) -> np.ndarray:
        def one(v: Any) -> int:
            q = number(v, scale)
            if math.isnan(q):
                return int(zero)
            z = int(zero)
            return byte(rounded(float(q + type(q)(z))) if inside else rounded(float(q)) + z, zero.dtype)

        return np.array([one(v) for v in x.ravel()]).astype(zero.dtype).reshape(x.shape)

    return only("QuantizeLinear", body)


def divided(v: Any, s: Any) -> Any:
    return v / s


def by_reciprocal(v: Any, s: Any) -> Any:
    return v * (F(1) / s)


def in_double(v: Any, s: Any) -> Any:
    return np.float64(v) / np.float64(s)


# ---- requantization


def requantize(
    rounded: Callable[[float], int],
    number: Callable[[int, Any, Any, Any], Any],
    inside: bool = False,
    op: str = "QLinearMatMul",
) -> Run:
    def body(a: Any, sa: Any, za: Any, b: Any, sb: Any, zb: Any, sy: Any, zy: Any) -> np.ndarray:
        left, right = a.astype(int) - int(za), b.astype(int) - int(zb)
        acc = left @ right if op == "QLinearMatMul" else left * right
        z = int(zy)

        def one(total: int) -> int:
            v = number(total, sa, sb, sy)
            return byte(rounded(float(v + type(v)(z))) if inside else rounded(float(v)) + z, zy.dtype)

        return np.array([one(int(t)) for t in acc.ravel()]).astype(zy.dtype).reshape(acc.shape)

    return only(op, body)


def multiplied(acc: int, sa: Any, sb: Any, sy: Any) -> Any:
    return F(acc) * ((sa * sb) / sy)


def divided_last(acc: int, sa: Any, sb: Any, sy: Any) -> Any:
    return (F(acc) * (sa * sb)) / sy


def two_steps(acc: int, sa: Any, sb: Any, sy: Any) -> Any:
    return ((F(acc) * sa) * sb) / sy


def with_reciprocal(acc: int, sa: Any, sb: Any, sy: Any) -> Any:
    return F(acc) * ((sa * sb) * (F(1) / sy))


def first_over(acc: int, sa: Any, sb: Any, sy: Any) -> Any:
    return F(acc) * ((sa / sy) * sb)


def double(acc: int, sa: Any, sb: Any, sy: Any) -> Any:
    return np.float64(acc) * (np.float64(sa) * np.float64(sb) / np.float64(sy))


def half_scale(acc: int, sa: Any, sb: Any, sy: Any) -> Any:
    return F(acc) * F(np.float16((sa * sb) / sy))


def off_by_a_little(acc: int, sa: Any, sb: Any, sy: Any) -> Any:
    return F(acc) * (((sa * sb) / sy) * F(1 + 2.0**-18))


def _integer_multiplier(sa: Any, sb: Any, sy: Any) -> tuple[int, int]:
    fraction, exponent = math.frexp(float(sa) * float(sb) / float(sy))
    return round(fraction * 2**31), 31 - exponent


def q31_once(acc: int, sa: Any, sb: Any, sy: Any) -> Any:
    whole, shift = _integer_multiplier(sa, sb, sy)
    return np.float64(math.floor(Fraction(acc * whole, 2**shift) + Fraction(1, 2)))


def q31_twice(acc: int, sa: Any, sb: Any, sy: Any) -> Any:
    """As gemmlowp writes it."""
    whole, shift = _integer_multiplier(sa, sb, sy)
    left, right = max(31 - shift, 0), max(shift - 31, 0)
    product = (acc << left) * whole
    total = product + ((1 << 30) if product >= 0 else 1 - (1 << 30))
    high = abs(total) // 2**31 * (1 if total >= 0 else -1)
    mask = (1 << right) - 1
    remainder, threshold = high & mask, (mask >> 1) + (high < 0)
    return np.float64((high >> right) + (remainder > threshold))


# ---- sums


def integer_sum(step: Callable[[list[int]], int]) -> Run:
    def body(a: Any, b: Any, *zeros: Any) -> np.ndarray:
        rows = [[step([int(x) * int(y) for x, y in zip(row, col, strict=True)]) for col in b.T] for row in a]
        return np.array(rows).astype(np.int32)

    return only("MatMulInteger", body)


def wrapped(terms: list[int]) -> int:
    return (sum(terms) + 2**31) % 2**32 - 2**31


def saturated(bits: int) -> Callable[[list[int]], int]:
    def total(terms: list[int]) -> int:
        acc = 0
        for t in terms:
            acc = min(max(acc + t, -(2 ** (bits - 1))), 2 ** (bits - 1) - 1)
        return acc

    return total


def paired(terms: list[int]) -> int:
    padded = [*terms, *[0] * (len(terms) % 2)]
    pairs = [padded[i] + padded[i + 1] for i in range(0, len(padded), 2)]
    return sum(min(max(p, -(2**15)), 2**15 - 1) for p in pairs)


def in_float(terms: list[int]) -> int:
    acc = F(0)
    for t in terms:
        acc = acc + F(t)
    return min(int(acc), 2**31 - 1)


def byte_sum(terms: list[int]) -> int:
    """No accumulator that anybody knows: each sum is kept in 20 bits."""
    acc = 0
    for t in terms:
        acc = (acc + t + 2**19) % 2**20 - 2**19
    return acc


def float_sum(order: Callable[[list[Any], list[Any]], Any]) -> Run:
    def body(a: Any, b: Any) -> np.ndarray:
        return np.array([[order(list(row), list(col)) for col in b.T] for row in a], F)

    return only("MatMul", body)


def fused(a: Any, b: Any, c: Any) -> Any:
    """Exactly rounded once."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    near = F(float(exact))  # twice rounded: set right where a neighbour is nearer
    around = [near, np.nextafter(near, F(np.inf)), np.nextafter(near, F(-np.inf))]
    return min(around, key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(np.int32)) & 1))


def in_turn(a: list[Any], b: list[Any]) -> Any:
    acc = F(0)
    for x, y in zip(a, b, strict=True):
        acc = acc + x * y
    return acc


def in_turn_fused(a: list[Any], b: list[Any]) -> Any:
    acc = F(0)
    for x, y in zip(a, b, strict=True):
        acc = fused(x, y, acc)
    return acc


def backwards(a: list[Any], b: list[Any]) -> Any:
    return in_turn(a[::-1], b[::-1])


def eight_lanes(a: list[Any], b: list[Any]) -> Any:
    lanes = [F(0)] * 8
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        lanes[i % 8] = lanes[i % 8] + x * y
    if len(a) < 8:
        return in_turn(a, b)
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))


def blocked(a: list[Any], b: list[Any]) -> Any:
    acc = None
    for i in range(0, len(a), 32):
        part = in_turn(a[i : i + 32], b[i : i + 32])
        acc = part if acc is None else acc + part
    return acc


def pairwise(a: list[Any], b: list[Any]) -> Any:
    if len(a) == 1:
        return a[0] * b[0]
    half = len(a) // 2
    return pairwise(a[:half], b[:half]) + pairwise(a[half:], b[half:])


def wide(a: list[Any], b: list[Any]) -> Any:
    return F(math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True)))


def shuffled(a: list[Any], b: list[Any]) -> Any:
    """An order that nobody uses."""
    order = sorted(range(len(a)), key=lambda i: (i * 7919) % 104729)
    return in_turn([a[i] for i in order], [b[i] for i in order])


def narrowed(bits: int) -> Run:
    def body(a: Any, b: Any) -> np.ndarray:
        def rounded(x: Any) -> Any:
            fraction, exponent = math.frexp(float(x))
            return F(math.ldexp(round(fraction * 2**bits), exponent - bits))

        return np.array([[in_turn([rounded(x) for x in r], [rounded(x) for x in c]) for c in b.T] for r in a], F)

    return only("MatMul", body)


# ---- special values


def pairs(op: str, one: Callable[[float, float], float]) -> Run:
    return only(op, lambda a, b: np.array([one(x, y) for x, y in zip(a, b, strict=True)], F))


def flushing(inputs: bool, results: bool) -> Run:
    def small(x: float) -> float:
        return 0.0 if abs(x) < 2.0**-126 else x

    def one(x: float, y: float) -> float:
        x, y = (small(x), small(y)) if inputs else (x, y)
        return small(F(x * y)) if results else x * y

    return only("Mul", lambda a, b: np.array([one(float(x), float(y)) for x, y in zip(a, b, strict=True)], F))


def each(op: str, one: Callable[..., float]) -> Run:
    return only(op, lambda x, *rest, **attrs: np.array([one(float(v), *rest) for v in x.ravel()], F).reshape(x.shape))


def second(x: float, y: float) -> float:
    return x if x > y else y


def first(x: float, y: float) -> float:
    return y if y > x else x


def dropped(x: float, y: float) -> float:
    if math.isnan(x) or math.isnan(y):
        return y if math.isnan(x) else x
    return 0.0 if x == y == 0 else max(x, y)
