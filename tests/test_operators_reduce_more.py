"""Reductions, orders, normalisation and pooling: against numpy in float64, rules of ties and edges spelled out."""

import ml_dtypes
import numpy as np
import pytest
from one_node import exacts, ints, model, ours
from onnx import helper
from onnx.reference import ReferenceEvaluator

from opgauge.reference_engine.errors import ModelError, ShapeError, UnknownOperatorError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.operators.reduce import REDUCE

F = np.float32
MS = "com.microsoft"
RNG = np.random.default_rng(11)
OLDER = {
    "Softmax",
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "AveragePool",
    "GlobalAveragePool",
    "GlobalMaxPool",
}


def normal(*shape, dtype=F):
    return RNG.normal(size=shape).astype(dtype)


def same(actual, expected, **tolerance):
    for left, right in zip(*(x if isinstance(x, list) else [x] for x in (actual, expected)), strict=True):
        assert left.shape == np.shape(right)
        limits = {"rtol": 2e-5, "atol": 1e-6, **tolerance}
        np.testing.assert_allclose(left.astype(np.float64), np.asarray(right).astype(np.float64), **limits)


def local_response(x, size, alpha, beta, bias):
    """The window of channel c: floor((size - 1) / 2) channels below to ceil((size - 1) / 2) above."""
    squares = np.zeros(x.shape)
    for c in range(x.shape[1]):
        window = x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].astype(np.float64)
        squares[:, c] = (window**2).sum(1)
    return x / (bias + alpha / size * squares) ** beta


X = normal(2, 3, 4)
IMAGE = normal(2, 4, 5, 3)
AGREES = [
    *[
        (op, [X], {"axes": [1], "opset": 13})
        for op in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd", "ReduceLogSumExp")
    ],
    *[
        (op, [X, ints(0, -1)], {"keepdims": 0})
        for op in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd", "ReduceLogSumExp")
    ],
    ("ReduceLogSum", [np.abs(X), ints(2)], {}),
    ("ReduceProd", [RNG.integers(-3, 4, (3, 4)).astype(np.int64), ints(1)], {}),
    ("ReduceL2", [RNG.integers(-9, 9, (3, 4)).astype(np.int32), ints(1)], {}),
    ("LogSoftmax", [X], {"axis": 1}),
    ("Hardmax", [np.round(X)], {"axis": 1}),
    ("ArgMax", [np.round(X)], {"axis": -2, "select_last_index": 1, "keepdims": 0}),
    ("ArgMin", [np.round(X)], {}),
    ("CumSum", [X, np.array(1)], {"exclusive": 1, "reverse": 1}),
    ("CumSum", [X, np.array(-1, np.int32)], {"reverse": 1}),
    ("CumProd", [X, np.array(2)], {"exclusive": 1, "opset": 26}),
    ("TopK", [X, ints(2)], {"outputs": 2}),
    ("TopK", [X, ints(2)], {"outputs": 2, "axis": 1, "largest": 0}),
    ("LayerNormalization", [X, normal(4), normal(4)], {"outputs": 3}),
    ("LayerNormalization", [X, normal(3, 4)], {"axis": 1, "epsilon": 0.1}),
    ("RMSNormalization", [X, normal(4)], {"opset": 23}),
    ("GroupNormalization", [IMAGE, normal(4), normal(4)], {"num_groups": 2}),
    ("GroupNormalization", [IMAGE, normal(2), normal(2)], {"num_groups": 2, "opset": 18}),
    ("InstanceNormalization", [IMAGE, normal(4), normal(4)], {"epsilon": 0.01}),
    ("BatchNormalization", [IMAGE, normal(4), normal(4), normal(4), np.abs(normal(4))], {}),
    (
        "BatchNormalization",
        [IMAGE, normal(4), normal(4), normal(4), np.abs(normal(4))],
        {"training_mode": 1, "outputs": 3, "momentum": 0.7},
    ),
    ("MeanVarianceNormalization", [IMAGE], {}),
    ("LpNormalization", [X], {}),
    ("MaxPool", [normal(1, 1, 4, 5, 4)], {"kernel_shape": [2, 2, 3], "strides": [2, 1, 1]}),
    ("AveragePool", [normal(1, 2, 4, 4, 4)], {"kernel_shape": [2, 3, 2], "pads": [1, 0, 0, 0, 1, 1]}),
    ("LpPool", [IMAGE], {"kernel_shape": [2, 2]}),
    ("LpPool", [IMAGE], {"kernel_shape": [3, 2], "p": 3, "pads": [1, 0, 1, 0]}),
]


