"""Exported cases: the same bytes twice, and two readers that accept a right runtime and refuse a planted fault."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from opgauge import fixtures, fixtures_run, suites
from opgauge.cli import app, main
from opgauge.reference_engine.types import Exact

FAULTS = Path(suites.__file__).parent / "faults" / "__init__.py"
ROWS = ("QLinearMatMul/uint8,int8", "QuantizeLinear/float32,uint8", "MatMul/float32", "Relu/float16", "Equal/int32")
CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
run = CliRunner()


def rows() -> list[Any]:
    known = {r.name: r for r in suites.cases()}
    return [known[name] for name in ROWS if name in known] + [r for r in suites.cases() if r.op == "Max"][:1]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fixtures") / "cases"
    fixtures.write(fixtures.collect(rows(), 6, 8, 0, lambda done: None), folder, "test")
    return folder


@pytest.fixture(scope="module")
def readers(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    found = {"python": [sys.executable, "-S", str(exported / "reader.py")]}
    if CC:
        program = tmp_path_factory.mktemp("c") / "reader"
        flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1"]
        subprocess.run([CC, *flags, "-o", str(program), str(exported / "reader.c"), "-lm"], check=True)
        found["c"] = [str(program)]
    return found


def judged(reader: list[str], cases: Path, outputs: Path) -> tuple[int, str]:
    done = subprocess.run([*reader, str(cases), str(outputs)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_the_same_arguments_give_the_same_bytes(exported, tmp_path):
    fixtures.write(fixtures.collect(rows(), 6, 8, 0, lambda done: None), tmp_path / "again", "test")

    names = sorted(p.relative_to(exported) for p in exported.rglob("*") if p.is_file())
    assert len(names) > 60
    assert names == sorted(p.relative_to(tmp_path / "again") for p in (tmp_path / "again").rglob("*") if p.is_file())
    assert [n for n in names if (exported / n).read_bytes() != (tmp_path / "again" / n).read_bytes()] == []


def violations(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> list[str]:
    """The parts of JSON Schema that the published one uses."""
    if "$ref" in schema:
        return violations(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    kinds: dict[str, Any] = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    if "const" in schema and value != schema["const"]:
        return [f"{value} is not {schema['const']}"]
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):
        return [f"{value!r} is no {schema['type']}"]
    if "minimum" in schema and value < schema["minimum"]:
        return [f"{value} < {schema['minimum']}"]
    if isinstance(value, list):
        return [v for each in value for v in violations(each, schema["items"], root)]
    if not isinstance(value, dict):
        return []
    inner = schema.get("properties", {})
    found = [f"lacks {n}" for n in schema.get("required", ()) if n not in value]
    return found + [v for k, each in value.items() if k in inner for v in violations(each, inner[k], root)]


def test_the_index_keeps_to_its_published_schema(exported):
    schema = json.loads(files("opgauge.reports").joinpath("schema", "fixtures-1.json").read_text("utf-8"))
    index = json.loads((exported / "index.json").read_text())

    assert violations(index, schema, schema) == []
    assert len(index["cases"]) == sum(index["operators"].values()) == len(list((exported / "cases").glob("*.set")))
    assert index["quantized"] == sum(c["quantized"] for c in index["cases"]) >= 10
    index["cases"][0]["inputs"] = [{"name": 3}]
    assert len(violations(index, schema, schema)) == 4


def test_both_readers_accept_a_right_runtime(exported, readers, tmp_path):
    written, _ = fixtures_run.run(exported, tmp_path / "out", "onnxruntime", 20.0)

    assert written > 15
    for name, reader in readers.items():
        code, said = judged(reader, exported, tmp_path / "out")
        assert code == 0, (name, said)
        assert f"{written} pass, 0 fail" in said


def test_both_readers_refuse_a_planted_fault_at_the_same_cases(exported, readers, tmp_path):
    fixtures_run.run(exported, tmp_path / "out", f"faults:{FAULTS}:L25", 20.0)

    verdicts = {name: judged(reader, exported, tmp_path / "out") for name, reader in readers.items()}
    failed = {name: {line[5:9] for line in said.splitlines() if "FAIL" in line} for name, (_, said) in verdicts.items()}
    index = {c["number"]: c["op"] for c in json.loads((exported / "index.json").read_text())["cases"]}
    assert {code for code, _ in verdicts.values()} == {1}
    assert len({frozenset(numbers) for numbers in failed.values()}) == 1
    assert {index[n] for n in failed["python"]} == {"QLinearMatMul"}


def test_a_short_output_a_nan_and_an_absent_output_are_told(exported, readers, tmp_path):
    index = json.loads((exported / "index.json").read_text())["cases"]
    case = next(c for c in index if c["outputs"][0]["type"] == "float32" and c["outputs"][0]["elements"] > 1)
    for reader in readers.values():
        assert judged(reader, exported, tmp_path)[0] == 5
        raw = tmp_path / f"{case['number']}.raw"
        raw.write_bytes(b"\0")
        assert judged(reader, exported, tmp_path)[0] == 1
        raw.write_bytes(np.full(case["outputs"][0]["elements"], np.nan, np.float32).tobytes())
        assert judged(reader, exported, tmp_path)[0] == 1
        raw.unlink()


def exact(dtype: str, lo: Any, hi: Any, **more: Any) -> Exact:
    value = np.asarray(lo)
    return Exact(dtype, value, np.asarray(lo), np.asarray(hi), **more)


TYPES = {
    "float16": np.array([1.5, -0.0, 6e-8, np.inf, np.nan], np.float16),
    "float32": np.array([1.5, -3e38, 1e-45, -np.inf, np.nan], np.float32),
    "int8": np.array([-128, -1, 0, 1, 127], np.int8),
    "uint16": np.array([0, 1, 255, 32768, 65535], np.uint16),
    "int64": np.array([-(2**52), -1, 0, 1, 2**52]),
    "bool": np.array([True, False, True, True, False]),
}


@pytest.mark.parametrize("word", TYPES)
def test_each_element_type_is_read_by_both(word, readers, tmp_path):
    y = TYPES[word]
    wide = y.astype(np.float64)
    nan = np.isnan(wide) if y.dtype.kind == "f" else None
    (tmp_path / "cases").mkdir()
    sets = exact(word, wide, wide, nan=nan)
    sets = Exact(word, y, sets.lo, sets.hi, nan=nan)
    (tmp_path / "cases" / "0000.set").write_bytes(fixtures.set_bytes([sets]))
    for reader in readers.values():
        (tmp_path / "0000.raw").write_bytes(fixtures.raw([y]))
        assert judged(reader, tmp_path, tmp_path)[0] == 0
        (tmp_path / "0000.raw").write_bytes(fixtures.raw([np.roll(y, 1)]))
        assert judged(reader, tmp_path, tmp_path)[0] == 1


def test_an_enumerated_set_is_no_hull(readers, tmp_path):
    members = (np.array([1, 5]), np.array([3, 5]))
    (tmp_path / "cases").mkdir()
    sets = Exact("int32", members[0], np.array([1, 5]), np.array([3, 5]), members=members)
    (tmp_path / "cases" / "0000.set").write_bytes(fixtures.set_bytes([sets]))
    for reader in readers.values():
        for value, code in ((1, 0), (3, 0), (2, 1)):
            (tmp_path / "0000.raw").write_bytes(np.array([value, 5], np.int32).tobytes())
            assert judged(reader, tmp_path, tmp_path)[0] == code


def test_the_command_exports_runs_and_refuses(tmp_path):
    made = run.invoke(app, ["fixtures", "export", str(tmp_path / "f"), "--op", "Relu", "--per-row", "2", "--json"])
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["cases"] >= 4
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")
    with pytest.raises(SystemExit) as ended:
        main(["fixtures", "export", str(tmp_path / "other"), "--op", "Relu", "--per-row", "1"])
    assert ended.value.code == 4
    with pytest.raises(SystemExit) as ended:
        main(["fixtures", "run", str(tmp_path / "other"), str(tmp_path / "out")])
    assert ended.value.code == 2


def test_the_readers_are_short():
    for name in fixtures.READERS:
        assert len(files("opgauge.readers").joinpath(name).read_text("utf-8").splitlines()) <= 60
