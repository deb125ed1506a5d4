"""The kernel worker: one process, one adapter, trusted with nothing.

    python -P -m opgauge.worker SETTINGS

Requests come in on what was standard input, replies go out on what was standard output. Both are moved to
private descriptors before the adapter is loaded: what a kernel prints lands in the captured standard error.

Portable: in a foreign environment it runs on Python 3.8 with numpy, the runtime and nothing else (environment.py).
"""

from __future__ import annotations

import faulthandler
import json
import math
import os
import platform
import re
import sys
import time
from typing import Any, Mapping, NamedTuple, NoReturn, Sequence

import numpy as np

from opgauge.reference_engine.errors import OpgaugeError, UnsupportedError

from . import adapters, channel, guard, isolation, nursery, timed, watch, wire
from .adapters import load_callable as load_callable

MESSAGE_LENGTH = 400
PASS, FAIL, UNSUPPORTED, OOM = "pass", "fail", "unsupported", "oom"
LEAK, FLAKY, UNWRITTEN, CLOBBERED, OVERRUN = "leak", "flaky", "unwritten", "clobbered", "overrun"
CHANGED = "left the process changed"
LEAK_LEAST = 512 << 10  # bytes that one call may keep before it is asked again
LEAK_CALLS = 48
LEAK_SURE = 16 << 20
SETTLE_S = 0.05
LEAK_EACH = 64 << 10
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]")


class Result(NamedTuple):
    """One call: outputs, their bits at that moment, what the adapter counted and timed."""

    arrays: list[np.ndarray]
    bits: list[bytes]
    counts: dict[str, int]
    times_ns: dict[str, int]
    copied: bool  # its arrays are views of its bits, no memory that a kernel knows of


