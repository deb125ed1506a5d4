"""The kernel worker: one process, one adapter, trusted with nothing.

    python -P -m opgauge.worker SETTINGS

Requests come in on what was standard input, replies go out on what was standard output. Both are moved to
private descriptors before the adapter is loaded: what a kernel prints lands in the captured standard error.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from opgauge.backends import BackendSpec, resolve
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import BackendUnavailableError, OpgaugeError, UnsupportedError
from opgauge.reference_engine.types import Array, Status

from . import isolation, wire

Runner = Callable[[bytes, Mapping[str, Array]], Any]
MESSAGE_LENGTH = 400
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]")


class Result(NamedTuple):
    """One call: outputs, their bits at that moment, what the adapter counted and timed."""

    arrays: list[Array]
    bits: list[bytes]
    counts: dict[str, int]
    times_ns: dict[str, int]


class _Stop(Exception):
    """Ends a case with its status."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def clean(text: object) -> str:
    """The first line of a message without terminal escapes, truncated."""
    lines = _ESCAPES.sub("", str(text)).strip().splitlines() or [""]
    return lines[0][:MESSAGE_LENGTH]


def _explain(error: BaseException) -> str:
    return clean(f"{type(error).__name__}: {error}")


# ---- loading


@contextlib.contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _module_at(path: str) -> ModuleType:
    file = Path(path).resolve()
    spec = importlib.util.spec_from_file_location(f"opgauge_loaded_{file.stem}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise BackendUnavailableError(f"no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with _importing_from(str(file.parent)):
        spec.loader.exec_module(module)
    return module


def _load_fault(target: str) -> Runner:
    path, _, name = target.rpartition(":")
    module = _module_at(path)
    rows = [*getattr(module, "FAULTS", ()), *getattr(module, "BENIGN", ())]
    fault = next((row for row in rows if row.id == name), None)
    if fault is None:
        raise BackendUnavailableError(f"{path} has no fault {name!r}")
    if hasattr(fault, "reset"):
        fault.reset()
    return lambda model, inputs: fault.run(model, inputs, base="ort")


def load_callable(target: str) -> Callable[..., Any]:
    """The object at `module:attr` or `path.py:attr`. Raises: BackendUnavailableError."""
    place, _, name = target.rpartition(":")
    if place.endswith(".py"):
        module = _module_at(place)
    else:
        with _importing_from(os.getcwd()):
            module = importlib.import_module(place)
    try:
        return getattr(module, name)
    except AttributeError:
        raise BackendUnavailableError(f"{place} has no {name!r}") from None


def load_adapter(spec: BackendSpec) -> tuple[Runner, Callable[[], Mapping[str, str]]]:
    """The adapter's run and info. Raises: BackendUnavailableError."""
    if spec.kind == "fault":
        return _load_fault(spec.target), dict
    if spec.kind == "callable":
        return load_callable(spec.target), dict
    module = importlib.import_module(spec.target)
    return module.load(**dict(spec.options)), module.info


# ---- one case


def _call(run: Runner, model: bytes, inputs: Mapping[str, Array], n_outputs: int) -> Result:
    """Run once and take the bits. Raises: _Stop."""
    start = time.perf_counter_ns()
    try:
        returned = run(model, dict(inputs))
    except (UnsupportedError, NotImplementedError) as error:
        raise _Stop(Status.UNSUPPORTED, clean(error)) from None
    except MemoryError as error:
        raise _Stop(Status.OOM, f"raised {_explain(error)}") from None
    except BaseException as error:  # SystemExit too: a kernel may do anything
        if type(error).__module__.startswith("onnxruntime."):  # an adapter of the user's own on top of onnxruntime
            raise _Stop(Status.UNSUPPORTED, _explain(error)) from None
        raise _Stop(Status.FAIL, f"raised {_explain(error)}") from None
    elapsed = time.perf_counter_ns() - start
    counts, times = getattr(returned, "counts", {}), getattr(returned, "times_ns", {})
    arrays = _outputs(getattr(returned, "outputs", returned), n_outputs)
    return Result(
        arrays,
        [a.tobytes() for a in arrays],
        {str(k): int(v) for k, v in counts.items()},
        {**{str(k): int(v) for k, v in times.items()}, "run": elapsed},
    )


def _outputs(outputs: Any, n_outputs: int) -> list[Array]:
    if not isinstance(outputs, (list, tuple)):
        raise _Stop(Status.FAIL, f"returned {type(outputs).__name__}, not a list of arrays")
    if n_outputs and len(outputs) != n_outputs:
        raise _Stop(Status.FAIL, f"returned {len(outputs)} outputs, the model has {n_outputs}")
    for i, y in enumerate(outputs):
        if not isinstance(y, np.ndarray):
            raise _Stop(Status.FAIL, f"output {i} is {type(y).__name__}, not a numpy array")
        if y.dtype not in dt.WORD:
            raise _Stop(Status.FAIL, f"output {i} has numpy dtype {y.dtype}, which no ONNX type has")
    if sum(y.nbytes for y in outputs) > wire.MAX_PAYLOAD // 2:
        raise _Stop(Status.OOM, f"outputs of {sum(y.nbytes for y in outputs)} bytes are more than a reply carries")
    return list(outputs)


def differing(a: Array, b: Array) -> int:
    """Elements whose bits differ; any NaN equals any other."""
    bits = np.dtype(f"u{a.dtype.itemsize}")
    differs = np.frombuffer(a.tobytes(), bits) != np.frombuffer(b.tobytes(), bits)
    if dt.is_float(dt.word_of(a.dtype)):
        differs &= ~(np.isnan(a).ravel() & np.isnan(b).ravel())
    return int(differs.sum())


def _check_inputs(names: Sequence[str], inputs: Sequence[Array], pristine: bytes, payload: Array, base: int) -> None:
    """Raises: _Stop naming the input that the kernel wrote to."""
    if payload[base:].tobytes() == pristine:  # a memoryview compares byte by byte, 20 times slower
        return
    offset = 0
    for name, x in zip(names, inputs, strict=True):
        if pristine[offset : offset + x.nbytes] != x.tobytes():
            before = np.frombuffer(pristine, x.dtype, x.size, offset).reshape(x.shape)
            raise _Stop(Status.CLOBBERED, f"input {name!r} changed: {differing(before, x)} of {x.size} elements")
        offset += x.nbytes + -x.nbytes % 64
    raise _Stop(Status.OVERRUN, "wrote between the inputs, past the end of one of them")


def _check_again(first: Result, later: Result) -> None:
    """Raises: _Stop where a later call gave something else or changed what the first had returned."""
    for i, (array, bits) in enumerate(zip(first.arrays, first.bits, strict=True)):
        if array.tobytes() != bits:
            raise _Stop(Status.FLAKY, f"earlier result overwritten by a later call (output {i})")
    if len(first.arrays) != len(later.arrays):
        raise _Stop(Status.FLAKY, f"{len(first.arrays)} outputs, then {len(later.arrays)} in a later call")
    for i, (a, b) in enumerate(zip(first.arrays, later.arrays, strict=True)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            raise _Stop(Status.FLAKY, f"output {i} is {a.dtype}{a.shape}, then {b.dtype}{b.shape} in a later call")
        n = 0 if first.bits[i] == later.bits[i] else differing(a, b)
        if n:
            raise _Stop(Status.FLAKY, f"a later call differs in {n} of {a.size} elements of output {i}")


def serve(run: Runner, header: Mapping[str, Any], payload: Array) -> tuple[dict[str, Any], Sequence[wire.Tensor]]:
    """One request to one reply: run `repeats` times, hold the results against each other and the inputs."""
    model, *inputs = wire.tensors_of(dict(header), payload)
    names = header["names"]
    base = model.nbytes + -model.nbytes % 64
    pristine = payload[base:].tobytes()
    before = isolation.process_state()
    first: Result | None = None
    times: dict[str, int] = {}
    try:
        for i in range(header["repeats"]):
            try:
                result = _call(run, model.tobytes(), dict(zip(names, inputs, strict=True)), header["n_outputs"])
            except _Stop as stop:
                raise stop if first is None else _Stop(Status.FLAKY, f"call {i + 1}: {stop.message}") from None
            _check_inputs(names, inputs, pristine, payload, base)
            times[f"call{i + 1}"] = result.times_ns.pop("run")
            if first is None:
                first = result
            else:
                _check_again(first, result)
        after = isolation.process_state()
        left = [f"{k} {after[k]} (was {before[k]})" for k in before if before[k] != after[k]]
        if left:
            raise _Stop(Status.LEAK, f"left the process changed: {'; '.join(left)}")
    except _Stop as stop:
        # Its process may be damaged: the next case gets a new one.
        retire = stop.status not in (Status.FAIL, Status.UNSUPPORTED)
        return {"status": stop.status, "message": stop.message, "times_ns": times, "retire": retire}, []
    assert first is not None
    reply = {"status": Status.PASS, "counts": first.counts, "times_ns": {**first.times_ns, **times}}
    tensors = [(dt.word_of(a.dtype), a.shape, b) for a, b in zip(first.arrays, first.bits, strict=True)]
    return reply, tensors


# ---- the process


def _read(fd: int, view: memoryview) -> None:
    while view:
        count = os.readv(fd, [view]) if hasattr(os, "readv") else _read_windows(fd, view)
        if not count:  # the client is gone
            os._exit(0)
        view = view[count:]


def _read_windows(fd: int, view: memoryview) -> int:
    data = os.read(fd, len(view))
    view[: len(data)] = data
    return len(data)


def _aligned(nbytes: int) -> Array:
    """Kernels see every tensor at a multiple of 64 bytes: alignment alone may change a sum's last bit."""
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def _receive(fd: int) -> tuple[dict[str, Any], Array]:
    prefix = bytearray(wire.PREFIX.size)
    _read(fd, memoryview(prefix))
    header_length, payload_length = wire.lengths(bytes(prefix))
    text, payload = bytearray(header_length), _aligned(payload_length)
    _read(fd, memoryview(text))
    _read(fd, payload.data)
    return wire.decode_header(bytes(text)), payload


def _send(fd: int, header: dict[str, Any], tensors: Sequence[wire.Tensor] = ()) -> None:
    view = memoryview(wire.encode(header, tensors))
    while view:
        view = view[os.write(fd, view) :]


def _take_over_pipes() -> tuple[int, int]:
    """Keep both protocol pipes where no print and no child process reaches them."""
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return source, sink


def main() -> NoReturn:
    source, sink = _take_over_pipes()
    settings = json.loads(sys.argv[1])
    isolation.die_with_parent(settings["parent"])
    isolation.forbid_core_dumps()
    isolation.limit_memory(settings["memory_limit"])
    faulthandler.enable(2)
    sys.argv = ["opgauge.worker"]
    myself = os.getpid()
    try:
        spec = resolve(settings["backend"])
        run, info = load_adapter(spec)
    except (OpgaugeError, ImportError, OSError, AttributeError) as error:
        _send(sink, {"unavailable": clean(error) or type(error).__name__})
        os._exit(0)
    except BaseException as error:
        _send(sink, {"unavailable": f"cannot be loaded: {_explain(error)}"})
        os._exit(0)
    _send(sink, {"ready": True})
    while True:
        header, payload = _receive(source)
        if header.get("want") == "info":
            said = {**info(), **dict(spec.options)}
            _send(sink, {"info": {str(k): str(v) for k, v in said.items()}})
            continue
        reply, tensors = serve(run, header, payload)
        if os.getpid() != myself:  # a kernel forked and its child came back here
            os._exit(0)
        _send(sink, reply, tensors)


if __name__ == "__main__":
    main()
