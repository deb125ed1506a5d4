"""The device: adapter, buffers, pipelines, and the run of a program in one submit.

Traps of wgpu that this file keeps away from every kernel: a binding of no bytes aborts the process, `write_buffer`
takes multiples of four bytes, at most 65,535 workgroups fit along one dimension, and waiting for a queue is broken
in wgpu-py 0.32 (its callback has the wrong signature), so that only mapping a buffer waits.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import wgpu

from opgauge.backends import RunResult
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import BackendUnavailableError, OpgaugeError, UnsupportedError
from opgauge.reference_engine.types import Array

from . import host, movement
from .plan import Clear, Copy, Dispatch, HostCall, Program, Tensor, last_uses, touched, word_bytes
from .shader import GROUP, text
from .timing import PASS_BYTES, Timer, make_timer, tick_ns, ticks_of, timed

ADVICE = "apt-get install --no-install-recommends mesa-vulkan-drivers"
MOST_GROUPS = 65_535
ALIGN = 256
MAX_CONSTANT_BYTES = 256 * 2**20
MAX_POOL_BYTES = 256 * 2**20
STORAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
READBACK = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
WANTED_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
)
# Best first: hardware before software, native interfaces before OpenGL.
KINDS = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "Unknown", "CPU")


class DeviceLostError(OpgaugeError):
    """The device went away during this case; the next case gets a new one."""


def describe(adapter: Any) -> str:
    info = adapter.info
    return f"{info['device']} ({info['description']}) {info['backend_type']}"


def adapters() -> list[Any]:
    """Every adapter, the best first. Raises: BackendUnavailableError where there is none."""
    try:
        found = wgpu.gpu.enumerate_adapters_sync()
    except Exception as error:  # the loader's own failures come as several kinds
        raise BackendUnavailableError(f"wgpu: adapters cannot be listed ({error}); {ADVICE}") from error
    if not found:
        raise BackendUnavailableError(f"wgpu: no adapter found; {ADVICE}")

    def rank(adapter: Any) -> tuple[int, bool, bool]:
        kind = adapter.info["adapter_type"]
        place = KINDS.index(kind) if kind in KINDS else len(KINDS)
        # llvmpipe before SwiftShader: the loader lists them in any order.
        return place, adapter.info["backend_type"].startswith("OpenGL"), "shader-f16" not in adapter.features

    return sorted(found, key=rank)


def choose(wanted: str = "") -> Any:
    """The adapter of that index in `adapters()`, or the first whose description holds the word; the best for none.

    Raises: BackendUnavailableError listing what there is.
    """
    found = adapters()
    if not wanted:
        return found[0]
    if wanted.isdigit():
        fitting = found[int(wanted) : int(wanted) + 1]
    else:
        fitting = [a for a in found if wanted.lower() in describe(a).lower()]
    if not fitting:
        known = "; ".join(f"{i}: {describe(a)}" for i, a in enumerate(found))
        raise BackendUnavailableError(f"wgpu: no adapter matches {wanted!r}; there are {known}; or {ADVICE}")
    return fitting[0]


@dataclass
class Device:
    """An open device with what it keeps: pipelines by shader, constants by content, free buffers by size."""

    adapter: Any
    gpu: Any
    limit: int
    packed_dot: bool
    tick_ns: float  # of its clock; 0 where passes cannot be timed
    pipelines: dict[str, Any] = field(default_factory=dict)
    layouts: dict[tuple[int, int], Any] = field(default_factory=dict)
    constants: OrderedDict[bytes, Any] = field(default_factory=OrderedDict)
    free: defaultdict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    free_bytes: int = 0
    counts: Counter[str] = field(default_factory=Counter)


def open_device(adapter: Any) -> Device:
    """Raises: BackendUnavailableError where the driver refuses."""
    limits = {name: adapter.limits[name] for name in WANTED_LIMITS if name in adapter.limits}
    features = ["timestamp-query"] if "timestamp-query" in adapter.features else []
    try:
        gpu = adapter.request_device_sync(required_limits=limits, required_features=features)
    except RuntimeError as error:
        raise BackendUnavailableError(f"wgpu: {describe(adapter)} gives no device ({error})") from error
    tick = tick_ns(gpu) if features else 0.0
    return Device(adapter, gpu, int(gpu.limits["max-storage-buffer-binding-size"]), has_packed_dot(gpu), tick)


def has_packed_dot(gpu: Any) -> bool:
    """Whether the compiler knows dot4I8Packed; it emulates it where the device has no such instruction."""
    try:
        gpu.create_shader_module(code="fn f(a: u32) -> i32 { return dot4I8Packed(a, a); }")
    except wgpu.GPUError:
        return False
    return True


def layout_of(device: Device, reads: int, writes: int) -> Any:
    # An automatic layout leaves out bindings that a shader does not use; this one never does.
    if (reads, writes) not in device.layouts:
        kinds = ["read-only-storage"] * (1 + reads) + ["storage"] * writes
        entries = [
            {"binding": n, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
            for n, kind in enumerate(kinds)
        ]
        device.layouts[reads, writes] = device.gpu.create_bind_group_layout(entries=entries)
    return device.layouts[reads, writes]


def pipeline_of(device: Device, step: Dispatch) -> Any:
    found = device.pipelines.get(step.code)
    if found is None:
        layout = layout_of(device, len(step.reads), len(step.writes))
        code = step.code
        if not device.packed_dot and "dot4I8Packed" in code:
            code = text("dot.wgsl") + code.replace("dot4I8Packed", "dot_bytes")
        module = device.gpu.create_shader_module(code=code)
        found = device.gpu.create_compute_pipeline(
            layout=device.gpu.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": module, "entry_point": "main"},
        )
        device.pipelines[step.code] = found
        device.counts["pipeline_creations"] += 1
    return found


def size_class(size: int) -> int:
    """The next power of two, so that buffers fit each other's successors."""
    return 1 << max(size - 1, ALIGN - 1).bit_length()


