"""Every kernel row of the CPU against numpy in wide arithmetic, on random and on edge data."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from opgauge.backends import cpu
from opgauge.backends.cpu import pointwise
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.executor import finder
from opgauge.reference_engine.primitives import PRIMITIVES

SIZES = (0, 1, 3, 7, 8, 15, 16, 17, 31, 32, 33)
BYTES = ("int8", "uint8")
EDGES = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-40, -1e-45, 3e38, -3e38, 100.0, -100.0, 800.0, -800.0]
EDGES += [math.inf, -math.inf, math.nan]

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def find():
    return finder(cpu.kernels())


def call(find, primitive, fn, inputs, shape, dtype, *attrs):
    """The kernel's answer in memory that was poisoned before, with guards on both sides that must survive."""
    dtype = dt.numpy_dtype(dtype)
    inputs = [np.asarray(x) for x in inputs]
    kernel = find(primitive, fn, tuple(dt.word_of(d) for d in (*(x.dtype for x in inputs), dtype)))
    assert kernel is not None
    before = [x.tobytes() for x in inputs]
    size = math.prod(shape) * dtype.itemsize
    memory = np.full(size + 128, 0xA5, np.uint8)
    out = memory[64 : 64 + size].view(dtype).reshape(shape)
    kernel.call(*inputs, out, *attrs)
    assert (memory[:64] == 0xA5).all()
    assert (memory[64 + size :] == 0xA5).all()
    assert [x.tobytes() for x in inputs] == before
    return out


def data(rng, word, shape):
    """Random elements; small floats, integers of the whole range."""
    if word == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dt.is_float(word):
        return rng.normal(0, 3, shape).astype(dt.numpy_dtype(word))
    low, high = dt.limits(word)
    return rng.integers(low, high, shape, dt.numpy_dtype(word), endpoint=True)


def equal(actual, expected):
    """The same numbers, NaN and all; the sign of zero apart."""
    np.testing.assert_array_equal(actual.astype(np.float64), np.asarray(expected).astype(np.float64))


# --- Gemm -----------------------------------------------------------------------------------------------


def integer_gemm(a, b, za, zb):
    acc = np.matmul(a.astype(np.int64) - za.astype(np.int64), b.astype(np.int64) - zb.astype(np.int64))
    return (acc & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


@pytest.mark.parametrize(("a_word", "b_word"), list(itertools.product(BYTES, BYTES)))
def test_integer_gemm_is_exact_at_every_tail_and_zero_point(find, a_word, b_word):
    rng = np.random.default_rng(1)
    empty = [(5, 0, 4), (0, 3, 2), (2, 3, 0)]
    for M, K, N in [*zip(SIZES, reversed(SIZES), SIZES, strict=True), *empty, (1, 70, 65), (13, 1, 1)]:
        a, b = data(rng, a_word, (M, K)), data(rng, b_word, (K, N))
        for za, zb in [
            (data(rng, a_word, ()), data(rng, b_word, ())),
            (data(rng, a_word, (M, 1)), data(rng, b_word, (1, N))),
        ]:
            out = call(find, "Gemm", "", [a, b, za, zb], (M, N), "int32")
            np.testing.assert_array_equal(out, integer_gemm(a, b, za, zb))


@pytest.mark.parametrize("batches", [((2, 3), (2, 3)), ((3,), ()), ((), (2,)), ((2, 1), (1, 3)), ((0,), (1,))])
def test_batches_broadcast(find, batches):
    rng = np.random.default_rng(2)
    full = np.broadcast_shapes(*batches)
    a, b = data(rng, "uint8", (*batches[0], 5, 7)), data(rng, "int8", (*batches[1], 7, 9))
    za = data(rng, "uint8", (*batches[0], 5, 1))
    zb = data(rng, "int8", (*batches[1], 1, 9))
    out = call(find, "Gemm", "", [a, b, za, zb], (*full, 5, 9), "int32")
    np.testing.assert_array_equal(out, integer_gemm(a, b, za, zb))
    x, y = np.round(a / 16).astype(np.float32), np.round(b / 16).astype(np.float32)
    equal(call(find, "Gemm", "", [x, y], (*full, 5, 9), "float32"), np.matmul(x, y))


def test_integer_gemm_wraps_modulo_two_to_the_32(find):
    K = 40_001  # 255 * 255 * 40001 > 2^31
    a, b, zero = np.full((2, K), 255, np.uint8), np.full((K, 3), 255, np.uint8), np.zeros((), np.uint8)
    out = call(find, "Gemm", "", [a, b, zero, zero], (2, 3), "int32")
    assert (out == 255 * 255 * K - 2**32).all()
    saturated = np.full((2, 3), 2**31 - 1, np.int32)
    assert (out != saturated).all()


def nearest(exact, dtype):
    """The float of `dtype` nearest to a rational, half to even."""
    near = dtype(float(exact))
    around = [np.nextafter(near, dtype(-math.inf)), near, np.nextafter(near, dtype(math.inf))]
    return min(around, key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(f"u{c.itemsize}")) & 1))


