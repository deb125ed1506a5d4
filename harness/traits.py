"""What a trait of a backend is, and the traits of quantization and of integer arithmetic.

A trait is asked with cases that tell its alternatives apart. Each alternative says to the bit what it returns; the
answer is the set of those that explain every element of every case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Array, Case
from opgauge.suites.profiles import tensor

from . import formulas, model

F, D = np.float32, np.float64
Labels = tuple[str, ...]  # one word for each axis of the trait
Accepts = Callable[[Array], Array]  # an output -> which of its elements the alternative explains
Says = Array | Accepts  # what an alternative returns, to the bit, or which elements it explains


class Probe(NamedTuple):
    """One case as it is asked: its model, its run-time inputs, and the content of every argument by name."""

    id: str
    case: Case
    model: bytes
    inputs: Mapping[str, Array]
    tensors: Mapping[str, Array]


Predict = Callable[[Probe], Mapping[Labels, Says]]


@dataclass(frozen=True)
class Trait:
    """A question to a backend.

    `axes` names the properties that are answered together, since one result shows them all. `nested`: each
    alternative explains all that those before it explain, so that the first one that fits is the answer.
    """

    name: str
    axes: tuple[str, ...]
    cases: tuple[str, ...]
    predict: Predict
    nested: bool = False


def probe_of(text: str) -> Probe:
    """The case that an id spells, built. Raises: CaseError."""
    case, _ = parse_id(text)
    data, inputs = model.build(case)
    tensors = {arg.name: tensor(arg, case.seed, i) for i, arg in enumerate(case.args) if not arg.absent}
    return Probe(text, case, data, inputs, tensors)


def table(rows: Mapping[str, Callable[[Probe], Says]]) -> Predict:
    """A trait of one axis, its alternatives by name."""
    return lambda probe: {(name,): says(probe) for name, says in rows.items()}


# ---- formulas of quantization

BUILT_IN = "part of the formula"


def by_formula(probe: Probe) -> Mapping[Labels, Says]:
    """Every known formula of the case's quantizing step."""
    graph = lower(probe.model, probe.inputs)
    step = formulas.step_of(graph, probe.inputs)
    assert step is not None, probe.id
    shape = probe.case.outputs[0]
    kind = dt.numpy_dtype(shape)
    return {
        (p.formula.expression, p.formula.mode or BUILT_IN, p.formula.place or BUILT_IN): p.value.astype(kind)
        for p in formulas.predictions(step)
    }


