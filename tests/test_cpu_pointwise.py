"""Element-wise CPU kernels beyond arithmetic: functions, remainders, powers, comparisons, bits, narrow types."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opgauge.backends import cpu
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.executor import finder

SIZES = (0, 1, 7, 16, 17, 33)
SPECIAL = [0.0, -0.0, 1e-40, 0.5, -1.0, 1.0, 3e38, math.inf, -math.inf, math.nan]
pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def find():
    return finder(cpu.kernels())


def call(find, primitive, fn, inputs, dtype, *attrs):
    words = (*(dt.word_of(x.dtype) for x in inputs), dtype)
    out = np.zeros(inputs[0].shape, dt.numpy_dtype(dtype))
    out.view(np.uint8).fill(0x5A)
    kernel = find(primitive, fn, words)
    assert kernel is not None, (primitive, fn, words)
    kernel.call(*inputs, out, *attrs)
    return out


def numbers(word, n, seed=0):
    rng = np.random.default_rng(seed + n)
    if dt.is_float(word):
        x = rng.normal(0, 3, n)
        x[: len(SPECIAL)] = SPECIAL[:n]
        with np.errstate(all="ignore"):
            return x.astype(dt.numpy_dtype(word))
    low, high = dt.limits(word)
    return rng.integers(max(low, -(2**40)), min(high, 2**40), n, endpoint=True).astype(dt.numpy_dtype(word))


TRUE = {
    **{name: getattr(math, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh")},
    **{name: getattr(math, name) for name in ("asinh", "acosh", "atanh")},
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
}


def true_value(fn, v):
    """The C library's value, NaN outside the domain and infinities where they belong."""
    if fn in ("floor", "ceil", "round", "asinh", "sinh") and math.isinf(v):
        return v
    if fn == "atanh" and abs(v) == 1:
        return math.copysign(math.inf, v)
    try:
        return math.nan if math.isnan(v) else TRUE[fn](v)
    except OverflowError:
        return -math.inf if fn == "sinh" and v < 0 else math.inf
    except ValueError:
        return math.nan


@pytest.mark.parametrize("word", dt.FLOATS)
@pytest.mark.parametrize("fn", sorted(TRUE))
def test_functions_are_those_of_the_c_library_rounded_once(find, fn, word):
    x = numbers(word, 300)
    if fn in ("asin", "acos", "atanh"):
        x[20:] = (x[20:].astype(np.float64) / 20).astype(x.dtype)
    out = call(find, "Elementwise", fn, [x], word).astype(np.float64)
    true = np.array([true_value(fn, v) for v in x.astype(np.float64).tolist()], np.float64)
    with np.errstate(all="ignore"):
        near = dt.narrow(true, word).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(near))
    same = (out == near) | np.isnan(near)
    with np.errstate(invalid="ignore"):  # two C libraries may differ by an ulp or two of float64
        same = same if word != "float64" else same | (np.abs(out - near) <= 4e-16 * np.maximum(np.abs(near), 1e-300))
    assert same.all()


