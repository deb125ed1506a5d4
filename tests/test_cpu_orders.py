"""Products, places, running values and orders on the CPU against plain Python, element by element."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from opgauge.backends import cpu
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.executor import finder

pytestmark = pytest.mark.filterwarnings("error")
SIZES = (0, 1, 2, 7, 16, 33)


@pytest.fixture(scope="module")
def find():
    return finder(cpu.kernels())


def call(find, primitive, fn, x, shape, word, *attrs):
    out = np.full(shape, 77, dt.numpy_dtype(word))
    before = x.tobytes()
    find(primitive, fn, (dt.word_of(x.dtype), word)).call(x, out, *attrs)
    assert x.tobytes() == before
    return out


def small(rng, word, n):
    """Rows of few distinct values, so that extremes repeat."""
    low = -3 if dt.is_float(word) or word.startswith("i") else 0
    return rng.integers(low, 4, (5, n)).astype(dt.numpy_dtype(word))


@pytest.mark.parametrize("word", [*dt.FLOATS, *dt.INTS])
def test_places_and_orders_break_ties_by_the_index(find, word):
    rng = np.random.default_rng(1)
    for n in SIZES:
        x = small(rng, word, n)
        rows = x.astype(np.float64).tolist()
        for fn, last in itertools.product(("argmax", "argmin"), (0, 1)) if n else ():
            best = max if fn == "argmax" else min
            expected = [max if last else min for _ in rows]
            expected = [
                pick(i for i, v in enumerate(r) if v == best(r)) for pick, r in zip(expected, rows, strict=True)
            ]
            assert call(find, "Reduce", fn, x, (5,), "int64", last).tolist() == expected
        for largest in (0, 1):
            order = [sorted(range(n), key=lambda i, r=r: (-r[i] if largest else r[i], i)) for r in rows]
            assert call(find, "Sort", "order", x, x.shape, "int64", largest).tolist() == order
            values = call(find, "Sort", "values", x, x.shape, word, largest).astype(np.float64).tolist()
            assert values == [[r[i] for i in o] for r, o in zip(rows, order, strict=True)]


@pytest.mark.parametrize("word", [*dt.FLOATS, *dt.INTS])
def test_products_and_running_values_follow_the_sequence(find, word):
    rng = np.random.default_rng(2)
    for n in SIZES:
        x = small(rng, word, n)
        with np.errstate(over="ignore"):
            exact = [math.prod(row) for row in x.astype(np.int64).tolist()]
        whole = call(find, "Reduce", "prod", x, (5,), word)
        if dt.is_float(word):
            kept = [i for i, v in enumerate(exact) if abs(v) < 256]
            assert whole[kept].astype(np.int64).tolist() == [exact[i] for i in kept]
        else:
            bits = 8 * x.itemsize
            assert [int(v) % 2**bits for v in whole] == [v % 2**bits for v in exact]
        if word in ("float16", "bfloat16"):
            continue
        sums = call(find, "Scan", "sum", x, x.shape, word)
        assert sums.astype(np.int64).tolist() == np.cumsum(x.astype(np.int64), -1).tolist()
        ones = np.sign(x) if word[0] != "u" else np.minimum(x, 1)
        assert (
            call(find, "Scan", "prod", ones, x.shape, word).tolist() == np.cumprod(ones.astype(np.int64), -1).tolist()
        )


def test_a_tie_rule_the_wrong_way_round_is_seen(find):
    x = np.array([[1, 3, 3, 0]], np.float32)
    assert call(find, "Reduce", "argmax", x, (1,), "int64", 0)[0] == 1
    assert call(find, "Reduce", "argmax", x, (1,), "int64", 1)[0] == 2
    backwards = np.argsort(x, -1, kind="stable")[:, ::-1]
    assert call(find, "Sort", "order", x, (1, 4), "int64", 1).tolist() != backwards.tolist()
