"""Transposed convolutions, packed and dynamic weights, Einsum, attention: against numpy, onnx, loops written out."""

import math
from functools import partial

import numpy as np
import one_node
import pytest

from opgauge.reference_engine.errors import ModelError, ShapeError, UnknownOperatorError

exacts, ours, onnx_says = (partial(f, opset=23) for f in (one_node.exacts, one_node.ours, one_node.onnx_says))

F = np.float32
MS = "com.microsoft"
RNG = np.random.default_rng(5)


def normal(*shape, dtype=F):
    return RNG.normal(size=shape).astype(dtype)


def transposed_by_hand(x, w, *, strides, dilations, pads, extra=(0, 0), group=1):
    """Every input element scattered over the output, as the standard describes it."""
    (n, c, *size), (_, per, *kernel) = x.shape, w.shape
    full = [
        s * (d - 1) + e + (k - 1) * a + 1 for d, s, e, k, a in zip(size, strides, extra, kernel, dilations, strict=True)
    ]
    y = np.zeros((n, per * group, *full))
    for channel in range(c):
        g = channel // (c // group)
        for at in np.ndindex(*size):
            for tap in np.ndindex(*kernel):
                place = tuple(i * s + t * a for i, s, t, a in zip(at, strides, tap, dilations, strict=True))
                y[(slice(None), slice(g * per, (g + 1) * per), *place)] += (
                    x[(slice(None), channel, *at)][:, None] * w[(channel, slice(None), *tap)]
                )
    return y[:, :, pads[0] : full[0] - pads[2], pads[1] : full[1] - pads[3]]


@pytest.mark.parametrize(
    ("strides", "dilations", "pads", "extra", "group"),
    [
        ((1, 1), (1, 1), (0, 0, 0, 0), (0, 0), 1),
        ((2, 3), (1, 1), (1, 0, 0, 1), (1, 2), 1),
        ((1, 2), (3, 1), (2, 1, 1, 0), (0, 0), 2),
        ((1, 1), (1, 1), (2, 1, 2, 1), (0, 0), 2),
    ],
)
def test_a_transposed_convolution_scatters_every_element(strides, dilations, pads, extra, group):
    x, w = normal(2, 4, 5, 4), normal(4, 3, 3, 2)
    if pads == (2, 1, 2, 1):
        w = normal(4, 3, 1, 1)  # begins inside the data: pads beyond the kernel crop
    y = ours("ConvTranspose", x, w, strides=strides, dilations=dilations, pads=pads, output_padding=extra, group=group)
    expected = transposed_by_hand(x, w, strides=strides, dilations=dilations, pads=pads, extra=extra, group=group)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "attrs",
    [{"output_shape": [9, 8]}, {"auto_pad": "SAME_LOWER"}, {"output_shape": [9, 7], "auto_pad": "SAME_UPPER"}, {}],
)
def test_output_shape_and_automatic_padding_are_those_of_onnx(attrs):
    x, w, b = normal(1, 2, 4, 4), normal(2, 3, 3, 3), normal(3)
    y = ours("ConvTranspose", x, w, b, strides=[2, 2], **attrs)
    assert y.shape[2:] == tuple(attrs.get("output_shape", (8, 8) if attrs else (9, 9)))
    if "output_shape" not in attrs:
        np.testing.assert_allclose(
            y, onnx_says("ConvTranspose", x, w, b, strides=[2, 2], **attrs), rtol=1e-5, atol=1e-5
        )


def test_a_transposed_convolution_refuses_what_does_not_fit():
    x, w = normal(1, 2, 4), normal(2, 3, 3)
    with pytest.raises(UnknownOperatorError, match="larger"):
        ours("ConvTranspose", x, w, output_shape=[7])
    with pytest.raises(ShapeError, match="groups"):
        ours("ConvTranspose", x, normal(3, 3, 3))
    with pytest.raises(ShapeError, match="leave nothing"):
        ours("ConvTranspose", x, w, pads=[4, 4])


