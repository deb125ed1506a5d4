"""Models whose kernels are timed against peers: one product or convolution each, weights constant."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from .pattern import Built
from .sketch import Sketch

GEMMS = ((1, 1000, 512), (64, 64, 64), (128, 256, 256), (784, 128, 576), (512, 512, 512), (1024, 1024, 1024))
PAIRS = (("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8"))


@dataclass(frozen=True)
class Layer:
    """A square convolution of `size` x `size` images without padding left over."""

    kernel: int
    channels: int
    outputs: int
    size: int
    stride: int = 1
    groups: int = 1

    @property
    def name(self) -> str:
        stride = f" s{self.stride}" if self.stride > 1 else ""
        groups = f" g{self.groups}" if self.groups > 1 else ""
        return f"{self.kernel}x{self.kernel} {self.channels}->{self.outputs} @{self.size}{stride}{groups}"


LAYERS = (
    Layer(3, 64, 128, 28),
    Layer(3, 64, 64, 56),
    Layer(3, 256, 256, 14),
    Layer(1, 64, 256, 56),
    Layer(1, 256, 64, 56),
    Layer(1, 256, 128, 28),
    Layer(1, 512, 256, 14),
    Layer(7, 3, 64, 224, 2),
)
GROUPED = (
    Layer(3, 32, 32, 112, 1, 32),
    Layer(3, 128, 128, 56, 1, 128),
    Layer(3, 256, 256, 28, 2, 256),
    Layer(3, 512, 512, 14, 1, 512),
    Layer(3, 128, 128, 28, 1, 32),
)
MLP = (784, 512, 256, 10)
BATCHES = (1, 32, 128, 512)


@dataclass(frozen=True)
class Peered:
    """One timed case. `goal` is the least ratio peer / ours that is asked for (0: it is only reported).

    `peer` is onnxruntime, numpy, onnx-reference, `unfused`: our engine without the rule that fuses, `hand-written`: one
    compiled function instead of a graph, or `one-thread`: our engine on one thread where ours has two.
    """

    section: str
    label: str
    peer: str
    build: Callable[[], Built]
    goal: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.section} {self.label} {self.peer}"


def _sketch() -> Sketch:
    return Sketch(np.random.Generator(np.random.PCG64(1)))


def matmul_integer(M: int, N: int, K: int, a: str, b: str) -> Built:
    s = _sketch()
    y = s("MatMulInteger", s.input(s.integers((M, K), a)), s.const(s.integers((K, N), b), b))
    return s.build((y, "int32"))


def qlinear_matmul(M: int, N: int, K: int) -> Built:
    s = _sketch()
    parts = [s.input(s.integers((M, K), "uint8")), s.const(0.02), s.const(128, "uint8")]
    parts += [s.const(s.integers((K, N), "int8"), "int8"), s.const(0.01), s.const(0, "int8")]
    return s.build((s("QLinearMatMul", *parts, s.const(0.02 * K**0.5), s.const(120, "uint8")), "uint8"))


def qlinear_conv(layer: Layer, last: bool = False) -> Built:
    """A convolution of bytes; `last`: between two transposes, so that image and result have their channels last."""
    s = _sketch()
    k, c, m, size = layer.kernel, layer.channels, layer.outputs, layer.size
    x = s.input(s.integers((1, size, size, c) if last else (1, c, size, size), "uint8"))
    parts = [s("Transpose", x, perm=[0, 3, 1, 2]) if last else x, s.const(0.02), s.const(128, "uint8")]
    depth = c // layer.groups
    parts += [s.const(s.integers((m, depth, k, k), "int8"), "int8"), s.const(0.01), s.const(0, "int8")]
    parts += [s.const(0.02 * (depth * k * k) ** 0.5), s.const(120, "uint8")]
    parts.append(s.const(s.integers((m,), "int8"), "int32"))
    y = s("QLinearConv", *parts, pads=[k // 2] * 4, strides=[layer.stride] * 2, kernel_shape=[k, k],
          group=layer.groups)  # fmt: skip
    return s.build((s("Transpose", y, perm=[0, 2, 3, 1]) if last else y, "uint8"))


def qlinear_mlp(batch: int) -> Built:
    """Layers of bytes, each but the last with Relu as saturation at its zero point."""
    s = _sketch()
    x = s.input(s.integers((batch, MLP[0]), "uint8"))
    zero, step = 128, 0.02
    for k, n in itertools.pairwise(MLP):
        y_zero, y_step = (120 if n == MLP[-1] else 0), 0.02 * k**0.5 / 4
        weights = s.const(s.integers((k, n), "int8"), "int8")
        parts = [x, s.const(step), s.const(zero, "uint8"), weights, s.const(0.01), s.const(0, "int8")]
        x = s("QLinearMatMul", *parts, s.const(y_step), s.const(y_zero, "uint8"))
        zero, step = y_zero, y_step
    return s.build((x, "uint8"))


def matmul_float(M: int, N: int, K: int) -> Built:
    s = _sketch()
    return s.build((s("MatMul", s.input(s.normal(M, K)), s.const(s.normal(K, N))), "float32"))


def _gemms() -> list[Peered]:
    found = []
    for a, b in PAIRS:
        for shape in GEMMS:
            large = min(shape) >= 128
            goal = {"int8 int8": 12.0, "uint8 uint8": 2.5}.get(f"{a} {b}", 0.0) if large else 0.0
            if (a, b) == PAIRS[0]:
                goal = 1.3 if shape in GEMMS[:2] else 0.4
            label = f"{a},{b} {'x'.join(map(str, shape))}"
            found.append(Peered("gemm", label, "onnxruntime", partial(matmul_integer, *shape, a=a, b=b), goal))
    return found


def _convolutions() -> list[Peered]:
    found = []
    for layer in GROUPED:
        found.append(Peered("grouped", layer.name, "onnxruntime", partial(qlinear_conv, layer)))
        found.append(Peered("grouped", f"NHWC {layer.name}", "onnxruntime", partial(qlinear_conv, layer, True)))
    for layer in LAYERS:
        build = partial(qlinear_conv, layer)
        found.append(Peered("conv", layer.name, "onnxruntime", build))
        found.append(Peered("conv", f"NHWC {layer.name}", "onnxruntime", partial(qlinear_conv, layer, True), 0.7))
        found.append(Peered("fusion", layer.name, "unfused", build))
        if layer.kernel < 7:
            found.append(Peered("reference", f"QLinearConv {layer.name}", "onnx-reference", build, 300.0))
    return found


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


THREADED = GEMMS[3:]
LARGE = tuple(s for s in GEMMS if min(s) >= 128)
CASES: tuple[Peered, ...] = (
    *_gemms(),
    *_convolutions(),
    *(Peered("float", _text(s), "numpy", partial(matmul_float, *s), float(s in LARGE)) for s in GEMMS),
    *(
        Peered("reference", f"QLinearMatMul {_text(s)}", "onnx-reference", partial(qlinear_matmul, *s), 500.0)
        for s in LARGE
    ),
    *(
        Peered(
            "mlp",
            f"batch {n}",
            "hand-written",
            partial(qlinear_mlp, n),
            {32: 1 / 1.05}.get(n, 1 / 1.02 if n > 32 else 0.0),
        )
        for n in BATCHES
    ),
    *(
        Peered("threads", f"uint8,int8 {_text(s)}", "one-thread", partial(matmul_integer, *s, a="uint8", b="int8"), 1.3)
        for s in THREADED
    ),
)
