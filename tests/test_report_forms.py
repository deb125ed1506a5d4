"""CTRF, SVG, badge, annotations, the JSON schema; `report diff`, `report merge`, `explain`, settings, `init`."""

from __future__ import annotations

import json
import re
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from opgauge import cli, cli_report, cli_sensitivity, config, expectations, explain, scaffold, store
from opgauge.frames import tables
from opgauge.reference_engine.errors import OpgaugeError
from opgauge.reference_engine.types import FINDINGS, Finding, Record, Status
from opgauge.reports import annotations, badge, ctrf, diff, jsonfile, matrix_svg

META = {"version": "0.1.0", "started": "2026-11-29T10:00:00Z", "seconds": 2.5, "machine": {"cpu": "x"}, "exit_code": 0}
EVIL = "<b>&\"'::error::x\nnext\x1b[2J"


def record(status: Status, op: str = "Conv", backend: str = "cpu", seed: int = 0, **more: Any) -> Record:
    case = f"{op}/uint8/op21/x=uint8:2x4:uniform/y=uint8/plain/s{seed}"
    fields = {"case": case, "suite": "operators", "profile": "plain", "elements": 8, "label": "uint8"} | more
    return Record(op=op, backend=backend, status=status, **fields)


def every_status() -> list[Record]:
    return [record(status, seed=i, message=EVIL) for i, status in enumerate(Status)]


def rendered(module: Any, records: Sequence[Record], findings: Sequence[Finding] = ()) -> str:
    text: str = module.render(tables(records), records, findings, META)
    return text


# ---- a small part of JSON Schema, enough for the published file


def violations(value: Any, schema: dict[str, Any], root: dict[str, Any], where: str = "$") -> list[str]:
    if "$ref" in schema:
        return violations(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, where)
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "null": type(None)}
    wanted = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    if wanted and not any(isinstance(value, kinds[k]) and not isinstance(value, bool) for k in wanted):
        return [f"{where} is {value!r:.60}, no {wanted}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where} is {value!r:.60}, not in {schema['enum']}"]
    if "const" in schema and value != schema["const"]:
        return [f"{where} is {value!r:.60}, not {schema['const']!r}"]
    if "minimum" in schema and value < schema["minimum"]:
        return [f"{where} is {value}, below {schema['minimum']}"]
    found = []
    if isinstance(value, dict):
        found += [f"{where} lacks {name}" for name in schema.get("required", ()) if name not in value]
        for name, each in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            found += violations(each, inner, root, f"{where}.{name}") if inner else []
    if isinstance(value, list) and "items" in schema:
        found += [v for i, each in enumerate(value) for v in violations(each, schema["items"], root, f"{where}[{i}]")]
    return found


def published() -> dict[str, Any]:
    text = files("opgauge.reports").joinpath("schema", "report-1.json").read_text("utf-8")
    return dict(json.loads(text))


def test_the_json_report_keeps_to_its_published_schema() -> None:
    schema, records = published(), every_status()
    body = jsonfile.document(tables(records), records, [Finding("stale", "x", "y")], META, everything=True)

    assert violations(json.loads(json.dumps(body)), schema, schema) == []
    assert schema["properties"]["schema"]["const"] == jsonfile.SCHEMA
    assert set(schema["$defs"]["status"]["enum"]) == {str(s) for s in Status}
    assert set(schema["$defs"]["record"]["properties"]) == set(Record.__dataclass_fields__)
    assert set(schema["$defs"]["finding"]["properties"]) == set(Finding.__dataclass_fields__)


def test_a_document_that_breaks_the_schema_is_seen() -> None:
    schema, records = published(), every_status()
    body = jsonfile.document(tables(records), records, [], META, everything=True)
    body["records"][0]["status"] = "green"
    body["totals"]["pass"] = -1
    del body["verdict"]["word"]

    assert len(violations(json.loads(json.dumps(body)), schema, schema)) == 3


# ---- CTRF


