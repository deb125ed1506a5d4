"""From rows to models: ids, selection, exhaustion, shrinking, and single-node models that ONNX's checker accepts."""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from dataclasses import replace

import hypothesis
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from opgauge import generate, model
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.case import id_of, parse_id
from opgauge.reference_engine.errors import CaseError
from opgauge.reference_engine.lower import MAX_OPSET
from opgauge.reference_engine.types import Arg, Case, CaseSpec
from opgauge.suites import cases

ROWS = cases()
BY_NAME = {row.name: row for row in ROWS}


def some(name: str, budget: int, seed: int = 0) -> list[Case]:
    found: list[Case] = []
    generate.explore(BY_NAME[name], budget, seed, lambda text, case: found.append(case))
    return found


def checked(data: bytes) -> None:
    """onnx.checker wants output shapes, which cases leave to the runtime: strict inference finds them first."""
    proto = onnx.shape_inference.infer_shapes(onnx.load_from_string(data), strict_mode=True, data_prop=True)
    for value in proto.graph.output:
        value.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(proto)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_draws_legal_cases_whose_ids_read_back(row):
    found: list[tuple[str, Case]] = []
    generate.explore(row, 8, 1, lambda text, case: found.append((text, case)))

    assert len(found) == 8
    for text, case in found:
        assert parse_id(text) == (case, row.label)
        assert not set(text) & set(" \n'\"\\$`")
        assert 13 <= case.opset <= MAX_OPSET
        data, inputs = model.build(case)
        checked(data)
        for arg in case.args:
            if not arg.absent and not arg.const:
                assert inputs[arg.name].shape == arg.shape
                assert inputs[arg.name].dtype == dt.numpy_dtype(arg.dtype)


def test_the_checker_sees_a_planted_wrong_attribute():
    case = next(c for c in some("Transpose/float32", 20) if c.attrs)
    checked(model.build(case)[0])

    with pytest.raises((onnx.checker.ValidationError, onnx.shape_inference.InferenceError)):
        checked(model.build(replace(case, attrs=(("permutation", (0,)),)))[0])


def given_round(row: CaseSpec, seed: int, number: int, decks: generate.Decks) -> list[Case]:
    """A round as `hypothesis.given` draws it."""
    providers.AVAILABLE_PROVIDERS["opgauge-dealing"] = generate.dealing(decks)
    drawn: list[Case] = []

    @hypothesis.seed(generate.stable_seed(row.name, seed, number))
    @hypothesis.settings(
        max_examples=generate.FIRST if number == 0 else generate.CHUNK,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=tuple(HealthCheck),
        backend="opgauge-dealing",
    )
    @hypothesis.given(row.draw)
    def collect(case: Case) -> None:
        drawn.append(case)

    collect()
    return drawn


@pytest.mark.parametrize("row", ROWS[::20], ids=lambda row: row.name)
def test_a_round_is_what_hypothesis_draws_with_the_same_seed(row):
    ours: generate.Decks = {}
    theirs: generate.Decks = {}
    for number in range(2):
        assert generate.draw_round(row, 3, number, ours, neighbours=0) == given_round(row, 3, number, theirs)
    assert ours == theirs
    assert generate.draw_round(row, 4, 1, {}, neighbours=0) != given_round(row, 3, 1, {})  # control: another seed


def twins(row: CaseSpec, neighbours: int) -> int:
    """How often a case has the shapes of the one before it, and something else."""
    cases = [c for n in range(1, 9) for c in generate.draw_round(row, 0, n, {}, neighbours)]
    shapes = [[(a.name, a.shape) for a in c.args] for c in cases]
    return sum(a == b and c != d for a, b, c, d in zip(shapes, shapes[1:], cases, cases[1:], strict=False))


@pytest.mark.parametrize("name", ["Gemm/float32", "QLinearConv/uint8,int8", "Softmax/float32", "Transpose/int8"])
def test_some_cases_are_the_one_before_with_other_attributes_or_data(name):
    row = BY_NAME[name]
    assert twins(row, generate.NEIGHBOURS) >= 8  # of 200
    assert twins(row, 0) <= 4  # control


def test_a_draw_that_assumes_too_much_gives_what_it_can_and_ends():
    @st.composite
    def odd(draw):
        hypothesis.assume(draw(st.integers(0, 9)) % 2)
        return draw(BY_NAME["Relu/float32"].draw)

    row = replace(BY_NAME["Relu/float32"], draw=odd())
    assert len(generate.draw_round(row, 0, 1, {})) == generate.CHUNK
    never = replace(row, draw=st.integers().filter(lambda _: False))
    assert generate.draw_round(never, 0, 1, {}) == []


