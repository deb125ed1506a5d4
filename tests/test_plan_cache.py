"""Plans are found by signature and bound content, counted, and leave when there are too many."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from opgauge.backends import cpu
from opgauge.reference_engine import executor
from opgauge.reference_engine.executor import branches, execute, execute_parallel, finder, plan
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.plan_cache import PlanCache
from opgauge.suites.networks import NETWORKS, network


def feeds(n, content=0):
    return {"x": np.zeros(n, np.float32), "shape": np.array([content], np.int64)}


def test_hits_misses_and_evictions_are_counted():
    cache = PlanCache(2)
    for n in (1, 2, 1, 3, 2):
        if cache.find(b"m", feeds(n)) is None:
            gone = cache.keep(b"m", feeds(n), (), f"plan {n}")
    assert gone == ["plan 1"]
    assert (cache.lookups, cache.hits, cache.evictions) == (5, 1, 2)
    assert cache.hit_rate == 0.2
    assert cache.counts(True) == {"plan_hit_count": 1, "plan_lookups": 5, "plan_hits": 1, "plan_eviction_count": 2}


def test_bound_content_another_model_and_another_type_are_other_plans():
    cache = PlanCache()
    cache.keep(b"m", feeds(1, content=4), ("shape",), "plan")
    assert cache.find(b"m", feeds(1, content=4)) == "plan"
    assert cache.find(b"m", feeds(1, content=5)) is None
    assert cache.find(b"other", feeds(1, content=4)) is None
    assert cache.find(b"m", {**feeds(1, content=4), "x": np.zeros(1)}) is None


def test_the_engine_reports_its_hit_rate():
    run = cpu.load()
    data, inputs = network("laplacian-int8").build()
    for _ in range(4):
        seen = run(data, inputs)
    assert (seen.counts["plan_lookups"], seen.counts["plan_hits"]) == (4, 3)


# ---- branches side by side


@pytest.mark.parametrize("name", [n.name for n in NETWORKS])
def test_branches_give_the_bits_of_one_order(name):
    data, inputs = network(name).build()
    bound = plan(lower(data, inputs), finder(cpu.kernels()), "cpu")
    tasks = branches(bound)
    assert sorted(i for t in tasks for i in t.steps) == list(range(len(bound.steps)))
    wanted = [y.tobytes() for y in execute(bound, inputs)]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            assert [y.tobytes() for y in execute_parallel(bound, tasks, inputs, pool)] == wanted


def test_independent_branches_do_run_side_by_side():
    """Each of two branches waits for the other: one after the other they would never end."""
    import threading

    from opgauge.suites.sketch import Sketch

    s = Sketch(np.random.Generator(np.random.PCG64(0)))
    x = s.input(s.normal(4))
    data, inputs = s.build((s("Add", s("Abs", x), s("Neg", x)), "float32"))
    bound = plan(lower(data, inputs), finder(cpu.kernels()), "cpu")
    tasks = branches(bound)
    assert [len(t.after) for t in tasks] == [0, 0, 2]
    meet = threading.Barrier(2, timeout=20)
    right = executor._run

    def run(step, values):
        if step.node.fn in ("abs", "neg"):
            meet.wait()
        right(step, values)

    executor._run = run
    try:
        with ThreadPoolExecutor(2) as pool:
            execute_parallel(bound, tasks, inputs, pool)
    finally:
        executor._run = right


def test_what_a_kernel_raises_in_a_branch_is_raised(monkeypatch):
    data, inputs = network("residual-int8").build()
    bound = plan(lower(data, inputs), finder(cpu.kernels()), "cpu")

    def broken(step, values):
        raise IndexError("out of range")

    monkeypatch.setattr(executor, "_run", broken)
    with ThreadPoolExecutor(2) as pool, pytest.raises(IndexError, match="out of range"):
        execute_parallel(bound, branches(bound), inputs, pool)


@pytest.mark.parametrize(("least", "threaded"), [(0, True), (1 << 30, False)])
def test_threads_are_switched_on_by_an_option_where_a_graph_is_large_enough(monkeypatch, least, threaded):
    data, inputs = network("residual-int8").build()
    seen = []

    def watched(*given):
        seen.append(given)
        return execute_parallel(*given)

    monkeypatch.setattr(cpu, "LEAST_PARALLEL", least)
    monkeypatch.setattr(cpu, "execute_parallel", watched)
    wanted = cpu.load()(data, inputs).outputs[0].tobytes()
    assert not seen
    assert cpu.load(threads="2")(data, inputs).outputs[0].tobytes() == wanted
    assert bool(seen) is threaded


# ---- many runs


def kept_bytes(engine, data, inputs, runs):
    """What is held after many runs, beyond what was held after the first ones."""
    import gc
    import tracemalloc

    for _ in range(3):
        engine(data, inputs)
    gc.collect()
    tracemalloc.start()
    for _ in range(runs):
        engine(data, inputs)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held


def test_many_runs_keep_nothing_and_a_kept_output_is_seen():
    """The soak test tests/soak/models.py does the same a thousand times on resident memory."""
    data, inputs = network("laplacian-int8").build()
    run, kept = cpu.load(), []
    assert kept_bytes(run, data, inputs, 60) < 8_000

    def leaking(model, given):
        kept.append(run(model, given).outputs)

    assert kept_bytes(leaking, data, inputs, 60) > 60 * 1_000
