"""OpenVINO's CPU plugin as a backend, in this environment or any release in one of its own.

Portable: the worker of a foreign environment runs this file on Python 3.8 with numpy and openvino.
"""

from __future__ import annotations

import functools
import os
import platform
import time
from typing import Any, Mapping

import numpy as np

from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError

from .result import Runner, RunResult, foreign_word

DEVICE = "CPU"
# Types of outputs that arrive as bytes of another numpy type.
FOREIGN_PORTS = frozenset("bf16 f8e4m3 f8e5m2 f8e8m0 f4e2m1 nf4 u1 u2 u3 u4 u6 i4".split())


def _import() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise BackendUnavailableError(f"openvino: {error}; pip install openvino") from error
    # Before 2023.0 the runtime was a module of its own.
    return openvino if hasattr(openvino, "Core") else openvino.runtime


def load(threads: str = "1", precision: str = "f32", reference: str = "no", isa: str = "") -> Runner:
    """`precision` is the hint for float computations, `reference=yes` turns the graph's optimisations off.

    `isa` is the best instruction set that oneDNN may use, in its own words: AVX2, AVX512_CORE, AVX512_CORE_VNNI ...

    Raises: BackendUnavailableError.
    """
    if isa:
        os.environ["ONEDNN_MAX_CPU_ISA"] = isa  # read when the library is loaded
    ov = _import()
    if not threads.isdecimal():
        raise BackendUnavailableError(f"openvino: threads {threads!r} is not a number (0 means one per core)")
    core = ov.Core()
    config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision, "NUM_STREAMS": "1"}
    if reference == "yes":
        config["DISABLE_TRANSFORMATIONS"] = "YES"

    @functools.lru_cache(maxsize=1)
    def compiled_of(model: bytes) -> Any:
        start = time.perf_counter_ns()
        compiled = core.compile_model(core.read_model(model, b""), DEVICE, config)
        return compiled.create_infer_request(), compiled, time.perf_counter_ns() - start

    def run(model: bytes, inputs: Mapping[str, np.ndarray]) -> RunResult:
        foreign = [foreign_word(x.dtype) for x in inputs.values() if foreign_word(x.dtype)]
        if foreign:
            raise UnsupportedError(f"{foreign[0]} inputs do not pass through numpy to openvino")
        try:
            request, compiled, created_ns = compiled_of(model)
            words = {port.get_element_type().get_type_name() for port in compiled.outputs} & FOREIGN_PORTS
            if words:
                raise UnsupportedError(f"{min(words)} outputs do not pass through openvino to numpy")
            known = {name for port in compiled.inputs for name in port.get_names()}
            found = request.infer({name: x for name, x in inputs.items() if name in known})
            outputs = tuple(np.array(found[port]) for port in compiled.outputs)
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise UnsupportedError(f"{type(error).__name__}: {_reason(str(error))}") from error
        return RunResult(outputs, {}, {"session": created_ns})

    return Runner(run)


def _reason(message: str) -> str:
    """OpenVINO's messages begin with the places in its source; the last lines say what was wrong."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " ".join(lines[-3:])


def info() -> dict[str, str]:
    ov = _import()
    core = ov.Core()
    return {
        "version": str(ov.get_version()),
        "cpu": f"{platform.machine()} {core.get_property(DEVICE, 'FULL_DEVICE_NAME')}",
        "capabilities": ", ".join(core.get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")),
        "sums": "its own order",
    }
