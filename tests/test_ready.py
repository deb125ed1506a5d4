"""A plan that is run again: the bits of `execute`, whatever it was run with before, and memory of nobody else."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import one_node
import pytest

from opgauge.backends import cpu
from opgauge.reference_engine import passes, ready
from opgauge.reference_engine.executor import execute, finder, plan
from opgauge.reference_engine.lower import lower
from opgauge.suites.networks import NETWORKS, network
from opgauge.suites.templates import TEMPLATES


@pytest.fixture(scope="module")
def find():
    return finder(cpu.kernels())


def planned(built, find):
    model, feeds = built
    return plan(passes.optimise(lower(model, feeds))[0], find, "cpu"), feeds


def others(feeds):
    """The same shapes and types, other values, and not contiguous."""
    return {name: np.repeat(x, 2, -1)[..., ::-2] if x.ndim else x for name, x in feeds.items()}


def bits(outputs):
    return [(y.shape, y.dtype, y.tobytes()) for y in outputs]


def again(bound, feeds, monkeypatch, copied):
    monkeypatch.setattr(ready, "COPIED", copied)
    run, other = ready.ready(bound), others(feeds)
    for given in (feeds, other, feeds, other):
        before = bits(given.values())
        assert bits(run(given)) == bits(execute(bound, given))
        assert bits(given.values()) == before


@pytest.mark.parametrize("copied", [(1 << 16, 1 << 16), (1 << 12, 1 << 15), (-1, -1)])
@pytest.mark.parametrize("name", [n.name for n in NETWORKS])
def test_networks_run_again_give_the_same_bits(name, copied, find, monkeypatch):
    again(*planned(network(name).build(), find), monkeypatch, copied)


@pytest.mark.parametrize("copied", [(1 << 16, 1 << 16), (1 << 12, 1 << 15), (-1, -1)])
def test_templates_run_again_give_the_same_bits(copied, find, monkeypatch):
    for template in TEMPLATES:
        again(*planned(template.build(3), find), monkeypatch, copied)


@pytest.mark.parametrize("copied", [(1 << 16, 1 << 16), (1 << 12, 1 << 15), (-1, -1)])
@pytest.mark.parametrize("op", ["Identity", "Reshape", "Relu"])
def test_outputs_are_nobodys_memory(op, copied, find, monkeypatch):
    monkeypatch.setattr(ready, "COPIED", copied)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    built = one_node.model(op, [x, *([one_node.ints(2, 6)] if op == "Reshape" else [])], fold=True)
    bound, feeds = planned(built, find)
    run = ready.ready(bound)
    (first,) = run(feeds)
    kept = first.copy()
    (second,) = run({"x0": -x})
    assert np.array_equal(first, kept)
    assert not np.shares_memory(first, second)
    assert not np.shares_memory(first, x)
    first[...] = 7
    assert np.array_equal(run(feeds)[0], kept)


def test_threads_do_not_share_the_tensors(find):
    bound, feeds = planned(network("classifier-int8").build(), find)
    run, other = ready.ready(bound), others(feeds)
    pairs = [(given, bits(execute(bound, given))) for given in (feeds, other)]
    wrong = []

    def many(given, wanted):
        wrong.extend(1 for _ in range(20) if bits(run(given)) != wanted)

    threads = [threading.Thread(target=many, args=pair) for pair in pairs for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_run_at_a_time_has_the_tensors(find):
    """A second run that begins inside the first must not write over its operands."""
    bound, feeds = planned(network("mlp-int8").build(), find)
    inside = []
    last = bound.steps[-1] if bound.steps[-1].kernel else next(s for s in reversed(bound.steps) if s.kernel)

    def nested(*arguments):
        if not inside:
            inside.append(True)
            inside.append(bits(run(others(feeds))))
        last.kernel.call(*arguments)

    steps = tuple(replace(s, kernel=replace(s.kernel, call=nested, hold=None)) if s is last else s for s in bound.steps)
    run = ready.ready(replace(bound, steps=steps))
    assert bits(run(feeds)) == bits(execute(bound, feeds))
    assert inside[1] == bits(execute(bound, others(feeds)))


def test_a_plan_with_more_than_is_kept_keeps_nothing(find, monkeypatch):
    bound, feeds = planned(network("unet").build(), find)
    monkeypatch.setattr(ready, "MOST", 1)
    run = ready.ready(bound)
    assert run.func is execute
    assert bits(run(feeds)) == bits(execute(bound, feeds))


def test_the_engine_runs_a_plan_it_has_again(find):
    model, feeds = network("mlp-int8").build()
    run = cpu.load()
    first, second, third = run(model, feeds), run(model, others(feeds)), run(model, feeds)
    assert [r.counts["plan_hit_count"] for r in (first, second, third)] == [0, 1, 1]
    assert bits(first.outputs) == bits(third.outputs) != bits(second.outputs)
