"""A graph over two devices: transfers where a tensor crosses and nowhere else, the bits of one device."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.backends import cpu
from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError
from opgauge.reference_engine.executor import counts, execute, finder, plan
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.placement import DEVICE, HOST, crossings, is_transfer, place
from opgauge.suites.networks import NETWORKS, network
from opgauge.suites.sketch import Sketch

plan_of_wgpu = pytest.importorskip("opgauge.backends.wgpu.plan")


def sketch():
    return Sketch(np.random.Generator(np.random.PCG64(7)))


def graph_of(build):
    data, feeds = build
    return lower(data, feeds), feeds


def kinds(*wanted):
    return lambda node: node.kind in wanted or node.primitive in wanted


def test_without_a_choice_nothing_is_transferred():
    graph, _ = graph_of(network("lenet").build())
    placed = place(graph, lambda node: False)
    assert placed.graph is graph
    assert crossings(placed)["transfer_count"] == 0
    assert placed.count(HOST) == 0


@pytest.mark.parametrize("name", [n.name for n in NETWORKS])
def test_every_crossing_has_one_transfer_and_no_node_reads_across(name):
    graph, feeds = graph_of(network(name).build())
    placed = place(graph, kinds("Gemm", "DataMove.transpose"))
    device, known = placed.device, {*graph.inputs, *graph.constants}
    for node in placed.graph.nodes:
        for source in node.inputs:
            assert source in known, "read before it was made"
            assert is_transfer(node) or device.get(source, device[node.output]) == device[node.output]
        known.add(node.output)
    moved = [n.inputs[0] + n.attrs["to"] for n in placed.graph.nodes if is_transfer(n)]
    assert len(moved) == len(set(moved)) == crossings(placed)["transfer_count"] > 0
    find = finder(cpu.kernels())
    wanted = execute(plan(graph, find, "cpu"), feeds)
    found = execute(plan(placed.graph, find, "cpu"), feeds)
    assert [y.tobytes() for y in found] == [y.tobytes() for y in wanted]


def test_a_tensor_with_two_readers_crosses_once_and_the_host_works_in_one_stretch():
    s = sketch()
    x = s("Neg", s.input(s.normal(4, 4)))
    a, b = s("Exp", x), s("Sqrt", s("Abs", x))
    data, feeds = s.build((s("Add", a, b), "float32"))
    placed = place(lower(data, feeds), kinds("Elementwise.exp", "Elementwise.sqrt"))
    assert crossings(placed) == {"transfer_count": 4, "transfer_to_cpu_count": 2, "transfer_to_gpu_count": 2}
    sides = [HOST if is_transfer(n) else placed.device[n.output] for n in placed.graph.nodes]
    assert sides == sorted(sides, reverse=True)[: sides.count(DEVICE) - 1] + [HOST] * sides.count(HOST) + [DEVICE]
    assert counts(placed.graph)["DataMove.transfer_count"] == 4


def wgpu_engine(**options):
    from opgauge.backends import wgpu

    try:
        return wgpu.load(**options)
    except BackendUnavailableError as error:
        pytest.skip(str(error))


def test_a_split_model_gives_the_bits_of_the_cpu_and_counts_what_crossed():
    data, feeds = network("residual-int8").build()
    split = wgpu_engine(host="Requantize+Elementwise.add")(data, feeds)
    whole = wgpu_engine()(data, feeds)
    assert split.outputs[0].tobytes() == cpu.load()(data, feeds).outputs[0].tobytes()
    assert split.counts["host_count"] > 0
    assert split.counts["transfer_count"] == split.counts["DataMove.transfer_count"] > 0
    assert split.counts["submit_count"] > whole.counts["submit_count"] == 1
    assert split.counts["fallback_count"] == whole.counts["transfer_count"] == 0


def test_an_output_of_the_host_does_not_go_through_the_device():
    s = sketch()
    data, feeds = s.build((s("Exp", s("Neg", s.input(s.normal(3, 5)))), "float32"))
    seen = wgpu_engine(host="Elementwise.exp")(data, feeds)
    assert seen.counts["transfer_to_gpu_count"] == 0
    assert np.allclose(seen.outputs[0], np.exp(-feeds["x0"]), rtol=1e-5)
    wholly = wgpu_engine(host="Elementwise")(data, feeds)
    assert wholly.counts["transfer_count"] == 0
    assert wholly.outputs[0].tobytes() == cpu.load()(data, feeds).outputs[0].tobytes()


def test_a_fallback_is_an_error_unless_it_is_to_be_counted():
    s = sketch()
    x = s.input(np.linspace(-1, 1, 6))
    data, feeds = s.build((s("Add", s("Neg", x), x), "float64"))
    with pytest.raises(UnsupportedError, match="no kernel"):
        wgpu_engine()(data, feeds)
    seen = wgpu_engine(fallback="count")(data, feeds)
    assert seen.counts["fallback_count"] == 1
    assert seen.outputs[0].tobytes() == np.zeros(6).tobytes()


def test_an_unknown_primitive_is_named():
    from opgauge.backends import wgpu

    with pytest.raises(BackendUnavailableError, match="host=Conv"):
        wgpu.placed_by("Conv+Gemm")
