"""Our kernels against their peers: the same work, interleaved in one process, on one thread, in CPU time.

A ratio is the peer's time / ours: above 1 we are faster. Weights are constant on both sides, inputs and outputs are
bound beforehand, so that only the computation is timed. Results are compared before anything is timed. Two threads
against one are measured by the clock on the wall.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from opgauge.reference_engine.errors import CaseError, OpgaugeError
from opgauge.reference_engine.types import Array
from opgauge.suites.peer_cases import CASES, Peered

FEWEST_ROUNDS = 9
BLOCK_NS = 2_000_000  # repetitions fill so much CPU time per round
MOST_REPETITIONS = 1000
CALLS = 5  # in a round of two threads against one
REST_S = 0.02  # before each of them: onnxruntime's threads go on spinning for a while after their work
THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
Run = Callable[[], object]


class DifferentError(OpgaugeError):
    """The peer computes something else: its time says nothing."""


@dataclass(frozen=True)
class Against:
    """What was measured. Units: nanoseconds of CPU; `low` and `high` are the quartiles of the ratio."""

    section: str
    label: str
    peer: str
    ratio: float
    low: float
    high: float
    ours_ns: float
    peer_ns: float
    rounds: int
    goal: float

    @property
    def met(self) -> bool:
        return self.ratio >= self.goal


def select(words: Sequence[str]) -> tuple[Peered, ...]:
    """The cases whose name holds every word. Raises: CaseError where there is none."""
    found = tuple(c for c in CASES if all(w in c.name.replace(",", " ").split() for w in words))
    if not found:
        sections = ", ".join(dict.fromkeys(c.section for c in CASES))
        raise CaseError(f"--peers {' '.join(words)}: no case has these words; sections are {sections}")
    return found


def ours(model: bytes, inputs: Mapping[str, Array], disable: str = "") -> tuple[Run, dict[str, Array]]:
    """Our engine's steps with every tensor allocated beforehand, and where the outputs will be."""
    from opgauge.backends import cpu
    from opgauge.reference_engine import dtypes as dt
    from opgauge.reference_engine import passes
    from opgauge.reference_engine.executor import finder, plan
    from opgauge.reference_engine.lower import lower

    graph, _ = passes.optimise(lower(model, inputs), passes.select(disable))
    values: dict[str, Array] = {
        **graph.constants,
        **{name: np.ascontiguousarray(inputs[name]) for name in graph.inputs},
    }
    calls = []
    for step in plan(graph, finder(cpu.kernels()), "cpu").steps:
        spec = graph.specs[step.node.output]
        if step.kernel is None:
            values[step.node.output] = values[step.node.inputs[0]].reshape(spec.shape)
            continue
        out = values[step.node.output] = np.empty(spec.shape, dt.numpy_dtype(spec.dtype))
        calls.append((step.kernel.call, (*(values[n] for n in step.node.inputs), out, *step.attrs)))

    def run() -> None:
        for call, arguments in calls:
            call(*arguments)

    run()
    return run, {said: values[name] for said, name in zip(graph.output_names, graph.outputs, strict=True)}


