"""Random errors as a second oracle: honest sums stay green, small systematic faults that no bound can see go red."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from opgauge import check, generate, model, statistics
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Array, Case, CaseSpec, Exact, Graph, Observation, Policy, Record, Status
from opgauge.suites import cases
from opgauge.suites.profiles import tensor

F = np.float32
U = 2.0**-24
OUTPUTS, DEPTH, REPETITIONS = 512, 64, 200
ROWS = {row.name: row for row in cases()}
Sum = Callable[[Array, Array], Array]

# ---------------------------------------------------------------- sums of products, one row of a and b for each output


def chain(a: Array, b: Array, step: Callable[[Array, Array, Array], Array], start: Array | None = None) -> Array:
    acc = np.zeros(len(a), F) if start is None else start
    for k in range(a.shape[1]):
        acc = step(acc, a[:, k], b[:, k])
    return acc


def sequential(a: Array, b: Array) -> Array:
    return chain(a, b, lambda acc, x, y: acc + x * y)


def fused(a: Array, b: Array) -> Array:
    return chain(a, b, lambda acc, x, y: (acc.astype(np.float64) + x.astype(np.float64) * y).astype(F))


def pairwise(a: Array, b: Array) -> Array:
    products = a * b
    while products.shape[1] > 1:
        products = products[:, 0::2] + products[:, 1::2]
    return products[:, 0]


def lanes(a: Array, b: Array) -> Array:
    parts = [sequential(a[:, l::8], b[:, l::8]) for l in range(8)]
    return ((parts[0] + parts[4]) + (parts[2] + parts[6])) + ((parts[1] + parts[5]) + (parts[3] + parts[7]))


def wide(a: Array, b: Array) -> Array:
    return (a.astype(np.float64) * b).sum(1).astype(F)


HONEST: tuple[Sum, ...] = (sequential, fused, pairwise, lanes, wide)


def truncated(x: Array) -> Array:
    """Toward zero instead of to the nearest."""
    near = x.astype(F)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, F(0)), near)


def truncating(a: Array, b: Array) -> Array:
    return chain(a, b, lambda acc, x, y: truncated(acc.astype(np.float64) + x.astype(np.float64) * y))


def half(a: Array, b: Array) -> Array:
    """A float16 accumulator."""
    return chain(a, b, lambda acc, x, y: (acc + (x * y).astype(np.float16)).astype(np.float16)).astype(F)


def multiplier(a: Array, b: Array) -> Array:
    return (sequential(a, b).astype(np.float64) * (1 + 2.0**-18)).astype(F)


def brain_inputs(a: Array, b: Array) -> Array:
    return sequential(a.astype(ml_dtypes.bfloat16).astype(F), b)


def split(a: Array, b: Array) -> Array:
    """Two partial sums stored in bfloat16."""
    middle = a.shape[1] // 2
    parts = [
        sequential(x, y).astype(ml_dtypes.bfloat16).astype(F)
        for x, y in ((a[:, :middle], b[:, :middle]), (a[:, middle:], b[:, middle:]))
    ]
    return parts[0] + parts[1]


FAULTY: tuple[Sum, ...] = (truncating, half, multiplier, brain_inputs, split)


def moments(kernel: Sum, seed: int, positive: bool = False, outputs: int = OUTPUTS) -> statistics.Moments:
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((outputs, DEPTH)).astype(F) for _ in "ab")
    a, b = (np.abs(a), np.abs(b)) if positive else (a, b)
    products = a.astype(np.float64) * b
    sigma = U * np.sqrt(DEPTH * (products**2).sum(1))
    return statistics.measure(products.sum(1), sigma, kernel(a, b), sized=not positive)


def verdict(m: statistics.Moments) -> Record:
    made = statistics.record(CaseSpec("MatMul", "float32", None, ""), "planted", 100, 0, m)
    assert made is not None
    return made


@pytest.mark.parametrize("kernel", HONEST, ids=lambda f: f.__name__)
def test_honest_orders_stay_green_over_many_repetitions(kernel):
    summed = statistics.Moments()
    for seed in range(REPETITIONS):
        m = moments(kernel, seed, positive=seed % 4 == 3)
        assert verdict(m).status is Status.PASS, verdict(m).message
        summed += m
    # Over a hundred thousand outputs together too: no order leans.
    assert verdict(summed).status is Status.PASS, verdict(summed).message


@pytest.mark.parametrize("kernel", FAULTY, ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", range(10))
def test_small_systematic_faults_go_red(kernel, seed):
    found = verdict(moments(kernel, seed) + moments(kernel, seed + 1000, positive=True))
    assert found.status is Status.FAIL
    assert "not those of honest rounding" in found.message


def test_the_faults_lie_inside_the_hard_bound():
    """What makes this oracle worth having: a bound of N1 accepts most of what it sees."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((4000, DEPTH)).astype(F) for _ in "ab")
    products = a.astype(np.float64) * b
    bound = min(DEPTH, 4 * DEPTH**0.5) * U * np.abs(products).sum(1)
    for kernel, share in ((truncating, 1.0), (multiplier, 0.99)):
        inside = np.abs(kernel(a, b) - products.sum(1)) <= bound
        assert inside.mean() >= share


def test_few_outputs_say_nothing():
    few = moments(half, 0, outputs=statistics.ENOUGH - 1)
    assert statistics.record(CaseSpec("MatMul", "float32", None, ""), "planted", 100, 0, few) is None