def test_the_same_seed_gives_the_same_cases_and_a_larger_budget_begins_with_them():
    few, many, other = (some("QLinearConv/uint8,int8", n, s) for n, s in ((30, 0), (70, 0), (30, 5)))

    assert many[:30] == few
    assert len(many) == 70
    assert other != few


# A case id of today and what its model and inputs hash to; reading it must give the same in five years.
WRITTEN = (
    (
        "QLinearMatMul/uint8,int8/op13/a=uint8:3x5:near@129@12/a_scale!=float32:-:0.5/a_zero_point!=uint8:-:129"
        "/b!=int8:5x2:near@3@1/b_scale!=float32:2:spread@0.02@3/b_zero_point!=int8:2:near@3@2/y_scale=float32:-:0.1"
        "/y_zero_point=uint8:-:7/y=uint8/ties/s1530632",
        "fe6ae602c034a0e1",
    ),
    (
        "Slice/float32/op13/data=float32:4x9:uniform/starts!=int64:1:-1/ends!=int64:1:-9223372036854775808"
        "/axes=/steps!=int64:1:-2/y=float32/plain/s12",
        "ad4c3d97f7b7f146",
    ),
    (
        "com.microsoft::QGemm/int8,int8/op13/A=int8:2x3:extremes/a_scale=float32:-:1e-05/a_zero_point=int8:-:0"
        "/B!=int8:3x4:sparse@-1/b_scale=float32:-:3/b_zero_point=int8:-:-1/C=int32:4:near@0@6/@alpha=f:0.5/@transB=i:0"
        "/y=float32/plain/s3",
        "3e5be4062ce6bf11",
    ),
)


@pytest.mark.parametrize(("text", "expected"), WRITTEN)
def test_a_written_id_builds_the_same_model_and_inputs_for_ever(text, expected):
    case, label = parse_id(text)
    data, inputs = model.build(case)
    total = hashlib.sha256(data)
    for name, array in inputs.items():
        total.update(name.encode() + array.tobytes())

    assert id_of(case, label) == text
    assert total.hexdigest()[:16] == expected


def test_a_row_with_few_cases_is_reported_as_exhausted():
    row = CaseSpec(
        "Relu", "float32", st.integers(0, 4).map(lambda n: Case("Relu", "", 13, (), ("float32",), seed=n)), ""
    )
    found: list[str] = []

    assert generate.explore(row, 100, 0, lambda text, case: found.append(text)) == (5, True)
    assert len(set(found)) == len(found) == 5
    assert generate.explore(row, 3, 0, lambda text, case: None) == (3, False)


def test_an_error_of_the_visitor_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        generate.explore(BY_NAME["Relu/float32"], 3, 0, lambda text, case: 1 // 0)


def test_dtypes_are_matched_as_whole_words():
    signed = generate.select(ROWS, dtypes=["int8"])

    assert {"MatMulInteger/int8,int8", "MatMulInteger/uint8,int8"} <= {row.name for row in signed}
    assert all("int8" in row.label.split(",") for row in signed)
    assert "MatMulInteger/uint8,uint8" not in {row.name for row in signed}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("QLinearMatMul", {"uint8,int8", "uint8,uint8", "int8,int8", "int8,uint8"}),
        ("QLinearMatMul and int8 and not uint8", {"int8,int8"}),
        ("QLinearMatMul and (not int8 or not uint8)", {"int8,int8", "uint8,uint8"}),
        ("QLinearMatMul/uint8,int8", {"uint8,int8"}),
        ("not not QLinearMatMul and uint8,uint8 or QLinearMatMul and int8,int8", {"uint8,uint8", "int8,int8"}),
    ],
)
def test_expressions_join_whole_words(expression, expected):
    assert {(r.op, r.label) for r in generate.select(ROWS, expression=expression)} == {
        ("QLinearMatMul", label) for label in expected
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ops": ["qlinearmatmul"]}, "did you mean QLinearMatMul"),
        ({"ops": ["Matmul"]}, "did you mean MatMul"),
        ({"dtypes": ["int9"]}, "no dtype 'int9'"),
        ({"expression": "MatMul and int"}, "no operator or dtype 'int'"),
        ({"expression": "MatMul int8"}, "'int8' is not expected"),
        ({"expression": "MatMul and"}, "missing before the end"),
        ({"expression": "(MatMul or Conv"}, "closing parenthesis"),
        ({"expression": "MatMul)"}, "not expected"),
    ],
)
def test_a_selection_that_cannot_be_meant_says_what_is_near(arguments, message):
    with pytest.raises(generate.SelectionError, match=message):
        generate.select(ROWS, **arguments)


