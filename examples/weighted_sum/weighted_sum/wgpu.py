"""The primitive in WGSL: `call` takes a `Builder` and tensors on the device, and appends dispatches."""

from __future__ import annotations

from opgauge.backends.wgpu import shader
from opgauge.backends.wgpu.plan import Builder, Tensor
from opgauge.reference_engine.types import Kernel

from .operator import PRIMITIVE

# load0(i), load1(i), .. are elements of the inputs, as bits; times and plus are the float32 operations on bits.
BODY = """fn element(i: u32) -> u32 {
    return plus(times(load2(0u), load0(i)), times(load3(0u), load1(i)));
}"""
CODE = shader.per_element(("float32",) * 4, "float32", BODY)


def weighted_sum(build: Builder, x1: Tensor, x2: Tensor, w1: Tensor, w2: Tensor, out: Tensor) -> None:
    """out[i] = w1 * x1[i] + w2 * x2[i]"""
    build.dispatch(CODE, (x1, x2, w1, w2), (out,), (out.size,), shader.words(out.size, "float32"))


KERNELS = (Kernel(PRIMITIVE, "", ("float32",) * 5, weighted_sum),)
