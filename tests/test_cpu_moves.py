"""Im2col, DataMove, Gather, Scatter of the CPU against numpy: every bit arrives where it should, and nowhere else."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from opgauge.backends import cpu
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.executor import finder


@pytest.fixture(scope="module")
def find():
    return finder(cpu.kernels())


def call(find, primitive, fn, inputs, shape, dtype, *attrs):
    """The kernel's answer in memory that was poisoned before, with guards on both sides that must survive."""
    kind = dt.numpy_dtype(dtype)
    inputs = [np.asarray(x) for x in inputs]
    size = math.prod(shape) * kind.itemsize
    memory = np.full(size + 128, 0xA5, np.uint8)
    out = memory[64 : 64 + size].view(kind).reshape(shape)
    find(primitive, fn, ("*",)).call(*inputs, out, *attrs)
    assert (memory[:64] == 0xA5).all()
    assert (memory[64 + size :] == 0xA5).all()
    return out


def data(rng, word, shape):
    """Random bytes as elements, so that NaN and the sign of zero are among them."""
    kind = dt.numpy_dtype(word)
    top = 2 if word == "bool" else 256
    return rng.integers(0, top, (*shape, kind.itemsize), np.uint8).view(kind)[..., 0].copy()


def equal(actual, expected):
    """The same bytes."""
    assert actual.shape == expected.shape
    assert actual.tobytes() == np.ascontiguousarray(expected).tobytes()


def im2col_by_index(x, pad_value, kernel_shape, strides, dilations, pads, out_shape):
    out = np.empty((*x.shape[:2], math.prod(kernel_shape), math.prod(out_shape)), x.dtype)
    for k, tap in enumerate(np.ndindex(*kernel_shape)):
        for l, place in enumerate(np.ndindex(*out_shape)):
            at = [p * s - b + t * d for p, s, b, t, d in zip(place, strides, pads, tap, dilations, strict=False)]
            inside = all(0 <= i < n for i, n in zip(at, x.shape[2:], strict=True))
            out[:, :, k, l] = x[(slice(None), slice(None), *at)] if inside else pad_value
    return out


@pytest.mark.parametrize("word", ["uint8", "int8", "float16", "bfloat16", "float32", "float64"])
def test_im2col_reads_every_window_in_one_two_and_three_dimensions(find, word):
    rng = np.random.default_rng(15)
    for trial in range(60):
        rank = 1 + trial % 3
        n, c = (int(v) for v in rng.integers(0 if trial % 7 == 0 else 1, 3, 2))
        spatial = tuple(int(v) for v in rng.integers(1, 12 - 2 * rank, rank))
        kernel_shape, strides, dilations = (tuple(int(v) for v in rng.integers(1, 4, rank)) for _ in range(3))
        pads = tuple(int(v) for v in rng.integers(-1, 4, 2 * rank))
        # Up to two positions more than fit, as ceil_mode asks for.
        out_shape = tuple(int(v) for v in rng.integers(0 if trial % 11 == 0 else 1, 8 - rank, rank))
        x, pad_value = data(rng, word, (n, c, *spatial)), data(rng, word, ())
        geometry = (kernel_shape, strides, dilations, pads, out_shape)
        expected = im2col_by_index(x, pad_value, *geometry)
        equal(call(find, "Im2col", "", [x, pad_value], expected.shape, word, *geometry), expected)


@pytest.mark.parametrize("word", ["int8", "bfloat16", "float32", "int64", "bool"])
def test_moves_keep_every_bit(find, word):
    rng = np.random.default_rng(16)

    def moved(fn, inputs, expected, *attrs):
        equal(call(find, "DataMove", fn, inputs, expected.shape, word, *attrs), expected)

    for shape in [(), (1,), (33,), (3, 7), (2, 3, 5), (4, 0, 2), (2, 3, 4, 5)]:
        x = data(rng, word, shape)
        moved("copy", [x], x)
        for _ in range(3):
            perm = tuple(int(p) for p in rng.permutation(len(shape)))
            moved("transpose", [x], x.transpose(perm), perm)
        moved("concat", [x[None], x[None], x[None][:0]], np.stack([x, x]), 0)
        if shape:
            moved("concat", [x, x], np.concatenate([x, x], -1), len(shape) - 1)
        wide = tuple(4 if d == 1 else d for d in shape)
        moved("expand", [x], np.broadcast_to(x, wide), wide)
    x = data(rng, word, (5, 7))
    down, up = [(4, 0, -2), (4, -1, -3), (3, -1, -1)], [(1, 6, 3), (2, 2, 1), (0, 7, 7)]
    for rows, columns in [*zip(down, up, strict=True), ((0, 5, 1), (6, -1, -1))]:
        starts, ends, steps = zip(rows, columns, strict=True)
        moved("slice", [x], x[np.ix_(range(*rows), range(*columns))], starts, ends, steps)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad_crops_then_pads_as_numpy_does(find, mode):
    rng = np.random.default_rng(17)
    for shape, pads in [
        ((5, 7), (1, 2, 3, 4)),
        ((5, 7), (0, 0, 0, 0)),
        ((5, 7), (-1, 2, 3, -2)),
        ((5, 7), (-2, -1, -1, -3)),
        ((3,), (2, 2)),
        ((4, 6, 5), (0, 3, 1, 2, -1, 4)),
        ((), ()),
    ]:
        x, value = data(rng, "float32", shape), data(rng, "float32", ())
        rank = len(shape)
        crop = tuple(slice(max(-pads[i], 0), shape[i] - max(-pads[rank + i], 0)) for i in range(rank))
        width = [(max(pads[i], 0), max(pads[rank + i], 0)) for i in range(rank)]
        extra = {"constant_values": value} if mode == "constant" else {}
        expected = np.pad(x[crop], width, mode=mode, **extra) if rank else x
        equal(call(find, "DataMove", "pad", [x, value], expected.shape, "float32", pads, mode), expected)
    if mode == "constant":
        x = np.ones((2, 3), np.int8)
        out = call(find, "DataMove", "pad", [x, np.int8(7)], (1, 2), "int8", (-3, 1, 2, -2), mode)
        assert out.tolist() == [[7, 7]]