class _Stop(Exception):
    """Ends a case with its status."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def clean(text: object) -> str:
    """The first line of a message without terminal escapes, truncated."""
    lines = _ESCAPES.sub("", str(text)).strip().splitlines() or [""]
    return lines[0][:MESSAGE_LENGTH]


def _explain(error: BaseException) -> str:
    return clean(f"{type(error).__name__}: {error}")


# ---- one call


class Places(NamedTuple):
    """Where a call finds its inputs and, where known, its outputs."""

    inputs: dict[str, np.ndarray]
    buffers: list[tuple[guard.Buffer, np.ndarray, bytes]]
    outputs: list[np.ndarray]
    out_buffers: list[guard.Buffer]
    poison: int = 0  # of what the kernel allocates


def _call(run: Any, model: bytes, places: Places, n_outputs: int) -> Result:
    """Run once and take the bits. Raises: _Stop."""
    if places.poison:
        guard.poison_allocations(places.poison)
    start = time.perf_counter_ns()
    try:
        if places.outputs:
            returned = run.into(model, dict(places.inputs), places.outputs)
        else:
            returned = run(model, dict(places.inputs))
    except (UnsupportedError, NotImplementedError) as error:
        raise _Stop(UNSUPPORTED, clean(error)) from None
    except MemoryError as error:
        raise _Stop(OOM, f"raised {_explain(error)}") from None
    except BaseException as error:  # SystemExit too: a kernel may do anything
        if type(error).__module__.startswith("onnxruntime."):  # an adapter of the user's own on top of onnxruntime
            raise _Stop(UNSUPPORTED, _explain(error)) from None
        raise _Stop(FAIL, f"raised {_explain(error)}") from None
    elapsed = time.perf_counter_ns() - start
    if places.poison:  # what the harness itself allocates need not be filled
        guard.poison_allocations(0)
    counts, times = getattr(returned, "counts", {}), getattr(returned, "times_ns", {})
    if places.outputs:
        bits = [y.tobytes() for y in places.outputs]
        arrays = [_view(b, y) for b, y in zip(bits, places.outputs)]
    else:
        arrays = _outputs(getattr(returned, "outputs", returned), n_outputs)
        bits = [a.tobytes() for a in arrays]
    return Result(
        arrays,
        bits,
        {str(k): int(v) for k, v in counts.items()},
        {**{str(k): int(v) for k, v in times.items()}, "run": elapsed},
        bool(places.outputs),
    )


def _view(bits: bytes, like: np.ndarray) -> np.ndarray:
    return np.frombuffer(bits, like.dtype).reshape(like.shape) if bits else np.empty(like.shape, like.dtype)


def _outputs(outputs: Any, n_outputs: int) -> list[np.ndarray]:
    if not isinstance(outputs, (list, tuple)):
        raise _Stop(FAIL, f"returned {type(outputs).__name__}, not a list of arrays")
    if n_outputs and len(outputs) != n_outputs:
        raise _Stop(FAIL, f"returned {len(outputs)} outputs, the model has {n_outputs}")
    for i, y in enumerate(outputs):
        if not isinstance(y, np.ndarray):
            raise _Stop(FAIL, f"output {i} is {type(y).__name__}, not a numpy array")
        if not wire.word_of(y.dtype):
            raise _Stop(FAIL, f"output {i} has numpy dtype {y.dtype}, which no ONNX type has")
    if sum(y.nbytes for y in outputs) > wire.MAX_PAYLOAD // 2:
        raise _Stop(OOM, f"outputs of {sum(y.nbytes for y in outputs)} bytes are more than a reply carries")
    return list(outputs)


def _is_float(array: np.ndarray) -> bool:
    return "float" in wire.word_of(array.dtype)


def differing(a: np.ndarray, b: np.ndarray) -> int:
    """Elements whose bits differ; any NaN equals any other."""
    return int(guard.differing(a, b, _is_float(a)).sum())


# ---- one case


class Case(NamedTuple):
    """A request, unpacked."""

    model: bytes
    names: list[str]
    inputs: list[np.ndarray]
    repeats: int
    n_outputs: int
    rounds: int = 0


# Types whose data any operator takes in any order; indices, shapes and axes are other types.
REVERSIBLE = ("float32", "float64", "float16", "int8", "uint8")


def _check_state(run: Any, case: Case, first: Result, poison: int) -> None:
    """Alternate with other data of the same shapes. Raises: _Stop where one call shows in another's result.

    What the first call returned must stay what it was, and both sets of data must give the same bits each time.
    """
    other: Result | None = None
    for _ in range(case.rounds):
        mixed = [
            x.ravel()[::-1].reshape(x.shape).copy() if str(x.dtype) in REVERSIBLE else x.copy() for x in case.inputs
        ]
        try:
            decoy = _call(run, case.model, Places(dict(zip(case.names, mixed)), [], [], [], poison), case.n_outputs)
        except _Stop:  # the order may be part of what the operator means
            return
        _check_kept(first)
        if other is not None:
            _check_again(other, decoy, ())
        other = other or decoy
        copies = [x.copy() for x in case.inputs]
        again = _call(run, case.model, Places(dict(zip(case.names, copies)), [], [], [], poison), case.n_outputs)
        _check_again(first, again, ())


def _place(
    memory: guard.Memory, case: Case, pristine: Sequence[bytes], right: bool, strict: bool, specs: Sequence[Any]
) -> Places:
    memory.release()
    inputs, buffers = {}, []
    for name, x, bits in zip(case.names, case.inputs, pristine):
        made, view = memory.place(name, x, right, x.dtype.itemsize if strict else guard.ALIGNED)
        inputs[name] = view
        buffers.append((made, view, bits))
    outputs, out_buffers = [], []
    for i, (dtype, shape) in enumerate(specs):
        nbytes = dtype.itemsize * math.prod(shape)
        made = memory.buffer(str(i), nbytes, right, dtype.itemsize if strict else guard.ALIGNED)
        out_buffers.append(made)
        outputs.append(guard.array_in(made, dtype, shape))
    return Places(inputs, buffers, outputs, out_buffers)


def _poisoned(places: Places, byte: int) -> Places:
    for made in places.out_buffers:
        made.area[made.start : made.start + made.nbytes] = byte
    return places._replace(poison=byte)


def _check_places(places: Places) -> None:
    """Raises: _Stop naming the buffer that the kernel wrote to, or beside."""
    try:
        for made, view, pristine in places.buffers:
            guard.check_input(made, view, pristine, _is_float(view))
        for made in places.out_buffers:
            guard.check_outside(made, "output")
    except guard.GuardError as error:
        raise _Stop(error.status, error.message) from None


def _check_kept(earlier: Result) -> None:
    if earlier.copied:
        return
    for i, (array, bits) in enumerate(zip(earlier.arrays, earlier.bits)):
        if array.tobytes() != bits:
            raise _Stop(FLAKY, f"earlier result overwritten by a later call (output {i})")


def _check_again(first: Result, later: Result, poisons: Sequence[int]) -> None:
    """Raises: _Stop where a later call gave something else or changed what the first had returned."""
    _check_kept(first)
    if len(first.arrays) != len(later.arrays):
        raise _Stop(FLAKY, f"{len(first.arrays)} outputs, then {len(later.arrays)} in a later call")
    for i, (a, b) in enumerate(zip(first.arrays, later.arrays)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            raise _Stop(FLAKY, f"output {i} is {a.dtype}{a.shape}, then {b.dtype}{b.shape} in a later call")
        if first.bits[i] == later.bits[i]:
            continue
        holes = guard.unwritten(a, b, poisons) if poisons else 0
        if holes:
            raise _Stop(UNWRITTEN, f"{holes} of {a.size} elements of output {i} were never written")
        n = differing(a, b)
        if n:
            raise _Stop(FLAKY, f"a later call differs in {n} of {a.size} elements of output {i}")


def _check_leak(run: Any, case: Case, places: Places, fd: int) -> None:
    """Raises: _Stop where resident memory grows with every call.

    An allocator of a runtime may grow for some ten calls before it reuses what it has: only a leak goes on.
    """
    seen = [watch.load(fd).rss]
    while len(seen) <= LEAK_CALLS and seen[-1] - seen[0] < LEAK_SURE:
        _call(run, case.model, places, case.n_outputs)
        seen.append(watch.load(fd).rss)
        if seen[-1] - seen[-2] < LEAK_EACH:
            return
    calls = len(seen) - 1
    raise _Stop(
        LEAK, f"resident memory grows by {(seen[-1] - seen[0]) // calls >> 10} KiB in every call ({calls} calls)"
    )


def _left_by_each_call(run: Any, case: Case, first: Result, before: watch.Load, fd: int) -> str:
    """What one more call adds to what is left; a runtime's own threads and files come and go by themselves."""
    time.sleep(SETTLE_S)
    _check_kept(first)
    settled = watch.load(fd)
    left = watch.grown(before, settled)
    if not left or settled.children > before.children or settled.fds < before.fds:
        return left
    copies = [x.copy() for x in case.inputs]
    _call(run, case.model, Places(dict(zip(case.names, copies)), [], [], []), case.n_outputs)
    time.sleep(SETTLE_S)
    return watch.grown(settled, watch.load(fd))


