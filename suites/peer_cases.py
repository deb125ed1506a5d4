"""Models whose kernels are timed against peers: one product or convolution each, weights constant."""

from __future__ import annotations

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

    @property
    def name(self) -> str:
        stride = f" s{self.stride}" if self.stride > 1 else ""
        return f"{self.kernel}x{self.kernel} {self.channels}->{self.outputs} @{self.size}{stride}"


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


@dataclass(frozen=True)
class Peered:
    """One timed case. `goal` is the least ratio peer / ours that is asked for (0: it is only reported).

    `peer` is onnxruntime, numpy, onnx-reference, or `unfused`: our engine without the rule that fuses.
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


def qlinear_conv(layer: Layer) -> Built:
    s = _sketch()
    k, c, m = layer.kernel, layer.channels, layer.outputs
    parts = [s.input(s.integers((1, c, layer.size, layer.size), "uint8")), s.const(0.02), s.const(128, "uint8")]
    parts += [s.const(s.integers((m, c, k, k), "int8"), "int8"), s.const(0.01), s.const(0, "int8")]
    parts += [s.const(0.02 * (c * k * k) ** 0.5), s.const(120, "uint8"), s.const(s.integers((m,), "int8"), "int32")]
    y = s("QLinearConv", *parts, pads=[k // 2] * 4, strides=[layer.stride] * 2, kernel_shape=[k, k])
    return s.build((y, "uint8"))


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
    for layer in LAYERS:
        build = partial(qlinear_conv, layer)
        found.append(Peered("conv", layer.name, "onnxruntime", build))
        found.append(Peered("fusion", layer.name, "unfused", build))
        if layer.kernel < 7:
            found.append(Peered("reference", f"QLinearConv {layer.name}", "onnx-reference", build, 300.0))
    return found


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


LARGE = tuple(s for s in GEMMS if min(s) >= 128)
CASES: tuple[Peered, ...] = (
    *_gemms(),
    *_convolutions(),
    *(Peered("float", _text(s), "numpy", partial(matmul_float, *s), float(s in LARGE)) for s in GEMMS),
    *(
        Peered("reference", f"QLinearMatMul {_text(s)}", "onnx-reference", partial(qlinear_matmul, *s), 500.0)
        for s in LARGE
    ),
)
