"""A C kernel `void f(const float *x, float *y, size_t n)` as a backend of a one-input float32 operator.

Portable: runs on Python 3.8 with numpy and nothing else.
"""

from __future__ import annotations

import ctypes
from typing import Any, Mapping, Sequence

import numpy as np

from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError

from .result import Runner


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def load(target: str) -> Runner:
    """`PATH.so:SYMBOL` as an adapter. Raises: BackendUnavailableError."""
    path, _, symbol = target.rpartition(":")
    try:
        function: Any = getattr(ctypes.CDLL(path), symbol)
    except (OSError, AttributeError) as error:
        raise BackendUnavailableError(f"native {target}: {error}") from error
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    function.restype = None

    def shapes(model: bytes, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        if len(inputs) != 1:
            raise UnsupportedError(f"a native kernel takes one input, the model has {len(inputs)}")
        ((name, x),) = inputs.items()
        if x.dtype != np.float32:
            raise UnsupportedError(f"a native kernel takes float32, {name!r} is {x.dtype}")
        return [(x.dtype, x.shape)]

    def into(model: bytes, inputs: Mapping[str, np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        ((_, x),) = inputs.items()
        function(_address(x), _address(outputs[0]), x.size)

    def run(model: bytes, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        outputs = [np.empty(shape, dtype) for dtype, shape in shapes(model, inputs)]
        into(model, inputs, outputs)
        return outputs

    return Runner(run, into, shapes, strict=True)