def _specs(run: Any, case: Case, first: Result | None) -> Sequence[Any]:
    """(dtype, shape) of the outputs where they can be given to the kernel. Raises: _Stop."""
    if getattr(run, "into", None) is None:
        return ()
    if run.shapes is None:
        return [(a.dtype, a.shape) for a in first.arrays] if first else ()
    try:
        return run.shapes(case.model, dict(zip(case.names, case.inputs)))
    except UnsupportedError as error:
        raise _Stop(UNSUPPORTED, clean(error)) from None


def _calls(run: Any, case: Case, memory: guard.Memory | None, fd: int, times: dict[str, int]) -> tuple[Result, bytes]:
    """Run `repeats` times (a strict kernel once more, left-flush) and hold everything against each other.

    The first result, and the process as the system tells it after the last call.
    """
    strict = bool(getattr(run, "strict", False)) and memory is not None
    start = after_first = watch.earlier(fd)
    first: Result | None = None
    places = Places(dict(zip(case.names, case.inputs)), [], [], [])
    pristine = [x.tobytes() for x in case.inputs]
    calls = case.repeats + strict
    for i in range(calls):
        if memory is not None:
            if i == 0 or (getattr(run, "into", None) is not None and not (strict and i == 1)):
                places = _place(memory, case, pristine, i < case.repeats, strict, _specs(run, case, first))
            places = _poisoned(places, guard.POISONS[i % 2])
        try:
            result = _call(run, case.model, places, case.n_outputs)
            if memory is not None:
                _check_places(places)
            else:
                _check_plain(case, pristine)
        except _Stop as stop:
            if first is None or stop.status in (OVERRUN, CLOBBERED):
                raise
            raise _Stop(FLAKY, f"call {i + 1}: {stop.message}") from None
        times[f"call{i + 1}"] = result.times_ns.pop("run")
        if first is None:
            first, after_first = result, watch.load(fd) if calls > 1 else start
        elif i < case.repeats:
            _check_again(first, result, guard.POISONS)
    if not strict and first is not None:
        _check_state(run, case, first, places.poison)
    assert first is not None
    told = watch.status()
    now = watch.load(fd, told)
    if calls == 1:
        after_first = now
    left = watch.grown(start if strict else after_first._replace(children=start.children), now)
    if left and not strict:
        left = _left_by_each_call(run, case, first, after_first._replace(children=start.children), fd)
        told = b""
    if left:
        raise _Stop(LEAK, f"left behind: {left}")
    watch.remember(now)
    if case.repeats > 1 and now.rss - after_first.rss > LEAK_LEAST + 2 * sum(map(len, first.bits)):
        _check_leak(run, case, places, fd)
        told = b""
    return first, told


