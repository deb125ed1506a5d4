"""The graph that any release of onnxruntime makes of a model: the optimised model as bytes in a uint8 tensor.

Portable: the worker of a foreign environment runs this file on Python 3.8 with numpy and onnxruntime. Counting its
nodes needs onnx, which such an environment has not: `onnxruntime_counts.kinds` does it on the near side.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, Mapping

import numpy as np

from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError

QUIET = 4


def _optimised(model: bytes, level: str) -> list[np.ndarray]:
    """Raises: UnsupportedError, BackendUnavailableError."""
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise BackendUnavailableError(f"onnxruntime: {error}; pip install onnxruntime") from error
    handle, path = tempfile.mkstemp(".onnx")
    os.close(handle)
    try:
        options: Any = ort.SessionOptions()
        options.log_severity_level = QUIET
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = getattr(
            ort.GraphOptimizationLevel, level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        )
        options.optimized_model_filepath = path
        try:
            ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common class
            raise UnsupportedError(f"{type(error).__name__}: {error}") from error
        with open(path, "rb") as file:
            return [np.frombuffer(file.read(), np.uint8)]
    finally:
        os.unlink(path)


def disable(model: bytes, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return _optimised(model, "ORT_DISABLE_ALL")


def basic(model: bytes, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return _optimised(model, "ORT_ENABLE_BASIC")


def extended(model: bytes, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return _optimised(model, "ORT_ENABLE_EXTENDED")


def layout(model: bytes, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Older releases have no level of its own for it: all."""
    return _optimised(model, "ORT_ENABLE_LAYOUT")


def all(model: bytes, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return _optimised(model, "ORT_ENABLE_ALL")