def test_nothing_asked_selects_everything():
    assert generate.select(ROWS) == ROWS


def test_shrinking_finds_a_small_case_that_still_fails():
    row = BY_NAME["Gemm/float32"]

    def failing(case: Case) -> bool:
        return ("transA", 1) in case.attrs

    worst = max((c for c in some(row.name, 40) if failing(c)), key=lambda c: math.prod(c.args[0].shape))
    small = generate.shrink(row, 0, failing, 10.0)

    assert small is not None
    assert failing(small)
    assert math.prod(small.args[0].shape) < math.prod(worst.args[0].shape)
    assert generate.shrink(row, 0, lambda case: False, 0.2) is None


def row_share(name: str, holds, budget: int = 400) -> float:
    found = some(name, budget)
    return sum(map(bool, map(holds, found))) / len(found)


def shape(case: Case, name: str) -> tuple[int, ...]:
    return next(arg.shape for arg in case.args if arg.name == name)


def attribute(case: Case, name: str):
    return dict(case.attrs).get(name)


@pytest.mark.parametrize(
    ("name", "least", "holds"),
    [
        ("QLinearMatMul/uint8,int8", 0.02, lambda c: 1025 <= shape(c, "a")[-1] <= 1300 or shape(c, "a")[-1] > 2048),
        ("QLinearMatMul/uint8,int8", 0.15, lambda c: c.profile == "ties"),
        ("QLinearMatMul/uint8,int8", 0.10, lambda c: len(shape(c, "b_scale")) == 1),
        ("QLinearConv/int8,int8", 0.15, lambda c: attribute(c, "group") and shape(c, "w_scale")),
        ("ConvInteger/uint8,int8", 0.03, lambda c: attribute(c, "group") == shape(c, "x")[1] in (5, 9, 13, 17)),
        ("Conv/float32", 0.10, lambda c: len(set(attribute(c, "strides") or ())) > 1),
        ("Gemm/float32", 0.03, lambda c: attribute(c, "transA") and len(set(shape(c, "A"))) == 1),
        ("MatMul/float32", 0.03, lambda c: len(shape(c, "A")) == 1),
        ("MatMul/float32", 0.01, lambda c: 1 in shape(c, "A")[:-2] and 1 in shape(c, "B")[:-2]),
        (
            "Add/float32",
            0.05,
            lambda c: sorted(shape(c, "A")) == sorted(shape(c, "B")) and shape(c, "A") != shape(c, "B"),
        ),
        ("Softmax/float32", 0.10, lambda c: (attribute(c, "axis") or 0) < -1),
        ("Transpose/float32", 0.10, lambda c: len(set(shape(c, "data"))) == 1 and len(shape(c, "data")) > 2),
        ("MaxPool/float32", 0.10, lambda c: c.profile == "negative" and attribute(c, "pads")),
        ("Concat/float32", 0.03, lambda c: attribute(c, "axis") == -1),
    ],
)
def test_the_shapes_that_hide_faults_are_drawn_often_enough(name, least, holds):
    assert row_share(name, holds) >= least


def test_a_hundred_quantized_cases_give_thirty_thousand_outputs():
    outputs = [math.prod((*shape(c, "a")[:-1], shape(c, "b")[-1])) for c in some("QLinearMatMul/uint8,int8", 100)]

    assert sum(outputs) >= 30_000


def test_tie_probes_are_a_quarter_exact_ties():
    ties = total = 0
    for case in some("QLinearMatMul/int8,int8", 200):
        if case.profile != "ties" or shape(case, "a_scale") or len(shape(case, "b_scale")) > 1:
            continue
        data = {arg.name: model.tensor(arg, case.seed, i).astype(np.float64) for i, arg in enumerate(case.args)}
        acc = (data["a"] - data["a_zero_point"]) @ (data["b"] - data["b_zero_point"])
        value = acc * data["a_scale"] * data["b_scale"] / data["y_scale"]
        ties += int((np.abs(value) % 1 == 0.5).sum())
        total += value.size

    assert total > 5_000
    assert ties / total >= 0.25