@pytest.mark.parametrize(("op", "inputs", "options"), AGREES, ids=[f"{i}-{row[0]}" for i, row in enumerate(AGREES)])
def test_lowering_agrees_with_the_evaluator_of_onnx(op, inputs, options):
    options = {"opset": 21, "outputs": 1, **options}
    attrs = {k: v for k, v in options.items() if k not in ("opset", "outputs")}
    proto, feeds = model(op, inputs, options["opset"], options["outputs"], **attrs)
    found = ReferenceEvaluator(proto).run(None, feeds)
    same(ours(op, *inputs, **options), found[0] if len(found) == 1 else found)


# What onnx's evaluator gets wrong (LRN looks at as many channels as there are images) or has not.
NUMPY = [
    ("LpNormalization", [X], {"axis": 1, "p": 1}, X / np.abs(X).sum(1, keepdims=True)),
    ("GlobalLpPool", [IMAGE], {"p": 3}, (np.abs(IMAGE) ** 3).sum((2, 3), keepdims=True) ** (1 / 3)),
    ("LRN", [IMAGE], {"size": 3, "alpha": 0.3, "beta": 0.6, "bias": 1.5}, local_response(IMAGE, 3, 0.3, 0.6, 1.5)),
    ("LRN", [IMAGE], {"size": 4}, local_response(IMAGE, 4, 1e-4, 0.75, 1.0)),
]


@pytest.mark.parametrize(
    ("op", "inputs", "options", "expected"), NUMPY, ids=[f"{i}-{row[0]}" for i, row in enumerate(NUMPY)]
)
def test_lowering_agrees_with_the_formula(op, inputs, options, expected):
    same(ours(op, *inputs, **options), expected)


def test_every_operator_of_the_family_is_compared():
    assert {row[0] for row in AGREES} | {row[0] for row in NUMPY} | OLDER == {op for domain, op in REDUCE if not domain}


@pytest.mark.parametrize(
    ("op", "row", "wrong"),
    [("CumSum", 0, {"exclusive": 0}), ("ArgMax", 0, {"select_last_index": 0}), ("LpPool", 1, {"p": 2})],
)
def test_a_wrong_attribute_is_seen(op, row, wrong):
    _, inputs, options = [r for r in AGREES if r[0] == op][row]
    proto, feeds = model(op, inputs, **options)
    with pytest.raises(AssertionError):
        same(ours(op, *inputs, **{**options, **wrong}), ReferenceEvaluator(proto).run(None, feeds)[0])


# Ties, places and what nothing decides.


def test_the_lower_index_wins_in_both_directions():
    x = F([3, 7, 1, 7, 1])
    for largest, expected in ((1, [1, 3, 0, 2, 4]), (0, [2, 4, 0, 1, 3])):
        assert ours("TopK", x, ints(5), outputs=2, largest=largest)[1].tolist() == expected
    assert ours("TopK", np.array([0, 255, 255], np.uint8), ints(2), outputs=2)[1].tolist() == [1, 2]


def test_an_unsorted_topk_decides_nothing_beyond_one_element():
    for k, free in ((1, False), (3, True)):
        made = exacts("TopK", X, ints(k), outputs=2, sorted=0)
        assert all((e.free is not None) is free for e in made)


@pytest.mark.parametrize(
    ("op", "inputs", "options"), [("ArgMax", [], {}), ("TopK", [ints(2)], {"outputs": 2}), ("Hardmax", [], {})]
)
def test_a_row_with_nan_has_no_order(op, inputs, options):
    x = F([[1, np.nan, 2], [3, 1, 2]])
    axis = {"axis": 1}
    for exact in exacts(op, x, *inputs, **axis, **options):
        assert exact.free is not None
        assert exact.free[0].all()
        assert not exact.free[1].any()