def test_gather_counts_negative_indices_from_the_end_and_names_bad_ones(find):
    rng = np.random.default_rng(18)
    shapes = [(1, 256, 1), (3, 5, 7), (2, 1, 33), (0, 2, 3)]
    for word, (O, L, I) in itertools.product(["uint8", "bfloat16", "float32", "int64"], shapes):
        x, indices = data(rng, word, (O, L, I)), rng.integers(-L, L, 20)
        equal(call(find, "Gather", "", [x, indices], (O, 20, I), word), x[:, indices, :])
    x = np.zeros((1, 5, 1), np.uint8)
    assert call(find, "Gather", "", [x, np.zeros(0, np.int64)], (1, 0, 1), "uint8").size == 0
    for bad in (5, -6):
        with pytest.raises(IndexError, match=f"index {bad} is out of range for an axis of 5"):
            call(find, "Gather", "", [x, np.array([0, bad])], (1, 2, 1), "uint8")


def places(rng, batch, count, sizes):
    """Index tuples [batch, count, r], half of them counted from the end, and the flat places that they name."""
    at = np.stack([rng.integers(0, n, (batch, count)) for n in sizes], -1)
    flat = np.ravel_multi_index(tuple(np.moveaxis(at, -1, 0)), sizes)
    return np.where(rng.integers(0, 2, at.shape) == 1, at - np.asarray(sizes), at), flat


@pytest.mark.parametrize("word", ["uint8", "bfloat16", "float32", "int64", "bool"])
def test_tuples_gather_and_scatter_by_bits(find, word):
    rng = np.random.default_rng(19)
    for batch, sizes, width, count in [(1, (5,), 1, 9), (3, (4, 2), 3, 5), (2, (2, 3, 2), 0, 4), (2, (3,), 2, 0)]:
        x = data(rng, word, (batch, *sizes, width))
        at, flat = places(rng, batch, count, sizes)
        rows = x.reshape(batch, math.prod(sizes), width)
        expected = np.stack([rows[b, flat[b]] for b in range(batch)])
        equal(call(find, "Gather", "nd", [x, at], expected.shape, word), expected)
        # Distinct places: what two updates of one place leave is nobody's business.
        at, flat = places(rng, batch, min(count, 1), sizes)
        updates = data(rng, word, (batch, min(count, 1), width))
        expected = rows.copy()
        for b in range(batch):
            expected[b, flat[b]] = updates[b]
        equal(call(find, "Scatter", "none", [x, at, updates], x.shape, word), expected.reshape(x.shape))
    for primitive, inputs in (("Gather", []), ("Scatter", [np.zeros((1, 1, 1), np.uint8)])):
        fn = "nd" if primitive == "Gather" else "none"
        with pytest.raises(IndexError, match="index -4 is out of range for an axis of 3"):
            call(find, primitive, fn, [np.zeros((1, 3, 1), np.uint8), np.array([[[-4]]]), *inputs], (1, 3, 1), "uint8")


@pytest.mark.parametrize(("fn", "combine"), [("add", np.add), ("mul", np.multiply), ("max", max), ("min", min)])
@pytest.mark.parametrize("word", ["float32", "float64", "int8", "int64"])
def test_reducing_scatters_take_every_update_in_order(find, fn, combine, word):
    rng = np.random.default_rng(20)
    x = rng.integers(-3, 4, (2, 4, 3)).astype(word)
    at, flat = places(rng, 2, 7, (4,))
    updates = rng.integers(-2, 3, (2, 7, 3)).astype(word)
    expected = x.copy()
    for b, n, i in np.ndindex(2, 7, 3):
        expected[b, flat[b, n], i] = combine(expected[b, flat[b, n], i], updates[b, n, i])
    equal(call(find, "Scatter", fn, [x, at, updates], x.shape, word), expected)