def chain(a, b, fused):
    """One accumulator per element, k in sequence, in exact rationals rounded once or twice a step."""
    dtype = a.dtype.type
    out = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for m, n in np.ndindex(out.shape):
        acc = dtype(0)
        for x, y in zip(a[m], b[:, n], strict=True):
            product = Fraction(float(x)) * Fraction(float(y))
            if not fused:
                product = Fraction(float(nearest(product, dtype)))
            acc = nearest(product + Fraction(float(acc)), dtype)
        out[m, n] = acc
    return out


@pytest.mark.parametrize("word", ["float32", "float64"])
def test_float_gemm_is_the_strict_chain_bit_for_bit(find, word):
    rng = np.random.default_rng(3)
    fused = cpu.info()["float_gemm_order"] == "sequential k, fma"
    chains, others = [], []
    for M, K, N in [(1, 9, 1), (7, 20, 3), (2, 33, 17), (3, 5, 34), (13, 4, 70)]:
        a, b = data(rng, word, (M, K)), data(rng, word, (K, N))
        out = call(find, "Gemm", "", [a, b], (M, N), word)
        chains.append(np.array_equal(out, chain(a, b, fused)))
        others.append(np.array_equal(out, chain(a, b, not fused)))
        backwards = call(find, "Gemm", "", [a[:, ::-1].copy(), b[::-1].copy()], (M, N), word)
        others.append(np.array_equal(out, backwards))
    assert all(chains)
    assert not all(others)


def test_a_row_of_a_batch_has_the_bits_of_the_row_alone(find):
    rng = np.random.default_rng(4)
    a, b = data(rng, "float32", (33, 100)), data(rng, "float32", (100, 50))
    whole = call(find, "Gemm", "", [a, b], (33, 50), "float32")
    for m in (0, 5, 32):
        np.testing.assert_array_equal(call(find, "Gemm", "", [a[m : m + 1], b], (1, 50), "float32")[0], whole[m])


@pytest.mark.parametrize("word", ["float32", "float64", "float16", "bfloat16"])
def test_float_gemm_handles_every_tail_and_special_values(find, word):
    rng = np.random.default_rng(5)
    for M, K, N in zip(SIZES, reversed(SIZES), SIZES, strict=True):
        a = rng.integers(-4, 5, (M, K)).astype(dt.numpy_dtype(word))
        b = rng.integers(-1, 2, (K, N)).astype(dt.numpy_dtype(word))
        exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
        equal(call(find, "Gemm", "", [a, b], (M, N), word), exact)
    special = np.array([[math.inf, 1.0], [math.nan, 1.0], [1e-30, 1e-30]]).astype(dt.numpy_dtype(word))
    out = call(find, "Gemm", "", [special, np.eye(2).astype(special.dtype)], (3, 2), word)
    assert np.isinf(out[0, 0])
    assert np.isnan(out[0, 1])
    assert np.isnan(out[1]).all()
    assert (out[2].astype(np.float64) == special[2].astype(np.float64)).all()


