"""Whole models: cut, judged piece by piece on a backend's own tensors, faults found at their node."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from opgauge import expectations, extraction, models, segments
from opgauge.backends import BackendDef, BackendSpec, resolve
from opgauge.backends.cpu import kernels
from opgauge.model_jobs import Job
from opgauge.reference_engine import passes
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.errors import ModelError, OpgaugeError, UnknownOperatorError
from opgauge.reference_engine.executor import counts, execute, finder, plan
from opgauge.reference_engine.lower import lower, parse
from opgauge.reference_engine.types import Node, Observation, Status, TensorSpec
from opgauge.suites.networks import NETWORKS, network
from opgauge.suites.sketch import Sketch


class Direct:
    """Our engine as a client, in this process; `change` plants a fault into the lowered graph."""

    def __init__(self, change=lambda graph: graph, rules=()):
        self.spec = BackendSpec("direct", "callable", "", definition=BackendDef("", ""))
        self.info = {}
        self.change, self.rules = change, rules
        self.find = finder(kernels())

    def submit(self, case, data, feeds, repeats=1, n_outputs=0):
        graph = self.change(lower(data, feeds))
        graph = passes.optimise(graph, self.rules)[0] if self.rules else graph
        self.seen = Observation(Status.PASS, execute(plan(graph, self.find, "cpu"), feeds), counts=counts(graph))

    def receive(self):
        return self.seen


def loaded(name, seed=0):
    data, feeds = network(name).build(seed)
    return models.Loaded(name, parse(data), data, feeds, seed)


def judged(model, client):
    records = []
    models.judge_model(model, [client], records.append)
    return records


@pytest.mark.parametrize("name", [n.name for n in NETWORKS])
@pytest.mark.parametrize("rules", [(), passes.RULES], ids=["as lowered", "optimised"])
def test_every_node_of_the_networks_is_inside_its_set(name, rules):
    records = judged(loaded(name), Direct(rules=rules))
    assert {r.status for r in records} == {Status.PASS}
    whole = next(r for r in records if r.case.endswith("/whole"))
    assert not any(o["suspicious"] for o in whole.detail["outputs"])
    assert sum(r.elements > 0 for r in records) == len(segments.cut(loaded(name).model.graph))


def test_seeds_change_the_network_and_not_its_verdict():
    for seed in range(1, 6):
        assert {r.status for r in judged(loaded("residual-int8", seed), Direct())} == {Status.PASS}


# ---- faults planted in one node of fifteen


def of_node(graph, index):
    return [n for n in graph.nodes if n.source.startswith(f"node {index} ")]


def after(graph, node, fns):
    """Elementwise casts between a node and its readers."""
    nodes, specs, name = [], dict(graph.specs), node.output
    for n in graph.nodes:
        if n is not node:
            nodes.append(n)
            continue
        nodes.append(replace(n, output=f"{name}-0"))
        specs[f"{name}-0"] = specs[name]
        for i, to in enumerate(fns):
            out = name if i == len(fns) - 1 else f"{name}-{i + 1}"
            specs[out] = TensorSpec(specs[name].shape, to)
            nodes.append(Node("Elementwise", "cast", (nodes[-1].output,), out, {"to": to}, n.source))
    return replace(graph, nodes=tuple(nodes), specs=specs)


def scale_off(graph, index):
    """The multiplier is 0.1 % too large."""
    div = next(n for n in of_node(graph, index) if n.kind == "Elementwise.div")
    name, spec = div.output, graph.specs[div.output]
    factor = f"{name}-factor"
    nodes = []
    for n in graph.nodes:
        if n is div:
            nodes += [
                replace(n, output=f"{name}-0"),
                Node("Elementwise", "mul", (f"{name}-0", factor), name, {}, n.source),
            ]
        else:
            nodes.append(n)
    constants = {**graph.constants, factor: np.full(spec.shape, 1.001, np.float32)}
    return replace(
        graph, nodes=tuple(nodes), specs={**graph.specs, f"{name}-0": spec, factor: spec}, constants=constants
    )


def pad_zero(graph, index):
    """Pads hold 0 instead of the zero point."""
    im2col = next(n for n in of_node(graph, index) if n.primitive == "Im2col")
    zero, spec = f"{im2col.output}-pad", graph.specs[im2col.inputs[1]]
    constants = {**graph.constants, zero: np.zeros((), spec.dtype)}
    nodes = tuple(replace(n, inputs=(n.inputs[0], zero)) if n is im2col else n for n in graph.nodes)
    return replace(graph, nodes=nodes, specs={**graph.specs, zero: spec}, constants=constants)


def half_scales(graph, index):
    """The multiplier passes through float16."""
    div = next(n for n in of_node(graph, index) if n.kind == "Elementwise.div")
    return after(graph, div, ("float16", "float32"))


def wrapped(graph, index):
    """The accumulator has 16 bits."""
    gemm = next(n for n in of_node(graph, index) if n.primitive == "Gemm")
    return after(graph, gemm, ("int16", "int32"))


FAULTS = {
    "scale +0.1 %": scale_off,
    "pad value 0": pad_zero,
    "float16 scales": half_scales,
    "wrapped accumulator": wrapped,
}


def convolutions(model, padded):
    """Indices of convolutions; with `padded`, those whose padding can be told from 0."""
    found = []
    for i, node in enumerate(model.graph.node):
        if node.op_type == "QLinearConv":
            pads = next(a.ints for a in node.attribute if a.name == "pads")
            zero = onnx.numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == node.input[2]))
            if not padded or (any(pads) and int(zero) != 0):
                found.append(i)
    return found


# In how many of twelve convolutions the fault changes a bit: small sums do not wrap, few ties turn.
LEAST = {"scale +0.1 %": 11, "pad value 0": 3, "float16 scales": 6, "wrapped accumulator": 6}


def shows(model, name, index):
    """Does the fault change what the node itself returns."""
    tensor = model.model.graph.node[index].output[0]
    both = []
    for change in (lambda g: g, lambda g: FAULTS[name](g, index)):
        client = Direct(change)
        client.submit("", segments.exposed(model.model, [tensor]).SerializeToString(), model.feeds)
        both.append(client.receive().outputs[-1].tobytes())
    return both[0] != both[1]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_one_node_of_fifteen_is_found_at_that_node(name):
    model = loaded("residual-int8")
    assert len(model.model.graph.node) == 15
    places = [i for i in convolutions(model.model, name == "pad value 0") if shows(model, name, i)]
    assert len(places) >= LEAST[name]
    for index in places[:: max(1, len(places) // 4)]:

        def change(graph, index=index):
            return FAULTS[name](graph, index)

        records = judged(model, Direct(change))
        failing = [r.case for r in records if r.status is Status.FAIL and r.elements]
        assert [int(case.split("/")[2][:4]) for case in failing] == [index], (name, index)
        whole = next(r for r in records if r.case.endswith("/whole"))
        assert whole.status is Status.FAIL
        assert f"{index:04d} " in whole.message


def test_a_wrong_output_that_no_node_explains_is_reported_by_the_probe():
    found = models.compare(
        np.ones(4, np.float32), np.array([1, 1, 1, 1.5], np.float32), np.full(4, 1.000001, np.float32)
    )
    assert found["suspicious"]
    sensitive = models.compare(np.ones(4, np.float32), np.full(4, 1.5, np.float32), np.full(4, 2, np.float32))
    assert not sensitive["suspicious"]


def test_the_probe_moves_a_quantized_input_by_steps_that_do_not_round_away():
    s, step = Sketch(np.random.Generator(np.random.PCG64(1))), 0.5
    x = s.input(s.normal(20, 30))
    s("Relu", s.input(s.normal(3)))
    data, _ = s.build((s("QuantizeLinear", x, s.const(step), s.const(0, "int8")), "int8"))
    steps = models.quantized_inputs(onnx.load_from_string(data).graph)
    assert steps == {x: step}
    feeds = {x: np.zeros((20, 30), np.float32), "bytes": np.full(600, 255, np.uint8), "ids": np.arange(9)}
    moved = models.perturbed(feeds, 1, steps)
    assert np.count_nonzero(np.rint(moved[x] / step)) == 6
    assert set(np.unique(models.perturbed({"b": np.full(600, 7, np.uint8)}, 1)["b"])) == {6, 7, 8}
    assert moved["bytes"].min() == 254
    np.testing.assert_array_equal(moved["ids"], np.arange(9))
    alone = models.perturbed(feeds, 1)[x]  # the control: no steps, nothing survives the rounding
    assert not np.rint(alone / step).any()


# ---- cutting


def test_regions_between_quantized_tensors_stay_together():
    pieces = segments.cut(loaded("classifier-int8").model.graph)
    region = next(p for p in pieces if p.op == "GlobalAveragePool")
    assert [n.op_type for n in region.nodes] == ["DequantizeLinear", "GlobalAveragePool", "QuantizeLinear"]
    single = segments.cut(loaded("classifier-int8").model.graph, regions=False)
    assert all(len(p.nodes) == 1 for p in single)
    assert len(single) == len(loaded("classifier-int8").model.graph.node) > len(pieces)


def test_what_is_moved_before_it_is_quantized_stays_with_its_region():
    """onnxruntime quantizes before a Transpose and shows the moved tensor already quantized, an output too."""
    s = Sketch(np.random.Generator(np.random.PCG64(1)))
    summed = s("Add", s.input(s.normal(2, 6)), s.const(s.normal(6)))
    moved = s("Transpose", s("Reshape", summed, s.const([2, 3, 2], "int64")), perm=[0, 2, 1])
    data, _ = s.build((s("QuantizeLinear", moved, s.const(0.5), s.const(0, "int8")), "int8"))
    (region,) = segments.cut(parse(data).graph)
    assert [n.op_type for n in region.nodes] == ["Add", "Reshape", "Transpose", "QuantizeLinear"]
    assert region.op == "Add"
    read = s.build((moved, "float32"))[0]
    assert len(segments.cut(parse(read).graph)) == 4


def test_windows_cover_every_segment_once():
    pieces = segments.cut(loaded("unet").model.graph)
    sizes = models.tensor_sizes(loaded("unet"))
    small = list(segments.windows(pieces, sizes, 100_000))
    assert len(small) > 1
    assert [p for window in small for p in window] == pieces


def test_windows_give_the_same_verdicts(monkeypatch):
    whole = [(r.case, r.status) for r in judged(loaded("unet"), Direct())]
    monkeypatch.setattr(models, "WINDOW_BYTES", 100_000)
    assert [(r.case, r.status) for r in judged(loaded("unet"), Direct())] == whole


# ---- lowering whole models


def test_shapes_are_computed_from_what_is_fed():
    for length in (3, 9):
        s = Sketch(np.random.Generator(np.random.PCG64(1)))
        from opgauge.suites.networks import attention

        data, feeds = attention(s, batch=1, length=length)
        graph = lower(data, feeds)
        assert graph.specs[graph.outputs[0]].shape == (1, length, 32)


def test_a_shape_that_depends_on_data_binds_the_input():
    s = Sketch(np.random.Generator(np.random.PCG64(1)))
    x, n = s.input(s.normal(2, 6)), s.input(np.array([3], np.int64))
    target = s("Concat", n, s.const([-1], "int64"), axis=0)
    data, feeds = s.build((s("Reshape", x, target), "float32"))
    graph = lower(data, feeds)
    assert graph.specs[graph.outputs[0]].shape == (3, 4)
    assert graph.bound == ("x1",)


def test_a_shape_that_hangs_on_a_rounding_is_refused():
    s = Sketch(np.random.Generator(np.random.PCG64(1)))
    x = s.input(s.normal(6, 1))
    size = s("Cast", s("Exp", s.const([1.1])), to=7)
    data, feeds = s.build((s("Reshape", x, s("Concat", size, s.const([2], "int64"), axis=0)), "float32"))
    with pytest.raises(ModelError, match="more than one way"):
        lower(data, feeds)


def test_what_is_not_a_straight_line_is_refused_by_a_typed_error():
    data, feeds = network("lenet").build()
    for change in ("If", "functions", "sequence"):
        model = parse(data)
        if change == "If":
            model.graph.node[3].op_type = "If"
        elif change == "functions":
            model.functions.add().name = "f"
        else:
            model.graph.output[0].type.Clear()
            model.graph.output[0].type.sequence_type.SetInParent()
        with pytest.raises(UnknownOperatorError):
            lower(model, feeds)


def test_an_unlowered_model_is_unsupported_and_names_the_node():
    s = Sketch(np.random.Generator(np.random.PCG64(1)))
    data, feeds = s.build((s("LSTMish", s.input(s.normal(2, 2))), "float32"))
    records = judged(models.Loaded("m", parse(data), data, feeds, 0), Direct())
    assert [r.status for r in records] == [Status.UNSUPPORTED]
    assert "LSTMish" in records[0].message


# ---- extraction


def test_a_model_becomes_cases_that_run():
    found, skipped = extraction.extract(loaded("residual-int8"))
    assert not skipped
    assert sum(found.values()) == 15
    for text in found:
        case, _ = parse_id(text)
        assert case.op in ("QLinearConv", "QLinearAdd")
    attention, skipped = extraction.extract(loaded("attention"))
    assert not skipped
    assert sum(attention.values()) > len(attention)  # the three projections are one case


def test_a_job_travels_as_text():
    job = Job("m.onnx", "m", {"n": 2}, {"sr": 16000.0}, seed=3)
    assert Job(**json.loads(job.text())) == job


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(OpgaugeError, match=r"gone\.onnx"):
        models.load(Job(str(tmp_path / "gone.onnx")))


# ---- an output that is read too


def shown(perm=(1, 0), scale=0.5, moved=True):
    """-x as an output, and what Transpose, QuantizeLinear and DequantizeLinear make of it."""
    s = Sketch(np.random.Generator(np.random.PCG64(1)))
    y = s("Neg", s.input(s.normal(3, 4)))
    z = s("Transpose", y, perm=list(perm)) if moved else s("Abs", y)
    parameters = (s.const(np.float32(scale)), s.const(0, "int8"))
    z = s("DequantizeLinear", s("QuantizeLinear", z, *parameters), *parameters)
    return s.build((y, "float32"), (z, "float32"))


def judged_as(data, feeds, change):
    """The record of the node that makes the first output, had onnxruntime changed it so."""
    loaded = models.Loaded("m", onnx.load_from_string(data), data, feeds, 0)
    segment = segments.cut(loaded.model.graph)[0]
    client = SimpleNamespace(spec=resolve("onnxruntime"), info={"version": "1.32.0"})
    tensors = {**feeds, segment.outputs[0]: change(-feeds["x0"]).astype(np.float32)}
    return models.judge_segment(loaded, segment, tensors, client, expectations.load())


def test_an_output_that_comes_back_quantized_is_the_recorded_deviation_and_nothing_else_is():
    def as_quantized(x):
        return np.clip(np.rint(x / 0.5), -128, 127) * 0.5

    made = judged_as(*shown(), as_quantized)
    assert (made.status, made.detail["deviations"]) == ("deviation", ["ort-shown-output-quantized"])
    assert judged_as(*shown(), lambda x: x).status == "pass"
    assert judged_as(*shown(), lambda x: as_quantized(x) + 0.5).status == "fail"
    assert judged_as(*shown(), lambda x: x * 1.001).status == "fail"
    assert judged_as(*shown(scale=0.25), as_quantized).status == "fail"
    assert judged_as(*shown(moved=False), as_quantized).status == "fail"


# ---- what a runtime fuses is judged as it ships


def normalised(read_twice=False):
    """Conv -> BatchNormalization -> Relu, and a second reader of the convolution or not."""
    s = Sketch(np.random.Generator(np.random.PCG64(3)))
    y = s("Conv", s.input(s.normal(1, 2, 5, 5)), s.const(s.normal(4, 2, 3, 3)))
    parameters = [s.const(np.abs(s.normal(4)) + 0.5) for _ in range(4)]
    z = s("Relu", s("BatchNormalization", y, *parameters))
    return s.build((z, "float32"), *([(s("Abs", y), "float32")] if read_twice else []))


def test_a_product_stays_with_its_activation_where_nothing_else_reads_it():
    (piece,) = segments.cut(parse(normalised()[0]).graph)
    assert [n.op_type for n in piece.nodes] == ["Conv", "BatchNormalization", "Relu"]
    assert piece.op == "Conv"
    apart = segments.cut(parse(normalised(read_twice=True)[0]).graph)
    kinds = sorted([n.op_type for n in p.nodes] for p in apart)
    assert kinds == [["Abs"], ["BatchNormalization", "Relu"], ["Conv"]]
    assert len(segments.cut(parse(normalised()[0]).graph, regions=False)) == 3


class Fusing(Direct):
    """Wrong by a thousandth where no tensor between Conv and Relu is asked for, as a faulty fused kernel would be."""

    def submit(self, case, data, feeds, repeats=1, n_outputs=0):
        super().submit(case, data, feeds)
        if len(parse(data).graph.output) == 1:
            self.seen = replace(self.seen, outputs=(self.seen.outputs[0] * np.float32(1.001),))


def test_a_fault_of_a_fused_kernel_is_found_in_the_model_as_it_ships():
    data, feeds = normalised()
    model = models.Loaded("m", parse(data), data, feeds, 0)
    assert {r.status for r in judged(model, Direct())} == {Status.PASS}
    found = judged(model, Fusing())
    assert [r.op for r in found if r.status is Status.FAIL and r.elements] == ["Conv"]


def test_outputs_beside_shown_tensors_are_compared_with_those_of_the_model_as_it_is():
    y = np.float32([1.0, 2.0])

    def told(shown, width=0.0):
        return models.compare(y, y, y, models.Judged([], {"y": shown}, {"y": width}), "y")

    assert not told(y * np.float32(1 + 1e-6))["suspicious"]
    assert told(y * np.float32(1.01))["suspicious"]
    assert told(y * np.float32(1.01))["shown_difference"] == pytest.approx(0.02, rel=1e-3)
    assert "shown_difference" not in models.compare(y, y, y)
    # Two honest kernels of the last node may be as far apart as its set is wide.
    assert not told(y * np.float32(1.01), 0.03)["suspicious"]
    assert models.compare(y, y * np.float32(1.01), y)["suspicious"]
    assert not models.compare(y, y * np.float32(1.01), y, models.Judged([], {}, {"y": 0.03}), "y")["suspicious"]
