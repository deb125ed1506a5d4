"""Formulas by which runtimes quantize: given the number that is scaled, each says to the bit what comes out.

A formula is spelled `EXPRESSION, ROUNDING, zero point PLACE`. The acceptance sets of the reference admit every honest
formula; these are single ones, so that a runtime found to follow one can be held to it exactly (N10).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine import rounding
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.types import Array, Graph, Node

F, D = np.float32, np.float64


class Step(NamedTuple):
    """What one quantizing primitive of a graph is given.

    Shapes: x [O,C,I]; numerators, denominators, zero_point broadcastable to x.
    Dtypes: x int64 (a sum) or float32 (a number to quantize); factors float32; zero_point int64.
    `terms` are the operands of a sum of two dequantized tensors, ((x, scale, zero_point), ...), else empty.
    """

    node: Node
    x: Array
    numerators: tuple[Array, ...]
    denominators: tuple[Array, ...]
    zero_point: Array
    to: str
    terms: tuple[tuple[Array, Array, Array], ...] = ()


# ---- rounding


def _down(v: Array) -> Array:
    return np.where(np.abs(v - np.trunc(v)) == 0.5, np.floor(v), np.rint(v))


def _half_odd(v: Array) -> Array:
    whole = np.rint(v)
    return np.where(np.abs(v - np.trunc(v)) == 0.5, 2 * v - whole, whole)


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "half to even": np.rint,
    "half away from zero": rounding.MODES["away"],
    "half up": rounding.MODES["up"],
    "half down": _down,
    "half to odd": _half_odd,
    "floor": np.floor,
    "truncate": np.trunc,
    "ceil": np.ceil,
}
PLACES = ("outside", "inside")


def finish(v: Array, zero_point: Array, to: str, mode: str, place: str) -> Array:
    """saturate(R(v) + zero_point), or saturate(R(v + zero_point)) with the sum in the type of v."""
    rounded = ROUNDINGS[mode]
    if place == "inside":
        return rounding.saturate(rounded((v + zero_point.astype(v.dtype)).astype(D)), to)
    return rounding.saturate(rounded(v.astype(D)) + zero_point, to)


# ---- the number before rounding


def _product(factors: Sequence[Array], kind: type = F) -> Array:
    return functools.reduce(operator.mul, (f.astype(kind) for f in factors), kind(1.0))


def _multiplier(s: Step, kind: type = F) -> Array:
    return _product(s.numerators, kind) / _product(s.denominators, kind)


def _first_over(s: Step) -> Array:
    """(sa / sy) * sb"""
    return _product([_product(s.numerators[:1]) / _product(s.denominators), *s.numerators[1:]])


def _last_over(s: Step) -> Array:
    """sa * (sb / sy)"""
    return _product([*s.numerators[:-1], _product(s.numerators[-1:]) / _product(s.denominators)])


def _reciprocal(s: Step) -> Array:
    return F(1.0) / _product(s.denominators)


def _narrow(x: Array, word: str) -> Array:
    return x.astype(dt.numpy_dtype(word)).astype(F)


REQUANTIZE: dict[str, Callable[[Step], Array]] = {
    "acc * ((sa * sb) / sy)": lambda s: s.x.astype(F) * _multiplier(s),
    "acc * ((sa * sb) * (1 / sy))": lambda s: s.x.astype(F) * (_product(s.numerators) * _reciprocal(s)),
    "acc * ((sa / sy) * sb)": lambda s: s.x.astype(F) * _first_over(s),
    "acc * (sa * (sb / sy))": lambda s: s.x.astype(F) * _last_over(s),
    "(acc * (sa * sb)) / sy": lambda s: s.x.astype(F) * _product(s.numerators) / _product(s.denominators),
    "(acc * (sa * sb)) * (1 / sy)": lambda s: s.x.astype(F) * _product(s.numerators) * _reciprocal(s),
    "((acc * sa) * sb) / sy": lambda s: _product([s.x, *s.numerators]) / _product(s.denominators),
    "((acc * sa) * sb) * (1 / sy)": lambda s: _product([s.x, *s.numerators]) * _reciprocal(s),
    "acc * ((sa * sb) / sy) in float64": lambda s: s.x.astype(D) * _multiplier(s, D),
    "acc * float32((sa * sb) / sy in float64)": lambda s: s.x.astype(F) * _multiplier(s, D).astype(F),
    "acc * float16((sa * sb) / sy)": lambda s: s.x.astype(F) * _narrow(_multiplier(s), "float16"),
    "acc * bfloat16((sa * sb) / sy)": lambda s: s.x.astype(F) * _narrow(_multiplier(s), "bfloat16"),
}


def _range(s: Step) -> tuple[Array, Array]:
    """The least and the largest number that the output type holds, in float32."""
    low, high = dt.limits(s.to)
    scale = _product(s.denominators)
    return (F(low) - s.zero_point.astype(F)) * scale, (F(high) - s.zero_point.astype(F)) * scale


def _index(s: Step, divided: bool) -> Array:
    """The place of x in the range of the type, counted from 0 in float32, as a number of the type (FakeQuantize)."""
    least, most = _range(s)
    low, high = dt.limits(s.to)
    levels, away = F(high - low), s.x.astype(F) - least
    index = away / (most - least) * levels if divided else away * (levels / (most - least))
    return index.astype(D) + low


QUANTIZE: dict[str, Callable[[Step], Array]] = {
    "x / scale": lambda s: s.x.astype(F) / _product(s.denominators),
    "x * (1 / scale)": lambda s: s.x.astype(F) * _reciprocal(s),
    "x / scale in float64": lambda s: s.x.astype(D) / _product(s.denominators, D),
    "x * (1 / scale) in float64": lambda s: s.x.astype(D) * (1.0 / _product(s.denominators, D)),
    "x / scale in float16": lambda s: (
        (_narrow(s.x, "float16") / _narrow(_product(s.denominators), "float16")).astype(np.float16).astype(F)
    ),
}
# They round a number that holds the zero point, so that its place is not a choice.
QUANTIZE_WHOLE: dict[str, Callable[[Step], Array]] = {
    "(x - least) * (levels / range)": lambda s: _index(s, False),
    "(x - least) / range * levels": lambda s: _index(s, True),
}


def _dequantized(s: Step) -> list[Array]:
    return [(x - z).astype(F) * scale for x, scale, z in s.terms]


def _ratios(s: Step, reciprocal: bool = False) -> list[Array]:
    y_scale = _product(s.denominators)
    return [scale * (F(1.0) / y_scale) if reciprocal else scale / y_scale for _, scale, _ in s.terms]


def _scaled(s: Step, reciprocal: bool = False) -> Array:
    (a, _, za), (b, _, zb) = s.terms
    ra, rb = _ratios(s, reciprocal)
    return (a - za).astype(F) * ra + (b - zb).astype(F) * rb


def _expanded(fused: bool, b_first: bool) -> Callable[[Step], Array]:
    """(z - (ra za + rb zb)) + ra a + rb b"""

    def number(s: Step) -> Array:
        (a, _, za), (b, _, zb) = s.terms
        ra, rb = _ratios(s)
        total = s.zero_point.astype(F) - (ra * za.astype(F) + rb * zb.astype(F))
        for x, ratio in ((b, rb), (a, ra)) if b_first else ((a, ra), (b, rb)):
            total = fma(ratio, x.astype(F), total) if fused else x.astype(F) * ratio + total
        return total.astype(D)

    return number


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c for float32 with one rounding: the product is exact in float64, the sum is rounded to odd first."""
    product, addend = a.astype(D) * b.astype(D), np.asarray(c).astype(D)
    with np.errstate(all="ignore"):
        total = product + addend
        part = total - product
        error = (product - (total - part)) + (addend - part)
        bits = total.view(np.int64)
        inexact = np.isfinite(total) & (error != 0) & (bits % 2 == 0)
        away = (error > 0) == (total > 0)
        odd = np.where(inexact, bits + np.where(away, 1, -1), bits).view(D)
    return np.asarray(odd.astype(F))