def test_ctrf_counts_every_record_and_calls_nothing_passed_that_is_not() -> None:
    records = every_status()
    body = json.loads(rendered(ctrf, records, [Finding("untrusted", "Conv", "too many")]))
    tests, summary = body["results"]["tests"], body["results"]["summary"]

    assert (body["reportFormat"], body["specVersion"]) == ("CTRF", "1.0.0")
    assert [t["rawStatus"] for t in tests if t["status"] == "passed"] == ["pass"]
    assert {t["rawStatus"] for t in tests if t["status"] == "failed" and "rawStatus" in t} == {str(s) for s in FINDINGS}
    assert summary["tests"] == len(records) + 1 == sum(summary[s] for s in ctrf.STATES)
    assert summary["stop"] - summary["start"] == 2500
    assert all("\x1b" not in json.dumps(t) and "\n" not in t.get("message", "") for t in tests)
    assert {"name", "status", "duration"} <= set.intersection(*(set(t) for t in tests))


def test_a_run_without_a_verdict_is_a_failed_test_and_no_green_badge() -> None:
    for records in ([], [record(Status.UNAVAILABLE)]):
        body = json.loads(rendered(ctrf, records))
        shown = json.loads(rendered(badge, records))

        assert body["results"]["summary"]["failed"] == 1
        assert (shown["message"], shown["color"]) == ("no result", "lightgrey")


def test_a_badge_is_green_only_where_all_is_well() -> None:
    green, red = (json.loads(rendered(badge, [record(s)])) for s in (Status.PASS, Status.FAIL))

    assert (green["message"], green["color"]) == ("1 of 1 cases", "brightgreen")
    assert (red["color"], red["isError"]) == ("red", True)


# ---- SVG, annotations


def test_the_svg_shows_every_count_and_obeys_nobody() -> None:
    records = [*every_status(), record(Status.PASS, op="<script>alert(1)</script>", backend="wgpu")]
    text = rendered(matrix_svg, records)
    root = ET.fromstring(text)
    said = [e.text or "" for e in root.iter() if e.tag.endswith("}text")]

    assert not [e for e in root.iter() if e.tag.endswith("}script")]
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert any("✗ 1 fail" in s and "✓ 1" in s for s in said)
    assert "prefers-color-scheme" in text
    with pytest.raises(OpgaugeError, match="the records hold"):
        matrix_svg.render(tables(records), records[1:], [], META)


def test_annotations_are_ten_at_most_and_cannot_be_commands_of_a_stranger() -> None:
    records = [record(Status.FAIL, seed=i, message=EVIL) for i in range(30)]
    lines = annotations.render(records, [Finding("stale", "x", "y")]).splitlines()

    assert len(lines) == 10
    assert all(line.startswith("::error title=") for line in lines)
    assert annotations.render([], [Finding("st,ale", "x:y", "50%")]) == "::error title=st%2Cale%3A x%3Ay::50%25\n"


# ---- diff, merge


CHANGES = [
    (Status.PASS, Status.FAIL, "newly red"),
    (Status.UNSUPPORTED, Status.CRASH, "newly red"),
    (Status.FAIL, Status.PASS, "newly green"),
    (Status.PASS, Status.UNTRUSTED, "newly untrusted"),
    (Status.PASS, Status.UNSUPPORTED, "other change"),
    (Status.FAIL, Status.CRASH, "other change"),
    (Status.PASS, Status.PASS, ""),
]


@pytest.mark.parametrize(("before", "after", "kind"), CHANGES)
def test_a_change_of_status_has_a_name(before: Status, after: Status, kind: str) -> None:
    found = diff.compare([record(before)], [record(after)], ("a", "b"))

    assert [c.kind for c in found.changes] == ([kind] if kind else [])


def test_backends_of_different_names_are_compared_when_each_side_has_one() -> None:
    old = [record(Status.PASS, op, "onnxruntime==1.24.4") for op in ("Conv", "Pad", "Gemm")]
    new = [record(Status.FAIL if op == "Pad" else Status.PASS, op, "onnxruntime") for op in ("Conv", "Pad", "Slice")]
    found = diff.compare(old, new, ("1.24.4", "newest"))
    text = diff.render(found)

    assert (found.common, found.gone, found.new) == (2, 1, 1)
    assert [(op, dict(counted)) for op, counted in diff.operators(found.changes)] == [("Pad", {"newly red": 1})]
    assert "Pad: 1 newly red" in text
    assert "opgauge repro 'Pad/uint8" in text
    assert "no result" in diff.render(diff.compare(old, [], ("a", "b")))


