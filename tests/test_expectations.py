"""A deviation excuses exactly the elements that it explains, where its condition holds, and goes stale."""

from __future__ import annotations

import datetime
from dataclasses import replace

import numpy as np
import pytest

from opgauge import expectations as ex
from opgauge import gate, instead, model, quarantine
from opgauge.backends.result import CONTRADICTED
from opgauge.oracles import judge
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Exact, Observation, Policy, Record, Status

ROW = """
[[deviation]]
id = "overflow"
operators = ["QLinearMul"]
runtime = "onnxruntime"
versions = ">=1.17,<=1.32"
when = "arch~x86_64"
predicate = "v >= 100 and got == 0"
witness = "Relu/float32/op13/X=float32:2:normal/y=float32/plain/s1"
reason = "overflow flips"
link = "docs/numerics.md"
"""
INFO = {"version": "1.32.0", "arch": "x86_64 avx2"}


def exact() -> Exact:
    real = np.asarray([1.0, 500.0, 600.0])
    value = np.asarray([1, 255, 255], np.uint8)
    return Exact(
        "uint8", value, value.astype(np.int64), value.astype(np.int64), real=real, zero_point=np.zeros(3, np.int64)
    )


def explained(got: list[int], op: str = "QLinearMul") -> Status:
    actual = np.asarray(got, np.uint8)
    verdict = judge([exact()], Observation(Status.PASS, (actual,)), Policy())
    return ex.explain(ex.parse(ROW, "here"), op, [exact()], [actual], verdict).status


@pytest.mark.parametrize(
    ("got", "status"),
    [
        ([1, 255, 255], Status.PASS),
        ([1, 0, 255], Status.DEVIATION),
        ([1, 0, 0], Status.DEVIATION),
        ([2, 0, 0], Status.FAIL),  # an element that the predicate does not explain
        ([1, 7, 0], Status.FAIL),
    ],
)
def test_only_the_elements_of_the_predicate_are_excused(got, status):
    assert explained(got) is status


def test_names_say_how_far_an_element_lies_and_whether_it_is_a_number():
    real = np.asarray([100.0, 100.0, np.nan])
    value = real.astype(np.float32)
    sets = Exact("float32", value, real, real, nan=np.isnan(real), real=real)
    got = np.asarray([99.0, np.nan, 4.0], np.float32)
    for predicate, mask in (
        ("under > 0 and under <= 1", [True, False, False]),
        ("under > 1", [False, False, False]),
        ("rel <= 0.01", [True, False, False]),
        ("rel <= 0.001", [False, False, False]),
        ("off <= 1", [True, False, False]),
        ("nan == 1", [False, True, False]),
        ("nan == 0", [True, False, True]),
    ):
        row = ex.parse(ROW.replace("v >= 100 and got == 0", predicate), "here")[0]
        assert ex.excused(row, sets, got).tolist() == mask


def test_another_operator_is_not_excused():
    assert explained([1, 0, 255], "QLinearAdd") is Status.FAIL


@pytest.mark.parametrize(
    ("runtime", "info", "holds"),
    [
        ("onnxruntime", INFO, True),
        ("onnxruntime", {**INFO, "version": "1.16.3"}, False),
        ("onnxruntime", {**INFO, "version": "1.32.7"}, True),
        ("onnxruntime", {**INFO, "version": "1.33.0"}, False),
        ("onnxruntime", {**INFO, "arch": "aarch64"}, False),
        ("openvino", INFO, False),
    ],
)
def test_a_row_speaks_of_its_runtime_versions_and_condition(runtime, info, holds):
    assert ex.applies(ex.parse(ROW, "here")[0], runtime, info) is holds


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('runtime = "onnxruntime"', 'runtime = "cpu"'), "never excused"),
        (('predicate = "v >= 100 and got == 0"', 'predicate = "__import__"'), "predicate clause"),
        (('versions = ">=1.17,<=1.32"', 'versions = "new"'), "version bound"),
        (('link = "docs/numerics.md"', ""), "'link' is missing"),
        (('link = "docs/numerics.md"', 'link = "x"\nliink = "x"'), "unknown key 'liink'"),
        (("[[deviation]]", "[[deviations]]"), "unknown table"),
        (("[[deviation]]", "[[deviation"), "not TOML"),
    ],
)
def test_a_corrupt_baseline_is_a_typed_error_that_names_the_row(change, message):
    with pytest.raises(BaselineError, match=message):
        ex.parse(ROW.replace(*change), "here.toml")