def test_fused_matmul_moves_batches_then_swaps():
    a, b = normal(4, 2, 3, 5), normal(2, 3, 6, 5)
    y = ours("FusedMatMul", a, b, domain=MS, transBatchA=1, transB=1, alpha=0.5)
    expected = 0.5 * np.matmul(a.transpose(1, 2, 0, 3), b.swapaxes(-1, -2))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero", ["none", "packed", "float"])
def test_packed_weights_are_unpacked_lowest_bits_first(bits, zero):
    K, N, block = 40, 3, 16
    blocks = math.ceil(K / block)
    q = RNG.integers(0, 1 << bits, (N, blocks * block))
    fields = 8 // bits
    packed = sum(q[:, i::fields] << (bits * i) for i in range(fields)).astype(np.uint8)
    scales = np.abs(normal(N, blocks)) + F(0.1)
    a = normal(2, K)
    zeros = RNG.integers(0, 1 << bits, (N, blocks))
    given = None
    if zero == "packed":
        wide = np.pad(zeros, ((0, 0), (0, -blocks % fields)))
        given = sum(wide[:, i::fields] << (bits * i) for i in range(fields)).astype(np.uint8).ravel()
    elif zero == "float":
        given = zeros.astype(F)
    else:
        zeros = np.full((N, blocks), 1 << (bits - 1))
    weights = (q.reshape(N, blocks, block) - zeros[:, :, None]) * scales[:, :, None]
    y = ours(
        "MatMulNBits",
        a,
        packed.reshape(N, blocks, -1),
        scales.ravel(),
        given,
        domain=MS,
        K=K,
        N=N,
        bits=bits,
        block_size=block,
    )
    np.testing.assert_allclose(y, a @ weights.reshape(N, -1)[:, :K].T, rtol=1e-4, atol=1e-4)


def test_at_accuracy_level_4_a_quantized_operand_is_honest_and_below_it_is_not():
    K, N, block = 64, 5, 32
    q, scales, a = RNG.integers(0, 256, (N, 2, 16)).astype(np.uint8), np.abs(normal(N * 2)) + F(0.1), normal(3, K)
    sets = {
        level: exacts("MatMulNBits", a, q, scales, domain=MS, K=K, N=N, bits=4, block_size=block, accuracy_level=level)[
            0
        ]
        for level in (0, 4)
    }
    step = np.abs(a.reshape(3, 2, block)).max(-1, keepdims=True) / F(127)
    coarse = (np.rint(a.reshape(3, 2, block) / step) * step).reshape(3, K).astype(F)
    y = ours("MatMulNBits", coarse, q, scales, domain=MS, K=K, N=N, bits=4, block_size=block)
    inside = {level: ((y >= e.lo) & (y <= e.hi)).all() for level, e in sets.items()}
    assert inside == {0: False, 4: True}


def test_dynamic_quantization_is_staged_and_its_ties_widen_the_set():
    a, b = normal(3, 20), RNG.integers(-90, 90, (20, 4)).astype(np.int8)
    (e,) = exacts("DynamicQuantizeMatMul", a, b, F(0.05), np.int8(3), normal(4), domain=MS)
    low, high = min(a.min(), 0), max(a.max(), 0)
    scale = (high - low) / F(255)
    zero = np.rint(-low / scale)
    q = np.clip(np.rint(a / scale) + zero, 0, 255)
    assert (e.hi - e.lo < 1e-3).all()
    rounded = ((q - zero) @ (b.astype(int) - 3)) * (scale * F(0.05))
    bias = e.value[0] - rounded[0]
    np.testing.assert_allclose(e.value, rounded + bias, rtol=1e-5, atol=1e-5)
    tied = np.asarray([[255.0, 100.5]], F)  # scale 1 up to its own roundings: 100 and 101 are both honest
    (e,) = exacts("DynamicQuantizeMatMul", tied, np.asarray([[1], [3]], np.int8), F(1), domain=MS)
    assert e.lo[0, 0] <= 255 + 300
    assert e.hi[0, 0] >= 255 + 303