# --- Elementwise ----------------------------------------------------------------------------------------

FLOAT = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum}


def truncated_quotient(x, y):
    return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


ARITHMETIC = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": truncated_quotient}
INTEGER: dict[str, Callable[[int, int], int]] = {**ARITHMETIC, "max": max, "min": min}


def wrapped(values, kind):
    """Python integers modulo the range of an integer type."""
    bits = 8 * kind.itemsize
    return np.array([v % 2**bits for v in values], f"u{kind.itemsize}").view(kind)


@pytest.mark.parametrize("word", dt.INTS)
def test_integer_arithmetic_wraps_and_division_truncates(find, word):
    rng = np.random.default_rng(6)
    low, high = dt.limits(word)
    kind = dt.numpy_dtype(word)
    for n in SIZES:
        x, y = data(rng, word, n), data(rng, word, n)
        if n > 4:
            x[:4], y[:4] = [low, high, 7, low], [max(low, -1), 2, 0, high]
        for fn, exact in INTEGER.items():
            expected = wrapped([exact(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)], kind)
            np.testing.assert_array_equal(call(find, "Elementwise", fn, [x, y], (n,), word), expected)
        np.testing.assert_array_equal(call(find, "Elementwise", "abs", [x], (n,), word), np.abs(x))
        if word in pointwise.SIGNED:
            np.testing.assert_array_equal(call(find, "Elementwise", "neg", [x], (n,), word), 0 - x)
            np.testing.assert_array_equal(call(find, "Elementwise", "relu", [x], (n,), word), np.where(x > 0, x, 0))


@pytest.mark.parametrize("word", dt.FLOATS)
def test_float_arithmetic_is_rounded_once(find, word):
    kind = dt.numpy_dtype(word)
    grid = np.array([(a, b) for a in EDGES for b in EDGES])
    with np.errstate(all="ignore"):
        x, y = grid[:, 0].astype(kind), grid[:, 1].astype(kind)
        # float64 is wide enough that rounding its result once more is harmless for the 16 and 32-bit types.
        wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
        for fn, ufunc in FLOAT.items():
            expected = ufunc(wide_x, wide_y).astype(np.float32).astype(kind) if word != "float64" else ufunc(x, y)
            equal(call(find, "Elementwise", fn, [x, y], x.shape, word), expected)
    for fn, expected in {"neg": -x, "abs": np.abs(x), "relu": np.where(wide_x < 0, 0, x)}.items():
        equal(call(find, "Elementwise", fn, [x], x.shape, word), expected)
    assert call(find, "Elementwise", "add", [x[:0], y[:0]], (0,), word).size == 0
    equal(call(find, "Elementwise", "mul", [kind.type(3), kind.type(2)], (), word), 6.0)


def true_sigmoid(v):
    return 1.0 / (1.0 + math.exp(-v)) if v > -700 else math.exp(v)


TRUE = {
    "exp": lambda v: math.exp(v) if v < 709.7 else math.inf,
    "log": lambda v: math.log(v) if v > 0 else -math.inf if v == 0 else math.nan,
    "tanh": math.tanh,
    "sigmoid": true_sigmoid,
    "erf": math.erf,
    "sqrt": lambda v: math.sqrt(v) if v >= 0 else math.nan,
}