BYTES = ("uint8", "int8")
FORMULA_AXES = ("formula", "rounding", "zero point")
_Q = "QuantizeLinear/float32,{0}/op13/x=float32:3x65:{1}/y_scale!=float32:-:{2}/y_zero_point!={0}:-:{3}/y={0}/ties/s{4}"
_QUANTIZE = (
    ("grid@0.25@-240@240", "0.5", "128", 1),
    ("grid@0.25@-240@240", "0.5", "129", 2),
    ("grid@0.5@-10@420", "1", "11", 3),
    ("halves@0.1@-120@120", "0.1", "128", 4),
    ("halves@0.003@-120@120", "0.003", "127", 5),
    ("halves@0.7@-5@240", "0.7", "7", 6),
    ("halves@1.3e-05@-5@240", "1.3e-05", "8", 7),
    ("halves@0.9@-120@120", "0.9", "128", 8),
    ("grid@24.5@-200@200", "49", "128", 9),  # 1 / 49 is inexact in float64 too
)
# Scales whose ratio is nearly a power of two: each way to multiply them ends on its own side of the ties.
_TRIPLES = (
    ("0.5", "0.25", "0.25"),
    ("1", "0.0625", "0.125"),
    ("0.04056144", "0.6168468", "0.05004039"),
    ("0.5650474", "0.8020862", "0.90643346"),
    ("0.70049655", "0.84254843", "1.1804045"),
    ("0.85889614", "0.3379602", "0.34832728"),
    ("0.90003777", "0.5883038", "0.3529971"),
    ("0.8051979", "0.8081328", "0.4338046"),
    ("0.9725378", "0.01799903", "0.011669826"),
    ("0.8404971", "0.38637275", "0.64949036"),
    ("0.49017793", "0.22321564", "0.21883075"),
    ("0.8055007", "0.78222746", "1.2601695"),
    ("0.8018627", "0.96011084", "0.3849385"),
    ("0.099", "0.049", "0.0097"),  # a little more than a half, and a half in float16
    ("0.064", "0.076", "0.00973"),  # a little less
)
_ZEROS = (128, 129, 128, 127, 128, 129, 126, 128, 20, 20, 20, 12, 128, 128, 129)  # of uint8 outputs
_PRODUCTS = {
    "QLinearMatMul": (
        "QLinearMatMul/{y},int8/op13/a={y}:12x2:near@{z}@12/a_scale!=float32:-:{0}/a_zero_point!={y}:-:{z}"
        "/b!=int8:2x12:near@0@7/b_scale!=float32:-:{1}/b_zero_point!=int8:-:0/y_scale!=float32:-:{2}"
        "/y_zero_point!={y}:-:{3}/y={y}/ties/s{4}"
    ),
    "QLinearConv": (
        "QLinearConv/{y},int8/op13/x={y}:1x2x6x8:near@{z}@12/x_scale!=float32:-:{0}/x_zero_point!={y}:-:{z}"
        "/w!=int8:3x2x1x1:near@0@7/w_scale!=float32:-:{1}/w_zero_point!=int8:-:0/y_scale!=float32:-:{2}"
        "/y_zero_point!={y}:-:{3}/y={y}/ties/s{4}"
    ),
    "QGemm": (
        "com.microsoft::QGemm/{y},int8/op13/A={y}:12x2:near@{z}@12/a_scale!=float32:-:{0}/a_zero_point!={y}:-:{z}"
        "/B!=int8:2x12:near@0@7/b_scale!=float32:-:{1}/b_zero_point!=int8:-:0/C=/y_scale!=float32:-:{2}"
        "/y_zero_point!={y}:-:{3}/y={y}/ties/s{4}"
    ),
    "QLinearMul": (
        "com.microsoft::QLinearMul/{y}/op13/A={y}:12x12:near@{z}@12/A_scale!=float32:-:{0}/A_zero_point!={y}:-:{z}"
        "/B={y}:12x12:near@100@11/B_scale!=float32:-:{1}/B_zero_point!={y}:-:100/C_scale!=float32:-:{2}"
        "/C_zero_point!={y}:-:{3}/y={y}/ties/s{4}"
    ),
}
_ADD = (
    "com.microsoft::QLinearAdd/{y}/op13/A={y}:12x16:near@{z}@90/A_scale!=float32:-:{0}/A_zero_point!={y}:-:{z}"
    "/B={y}:12x16:near@27@40/B_scale!=float32:-:{1}/B_zero_point!={y}:-:27/C_scale!=float32:-:{2}"
    "/C_zero_point!={y}:-:{3}/y={y}/ties/s{4}"
)
_SUMS = (
    ("0.25", "0.5", "0.5", 120),
    ("0.25", "0.5", "0.5", 121),
    ("0.48351517", "0.24175759", "0.48351514", 120),
    ("0.9985135", "1.4977703", "0.99851346", 121),
    ("0.41908497", "1.257255", "0.83816993", 120),
)


def _requantized(template: str, y: str) -> tuple[str, ...]:
    """The cases of one operator for an element type of its output."""
    low, z = dt.limits(y)[0], 128 + dt.limits(y)[0]
    rows = enumerate(zip(_TRIPLES, _ZEROS, strict=True))
    return tuple(template.format(*scales, zero + low, i, y=y, z=z) for i, (scales, zero) in rows)


def _added(y: str) -> tuple[str, ...]:
    low, z = dt.limits(y)[0], 128 + dt.limits(y)[0]
    return tuple(_ADD.format(*row[:3], row[3] + low, i, y=y, z=z) for i, row in enumerate(_SUMS))


# ---- integer sums


def _exact_sum(p: Probe) -> Array:
    a, b = p.tensors["A"].astype(np.int64), p.tensors["B"].astype(np.int64)
    return a @ b


def _pairs(p: Probe) -> Array:
    """Two neighbouring products in 16 bits that saturate, then 32 bits (pmaddubsw)."""
    a, b = p.tensors["A"].astype(np.int64), p.tensors["B"].astype(np.int64)
    if a.shape[1] % 2:
        a, b = np.pad(a, ((0, 0), (0, 1))), np.pad(b, ((0, 1), (0, 0)))
    products = a[:, :, None] * b[None]
    paired = products[:, 0::2] + products[:, 1::2]
    return np.clip(paired, -(2**15), 2**15 - 1).sum(1)


