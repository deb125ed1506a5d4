"""Graph rules: each applies to its pattern, leaves its near misses, and a wrong version of it is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from opgauge.backends.cpu import kernels
from opgauge.reference_engine import passes
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.executor import counts, execute, finder, plan
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.rules import fusion, linear, movement, pointwise
from opgauge.reference_engine.rules.rewrite import constant_view, is_move, through
from opgauge.rule_bisect import Seen, bisect, outside
from opgauge.rule_trials import distance, tried
from opgauge.suites.templates import TEMPLATES

SEEDS = 10
RULES = {rule.id: rule for rule in passes.RULES}


@pytest.fixture(scope="module")
def find():
    return finder(kernels())


def run(graph, feeds, find):
    return execute(plan(graph, find, "cpu"), feeds)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: t.name)
def test_optimised_equals_unoptimised(template, find):
    """200 draws each: tests/quality/rules_on_templates.py."""
    assert tried(template, SEEDS, find).faults == ()


def test_a_trial_sees_a_result_outside_a_changed_bit_and_a_pattern_that_is_left(find, monkeypatch):
    pattern, miss = (next(t for t in TEMPLATES if t.name == f"relu-into-quantize/{x}") for x in ("pattern", "abs"))
    rule = RULES["relu-into-quantize"]
    assert tried(pattern, SEEDS, find).faults == tried(miss, SEEDS, find).faults == ()
    inner = next(t for t in TEMPLATES if t.name == "relu-into-quantize/inner zero point")
    monkeypatch.setattr(passes, "RULES", (replace(rule, match=_relu_wrong),))
    wrong = tried(inner, SEEDS, find)
    assert min(wrong.applied, wrong.outside, wrong.changed, wrong.effect) >= 1
    assert any("bits changed" in said for said in wrong.faults)
    assert any(said.startswith("applied to") for said in wrong.faults)
    monkeypatch.setattr(passes, "RULES", (replace(rule, match=lambda *_: None),))
    assert tried(pattern, SEEDS, find).faults == (f"applied to 0 of {SEEDS} draws",)


@pytest.mark.parametrize(("a", "b", "units"), [
    (np.float32([1, 2, np.nan]), np.float32([1, 2, np.nan]), 0),
    (np.float32([1.0]), np.nextafter(np.float32([1.0]), np.float32(2)), 1),
    (np.float32([1e-45]), np.float32([0]), 1),
    (np.float32([1.0, 2.0**-24]), np.float32([1.0, 2.0**-25]), 0.25),
    (np.float32([1.0]), np.float32([np.nan]), np.inf),
    (np.uint8([0, 255]), np.uint8([2, 255]), 2),
    (np.float32([1]), np.float32([1, 1]), np.inf),
])  # fmt: skip
def test_the_distance_of_two_results_is_in_units_of_their_type(a, b, units):
    assert distance(a, b) == units


def test_every_rule_has_a_pattern_and_a_near_miss():
    for rule in passes.RULES:
        assert {t.applies for t in TEMPLATES if t.rule == rule.id} == {True, False}, rule.id


def test_no_rule_makes_a_count_grow():
    for template in TEMPLATES:
        model, feeds = template.build(1)
        graph = lower(model, feeds)
        made, _ = passes.optimise(graph)
        change = passes.difference(counts(graph), counts(made))
        assert change.get("moved_bytes", 0) <= 0, template.name
        assert change.get("dispatch_count", 0) <= 0, template.name


def test_the_version_changes_with_the_list():
    assert passes.version() == passes.version(passes.RULES)
    assert passes.version(passes.RULES[:-1]) != passes.version()
    assert passes.version(passes.RULES[::-1]) != passes.version()


def test_rules_are_switched_by_name():
    assert passes.select() == passes.RULES
    assert passes.select("all") == ()
    assert [r.id for r in passes.select(only="layout+copy-elimination")] == ["copy-elimination", "layout"]
    assert "layout" not in {r.id for r in passes.select("layout")}
    with pytest.raises(passes.UnknownRuleError, match="lay-out"):
        passes.select("lay-out")


# ---- planted faults: one wrong version of each rule


def _fold_wrong(graph, at, node, draft):
    made = pointwise._folded(graph, node)
    return None if made is None else draft.constant(pointwise.as_array(made) * np.float32(1 + 2**-22))


def _fold_functions_wrong(graph, at, node, draft):
    made = pointwise._folded(graph, node)
    return None if made is None else draft.constant(pointwise.as_array(made).astype(np.float16).astype(np.float32))


def _copy_wrong(graph, at, node, draft):
    if not is_move(node, "copy"):
        return None
    maker = at.producer.get(node.inputs[0])
    return None if maker is None else maker.inputs[0]


def _no_op_wrong(graph, at, node, draft):
    """Any transpose is a reshape."""
    return draft.reshape(node.inputs[0], graph.specs[node.output].shape) if is_move(node, "transpose") else None


def _im2col_wrong(graph, at, node, draft):
    """Stride forgotten: the first pixels instead of every second."""
    if node.primitive != "Im2col" or any(k != 1 for k in node.attrs["kernel_shape"]):
        return None
    x, y = graph.specs[node.inputs[0]], graph.specs[node.output]
    flat = draft.reshape(node.inputs[0], (*x.shape[:2], 1, int(np.prod(x.shape[2:]))))
    return draft("DataMove", flat, fn="slice", starts=(0,) * 4, ends=y.shape, steps=(1,) * 4)


def _pairs_wrong(graph, at, node, draft):
    """Composed in the wrong order."""
    before = at.producer.get(node.inputs[0]) if is_move(node, "transpose") else None
    if not is_move(before, "transpose"):
        return None
    perm = tuple(node.attrs["perm"][p] for p in before.attrs["perm"])
    return draft.transpose(before.inputs[0], perm)


def _gemm_wrong(graph, at, node, draft):
    """Zero points stay on their side."""
    if node.primitive != "Gemm" or len(node.inputs) < 4 or movement._cost(graph, at, node.inputs[0]) >= 0:
        return None
    a, b = (movement._transposed(graph, at, n, draft) for n in node.inputs[:2])
    zeros = [draft.constant(graph.constants[n].ravel()[0]) if n in graph.constants else None for n in node.inputs[2:]]
    if None in zeros:
        zeros = [draft.constant(np.zeros((), graph.constants[through(at, n)[0]].dtype)) for n in node.inputs[2:]]
    return draft.transpose(draft("Gemm", b, a, zeros[1], zeros[0]), (1, 0))


def _sink_wrong(graph, at, node, draft):
    """The constant operand is not permuted with the tensor."""
    maker = at.producer.get(node.inputs[0])
    view = constant_view(graph, at, node.inputs[1]) if len(node.inputs) == 2 else None
    if node.primitive != "Elementwise" or not is_move(maker, "transpose") or view is None:
        return None
    before = graph.specs[maker.inputs[0]].shape
    operand = draft.constant(np.ascontiguousarray(view).reshape(before))
    return draft.transpose(draft("Elementwise", maker.inputs[0], operand, fn=node.fn), maker.attrs["perm"])


def _sink_quantize_wrong(graph, at, node, draft):
    """Channels are taken for a tensor: the transpose crosses parameters that belong to an axis."""
    if node.primitive != "Quantize":
        return None
    name, _ = through(at, node.inputs[0])
    maker = at.producer.get(name)
    if not is_move(maker, "transpose"):
        return None
    shape, perm = graph.specs[maker.inputs[0]].shape, maker.attrs["perm"]
    made = draft(
        node.primitive, draft.reshape(maker.inputs[0], graph.specs[node.output].shape), *node.inputs[1:], **node.attrs
    )
    return draft.reshape(draft.transpose(draft.reshape(made, shape), perm), graph.specs[node.output].shape)


def _layout_wrong(graph, at, node, draft):
    """The narrow tensor is reshaped instead of transposed."""
    found = movement.layout(graph, at, node, draft)
    for i, made in enumerate(draft.nodes):
        if found is not None and is_move(made, "transpose"):
            draft.nodes[i] = replace(made, fn="reshape", attrs={"shape": draft.specs[made.output].shape})
    return found


def _slices_wrong(graph, at, node, draft):
    """Parts are joined whatever their order."""
    makers = [at.producer.get(n) for n in node.inputs] if is_move(node, "concat") else []
    if not makers or not all(is_move(m, "slice") for m in makers) or len({m.inputs[0] for m in makers}) != 1:
        return None
    return makers[0].inputs[0]


def _chains_wrong(graph, at, node, draft):
    """Casts that lose digits are taken for nothing."""
    before = at.producer.get(node.inputs[0]) if node.kind == "Elementwise.cast" else None
    return before.inputs[0] if before is not None and before.kind == "Elementwise.cast" else None


def _relu_wrong(graph, at, node, draft):
    """The zero point is not looked at."""
    name, _ = through(at, node.inputs[0]) if node.primitive == "Quantize" else ("", False)
    relu = at.producer.get(name)
    if relu is None or relu.fn != "relu":
        return None
    return draft(
        "Quantize", draft.reshape(relu.inputs[0], graph.specs[node.output].shape), *node.inputs[1:], **node.attrs
    )


def _quantize_pairs_wrong(graph, at, node, draft):
    """Parameters are not compared."""
    name, _ = through(at, node.inputs[0]) if node.primitive == "Quantize" else ("", False)
    maker = at.producer.get(name)
    if maker is None or maker.primitive != "Dequantize" or graph.specs[maker.inputs[0]].dtype != node.attrs["to"]:
        return None
    return draft.reshape(maker.inputs[0], graph.specs[node.output].shape)


def _table_wrong(graph, at, node, draft):
    """Entries in the order of int8, read by index modulo 256."""
    found = pointwise.lookup_table(graph, at, node, draft)
    for name, table in list(draft.constants.items()):
        if table.shape == (1, 256, 1):
            draft.constants[name] = np.roll(table, 128, axis=1)
    return found


def _affine_wrong(graph, at, node, draft):
    """The bias is not scaled."""
    found = linear.affine_into_gemm(graph, at, node, draft)
    if (
        found is not None
        and node.fn == "mul"
        and draft.nodes[-2 if draft.nodes[-1].kind == "DataMove.reshape" else -1].fn == "add"
    ):
        for name, part in list(draft.constants.items())[-1:]:
            draft.constants[name] = part * np.float32(1.01)
    return found


def _fused_wrong(graph, at, node, draft):
    """The bias is dropped."""
    found = fusion.requantize_into_gemm(graph, at, node, draft)
    for i, made in enumerate(draft.nodes):
        if found is not None and made.kind in fusion.FUSED and node.primitive == "Requantize":
            nothing = draft.constant(np.zeros((), np.int32))
            draft.nodes[i] = replace(made, inputs=(*made.inputs[:4], nothing, *made.inputs[5:]))
    return found


WRONG = {
    "constant-folding": (_fold_wrong, "constant-folding/pattern"),
    "constant-functions": (_fold_functions_wrong, "constant-functions/pattern"),
    "copy-elimination": (_copy_wrong, "copy-elimination/pattern"),
    "no-op-movement": (_no_op_wrong, "no-op-movement/real"),
    "im2col-pointwise": (_im2col_wrong, "im2col-pointwise/stride"),
    "transpose-pairs": (_pairs_wrong, "transpose-pairs/other perm"),
    "gemm-transposes": (_gemm_wrong, "gemm-transposes/zero points"),
    "transpose-through-elementwise": (_sink_wrong, "transpose-through-elementwise/constant"),
    "transpose-through-quantize": (_sink_quantize_wrong, "transpose-through-quantize/per channel"),
    "layout": (_layout_wrong, "layout/cast"),
    "slice-and-concat": (_slices_wrong, "slice-and-concat/other order"),
    "elementwise-chains": (_chains_wrong, "elementwise-chains/lossy casts"),
    "relu-into-quantize": (_relu_wrong, "relu-into-quantize/inner zero point"),
    "quantize-pairs": (_quantize_pairs_wrong, "quantize-pairs/other scale"),
    "lookup-table": (_table_wrong, "lookup-table/pattern"),
    "affine-into-gemm": (_affine_wrong, "affine-into-gemm/pattern"),
    "requantize-into-gemm": (_fused_wrong, "requantize-into-gemm/conv"),
}


def test_every_rule_has_a_planted_wrong_version():
    assert list(WRONG) == [rule.id for rule in passes.RULES]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_named_and_the_right_list_is_clean(name, find):
    wrong, template_name = WRONG[name]
    template = next(t for t in TEMPLATES if t.name == template_name)
    rules = tuple(replace(r, match=wrong) if r.id == name else r for r in passes.RULES)
    for seed in range(SEEDS):
        model, feeds = template.build(seed)
        graph = lower(model, feeds)
        exacts = evaluate(graph, feeds)

        def seen(some, graph=graph, feeds=feeds):
            made, _ = passes.optimise(graph, some)
            return Seen(run(made, feeds, find), counts(made))

        assert bisect(passes.RULES, exacts, seen) is None
        culprit = bisect(rules, exacts, seen)
        if culprit is not None:
            assert culprit.rule == name, culprit
            return
    raise AssertionError(f"the wrong {name} was not seen in {SEEDS} cases")


def test_a_rule_that_adds_a_transpose_there_and_back_is_named(find):
    def detour(graph, at, node, draft):
        if node.kind != "Elementwise.neg" or is_move(at.producer.get(node.inputs[0]), "transpose"):
            return None
        rank = len(graph.specs[node.output].shape)
        perm = (*range(1, rank), 0)
        there = draft.transpose(node.inputs[0], perm)
        return draft.transpose(draft("Elementwise", there, fn="neg"), tuple(int(i) for i in np.argsort(perm)))

    rules = (*passes.RULES[:3], passes.Rule("detour", detour, "planted"))
    model, feeds = next(t for t in TEMPLATES if t.name == "copy-elimination/pattern").build(0)
    graph = lower(model, feeds)

    def seen(some):
        made, _ = passes.optimise(graph, some)
        return Seen(run(made, feeds, find), counts(made))

    culprit = bisect(rules, evaluate(graph, feeds), seen)
    assert culprit is not None
    assert culprit.rule == "detour"
    assert "grew" in culprit.reason


def test_a_layout_that_is_not_channels_last_is_left_alone(find):
    def swapped(graph, at, node, draft):
        """Height and width are taken for one another."""
        other = node.kind == "DataMove.transpose" and node.attrs["perm"] == (0, 3, 2, 1)
        taken = replace(node, attrs={"perm": (0, 2, 3, 1)}) if other else node
        return fusion.requantize_into_gemm(graph, at, taken, draft)

    template = next(t for t in TEMPLATES if t.name == "requantize-into-gemm/last other perm")
    wrong = [replace(r, match=swapped) if r.id == "requantize-into-gemm" else r for r in passes.RULES]
    seen = set()
    for seed in range(SEEDS):
        model, feeds = template.build(seed)
        graph = lower(model, feeds)
        exacts = evaluate(graph, feeds)
        for rules in (passes.RULES, wrong):
            made, _ = passes.optimise(graph, rules)
            last = any(n.fn == "im2row_requantize" for n in made.nodes)
            seen.add((rules is wrong, last, outside(exacts, run(made, feeds, find)) == ""))
    assert {(last, right) for planted, last, right in seen if not planted} == {(False, True)}
    assert (True, True, False) in seen