def test_a_running_sum_may_leave_its_own_element_out_in_either_direction():
    x = F([1, 2, 3])
    expected = {(0, 0): [1, 3, 6], (1, 0): [0, 1, 3], (0, 1): [6, 5, 3], (1, 1): [5, 3, 0]}
    for (exclusive, reverse), values in expected.items():
        assert ours("CumSum", x, np.array(0), exclusive=exclusive, reverse=reverse).tolist() == values
    assert ours("CumSum", np.zeros((2, 0), F), np.array(1), exclusive=1).shape == (2, 0)


def test_later_elements_of_a_running_sum_have_more_room():
    made = exacts("CumSum", normal(1000) * F(1.1), np.array(0))[0]
    width = (made.hi - made.lo)[[0, 10, 999]]
    assert width[0] == 0 < width[1] < width[2]


@pytest.mark.parametrize("storage_order", [0, 1])
def test_maxpool_indices_count_the_flat_tensor(storage_order):
    x = RNG.permutation(2 * 3 * 5 * 4).astype(F).reshape(2, 3, 5, 4)
    options = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1], "dilations": [2, 1], "outputs": 2}
    y, at = ours("MaxPool", x, storage_order=storage_order, **options)
    flat = x.reshape(2, 3, 20) if not storage_order else x.transpose(0, 1, 3, 2).reshape(2, 3, 20)
    assert (flat.reshape(-1)[at] == y).all()


def test_equal_elements_leave_the_index_of_maxpool_open():
    y, at = exacts("MaxPool", F([[[1, 5, 5, 2]]]), kernel_shape=[2], outputs=2)
    assert y.free is None
    assert at.free.tolist() == [[[False, True, False]]]


def test_reducing_nothing_gives_the_identity():
    empty = np.zeros((2, 0), F)
    for op, value in (
        ("ReduceProd", 1),
        ("ReduceL1", 0),
        ("ReduceL2", 0),
        ("ReduceLogSum", -np.inf),
        ("ReduceLogSumExp", -np.inf),
    ):
        assert ours(op, empty, ints(1)).tolist() == [[value], [value]]
    with pytest.raises(ShapeError, match="no element to pick"):
        ours("ArgMax", empty, axis=1)
    assert ours("ArgMax", np.zeros((0, 0), F), axis=1).shape == (0, 1)


def test_no_axes_still_apply_the_function_to_each_element():
    assert ours("ReduceL1", F([-2, 3]), ints(), noop_with_empty_axes=1).tolist() == [2, 3]
    assert ours("ReduceSum", F([-2, 3]), ints(), noop_with_empty_axes=1).tolist() == [-2, 3]


def test_the_logarithm_of_a_sum_of_exponentials_does_not_overflow():
    made = exacts(
        "ReduceLogSumExp", F([[200, 200], [-np.inf, -np.inf], [np.inf, 0], [np.nan, 0]]), ints(1), keepdims=0
    )[0]
    assert made.value[0] == F(200 + np.log(2))
    assert made.value[1] == -np.inf
    assert made.value[2] == np.inf
    assert made.nan.tolist() == [False, False, False, True]
    assert made.free is None


# Sets: as wide as honest kernels need, and no wider.


def two_pass(x, n=None, dtype=F):
    mean = x.mean(-1, keepdims=True, dtype=dtype)
    away = (x - mean).astype(dtype)
    return away / np.sqrt((away * away).sum(-1, keepdims=True, dtype=dtype) / dtype(n or x.shape[-1]) + dtype(1e-5))


def one_pass(x):
    mean = x.mean(-1, keepdims=True, dtype=F)
    variance = (x * x).mean(-1, keepdims=True, dtype=F) - mean * mean
    return (x - mean) / np.sqrt(np.maximum(variance, F(0)) + F(1e-5))