def test_scaled_integer_products_and_quantized_joins():
    a, b = np.asarray([[3, 5]], np.uint8), np.asarray([[2], [4]], np.int8)
    y = ours("MatMulIntegerToFloat", a, b, F(0.5), F([2]), np.uint8(1), np.int8(1), F([10]), domain=MS)
    assert y.tolist() == [[10 + (2 * 1 + 4 * 3) * 1.0]]
    x = np.asarray([[10, 12]], np.uint8)
    joined = ours("QLinearConcat", F(1), np.uint8(0), x, F(0.5), np.uint8(5), x, F(1), np.uint8(0), domain=MS, axis=-1)
    assert joined.tolist() == [[2, 4, 10, 12]]  # 2.5 and 3.5 are ties, to even
    chosen = ours(
        "QLinearWhere",
        np.asarray([[True, False]]),
        x,
        F(0.5),
        np.uint8(5),
        x,
        F(1),
        np.uint8(0),
        F(1),
        np.uint8(0),
        domain=MS,
    )
    assert chosen.tolist() == [[2, 12]]
    with pytest.raises(ModelError, match="triples"):
        ours("QLinearConcat", F(1), np.uint8(0), x, F(1), domain=MS, axis=0)


EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("ij->", (3, 4)), ("abc->ca", (2, 3, 4)), ("ba", (2, 3)), ("i,j->ij", (3,), (4,)), ("ij,jk", (2, 3), (3, 4)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)), ("...i->...", (2, 3)), ("ab,bc,cd->ad", (2, 3), (3, 4), (4, 2)),
    ("ij,k->jk", (2, 3), (4,)), ("ij,ij->ij", (2, 3), (2, 3)), ("bij , bjk -> bik", (2, 2, 3), (2, 3, 2)),
]  # fmt: skip


@pytest.mark.parametrize("case", EQUATIONS, ids=[c[0] for c in EQUATIONS])
def test_einsum_is_numpys(case):
    equation, *shapes = case
    xs = [normal(*s) for s in shapes]
    np.testing.assert_allclose(
        ours("Einsum", *xs, equation=equation), np.einsum(equation.replace(" ", ""), *xs), rtol=1e-4, atol=1e-5
    )
    whole = [RNG.integers(-9, 9, s) for s in shapes]
    assert np.array_equal(ours("Einsum", *whole, equation=equation), np.einsum(equation.replace(" ", ""), *whole))


@pytest.mark.parametrize(
    ("equation", "error"),
    [
        ("ii->i", UnknownOperatorError),
        ("ij->ik", ModelError),
        ("i1->i", ModelError),
        ("ijk->i", ShapeError),
        ("ij,jk->ik", ModelError),
    ],
)
def test_einsum_refuses_what_it_cannot_read(equation, error):
    with pytest.raises(error):
        ours("Einsum", normal(3, 3), equation=equation)


def attention_by_hand(q, k, v, mask=None, causal=False, scale=None, softcap=0.0):
    scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = softcap * np.tanh(scores / softcap) if softcap else scores
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:])), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    e = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-30) @ v