def test_moments_of_parts_add_up_to_those_of_the_whole():
    rng = np.random.default_rng(6)
    value, actual = rng.standard_normal(2000), rng.standard_normal(2000)
    sigma = np.abs(rng.standard_normal(2000)) + 0.1
    whole = statistics.measure(value, sigma, actual)
    parts = statistics.measure(value[:700], sigma[:700], actual[:700]) + statistics.measure(
        value[700:], sigma[700:], actual[700:]
    )
    np.testing.assert_allclose(list(vars(parts).values()), list(vars(whole).values()))
    z = (actual - value) / sigma
    assert statistics.t_bias(whole) == pytest.approx(z.mean() / (z.std() / np.sqrt(z.size)))


def test_outputs_that_share_an_error_count_as_one():
    rng = np.random.default_rng(7)
    shared = np.repeat(rng.standard_normal(40), 50) + 0.1 * rng.standard_normal(2000)
    value = rng.standard_normal(2000)
    single = statistics.measure(value, np.ones(2000), value + shared)
    grouped = statistics.measure(value, np.ones(2000), value + shared, group=50)
    assert abs(statistics.t_bias(grouped)) < abs(statistics.t_bias(single)) / 3


# ---------------------------------------------------------------- through the rows of the suite

OF_ROWS = ("MatMul", "Gemm", "Conv", "ReduceSum", "ReduceMean", "LayerNormalization")


@functools.cache
def evaluated(name: str, budget: int = 100) -> list[tuple[Case, Graph, dict[str, Array], Exact]]:
    """The cases of a row whose data are random, evaluated."""
    found = []

    def visit(text, case):
        if statistics.randomness(case):
            data, inputs = model.build(case)
            graph = lower(data, inputs)
            found.append((case, graph, inputs, evaluate(graph, inputs)[0]))

    generate.explore(ROWS[name], budget, 0, visit)
    return found


def tallied(name: str, change: Callable[[Array], Array]) -> Record:
    """The verdict on a row whose outputs are the exact ones, changed."""
    summed = statistics.Moments()
    for case, graph, inputs, exact in evaluated(name):
        summed += statistics.tally(case, graph, inputs, exact, change(exact.value))
    return verdict(summed)


@pytest.mark.parametrize("op", OF_ROWS)
def test_every_row_draws_enough_random_outputs_and_sees_a_multiplier(op):
    assert tallied(f"{op}/float32", lambda y: y).status is Status.PASS
    found = tallied(f"{op}/float32", lambda y: (y.astype(np.float64) * (1 + 2.0**-18)).astype(F))
    assert found.status is Status.FAIL
    assert abs(found.detail["t_slope"]) > statistics.T_LIMIT


def one_by_one(case: Case, accumulator: type) -> Array:
    """LayerNormalization with both sums in sequence, in an accumulator of that type."""
    X, scale, *bias = (tensor(arg, case.seed, i) for i, arg in enumerate(case.args))
    axis = int(dict(case.attrs).get("axis", -1)) % X.ndim
    x = X.reshape(math.prod(X.shape[:axis]), -1)
    mean = F(np.add.accumulate(x, axis=1, dtype=accumulator)[:, -1:]) / F(x.shape[1])
    d = x - mean
    variance = F(np.add.accumulate(d * d, axis=1, dtype=accumulator)[:, -1:]) / F(x.shape[1])
    y = (d / np.sqrt(variance + F(dict(case.attrs).get("epsilon", 1e-5)))).reshape(X.shape) * scale
    return y + bias[0] if bias else y


@pytest.mark.parametrize(("accumulator", "status"), [(np.float32, Status.PASS), (np.float16, Status.FAIL)])
def test_sums_of_squares_in_sequence_are_honest_in_float32_only(accumulator, status):
    summed = statistics.Moments()
    for case, graph, inputs, exact in evaluated("LayerNormalization/float32,axes"):
        summed += statistics.tally(case, graph, inputs, exact, one_by_one(case, accumulator))
    assert verdict(summed).status is status


def test_other_types_and_operators_add_nothing():
    for name in ("MatMul/float64", "Softmax/float32"):
        for case, graph, inputs, exact in evaluated(name, 12):
            assert statistics.tally(case, graph, inputs, exact, exact.value).n == 0


class Planted:
    """A backend in this process that returns what `change` makes of the exact result."""

    def __init__(self, change: Callable[[Array], Array]) -> None:
        self.spec = SimpleNamespace(
            options=(), text="planted", name="planted", policy=Policy(), definition=SimpleNamespace(informative=False)
        )
        self.info: dict[str, str] = {}
        self.pins: dict[str, str] = {}
        self.change, self.answer = change, Observation(Status.PASS)

    def submit(self, case, data, inputs, **how):
        self.answer = Observation(
            Status.PASS, tuple(self.change(e.value) for e in evaluate(lower(data, inputs), inputs))
        )

    def before(self):
        return ()

    def receive(self):
        return self.answer


@pytest.mark.parametrize(("factor", "status"), [(1.0, Status.PASS), (1 + 2.0**-18, Status.FAIL)])
def test_a_row_emits_one_record_of_its_statistics_per_backend(factor, status):
    records: list[Record] = []
    planted = Planted(lambda y: (y.astype(np.float64) * factor).astype(y.dtype))
    check.check_row(ROWS["ReduceSum/float32"], 40, 0, [planted], records.append, shrink=False)
    (found,) = (r for r in records if r.suite == "statistics")
    assert (found.status, found.backend, found.op) == (status, "planted", "ReduceSum")
    assert set(found.detail) == {"z_rms", "t_bias", "t_slope", "n", "groups"}
    assert found.case == "statistics/ReduceSum/float32/b40/s0"
