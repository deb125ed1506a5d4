"""Our engine on the CPU: numba kernels, compiled at their first call and kept on disk.

numba is imported by `load`, `info` and `kernels`, so that importing this package costs little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from opgauge.backends import RunResult
from opgauge.reference_engine.arena import Layout, execute_in_arena, lay_out
from opgauge.reference_engine.errors import BackendUnavailableError
from opgauge.reference_engine.executor import (
    Branch,
    Plan,
    branches,
    execute,
    execute_parallel,
    finder,
    plan,
    with_added,
)
from opgauge.reference_engine.plan_cache import PlanCache
from opgauge.reference_engine.ready import Run, ready
from opgauge.reference_engine.types import Array, Kernel

from .threads import lent

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.py")))
MAX_PLANS = 16
MOST_THREADS = 64
# Bytes that a graph's nodes write: below, handing branches to threads costs more than it saves.
LEAST_PARALLEL = 1 << 20
ARENAS = ("", "reuse", "check")


def kernels() -> tuple[Kernel, ...]:
    """Every kernel row of this device, its compiled code kept on disk.

    Raises: BackendUnavailableError where numba cannot be imported, or OPGAUGE_ISA asks for what there is not.
    """
    try:
        from . import isa

        isa.force(isa.forced())  # a compiled function asks for its CPU when it is defined
        from . import depthwise, integer, lastchannel, linear, movement, panels, pointwise, reduce, swap
        from .compile import cache_folder, keep
    except ImportError as error:
        raise BackendUnavailableError(f"cpu: numba cannot be imported ({error}); pip install numba") from error
    families = (linear, pointwise, reduce, movement)
    keep((*families, integer, panels, depthwise, lastchannel, swap), cache_folder(SOURCES))
    return tuple(row for family in families for row in family.KERNELS)


@dataclass(frozen=True)
class Planned:
    """A plan, where its tensors lie, and which of its steps may run side by side."""

    plan: Plan
    layout: Layout
    branches: tuple[Branch, ...]
    again: Callable[[], Run]  # made when the plan is run a second time


def load(
    disable: str = "", only: str = "", threads: str = "", arena: str = ""
) -> Callable[[bytes, Mapping[str, Array]], RunResult]:
    """The engine as a function of model bytes and run-time inputs.

    `disable` and `only` are ids of graph rules joined by `+`; `disable=all` runs the graph as it was lowered.
    `threads=N` runs independent branches of the graph side by side on N threads, and in a graph that has none, or is
    small, the parts of each kernel with enough to do; one by default. The bits are the same.
    `arena=reuse` keeps intermediate tensors in one block, `arena=check` also poisons what is not live.
    Raises: BackendUnavailableError for an option that asks for what this engine does not have.
    """
    number = int(threads) if threads.isdecimal() else 0 if threads else 1
    if not 1 <= number <= MOST_THREADS:
        raise BackendUnavailableError(f"cpu: threads={threads}: write a number from 1 to {MOST_THREADS}")
    if arena not in ARENAS:
        raise BackendUnavailableError(f"cpu: arena={arena}: write {' or '.join(ARENAS[1:])}")
    if arena and number > 1:
        raise BackendUnavailableError("cpu: an arena is planned for one order of the nodes: use threads=1")
    from opgauge.reference_engine import passes
    from opgauge.reference_engine.lower import lower  # onnx is slow to import

    try:
        rules = passes.select(disable, only)
    except passes.UnknownRuleError as error:
        raise BackendUnavailableError(f"cpu: {error}") from error

    find = finder(with_added(kernels(), "cpu"))
    plans: PlanCache[Planned] = PlanCache(MAX_PLANS)
    pool = ThreadPoolExecutor(number, "opgauge-branch") if number > 1 else None

    def planned(model: bytes, inputs: Mapping[str, Array]) -> tuple[Planned, bool]:
        kept = plans.find(model, inputs)
        if kept is not None:
            return kept, True
        graph = lower(model, inputs)
        if rules:
            graph, _ = passes.optimise(graph, rules)
        bound = plan(graph, find, "cpu")
        written = bound.counts.get("written_bytes", 0) + bound.counts.get("moved_bytes", 0)
        tasks = branches(bound) if written >= LEAST_PARALLEL else ()
        fresh = Planned(bound, lay_out(graph), tasks, cache(partial(ready, bound)))
        plans.keep(model, inputs, graph.bound, fresh)
        return fresh, False

    def run(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
        start = time.perf_counter_ns()
        kept, hit = planned(model, inputs)
        began = time.perf_counter_ns()
        if arena:
            outputs = execute_in_arena(kept.plan, kept.layout, inputs, check=arena == "check")
        elif pool is not None and len(kept.branches) > 1:
            outputs = execute_parallel(kept.plan, kept.branches, inputs, pool)
        elif pool is not None:
            with lent(pool, number):
                outputs = execute(kept.plan, inputs)
        else:
            outputs = kept.again()(inputs) if hit else execute(kept.plan, inputs)
        done = time.perf_counter_ns()
        counts = {**kept.plan.counts, "peak_bytes": kept.layout.peak, **plans.counts(hit)}
        return RunResult(outputs, counts, {"plan": began - start, "run": done - began})

    return run


def info() -> dict[str, str]:
    """Versions, the vector features that LLVM compiles for, and the order of every float sum."""
    import llvmlite
    import numba
    import numpy

    from opgauge.reference_engine import passes

    from . import isa

    isa.force(isa.forced())
    from .compile import cache_folder, fuses, host_codegen, target_features
    from .reduce import SUM_ORDER

    codegen = host_codegen()
    features = target_features(codegen)
    folder = cache_folder(SOURCES)
    order = "sequential k, fma" if fuses(codegen) else "sequential k, multiply then add"
    return {
        "version": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "numpy": numpy.__version__,
        "cpu": codegen.magic_tuple()[1],
        "features": " ".join(sorted(f for f in features if f.startswith(("avx", "fma", "sse4", "neon", "sve")))),
        "isa": isa.describe(codegen),
        "threads": "1",
        "rules": passes.version(),
        "float_gemm_order": order,
        "float_sum_order": SUM_ORDER,
        "kernel_cache": folder.name if folder else "none: no folder can be written",
    }
