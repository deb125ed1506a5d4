"""A thin slice of the main job: every row of the suite, judged by the exact reference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from opgauge import check, gate, suites
from opgauge.backends import resolve
from opgauge.client import Client
from opgauge.reference_engine.types import FINDINGS, CaseSpec, Record, Status

BUDGET = 4
FAMILIES = ("linear", "pointwise", "reduce", "movement")


@pytest.fixture(scope="module")
def clients() -> Iterator[list[Client]]:
    made = [Client(resolve(name)) for name in ("exact", "cpu", "onnxruntime")]
    yield made
    for client in made:
        client.close()


def rows_of(part: int, parts: int) -> list[CaseSpec]:
    return list(suites.cases())[part::parts]


@pytest.mark.parametrize("part", range(4))
def test_every_row_passes_on_the_reference_our_engine_and_onnxruntime(clients, part):
    records: list[Record] = []
    for row in rows_of(part, 4):
        check.check_row(row, BUDGET, 0, clients, records.append, shrink=False)
    bad = [
        (r.backend, str(r.status), r.case, r.message)
        for r in records
        if r.status in FINDINGS or r.status is Status.INVALID
    ]
    assert not bad
    ours = [r for r in records if r.backend in ("exact", "cpu")]
    assert {r.status for r in ours} <= {Status.PASS, Status.UNTRUSTED}
    assert len(ours) >= 2 * len(rows_of(part, 4))


def test_a_broken_kernel_turns_the_same_rows_red(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import numpy as np\n"
        "from opgauge.backends import exact\n"
        "right = exact.load()\n"
        "def run(model, inputs):\n"
        "    return [np.where(y == y.max(initial=0), 0, y).astype(y.dtype) for y in right(model, inputs).outputs]\n"
    )
    records: list[Record] = []
    row = next(row for row in suites.cases() if row.name == "QLinearMatMul/uint8,int8")
    with Client(resolve(f"{broken}:run")) as client:
        check.check_row(row, 10, 0, [client], records.append, failures=tmp_path / "failures")
    failed = [r for r in records if r.status is Status.FAIL]
    assert len(failed) >= 5
    findings = gate.findings(records)
    assert len(findings) == len(failed)
    assert "smaller" in failed[0].detail
    assert failed[0].detail["saved"].endswith(".json")
    assert any((tmp_path / "failures").glob("*.onnx"))


def test_the_witness_of_every_deviation_still_deviates(clients):
    records: list[Record] = []
    check.check_witnesses(clients, records.append)
    assert {str(r.status) for r in records} <= {"deviation"}, [r.message for r in records]


def test_a_witness_that_passes_is_a_stale_deviation(clients, monkeypatch):
    from opgauge import expectations

    row = expectations.Deviation(
        "gone",
        ("Relu",),
        "onnxruntime",
        "*",
        "",
        "v >= 0",
        "Relu/float32/op13/X=float32:8:normal/y=float32/plain/s1",
        "was fixed",
        "-",
    )
    monkeypatch.setattr(expectations, "load", lambda path=None: (row,))
    records: list[Record] = []
    check.check_witnesses(clients, records.append)
    (found,) = records
    assert found.status is Status.FAIL
    assert "gone is stale" in found.message