def acquire(device: Device, size: int) -> Any:
    wanted = size_class(size)
    if device.free[wanted]:
        device.free_bytes -= wanted
        return device.free[wanted].pop()
    device.counts["buffer_creations"] += 1
    return device.gpu.create_buffer(size=wanted, usage=STORAGE)


def release(device: Device, buffer: Any) -> None:
    if device.free_bytes + buffer.size > MAX_POOL_BYTES:
        buffer.destroy()
        return
    device.free_bytes += buffer.size
    device.free[buffer.size].append(buffer)


def whole_words(array: Array) -> bytes:
    raw = np.ascontiguousarray(array).tobytes()
    return raw.ljust(word_bytes(len(raw)), b"\0")


def constant_buffer(device: Device, array: Array) -> Any:
    """The buffer with this content: uploaded once, kept while constants fit MAX_CONSTANT_BYTES."""
    data = whole_words(array)
    key = hashlib.blake2b(data, digest_size=16).digest() + len(data).to_bytes(8, "little")
    found = device.constants.get(key)
    if found is None:
        found = device.gpu.create_buffer(size=len(data), usage=STORAGE)
        device.gpu.queue.write_buffer(found, 0, data)
        device.counts["upload_bytes"] += len(data)
        device.constants[key] = found
        held = sum(b.size for b in device.constants.values())
        while held > MAX_CONSTANT_BYTES and len(device.constants) > 1:
            # Plans that still use it hold their own reference; it is not destroyed.
            held -= device.constants.popitem(last=False)[1].size
    device.constants.move_to_end(key)
    return found


@dataclass(frozen=True)
class Recorded:
    """A dispatch with its pipeline and bindings."""

    pipeline: Any
    group: Any
    size: tuple[int, int]


