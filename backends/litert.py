"""LiteRT (the runtime of .tflite files) as a backend, in this environment or any release in one of its own.

LiteRT reads no ONNX: single operators and QDQ regions become .tflite files by our own small builder (litert_net.py,
litert_quantized.py, litert_float.py, litert_builder.py). What has no operator of LiteRT's is unsupported.

Portable: the worker of a foreign environment runs this file on Python 3.8 with numpy, onnx and ai-edge-litert.
"""

from __future__ import annotations

import functools
import platform
import time
from typing import Any, Mapping

import numpy as np

from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError

from .result import Runner, RunResult

# Which kernels: with XNNPACK where it takes an operator, LiteRT's optimised ones alone, its reference ones alone.
KERNELS = {
    "xnnpack": "AUTO",
    "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    "reference": "BUILTIN_REF",
}
loaded = {"kernels": "xnnpack"}  # what `info` says of the one backend that a worker's process loads


def _import() -> Any:
    try:
        import ai_edge_litert.interpreter as litert
        import flatbuffers  # noqa: F401
        import onnx  # noqa: F401
    except ImportError as error:
        raise BackendUnavailableError(f"litert: {error}; pip install ai-edge-litert onnx") from error
    return litert


def load(kernels: str = "xnnpack", threads: str = "1") -> Runner:
    """`kernels` is xnnpack (LiteRT's default), builtin (no delegate) or reference.

    Raises: BackendUnavailableError.
    """
    litert = _import()
    from . import litert_net, litert_plan  # they need flatbuffers and onnx

    if kernels not in KERNELS:
        raise BackendUnavailableError(f"litert: kernels {kernels!r}: choose among {', '.join(KERNELS)}")
    if not threads.isdecimal() or not int(threads):
        raise BackendUnavailableError(f"litert: threads {threads!r} is not a positive number")
    resolver = getattr(litert.OpResolverType, KERNELS[kernels])
    loaded["kernels"] = kernels

    @functools.lru_cache(maxsize=1)
    def prepared(model: bytes) -> Any:
        start = time.perf_counter_ns()
        interpreter = litert.Interpreter(
            model_content=model, experimental_op_resolver_type=resolver, num_threads=int(threads)
        )
        interpreter.allocate_tensors()
        ins = [d["index"] for d in interpreter.get_input_details()]
        outs = [d["index"] for d in interpreter.get_output_details()]
        return interpreter, ins, outs, time.perf_counter_ns() - start

    def run(model: bytes, inputs: Mapping[str, np.ndarray]) -> RunResult:
        plan = litert_plan.plan(model, inputs, kernels == "xnnpack")
        try:
            interpreter, ins, outs, created_ns = prepared(plan.model)
            for index, feed in zip(ins, plan.feeds):
                interpreter.set_tensor(index, litert_net.prepared(feed, inputs[feed.name]))
            interpreter.invoke()
            found = [interpreter.get_tensor(index) for index in outs]
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UnsupportedError(f"{type(error).__name__}: {reason} ({' '.join(plan.kinds)})") from error
        outputs = tuple(litert_net.fetched(made, y) for made, y in zip(plan.fetches, found))
        return RunResult(outputs, {}, {"session": created_ns})

    return Runner(run)


def info() -> dict[str, str]:
    _import()
    from importlib import metadata

    return {
        "version": metadata.version("ai-edge-litert"),
        "cpu": f"{platform.machine()} {platform.processor()}".strip(),
        "delegate": "XNNPACK" if loaded["kernels"] == "xnnpack" else "none",
        "sums": "its own order",
    }
