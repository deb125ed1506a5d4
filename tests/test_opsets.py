"""The opset sweep: which opsets can spell a case, what changed between them, and disagreements that are findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from opgauge import opsets
from opgauge.backends import resolve
from opgauge.client import Client
from opgauge.oracles import inside_set
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.operators import OPERATORS
from opgauge.reference_engine.types import Case, Exact, Record, Status

RELU = "Relu/float32/op13/X=float32:2x3:normal/y=float32/plain/s1"
ADD8 = "Add/int8/op14/A=int8:2x3:uniform/B=int8:2x3:uniform/y=int8/plain/s1"
CLIP = "Clip/float32/op13/input=float32:2x3:normal/min!=float32:-:0/max!=float32:-:1/y=float32/plain/s1"
SOFTMAX = "Softmax/float32/op13/input=float32:2x3x4:normal/y=float32/plain/s1"


def case_of(text: str) -> Case:
    return parse_id(text)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (RELU, [7, 14]),  # 6 is written as 7, which runtimes take
        (ADD8, []),  # no earlier version has int8
        (CLIP, [11, 12]),  # before 11 the limits were attributes
        (SOFTMAX, [7, 11]),
    ],
)
def test_a_case_is_tried_once_for_each_version_that_can_spell_it(text: str, expected: list[int]) -> None:
    assert opsets.opsets(case_of(text)) == expected


def test_a_change_lies_between_opsets_and_not_beside_them() -> None:
    softmax, relu = case_of(SOFTMAX), case_of(RELU)

    assert [c.since for c in opsets.changes(softmax, 11)] == [13]
    assert opsets.changes(softmax, 22) == []
    assert opsets.changes(relu, 7) == []


def test_every_change_names_lowered_operators_and_a_version_that_onnx_has() -> None:
    versions: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            versions.setdefault(schema.name, set()).add(schema.since_version)
    for change in opsets.CHANGES:
        for op in change.ops:
            assert ("", op) in OPERATORS
            assert change.since in versions[op], (op, change.since)


def seen(value: list[float], lo: list[float] | None = None, hi: list[float] | None = None) -> opsets.Seen:
    array = np.array(value, np.float32)
    bounds = (np.array(lo or value, np.float64), np.array(hi or value, np.float64))
    return opsets.Seen((Exact("float32", array, *bounds),), (array,))


def test_floats_may_be_rounded_otherwise_within_both_sets_and_integers_may_not() -> None:
    one, other = seen([1.0, 2.0], [0.9, 2.0], [1.2, 2.0]), seen([1.1, 2.0], [0.9, 2.0], [1.2, 2.0])
    beyond = seen([1.1, 2.0], [1.1, 2.0], [1.2, 2.0])
    ints = [
        opsets.Seen((Exact("int8", a, a - 1, a + 1),), (a,)) for a in (np.array([3], np.int8), np.array([4], np.int8))
    ]

    assert opsets.disagreement(one, other) == ""
    assert inside_set(beyond.exacts[0], one.outputs[0]).tolist() == [False, True]
    assert opsets.disagreement(one, beyond).startswith("output 0 differs in 1 of 2 elements, first at 0: 1.0 and 1.1")
    assert opsets.disagreement(seen([np.nan]), seen([np.nan])) == ""
    assert opsets.disagreement(*ints).startswith("output 0 differs in 1 of 1 elements")


KERNEL = """
import onnx
import numpy as np


def run(model, inputs):
    opset = onnx.load_from_string(model).opset_import[0].version
    (x,) = inputs.values()
    return [np.maximum(x, 0) {wrong}]
"""


def swept(tmp_path: Path, wrong: str) -> list[Record]:
    (tmp_path / "mine.py").write_text(KERNEL.format(wrong=wrong))
    found: list[Record] = []
    with Client(resolve(f"{tmp_path / 'mine.py'}:run")) as client:
        opsets.sweep(replace(case_of(RELU), seed=3), "float32", [client], (), found.append)
    return found


def test_a_kernel_that_is_wrong_at_one_opset_fails_there(tmp_path: Path) -> None:
    honest = swept(tmp_path, "")
    faulty = swept(tmp_path, "+ (opset == 14)")

    assert [(r.status, r.detail["opsets"]) for r in honest] == [(Status.PASS, [7, 13, 14])]
    assert [(r.status, r.suite) for r in faulty] == [(Status.FAIL, "opsets"), (Status.PASS, "opsets")]
    assert "/op14/" in faulty[0].case


def test_a_disagreement_within_the_sets_of_integers_is_a_finding_with_both_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is made to pass everything, so that only the comparison can see it."""
    monkeypatch.setattr(opsets.check, "judge", lambda exacts, seen, policy: opsets.check.Verdict(seen.status))
    (found,) = swept(tmp_path, "+ (opset == 7)")

    assert found.status is Status.FAIL
    assert found.message.startswith("opset 13 and 7 disagree although Relu means the same")
    assert "/op13/" in found.case
    assert "/op7/" in found.detail["other"]
    assert found.detail["other"] in found.message


def test_a_default_of_an_attribute_is_the_float32_that_a_model_would_hold() -> None:
    text = "LeakyRelu/float64/op16/X=float64:2:-1,2/{}y=float64/plain/s1"
    sets = []
    for stated in ("", "@alpha=f:0.01/"):
        data, inputs = opsets.check.model.build(case_of(text.format(stated)))
        (exact,) = opsets.check.evaluate(opsets.check.lower.lower(data, inputs), inputs)
        sets.append(exact.value)

    assert sets[0][0] == -float(np.float32(0.01))
    assert np.array_equal(*sets)