def test_the_same_id_twice_is_refused():
    with pytest.raises(BaselineError, match="twice"):
        ex.parse(ROW + ROW, "here.toml")


def test_shipped_rows_have_witnesses_that_can_be_replayed():
    rows = ex.load()
    assert rows
    for row in rows:
        case, _ = parse_id(row.witness)
        assert ex.about(row, case.op)


@pytest.mark.parametrize("row", [row for row in ex.load() if row.instead], ids=lambda row: row.id)
def test_what_a_runtime_computes_instead_is_excused_and_nothing_else(row):
    case, _ = parse_id(row.witness)
    data, feeds = model.build(case)
    exacts = evaluate(lower(data, feeds), feeds)
    sets = instead.exacts(row.instead, data, feeds, Policy())

    def status(first: np.ndarray) -> Status:
        outputs = [first, *(e.value for e in exacts[1:])]
        verdict = judge(exacts, Observation(Status.PASS, tuple(outputs)), Policy())
        return ex.explain([row], case.op, exacts, outputs, verdict, lambda name: sets).status

    # The ends too: two roundings in place of one have the same middle.
    ends = [np.asarray(x).astype(sets[0].value.dtype) for x in (sets[0].value, sets[0].hi, sets[0].lo)]
    told = next((x.copy() for x in ends if status(x) is Status.DEVIATION), ends[0])
    assert status(told) is Status.DEVIATION
    differs = told != exacts[0].value if told.shape == exacts[0].value.shape else np.ones(told.shape, bool)
    at = np.unravel_index(np.argmax(differs), told.shape)
    told[at] = told[at] + 3 if told[at] < 100 else told[at] - 3
    assert status(told) is Status.FAIL  # wrong in another way


@pytest.mark.parametrize(
    ("operators", "message"), [('["*", "Relu"]', "stands alone"), ('["*"]', "only with `instead`"), ('["Relu"]', "")]
)
def test_every_operator_is_excused_only_for_a_model_of_what_is_computed_instead(operators, message):
    text = ROW.replace('["QLinearMul"]', operators)
    if message:
        with pytest.raises(BaselineError, match=message):
            ex.parse(text, "here.toml")
    assert ex.parse(
        text.replace('["*", "Relu"]', '["*"]').replace("predicate =", 'instead = "copied"\npredicate ='), "x"
    )


NARROWED = (
    # case, model, what the runtime gives, whether that is excused
    ("Add/float64/op14/A=float64:1:0.1/B=float64:1:0.2/y=float64/plain/s0", "all-in-float32", 0.3, False),
    ("Add/float64/op14/A=float64:1:0.1/B=float64:1:0.2/y=float64/plain/s0", "all-in-float32", np.float32(0.3), True),
    ("Abs/float64/op13/X=float64:1:1e300/y=float64/plain/s0", "all-in-float32", np.finfo(np.float32).max, True),
    ("Abs/float64/op13/X=float64:1:1e300/y=float64/plain/s0", "all-in-float32", np.inf, False),
    ("Neg/int64/op13/X=int64:1:4294967298/y=int64/plain/s0", "all-in-int32", -2, True),
    ("Neg/int64/op13/X=int64:1:4294967298/y=int64/plain/s0", "all-in-int32", -3, False),
    ("Neg/int64/op13/X!=int64:1:4294967298/y=int64/plain/s0", "all-in-int32", -(2**31 - 1), True),
    ("Neg/int64/op13/X!=int64:1:4294967298/y=int64/plain/s0", "all-in-int32", -2, False),
    ("Identity/uint64/op13/input=uint64:1:4294967295/y=uint64/plain/s0", "all-in-int32", 2**64 - 1, True),
    ("ReduceMax/int64/op13/data=int64:1x1:16777217/@axes=I:0/y=int64/plain/s0", "integers-in-float32", 16777216, True),
    ("ReduceMax/int64/op13/data=int64:1x1:16777217/@axes=I:0/y=int64/plain/s0", "integers-in-float32", 16777218, False),
)