def expanded(x):
    mean = x.mean(-1, keepdims=True, dtype=F)
    rest = F(1) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True, dtype=F) + F(1e-5))
    return x * rest - mean * rest


def updated(x):
    """Welford's running mean and sum of squares."""
    mean, squares = np.zeros(x.shape[:-1], F), np.zeros(x.shape[:-1], F)
    for i in range(x.shape[-1]):
        away = x[..., i] - mean
        mean = mean + away / F(i + 1)
        squares = squares + away * (x[..., i] - mean)
    return (x - mean[..., None]) / np.sqrt(squares / F(x.shape[-1]) + F(1e-5))[..., None]


def no_epsilon(x):
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def halved(x):
    """Statistics in float16."""
    return two_pass(x.astype(np.float16), dtype=np.float16).astype(F)


LAYERS = [
    (two_pass, 0, True),
    (lambda x: two_pass(x, dtype=np.float64).astype(F), 0, True),
    (expanded, 0, True),
    (updated, 0, True),
    (two_pass, 1000, True),
    (expanded, 1000, True),
    (updated, 1000, True),
    (one_pass, 1000, False),
    (lambda x: two_pass(x, x.shape[-1] - 1), 0, False),  # the unbiased variance
    (no_epsilon, 0, False),
    (halved, 0, False),
]


@pytest.mark.parametrize(("kernel", "shift", "honest"), LAYERS)
def test_layer_normalization_accepts_honest_kernels_and_no_others(kernel, shift, honest):
    verdicts = []
    for width in (8, 33, 768):
        x = (RNG.normal(size=(40, width)) * (1 if shift else 0.1) + shift).astype(F)
        made = exacts("LayerNormalization", x, np.ones(width, F))[0]
        y = kernel(x)
        verdicts.append(bool(((made.lo <= y) & (y <= made.hi)).all()))
    assert all(verdicts) if honest else not all(verdicts)


def test_batch_normalization_accepts_both_of_its_forms():
    scale, bias, mean, var = normal(4), normal(4), normal(4), np.abs(normal(4))
    made = exacts("BatchNormalization", IMAGE, scale, bias, mean, var)[0]
    gain, middle, offset = (v[:, None, None] for v in (scale / np.sqrt(var + F(1e-5)), mean, bias))
    for y in ((IMAGE - middle) * gain + offset, IMAGE * gain + (offset - middle * gain)):
        assert ((made.lo <= y) & (y <= made.hi)).all()
    swapped = (IMAGE - offset) * gain + middle
    assert not ((made.lo <= swapped) & (swapped <= made.hi)).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bit_normalisation_may_round_each_step_or_once(dtype):
    x, scale, bias = (normal(*s).astype(dtype) for s in ((20, 16), (16,), (16,)))
    made = exacts("LayerNormalization", x, scale, bias)[0]
    first = two_pass(x.astype(F))
    once = (first * scale.astype(F) + bias.astype(F)).astype(dtype)
    each = (first.astype(dtype) * scale).astype(dtype) + bias
    for y in (once, each):
        wide = y.astype(np.float64)
        assert ((made.lo <= wide) & (wide <= made.hi)).all()


def test_a_variance_that_rounding_may_turn_negative_is_undecided():
    constant = np.full((1, 1, 1, 50), 0.1, F)
    made = exacts("MeanVarianceNormalization", constant)[0]
    assert made.free is not None
    assert made.free.all()


def test_a_norm_of_zero_gives_zero_where_the_standard_says_so():
    zero = np.zeros((2, 3), F)
    assert ours("LpNormalization", zero, opset=22).tolist() == zero.tolist()
    assert exacts("LpNormalization", zero, opset=13)[0].free.all()


def test_products_that_may_leave_the_range_on_the_way_are_undecided():
    free = exacts("ReduceProd", F([[1e30, 1e30, 1e-30], [1e-30, 1e-30, 1e30], [2, 3, 4], [1e30, 1e30, 1e30]]), ints(1))[
        0
    ].free
    assert free.tolist() == [[True], [True], [False], [False]]


# Quantized pooling and softmax.