def stored(home: Path, records: Sequence[Record], code: int = 0) -> str:
    with store.create(home) as journal:
        journal.append("run", {"argv": ["run"], "settings": {"seed": 0, "budget": 1}, "tasks": []})
        for each in records:
            journal.record(each)
        journal.append("end", {"exit_code": code, "errors": [], "backends": {}})
    return str(journal.path.parent)


def run_cli(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_report_diff_says_what_changed_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = stored(tmp_path, [record(Status.PASS)]), stored(tmp_path, [record(Status.FAIL)], 1)

    assert run_cli("report", "diff", good, bad) == 1
    assert "Conv: 1 newly red" in capsys.readouterr().out
    assert run_cli("report", "diff", bad, good, "--json") == 0
    assert json.loads(capsys.readouterr().out)["operators"] == {"Conv": {"newly green": 1}}
    assert run_cli("report", "diff", good, stored(tmp_path, [record(Status.PASS, op="Pad")])) == 5
    assert run_cli("report", "diff", good, "nowhere") == 2
    assert run_cli("report", "diff", good, bad, "--new-backend", "wgpu") == 2


def test_merging_shards_counts_each_case_once_with_the_graver_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = stored(tmp_path / "a", [record(Status.PASS), record(Status.PASS, seed=1)])
    two = stored(tmp_path / "b", [record(Status.PASS, seed=1), record(Status.PASS, seed=2)])
    three = stored(tmp_path / "c", [record(Status.FAIL, seed=2)], 1)

    assert run_cli("report", "merge", one, two, "--out", str(tmp_path / "m")) == 0
    assert "2 runs, 4 records, 3 kept, 0 disagree" in capsys.readouterr().out
    assert run_cli("report", "merge", one, two, three, "--out", str(tmp_path / "n")) == 1
    merged = cli_report.read(str(store.latest(tmp_path / "n")))
    assert sorted(r.status for r in merged.records) == ["fail", "pass", "pass"]
    assert merged.meta["exit_code"] == 1


def test_a_run_is_shown_again_in_every_form(tmp_path: Path) -> None:
    run, out = stored(tmp_path, every_status(), 1), tmp_path / "out"
    names = {"html": "r.html", "json": "r.json", "junit": "r.xml", "markdown": "r.md"}
    names |= {"ctrf": "c.json", "svg": "m.svg", "badge": "b.json"}
    flags = [word for flag, name in names.items() for word in (f"--{flag}", str(out / name))]

    assert run_cli("report", "show", run, *flags, "--csv", str(tmp_path / "r.csv")) == 1
    assert sorted(p.name for p in out.iterdir()) == sorted(names.values())
    assert len((tmp_path / "r.csv").read_text("utf-8").splitlines()) >= len(Status) + 1
    assert all(p.stat().st_size > 100 for p in out.iterdir())


def test_a_run_that_was_cut_short_is_not_shown_as_green(tmp_path: Path) -> None:
    with store.create(tmp_path) as journal:
        journal.append("run", {"argv": ["run"], "settings": {}, "tasks": []})
        journal.record(record(Status.PASS))

    assert run_cli("report", "show", str(journal.path)) == 130


# ---- explain


TAIL = {"positions": [32, 33, 34, 67, 68, 69], "shape": [2, 35], "wider": "no rounding policy accepts it"}


@pytest.mark.parametrize(
    ("detail", "message", "cause"),
    [
        ({"wider": "would pass with round=away"}, "", "rounded away from zero"),
        ({"wider": "would pass with zp_inside"}, "", "zero point is added before rounding"),
        (TAIL, "", "last 3 of 35 columns: the tail beyond a tile of 32"),
        (TAIL | {"positions": [0, 9, 33, 40]}, "", "the number before rounding is wrong"),
        ({}, "output 0 has shape [1], expected [2]", "shape is computed wrongly"),
        ({"got": "int32"}, "output 0 is int32, expected int8", "element type of an output"),
        (TAIL | {"relation": ["every wrong element is 0", "look"]}, "", "is 0; errors lie in the last 3 of 35 columns"),
        ({"relation": ["every wrong element is 0", "look"]}, "", "every wrong element is 0"),
        ({}, "", "arithmetic"),
    ],
)
def test_a_failure_is_explained_by_its_evidence(detail: dict[str, Any], message: str, cause: str) -> None:
    assert cause in explain.likely_cause(record(Status.FAIL, detail=detail, message=message)).cause


def test_an_explanation_obeys_no_terminal_escapes_of_a_strangers_journal() -> None:
    detail = {"relation": ["every\x1b[31m one", "look\x1b]0;here\x07"], "formula": ["f\x1b[2J"]}
    for kept in ("relation", "formula"):
        text = explain.explain(record(Status.FAIL, detail={kept: detail[kept]}, message="m"))
        assert "\x1b" not in text
        assert "\x07" not in text
    for damaged in ("one", [], 7, {"a": 1}):
        assert "arithmetic" in explain.explain(record(Status.FAIL, detail={"relation": damaged}, message="m"))


def test_every_status_has_an_explanation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(explain.STATUSES) | {Status.FAIL} == set(Status)
    run = stored(tmp_path, every_status(), 1)

    for words in ([], ["1"], [every_status()[0].case], ["hang"]):
        assert run_cli("explain", *words, "--run", run) == 0
        assert capsys.readouterr().out.strip()
    assert run_cli("explain", "99", "--run", run) == 2


# ---- settings, init


def test_flags_beat_the_environment_and_the_environment_beats_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.opgauge]\nbudget = 5\nseed = 6\njobs = 1\nbackend = ["exact"]\n')
    below = tmp_path / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    monkeypatch.setenv("OPGAUGE_SEED", "7")
    monkeypatch.setenv("OPGAUGE_JOBS", "2")

    assert run_cli("run", "--show-config", "--jobs", "3") == 0
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in capsys.readouterr().out.splitlines()}
    assert rows["jobs"] == ["3", "flag"]
    assert rows["seed"] == ["7", "OPGAUGE_SEED"]
    assert rows["budget"][0] == "5"
    assert rows["budget"][1].endswith("pyproject.toml [tool.opgauge]")
    assert rows["backend"][0] == "exact"
    assert rows["timeout"] == ["20.0", "default"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("budgets = 5", "no key 'budgets'"),
        ('budget = "5"', "expected int"),
        ("budget = true", "expected int"),
        ('backend = "cpu"', "expected a list of strings"),
        ("backend = [1]", "expected a list of strings"),
        ("budget =", "cannot be read"),
    ],
)
def test_a_setting_that_is_wrong_is_named(table: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.opgauge]\n{table}\n")

    with pytest.raises(config.ConfigError, match=re.escape(said)):
        config.settings(tmp_path, {})