def _saturating(bits: int) -> Callable[[Probe], Array]:
    def total(p: Probe) -> Array:
        a, b = p.tensors["A"].astype(np.int64), p.tensors["B"].astype(np.int64)
        if (a >= 0).all() and (b >= 0).all():  # once at the end of the range it stays there
            return np.clip(a @ b, 0, 2 ** (bits - 1) - 1).astype(np.int32)
        acc = np.zeros((a.shape[0], b.shape[1]), np.int64)
        for k in range(a.shape[1]):
            acc = np.clip(acc + np.outer(a[:, k], b[k]), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return acc.astype(np.int32)

    return total


def _in_float32(p: Probe) -> Accepts:
    """Any order: exact up to 2^24, beyond it a float32 near the sum; nothing is known beyond 2^31."""
    exact = _exact_sum(p)
    K = p.tensors["A"].shape[1]

    def accepts(y: Array) -> Array:
        seen = y.astype(np.int64)
        near = np.abs(seen - exact) <= K * 2.0**-24 * np.abs(exact)
        held = seen.astype(F).astype(np.int64) == seen
        return np.where(np.abs(exact) <= 2**24, seen == exact, (near & held) | (np.abs(exact) >= 2**31))

    return accepts


ACCUMULATORS: dict[str, Callable[[Probe], Says]] = {
    "int32, wraps": lambda p: _exact_sum(p).astype(np.int32),
    "int32, saturates": _saturating(32),
    "pairs in int16 that saturate, then int32": lambda p: _pairs(p).astype(np.int32),
    "int16, saturates": _saturating(16),
    "int16, wraps": lambda p: _exact_sum(p).astype(np.int16).astype(np.int32),
    "float32": _in_float32,
}
_INTEGER = "MatMulInteger/{0}/op13/A={1}:{2}x{3}:{4}/B!={5}:{3}x{6}:{7}/y=int32/extremes/s{8}"


# ---- beyond the range


def _beyond(v: Callable[[Probe], tuple[Array, Array]]) -> dict[str, Callable[[Probe], Says]]:
    """v gives (number before rounding, zero point)."""

    def clamped(p: Probe) -> Array:
        number, zero = v(p)
        return np.clip(np.rint(number) + zero, *dt.limits("uint8")).astype(np.uint8)

    def flipped(p: Probe) -> Array:
        number, _ = v(p)
        return np.where(np.rint(number) >= 2.0**31, 0, clamped(p)).astype(np.uint8)

    def wrapped(p: Probe) -> Accepts:
        number, zero = v(p)
        known = np.abs(number) < 2.0**31
        low = (np.where(known, np.rint(number), 0).astype(np.int64) + zero.astype(np.int64)).astype(np.uint8)
        return lambda y: (y == low) | ~known

    return {"saturates": clamped, "a conversion to int32 overflows first": flipped, "wraps": wrapped}


def _quotient(p: Probe) -> tuple[Array, Array]:
    return p.tensors["x"].astype(D) / p.tensors["y_scale"].astype(D), p.tensors["y_zero_point"]


def _scaled_product(p: Probe) -> tuple[Array, Array]:
    t = {k.lower(): v.astype(D) for k, v in p.tensors.items()}
    a, b = t["a"] - t["a_zero_point"], t["b"] - t["b_zero_point"]
    acc = a @ b if p.case.op == "QLinearMatMul" else a * b
    out = "y" if "y_scale" in t else "c"
    return acc * t["a_scale"] * t["b_scale"] / t[f"{out}_scale"], t[f"{out}_zero_point"]


_BEYOND = "4000,250,255.4,256,300,511,70000,2e9,2147480000,3e9,1e10,1e20,-1,-0.4,-300,-70000,-2e9,-3e9,-1e10,-1e20"
_FAR_MUL = (
    "com.microsoft::QLinearMul/uint8/op13/A=uint8:16:extremes/A_scale!=float32:-:{0}/A_zero_point!=uint8:-:0"
    "/B=uint8:16:extremes/B_scale!=float32:-:1/B_zero_point!=uint8:-:0/C_scale!=float32:-:1"
    "/C_zero_point!=uint8:-:3/y=uint8/wild/s{1}"
)
_FAR_MATMUL = (
    "QLinearMatMul/uint8,int8/op13/a=uint8:4x4:extremes/a_scale!=float32:-:{0}/a_zero_point!=uint8:-:128"
    "/b!=int8:4x5:near@3@9/b_scale!=float32:-:1/b_zero_point!=int8:-:0/y_scale!=float32:-:1"
    "/y_zero_point!=uint8:-:3/y=uint8/wild/s{1}"
)

# ---- NaN and conversions


def literal(values: str) -> Callable[[Probe], Array]:
    """An output spelled out, in the type of the case's output, repeated as often as it takes."""
    words = values.split()

    def made(p: Probe) -> Array:
        kind = dt.numpy_dtype(p.case.outputs[0])
        size = int(np.prod(p.case.args[0].shape))
        once = np.array([int(w) for w in words] if kind.kind in "iu" else [float(w) for w in words], kind)
        return np.resize(once, size)

    return made


_CAST = "Cast/float32,{0}/op13/input=float32:{1}:{2}/@to=i:{3}/y={0}/special/s0"
FORMULA_TRAITS: tuple[Trait, ...] = (
    *(
        Trait(
            f"QuantizeLinear {y}",
            FORMULA_AXES,
            tuple(_Q.format(y, data, scale, int(zero) + dt.limits(y)[0], i) for data, scale, zero, i in _QUANTIZE),
            by_formula,
        )
        for y in BYTES
    ),
    *(
        Trait(f"{op} {y}", FORMULA_AXES, _requantized(template, y), by_formula)
        for op, template in _PRODUCTS.items()
        for y in BYTES
    ),
    *(Trait(f"QLinearAdd {y}", FORMULA_AXES, _added(y), by_formula) for y in BYTES),
)
INTEGER_TRAITS: tuple[Trait, ...] = (
    Trait(
        "MatMulInteger",
        ("accumulator",),
        (
            _INTEGER.format("uint8,int8", "uint8", 2, 64, "fill@255", "int8", 3, "fill@127", 0),
            _INTEGER.format("uint8,int8", "uint8", 3, 64, "extremes", "int8", 4, "extremes", 1),
            _INTEGER.format("uint8,int8", "uint8", 3, 40, "uniform", "int8", 4, "uniform", 2),
            _INTEGER.format("uint8,uint8", "uint8", 2, 301, "near@254@1", "uint8", 8, "near@254@1", 3),
            _INTEGER.format("uint8,uint8", "uint8", 1, 40000, "fill@255", "uint8", 2, "fill@255", 4),
        ),
        table(ACCUMULATORS),
    ),
    Trait(
        "QuantizeLinear",
        ("beyond the range",),
        (
            f"QuantizeLinear/float32,uint8/op13/x=float32:20:{_BEYOND}/y_scale!=float32:-:1"
            "/y_zero_point!=uint8:-:3/y=uint8/saturate/s0",
        ),
        table(_beyond(_quotient)),
    ),
    Trait(
        "QLinearMatMul",
        ("beyond the range",),
        tuple(_FAR_MATMUL.format(scale, i) for i, scale in enumerate(("1", "300", "4e6"))),
        table(_beyond(_scaled_product)),
    ),
    Trait(
        "QLinearMul",
        ("beyond the range",),
        tuple(_FAR_MUL.format(scale, i) for i, scale in enumerate(("1", "300", "33026", "4e6"))),
        table(_beyond(_scaled_product)),
    ),
    Trait(
        "QuantizeLinear",
        ("NaN",),
        (
            "QuantizeLinear/float32,uint8/op13/x=float32:37:"
            + ",".join(["+nan", "7"] * 18 + ["+nan"])
            + "/y_scale!=float32:-:1/y_zero_point!=uint8:-:100/y=uint8/special/s0",
        ),
        table(
            {
                "to the least": literal("0 107"),
                "to the zero point": literal("100 107"),
                "to the largest": literal("255 107"),
            }
        ),
    ),
    Trait(
        "Cast float32 to int32",
        ("beyond the range",),
        (_CAST.format("int32", 24, ",".join(["3e9,-3e9,+nan,+inf,-inf,1e10"] * 4), 6),),
        table(
            {
                "saturates, NaN to 0": literal("2147483647 -2147483648 0 2147483647 -2147483648 2147483647"),
                "saturates, NaN to the least": literal(
                    "2147483647 -2147483648 -2147483648 2147483647 -2147483648 2147483647"
                ),
                "all to the least": literal(" ".join(["-2147483648"] * 6)),
                "low bits of int64": literal("-1294967296 1294967296 0 0 0 1410065408"),
            }
        ),
    ),
    Trait(
        "Cast float32 to uint8",
        ("beyond the range",),
        (_CAST.format("uint8", 6, "300,-1,256,-300,70000,1000000", 2),),
        table({"saturates": literal("255 0 255 0 255 255"), "low bits": literal("44 255 0 212 112 64")}),
    ),
    Trait(
        "Add int8",
        ("overflow",),
        ("Add/int8/op14/A=int8:5:127,-128,100,-100,5/B=int8:5:1,-1,100,-100,6/y=int8/plain/s0",),
        table({"wraps": literal("-128 127 -56 56 11"), "saturates": literal("127 -128 127 -128 11")}),
    ),
    Trait(
        "Div int32",
        ("rounding",),
        ("Div/int32/op13/A=int32:6:-7,7,-7,7,-1,9/B=int32:6:2,-2,-2,2,3,-5/y=int32/plain/s0",),
        table({"truncates": literal("-3 -3 3 3 0 -1"), "floors": literal("-4 -4 3 3 -1 -2")}),
    ),
)
