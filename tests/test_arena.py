"""The arena: less memory than without reuse, the same bits, and an error of the planner is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opgauge.backends.cpu import kernels
from opgauge.reference_engine import arena, passes
from opgauge.reference_engine.executor import execute, finder, plan
from opgauge.reference_engine.lower import lower
from opgauge.suites.networks import NETWORKS, network
from opgauge.suites.templates import TEMPLATES


@pytest.fixture(scope="module")
def find():
    return finder(kernels())


def planned(built, find, optimise=True):
    model, feeds = built
    graph = lower(model, feeds)
    graph = passes.optimise(graph)[0] if optimise else graph
    return plan(graph, find, "cpu"), feeds


@pytest.mark.parametrize("name", [n.name for n in NETWORKS])
@pytest.mark.parametrize("optimise", [False, True])
def test_the_arena_gives_the_bits_of_separate_tensors(name, optimise, find):
    bound, feeds = planned(network(name).build(), find, optimise)
    wanted = [y.tobytes() for y in execute(bound, feeds)]
    for in_place in (False, True):
        layout = arena.lay_out(bound.graph, in_place)
        assert [y.tobytes() for y in arena.execute_in_arena(bound, layout, feeds, check=True)] == wanted
        assert [y.tobytes() for y in arena.execute_in_arena(bound, layout, feeds)] == wanted


def test_templates_run_in_an_arena(find):
    for template in TEMPLATES:
        for optimise in (False, True):
            bound, feeds = planned(template.build(3), find, optimise)
            layout = arena.lay_out(bound.graph)
            found = arena.execute_in_arena(bound, layout, feeds, check=True)
            assert [y.tobytes() for y in found] == [y.tobytes() for y in execute(bound, feeds)], template.name


def test_a_unet_needs_at_most_six_tenths_of_its_tensors(find):
    for optimise in (False, True):
        bound, _ = planned(network("unet").build(), find, optimise)
        layout = arena.lay_out(bound.graph)
        assert layout.peak <= 0.6 * layout.peak_without_reuse
        assert layout.largest_live <= layout.peak
        assert layout.peak <= arena.lay_out(bound.graph, in_place=False).peak


def test_slots_are_aligned_and_what_lives_together_lies_apart(find):
    bound, _ = planned(network("unet").build(), find)
    slots = list(arena.lay_out(bound.graph).slots.values())
    assert all(s.offset % arena.ALIGNMENT == 0 for s in slots)
    for i, a in enumerate(slots):
        for b in slots[:i]:
            together = a.first <= b.last and b.first <= a.last
            assert not together or a.offset + a.size <= b.offset or b.offset + b.size <= a.offset


def freed_early(layout, victim):
    """The planner believes that a tensor dies when it is born."""
    slot = layout.slots[victim]
    short = {name: (replace(s, last=s.first) if name == victim else s) for name, s in layout.slots.items()}
    first = {n: s.first for n, s in short.items()}
    placed = arena._place(first, {n: s.last for n, s in short.items()}, {n: s.size for n, s in short.items()})
    return replace(layout, slots=placed, peak=max(s.offset + s.size for s in placed.values())), slot


def test_a_tensor_freed_too_early_is_caught_and_its_reader_named(find):
    bound, feeds = planned(network("unet").build(), find)
    layout = arena.lay_out(bound.graph)
    victims = [n for n, s in layout.slots.items() if s.last > s.first + 1]
    assert len(victims) > 5
    for victim in victims:
        wrong, slot = freed_early(layout, victim)
        with pytest.raises(arena.ArenaError, match="node ") as caught:
            arena.execute_in_arena(bound, wrong, feeds, check=True)
        step = int(str(caught.value).split("step ")[1].split(":")[0])
        assert slot.first < step <= slot.last


def test_a_tensor_written_over_while_it_is_still_read_is_caught(find):
    """In place although another node reads the input later."""
    bound, feeds = planned(network("residual-int8").build(), find)
    layout = arena.lay_out(bound.graph, in_place=False)
    graph = bound.graph
    last = arena._last_reads(graph)
    plants = 0
    for step, node in enumerate(graph.nodes):
        if node.primitive != "Elementwise":
            continue
        for name in node.inputs:
            if name in layout.slots and last[name] > step and arena._same_bytes(graph, name, node.output):
                plants += 1
                wrong = replace(layout, alias={**layout.alias, node.output: name})
                with pytest.raises(arena.ArenaError):
                    arena.execute_in_arena(bound, wrong, feeds, check=True)
    model, feeds = next(t for t in TEMPLATES if t.name == "affine-into-gemm/two readers").build(0)
    bound, _ = planned((model, feeds), find)
    layout = arena.lay_out(bound.graph, in_place=False)
    last = arena._last_reads(bound.graph)
    for step, node in enumerate(bound.graph.nodes):
        for name in node.inputs if node.primitive == "Elementwise" else ():
            root = arena.root(layout.alias, name)
            if root in layout.slots and last[root] > step and node.output in layout.slots:
                plants += 1
                wrong = replace(layout, alias={**layout.alias, node.output: name})
                with pytest.raises(arena.ArenaError, match="after its memory was given away"):
                    arena.execute_in_arena(bound, wrong, feeds, check=True)
    assert plants
