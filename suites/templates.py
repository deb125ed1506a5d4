"""Graph templates: the pattern of every rule, and its near misses, with random parameters.

A template is one row: the rule, what is special, whether the rule must apply, and how the graph is drawn.
"""

from __future__ import annotations

import numpy as np

from opgauge.reference_engine import dtypes as dt

from .fused_templates import FUSION
from .pattern import F32, Built, Draw, Template
from .pattern import dims as _dims
from .pattern import scale as _scale
from .pattern import word as _word
from .pattern import zero as _zero
from .sketch import Sketch


def _perm(s: Sketch, rank: int) -> tuple[int, ...]:
    while True:
        perm = tuple(int(p) for p in s.rng.permutation(rank))
        if perm != tuple(range(rank)):
            return perm


def _swap(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def quantize(s: Sketch, x: str, scale: float, zero: int, word: str) -> str:
    return s("QuantizeLinear", x, s.const(scale), s.const(zero, word))


def dequantize(s: Sketch, q: str, scale: float, zero: int, word: str) -> str:
    return s("DequantizeLinear", q, s.const(scale), s.const(zero, word))


# ---- folding


def _folding(settled: bool) -> Draw:
    def draw(s: Sketch) -> Built:
        shape = _dims(s, 2)
        a, b = s.const(s.normal(*shape)), s.const(s.normal(*shape))
        c = s("Mul", a, b) if settled else s("Sigmoid", a)
        return s.build((s("Add", s.input(s.normal(*shape)), s("Neg", c)), F32))

    return draw


def _not_constant(s: Sketch) -> Built:
    shape = _dims(s, 2)
    return s.build((s("Add", s.input(s.normal(*shape)), s("Neg", s.input(s.normal(*shape)))), F32))


# ---- movement


def _copies(s: Sketch) -> Built:
    x = s.input(s.normal(*_dims(s, 3)))
    return s.build((s("Relu", s("Identity", s("Neg", x))), F32))


def _copy_out(s: Sketch) -> Built:
    return s.build((s("Identity", s.input(s.normal(*_dims(s, 3)))), F32))


def _no_op(s: Sketch) -> Built:
    n, c, d = _dims(s, 3)
    x = s.input(s.normal(n, 1, c, d))
    moved = s("Transpose", x, perm=[1, 0, 2, 3])
    padded = s("Pad", s("Neg", moved), s.const([0] * 8, "int64"))
    return s.build(
        (s("Relu", s("Reshape", s("Reshape", padded, s.const([-1], "int64")), s.const([n, c * d], "int64"))), F32)
    )


def _real_move(s: Sketch) -> Built:
    shape = _dims(s, 3)
    pads = [0, 0, 1, 0, 0, 0]
    return s.build(
        (s("Relu", s("Pad", s("Transpose", s.input(s.normal(*shape)), perm=[1, 0, 2]), s.const(pads, "int64"))), F32)
    )


def _conv(kernel: int, stride: int = 1) -> Draw:
    def draw(s: Sketch) -> Built:
        n, c, m, h, w = _dims(s, 5)
        word = _word(s)
        x = s.input(s.integers((n, c, h + 2, w + 2), word))
        weights = s.const(s.integers((m, c, kernel, kernel), "int8"), "int8")
        y = s("ConvInteger", x, weights, s.const(_zero(s, word), word), strides=[stride] * 2)
        return s.build((y, "int32"))

    return draw


def _pair(back: bool) -> Draw:
    def draw(s: Sketch) -> Built:
        rank = int(s.rng.integers(2, 5))
        perm = _perm(s, rank)
        shape = (3,) * rank if s.rng.integers(2) else _dims(s, rank)  # where every axis is alike no shape is wrong
        x = s.input(s.integers(shape, "int8"))
        second = [int(i) for i in np.argsort(perm)] if back else list(_perm(s, rank))
        return s.build((s("Neg", s("Transpose", s("Transpose", x, perm=list(perm)), perm=second)), "int8"))

    return draw


def _pair_apart(s: Sketch) -> Built:
    """A reduction stands between: nothing composes."""
    x = s.input(s.integers(_dims(s, 3), "int32"))
    y = s("ReduceSum", s("Transpose", x, perm=[1, 2, 0]), s.const([2], "int64"), keepdims=0)
    return s.build((s("Transpose", y, perm=[1, 0]), "int32"))


def _pair_two_readers(s: Sketch) -> Built:
    """The tensor between is wanted too: the second transpose still reads the source."""
    perm = _perm(s, 3)
    first = s("Transpose", s.input(s.normal(*_dims(s, 3))), perm=list(perm))
    second = s("Transpose", first, perm=[int(i) for i in np.argsort(perm)])
    return s.build((s("Neg", first), F32), (s("Relu", second), F32))


def _gemm(which: str) -> Draw:
    def draw(s: Sketch) -> Built:
        g, m, n = _dims(s, 3)
        k = int(s.rng.integers(13, 20))  # longer than the result is wide, or nothing is gained
        a, b = s.input(s.normal(g, k, m)), s.input(s.normal(g, n, k))
        left, right = s("Transpose", a, perm=_swap(3)), s("Transpose", b, perm=_swap(3))
        y = s("MatMul", left, right)
        if which == "two readers":
            return s.build((s("Relu", y), F32), (s("Neg", left), F32), (s("Neg", right), F32))
        if which == "other perm":
            c = s.input(s.normal(k, g, m))
            return s.build((s("Relu", s("MatMul", s("Transpose", c, perm=[1, 2, 0]), s("Neg", right))), F32))
        return s.build((s("Relu", s("Transpose", y, perm=_swap(3)) if which == "three" else y), F32))

    return draw


def _gemm_integer(s: Sketch) -> Built:
    """Zero points per row and per column change sides."""
    (m, n), k = _dims(s, 2), int(s.rng.integers(33, 70))
    a, b = s.input(s.integers((k, m), "uint8")), s.input(s.integers((n, k), "int8"))
    za, zb = s.const(s.integers((m,), "uint8"), "uint8"), s.const(s.integers((n,), "int8"), "int8")
    y = s("MatMulInteger", s("Transpose", a, perm=[1, 0]), s("Transpose", b, perm=[1, 0]), za, zb)
    return s.build((s("Neg", y), "int32"))


def _sink(which: str) -> Draw:
    def draw(s: Sketch) -> Built:
        shape, perm = _dims(s, 3), _perm(s, 3)
        moved = tuple(shape[p] for p in perm)
        t = s("Transpose", s.input(s.normal(*shape)), perm=list(perm))
        if which == "unary":
            return s.build((s("Abs", s("Neg", t)), F32))
        if which == "constant":
            return s.build((s("Neg", s("Mul", t, s.const(s.normal(moved[-1])))), F32))
        if which == "other operand":
            return s.build((s("Neg", s("Add", t, s.input(s.normal(*moved)))), F32))
        if which == "two readers":
            return s.build((s("Neg", t), F32), (s("Exp", t), F32))
        other = list(perm) if which == "both" else [int(p) for p in np.roll(perm, 1)]
        square = shape if which == "both" else (4, 4, 4)
        t = s("Transpose", s.input(s.normal(*square)), perm=list(perm))
        return s.build((s("Neg", s("Add", t, s("Transpose", s.input(s.normal(*square)), perm=other))), F32))

    return draw


def _sink_quantize(which: str) -> Draw:
    def draw(s: Sketch) -> Built:
        shape, word = _dims(s, 4), _word(s)
        perm = (0, 3, 1, 2)
        moved = tuple(shape[p] for p in perm)
        t = s("Transpose", s.input(s.normal(*shape)), perm=list(perm))
        if which == "per channel":
            scales, zeros = s.const(s.rng.uniform(0.01, 0.1, moved[1])), s.const(s.integers((moved[1],), word), word)
            return s.build(
                (
                    s(
                        "Neg",
                        s("DequantizeLinear", s("QuantizeLinear", t, scales, zeros, axis=1), scales, zeros, axis=1),
                    ),
                    F32,
                )
            )
        q = quantize(s, t, _scale(s), _zero(s, word), word)
        if which == "two readers":
            return s.build((s("Identity", q), word), (s("Neg", t), F32))
        return s.build((s("Transpose", q, perm=[0, 2, 3, 1]), word))

    return draw


def _layout(which: str) -> Draw:
    def draw(s: Sketch) -> Built:
        shape, word = _dims(s, 4), _word(s)
        q = s.input(s.integers(shape, word))
        if which == "per channel":
            scales, zeros = s.const(s.rng.uniform(0.01, 0.1, shape[1])), s.const(s.integers((shape[1],), word), word)
            x = s("DequantizeLinear", q, scales, zeros, axis=1)
        else:
            x = s("Cast", q, to=1) if which == "cast" else dequantize(s, q, _scale(s), _zero(s, word), word)
        y = s("Transpose", x, perm=[0, 2, 3, 1])
        return s.build((s("Neg", y), F32), *([(s("Abs", x), F32)] if which == "two readers" else []))

    return draw


def _split(which: str) -> Draw:
    def draw(s: Sketch) -> Built:
        n, c, d = _dims(s, 3)
        word = "int8"
        x = s.input(s.integers((n, 3 * c, d), word))
        parts = s("Split", x, s.const([c, c, c], "int64"), axis=1, outputs=3)
        names = [parts, f"{parts}.1", f"{parts}.2"]
        if which == "rejoined":
            return s.build((s("Neg", s("Concat", *names, axis=1)), word))
        if which == "other order":
            return s.build((s("Neg", s("Concat", names[1], names[0], names[2], axis=1)), word))
        if which == "other axis":
            return s.build((s("Neg", s("Concat", *names, axis=2)), word))
        cat = s("Concat", x, s.input(s.integers((n, c, d), word)), axis=1)
        low = 3 * c if which == "of concat" else 3 * c - 1
        axes = [s.const([v], "int64") for v in (low, 4 * c, 1)]
        return s.build((s("Neg", s("Slice", cat, *axes)), word))

    return draw


def _slices(s: Sketch) -> Built:
    x = s.input(s.integers((int(s.rng.integers(9, 40)), 3), "int32"))
    first = s(
        "Slice", x, *(s.const([v], "int64") for v in (int(s.rng.integers(1, 3)), 1000, 0, int(s.rng.integers(1, 3))))
    )
    second = s(
        "Slice", first, *(s.const([v], "int64") for v in (1, int(s.rng.integers(2, 6)), 0, int(s.rng.integers(1, 3))))
    )
    return s.build((s("Neg", second), "int32"))


# ---- elements


def _chain(*ops: str) -> Draw:
    def draw(s: Sketch) -> Built:
        x = s.input(s.normal(*_dims(s, 2)))
        for op in ops:
            x = s(op, x)
        return s.build((s("Exp", x), F32))

    return draw


def _casts(first: str, middle: str, last: str) -> Draw:
    def draw(s: Sketch) -> Built:
        shape = _dims(s, 2)
        array = s.normal(*shape, scale=100) if first == F32 else s.integers(shape, first)
        x = s("Cast", s("Cast", s.input(array), to=dt.ONNX[middle]), to=dt.ONNX[last])
        return s.build((s("Neg", x), last))

    return draw


def _times(value: float, op: str = "Mul") -> Draw:
    def draw(s: Sketch) -> Built:
        return s.build((s("Neg", s(op, s.input(s.normal(*_dims(s, 2))), s.const(value))), F32))

    return draw


def _relu(which: str) -> Draw:
    def draw(s: Sketch) -> Built:
        word = _word(s)
        zero = dt.limits(word)[0] if which != "inner zero point" else dt.limits(word)[0] + int(s.rng.integers(1, 100))
        x = s.input(s.normal(*_dims(s, 3), scale=3))
        y = s("Relu" if which != "abs" else "Abs", x)
        return s.build((quantize(s, y, _scale(s) * (-1 if which == "negative scale" else 1), zero, word), word))

    return draw


def _round_trip(which: str) -> Draw:
    def draw(s: Sketch) -> Built:
        word, scale = _word(s), _scale(s)
        zero = _zero(s, word)
        shape = _dims(s, 3)
        q = s.input(s.integers(shape, word))
        if which == "outside in":
            y = dequantize(s, quantize(s, s.input(s.normal(*shape)), scale, zero, word), scale, zero, word)
            return s.build((s("Neg", y), F32))
        x = dequantize(s, q, scale, zero, word)
        other = zero + (1 if zero < dt.limits(word)[1] else -1)
        if which == "tiny scale":
            return s.build((s("Identity", quantize(s, dequantize(s, q, 1e-45, zero, word), 1e-45, zero, word)), word))
        again = quantize(
            s, x, scale * (1.5 if which == "other scale" else 1), other if which == "other zero point" else zero, word
        )
        end = s("Reshape", again, s.const([-1], "int64"))
        return s.build((s("Concat", end, end, axis=0), word), *([(s("Neg", x), F32)] if which == "two readers" else []))

    return draw


def _table(which: str) -> Draw:
    def draw(s: Sketch) -> Built:
        word, out = _word(s), _word(s)
        q = s.input(s.integers(_dims(s, 3, 9), word))
        x = dequantize(s, q, float(np.float32(s.rng.uniform(0.01, 0.1))), _zero(s, word), word)
        if which == "relu only":
            y = s("Relu", x)
        elif which == "gate":
            y = s("Mul", x, s("Sigmoid", x))
        elif which == "two sources":
            y = s("Mul", s("Sigmoid", x), dequantize(s, s.input(s.integers((1,), word)), 0.5, 3, word))
        else:
            y = s("Tanh", s("Mul", x, s.const(float(np.float32(s.rng.uniform(0.5, 2))))))
        made = quantize(s, y, float(np.float32(s.rng.uniform(0.004, 0.02))), _zero(s, out), out)
        end = s("Reshape", made, s.const([-1], "int64"))
        return s.build((s("Concat", end, end, axis=0), out), *([(s("Neg", y), F32)] if which == "two readers" else []))

    return draw


# ---- products


def _affine(which: str) -> Draw:
    def draw(s: Sketch) -> Built:
        n, c, m, h, w = _dims(s, 5)
        groups = 2 if which == "groups" else 1
        x = s.input(s.normal(n, c * groups, h + 2, w + 2))
        weights = s.normal(m * groups, c, 3, 3)
        W = s.input(weights) if which == "dynamic weights" else s.const(weights)
        bias = [s.const(s.normal(m * groups))] if which not in ("no bias",) else []
        y = s("Conv", x, W, *bias, group=groups, kernel_shape=[3, 3])
        per = (1, m * groups, 1, 1) if which != "other axis" else (1, 1, 1, w)
        z = s("Add", s("Mul", y, s.const(s.normal(*per))), s.const(s.normal(*per)))
        return s.build((s("Relu", z), F32), *([(s("Neg", y), F32)] if which == "two readers" else []))

    return draw


TEMPLATES: tuple[Template, ...] = (
    Template("constant-folding", "pattern", True, _folding(True)),
    Template("constant-folding", "not constant", False, _not_constant),
    Template("constant-functions", "pattern", True, _folding(False)),
    Template("constant-functions", "not constant", False, _not_constant),
    Template("copy-elimination", "pattern", True, _copies),
    Template("copy-elimination", "output", False, _copy_out),
    Template("no-op-movement", "pattern", True, _no_op),
    Template("no-op-movement", "real", False, _real_move),
    Template("im2col-pointwise", "pattern", True, _conv(1)),
    Template("im2col-pointwise", "stride", False, _conv(1, 2)),
    Template("im2col-pointwise", "kernel", False, _conv(2)),
    Template("transpose-pairs", "pattern", True, _pair(True)),
    Template("transpose-pairs", "other perm", True, _pair(False)),
    Template("transpose-pairs", "two readers", True, _pair_two_readers),
    Template("transpose-pairs", "reduction between", False, _pair_apart),
    Template("gemm-transposes", "pattern", True, _gemm("")),
    Template("gemm-transposes", "three", True, _gemm("three")),
    Template("gemm-transposes", "zero points", True, _gemm_integer),
    Template("gemm-transposes", "two readers", False, _gemm("two readers")),
    Template("gemm-transposes", "other perm", False, _gemm("other perm")),
    Template("transpose-through-elementwise", "unary", True, _sink("unary")),
    Template("transpose-through-elementwise", "constant", True, _sink("constant")),
    Template("transpose-through-elementwise", "both", True, _sink("both")),
    Template("transpose-through-elementwise", "other perm", False, _sink("other perm")),
    Template("transpose-through-elementwise", "other operand", False, _sink("other operand")),
    Template("transpose-through-elementwise", "two readers", False, _sink("two readers")),
    Template("transpose-through-quantize", "pattern", True, _sink_quantize("")),
    Template("transpose-through-quantize", "per channel", False, _sink_quantize("per channel")),
    Template("transpose-through-quantize", "two readers", False, _sink_quantize("two readers")),
    Template("layout", "pattern", True, _layout("")),
    Template("layout", "cast", True, _layout("cast")),
    Template("layout", "per channel", False, _layout("per channel")),
    Template("layout", "two readers", False, _layout("two readers")),
    Template("slice-and-concat", "rejoined", True, _split("rejoined")),
    Template("slice-and-concat", "of concat", True, _split("of concat")),
    Template("slice-and-concat", "of slice", True, _slices),
    Template("slice-and-concat", "other order", False, _split("other order")),
    Template("slice-and-concat", "other axis", False, _split("other axis")),
    Template("slice-and-concat", "across parts", False, _split("across parts")),
    Template("elementwise-chains", "relu relu", True, _chain("Relu", "Relu")),
    Template("elementwise-chains", "neg neg", True, _chain("Neg", "Neg")),
    Template("elementwise-chains", "neg abs", True, _chain("Neg", "Abs")),
    Template("elementwise-chains", "times one", True, _times(1.0)),
    Template("elementwise-chains", "lossless casts", True, _casts("int8", "int32", "int8")),
    Template("elementwise-chains", "lossless floats", True, _casts("int16", "float32", "int32")),
    Template("elementwise-chains", "lossy casts", False, _casts("int32", "int8", "int32")),
    Template("elementwise-chains", "lossy floats", False, _casts("float32", "float16", "float32")),
    Template("elementwise-chains", "times minus one", False, _times(-1.0)),
    Template("elementwise-chains", "plus minus zero", False, _times(-0.0, "Add")),
    Template("relu-into-quantize", "pattern", True, _relu("")),
    Template("relu-into-quantize", "inner zero point", False, _relu("inner zero point")),
    Template("relu-into-quantize", "negative scale", False, _relu("negative scale")),
    Template("relu-into-quantize", "abs", False, _relu("abs")),
    Template("quantize-pairs", "pattern", True, _round_trip("")),
    Template("quantize-pairs", "two readers", True, _round_trip("two readers")),
    Template("quantize-pairs", "other scale", False, _round_trip("other scale")),
    Template("quantize-pairs", "other zero point", False, _round_trip("other zero point")),
    Template("quantize-pairs", "outside in", False, _round_trip("outside in")),
    Template("lookup-table", "pattern", True, _table(""), 0.8),
    Template("lookup-table", "gate", True, _table("gate"), 0.6),
    Template("lookup-table", "relu only", False, _table("relu only")),
    Template("lookup-table", "two sources", False, _table("two sources")),
    Template("lookup-table", "two readers", False, _table("two readers")),
    Template("affine-into-gemm", "pattern", True, _affine("")),
    Template("affine-into-gemm", "no bias", True, _affine("no bias")),
    Template("affine-into-gemm", "groups", True, _affine("groups")),
    Template("affine-into-gemm", "dynamic weights", False, _affine("dynamic weights")),
    Template("affine-into-gemm", "other axis", False, _affine("other axis")),
    Template("affine-into-gemm", "two readers", False, _affine("two readers")),
    *FUSION,
)
