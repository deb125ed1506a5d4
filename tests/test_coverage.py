"""What cases exercise, in classes; and that dealing choices meets more of them than drawing each for itself."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from opgauge import cli, coverage, generate
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.types import Case, CaseSpec, Record, Status
from opgauge.suites import cases

ID = (
    "QLinearMatMul/uint8,int8/op13/a=uint8:2x17:near@129@12/a_scale!=float32:-:0.5/a_zero_point!=uint8:-:255"
    "/b!=int8:17x5:near@3@1/b_scale!=float32:5:spread@0.02@3/b_zero_point!=int8:5:near@3@2/y_scale=float32:-:0.1"
    "/y_zero_point=uint8:-:7/y=uint8/ties/s1530632"
)


def words(text: str) -> set[str]:
    return {word for _, word in coverage.classes(parse_id(text)[0])}


def test_a_case_has_the_classes_of_its_shapes_parameters_and_data() -> None:
    found = words(ID)

    assert {"a last % 16 = 1", "a last % 8 = 1", "a last % 32 below", "a rank 2", "a unequal dimensions"} <= found
    assert {"a_scale 2^k, usual", "a_zero_point largest", "y_scale other, usual", "y_zero_point odd"} <= found
    assert {"b constant", "a at run time", "a near", "profile ties", "opset 13", "b_scale rank 1"} <= found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Add/float32/op13/A=float32:3x1:normal/B=float32:4:normal/y=float32/plain/s1", {"rank +1", "first repeated"}),
        ("Add/float32/op13/A=float32:3x4:normal/B=float32:3x4:normal/y=float32/plain/s1", {"same shape"}),
        ("Relu/float32/op13/X=float32:0x3:normal/y=float32/plain/s1", {"X empty", "with none"}),
        ("Relu/float32/op13/X=float32:3x3x3:special/y=float32/special/s1", {"X equal dimensions", "X special"}),
        (
            "Transpose/float32/op13/data=float32:2x3:normal/@perm=I:1,0/y=float32/plain/s1",
            {"perm some 0", "with perm"},
        ),
        ("Softmax/float32/op13/input=float32:2x3:normal/@axis=i:-1/y=float32/plain/s1", {"axis -1", "with axis"}),
    ],
)
def test_forms_of_cases_are_told_apart(text: str, expected: set[str]) -> None:
    assert expected <= words(text)


@pytest.mark.parametrize(
    ("size", "expected"), [(15, "below"), (16, "= 0"), (17, "= 1"), (31, "= -1"), (40, "else"), (0, "below")]
)
def test_a_size_stands_to_a_width_in_one_of_five_ways(size: int, expected: str) -> None:
    assert coverage.residue(size, 16) == expected


def record(case: str, backend: str, **counts: Any) -> Record:
    return Record(case, "operators", "QLinearMatMul", "uint8,int8", "ties", backend, Status.PASS, **counts)


def test_a_case_counts_once_for_all_backends_and_its_results_count_too() -> None:
    (row,) = coverage.of_records([record(ID, "a", ties=3), record(ID, "b", saturated=1), record("statistics/x", "a")])

    assert (row.name, row.cases) == ("QLinearMatMul/uint8,int8", 1)
    assert set(row.classes.values()) == {1}
    assert row.once == len(row.classes)
    assert {("outcome", "ties"), ("outcome", "saturated")} <= set(row.classes)
    assert sum(row.groups().values()) == len(row.classes)
    assert json.loads(json.dumps(coverage.as_dict([row])))[0]["hits"]["outcome: ties"] == 1
    assert "1 rows" in coverage.lines([row])[-1]


# ---- steering


def explored(row: CaseSpec, budget: int, steer: bool, seed: int = 0) -> list[tuple[str, Case]]:
    found: list[tuple[str, Case]] = []
    generate.explore(row, budget, seed, lambda text, case: found.append((text, case)), steer)
    return found


SAMPLE = [row for i, row in enumerate(cases()) if i % 15 == 1]


def test_steering_meets_more_classes_with_as_many_cases() -> None:
    def total(steer: bool) -> int:
        found = ([case for _, case in explored(row, 25, steer)] for row in SAMPLE)
        return sum(len(coverage.of_cases("", drawn).classes) for drawn in found)

    assert total(True) > total(False)


def test_the_same_seed_gives_the_same_steered_cases_and_a_larger_budget_begins_with_them() -> None:
    row = next(r for r in cases() if r.name == "QLinearConv/uint8,int8")
    few, many, other = (explored(row, n, True, s) for n, s in ((20, 0), (60, 0), (20, 4)))

    assert many[:20] == few
    assert few != other


def test_each_alternative_comes_before_any_comes_again() -> None:
    row = CaseSpec(
        "Relu", "float32", st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 10**6)).map(
            lambda n: Case("Relu", "", 13, (), ("float32",), (("a", n[0]), ("b", n[1])), seed=n[2])
        ), ""
    )  # fmt: skip
    decks: generate.Decks = {}
    cases = [case for n in range(3) for case in generate.draw_round(row, 0, n, decks, neighbours=0)]
    drawn = list({case.seed: dict(case.attrs) for case in cases}.values())[:60]

    for name in "ab":
        counts = Counter(d[name] for d in drawn[:56])
        assert set(counts) == set(range(8))
        assert max(counts.values()) - min(counts.values()) <= 2  # one hand is dealt to a case that was drawn twice
    assert len({(d["a"], d["b"]) for d in drawn}) > 20  # the choices stay independent of each other


def test_run_reports_coverage_in_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "r.json"
    with pytest.raises(SystemExit) as ended:
        cli.main([
            "run", "--backend", "exact", "-k", "Relu/float32", "--budget", "5", "--coverage", "--json", str(report),
            "--out", str(tmp_path), "--jobs", "1",
        ])  # fmt: skip
    out = capsys.readouterr().out
    (row,) = json.loads(report.read_text())["meta"]["coverage"]

    assert ended.value.code == 0
    assert "coverage: " in out
    assert (row["row"], row["cases"]) == ("Relu/float32", 5)
    assert row["groups"]["shape"] == sum(key.startswith("shape: ") for key in row["hits"])
