"""The error model holds every honest evaluation order and nothing else (N1, N3)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from opgauge.reference_engine import real as r
from opgauge.reference_engine import summation
from opgauge.reference_engine.primitives.pointwise import arithmetic
from opgauge.reference_engine.primitives.reduce import exact_reduce, exact_scan, exact_sort
from opgauge.reference_engine.types import Policy

F = np.float32
RNG = np.random.default_rng(7)


def sequential(products: np.ndarray) -> np.float32:
    acc = F(0)
    for p in products:
        acc = F(acc + F(p))
    return acc


def backwards(products: np.ndarray) -> np.float32:
    return sequential(products[::-1])


def pairwise(products: np.ndarray) -> np.float32:
    values = [F(p) for p in products]
    while len(values) > 1:
        values = [F(values[i] + values[i + 1]) if i + 1 < len(values) else values[i] for i in range(0, len(values), 2)]
    return values[0]


def fused(products: np.ndarray) -> np.float32:
    """A chain of fused multiply-adds: the products are exact in float64, each step rounds once."""
    acc = F(0)
    for p in products:
        acc = F(np.float64(acc) + np.float64(p))
    return acc


def lanes(products: np.ndarray) -> np.float32:
    return sequential(np.asarray([sequential(products[i::8]) for i in range(8)]))


def largest_first(products: np.ndarray) -> np.float32:
    return sequential(products[np.argsort(-np.abs(products))])


HONEST = (sequential, backwards, pairwise, fused, lanes, largest_first)


def half_accumulator(products: np.ndarray) -> np.float32:
    acc = np.float16(0)
    with np.errstate(over="ignore"):
        for p in products:
            acc = np.float16(acc + np.float16(p))
    return F(acc)


def drops_the_last(products: np.ndarray) -> np.float32:
    return sequential(products[:-1])


FAULTY = (half_accumulator, drops_the_last)

DATA: dict[str, Callable[[int], np.ndarray]] = {
    "normal": lambda n: RNG.standard_normal(n).astype(F),
    "positive": lambda n: RNG.uniform(0, 1, n).astype(F),
    "cancelling": lambda n: (RNG.standard_normal(n) + 1000 * RNG.choice([-1, 1], n)).astype(F),
    "wide": lambda n: (RNG.standard_normal(n) * 10.0 ** RNG.uniform(-6, 6, n)).astype(F),
}


def inside(a: np.ndarray, b: np.ndarray, value: np.float32) -> bool:
    exact = r.dot(r.leaf(a[None], "float32"), r.leaf(b[:, None], "float32"))
    radius = r.radius(exact)[0, 0]
    return bool(abs(float(value) - exact.value[0, 0]) <= radius)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("order", HONEST)
def test_every_honest_order_of_a_dot_product_is_inside_the_bound(order, data):
    for k in (1, 2, 3, 7, 16, 33, 100, 700):
        a, b = DATA[data](k), DATA[data](k)
        assert inside(a, b, order(a.astype(np.float64) * b)), (data, k)


@pytest.mark.parametrize("order", FAULTY)
def test_a_faulty_accumulation_leaves_the_bound(order):
    rows = [(DATA["normal"](100), DATA["normal"](100)) for _ in range(20)]
    left = [not inside(a, b, order(a.astype(np.float64) * b)) for a, b in rows]
    assert sum(left) >= 18  # one row in 200 comes out right by luck


@pytest.mark.parametrize("form", ["total", "running sum", "dot", "dot of many terms"])
def test_small_terms_of_one_sign_may_vanish_beside_large_ones(form, monkeypatch):
    if form == "dot of many terms":
        monkeypatch.setattr(summation, "TERMS", 0)
    terms = RNG.uniform(0.1, 1, (4, 3000)).astype(F)
    terms[:, 0] = 2.0**25  # beside which all others vanish
    leaf = r.leaf(terms, "float32")
    exact = {
        "total": lambda: r.total(leaf),
        "running sum": lambda: r.move(exact_scan(leaf, "sum"), lambda part: part[:, -1]),
    }.get(form, lambda: r.move(r.dot(leaf, r.leaf(np.ones((3000, 1), F), "float32")), lambda part: part[:, 0]))()
    got = np.asarray([largest_first(row) for row in terms], np.float64)
    off = np.abs(got - exact.value)
    assert (off <= r.radius(exact)).all()
    assert (off > 4.0 * np.sqrt(3000) * 2.0**-24 * exact.magnitude).all(), "the square-root bound would do"
    assert (r.radius(exact) < 2 * off).all(), "more than what can vanish"


@pytest.mark.parametrize("form", ["total", "running sum", "dot"])
def test_nearly_equal_terms_round_alike(form):
    """No two are equal, and all are rounded the same way: 3000 of about 1/8 beside 2^17, whose last place is 1/64."""
    n = 3000
    terms = (0.1296875 + 1e-4 * RNG.standard_normal(n)).astype(F)
    terms[0] = 2.0**17
    if form == "dot":
        terms = (1.0 + 3e-6 * RNG.standard_normal(n)).astype(F)
        terms[0] = 1.5
    assert not r.leaf(terms, "float32").structured
    leaf = r.leaf(terms[None], "float32")
    exact = {
        "total": lambda: r.total(leaf),
        "running sum": lambda: r.move(exact_scan(leaf, "sum"), lambda part: part[:, -1]),
        "dot": lambda: r.move(r.dot(leaf, r.leaf(terms[:, None], "float32")), lambda part: part[:, 0]),
    }[form]()
    products = terms.astype(np.float64) ** 2 if form == "dot" else terms
    got = float(sequential(products.astype(F)))
    off = abs(got - exact.value[0])
    assert off <= r.radius(exact)[0]
    if form != "dot":
        assert off > 4.0 * np.sqrt(n) * 2.0**-24 * exact.magnitude[0], "the square-root bound would do"
        assert r.radius(exact)[0] < 2.5 * off, "more than what rounds alike"


def test_a_single_size_of_data_gains_nothing():
    a = RNG.standard_normal((4, 256)).astype(F)
    assert np.all(r.dot(r.leaf(a, "float32"), r.leaf(a.T.copy(), "float32")).err == 0.0)
    bound = r.total(r.leaf(np.abs(a), "float32"))
    assert (np.asarray(bound.err) <= 0.01 * r.radius(bound)).all()


def test_integer_valued_data_leave_one_answer_whatever_the_order():
    a, b = RNG.integers(-40, 40, 300).astype(F), RNG.integers(-40, 40, 300).astype(F)
    exact = r.dot(r.leaf(a[None], "float32"), r.leaf(b[:, None], "float32"))
    assert r.radius(exact)[0, 0] == 0.0
    answers = {float(order(a.astype(np.float64) * b)) for order in HONEST}
    assert answers == {float(exact.value[0, 0])}


def test_data_off_the_grid_leave_a_radius():
    a = np.asarray([0.1, 0.2, 0.3], F)
    exact = r.dot(r.leaf(a[None], "float32"), r.leaf(a[:, None], "float32"))
    assert r.radius(exact)[0, 0] > 0


@pytest.mark.parametrize(
    ("values", "grid"), [([3.0, 1.0], 1.0), ([0.5, 2.0], 0.5), ([96.0, 64.0], 32.0), ([0.0], 1.0), ([0.1], 2.0**-27)]
)
def test_the_grid_is_the_largest_power_of_two_that_divides_all(values, grid):
    assert r.grid_of(np.asarray(values, F)) == grid


def test_the_grid_of_infinities_and_nan_is_none():
    assert r.grid_of(np.asarray([1.0, np.inf])) == 0.0
    assert r.grid_of(np.asarray([np.nan])) == 0.0


SCALES = [0.5, 0.25, 3.0, 0.0123, 1e-3, 7.0]


@pytest.mark.parametrize("form", ["product first", "quotient", "reciprocal", "running", "double"])
def test_every_way_to_form_a_multiplier_is_inside_six_roundings(form):
    for sa in SCALES:
        for sb in SCALES:
            for sy in SCALES:
                for acc in (1, 7, 255, 65025, 8_000_001):
                    a, b, y, n = F(sa), F(sb), F(sy), F(acc)
                    got = {
                        "product first": n * F(F(a * b) / y),
                        "quotient": n * F(F(a / y) * b),
                        "reciprocal": n * F(F(a * b) * F(F(1) / y)),
                        "running": F(F(F(n * a) * b) / y),
                        "double": F(float(n) * (float(a) * float(b) / float(y))),
                    }[form]
                    truth = Fraction(acc) * Fraction(float(a)) * Fraction(float(b)) / Fraction(float(y))
                    assert abs(Fraction(float(got)) - truth) <= Fraction(r.gamma(6, 2.0**-24)) * abs(truth)


def test_powers_of_two_make_a_multiplier_exact_per_element():
    scales = r.div(
        r.mul(r.leaf(np.asarray([0.5, 0.25], F), "float32"), r.leaf(np.asarray([2.0, 2.0], F), "float32")),
        r.leaf(np.asarray([4.0, 4.0], F), "float32"),
    )
    acc = r.Real(np.asarray([3.0, 5.0]), "float32", grid=1.0)
    assert (r.radius(r.mul(acc, scales)) == 0).all()


def test_three_times_a_power_of_two_is_not_exact():
    scales = r.div(r.leaf(np.asarray([1.0], F), "float32"), r.leaf(np.asarray([3.0], F), "float32"))
    assert r.radius(scales)[0] > 0


def test_what_cannot_be_the_largest_does_not_blur_it():
    hidden = r.add(r.leaf(F([[1.25, -1e9, 0.5]]), "float32"), r.leaf(F([[0.1, 0.3, 0.2]]), "float32"))
    assert r.radius(hidden).max() > 50
    assert r.radius(exact_reduce(hidden, "max")).max() < 1e-6
    assert r.radius(exact_reduce(hidden, "min")).max() > 50
    values = exact_sort(hidden, "values")
    assert r.radius(values)[0, :2].max() < 1e-6
    assert r.radius(values)[0, 2] > 50
    for other, blur in ((0.995, 0.01), (0.985, 0.0)):  # one that may be it does
        near = r.Real(np.array([[1.0, other]]), "float32", err=np.array([[0.0, 0.01]]))
        assert r.radius(exact_reduce(near, "max"))[0] == blur
    apart = exact_sort(r.Real(np.array([[3.0, np.inf, 1.0, -np.inf]]), "float32", err=np.full((1, 4), 0.5)), "values")
    assert r.radius(apart).tolist() == [[0.0, 0.5, 0.5, 0.0]]


def test_an_operand_that_is_not_taken_blurs_neither_max_nor_relu():
    far = r.add(r.leaf(F([1e9, -1e9, 2.0]), "float32"), r.leaf(F([0.3, 0.3, 0.3]), "float32"))
    six, zero = (r.leaf(F([bound] * 3), "float32") for bound in (6.0, 0.0))
    clipped = arithmetic.extreme(np.maximum, arithmetic.extreme(np.minimum, far, six), zero)
    assert r.radius(clipped)[:2].tolist() == pytest.approx([0.0, 0.0], abs=1e-5)
    assert 0 < r.radius(clipped)[2] < 1e-5
    relu = arithmetic.monotone(lambda v: np.maximum(v, 0.0))(far, Policy())
    assert r.radius(relu)[0] > 50
    assert r.radius(relu)[1] < 1e-30
    assert r.radius(relu)[2] == r.radius(far)[2]
    close = r.Real(np.array([5.995, 5.985]), "float32", err=np.array([0.01, 0.01]))
    assert r.radius(arithmetic.extreme(np.maximum, close, r.leaf(F([6.0, 6.0]), "float32"))).tolist() == [0.01, 0.0]