def peer_of(
    case: Peered, model: bytes, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> tuple[Run, Callable[[], Mapping[str, Array]]]:
    if case.peer == "onnxruntime":
        from opgauge.backends.onnxruntime_bound import bound

        return bound(model, inputs, outputs)
    if case.peer == "unfused":
        run, made = ours(model, inputs, "requantize-into-gemm")
        return run, lambda: made
    if case.peer == "hand-written":
        return by_hand(model, inputs, outputs)
    import onnx
    from onnx import numpy_helper

    proto = onnx.load_from_string(model)
    kept: dict[str, Array] = {}
    if case.peer == "numpy":
        (a,), (b,) = inputs.values(), map(numpy_helper.to_array, proto.graph.initializer)
        ((name, like),) = outputs.items()
        kept[name] = np.empty_like(like)
        return lambda: _into(a, b, kept[name]), lambda: kept
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(proto)

    def run_reference() -> None:
        made = list(evaluator.run(None, dict(inputs)))
        kept.update((name, np.asarray(y)) for name, y in zip(outputs, made, strict=True))

    return run_reference, lambda: kept


def by_hand(
    model: bytes, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> tuple[Run, Callable[[], Mapping[str, Array]]]:
    """The three layers of a QLinearMatMul network as one compiled function."""
    import onnx
    from onnx import numpy_helper

    from opgauge.backends import cpu
    from opgauge.backends.cpu import handwritten
    from opgauge.backends.cpu.compile import cache_folder, keep

    keep((handwritten,), cache_folder(cpu.SOURCES))
    graph = onnx.load_from_string(model).graph
    held = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    layers = []
    for node in graph.node:
        x_scale, x_zero, w, w_scale, _, y_scale, y_zero = (held[name] for name in node.input[1:])
        layers.append(
            handwritten.Layer(w, int(x_zero), np.float32(np.float32(x_scale * w_scale) / y_scale), int(y_zero))
        )
    ((name, like),) = outputs.items()
    made = np.empty_like(like)
    (x,) = inputs.values()
    return handwritten.three_layers(layers, x, made), lambda: {name: made}


def as_graph(model: bytes, inputs: Mapping[str, Array]) -> tuple[Run, dict[str, Array]]:
    """Our engine on a planned graph that is run again, as a user runs it, and its outputs."""
    from opgauge.backends import cpu
    from opgauge.reference_engine import passes
    from opgauge.reference_engine.executor import finder, plan
    from opgauge.reference_engine.lower import lower
    from opgauge.reference_engine.ready import ready

    graph, _ = passes.optimise(lower(model, inputs))
    run = ready(plan(graph, finder(cpu.kernels()), "cpu"))
    made = run(inputs)
    return partial(run, inputs), dict(zip(graph.output_names, made, strict=True))


def _into(a: Array, b: Array, out: Array) -> None:
    np.matmul(a, b, out=out)


def differs(found: Mapping[str, Array], outputs: Mapping[str, Array]) -> str:
    """Where the peer's result is another one: integers equal, or one step off in one element of 1,000; floats near."""
    for name, y in outputs.items():
        other = np.asarray(found[name])
        if other.shape != y.shape or other.dtype != y.dtype:
            return f"{name} is {other.dtype}{list(other.shape)}, ours {y.dtype}{list(y.shape)}"
        gap = np.abs(other.astype(np.float64) - y.astype(np.float64))
        limit = 1e-3 * max(1.0, float(np.abs(y).max(initial=0))) if y.dtype.kind == "f" else float(y.itemsize == 1)
        if gap.max(initial=0) > limit or (y.dtype.kind != "f" and (gap > 0).mean() > 1e-3):
            return f"{name} differs by up to {gap.max():g} in {(gap > 0).sum()} of {gap.size} elements"
    return ""


def measure(case: Peered, rounds: int = FEWEST_ROUNDS) -> Against:
    """Medians of the ratio over `rounds` interleaved rounds.

    Raises: DifferentError; BackendUnavailableError where the peer is missing.
    """
    if case.peer == "one-thread":
        return measure_threads(case, rounds)
    model, inputs = case.build()
    own, outputs = (as_graph if case.peer == "hand-written" else ours)(model, inputs)
    peer, results = peer_of(case, model, inputs, outputs)
    peer()
    if said := differs(results(), outputs):
        raise DifferentError(f"{case.name}: {said}")
    times: list[tuple[float, float]] = []
    repeats = [_repeats(run) for run in (own, peer)]
    for turn in range(max(rounds, FEWEST_ROUNDS)):
        pair = list(zip((own, peer), repeats, strict=True))
        spent = [_cpu(run, n) for run, n in (pair if turn % 2 else pair[::-1])]
        mine, theirs = spent if turn % 2 else spent[::-1]
        times.append((mine, theirs))
    return _against(case, times, case.goal)


def _against(case: Peered, times: Sequence[tuple[float, float]], goal: float) -> Against:
    low, ratio, high = statistics.quantiles([theirs / mine for mine, theirs in times], n=4)
    mine, theirs = (statistics.median(t) for t in zip(*times, strict=True))
    return Against(case.section, case.label, case.peer, ratio, low, high, mine, theirs, len(times), goal)


def measure_threads(case: Peered, rounds: int) -> Against:
    """Our one thread against our two, the fastest calls; the goal is at most what onnxruntime gains beside it."""
    from opgauge.backends.cpu.threads import lent
    from opgauge.backends.onnxruntime_bound import bound

    model, inputs = case.build()
    one, outputs = ours(model, inputs)
    before = {name: y.copy() for name, y in outputs.items()}
    with ThreadPoolExecutor(1, "opgauge-part") as pool:

        def two() -> None:
            with lent(pool, 2):
                one()

        two()
        if said := differs(before, outputs):
            raise DifferentError(f"{case.name}: {said}")
        theirs = [bound(model, inputs, outputs, threads)[0] for threads in (1, 2)]
        runs = (two, one, *theirs)
        for run in runs:
            run()
        times = []
        for turn in range(CALLS * max(rounds, FEWEST_ROUNDS)):
            order = range(4) if turn % 2 else range(3, -1, -1)
            spent = {}
            for i in order:
                time.sleep(REST_S)
                runs[i]()  # a core that slept is slow at first
                spent[i] = _spent(time.perf_counter_ns, runs[i], 1)
            times.append([spent[i] for i in range(4)])
    # On a machine with other work only the fastest calls had both processors.
    best = [min(t) for t in zip(*times, strict=True)]
    made = _against(case, [(t[0], t[1]) for t in times], min(case.goal, best[2] / best[3]))
    return replace(made, ratio=best[1] / best[0], ours_ns=best[0], peer_ns=best[1])


def _cpu(run: Run, count: int) -> float:
    """Nanoseconds of CPU per call, of all threads of this process."""
    return _spent(time.process_time_ns, run, count)


def _spent(clock: Callable[[], int], run: Run, count: int) -> float:
    start = clock()
    for _ in range(count):
        run()
    return max(clock() - start, 1) / count


def _repeats(run: Run) -> int:
    once = _cpu(run, 1)
    if once >= BLOCK_NS:
        return 1
    warm = _cpu(run, int(max(BLOCK_NS / once / 10, 2)))  # the first calls are slow
    return int(min(max(BLOCK_NS / warm, 1), MOST_REPETITIONS))


def measure_all(cases: Sequence[Peered], rounds: int, say: Callable[[str], None]) -> Iterator[Against]:
    """One row per case, in a child process whose linear algebra has one thread: numpy asks when it is imported."""
    with one_thread(), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as child:
        for case in cases:
            say(case.name)
            yield child.submit(measure, case, rounds).result()


@contextmanager
def one_thread() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
