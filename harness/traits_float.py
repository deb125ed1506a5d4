"""Traits of float arithmetic: subnormals, NaN and signed zeros, orders of sums, division, accuracy of functions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping

import numpy as np

from opgauge.reference_engine.primitives.pointwise.functions import FUNCTIONS
from opgauge.reference_engine.types import Array

from . import sums
from .traits import FORMULA_TRAITS, INTEGER_TRAITS, Accepts, Labels, Probe, Says, Trait, literal, table

F, D = np.float32, np.float64
NORMAL = 2.0**-126

# ---- subnormals


def _flush(x: Array, flushed: bool) -> Array:
    return np.where((np.abs(x) < NORMAL) & flushed, 0.0, x).astype(F)


def subnormals(op: Callable[[Array, Array], Array]) -> Callable[[Probe], Mapping[Labels, Says]]:
    """(inputs, results): kept or flushed. The product or sum of two float32 is taken in float64."""

    def predict(p: Probe) -> Mapping[Labels, Says]:
        a, b = p.tensors["A"], p.tensors["B"]
        return {
            (i, o): _flush(op(_flush(a, i == "flushed").astype(D), _flush(b, i == "flushed").astype(D)), o == "flushed")
            for i in ("kept", "flushed")
            for o in ("kept", "flushed")
        }

    return predict


SUBNORMAL_AXES = ("subnormal inputs", "subnormal results")
# Inputs below 2^-126 with results above it, then the other way round.
_SMALL_PRODUCTS = ("1e-40,3e-41,9e-39,2e-42,1e-20,3e-25,2e-30,7e-22", "1e20,1e25,1e3,1e30,1e-20,1e-15,2e-10,9e-19")
_SMALL_SUMS = (
    "1.18e-38,2e-38,1.2e-38,5e-38,1.5e-38,1.3e-38,4e-38,2e-38",
    "1e-40,3e-39,9e-39,7e-39,-1.2e-38,-1.2e-38,-3e-38,-1.9e-38",
)

# ---- NaN and zeros

NAN_ROWS = {
    "propagates": "nan nan nan",
    "the other operand": "1 1 nan",
    "the first operand": "nan 1 nan",
    "the second operand": "1 nan nan",
}
ZERO_ROWS = {
    "Max": {"+0": "0 0", "the first operand": "-0.0 0", "the second operand": "0 -0.0"},
    "Min": {"-0": "-0.0 -0.0", "the first operand": "-0.0 0", "the second operand": "0 -0.0"},
}


def joint(nan: Mapping[str, str], zero: Mapping[str, str]) -> Callable[[Probe], Mapping[Labels, Says]]:
    """Every combination of what becomes of NaN with what becomes of zeros, the results one after the other."""
    return lambda p: {(n, z): literal(f"{nan[n]} {zero[z]}")(p) for n, z in itertools.product(nan, zero)}


_TIMES = 8  # long enough for vectors and a tail: 40 elements and 2 more


def _repeated(values: str) -> str:
    words = values.split(",")
    return ",".join((words * (_TIMES + 1))[: _TIMES * len(words) + 2])


_PAIRED = "{0}/float32/op13/data_0=float32:42:{1}/data_1=float32:42:{2}/y=float32/special/s0"
_CLIP = "Clip/float32/op13/input=float32:{0}:{1}/min!=float32:-:{2}/max!=float32:-:6/y=float32/special/s0"


_GROUPS = 4


def _rows(values: str) -> Callable[[Probe], Array]:
    return lambda p: np.array([float(v) for v in values.split()] * _GROUPS, F)


_GROUPED = ",".join(["+nan,1,2,1,+nan,2,1,2,+nan"] * _GROUPS)
REDUCED_NAN = {
    "propagates": _rows("nan nan nan"),
    "ignored": _rows("2 2 2"),
    "kept only where it comes first": _rows("nan 2 2"),
    "kept only where it comes last": _rows("2 2 nan"),
    "kept unless it comes first": _rows("2 nan nan"),
}

# ---- division, conversion


def _correct(op: Callable[[Array, Array], Array]) -> Callable[[Probe], Array]:
    return lambda p: op(p.tensors["A"].astype(D), p.tensors["B"].astype(D)).astype(F)


def _ulp(y: Array) -> Array:
    """The distance of float32 neighbours at |y|."""
    _, exponent = np.frexp(np.abs(y).astype(D))
    return np.ldexp(1.0, np.maximum(exponent - 24, -149))


def within(exact: Callable[[Probe], Array], ulps: float) -> Callable[[Probe], Accepts]:
    """Elements no further than that from the exact number (float64)."""

    def says(p: Probe) -> Accepts:
        wanted = exact(p)
        reach = ulps * _ulp(wanted) * (1.0 + 1e-6)
        return lambda y: np.abs(y.astype(D).reshape(wanted.shape) - wanted) <= reach

    return says


def _quotient(p: Probe) -> Array:
    return p.tensors["A"].astype(D) / p.tensors["B"].astype(D)


def _mean(p: Probe, times: bool) -> Array:
    x = p.tensors["data"]
    n = F(x.shape[-1])
    total = x.astype(D).sum(-1).astype(F)
    return total * (F(1.0) / n) if times else total / n


HALVES: dict[str, Callable[[Array], Array]] = {
    "half to even": np.rint,
    "half away from zero": lambda v: np.floor(v + 0.5),  # v >= 0 has few bits: the sum is exact
    "truncate": np.floor,
}


def _half(p: Probe, mode: str) -> Array:
    """float32 -> float16."""
    x = p.tensors["input"].astype(D)
    _, exponent = np.frexp(np.abs(x))
    step = np.ldexp(1.0, np.maximum(exponent - 11, -24))
    q = np.abs(x) / step
    whole = HALVES[mode](q)
    return np.copysign(whole * step, x).astype(np.float16)


_TIES16 = (
    "1.00048828125,1.00146484375,-1.00048828125,-1.00146484375,1.0007,1.0009,2049,2051,-2049,3.5e-6,2.98e-8,6.1e-5"
)

# ---- sums


def _dot_orders(p: Probe) -> Mapping[Labels, Says]:
    a, b = p.tensors["A"], p.tensors["B"]
    return dict(sums.orders(a[:, None, :], b.T[None]))


def _sum_orders(p: Probe) -> Mapping[Labels, Says]:
    x = p.tensors["data"]
    found = sums.orders(x, np.ones_like(x), sums.CONTRACTIONS[:1])
    return {(order,): total for (order, _), total in found.items()}


def _rounded_to(bits: int, mode: Callable[[Array], Array] = np.rint) -> Callable[[Probe], Array]:
    """A matrix of one column by ones: the result is what became of the input."""

    def says(p: Probe) -> Array:
        a = p.tensors["A"].astype(D)
        _, exponent = np.frexp(a)
        step = np.ldexp(1.0, exponent - bits)
        return np.broadcast_to((mode(a / step) * step).astype(F), (a.shape[0], p.tensors["B"].shape[1]))

    return says


INPUTS = {
    "float32": _rounded_to(24),
    "rounded to tf32": _rounded_to(11),
    "truncated to tf32": _rounded_to(11, np.trunc),
    "rounded to bfloat16": _rounded_to(8),
    "truncated to bfloat16": _rounded_to(8, np.trunc),
}


def _narrow_sum(unit: float, roundings: int) -> Callable[[Probe], Accepts]:
    """Sums in an accumulator of this unit roundoff, any order, rounded to float16 at the end."""

    def says(p: Probe) -> Accepts:
        a, b = p.tensors["A"].astype(D), p.tensors["B"].astype(D)
        exact, size = a @ b, np.abs(a) @ np.abs(b)
        last = np.maximum(np.abs(exact) * 2.0**-11, 2.0**-25)
        reach = last * (1 + 2.0**-10) + roundings * unit * size
        return lambda y: np.abs(y.astype(D) - exact) <= reach

    return says


# ---- functions

ULPS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
ABSOLUTE = (2.0, 4.0, 8.0, 16.0)


def _named(fn: str) -> Callable[[Probe], Array]:
    return lambda p: np.asarray(FUNCTIONS[fn].fn(p.tensors["input"].astype(D)))


def _absolute(exact: Callable[[Probe], Array], units: float) -> Callable[[Probe], Accepts]:
    def says(p: Probe) -> Accepts:
        wanted = exact(p)
        return lambda y: np.abs(y.astype(D) - wanted) <= units * 2.0**-24

    return says


def accuracy(fn: str) -> Callable[[Probe], Mapping[Labels, Says]]:
    """Relative classes first, then absolute ones for functions whose tails are not relatively accurate."""
    exact = _named(fn)
    rows = {("correctly rounded" if n == 0.5 else f"within {n:g} ulp"): within(exact, n) for n in ULPS}
    rows |= {f"within {n:g} u absolute (u = 2^-24)": _absolute(exact, n) for n in ABSOLUTE}
    return table(rows)


_FN = "{0}/float32/op13/input=float32:1025:{1}/y=float32/plain/s{2}"
_FUNCTIONS = (
    ("Exp", "exp", ("normal@4", "uniform@-80@80")),
    ("Log", "log", ("positive@4", "uniform@0.9@1.1")),
    ("Tanh", "tanh", ("normal@1", "wide@-3@0")),
    ("Sigmoid", "sigmoid", ("normal@4", "uniform@-20@5")),
    ("Erf", "erf", ("normal@1", "wide@-3@0")),
    ("Sin", "sin", ("normal@3", "uniform@-30@30")),
    ("Cos", "cos", ("normal@3", "uniform@-30@30")),
    ("Atan", "atan", ("normal@3", "wide@-3@3")),
    ("Sqrt", "sqrt", ("positive@4", "uniform@0@1e-3")),
)
_PAIR = "{0}/float32/op13/A=float32:{1}:{2}/B=float32:{3}:{4}/y=float32/plain/s{5}"
_SUM = "{0}/float32/op13/data=float32:{1}:{2}/{3}@keepdims=i:0/y=float32/plain/s{4}"
FLOAT_TRAITS: tuple[Trait, ...] = (
    Trait(
        "Mul",
        SUBNORMAL_AXES,
        (_PAIR.format("Mul", 8, _SMALL_PRODUCTS[0], 8, _SMALL_PRODUCTS[1], 0),),
        subnormals(np.multiply),
    ),
    Trait("Add", SUBNORMAL_AXES, (_PAIR.format("Add", 8, _SMALL_SUMS[0], 8, _SMALL_SUMS[1], 0),), subnormals(np.add)),
    Trait(
        "MatMul",
        SUBNORMAL_AXES,
        (
            _PAIR.format("MatMul", "4x1", "1e-40,3e-41,9e-39,2e-42", "1x2", "1e20,3e24", 0),
            _PAIR.format("MatMul", "4x1", "1e-20,3e-25,2e-24,7e-22", "1x2", "1e-20,3e-19", 0),
        ),
        subnormals(np.matmul),
    ),
    *(
        Trait(
            op,
            ("NaN", "zeros"),
            (_PAIRED.format(op, _repeated("+nan,1,+nan,-0.0,0"), _repeated("1,+nan,+nan,0,-0.0")),),
            joint(NAN_ROWS, ZERO_ROWS[op]),
        )
        for op in ("Max", "Min")
    ),
    Trait(
        "Relu",
        ("NaN", "negative zero"),
        (f"Relu/float32/op13/X=float32:42:{_repeated('+nan,2,-0.0,0,-3')}/y=float32/special/s0",),
        joint({"propagates": "nan 2", "to 0": "0 2"}, {"kept": "-0.0 0 0", "to +0": "0 0 0"}),
    ),
    Trait(
        "Clip",
        ("NaN", "negative zero"),
        (_CLIP.format(42, _repeated("+nan,2,-0.0,0,-3"), "0"),),
        joint(
            {"propagates": "nan 2", "to the least": "0 2", "to the largest": "6 2"},
            {"kept": "-0.0 0 0", "to +0": "0 0 0"},
        ),
    ),
    Trait(
        "ReduceMax",
        ("NaN",),
        ("ReduceMax/float32/op13/data=float32:12x3:" + _GROUPED + "/@axes=I:1/@keepdims=i:0/y=float32/special/s0",),
        table(REDUCED_NAN),
    ),
    Trait(
        "MaxPool",
        ("NaN",),
        ("MaxPool/float32/op13/X=float32:1x1x36:" + _GROUPED + "/@kernel_shape=I:3/@strides=I:3/y=float32/special/s0",),
        table(REDUCED_NAN),
    ),
    Trait(
        "Div",
        ("division",),
        (
            _PAIR.format("Div", 257, "normal", 257, "wide@-2@2", 1),
            _PAIR.format("Div", 65, "integers", 65, "positive", 2),
        ),
        table(
            {
                "correctly rounded": _correct(np.divide),
                "x * (1 / y)": lambda p: p.tensors["A"] * (F(1.0) / p.tensors["B"]),
                "within 1 ulp": within(_quotient, 1.0),
                "within 2.5 ulp": within(_quotient, 2.5),
            }
        ),
        nested=True,
    ),
    Trait(
        "Reciprocal",
        ("division",),
        ("Reciprocal/float32/op13/X=float32:257:wide@-2@2/y=float32/plain/s1",),
        table(
            {
                "correctly rounded": lambda p: (1.0 / p.tensors["X"].astype(D)).astype(F),
                "within 1 ulp": within(lambda p: 1.0 / p.tensors["X"].astype(D), 1.0),
                "within 2.5 ulp": within(lambda p: 1.0 / p.tensors["X"].astype(D), 2.5),
            }
        ),
        nested=True,
    ),
    Trait(
        "ReduceMean",
        ("division",),
        tuple(_SUM.format("ReduceMean", f"33x{n}", "integers@1000", "@axes=I:1/", n) for n in (3, 7, 25)),
        table({"sum / n": lambda p: _mean(p, False), "sum * (1 / n)": lambda p: _mean(p, True)}),
    ),
    Trait(
        "Cast float32 to float16",
        ("rounding",),
        (f"Cast/float32,float16/op13/input=float32:12:{_TIES16}/@to=i:10/y=float16/ties/s0",),
        table({mode: functools.partial(_half, mode=mode) for mode in HALVES}),
    ),
    Trait(
        "MatMul",
        ("input precision",),
        (
            _PAIR.format("MatMul", "16x1", "normal", "1x3", "fill@1", 5),
            _PAIR.format("MatMul", "64x1", "normal@100", "1x16", "fill@1", 6),
        ),
        table(INPUTS),
    ),
    Trait(
        "MatMul",
        ("order of sums", "contraction"),
        tuple(
            _PAIR.format("MatMul", f"3x{k}", "normal", f"{k}x{n}", "normal", k)
            for k, n in ((5, 7), (67, 5), (67, 32), (300, 5))
        ),
        _dot_orders,
    ),
    Trait(
        "ReduceSum",
        ("order of sums",),
        tuple(
            f"ReduceSum/float32/op13/data=float32:9x{n}:normal/axes!=int64:1:1/@keepdims=i:0/y=float32/plain/s{n}"
            for n in (8, 80, 84, 304)  # rows that begin where a vector may begin
        ),
        _sum_orders,
    ),
    Trait(
        "MatMul float16",
        ("accumulator",),
        ("MatMul/float16/op13/A=float16:4x257:positive/B=float16:257x4:positive/y=float16/positive/s1",),
        table({"float32 or wider": _narrow_sum(2.0**-24, 16), "float16": _narrow_sum(2.0**-11, 258)}),
        nested=True,
    ),
    *(
        Trait(
            op, ("accuracy",), tuple(_FN.format(op, data, i) for i, data in enumerate(cases)), accuracy(fn), nested=True
        )
        for op, fn, cases in _FUNCTIONS
    ),
)
TRAITS: tuple[Trait, ...] = (*FORMULA_TRAITS, *INTEGER_TRAITS, *FLOAT_TRAITS)
