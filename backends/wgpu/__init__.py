"""Our engine on the GPU: the primitive graphs of the CPU engine through WGSL kernels on Vulkan, Metal or Direct3D.

wgpu is imported by `load` and `info`, so that importing this package costs nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opgauge.backends import RunResult
from opgauge.reference_engine.errors import BackendUnavailableError
from opgauge.reference_engine.executor import Find, finder, with_added
from opgauge.reference_engine.types import Array, Kernel

if TYPE_CHECKING:
    from opgauge.reference_engine.passes import Rule

    from .dispatch import Device, Loaded

MAX_PLANS = 16


def kernels() -> tuple[Kernel, ...]:
    """Every kernel row of this device; `plan` says how their `call` differs from the CPU's."""
    from . import linear, movement, pointwise, reduce

    return tuple(row for family in (linear, pointwise, reduce, movement) for row in family.KERNELS)


@dataclass(frozen=True)
class Planned:
    """A loaded program and what it is good for: one model, one set of input specs, one content of bound inputs."""

    key: tuple[object, ...]
    content: Mapping[str, bytes]
    loaded: Loaded

    def serves(self, key: tuple[object, ...], inputs: Mapping[str, Array]) -> bool:
        return self.key == key and all(inputs[name].tobytes() == data for name, data in self.content.items())


@dataclass
class Engine:
    """The engine as a function of model bytes and run-time inputs; holds a device and the plans on it."""

    adapter: Any
    rules: Sequence[Rule]
    find: Find
    fallback: Find | None
    device: Device
    plans: list[Planned] = field(default_factory=list)  # the last used at the end

    def __call__(self, model: bytes, inputs: Mapping[str, Array]) -> RunResult:
        from . import dispatch

        try:
            return self._run(model, inputs)
        except dispatch.wgpu.GPUError as error:
            # Whatever went wrong, the next case starts on a device of its own.
            self.renew()
            explained = dispatch.explain(error)
            if explained:
                raise explained from error
            raise

    def renew(self) -> None:
        """A new device of the same adapter; plans, pipelines and constants go with the old one."""
        from . import dispatch

        self.plans.clear()
        self.device = dispatch.open_device(self.adapter)

    def _run(self, model: bytes, inputs: Mapping[str, Array]) -> RunResult:
        from . import dispatch

        before = dict(self.device.counts)
        start = time.perf_counter_ns()
        loaded, hit = self._planned(model, inputs)
        ready = time.perf_counter_ns()
        result = dispatch.run_program(self.device, loaded, inputs)
        new = {name: n - before.get(name, 0) for name, n in self.device.counts.items()}
        started = dict.fromkeys(("pipeline_creations", "buffer_creations", "prepare_submit_count"), 0)
        counts = {**started, **result.counts, "plan_hit_count": int(hit)}
        for name, n in new.items():
            counts[name] = counts.get(name, 0) + n
        return RunResult(result.outputs, counts, {"plan": ready - start, **result.times_ns})

    def _planned(self, model: bytes, inputs: Mapping[str, Array]) -> tuple[Loaded, bool]:
        from opgauge.reference_engine import passes
        from opgauge.reference_engine.lower import lower  # onnx is slow to import

        from . import dispatch
        from .plan import bind

        specs = tuple((name, x.dtype.str, x.dtype.name, x.shape) for name, x in sorted(inputs.items()))
        key = (hashlib.sha256(model).digest(), specs)
        for at, kept in enumerate(self.plans):
            if kept.serves(key, inputs):
                self.plans.append(self.plans.pop(at))
                return kept.loaded, True
        graph = lower(model, inputs)
        if self.rules:
            graph, _ = passes.optimise(graph, self.rules)
        program = bind(graph, self.find, self.device.limit, self.fallback)
        loaded = dispatch.load_program(self.device, program)
        self.plans.append(Planned(key, {name: inputs[name].tobytes() for name in graph.bound}, loaded))
        while len(self.plans) > MAX_PLANS:
            dispatch.unload(self.device, self.plans.pop(0).loaded)
        return loaded, False


def load(adapter: str = "", fallback: str = "error", disable: str = "", only: str = "") -> Engine:
    """The engine on one adapter, chosen by index or by a word of its description.

    `disable` and `only` are ids of graph rules joined by `+`; `disable=all` runs the graph as it was lowered.

    `fallback` says what becomes of a primitive without a WGSL kernel: `error` refuses the case, `count` computes it
    on the CPU, with its transfers and a `fallback_count`.

    Raises: BackendUnavailableError where no adapter fits, or for an option that asks for what this engine lacks.
    """
    from opgauge.reference_engine import passes

    try:
        rules = passes.select(disable, only)
    except passes.UnknownRuleError as error:
        raise BackendUnavailableError(f"wgpu: {error}") from error
    if fallback not in ("error", "count"):
        raise BackendUnavailableError(f"wgpu: fallback={fallback}: use fallback=error or fallback=count")
    dispatch = _dispatch()
    chosen = dispatch.choose(adapter)
    try:
        device = dispatch.open_device(chosen)
        _probed(device)
    except dispatch.wgpu.GPUError as error:
        raise BackendUnavailableError(f"wgpu: {dispatch.describe(chosen)} fails its probe ({error})") from error
    other = None
    if fallback == "count":
        from opgauge.backends import cpu

        other = finder(with_added(cpu.kernels(), "cpu"))
    return Engine(chosen, rules, finder(with_added(kernels(), "wgpu")), other, device)


def _dispatch() -> Any:
    try:
        from . import dispatch
    except (ImportError, OSError) as error:
        raise BackendUnavailableError(f"wgpu: cannot be imported ({error}); pip install wgpu") from error
    return dispatch


PROBED: dict[str, dict[str, str]] = {}  # by adapter; the last one loaded at the end


def _probed(device: Device) -> dict[str, str]:
    from . import dispatch, probe

    name = dispatch.describe(device.adapter)
    facts = PROBED.pop(name, None) or probe.facts(device)
    PROBED[name] = facts
    return facts


def info() -> dict[str, str]:
    """Versions, the adapter that was loaded last (else the best), and what its arithmetic was measured to do."""
    dispatch = _dispatch()
    if not PROBED:
        _probed(dispatch.open_device(dispatch.choose()))
    from opgauge.reference_engine import passes

    from . import linear, reduce

    return {
        "version": dispatch.wgpu.__version__,
        **list(PROBED.values())[-1],
        "rules": passes.version(),
        "float_gemm_order": linear.GEMM_ORDER,
        "float_sum_order": reduce.SUM_ORDER,
    }
