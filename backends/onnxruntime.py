"""onnxruntime's CPU execution provider as a backend, any release since 1.14.

Portable: the worker of a foreign environment runs this file on Python 3.8 with numpy and onnxruntime.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import platform
import time
from pathlib import Path
from typing import Any, Mapping, Sequence

import numpy as np

from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError

from .result import CONTRADICTED, FOREIGN, Runner, RunResult, foreign_word

LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
PROVIDERS = ["CPUExecutionProvider"]
QUIET = 4
# Element types that numpy has not: their numbers in ONNX, and the bits of those packed into less than a byte.
ONNX_TYPES = {
    "bfloat16": 16,
    "float8e4m3fn": 17,
    "float8e4m3fnuz": 18,
    "float8e5m2": 19,
    "float8e5m2fnuz": 20,
    "uint4": 21,
    "int4": 22,
    "uint2": 25,
    "int2": 26,
}
PACKED = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
ISA_WORDS = (
    "avx2 avx_vnni avx512f avx512bw avx512_vnni avx512_bf16 avx512_fp16 amx_int8 amx_bf16 asimddp i8mm sve"
).split()


def _import() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendUnavailableError(f"onnxruntime: {error}; pip install onnxruntime") from error
    onnxruntime.set_default_logger_severity(QUIET)
    # What a gauge runs is nobody else's business, and the thread that tells would show in the watches.
    getattr(onnxruntime, "disable_telemetry_events", lambda: None)()
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


def load(level: str = "all", threads: str = "1", x64quantprecision: str = "0") -> Runner:
    """Raises: BackendUnavailableError where onnxruntime is missing or an option has no such value."""
    ort = _import()
    options = _session_options(ort, level, threads, x64quantprecision)
    # RuntimeError and ValueError come from its Python layer: no implementation, names or types of feeds.
    refusals: tuple[type[Exception], ...] = (*_refusals(ort), RuntimeError, ValueError, NotImplementedError)

    @functools.lru_cache(maxsize=1)
    def session_of(model: bytes) -> tuple[Any, Sequence[Any], int]:
        """The session, what it says of its outputs, and the time that it took to make."""
        start = time.perf_counter_ns()
        session = ort.InferenceSession(model, options, providers=PROVIDERS)
        return session, session.get_outputs(), time.perf_counter_ns() - start

    def run(model: bytes, inputs: Mapping[str, np.ndarray]) -> RunResult:
        try:
            session, said, created_ns = session_of(model)
            outputs = _run(ort, session, said, inputs)
        except refusals as error:
            raise UnsupportedError(f"{type(error).__name__}: {error}") from error
        wrong = sum(map(_contradicted, said, outputs))
        return RunResult(tuple(outputs), {CONTRADICTED: wrong} if wrong else {}, {"session": created_ns})

    def into(model: bytes, inputs: Mapping[str, np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        bindable = all(a.size and not foreign_word(a.dtype) for a in (*inputs.values(), *outputs))
        if bindable:
            with contextlib.suppress(*refusals):
                return _run_bound(*session_of(model)[:2], inputs, outputs)
        for given, computed in zip(outputs, run(model, inputs).outputs):
            np.copyto(given, computed)
        return None

    return Runner(run, into)


def _contradicted(said: Any, y: np.ndarray) -> bool:
    """Does its own shape inference say another length of an axis (a symbol or nothing agrees with every length)."""
    if not said.shape:  # unknown, or a scalar
        return False
    lengths = [(n, m) for n, m in zip(said.shape, y.shape) if isinstance(n, int)]
    return len(said.shape) != y.ndim or any(n != m for n, m in lengths)


def _run_bound(
    session: Any, said: Sequence[Any], inputs: Mapping[str, np.ndarray], outputs: Sequence[np.ndarray]
) -> None:
    """Let it write where we say: a binding takes raw pointers."""
    binding = session.io_binding()
    for name, x in inputs.items():
        binding.bind_cpu_input(name, x)
    for output, y in zip(said, outputs):
        binding.bind_output(output.name, "cpu", 0, y.dtype.type, y.shape, y.ctypes.data)
    session.run_with_iobinding(binding)


def _run(ort: Any, session: Any, said: Sequence[Any], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    foreign = {f"tensor({word})" for word in FOREIGN}
    plain = not foreign.intersection(y.type for y in said)
    if plain and not any(foreign_word(x.dtype) for x in inputs.values()):
        return list(session.run(None, dict(inputs)))
    # numpy knows no such type, so these go in and out by their bits.
    feeds = {name: _to_ort(ort, x) for name, x in inputs.items()}
    values = session.run_with_ort_values([y.name for y in said], feeds)
    return [_from_ort(v) for v in values]


def _to_ort(ort: Any, x: np.ndarray) -> Any:
    word = foreign_word(x.dtype)
    if not word:
        return ort.OrtValue.ortvalue_from_numpy(x)
    make = getattr(ort.OrtValue, "ortvalue_from_numpy_with_onnx_type", None)
    if make is None:
        raise NotImplementedError(f"onnxruntime {ort.__version__} takes no {word} from Python")
    # ascontiguousarray makes a vector of a scalar.
    bits = np.ascontiguousarray(x).reshape(x.shape).view(np.uint16 if word == "bfloat16" else np.uint8)
    return make(_packed(bits, PACKED[word]) if word in PACKED else bits, ONNX_TYPES[word])


def _packed(values: np.ndarray, bits: int) -> np.ndarray:
    """Several to a byte, the first in the low bits, at the front of an array that keeps its shape."""
    each = 8 // bits
    flat = np.zeros(-(-values.size // each) * each, np.uint8)
    flat[: values.size] = values.ravel() & (2**bits - 1)
    held = np.zeros(values.shape, np.uint8)
    packed = sum(flat[i::each] << (bits * i) for i in range(each))
    held.reshape(-1)[: flat.size // each] = packed
    return held


def _unpacked(packed: np.ndarray, bits: int, size: int, signed: bool) -> np.ndarray:
    each = 8 // bits
    flat = np.stack([(packed >> (bits * i)) & (2**bits - 1) for i in range(each)], -1).ravel()[:size]
    # One element a byte, its sign extended.
    return np.where(flat >> (bits - 1), flat | (256 - 2**bits), flat).astype(np.uint8) if signed else flat


def _from_ort(value: Any) -> np.ndarray:
    word = value.data_type()[len("tensor(") : -1]
    if word not in FOREIGN:
        return value.numpy()
    shape = tuple(value.shape())
    size = int(np.prod(shape, dtype=np.int64))
    # Releases before 1.23 do not say how many bytes a value has.
    width = -(-size * PACKED.get(word, 8 * np.dtype(FOREIGN[word]).itemsize) // 8)
    raw = ctypes.string_at(value.data_ptr(), width) if size else b""
    if word in PACKED:
        packed = np.frombuffer(raw, np.uint8)
        return _unpacked(packed, PACKED[word], size, word.startswith("int")).view(FOREIGN[word]).reshape(shape)
    return np.frombuffer(raw, FOREIGN[word]).reshape(shape).copy()


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