def test_models_use_the_lowest_ir_version_and_leave_output_shapes_open():
    assert [model.ir_version(opset) for opset in (13, 14, 15, 18, 19, 20, 21, 22, 23, 25)] == [
        7,
        7,
        8,
        8,
        9,
        9,
        10,
        10,
        11,
        12,
    ]
    proto = onnx.load_from_string(model.build(some("QLinearAdd/int8", 1)[0])[0])

    assert [(o.domain, o.version) for o in proto.opset_import] == [("", 13), ("com.microsoft", 1)]
    assert not proto.graph.output[0].type.tensor_type.HasField("shape")


def test_absent_inputs_are_empty_names_and_constants_are_initializers():
    case = Case(
        "Clip",
        "",
        13,
        (Arg("input", "float32", (3,), "normal"), Arg("min"), Arg("max", "float32", (), values=(0.5,), const=True)),
        ("float32",),
    )
    data, inputs = model.build(case)
    graph = onnx.load_from_string(data).graph

    assert list(graph.node[0].input) == ["input", "", "max"]
    assert list(inputs) == ["input"]
    assert onnx.numpy_helper.to_array(graph.initializer[0]) == 0.5


BFLOAT = Case(
    "Identity", "", 16, (Arg("input", "bfloat16", (2, 3), "normal"), Arg("s", "int8", (), values=(3,))), ("bfloat16",)
)


def test_a_saved_case_reads_back(tmp_path):
    path = model.save(BFLOAT, "bfloat16", tmp_path, {"status": "fail"})
    data, inputs = model.build(BFLOAT)
    read_data, read_inputs, meta = model.load_saved(path.with_suffix(".onnx"))

    assert read_data == data
    assert meta["extra"] == {"status": "fail"}
    assert parse_id(meta["id"]) == (BFLOAT, "bfloat16")
    assert {n: (a.dtype, a.tobytes(), a.shape) for n, a in read_inputs.items()} == {
        n: (a.dtype, a.tobytes(), a.shape) for n, a in inputs.items()
    }
    with pytest.raises(ValueError, match="JSON"):
        model.save(BFLOAT, "bfloat16", tmp_path, {"error": float("nan")})


def rewrite_json(path, change) -> None:
    path.write_text(change(path.read_text()))


def rewrite_npz(path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path.with_suffix(".npz"), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def npy(array: np.ndarray, claimed: tuple[int, ...] | None = None) -> bytes:
    stream = io.BytesIO()
    header = {
        "descr": np.lib.format.dtype_to_descr(array.dtype),
        "fortran_order": False,
        "shape": claimed or array.shape,
    }
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + (b"" if array.dtype == object else array.tobytes())


GOOD = {"input.npy": npy(np.zeros((2, 3), np.uint16)), "s.npy": npy(np.zeros((), np.int8))}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: rewrite_json(p, lambda t: t.replace('"format"', '"label": "x", "format"')), "'label' occurs twice"),
        (lambda p: rewrite_json(p, lambda t: t.replace('"fail"', "NaN")), "NaN is not JSON"),
        (lambda p: rewrite_json(p, lambda t: t.replace('"format": 1', '"format": 2')), "format 1"),
        (lambda p: rewrite_json(p, lambda t: "[]"), "not a saved case"),
        (lambda p: rewrite_json(p, lambda t: "[" * 100_000), "save the case again"),
        (lambda p: rewrite_npz(p, GOOD | {"../evil.npy": b""}), "evil"),
        (lambda p: rewrite_npz(p, GOOD | {"input.npy": npy(np.zeros(2000, np.uint16))}), "would unpack to"),
        (lambda p: rewrite_npz(p, GOOD | {"input.npy": npy(np.zeros(3, np.uint16), (2**40,))}), "does not fit"),
        (lambda p: rewrite_npz(p, GOOD | {"input.npy": npy(np.zeros(1, object))}), "expected uint16"),
        (lambda p: p.with_suffix(".npz").write_bytes(b"PK"), "zip"),
        (lambda p: p.with_suffix(".onnx").unlink(), "No such file"),
    ],
)
def test_a_damaged_saved_case_is_refused_with_a_typed_error(tmp_path, damage, message):
    path = model.save(BFLOAT, "bfloat16", tmp_path, {"status": "fail"})
    rewrite_npz(path, GOOD)
    assert model.load_saved(path, limit=2000)  # control
    assert json.loads(path.read_text())["format"] == 1
    damage(path)

    with pytest.raises(CaseError, match=message):
        model.load_saved(path, limit=2000)