ADD: dict[str, Callable[[Step], Array]] = {
    "((a - za) * sa + (b - zb) * sb) / sy": lambda s: sum(_dequantized(s), F(0)) / _product(s.denominators),
    "((a - za) * sa + (b - zb) * sb) * (1 / sy)": lambda s: sum(_dequantized(s), F(0)) * _reciprocal(s),
    "(a - za) * (sa / sy) + (b - zb) * (sb / sy)": _scaled,
    "(a - za) * (sa * (1 / sy)) + (b - zb) * (sb * (1 / sy))": lambda s: _scaled(s, True),
    "in float64": lambda s: sum((x - z) * scale.astype(D) for x, scale, z in s.terms) / _product(s.denominators, D),
}
ADD_WHOLE: dict[str, Callable[[Step], Array]] = {
    "(zy - (ra * za + rb * zb)) + ra * a + rb * b": _expanded(False, False),
    "(zy - (ra * za + rb * zb)) + rb * b + ra * a": _expanded(False, True),
    "fma(rb, b, fma(ra, a, zy - (ra * za + rb * zb)))": _expanded(True, False),
    "fma(ra, a, fma(rb, b, zy - (ra * za + rb * zb)))": _expanded(True, True),
}


# ---- fixed point


def _fixed_multiplier(s: Step, bits: int) -> tuple[Array, Array]:
    """(integer of `bits` bits, right shift) with multiplier = integer * 2^-shift, in (2^(bits-1), 2^bits]."""
    fraction, exponent = np.frexp(_multiplier(s, D))
    whole = np.rint(fraction * 2.0**bits).astype(np.int64)
    return whole, (bits - exponent).astype(np.int64)