def _check_plain(case: Case, pristine: Sequence[bytes]) -> None:
    for name, x, before in zip(case.names, case.inputs, pristine):
        if not guard.same(guard.address_of(x), before, len(before)):
            count = differing(np.frombuffer(before, x.dtype).reshape(x.shape), x) or x.size
            raise _Stop(CLOBBERED, f"input {name!r} changed: {count} of {x.size} elements")


def serve(
    run: Any, header: Mapping[str, Any], payload: Any, memory: guard.Memory | None, fd: int
) -> tuple[dict[str, Any], list[Any]]:
    """One request to one reply."""
    model, *inputs = wire.tensors_of(dict(header), payload)
    case = Case(model.tobytes(), header["names"], inputs, header["repeats"], header["n_outputs"], header["rounds"])
    before = watch.state_before()
    times: dict[str, int] = {}
    try:
        first, told = _calls(run, case, memory, fd, times)
        left = watch.changes(before, watch.state(told))
        if left:
            raise _Stop(LEAK, f"{CHANGED}: {left}")
    except _Stop as stop:
        # Its process may be damaged: the next case gets a new one.
        retire = stop.status not in (FAIL, UNSUPPORTED) or bool(watch.changes(before, watch.state()))
        return {"status": stop.status, "message": stop.message, "times_ns": times, "retire": retire}, []
    reply = {"status": PASS, "counts": first.counts, "times_ns": {**first.times_ns, **times}}
    return reply, [(wire.word_of(a.dtype), a.shape, b) for a, b in zip(first.arrays, first.bits)]


# ---- the process


def _take_over_pipes() -> tuple[int, int]:
    """Keep both protocol pipes where no print and no child process reaches them."""
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return source, sink


def _load(settings: Mapping[str, Any]) -> adapters.Adapter | str:
    """The adapter, or why there is none."""
    try:
        return adapters.load(settings["kind"], settings["target"], settings["options"])
    except (OpgaugeError, ImportError, OSError, AttributeError) as error:
        return clean(error) or type(error).__name__
    except BaseException as error:
        return f"cannot be loaded: {_explain(error)}"


def _be_born(settings: dict[str, Any]) -> list[int]:
    """Fork workers until the client is gone; a child goes on with its own descriptors and settings."""
    born = nursery.serve(settings["nursery"], lambda: watch.load(0).threads)
    for i, fd in enumerate(born.fds[:3]):
        os.dup2(fd, i)
        os.close(fd)
    settings.update(born.settings)
    return born.fds[3:]


def main() -> NoReturn:
    settings = json.loads(sys.argv[1])
    isolation.die_with_parent(settings["parent"])
    isolation.forbid_core_dumps()
    isolation.limit_memory(settings["memory_limit"])
    shared = settings.get("shared", (-1, -1))
    if "nursery" in settings:
        sys.argv = ["opgauge.worker"]
        adapter = _load(settings)
        shared = _be_born(settings)
        source, sink = _take_over_pipes()
    else:
        source, sink = _take_over_pipes()
        sys.argv = ["opgauge.worker"]
        faulthandler.enable(2)
        adapter = _load(settings)
    faulthandler.enable(2)
    pipes = channel.Channel(source, sink, *shared)
    if isinstance(adapter, str):
        pipes.send({"unavailable": adapter})
        os._exit(0)
    _answer(adapter, pipes, settings)


def _about() -> dict[str, str]:
    return {"arch": platform.machine(), "python": platform.python_version(), "numpy": np.__version__}


def _answer(adapter: adapters.Adapter, pipes: channel.Channel, settings: Mapping[str, Any]) -> NoReturn:
    myself = os.getpid()
    watch.prepare()
    memory = None if settings["guard"] == "plain" else guard.Memory(loose=settings["guard"] == "loose")
    pipes.send({"ready": True})
    kept: dict[str, timed.Kept] = {}
    while True:
        header, payload = pipes.receive(copied=memory is not None)
        if header.get("want") == "info":
            said = {**_about(), **adapter.info(), **settings["options"]}
            pipes.send({"info": {str(k): str(v) for k, v in said.items()}})
            continue
        if header.get("want") == "time":
            pipes.send(timed.answer(adapter.run, kept, header, payload))
            continue
        reply, tensors = serve(adapter.run, header, payload, memory, pipes.source)
        if os.getpid() != myself:  # a kernel forked and its child came back here
            os._exit(0)
        pipes.send(reply, tensors)


if __name__ == "__main__":
    main()