@pytest.mark.parametrize("word", dt.FLOATS)
@pytest.mark.parametrize("fn", sorted(TRUE))
def test_functions_are_within_half_an_ulp_of_the_wide_value(find, fn, word):
    kind = dt.numpy_dtype(word)
    rng = np.random.default_rng(7)
    with np.errstate(all="ignore"):
        small = -np.exp(rng.uniform(-100, 6, 50))
        x = np.concatenate([EDGES, rng.normal(0, 5, 200), small, [-87.5, -90, -103, -720]]).astype(kind)
        true = np.array([math.nan if math.isnan(v) else TRUE[fn](v) for v in x.astype(np.float64).tolist()])
        out = call(find, "Elementwise", fn, [x], x.shape, word)
        near = true.astype(kind)
    finite = np.isfinite(true) & np.isfinite(near)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(true))
    equal(out[~finite], near[~finite])
    near, true = near[finite].astype(np.float64), true[finite]
    digits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[word]
    ulp = np.maximum(np.exp2(np.floor(np.log2(np.maximum(np.abs(true), 1e-320))) - digits), dt.TINY[word])
    # float64 functions are the C library's and numpy's: a few ulp of float64.
    limit = 4.0 if word == "float64" else 0.5001
    assert (np.abs(out[finite].astype(np.float64) - true) <= limit * ulp).all()
    assert (np.abs(near - true) <= limit * ulp).all()  # control
    assert (np.abs(near + (limit + 1) * ulp - true) > limit * ulp).any()


@pytest.mark.parametrize("word", [*dt.FLOATS, *dt.INTS, "bool"])
def test_where_picks_bits(find, word):
    rng = np.random.default_rng(8)
    for n in SIZES:
        cond, x, y = data(rng, "bool", n), data(rng, word, n), data(rng, word, n)
        equal(call(find, "Elementwise", "where", [cond, x, y], (n,), word), np.where(cond, x, y))


def test_float_to_integer_truncates_saturates_and_makes_nan_zero(find):
    for word, to in itertools.product(dt.FLOATS, dt.INTS):
        low, high = dt.limits(to)
        with np.errstate(all="ignore"):
            x = np.array([*EDGES, 1.999, -1.999, 127.5, 255.9, 2.0**31, 2.0**63, 2.0**64]).astype(dt.numpy_dtype(word))
        expected = [
            0 if math.isnan(v) else (low if v < 0 else high) if math.isinf(v) else min(max(math.trunc(v), low), high)
            for v in x.astype(np.float64).tolist()
        ]
        assert call(find, "Elementwise", "cast", [x], x.shape, to, to).tolist() == expected


@pytest.mark.parametrize("to", [*dt.FLOATS, *dt.INTS, "bool"])
def test_other_casts_wrap_or_round_once(find, to):
    rng = np.random.default_rng(9)
    for word in [*dt.FLOATS, *dt.INTS, "bool"]:
        if dt.is_float(word) and to in dt.INTS:
            continue
        x = data(rng, word, 33)
        out = call(find, "Elementwise", "cast", [x], (33,), to, to)
        if to == "bool":
            equal(out, x != 0)
        elif dt.is_float(to):
            equal(out, [float(nearest_float(Fraction(v), to)) for v in x.tolist()])
        else:
            mask = 2 ** (8 * out.dtype.itemsize) - 1
            assert [int(v) & mask for v in out] == [int(v) & mask for v in x]


def nearest_float(exact, word):
    """Half to even in any of the float types, from a rational, by significant bits."""
    bits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}[word]
    if exact == 0:
        return 0.0
    exponent = max(math.floor(math.log2(abs(float(exact)))) - bits + 1, round(math.log2(dt.TINY[word])))
    steps = exact / Fraction(2) ** exponent
    value = float(round(steps) * Fraction(2) ** exponent)
    return math.copysign(math.inf, value) if abs(value) > dt.MAX[word] else value


