"""Our engine on the CPU: numba kernels, compiled at their first call and kept on disk.

numba is imported by `load`, `info`, `warm` and `kernels`, so that importing this package costs little.
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
        from . import depthwise, integer, lastchannel, linear, movement, panels, pointwise, reduce
        from .compile import cache_folder, keep
    except ImportError as error:
        raise BackendUnavailableError(f"cpu: numba cannot be imported ({error}); pip install numba") from error
    families = (linear, pointwise, reduce, movement)
    keep((*families, integer, panels, depthwise, lastchannel), cache_folder(SOURCES))
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


def warm() -> None:
    """Compile every signature that a conformance run meets, or read it from disk."""
    import numpy as np

    find = finder(kernels())

    def call(primitive: str, fn: str, inputs: list[Array], out: Array, *attrs: object) -> None:
        kernel = find(primitive, fn, tuple(x.dtype.name for x in (*inputs, out)))
        assert kernel is not None, f"{primitive}.{fn} has no kernel"
        kernel.call(*inputs, out, *attrs)

    for word in ("float32", "float64"):
        call("Gemm", "", [np.ones((1, 1), word), np.ones((1, 1), word)], np.empty((1, 1), word))
        call("Reduce", "sum", [np.ones((1, 1), word)], np.empty(1, word))
    bias, factor = np.zeros((), np.int32), np.ones((), np.float32)
    for word in ("uint8", "int8"):
        byte, none = np.ones((1, 1), word), np.zeros((), word)
        call("Gemm", "", [byte, byte, none, none], np.empty((1, 1), np.int32))
        finish = [byte, byte, none, none, bias, factor, none]
        call("Gemm", "requantize", finish, np.empty((1, 1), word), word, 0, 100, False)
    image = [byte.reshape(1, 1, 1, 1), byte.reshape(1, 1, 1, 1), none, none, bias, factor, none]
    window = ((1, 1), (1, 1), (1, 1), (1, 0, 0, 0), (2, 1))
    call("Gemm", "im2col_requantize", image, np.empty((1, 1, 1, 2), word), word, 0, 100, False, *window)
    call("Elementwise", "erf", [np.ones(1, np.float32)], np.empty(1, np.float32))
    one = np.ones(1, np.float32)
    for word in ("int8", "uint8", "int16", "uint16"):
        q, zero = np.ones((1, 1, 1), word), np.zeros(1, word)
        call("Quantize", "", [np.ones((1, 1, 1), np.float32), one, zero], np.empty_like(q), word, "")
        call("Requantize", "", [np.ones((1, 1, 1), np.int32), one, zero], np.empty_like(q), word, False)
        call("Dequantize", "", [q, one, zero], np.empty(q.shape, np.float32), "float32")
    acc = np.ones((1, 1, 1), np.int32)
    call("Dequantize", "", [acc, one, np.zeros(1, np.int32)], np.empty(acc.shape, np.float32), "float32")
    for word in ("uint8", "float16", "float32", "float64"):
        x = np.ones((1, 1, 1), word)
        call("Im2col", "", [x, np.zeros((), word)], np.empty((1, 1, 1, 1), word), (1,), (1,), (1,), (0, 0), (1,))


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
