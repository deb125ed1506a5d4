"""Small whole models, drawn from a seed: what rules, counts, verdicts and the arena are tried on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from opgauge.reference_engine.types import Array

from .sketch import Sketch

Built = tuple[bytes, dict[str, Array]]
F32 = "float32"
MS = "com.microsoft"


@dataclass(frozen=True)
class Network:
    """One row: `draw(sketch)` gives the model and its inputs; `source` says where its form comes from."""

    name: str
    draw: Callable[[Sketch], Built]
    source: str

    def build(self, seed: int = 0) -> Built:
        return self.draw(Sketch(np.random.Generator(np.random.PCG64(seed))))


@dataclass(frozen=True)
class Quantized:
    """A tensor of a quantized network with its parameters; `spread` is the standard deviation of its real values."""

    name: str
    scale: float
    zero: int
    channels: int
    spread: float
    dtype: str = "uint8"


def _params(s: Sketch, q: Quantized) -> tuple[str, str, str]:
    return q.name, s.const(np.float32(q.scale)), s.const(q.zero, q.dtype)


def _scaled(spread: float) -> float:
    """Three standard deviations on either side of the zero point."""
    return float(np.float32(6 * spread / 255))


def image(s: Sketch, n: int, c: int, h: int, w: int) -> Quantized:
    x = s.input(s.rng.integers(0, 256, (n, c, h, w)).astype(np.uint8))
    return Quantized(x, _scaled(1.0), 128, c, 1.0)


def conv(s: Sketch, x: Quantized, m: int, kernel: int, stride: int = 1, relu: bool = True, group: int = 1) -> Quantized:
    """QLinearConv with per-channel weights and a bias; Relu is saturation at the zero point."""
    depth = x.channels // group * kernel * kernel
    weights = np.clip(np.rint(s.rng.standard_normal((m, x.channels // group, kernel, kernel)) * 40), -127, 127)
    per_channel = (s.rng.uniform(0.5, 2.0, m) / (40 * math.sqrt(depth))).astype(np.float32)
    bias = np.rint(s.rng.standard_normal(m) * 0.2 * x.spread / (x.scale * per_channel)).astype(np.int32)
    spread = 1.3 * x.spread
    zero = 0 if relu else 128
    scale = _scaled(spread) / (2 if relu else 1)
    zeros = s.const(np.zeros(m, np.int8), "int8")
    y = s(
        "QLinearConv", *_params(s, x), s.const(weights, "int8"), s.const(per_channel), zeros,
        s.const(np.float32(scale)), s.const(zero, "uint8"), s.const(bias, "int32"),
        kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4, group=group,
    )  # fmt: skip
    return Quantized(y, float(np.float32(scale)), zero, m, spread * (0.6 if relu else 1.0))


def add(s: Sketch, a: Quantized, b: Quantized) -> Quantized:
    spread = math.hypot(a.spread, b.spread)
    scale = _scaled(spread)
    y = s("QLinearAdd", *_params(s, a), *_params(s, b), s.const(np.float32(scale)), s.const(100, "uint8"), domain=MS)
    return Quantized(y, scale, 100, a.channels, spread)


def dense(s: Sketch, x: Quantized, n: int) -> Quantized:
    """QLinearMatMul with a weight matrix."""
    weights = np.clip(np.rint(s.rng.standard_normal((x.channels, n)) * 40), -127, 127)
    step = float(np.float32(1 / (40 * math.sqrt(x.channels))))
    scale = _scaled(x.spread)
    w = (s.const(weights, "int8"), s.const(np.float32(step)), s.const(0, "int8"))
    y = s("QLinearMatMul", *_params(s, x), *w, s.const(np.float32(scale)), s.const(128, "uint8"))
    return Quantized(y, scale, 128, n, x.spread)


def dequantized(s: Sketch, q: Quantized) -> str:
    return s("DequantizeLinear", *_params(s, q))


def pooled(s: Sketch, q: Quantized) -> Quantized:
    """The mean over the image: dequantized, averaged, quantized."""
    mean = s("GlobalAveragePool", dequantized(s, q))
    flat = s("Flatten", s("QuantizeLinear", mean, *_params(s, q)[1:]), axis=1)
    return Quantized(flat, q.scale, q.zero, q.channels, q.spread)


# ---- the models


def mlp(s: Sketch) -> Built:
    x = s.input(s.integers((4, 32), "uint8"), ("batch", 32))
    q = Quantized(x, _scaled(1.0), 128, 32, 1.0)
    for width in (48, 48):
        q = dense(s, q, width)
        f = s("Relu", dequantized(s, q))
        q = Quantized(
            s("QuantizeLinear", f, s.const(np.float32(q.scale / 2)), s.const(0, "uint8")),
            q.scale / 2,
            0,
            width,
            q.spread,
        )
    y = dequantized(s, dense(s, q, 10))
    return s.build((s("Softmax", y, axis=-1), F32))


def lenet(s: Sketch) -> Built:
    x = s.input(s.normal(1, 1, 28, 28), ("batch", 1, 28, 28))
    for c, m in ((1, 6), (6, 16)):
        y = s("Conv", x, s.const(s.normal(m, c, 5, 5, scale=0.2)), s.const(s.normal(m, scale=0.1)), kernel_shape=[5, 5])
        x = s("MaxPool", s("Relu", y), kernel_shape=[2, 2], strides=[2, 2])
    x, width = s("Flatten", x, axis=1), 256
    for n in (120, 84, 10):
        y = s("Gemm", x, s.const(s.normal(n, width, scale=width**-0.5)), s.const(s.normal(n, scale=0.1)), transB=1)
        x, width = (s("Relu", y) if n != 10 else y), n
    return s.build((s("Softmax", x, axis=1), F32))


LAPLACIAN = [[0, 1, 0], [1, -4, 1], [0, 1, 0]]


def picture(height: int, width: int) -> Array:
    """A disc on a slope: smooth shading and one sharp edge."""
    y, x = np.mgrid[:height, :width]
    disc = (y - height / 2) ** 2 + (x - width / 2) ** 2 < (min(height, width) / 3) ** 2
    return np.clip(40 + x * 120 // width + 80 * disc, 0, 255).astype(np.uint8)[None, None]


def laplacian_float(s: Sketch) -> Built:
    x = s("Cast", s.input(picture(32, 48), (1, 1, "h", "w")), to=1)
    y = s("Abs", s("Conv", x, s.const(np.array(LAPLACIAN, np.float32)[None, None]), pads=[1] * 4))
    return s.build((s("Cast", s("Clip", y, s.const(0.0), s.const(255.0)), to=2), "uint8"))


def laplacian_int8(s: Sketch) -> Built:
    x = s.input(picture(32, 48), (1, 1, "h", "w"))
    weights = s.const(np.array(LAPLACIAN)[None, None], "int8")
    one, zero = s.const(1.0), s.const(0, "uint8")
    middle = s.const(128, "uint8")
    y = s("QLinearConv", x, one, zero, weights, one, s.const(0, "int8"), s.const(2.0), middle, pads=[1] * 4)
    return s.build((y, "uint8"))


def residual(s: Sketch) -> Built:
    """Fifteen nodes: twelve convolutions and three additions."""
    x = conv(s, image(s, 1, 3, 16, 16), 8, 3)
    for width, stride in ((8, 1), (16, 2), (16, 1)):
        left = conv(s, conv(s, x, width, 3, stride), width, 3, relu=False)
        right = conv(s, x, width, 1, stride, relu=False)
        x = add(s, left, right)
    y = conv(s, conv(s, x, 16, 3), 10, 1, relu=False)
    return s.build((y.name, y.dtype))


def classifier(s: Sketch) -> Built:
    """A convolution, pooling that leaves the integers, and a product."""
    y = dense(s, pooled(s, conv(s, image(s, 1, 3, 12, 12), 8, 3)), 10)
    return s.build((y.name, y.dtype))


def attention(s: Sketch, batch: int = 2, length: int = 7, heads: int = 4, depth: int = 8) -> Built:
    """Self-attention whose sequence length is bound at run time: shapes are computed in the graph."""
    width = heads * depth
    x = s.input(s.normal(batch, length, width), ("batch", "length", width))
    shape = s("Shape", x)
    sizes = [s("Gather", shape, s.const([i], "int64"), axis=0) for i in (0, 1)]
    split = s("Concat", *sizes, s.const([heads], "int64"), s.const([depth], "int64"), axis=0)
    joined = s("Concat", *sizes, s.const([width], "int64"), axis=0)

    def project(y: str) -> str:
        return s(
            "Add",
            s("MatMul", y, s.const(s.normal(width, width, scale=width**-0.5))),
            s.const(s.normal(width, scale=0.1)),
        )

    q, k, v = (s("Transpose", s("Reshape", project(x), split), perm=[0, 2, 1, 3]) for _ in range(3))
    scores = s("Mul", s("MatMul", q, s("Transpose", k, perm=[0, 1, 3, 2])), s.const(np.float32(depth**-0.5)))
    mixed = s("Transpose", s("MatMul", s("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    return s.build((s("Add", x, project(s("Reshape", mixed, joined))), F32))


def unet(s: Sketch, size: int = 32, depth: int = 3, width: int = 4) -> Built:
    """Down and up again with skips that live long: what an arena has to hold."""

    def block(y: str, c: int, m: int) -> str:
        for _ in range(2):
            w = s.const(s.normal(m, c, 3, 3, scale=(9 * c) ** -0.5))
            y, c = s("Relu", s("Conv", y, w, s.const(s.normal(m, scale=0.1)), pads=[1] * 4)), m
        return y

    x = s.input(s.normal(1, 1, size, size))
    c, skips = 1, []
    for level in range(depth):
        x = block(x, c, width << level)
        c = width << level
        skips.append((x, c))
        x = s("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x, c = block(x, c, width << depth), width << depth
    for skip, m in reversed(skips):
        h = size >> len(skips) - 1 - [k for k, _ in skips][::-1].index(skip)
        up = s("Reshape", x, s.const([1, c, h // 2, 1, h // 2, 1], "int64"))
        up = s("Expand", up, s.const([1, c, h // 2, 2, h // 2, 2], "int64"))
        up = s("Reshape", up, s.const([1, c, h, h], "int64"))
        x = block(s("Concat", up, skip, axis=1), c + m, m)
        c = m
    return s.build((s("Sigmoid", s("Conv", x, s.const(s.normal(1, c, 1, 1)))), F32))


NETWORKS: tuple[Network, ...] = (
    Network("mlp-int8", mlp, "QLinearMatMul and QDQ activations"),
    Network("lenet", lenet, "LeCun et al. 1998"),
    Network("laplacian-float", laplacian_float, "3x3 edge detection"),
    Network("laplacian-int8", laplacian_int8, "3x3 edge detection, QLinearConv"),
    Network("residual-int8", residual, "He et al. 2015, QOperator form"),
    Network("classifier-int8", classifier, "QOperator form with a float island"),
    Network("attention", attention, "Vaswani et al. 2017, dynamic length"),
    Network("unet", unet, "Ronneberger et al. 2015"),
)


def network(name: str) -> Network:
    """Raises: KeyError."""
    return {n.name: n for n in NETWORKS}[name]