def test_an_environment_that_is_wrong_is_named_and_a_strangers_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match="OPGAUGE_BUDGET='many'"):
        config.settings(tmp_path, {"OPGAUGE_BUDGET": "many"})
    assert config.settings(tmp_path, {"OPGAUGE_ELSE": "1"}) == {}


def test_every_setting_of_a_command_is_an_option_of_it() -> None:
    import inspect

    for command, names in config.COMMANDS.items():
        function = {"list": cli.list_, "sensitivity": cli_sensitivity.sensitivity}.get(command) or getattr(cli, command)
        assert names <= set(inspect.signature(function).parameters), command


def test_init_makes_files_that_can_be_read_and_overwrites_nothing(tmp_path: Path) -> None:
    assert scaffold.create(tmp_path) == [(name, True) for name, _ in scaffold.FILES]
    assert expectations.load(tmp_path / "baselines" / "expectations.toml") == ()
    (tmp_path / ".github" / "workflows" / "opgauge.yml").write_text("mine\n")

    assert scaffold.create(tmp_path) == [(name, False) for name, _ in scaffold.FILES]
    assert (tmp_path / ".github" / "workflows" / "opgauge.yml").read_text() == "mine\n"
    assert yaml.safe_load(scaffold.WORKFLOW)["permissions"] == {"contents": "read"}
    assert set(tomllib.loads(scaffold.SETTINGS)["tool"]["opgauge"]) <= set(config.NAMES)