@pytest.mark.parametrize(("text", "name", "got", "excused"), NARROWED)
def test_narrowed_operands_excuse_what_the_narrower_type_gives(text, name, got, excused):
    case, _ = parse_id(text)
    data, feeds = model.build(case)
    (exact,) = evaluate(lower(data, feeds), feeds)
    (told,) = instead.exacts(name, data, feeds, Policy())
    outputs = [np.full(exact.value.shape, got, exact.value.dtype)]
    verdict = judge([exact], Observation(Status.PASS, tuple(outputs)), Policy())
    row = replace(ex.parse(ROW, "here")[0], operators=("*",), predicate="", instead=name)
    found = ex.explain([row], case.op, [exact], outputs, verdict, lambda _: (told,)).status
    assert found is (Status.DEVIATION if excused else verdict.status)
    assert excused or found in (Status.FAIL, Status.PASS)


def test_shapes_and_axes_are_not_narrowed_and_nothing_to_narrow_is_no_model():
    case, _ = parse_id("Reshape/float64/op13/data=float64:2:0.1,0.2/shape!=int64:1:-1/y=float64/plain/s0")
    data, feeds = model.build(case)
    (told,) = instead.exacts("all-in-float32", data, feeds, Policy())
    assert told.value.tolist() == [float(np.float32(0.1)), float(np.float32(0.2))]
    assert instead.exacts("all-in-int32", data, feeds, Policy()) == ()


@pytest.mark.parametrize(
    ("lines", "message"),
    [("", "must say which"), ('instead = "magic"', "unknown `instead` 'magic'; known: not-causal")],
)
def test_a_row_must_say_what_it_excuses(lines, message):
    with pytest.raises(BaselineError, match=message):
        ex.parse(ROW.replace('predicate = "v >= 100 and got == 0"', lines), "here.toml")


SOON = "2027-01-10"
ASIDE = f"""
[[quarantine]]
id = "our-conv"
operators = ["Conv"]
runtime = "onnxruntime"
owner = "the kernel team"
issue = "tracker 7"
expires = {SOON}
case = "^Conv/float32/"
"""
NOW = datetime.date(2026, 12, 31)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[quarantine]", "[quarantine]"), ""),  # control
        ((SOON, "2027-01-14"), ""),
        ((SOON, "2027-01-15"), "more than 14 days ahead"),
        ((SOON, f'"{SOON}"'), "not a date"),
        (('owner = "the kernel team"', ""), "'owner' is missing"),
        (('issue = "tracker 7"', 'issue = " "'), "issue = ' ' says nothing"),
        (('owner = "the kernel team"', "owner = 3"), "owner = 3 says nothing"),
        (('["Conv"]', "[]"), "not a list of names"),
        (('"onnxruntime"', '"cpu"'), "mended, not put aside"),
        (('case = "^', 'until = "^'), "unknown key 'until'"),
        (('"^Conv/float32/"', '"("'), "case: "),
        (("[[quarantine]]", "[quarantine]"), "a table of its own"),
    ],
)
def test_a_quarantine_says_who_where_and_until_when(change, message, monkeypatch):
    monkeypatch.setattr(quarantine, "today", lambda: NOW)
    text = ASIDE.replace(*change)
    if message:
        with pytest.raises(BaselineError, match=message):
            ex.parse(text, "here.toml")
    else:
        assert ex.parse(ROW + text, "here.toml") == ex.parse(ROW, "here.toml")
    with pytest.raises(BaselineError, match="twice"):
        ex.parse(ASIDE + ASIDE, "here.toml")


