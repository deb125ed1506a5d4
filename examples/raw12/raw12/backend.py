"""A backend of one operator, in numpy: what `--backend raw12` loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx

from opgauge.backends import RunResult
from opgauge.reference_engine.errors import UnsupportedError

Array = np.ndarray


def unpack(packed: Array) -> Array:
    """The 12-bit pixels [..., 2n] of bytes [..., 3n]."""
    a, b, c = (packed[..., i::3].astype(np.uint16) for i in range(3))
    pixels = np.empty((*packed.shape[:-1], packed.shape[-1] // 3 * 2), np.uint16)
    pixels[..., 0::2] = a << 4 | (c & 15)
    pixels[..., 1::2] = b << 4 | c >> 4
    return pixels


def dequantize(packed: Array, black: Array, gain: Array) -> Array:
    """(v - black) * gain in float32"""
    difference = unpack(packed).astype(np.int32) - black.astype(np.int32)
    return np.asarray(difference.astype(np.float32) * gain, np.float32)


def load() -> Callable[[bytes, Mapping[str, Array]], RunResult]:
    def run(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
        graph = onnx.load_model_from_string(model).graph
        names = [f"{node.domain}::{node.op_type}" for node in graph.node]
        if names != ["example::DequantizeRaw12"]:
            raise UnsupportedError(f"raw12 runs one example::DequantizeRaw12, not {', '.join(names)}")
        values = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer} | dict(inputs)
        return RunResult((dequantize(*(values[name] for name in graph.node[0].input)),))

    return run


def info() -> dict[str, str]:
    return {"version": np.__version__}