def _shifted(value: Array, shift: Array) -> Array:
    """Half up."""
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
    return np.where(shift > 0, (value + half) >> np.maximum(shift, 0), value << np.maximum(-shift, 0))


def _fixed_once(s: Step, bits: int = 31) -> Array:
    whole, shift = _fixed_multiplier(s, bits)
    return _shifted(s.x * whole, shift)


def _fixed_away(s: Step) -> Array:
    whole, shift = _fixed_multiplier(s, 31)
    return np.sign(s.x) * _shifted(np.abs(s.x) * whole, shift)


def _fixed_twice(s: Step) -> Array:
    """The high half of the doubled product, half up, then a power of two, half away from zero (gemmlowp)."""
    whole, shift = _fixed_multiplier(s, 31)
    left = np.maximum(31 - shift, 0)
    product = (s.x << left) * whole
    nudge = np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    total = product + nudge
    high = np.where(total >= 0, total >> 31, -((-total) >> 31))  # C's division by 2^31
    right = np.maximum(shift - 31, 0)
    return np.where(right > 0, np.sign(high) * _shifted(np.abs(high), right), high)


FIXED: dict[str, Callable[[Step], Array]] = {
    "Q31, one rounding half up": _fixed_once,
    "Q31, one rounding half away from zero": _fixed_away,
    "Q31, two roundings": _fixed_twice,
    "Q15, one rounding half up": lambda s: _fixed_once(s, 15),
}


# ---- all of them


class Formula(NamedTuple):
    """A named formula; `mode` and `place` are empty where they are part of the expression."""

    expression: str
    mode: str
    place: str

    def __str__(self) -> str:
        parts = (self.expression, self.mode, self.place and f"zero point {self.place}")
        return ", ".join(p for p in parts if p)


class Prediction(NamedTuple):
    """What a formula returns, int64 [O,C,I]."""

    formula: Formula
    value: Array


Numbers = Mapping[str, Callable[[Step], Array]]


def _kinds(step: Step) -> tuple[Numbers, Numbers]:
    """Expressions whose zero point may be added before or after, and those that hold it already."""
    if step.terms:
        return ADD, ADD_WHOLE
    return (REQUANTIZE, {}) if step.node.primitive == "Requantize" else (QUANTIZE, QUANTIZE_WHOLE)


def predictions(step: Step) -> Iterator[Prediction]:
    """Every formula of the step's kind with what it returns."""
    with np.errstate(all="ignore"):
        floats, whole = _kinds(step)
        for expression, number in floats.items():
            v = np.broadcast_to(number(step), step.x.shape)
            for mode in ROUNDINGS:
                for place in PLACES:
                    made = finish(v, step.zero_point, step.to, mode, place)
                    yield Prediction(Formula(expression, mode, place), made)
        for expression, number in whole.items():
            v = np.broadcast_to(number(step), step.x.shape)
            for mode in ROUNDINGS:
                yield Prediction(Formula(expression, mode, ""), rounding.saturate(ROUNDINGS[mode](v), step.to))
        if step.node.primitive == "Requantize":
            for expression, number in FIXED.items():
                made = rounding.saturate((number(step) + step.zero_point).astype(D), step.to)
                yield Prediction(Formula(expression, "", ""), made)


def explaining(step: Step, actual: Array) -> list[Formula]:
    """The formulas that give every element. Shapes: actual [O,C,I]."""
    seen = actual.astype(np.int64)
    return [p.formula for p in predictions(step) if np.array_equal(p.value, seen)]


# ---- from a graph