def test_what_is_put_aside_stays_a_finding_and_an_expired_row_is_one(tmp_path, monkeypatch):
    (tmp_path / "expectations.toml").write_text(ASIDE)
    monkeypatch.setenv("OPGAUGE_BASELINES", str(tmp_path))
    monkeypatch.setattr(quarantine, "today", lambda: NOW)
    backend = "onnxruntime==1.24.4"
    bad = Record("Conv/float32/op13/s1", "operators", "Conv", "float32", "plain", backend, Status.FAIL, "no")
    others = [replace(bad, case="Conv/int8/s1"), replace(bad, op="Gemm"), replace(bad, backend="cpu")]

    def told(record):
        return [(f.rule, f.message) for f in gate.findings([record])]

    assert told(bad) == [("fail", f"no [quarantine our-conv: the kernel team, tracker 7, until {SOON}]")]
    assert [told(other) for other in others] == [[("fail", "no")]] * 3  # control
    assert told(replace(bad, status=Status.PASS)) == []
    monkeypatch.setattr(quarantine, "today", lambda: datetime.date(2027, 1, 11))
    assert told(bad)[0][0] == "quarantine"
    assert "expired on 2027-01-10" in told(bad)[0][1]
    assert told(bad)[1:] == [("fail", "no")]


POOL = "MaxPool/float32/op13/X=float32:1x1x2:1,2/@kernel_shape=I:3/@strides=I:2/y=float32/plain/s0"
ONE_WINDOW = (
    ROW.replace('predicate = "v >= 100 and got == 0"', 'instead = "one-window-where-none-fits"')
    .replace('["QLinearMul"]', '["MaxPool"]')
    .replace("overflow", "one-window")
)


@pytest.mark.parametrize(
    ("got", "status"),
    [
        (np.zeros((1, 1, 0)), Status.PASS),
        (np.full((1, 1, 1), 2.0), Status.DEVIATION),
        (np.full((1, 1, 1), 1.0), Status.FAIL),  # its shape, and not its values
        (np.full((1, 1, 2), 2.0), Status.FAIL),
    ],
)
def test_another_shape_is_excused_only_as_a_whole(got, status):
    case, _ = parse_id(POOL)
    data, inputs = model.build(case)
    exacts = evaluate(lower(data, inputs), inputs)
    outputs = (got.astype(np.float32),)
    verdict = judge(exacts, Observation(Status.PASS, outputs), Policy())

    def other(name):
        return instead.exacts(name, data, inputs, Policy())

    assert ex.explain(ex.parse(ONE_WINDOW, "here"), "MaxPool", exacts, outputs, verdict, other).status is status


def test_a_row_about_windows_that_do_not_fit_says_nothing_where_they_do():
    case, _ = parse_id(POOL.replace("1x1x2:1,2", "1x1x3:1,2,3"))
    assert instead.exacts("one-window-where-none-fits", *model.build(case), Policy()) == ()


INFERRED = ROW.replace("v >= 100 and got == 0", "inferred")


@pytest.mark.parametrize(
    ("got", "counted", "rows", "status"),
    [
        ([1, 255, 255], 0, INFERRED, Status.PASS),
        ([1, 255, 255], 1, INFERRED, Status.DEVIATION),
        ([1, 255, 255], 1, ROW, Status.FAIL),  # a row about elements excuses no shape
        ([1, 7, 255], 1, INFERRED, Status.FAIL),
        ([1, 7, 255], 0, INFERRED, Status.FAIL),
    ],
)
def test_a_shape_that_the_runtime_contradicts_is_a_fault_of_its_own(got, counted, rows, status):
    seen = Observation(Status.PASS, (np.asarray(got, np.uint8),), counts={CONTRADICTED: counted})
    verdict = judge([exact()], seen, Policy())
    assert ex.explain(ex.parse(rows, "here"), "QLinearMul", [exact()], seen.outputs, verdict).status is status
