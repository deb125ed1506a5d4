"""The static site and the scoreboard: releases in order, what broke where, and no result that looks like one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opgauge import extras, publish, trends
from opgauge.frames import tables
from opgauge.reference_engine.types import Record, Status
from opgauge.reports import scoreboard, shapes, site
from opgauge.reports.site import Column


def record(op: str, status: Status, seed: int = 0, **more: Any) -> Record:
    case = f"{op}/float32/op13/A=float32:4x8:normal/y=float32/plain/s{seed}"
    return Record(case, "operators", op, "float32", "plain", "rt==1", status, **more)


def column(version: str, *records: Record, started: str = "") -> Column:
    mine = tuple(replace(r, backend=f"rt=={version}") for r in records)
    return Column("rt", "", version, f"rt=={version}", f"run-{version}", started, "", mine)


def test_versions_are_ordered_as_numbers_and_a_later_run_of_one_replaces_the_earlier() -> None:
    one = record("Add", Status.PASS)
    columns = [column(v, one) for v in ("1.10.0", "1.9.2", "1.10.0.dev1")]
    again = column("1.9.2", record("Add", Status.FAIL), started="2026-01-02")
    found = site.runtimes([*columns, again])

    assert [c.version for c in found["rt"]] == ["1.9.2", "1.10.0", "1.10.0.dev1"]
    assert found["rt"][0] is again


def test_a_step_names_what_broke_was_mended_and_changed_in_support() -> None:
    old = column("1", record("Add", Status.PASS), record("Sub", Status.FAIL), record("Mul", Status.UNSUPPORTED))
    new = column("2", record("Add", Status.FAIL), record("Sub", Status.PASS), record("Mul", Status.PASS))
    (step,) = site.steps([old, new])
    (control,) = site.steps([old, old])

    assert [(r["op"], r["word"]) for r in step["rows"]] == [
        ("Add", "broke"),
        ("Sub", "mended"),
        ("Mul", "newly supported"),
    ]
    assert "--backend 'rt==2'" in step["rows"][0]["line"]  # red where it is red
    assert "--backend 'rt==1'" in step["rows"][1]["line"]
    assert control["rows"] == []


def test_a_version_without_a_verdict_has_no_result_and_is_not_green() -> None:
    made = site.pages([column("1", record("Add", Status.UNAVAILABLE))], [], "t", {})
    index = made["index.html"]

    assert "no result" in index
    assert 'class="ok"' not in index
    assert "0 %" not in index
    assert json.loads(site.pages([], [], "t", {})["data.json"])["result"] == "no result"


def test_a_page_of_the_site_obeys_no_stranger_and_every_link_has_its_file() -> None:
    evil = "<script>alert(1)</script>"
    made = site.pages([column("1", record(evil, Status.FAIL, message=evil))], publish.corpus(), "t", {})
    for name, text in made.items():
        if name.endswith(".html"):
            assert "<script>alert" not in text
            links = [part.split('"')[0] for part in text.split('href="')[1:]]
            assert [x for x in links if not x.startswith(("#", "https://", "http://")) and x not in made] == []


def test_backends_of_a_run_become_columns_with_a_release_and_without_a_home() -> None:
    found = publish.columns(
        "r",
        [
            replace(
                record("Add", Status.FAIL, message="File /home/me/a/b.py, line 3; got 1/2"),
                backend="openvino==2026.4.1:precision=bf16",
            )
        ],
        {"backends": {"openvino==2026.4.1:precision=bf16": {"version": "2026.4.1-22982-abc"}}},
    )

    assert [(c.runtime, c.options, c.version) for c in found] == [("openvino", "precision=bf16", "2026.4.1")]
    assert found[0].records[0].message == "File …/b.py, line 3; got 1/2"
    assert publish.named("my.py:run") == ("my.py:run", "", "")


def node(name: str, status: Status, stored: bool, op: str = "Add") -> Record:
    return Record(f"onnx-node/{name}", "onnx-node", op, "node", "onnx-node", "cpu", status, detail={"stored": stored})


def test_the_scoreboard_counts_by_onnx_s_own_criterion() -> None:
    rows = [
        node("test_add_cpu", Status.PASS, True),
        node("test_sub_cpu", Status.PASS, False, "Sub"),
        node("test_mul_cpu", Status.UNSUPPORTED, False, "Mul"),
        replace(node("test_add_cpu", Status.PASS, True), backend="onnx-stored"),
        record("Add", Status.PASS),
    ]
    meta = {"started": "2026-11-29T23:41:44+00:00", "backends": {"cpu": {"version": "1"}}}
    (found,) = scoreboard.documents(rows, meta).values()

    assert found["report"]["passed"] == ["test_add_cpu"]
    assert found["report"]["failed"] == ["test_sub_cpu"]
    assert found["report"]["skipped"] == ["test_mul_cpu"]
    assert found["trend"][0]["date"] == "11/29/2026 23:41:44"
    assert (found["trend"][0]["passed"], found["trend"][0]["total_ops"]) == (1, 3)
    assert found["ops"][0] == {
        "domain": "",
        "op_type": "Add",
        "passed_tests": 1,
        "failed_tests": 0,
        "skipped_tests": 0,
        "total_tests": 1,
    }


def test_a_run_without_node_tests_has_no_scoreboard() -> None:
    rows = [record("Add", Status.PASS), replace(node("t", Status.UNAVAILABLE, False), backend="gone")]
    body = json.loads(scoreboard.render(tables(rows), rows, [], {}))

    assert body["backends"] == {}
    assert body["result"] == "no result"


@pytest.mark.parametrize("broken", [True, False])
def test_the_map_of_shapes_says_which_sizes_fail(broken: bool) -> None:
    def made(k: int, status: Status) -> Record:
        case = f"MatMul/float32/op13/A=float32:4x{k}:normal/B=float32:{k}x9:normal/y=float32/plain/s{k}"
        return Record(case, "operators", "MatMul", "float32", "plain", "cpu", status)

    bad = [made(k, Status.FAIL if (k % 8 if broken else k % 2 == k // 16 % 2) else Status.PASS) for k in range(3, 83)]
    (found,) = shapes.maps(bad)

    assert (found.said == "K mod 8 ≠ 0: 70 of 70 fail; K mod 8 = 0: 0 of 10") is broken
    assert shapes.maps([made(k, Status.PASS) for k in range(20)]) == []


def test_a_step_of_a_history_is_found_and_noise_is_not() -> None:
    noise = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01]
    (found,) = trends.change_points([*noise, *(1.3 * v for v in noise)])

    assert found[0] == 8
    assert found[1] == pytest.approx(0.3, abs=0.03)
    assert trends.change_points(noise * 2) == []


def test_histories_become_trends_and_damaged_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "latency").mkdir()
    lines = [json.dumps({"commit": f"c{i}", "time": "", "ns": {"MatMul on cpu": 100.0 + i}}) for i in range(5)]
    (tmp_path / "latency" / "m.jsonl").write_text("\n".join([*lines, "{", '{"ns": {"x": -1}}']) + "\n")
    (found,) = extras.trends(tmp_path)

    assert found.name == "MatMul on cpu"
    assert found.labels == ("c0", "c1", "c2", "c3", "c4")
    assert extras.trends(tmp_path / "none") == ()
