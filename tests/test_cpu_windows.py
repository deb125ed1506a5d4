"""Convolutions with kernels of their own, and parts on several threads: the bits are those of the graph as lowered."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from opgauge.backends import cpu
from opgauge.backends.cpu import integer, threads
from opgauge.reference_engine import passes
from opgauge.reference_engine.executor import execute, finder, plan
from opgauge.reference_engine.lower import lower
from opgauge.suites.peer_cases import matmul_float, matmul_integer
from opgauge.suites.sketch import Sketch

# channels of input, groups, outputs of a group, spatial shape, kernel, strides, dilations, pads
WINDOWS = {
    "depthwise": (33, 33, 1, (9, 14), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    "depthwise, no padding": (64, 64, 1, (7, 40), (3, 2), (1, 1), (1, 1), (0, 0, 0, 0)),
    "depthwise, stride": (5, 5, 1, (12, 70), (3, 3), (2, 2), (1, 1), (1, 0, 0, 1)),
    "depthwise, dilation": (40, 40, 1, (9, 9), (2, 3), (1, 2), (2, 1), (0, 2, 1, 0)),
    "two outputs of a channel": (9, 9, 2, (6, 8), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    "depthwise, one axis": (17, 17, 1, (50,), (5,), (1,), (1,), (2, 2)),
    "depthwise, three axes": (6, 6, 1, (4, 5, 6), (2, 3, 2), (1, 1, 1), (1, 1, 1), (1, 0, 1, 0, 1, 0)),
    "groups": (12, 3, 35, (6, 9), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    "channels that fill no word": (6, 1, 70, (9, 9), (3, 3), (2, 1), (1, 1), (1, 1, 1, 1)),
    "whole words, no padding": (8, 1, 40, (9, 9), (3, 3), (1, 1), (1, 1), (0, 0, 0, 0)),
    "padded in front, cropped behind": (8, 2, 5, (9, 11), (3, 3), (2, 2), (1, 1), (1, 1, 0, 0)),
    "one pixel": (16, 1, 8, (3, 3), (3, 3), (1, 1), (1, 1), (0, 0, 0, 0)),
}


def convolution(name, x_word, w_word, zero, last):
    """A QLinearConv of two images; `zero` is the weights' zero point."""
    s = Sketch(np.random.default_rng(5))
    c, groups, outs, spatial, kernel, strides, dilations, pads = WINDOWS[name]
    rank = len(spatial) + 2
    x = s.input(s.integers((2, *spatial, c) if last else (2, c, *spatial), x_word))
    image = s("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)]) if last else x
    parts = [image, s.const(1.0), s.const(125 if x_word == "uint8" else 3, x_word)]
    parts += [s.const(s.integers((outs * groups, c // groups, *kernel), w_word), w_word), s.const(0.01)]
    parts += [s.const(zero, w_word), s.const(1.5 * (c // groups * np.prod(kernel)) ** 0.5), s.const(7, x_word)]
    parts.append(s.const(s.rng.integers(-900, 900, outs * groups), "int32"))
    y = s("QLinearConv", *parts, group=groups, strides=strides, dilations=dilations, pads=pads)
    y = s("Transpose", y, perm=[0, *range(2, rank), 1]) if last else y
    return s.build((y, x_word))


def optimised(model, inputs):
    graph, _ = passes.optimise(lower(model, inputs))
    return plan(graph, finder(cpu.kernels()), "cpu")


def as_lowered(model, inputs):
    return execute(plan(lower(model, inputs), finder(cpu.kernels()), "cpu"), inputs)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_a_convolution_is_that_of_the_graph_as_lowered(name, last):
    moves = last and name != "one pixel"  # of one pixel a transpose moves nothing
    fused = "im2row_requantize" if moves else "im2col_requantize"
    for x_word, w_word, zero in (
        ("uint8", "int8", 0),
        ("int8", "int8", -7),
        ("int8", "uint8", 128),
        ("uint8", "uint8", 100),
    ):
        model, inputs = convolution(name, x_word, w_word, zero, last)
        bound = optimised(model, inputs)
        assert fused in [step.node.fn for step in bound.steps]
        (want,) = as_lowered(model, inputs)
        assert np.unique(want).size > 5
        for _ in range(2):  # the first call arranges, the second has all arranged
            (found,) = execute(bound, inputs)
            assert found.tobytes() == want.tobytes(), (x_word, w_word)


SPLIT = {
    "int8 product": lambda: matmul_integer(37, 70, 40, "uint8", "int8"),
    "int8 row": lambda: matmul_integer(1, 200, 33, "int8", "int8"),
    "float product": lambda: matmul_float(40, 150, 30),
    "float row": lambda: matmul_float(1, 300, 30),
    "convolution": lambda: convolution("channels that fill no word", "uint8", "int8", 0, False),
    "convolution, channels last": lambda: convolution("groups", "int8", "int8", 0, True),
    "depthwise": lambda: convolution("depthwise", "uint8", "int8", 0, False),
    "depthwise, channels last": lambda: convolution("depthwise", "uint8", "int8", 0, True),
}


@pytest.mark.parametrize("name", SPLIT)
def test_the_bits_are_the_same_on_any_number_of_threads(name, monkeypatch):
    model, inputs = SPLIT[name]()
    bound = optimised(model, inputs)
    want = execute(bound, inputs)
    monkeypatch.setattr(threads, "LEAST_NS", 0)
    for count in (2, 3, 7):
        with ThreadPoolExecutor(count - 1) as pool, threads.lent(pool, count):
            found = execute(bound, inputs)
        assert [y.tobytes() for y in found] == [y.tobytes() for y in want], count


def test_a_kernel_that_leaves_out_a_part_is_seen(monkeypatch):
    model, inputs = SPLIT["int8 product"]()
    bound = optimised(model, inputs)
    (want,) = execute(bound, inputs)
    monkeypatch.setattr(threads, "LEAST_NS", 0)
    whole = integer.byte_product

    def lacking(*operands):
        if operands[-2] != 1:
            whole(*operands)

    monkeypatch.setattr(integer, "byte_product", lacking)
    with ThreadPoolExecutor(1) as pool, threads.lent(pool, 2):
        (found,) = execute(bound, inputs)
    assert found.tobytes() != want.tobytes()


def test_little_work_and_unlent_threads_stay_in_one_part():
    seen = []

    def kernel(a, part, parts):
        seen.append((a, part, parts))

    threads.spread(1e9, kernel, "alone")
    with ThreadPoolExecutor(2) as pool, threads.lent(pool, 3):
        threads.spread(threads.LEAST_NS - 1, kernel, "little")
        assert seen == [("alone", 0, 1), ("little", 0, 1)]
        threads.spread(threads.LEAST_NS, kernel, "much")
        parts = seen[2:]
        assert sorted(p for _, p, _ in parts) == list(range(3 * threads.PARTS))
        # a thread of the pool is lent nothing: branches side by side do not wait for one another
        pool.submit(threads.spread, 1e9, kernel, "branch").result()
        assert seen[-1] == ("branch", 0, 1)


def test_a_part_that_fails_is_reported_when_all_have_ended():
    ended, lock = [], threading.Lock()

    def kernel(part, parts):
        if part == 1:
            raise IndexError("part 1")
        with lock:
            ended.append(part)

    with ThreadPoolExecutor(1) as pool, threads.lent(pool, 2):
        with pytest.raises(IndexError, match="part 1"):
            threads.spread(1e9, kernel)
        assert sorted(ended) == [p for p in range(2 * threads.PARTS) if p != 1]