def test_bfloat16_is_rounded_once_where_float32_would_round_first(find):
    above_tie = 1 + 2**-8 + 2**-40
    for word, value, twice in [
        ("float64", above_tie, 1.0),
        ("int32", 2**30 + 2**22 + 1, 2.0**30),
        ("float64", -above_tie, -1.0),
    ]:
        x = np.full(1, value, dt.numpy_dtype(word))
        out = call(find, "Elementwise", "cast", [x], (1,), "bfloat16", "bfloat16")
        assert float(out[0]) == nearest_float(Fraction(value), "bfloat16")
        assert float(out[0]) != twice == float(x.astype(np.float32).astype(ml_dtypes.bfloat16)[0])


# --- Quantize, Dequantize, Requantize ---------------------------------------------------------------------


def saturated(v, zero_point, word):
    low, high = dt.limits(word)
    wide = np.where(np.isnan(v), -np.inf, v) + zero_point[None, :, None].astype(np.float64)
    return np.clip(wide, low, high).astype(dt.numpy_dtype(word))


def quantize_cases():
    rng = np.random.default_rng(10)
    for word in pointwise.QUANTIZED:
        for O, C, I in [(1, 1, n) for n in SIZES] + [(2, 33, 1), (3, 5, 7), (0, 2, 3), (2, 0, 3), (1, 17, 33)]:
            x = (rng.integers(-600, 600, (O, C, I)) / 2).astype(np.float32)
            x.flat[: len(EDGES)] = EDGES[: x.size]
            scale = np.exp2(rng.integers(-3, 4, C)) if O != 3 else rng.uniform(0.01, 3, C)
            yield word, x, scale.astype(np.float32), data(rng, word, C)


def quantize_matches(call_quantize, rounding):
    for word, x, scale, zero_point in quantize_cases():
        with np.errstate(all="ignore"):
            v = rounding((x / scale[None, :, None]).astype(np.float64))
        if not np.array_equal(call_quantize(word, x, scale, zero_point), saturated(v, zero_point, word)):
            return False
    return True


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        (np.rint, True),  # control
        (lambda v: np.floor(v + 0.5), False),
        (np.trunc, False),
        (np.floor, False),
    ],
)
def test_quantize_rounds_half_to_even_and_nothing_else(find, rounding, expected):
    def kernel(word, x, scale, zero_point):
        return call(find, "Quantize", "", [x, scale, zero_point], x.shape, word, word, "")

    assert quantize_matches(kernel, rounding) is expected


@pytest.mark.parametrize("x_word", ["float16", "bfloat16", "float64", "int32"])
@pytest.mark.parametrize("scale_word", ["float32", "float16", "bfloat16"])
def test_quantize_takes_other_types_through_float32(find, x_word, scale_word):
    x = np.arange(-40, 40).reshape(2, 4, 10).astype(dt.numpy_dtype(x_word))
    scale = np.array([0.5, 1, 2, 4]).astype(dt.numpy_dtype(scale_word))
    zero_point = np.array([0, 1, 2, 3], np.int8)
    v = np.rint(x.astype(np.float64) / scale.astype(np.float64)[None, :, None])
    out = call(find, "Quantize", "", [x, scale, zero_point], x.shape, "int8", "int8", "")
    np.testing.assert_array_equal(out, saturated(v, zero_point, "int8"))


@pytest.mark.parametrize("word", [*pointwise.QUANTIZED, "int32"])
@pytest.mark.parametrize("to", ["float32", "float16", "bfloat16"])
def test_dequantize_subtracts_in_integers_and_multiplies_once(find, word, to):
    rng = np.random.default_rng(11)
    for shape in [(1, 1, n) for n in SIZES] + [(2, 33, 1), (3, 5, 7), (2, 0, 3)]:
        x, zero_point = data(rng, word, shape), data(rng, word, shape[1])
        scale = rng.uniform(0.001, 0.1, shape[1]).astype(np.float32)
        difference = (x.astype(np.int64) - zero_point.astype(np.int64)[None, :, None]).astype(np.float32)
        with np.errstate(over="ignore"):
            expected = (difference * scale[None, :, None]).astype(dt.numpy_dtype(to))
        equal(call(find, "Dequantize", "", [x, scale, zero_point], shape, to, to), expected)


