"""Templates of the rule that fuses a product of bytes with its bias, activation and requantization."""

from __future__ import annotations

import numpy as np

from opgauge.reference_engine import dtypes as dt

from .pattern import Built, Draw, Template, dims, scale, word, zero
from .sketch import Sketch


def _requantized(which: str) -> Draw:
    """A product of bytes requantized: a convolution of any geometry, or a matrix product."""

    def draw(s: Sketch) -> Built:
        kind, out = word(s), word(s)
        zero_point = s.const(zero(s, out), out) if which != "run-time zero point" else s.input(s.integers((), out))
        if which.startswith("matmul"):
            y = _quantized_matmul(s, which, kind, zero_point)
        else:
            y = _quantized_conv(s, which, kind, zero_point)
        if "activation" not in which:
            end = s("Reshape", y, s.const([-1], "int64"))
            return s.build((s("Concat", end, end, axis=0), out))
        low, high = dt.limits(out)
        bound = s.const(int(s.rng.integers(low // 2, high // 2 + 1)), out)
        tight = s("Min", s("Max", y, bound), s.const(high - 20, out)) if s.rng.integers(2) else s("Min", bound, y)
        also = [(s("Concat", y, y, axis=0), out)] if "two readers" in which else []
        return s.build((s("Concat", tight, tight, axis=0), out), *also)

    return draw


def _quantized_conv(s: Sketch, which: str, kind: str, y_zero: str) -> str:
    n, c, m, h, w = dims(s, 5)
    last = which.startswith("last")
    groups, kernel = (
        (2, 3) if which.endswith("groups") else (1, 1 if which.endswith("1x1") else int(s.rng.integers(2, 4)))
    )
    m = m * 11 if s.rng.integers(2) else m  # more rows than one tile
    if which.endswith("depthwise"):
        c, m, groups = 1, min(m, 2), c + 15 * int(s.rng.integers(3))
    shape = (n, c * groups, h + 5, w + 5 + 30 * int(s.rng.integers(2)))
    x = s.input(s.integers((shape[0], *shape[2:], shape[1]) if last else shape, kind))
    if last:
        x = s("Transpose", x, perm=[0, 3, 1, 2])
    per_channel = bool(s.rng.integers(2))
    scales = s.rng.uniform(0.004, 0.02, m * groups).astype(np.float32) if per_channel else np.float32(scale(s))
    y_scale = s.const(float(np.float32(0.01 * 75 * 75 * (c * kernel * kernel) ** 0.5 / 64)))
    parts = [x, s.const(1.0), s.const(zero(s, kind), kind)]
    own = word(s)
    parts += [s.const(s.integers((m * groups, c, kernel, kernel), own), own), s.const(scales)]
    zeros = s.integers((m * groups,), own) if which.endswith("zero points") else zero(s, own)
    parts += [s.const(zeros, own), y_scale, y_zero]
    bias = s.rng.integers(-3000, 3000, m * groups).astype(np.int32)
    if which.endswith("run-time bias"):
        parts.append(s.input(bias))
    elif which != "no bias":
        parts.append(s.const(bias, "int32"))
    pads = [int(p) for p in s.rng.integers(0, kernel, 4)] if not which.endswith("1x1") else [0] * 4
    strides = [int(v) for v in s.rng.integers(1, 3, 2)] if not which.endswith("1x1") else [1, 1]
    dilations = [int(v) for v in s.rng.integers(1, 3, 2)]
    y = s("QLinearConv", *parts, group=groups, pads=pads, strides=strides, dilations=dilations)
    if not last:
        return y
    also = s("Transpose", y, perm=[0, 3, 2, 1]) if which == "last other perm" else ""
    return also or s("Transpose", y, perm=[0, 2, 3, 1])


def _quantized_matmul(s: Sketch, which: str, kind: str, y_zero: str) -> str:
    (m, n), k = dims(s, 2, 40), int(s.rng.integers(1, 70))
    m = {"matmul row": 1, "matmul empty": 0}.get(which, m)
    a, own = s.input(s.integers((m, k), kind)), word(s)
    data = s.integers((k, n), own)
    b = s.input(data) if which == "matmul run-time" else s.const(data, own)
    rows = which in ("matmul rows", "matmul rows and columns")
    columns = which in ("matmul columns", "matmul rows and columns")
    a_scale = s.const(s.rng.uniform(0.5, 2, m) if rows else 1.0)
    b_scale = s.const(s.rng.uniform(0.5, 2, n) if columns else 1.0)
    za = s.const(s.integers((m,), kind) if rows else zero(s, kind), kind)
    zb = s.const(s.integers((n,), own) if columns else zero(s, own), own)
    y_scale = s.const(float(np.float32(75 * 75 * k**0.5 / 64)))
    return s("QLinearMatMul", a, a_scale, za, b, b_scale, zb, y_scale, y_zero)


def _sums(s: Sketch) -> Built:
    """Nothing is requantized: the sums themselves are wanted."""
    (m, n), k = dims(s, 2), int(s.rng.integers(1, 40))
    y = s("MatMulInteger", s.input(s.integers((m, k), "uint8")), s.const(s.integers((k, n), "int8"), "int8"))
    return s.build((s("Neg", s("Add", y, s.const(s.integers((n,), "int8"), "int32"))), "int32"))


CONVOLUTIONS = ("conv", "depthwise", "no bias", "1x1", "groups", "zero points", "run-time bias", "run-time zero point")
ACTIVATIONS = ("activation", "activation two readers", "matmul activation")
PRODUCTS = ("matmul", "matmul row", "matmul rows", "matmul columns", "matmul run-time", "matmul empty")
LAST = (
    "last conv",
    "last 1x1",
    "last groups",
    "last depthwise",
    "last zero points",
    "last run-time bias",
    "last activation",
    "last other perm",
)

FUSION: tuple[Template, ...] = (
    *(
        Template("requantize-into-gemm", which, True, _requantized(which))
        for which in (*CONVOLUTIONS, *LAST, *PRODUCTS, *ACTIVATIONS)
    ),
    Template("requantize-into-gemm", "matmul rows and columns", False, _requantized("matmul rows and columns")),
    Template("requantize-into-gemm", "sums", False, _sums),
)
