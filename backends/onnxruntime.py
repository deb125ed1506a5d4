"""onnxruntime's CPU execution provider as a backend."""

from __future__ import annotations

import ctypes
import functools
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError
from opgauge.reference_engine.types import Array

from . import RunResult

LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
PROVIDERS = ["CPUExecutionProvider"]
QUIET = 4
BFLOAT16 = 16
ISA_WORDS = (
    "avx2 avx_vnni avx512f avx512bw avx512_vnni avx512_bf16 avx512_fp16 amx_int8 amx_bf16 asimddp i8mm sve"
).split()


def _import() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendUnavailableError(f"onnxruntime: {error}; pip install onnxruntime") from error
    onnxruntime.set_default_logger_severity(QUIET)
    return onnxruntime


def _refusals(ort: Any) -> tuple[type[Exception], ...]:
    """onnxruntime's own errors; they have no common class below Exception."""
    state = ort.capi.onnxruntime_pybind11_state
    return tuple(c for c in vars(state).values() if isinstance(c, type) and issubclass(c, Exception))


def _session_options(ort: Any, level: str, threads: str, x64quantprecision: str) -> Any:
    if level not in LEVELS:
        raise BackendUnavailableError(f"onnxruntime: level {level!r} is not one of {', '.join(LEVELS)}")
    if not threads.isdecimal():
        raise BackendUnavailableError(f"onnxruntime: threads {threads!r} is not a number (0 means one per core)")
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    # Creating a session costs ten times its run on a small case: no pools of threads, no arena, no plan.
    options.intra_op_num_threads = int(threads)
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.x64quantprecision", x64quantprecision)
    return options


def load(
    level: str = "all", threads: str = "1", x64quantprecision: str = "0"
) -> Callable[[bytes, Mapping[str, Array]], RunResult]:
    """Raises: BackendUnavailableError where onnxruntime is missing or an option has no such value."""
    ort = _import()
    options = _session_options(ort, level, threads, x64quantprecision)
    # RuntimeError and ValueError come from its Python layer: no implementation, names or types of feeds.
    refusals: tuple[type[Exception], ...] = (*_refusals(ort), RuntimeError, ValueError, NotImplementedError)

    @functools.lru_cache(maxsize=1)
    def session_of(model: bytes) -> tuple[Any, int]:
        start = time.perf_counter_ns()
        session = ort.InferenceSession(model, options, providers=PROVIDERS)
        return session, time.perf_counter_ns() - start

    def run(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
        try:
            session, created_ns = session_of(model)
            outputs = _run(ort, session, inputs)
        except refusals as error:
            raise UnsupportedError(f"{type(error).__name__}: {error}") from error
        return RunResult(tuple(outputs), {}, {"session": created_ns})

    return run


def _run(ort: Any, session: Any, inputs: Mapping[str, Array]) -> list[Array]:
    types = [y.type for y in session.get_outputs()]
    if "tensor(bfloat16)" not in types and all(x.dtype != ml_dtypes.bfloat16 for x in inputs.values()):
        return list(session.run(None, dict(inputs)))
    # numpy knows no bfloat16, so these go in and out by their bits.
    feeds = {name: _to_ort(ort, x) for name, x in inputs.items()}
    values = session.run_with_ort_values([y.name for y in session.get_outputs()], feeds)
    return [_from_ort(v) for v in values]


def _to_ort(ort: Any, x: Array) -> Any:
    if x.dtype == ml_dtypes.bfloat16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(x).view(np.uint16), BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(x)


def _from_ort(value: Any) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()) if 0 not in value.shape() else b""
    return np.frombuffer(raw, ml_dtypes.bfloat16).reshape(value.shape()).copy()


def cpu_flags() -> str:
    """The instruction sets that decide which kernel runs (VNNI, AMX, dot product)."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return "unknown"
    return " ".join(w for w in ISA_WORDS if w in words) or "none of note"


def info() -> dict[str, str]:
    ort = _import()
    return {
        "version": ort.__version__,
        "providers": ", ".join(ort.get_available_providers()),
        "cpu": f"{platform.machine()} {cpu_flags()}",
        "sums": "its own order, may depend on the alignment of inputs",
    }
