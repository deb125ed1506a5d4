"""Our engine on the GPU: the primitive graphs of the CPU engine through WGSL kernels on Vulkan, Metal or Direct3D.

wgpu is imported by `load` and `info`, so that importing this package costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opgauge.backends import RunResult
from opgauge.reference_engine.errors import BackendUnavailableError
from opgauge.reference_engine.executor import Find, finder, with_added
from opgauge.reference_engine.plan_cache import PlanCache
from opgauge.reference_engine.types import Array, Kernel, Node

if TYPE_CHECKING:
    from opgauge.reference_engine.passes import Rule

    from .dispatch import Device, Loaded


def kernels() -> tuple[Kernel, ...]:
    """Every kernel row of this device; `plan` says how their `call` differs from the CPU's."""
    from . import linear, movement, pointwise, reduce

    return tuple(row for family in (linear, pointwise, reduce, movement) for row in family.KERNELS)


@dataclass
class Engine:
    """The engine as a function of model bytes and run-time inputs; holds a device and the plans on it."""

    adapter: Any
    rules: Sequence[Rule]
    find: Find
    fallback: Find | None
    device: Device
    wanted: Callable[[Node], bool] | None = None
    plans: PlanCache[Loaded] = field(default_factory=PlanCache)

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
        counts = {**started, **result.counts, **self.plans.counts(hit)}
        for name, n in new.items():
            counts[name] = counts.get(name, 0) + n
        return RunResult(result.outputs, counts, {"plan": ready - start, **result.times_ns})

    def _planned(self, model: bytes, inputs: Mapping[str, Array]) -> tuple[Loaded, bool]:
        from opgauge.reference_engine import passes
        from opgauge.reference_engine.lower import lower  # onnx is slow to import

        from . import dispatch
        from .plan import bind

        kept = self.plans.find(model, inputs)
        if kept is not None:
            return kept, True
        graph = lower(model, inputs)
        if self.rules:
            graph, _ = passes.optimise(graph, self.rules)
        program = bind(graph, self.find, self.device.limit, self.fallback, self.wanted)
        loaded = dispatch.load_program(self.device, program)
        for gone in self.plans.keep(model, inputs, graph.bound, loaded):
            dispatch.unload(self.device, gone)
        return loaded, False


def load(adapter: str = "", fallback: str = "error", disable: str = "", only: str = "", host: str = "") -> Engine:
    """The engine on one adapter, chosen by index or by a word of its description.

    `disable` and `only` are ids of graph rules joined by `+`; `disable=all` runs the graph as it was lowered.

    `fallback` says what becomes of a primitive without a WGSL kernel: `error` refuses the case, `count` computes it
    on the CPU, with its transfers and a `fallback_count`. `host` names primitives (joined by `+`, a function after a
    dot) that the CPU is to compute although there are kernels for them: one graph over two devices, with a transfer
    wherever a tensor crosses.

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
    if fallback == "count" or host:
        from opgauge.backends import cpu

        other = finder(with_added(cpu.kernels(), "cpu"))
    return Engine(chosen, rules, finder(with_added(kernels(), "wgpu")), other, device, placed_by(host))


def placed_by(host: str) -> Callable[[Node], bool] | None:
    """Which nodes the option `host` sends to the CPU. Raises: BackendUnavailableError for an unknown primitive."""
    from opgauge.reference_engine.primitives import PRIMITIVES

    kinds = frozenset(filter(None, host.split("+")))
    known = {f"{name}.{fn}" if fn else name for name, row in PRIMITIVES.items() for fn in row.fns} | set(PRIMITIVES)
    if unknown := sorted(kinds - known):
        raise BackendUnavailableError(f"wgpu: host={unknown[0]}: no such primitive; there are {', '.join(PRIMITIVES)}")
    return (lambda node: node.kind in kinds or node.primitive in kinds) if kinds else None


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