@pytest.mark.parametrize(
    "options",
    [{}, {"scale": 0.3}, {"softcap": 2.0}, {"causal": True}, {"mask": "bool"}, {"mask": "float", "softcap": 1.5}],
)
def test_attention_is_its_equation(options):
    q, k, v = normal(2, 3, 4, 8), normal(2, 3, 4, 8), normal(2, 3, 4, 5)
    mask = None
    if options.get("mask") == "bool":
        mask = RNG.random((4, 4)) < 0.6
        mask[1] = False  # a row without any key is 0
    elif options.get("mask"):
        mask = normal(4, 4)
    attrs = {n: v for n, v in options.items() if n in ("scale", "softcap")} | (
        {"is_causal": 1} if options.get("causal") else {}
    )
    expected = attention_by_hand(
        *(x.astype(np.float64) for x in (q, k, v)),
        mask,
        options.get("causal", False),
        options.get("scale"),
        options.get("softcap", 0.0),
    )
    (e,) = exacts("Attention", q, k, v, mask, **attrs)
    assert e.free is None
    assert (e.hi - e.lo < 1e-3).all()
    np.testing.assert_allclose(e.value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("low", [-1e4, -1e9, -1e30, np.finfo(np.float32).min])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_keys_that_a_large_negative_number_hides_do_not_blur_the_others(low, softcap):
    """Its sum with a score is off by 64 and more, but neither the largest of the row nor above 0 after exp."""
    q, k, v = normal(1, 1, 3, 4), normal(1, 1, 5, 4), normal(1, 1, 5, 3)
    seen = np.arange(5)[None, :] <= np.arange(3)[:, None]
    mask = np.where(seen, 0.0, low).astype(np.float32)
    (e,) = exacts("Attention", q, k, v, mask, softcap=softcap)
    assert e.free is None
    assert (e.hi - e.lo < 1e-4).all()
    expected = attention_by_hand(q, k, v, seen, softcap=softcap)
    np.testing.assert_allclose(e.value, expected, rtol=1e-5, atol=1e-6)


def test_attention_windows_bound_what_a_query_sees():
    q, k, v = normal(1, 1, 4, 8), normal(1, 1, 6, 8), normal(1, 1, 6, 3)
    at, key = np.arange(4)[:, None], np.arange(6)[None, :]
    seen = (key >= at - 2) & (key <= at + 1)
    y = ours("Attention", q, k, v, opset=25, left_window_size=2, right_window_size=1)
    np.testing.assert_allclose(y, attention_by_hand(q, k, v, seen), rtol=1e-4, atol=1e-5)
    causal = ours("Attention", q, k, v, opset=25, left_window_size=2, right_window_size=1, is_causal=1)
    np.testing.assert_allclose(causal, attention_by_hand(q, k, v, seen & (key <= at)), rtol=1e-4, atol=1e-5)
    with pytest.raises(UnknownOperatorError, match="left_window_size"):
        ours("Attention", q, k, v, opset=24, left_window_size=2)


def test_attention_groups_heads_joins_a_cache_and_takes_flat_inputs():
    q, k, v = normal(1, 4, 3, 8), normal(1, 2, 5, 8), normal(1, 2, 5, 6)
    shared = [np.repeat(x, 2, 1) for x in (k, v)]
    expected = attention_by_hand(q, *shared)
    np.testing.assert_allclose(ours("Attention", q, k, v), expected, rtol=1e-4, atol=1e-5)
    cached = ours("Attention", q, k[:, :, 2:], v[:, :, 2:], None, k[:, :, :2], v[:, :, :2], outputs=3)
    np.testing.assert_allclose(cached[0], expected, rtol=1e-4, atol=1e-5)
    assert np.array_equal(cached[1], k)
    assert np.array_equal(cached[2], v)
    flat = [x.transpose(0, 2, 1, 3).reshape(1, x.shape[2], -1) for x in (q, k, v)]
    y = ours("Attention", *flat, q_num_heads=4, kv_num_heads=2)
    np.testing.assert_allclose(y, expected.transpose(0, 2, 1, 3).reshape(1, 3, -1), rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError, match="number of heads"):
        ours("Attention", *flat)


@pytest.mark.parametrize("attrs", [{}, {"interleaved": 1}, {"rotary_embedding_dim": 4}])
def test_rotary_embeddings_are_onnxs(attrs):
    half = attrs.get("rotary_embedding_dim", 8) // 2
    x, cos, sin = normal(2, 3, 5, 8), normal(20, half), normal(20, half)
    ids = RNG.integers(0, 20, (2, 5))
    np.testing.assert_allclose(
        ours("RotaryEmbedding", x, cos, sin, ids, **attrs),
        onnx_says("RotaryEmbedding", x, cos, sin, ids, **attrs),
        rtol=1e-4,
        atol=1e-5,
    )
    flat = x.transpose(0, 2, 1, 3).reshape(2, 5, 24)
    y = ours("RotaryEmbedding", flat, cos[ids], sin[ids], num_heads=3, **attrs)
    np.testing.assert_allclose(
        y, onnx_says("RotaryEmbedding", flat, cos[ids], sin[ids], num_heads=3, **attrs), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(ShapeError, match="num_heads"):
        ours("RotaryEmbedding", flat, cos, sin, ids)
