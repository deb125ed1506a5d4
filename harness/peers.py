"""Our kernels against their peers: the same work, interleaved in one process, on one thread, in CPU time.

A ratio is the peer's time / ours: above 1 we are faster. Weights are constant on both sides, inputs and outputs are
bound beforehand, so that only the computation is timed. Results are compared before anything is timed.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from opgauge.reference_engine.errors import CaseError, OpgaugeError
from opgauge.reference_engine.types import Array
from opgauge.suites.peer_cases import CASES, Peered

FEWEST_ROUNDS = 9
BLOCK_NS = 2_000_000  # repetitions fill so much CPU time per round
MOST_REPETITIONS = 1000
THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
Run = Callable[[], None]


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
    model, inputs = case.build()
    own, outputs = ours(model, inputs)
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
    ratios = [theirs / mine for mine, theirs in times]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    return Against(
        case.section,
        case.label,
        case.peer,
        ratio,
        low,
        high,
        statistics.median(m for m, _ in times),
        statistics.median(t for _, t in times),
        len(times),
        case.goal,
    )


def _cpu(run: Run, count: int) -> float:
    """Nanoseconds of CPU per call, of all threads of this process."""
    start = time.process_time_ns()
    for _ in range(count):
        run()
    return max(time.process_time_ns() - start, 1) / count


def _repeats(run: Run) -> int:
    return int(min(max(BLOCK_NS / _cpu(run, 1), 1), MOST_REPETITIONS))


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