def step_of(graph: Graph, feeds: Mapping[str, Array]) -> Step | None:
    """The one quantizing step whose result, merely moved, is the graph's only output; None where there is none.

    Sums that leave 2^31 or 24 bits of float32 are no step: there the accumulator speaks, not the formula.
    """
    makers = {node.output: node for node in graph.nodes}
    steps = [n for n in graph.nodes if n.kind in ("Requantize", "Quantize")]
    if len(steps) != 1 or len(graph.outputs) != 1:
        return None
    node = steps[0]
    name = graph.outputs[0]
    while name != node.output:
        maker = makers.get(name)
        if maker is None or maker.kind != "DataMove.reshape":
            return None
        name = maker.inputs[0]
    tensors = {**graph.constants, **{n: feeds[n] for n in graph.inputs}}
    walk = _Walk(makers, tensors)
    x, factor, zero_point = node.inputs
    scales, z = walk.quotient(factor), walk.value(zero_point)
    if scales is None or z is None:
        return None
    zero = _channels(z.astype(np.int64))
    over, under = (tuple(map(_channels, part)) for part in scales)
    to = str(node.attrs["to"])
    if node.primitive == "Requantize":
        whole = evaluate(replace(graph, outputs=(x,), forced=()), feeds)[0]
        if whole.free is not None or (np.abs(np.asarray(whole.value, np.int64)) >= 2**30).any():
            return None
        acc = np.asarray(whole.value, np.int64)
        return Step(node, acc, over, under, zero, to)
    data, terms = walk.value(x), walk.terms(x)
    if data is not None and data.dtype == F:
        return Step(node, data, under, over, zero, to)
    if terms:
        return Step(node, terms[0][0], (), over, zero, to, terms)
    return None


def _channels(p: Array) -> Array:
    return p[None, :, None]


class _Walk(NamedTuple):
    """Values of a graph that only move or multiply, found by walking back from them."""

    makers: Mapping[str, Node]
    tensors: Mapping[str, Array]

    def value(self, name: str) -> Array | None:
        """The content of a tensor that is given, reshaped or expanded."""
        if name in self.tensors:
            return np.asarray(self.tensors[name])
        node = self.makers.get(name)
        moved = self.value(node.inputs[0]) if node and node.kind in ("DataMove.reshape", "DataMove.expand") else None
        return _moved(node, moved) if node and moved is not None else None

    def quotient(self, name: str) -> tuple[list[Array], list[Array]] | None:
        """(factors, divisors) of a float32 number made of products and quotients alone."""
        if name in self.tensors:
            given = np.asarray(self.tensors[name])
            return ([given.astype(F)], []) if given.dtype == F else None
        node = self.makers[name]
        parts = [self.quotient(n) for n in node.inputs]
        if any(p is None for p in parts):
            return None
        known = [p for p in parts if p is not None]
        if node.kind in ("DataMove.reshape", "DataMove.expand"):
            return [_moved(node, a) for a in known[0][0]], [_moved(node, a) for a in known[0][1]]
        if node.kind == "Elementwise.mul":
            return known[0][0] + known[1][0], known[0][1] + known[1][1]
        if node.kind == "Elementwise.div":
            return known[0][0] + known[1][1], known[0][1] + known[1][0]
        return None

    def terms(self, name: str) -> tuple[tuple[Array, Array, Array], ...]:
        """The two operands of a sum of dequantized tensors with one scale each, shaped like the sum [O,C,I]."""
        moves: list[Node] = []
        node = self.makers.get(name)
        while node is not None and node.kind in ("DataMove.reshape", "DataMove.expand"):
            moves.append(node)
            node = self.makers.get(node.inputs[0])
        if node is None or node.kind != "Elementwise.add":
            return ()
        found = [self._operand(n) for n in node.inputs]
        return (
            tuple(
                (functools.reduce(lambda a, m: _moved(m, a), reversed(moves), x), scale, z)
                for each in found
                if each is not None
                for x, scale, z in [each]
            )
            if all(found)
            else ()
        )

    def _operand(self, name: str) -> tuple[Array, Array, Array] | None:
        moves: list[Node] = []
        node = self.makers.get(name)
        while node is not None and node.kind in ("DataMove.reshape", "DataMove.expand"):
            moves.append(node)
            node = self.makers.get(node.inputs[0])
        if node is None or node.kind != "Dequantize":
            return None
        x, scale, z = (self.value(n) for n in node.inputs)
        if x is None or scale is None or z is None or scale.size != 1 or scale.dtype != F:
            return None
        moved = functools.reduce(lambda a, m: _moved(m, a), reversed(moves), x.astype(np.int64))
        return moved, scale.reshape(1, 1, 1), z.astype(np.int64).reshape(1, 1, 1)


def _moved(node: Node, array: Array) -> Array:
    shape = tuple(node.attrs["shape"])
    return array.reshape(shape) if node.kind == "DataMove.reshape" else np.broadcast_to(array, shape)