@pytest.mark.parametrize("word", dt.INTS)
def test_integer_remainders_have_the_sign_of_the_divisor_or_of_the_dividend(find, word):
    for n in SIZES:
        x, y = numbers(word, n), numbers(word, n, seed=1)
        floored = [a - b * (a // b) if b else 0 for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        cut = [int(math.copysign(abs(a) % abs(b), a)) if b else 0 for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        assert call(find, "Elementwise", "mod", [x, y], word).tolist() == floored
        assert call(find, "Elementwise", "fmod", [x, y], word).tolist() == cut
    zero = np.zeros(3, dt.numpy_dtype(word))
    assert call(find, "Elementwise", "mod", [zero + 1, zero], word).tolist() == [0, 0, 0]


@pytest.mark.parametrize("word", dt.FLOATS)
def test_float_remainders_are_exact(find, word):
    x, y = numbers(word, 40), np.abs(numbers(word, 40, seed=3)) + dt.numpy_dtype(word).type(1)
    out = call(find, "Elementwise", "fmod", [x, y], word).astype(np.float64)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out, np.fmod(x.astype(np.float64), y.astype(np.float64)))


def test_powers_are_rounded_once_and_integers_wrap(find):
    x, y = np.abs(numbers("float32", 300)), numbers("float32", 300, seed=9)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(call(find, "Elementwise", "pow", [x, y], "float32"), expected)
    whole = [np.array(v, np.int32) for v in ([2, -3, 7, 5, 3], [10, 3, 0, -1, 40])]
    assert call(find, "Elementwise", "pow", whole, "int32").tolist()[:4] == [1024, -27, 1, 0]


@pytest.mark.parametrize("word", [*dt.FLOATS, *dt.INTS])
def test_comparisons_are_those_of_the_numbers(find, word):
    for n in SIZES:
        x = numbers(word, n)
        y = np.where(np.arange(n) % 3 == 0, x, numbers(word, n, seed=2)).astype(x.dtype)
        a, b = x.astype(np.float64), y.astype(np.float64)
        for fn, right in {"equal": a == b, "less": a < b, "less_or_equal": a <= b}.items():
            assert call(find, "Elementwise", fn, [x, y], "bool").tolist() == right.tolist()


@pytest.mark.parametrize("word", [*dt.INTS, "bool"])
def test_bits(find, word):
    x = numbers(word, 33) if word != "bool" else np.arange(33) % 2 == 0
    y = numbers(word, 33, seed=4) if word != "bool" else np.arange(33) % 3 == 0
    for fn, expected in {"and": x & y, "or": x | y, "xor": x ^ y}.items():
        np.testing.assert_array_equal(call(find, "Elementwise", fn, [x, y], word), expected)
    np.testing.assert_array_equal(call(find, "Elementwise", "not", [x], word), ~x)


@pytest.mark.parametrize("word", ["uint8", "uint16", "uint32", "uint64"])
def test_shifts_drop_bits_and_reach_zero(find, word):
    kind = dt.numpy_dtype(word)
    width = 8 * kind.itemsize
    x = np.full(4, 2**width - 2, kind)
    by = np.array([0, 1, width - 1, width], kind)
    left = [(int(v) << int(s)) % 2**width for v, s in zip(x, by, strict=True)]
    assert call(find, "Elementwise", "shift_left", [x, by], word).tolist() == left
    assert call(find, "Elementwise", "shift_right", [x, by], word).tolist() == [
        int(v) >> int(s) for v, s in zip(x, by, strict=True)
    ]


# --- Narrow types ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", dt.SUBBYTE)
def test_quantizing_to_few_bits_rounds_half_to_even_and_saturates(find, word):
    low, high = dt.limits(word)
    x = (np.arange(-40, 40, dtype=np.float32) / 4).reshape(1, 2, 40)
    scale, zero = np.array([0.5, 1], np.float32), np.array([low + 1, high]).astype(dt.numpy_dtype(word))
    out = call(find, "Quantize", "", [x, scale, zero], word, word, "")
    wide = np.rint(x / scale[None, :, None]) + zero.astype(np.float64)[None, :, None]
    np.testing.assert_array_equal(out.astype(np.float64), np.clip(wide, low, high))
    back = call(find, "Dequantize", "", [out, scale, zero], "float32", "float32")
    expected = (out.astype(np.float64) - zero.astype(np.float64)[None, :, None]) * scale[None, :, None]
    np.testing.assert_array_equal(back, expected)


@pytest.mark.parametrize("word", dt.FLOAT8)
@pytest.mark.parametrize("saturate", [0, 1])
def test_quantizing_to_eight_bit_floats_rounds_once(find, word, saturate):
    top = dt.MAX[word]
    x = np.array([[[0.3, -1.1, top * 3, -top * 3, 1.0625 * 3, math.inf, math.nan]]], np.float32)
    scale, zero = np.array([3], np.float32), np.zeros(1, dt.numpy_dtype(word))
    out = call(find, "Quantize", "float8", [x, scale, zero], word, word, "", saturate).astype(np.float64)[0, 0]
    beyond = top if saturate else math.inf if word == "float8e5m2" else math.nan
    assert out[2:4].tolist() == [top, -top]
    np.testing.assert_array_equal(out[5:], [beyond, math.nan])
    assert out[4] == 1.0
    for seen, real in zip(out[:2], (0.1, -1.1 / 3), strict=True):
        assert abs(seen - real) <= dt.UNIT[word] * abs(real)


@pytest.mark.parametrize("source", [*dt.SUBBYTE, *dt.FLOAT8])
def test_every_narrow_number_survives_a_cast_and_comes_back(find, source):
    patterns = np.arange(256, dtype=np.uint8).view(dt.numpy_dtype(source))
    if source in dt.SUBBYTE:
        low, high = dt.limits(source)
        patterns = np.arange(low, high + 1).astype(dt.numpy_dtype(source))
    for through in ("float32", "float64", "float16"):
        wide = call(find, "Elementwise", "cast", [patterns], through, through)
        np.testing.assert_array_equal(wide.astype(np.float64), patterns.astype(np.float64))
        back = call(find, "Elementwise", "cast", [wide], source, source)
        np.testing.assert_array_equal(back.astype(np.float64), patterns.astype(np.float64))


def test_wide_integers_keep_their_low_bits_in_a_narrow_type(find):
    x = np.array([200, -1, 7, 8, 15, 16], np.int32)
    for word in dt.SUBBYTE:
        bits, low = dt.BITS[word], dt.limits(word)[0]
        expected = [v % 2**bits - (2**bits if low and v % 2**bits >= 2 ** (bits - 1) else 0) for v in x.tolist()]
        assert call(find, "Elementwise", "cast", [x], word, word).astype(int).tolist() == expected