@dataclass(frozen=True)
class Segment:
    """What one submit does, and the tensors that are read back after it for a host call or as outputs."""

    steps: tuple[Recorded | Copy | Clear, ...]
    wanted: tuple[Tensor, ...]
    host: HostCall | None


@dataclass(frozen=True)
class Loaded:
    """A program with its buffers on one device."""

    program: Program
    buffers: tuple[Any, ...]
    owned: tuple[Any, ...]
    segments: tuple[Segment, ...]
    staging: Any
    timer: Timer | None


def load_program(device: Device, program: Program) -> Loaded:
    """Buffers, bindings and pipelines of a program. Intermediate buffers are shared by disjoint lifetimes."""
    buffers, owned = assign_buffers(device, program)
    dispatches = [*program.once, *(step for step in program.steps if isinstance(step, Dispatch))]
    slots, table = parameter_table(dispatches)
    params = device.gpu.create_buffer(size=len(table), usage=STORAGE)
    device.gpu.queue.write_buffer(params, 0, table)
    pairs = zip(dispatches, slots, strict=True)
    recorded = [record(device, program, step, buffers, params, slot) for step, slot in pairs]
    prepared = len(program.once)
    segments = tuple(cut(program, iter(recorded[prepared:])))
    room = max((staged_bytes(program, s.wanted) for s in segments), default=0)
    passes = max((pass_count(s.steps) for s in segments), default=0)
    timer = make_timer(device.gpu, passes) if device.tick_ns else None
    staging = device.gpu.create_buffer(size=max(room + PASS_BYTES * passes, ALIGN), usage=READBACK)
    loaded = Loaded(program, tuple(buffers), tuple(owned), segments, staging, timer)
    if prepared:
        encoder = device.gpu.create_command_encoder()
        encode(encoder, loaded, recorded[:prepared])
        device.gpu.queue.submit([encoder.finish()])
        device.counts["prepare_submit_count"] += 1
    return loaded


def pass_count(steps: Sequence[Recorded | Copy | Clear]) -> int:
    """Runs of dispatches that no copy interrupts."""
    pairs = itertools.pairwise((None, *steps))
    return sum(isinstance(b, Recorded) and not isinstance(a, Recorded) for a, b in pairs)


def assign_buffers(device: Device, program: Program) -> tuple[list[Any], list[Any]]:
    last = last_uses(program)
    ending = defaultdict(list)
    for id, at in last.items():
        ending[at].append(id)
    buffers: list[Any] = [None] * len(program.sizes)
    for id, array in program.constants.items():
        buffers[id] = constant_buffer(device, array)
    idle: defaultdict[int, list[Any]] = defaultdict(list)
    owned: list[Any] = []

    def give(id: int) -> None:
        wanted = size_class(program.sizes[id])
        if idle[wanted]:
            buffers[id] = idle[wanted].pop()
        else:
            buffers[id] = acquire(device, program.sizes[id])
            owned.append(buffers[id])

    # Kept buffers first: they must never be one that a shorter life has left behind.
    for id in range(len(program.sizes)):
        if buffers[id] is None and id not in last:
            give(id)
    for at, step in enumerate(program.steps):
        for id in touched(step):
            if buffers[id] is None:
                give(id)
        for id in ending[at]:
            idle[size_class(program.sizes[id])].append(buffers[id])
    return buffers, owned


def parameter_table(steps: Sequence[Dispatch]) -> tuple[list[tuple[int, int]], bytes]:
    """(offset, size) of each dispatch's parameters in one buffer, and the buffer."""
    slots, table = [], bytearray()
    for step in steps:
        data = np.asarray((step.count, *step.params), np.uint32).tobytes()
        slots.append((len(table), len(data)))
        table += data.ljust(math.ceil(len(data) / ALIGN) * ALIGN, b"\0")
    return slots, bytes(table) or bytes(ALIGN)