def quantized(v, zero_point, dtype=np.uint8):
    info = np.iinfo(dtype)
    return np.clip(np.rint(v) + zero_point, info.min, info.max).astype(dtype)


U8 = RNG.integers(0, 256, (2, 3, 6, 6)).astype(np.uint8)


@pytest.mark.parametrize("channels_last", [0, 1])
def test_quantized_averages_are_those_of_the_real_numbers(channels_last):
    order = (0, 2, 3, 1) if channels_last else (0, 1, 2, 3)
    x = np.ascontiguousarray(U8.transpose(order))
    given = [x, F(0.5), np.uint8(100), F(0.75), np.uint8(90)]
    real = (U8.astype(np.float64) - 100) * 0.5 / 0.75
    whole = real.mean((2, 3), keepdims=True).transpose(order)
    assert (
        ours("QLinearGlobalAveragePool", *given, domain=MS, channels_last=channels_last).tolist()
        == quantized(whole, 90).tolist()
    )
    blocks = real.reshape(2, 3, 3, 2, 3, 2).mean((3, 5)).transpose(order)
    options = {"kernel_shape": [2, 2], "strides": [2, 2], "channels_last": channels_last}
    made = exacts("QLinearAveragePool", *given, domain=MS, **options)[0]
    expected = quantized(blocks, 90)
    assert ((made.lo <= expected) & (expected <= made.hi)).all()


def test_quantized_padding_is_real_zero():
    x = np.full((1, 1, 2), 200, np.uint8)
    y = ours(
        "QLinearAveragePool",
        x,
        F(1),
        np.uint8(100),
        F(1),
        np.uint8(0),
        domain=MS,
        kernel_shape=[2],
        pads=[1, 1],
        count_include_pad=1,
    )
    assert y.tolist() == [[[50, 100, 50]]]


@pytest.mark.parametrize(("opset", "axes"), [(13, 1), (12, (1, 2))])
def test_quantized_softmax_runs_along_what_its_opset_says(opset, axes):
    x = RNG.integers(0, 256, (2, 3, 4)).astype(np.int8)
    t = x.astype(np.float64) * 0.05
    e = np.exp(t - t.max(axes, keepdims=True))
    v = e / e.sum(axes, keepdims=True) * 256
    given = [x, F(0.05), np.int8(3), F(1 / 256), np.int8(-128)]
    proto, feeds = model("QLinearSoftmax", given, domain=MS, axis=1)
    proto.graph.node[0].attribute.append(helper.make_attribute("opset", opset))
    made = evaluate(lower(proto, feeds), feeds)[0]
    assert made.value.tolist() == quantized(v, -128, np.int8).tolist()


REFUSED = [
    ("TopK", [X, ints(9)], {"outputs": 2}, ShapeError, "K is"),
    ("GroupNormalization", [IMAGE, normal(4), normal(4)], {"num_groups": 3}, ShapeError, "do not divide"),
    ("GroupNormalization", [IMAGE, normal(2), normal(2)], {"num_groups": 2}, ShapeError, "one per channel"),
    ("LayerNormalization", [X, normal(5)], {}, ShapeError, "does not broadcast"),
    ("LayerNormalization", [X, normal(4)], {"stash_type": 10}, UnknownOperatorError, "stash_type"),
    ("LpNormalization", [X], {"p": 3}, ModelError, "p is 3"),
    ("LpPool", [IMAGE], {"kernel_shape": [2, 2], "p": 0}, ModelError, "p is 0"),
    ("BatchNormalization", [IMAGE, normal(4), normal(4), normal(4), normal(3)], {}, ShapeError, "input_var"),
    ("CumSum", [X, np.array(3)], {}, ShapeError, "axis 3"),
    ("LRN", [IMAGE], {"size": 0}, ModelError, "size is 0"),
]


@pytest.mark.parametrize(
    ("op", "inputs", "options", "error", "message"), REFUSED, ids=[f"{i}-{r[0]}" for i, r in enumerate(REFUSED)]
)
def test_impossible_models_are_refused_by_name(op, inputs, options, error, message):
    with pytest.raises(error, match=message):
        ours(op, *inputs, **options)