@pytest.mark.parametrize("word", pointwise.QUANTIZED)
def test_requantize_multiplies_in_float32(find, word):
    rng = np.random.default_rng(12)
    for shape in [(1, 1, n) for n in SIZES] + [(2, 33, 1), (3, 5, 7), (0, 2, 3)]:
        acc = rng.integers(-(2**20), 2**20, shape).astype(np.int32)
        acc.flat[:3] = [-(2**31), 2**31 - 1, 2**24 + 1][: acc.size]
        multiplier = rng.uniform(1e-5, 1e-3, shape[1]).astype(np.float32)
        zero_point = data(rng, word, shape[1])
        v = np.rint(acc.astype(np.float32) * multiplier[None, :, None]).astype(np.float64)
        out = call(find, "Requantize", "", [acc, multiplier, zero_point], shape, word, word, False)
        np.testing.assert_array_equal(out, saturated(v, zero_point, word))


# --- Reduce -----------------------------------------------------------------------------------------------


def lane_sum(row):
    lanes = np.zeros(16, row.dtype)
    for start in range(0, row.size, 16):
        part = row[start : start + 16]
        lanes[: part.size] += part
    for half in (8, 4, 2, 1):
        lanes[:half] += lanes[half : 2 * half].copy()
    return lanes[0]


@pytest.mark.parametrize("word", ["float32", "float64"])
def test_float_sum_has_the_documented_order(find, word):
    rng = np.random.default_rng(13)
    sequential = True
    for n in (*SIZES, 100, 1000):
        x = data(rng, word, (2, 3, n))
        out = call(find, "Reduce", "sum", [x], (2, 3), word)
        np.testing.assert_array_equal(out.ravel(), [lane_sum(row) for row in x.reshape(6, n)])
        in_sequence = np.add.accumulate(x.reshape(6, n), axis=1)[:, -1] if n else np.zeros(6)
        sequential &= np.array_equal(out.ravel(), in_sequence)
    assert not sequential


@pytest.mark.parametrize("word", [*dt.FLOATS, *dt.INTS])
def test_reductions_match_numpy_and_have_identities(find, word):
    rng = np.random.default_rng(14)
    is_float = dt.is_float(word)
    low, high = (-math.inf, math.inf) if is_float else dt.limits(word)
    for n in SIZES:
        x = rng.integers(0, 5, (4, n)).astype(dt.numpy_dtype(word)) if is_float else data(rng, word, (4, n))
        total = x.astype(np.float64).sum(1).astype(x.dtype) if is_float else np.sum(x, axis=1, dtype=x.dtype)
        assert call(find, "Reduce", "sum", [x], (4,), word).tolist() == total.tolist()
        assert call(find, "Reduce", "max", [x], (4,), word).tolist() == [max(row, default=low) for row in x.tolist()]
        assert call(find, "Reduce", "min", [x], (4,), word).tolist() == [min(row, default=high) for row in x.tolist()]
    assert call(find, "Reduce", "max", [np.ones((0, 3), x.dtype)], (0,), word).size == 0
    if is_float:
        poisoned = np.array([[1, math.nan, 2], [math.nan, math.nan, 1]]).astype(x.dtype)
        for fn in ("sum", "max", "min"):
            assert np.isnan(call(find, "Reduce", fn, [poisoned], (2,), word)).all()
    assert call(find, "Reduce", "sum", [np.ones(5, x.dtype)], (), word).tolist() == 5


# --- The table --------------------------------------------------------------------


def test_every_primitive_has_a_kernel():
    have = {(k.primitive, k.fn) for k in cpu.kernels()}
    want = {(name, fn) for name, row in PRIMITIVES.items() for fn in row.fns} - {("DataMove", "reshape")}
    assert want - have == set()
    assert have - want == set()