def record(
    device: Device, program: Program, step: Dispatch, buffers: Sequence[Any], params: Any, slot: tuple[int, int]
) -> Recorded:
    entries = [{"binding": 0, "resource": {"buffer": params, "offset": slot[0], "size": slot[1]}}]
    for n, id in enumerate((*step.reads, *step.writes)):
        resource = {"buffer": buffers[id], "offset": 0, "size": program.sizes[id]}
        entries.append({"binding": n + 1, "resource": resource})
    pipeline = pipeline_of(device, step)
    group = device.gpu.create_bind_group(layout=layout_of(device, len(step.reads), len(step.writes)), entries=entries)
    groups = max(-(-step.count // GROUP), 1)
    across = min(groups, MOST_GROUPS)
    return Recorded(pipeline, group, (across, -(-groups // across)))


def cut(program: Program, recorded: Iterator[Recorded]) -> Iterator[Segment]:
    """One segment, or one more after each host call."""
    steps: list[Recorded | Copy | Clear] = []
    for step in program.steps:
        if isinstance(step, HostCall):
            yield Segment(tuple(steps), tuple(tensor for _, tensor in step.reads), step)
            steps = []
        else:
            steps.append(next(recorded) if isinstance(step, Dispatch) else step)
    flags = tuple(check.flag for check in program.checks if not check.name)
    yield Segment(tuple(steps), (*program.read_back, *flags), None)


def staged_bytes(program: Program, tensors: Sequence[Tensor]) -> int:
    return sum(staged_size(program, t) for t in tensors)


def staged_size(program: Program, tensor: Tensor) -> int:
    # Mapped ranges start at multiples of 8.
    return -(-program.sizes[tensor.id] // 8) * 8 if tensor.size else 0


def unload(device: Device, loaded: Loaded) -> None:
    """Give the program's buffers back to the pool."""
    for buffer in loaded.owned:
        release(device, buffer)
    loaded.staging.destroy()
    if loaded.timer:
        loaded.timer.queries.destroy()
        loaded.timer.ticks.destroy()


def run_program(device: Device, loaded: Loaded, feeds: Mapping[str, Array]) -> RunResult:
    """The outputs of a loaded program: one upload per input, one submit and one readback unless a host call cuts it.

    Raises: IndexError for an index out of range; what wgpu raises, for `explain`.
    """
    program, counts = loaded.program, Counter(program_counts(loaded.program))
    start = time.perf_counter_ns()
    for check in program.checks:
        if check.name:
            movement.check_indices(feeds[check.name], check.length)
    for name, tensor in program.inputs.items():
        if tensor.size:
            upload(device, loaded, tensor, feeds[name], counts)
    uploaded = time.perf_counter_ns()
    results: list[Array] = []
    ticks = 0
    made = host.begin(program, feeds)
    for segment in loaded.segments:
        results, more = run_segment(device, loaded, segment, counts)
        ticks += more
        if segment.host:
            host.compute(program, segment.host, results, made)
            for name, tensor in segment.host.writes:
                if tensor.size:
                    upload(device, loaded, tensor, made[name], counts)
    done = time.perf_counter_ns()
    flagged = [check for check in program.checks if not check.name]
    for check, flag in zip(flagged, results[len(program.read_back) :], strict=True):
        if flag[0]:
            value = flag[1:3].view(np.int64)[0]
            raise IndexError(f"{check.what}: index {value} is out of range for an axis of {flag[3]}")
    read = iter(results)
    # What the host made may be the caller's memory under another shape.
    outputs = tuple(made[y].copy() if isinstance(y, str) else next(read) for y in program.outputs)
    times = {"upload": uploaded - start, "run": done - uploaded}
    if loaded.timer:
        times["passes"] = round(ticks * device.tick_ns)
    return RunResult(outputs, dict(counts), times)


def program_counts(program: Program) -> Mapping[str, int]:
    zeros = dict.fromkeys(("submit_count", "readback_count", "upload_bytes", "download_bytes"), 0)
    return {**program.counts, **zeros}


def upload(device: Device, loaded: Loaded, tensor: Tensor, array: Array, counts: Counter[str]) -> None:
    data = whole_words(array)
    device.gpu.queue.write_buffer(loaded.buffers[tensor.id], 0, data)
    counts["upload_bytes"] += len(data)


def run_segment(device: Device, loaded: Loaded, segment: Segment, counts: Counter[str]) -> tuple[list[Array], int]:
    """What is read back after it, and the ticks that its passes took."""
    program, timer = loaded.program, loaded.timer
    encoder = device.gpu.create_command_encoder()
    encode(encoder, loaded, segment.steps, timer)
    passes = pass_count(segment.steps) if timer else 0
    offset = 0
    for tensor in segment.wanted:
        if tensor.size:
            size = program.sizes[tensor.id]
            encoder.copy_buffer_to_buffer(loaded.buffers[tensor.id], 0, loaded.staging, offset, size)
            offset += staged_size(program, tensor)
    if timer and passes and offset:  # times alone are not worth a readback
        encoder.resolve_query_set(timer.queries, 0, 2 * passes, timer.ticks, 0)
        encoder.copy_buffer_to_buffer(timer.ticks, 0, loaded.staging, offset, PASS_BYTES * passes)
        offset += PASS_BYTES * passes
    device.gpu.queue.submit([encoder.finish()])
    counts["submit_count"] += 1
    return read_back(loaded, segment.wanted, offset, counts, passes)


def encode(encoder: Any, loaded: Loaded, steps: Sequence[Recorded | Copy | Clear], timer: Timer | None = None) -> None:
    compute, passes = None, 0
    for step in steps:
        if isinstance(step, Recorded):
            if compute is None:
                compute = encoder.begin_compute_pass(**timed(timer, passes))
                passes += 1
            compute.set_pipeline(step.pipeline)
            compute.set_bind_group(0, step.group)
            compute.dispatch_workgroups(*step.size, 1)
            continue
        if compute:
            compute.end()
            compute = None
        if isinstance(step, Copy):
            buffers = loaded.buffers
            encoder.copy_buffer_to_buffer(buffers[step.source], 0, buffers[step.target], step.offset, step.size)
        else:
            encoder.clear_buffer(loaded.buffers[step.target])
    if compute:
        compute.end()


def read_back(
    loaded: Loaded, tensors: Sequence[Tensor], total: int, counts: Counter[str], passes: int = 0
) -> tuple[list[Array], int]:
    """The tensors from the start of the staging buffer, and the ticks of the passes that lie behind them."""
    arrays, ticks = [], 0
    if total:
        loaded.staging.map_sync(wgpu.MapMode.READ, 0, total)
        counts["readback_count"] += 1
        counts["download_bytes"] += total
    try:
        offset = 0
        for tensor in tensors:
            kind = dt.numpy_dtype(tensor.dtype)
            if not tensor.size:
                arrays.append(np.empty(tensor.shape, kind))
                continue
            raw = loaded.staging.read_mapped(offset, staged_size(loaded.program, tensor))
            flat = np.frombuffer(bytes(raw[: tensor.size * kind.itemsize]), kind)
            arrays.append(flat.reshape(tensor.shape).copy())
            offset += staged_size(loaded.program, tensor)
        if total > offset:
            ticks = ticks_of(loaded.staging.read_mapped(offset, PASS_BYTES * passes))
    finally:
        if total:
            loaded.staging.unmap()
    return arrays, ticks


def explain(error: Exception) -> OpgaugeError | None:
    """The typed error behind one of wgpu's, or None for an error of our own making."""
    message = " ".join(str(error).split())
    if isinstance(error, wgpu.GPUOutOfMemoryError):
        return UnsupportedError(f"wgpu: the device has not enough memory ({message[:200]})")
    if "lost" in message.lower() or "destroyed" in message.lower():
        return DeviceLostError(f"wgpu: the device was lost ({message[:200]}); the next case gets a new one")
    return None
