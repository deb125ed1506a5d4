"""onnx.reference.ReferenceEvaluator as a backend, for information: it is Python that explains, not a judge.

Portable: the worker of a foreign environment runs this file on Python 3.8 with numpy and onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError

from .result import RunResult


def load() -> Callable[[bytes, Mapping[str, np.ndarray]], RunResult]:
    try:
        import onnx
        from onnx.reference import ReferenceEvaluator
        from onnx.reference.op_run import RuntimeTypeError
    except ImportError as error:
        raise BackendUnavailableError(f"onnx-reference: {error}; pip install onnx") from error

    def run(model: bytes, inputs: Mapping[str, np.ndarray]) -> RunResult:
        try:
            outputs = ReferenceEvaluator(onnx.load_from_string(model)).run(None, dict(inputs))
        except (NotImplementedError, RuntimeTypeError) as error:
            raise UnsupportedError(str(error)) from error
        return RunResult(tuple(np.asarray(y) for y in outputs))  # some operators return numpy scalars

    return run


def info() -> dict[str, str]:
    import onnx

    return {"version": onnx.__version__, "sums": "numpy's own order"}
