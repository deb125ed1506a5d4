"""The counts behind every report."""

import math
from dataclasses import replace

import pytest

from opgauge.frames import (
    UNTRUSTED_LIMIT,
    by_backend,
    by_dtype,
    by_operator,
    by_profile,
    formulas,
    frame,
    matrix,
    quality,
    tables,
)
from opgauge.reference_engine.types import MISBEHAVIOUR, Record, Status
from opgauge.reports.legend import JUDGED, MARKS, MISBEHAVED


def record(status: Status, op: str = "Conv", backend: str = "cpu", label: str = "uint8,int8", **more) -> Record:
    case = f"{op}/{label}/op21/x=uint8:1:0/y=uint8/plain/s0"
    return Record(
        **(
            {"case": case, "suite": "core", "op": op, "label": label, "profile": "plain"}
            | more
            | {"backend": backend, "status": status}
        )
    )


def numbered(records: list[Record]) -> list[Record]:
    """The same records as verdicts on cases of their own."""
    return [replace(r, case=f"{r.case}{i}") for i, r in enumerate(records)]


MIXED = [
    record(Status.PASS, explained="exact", elements=100, saturated=50, set_size=1.0, sized=50, ties=10),
    record(Status.PASS, explained="within", elements=60, saturated=10, set_size=2.0, sized=42, undecided=8),
    record(Status.PASS, explained="requant-fma", elements=10, set_size=1.0),
    record(Status.PASS, explained="", elements=10, set_size=1.0),
    record(Status.UNTRUSTED, elements=20, saturated=20, set_size=9.0),
    record(Status.DEVIATION, elements=5, outside=1),
    record(Status.FAIL, elements=5, outside=2, label="uint8,uint8"),
    record(Status.CRASH, us=1500.0),
    record(Status.UNSUPPORTED, op="Pad"),
    record(Status.PASS, op="Pad", backend="wgpu", explained="exact", elements=4),
]


def test_the_legend_knows_every_status_and_misbehaviour():
    assert set(MARKS) == set(Status)
    assert set(MISBEHAVED) == MISBEHAVIOUR
    assert not set(JUDGED) & MISBEHAVIOUR


def test_matrix_counts_every_record_once():
    table = matrix(frame(MIXED))
    assert table["cases"].sum() == len(MIXED)
    assert table.loc[("Conv", "cpu"), "pass"] == 4
    assert table.loc[("Conv", "cpu"), "fail"] == 1
    assert table.loc[("Pad", "cpu"), "unsupported"] == 1
    assert ("Pad", "cpu") in table.index
    assert ("Conv", "wgpu") not in table.index
    assert by_dtype(frame(MIXED)).loc[("Conv", "uint8,uint8", "cpu"), "fail"] == 1


def test_backends_carry_their_denominators():
    row = by_backend(frame(MIXED)).loc["cpu"]
    assert (row["cases"], row["judged"], row["misbehaviour"], row["unsupported"]) == (9, 7, 1, 1)
    assert (row["exact"], row["within"], row["formula"], row["unexplained"]) == (1, 1, 1, 1)
    assert row["exact"] + row["within"] + row["formula"] + row["unexplained"] == row["pass"]
    assert (row["elements"], row["saturated"], row["undecided"], row["ties"]) == (210, 80, 8, 10)
    assert row["operators"] == 1  # Pad was only refused
    assert row["ties_share"] == pytest.approx(10 / 92)
    assert row["seconds"] == pytest.approx(0.0015)
    assert formulas(frame(MIXED)).loc[("cpu", "requant-fma"), "cases"] == 1
    assert by_operator(frame(MIXED)).loc["Pad", "judged"] == 1


def test_set_size_is_weighted_by_unsaturated_elements():
    row = by_backend(frame(MIXED)).loc["cpu"]
    # 50 x 1 + 42 x 2 over 50 + 42: what was not measured weighs nothing.
    assert row["set_size"] == pytest.approx(134 / 92)
    profile = by_profile(frame(MIXED)).loc[(MIXED[0].op, MIXED[0].profile)]
    assert profile["set_size"] == row["set_size"]


def test_a_backend_that_judged_nothing_has_no_shares():
    row = by_backend(frame([record(Status.UNSUPPORTED)])).loc["cpu"]
    assert math.isnan(row["set_size"])
    assert math.isnan(row["ties_share"])
    assert math.isnan(row["undecided_share"])


@pytest.mark.parametrize(("untrusted", "over"), [(2, False), (3, True)])
def test_ordinary_profiles_may_prove_nothing_in_two_cases_of_a_hundred(untrusted, over):
    records = [record(Status.PASS)] * (100 - untrusted) + [record(Status.UNTRUSTED)] * untrusted
    row = quality(frame(numbered(records))).loc[("Conv", False)]
    assert row["untrusted_share"] == pytest.approx(untrusted / 100)
    assert row["limit"] == UNTRUSTED_LIMIT[False]
    assert bool(row["over"]) is over


def test_special_profiles_are_held_apart_and_to_their_own_limit():
    records = [record(Status.PASS)] * 10 + [record(Status.PASS, profile="ties")] * 9
    records.append(record(Status.UNTRUSTED, profile="ties"))
    table = quality(frame(numbered(records)))
    assert table.loc[("Conv", False), "untrusted"] == 0
    assert table.loc[("Conv", True), "untrusted_share"] == pytest.approx(0.1)
    assert not table.loc[("Conv", True), "over"]


def test_a_case_counts_once_however_many_backends_gave_a_verdict_on_it():
    vacuous = [record(Status.UNTRUSTED, backend=b) for b in ("cpu", "exact", "onnxruntime")]
    row = quality(frame([*vacuous, *numbered([record(Status.PASS)] * 9)])).loc[("Conv", False)]
    assert (row["cases"], row["untrusted"]) == (10, 1)
    assert not row["over"]


def test_unsupported_cases_do_not_dilute_the_untrusted_share():
    records = [record(Status.UNSUPPORTED)] * 98 + [record(Status.UNTRUSTED), record(Status.PASS)]
    assert quality(frame(numbered(records))).loc[("Conv", False), "untrusted_share"] == pytest.approx(0.5)


def test_no_records_make_empty_tables():
    empty = tables([])
    assert empty.records == 0
    assert all(len(table) == 0 for table in empty[:-2])
    assert empty.informative == set()
