"""The pytest plugin, in a scratch repository that has packages of its own called as our rooms."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from opgauge import generate, pytest_cases, suites

ROOT = Path(__file__).resolve().parents[1]
IMPORT_LIMIT_MS = 50
OWN = """
import pytest
import backends, harness, suites
from backends.kernel import run

def test_own_packages_are_ours():
    assert (backends.MINE, harness.MINE, suites.MINE) == ("backends", "harness", "suites")

@pytest.mark.op("QLinearMatMul", dtype="int8,uint8", budget=4)
def test_kernel(opgauge_case):
    try:
        outputs = run(opgauge_case.model, opgauge_case.inputs)
    except NotImplementedError as error:
        pytest.skip(str(error))
    opgauge_case.assert_within_set(outputs)

def test_fixture(assert_within_set):
    with pytest.raises(Exception, match="gone"):
        assert_within_set([], "gone.onnx", [])
"""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scratch")
    for name in ("backends", "harness", "suites"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"MINE = {name!r}\n")
    shutil.copy(ROOT / "examples" / "half_away.py", folder / "backends" / "kernel.py")
    text = (folder / "backends" / "kernel.py").read_text()
    assert "np.trunc(v + np.copysign(np.float32(0.5), v))" in text
    honest = text.replace("np.trunc(v + np.copysign(np.float32(0.5), v))", "np.rint(v)")
    (folder / "backends" / "honest.py").write_text(honest)
    (folder / "test_own.py").write_text(OWN)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider --strict-markers\n")
    return folder


def pytest_in(folder: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=short", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stdout + done.stderr


def outcomes(text: str) -> dict[str, list[str]]:
    """Node ids by outcome, from the short summary."""
    found: dict[str, list[str]] = {}
    for word, rest in re.findall(r"^(PASSED|FAILED|ERROR|XFAIL) (.+?)(?: - .*)?$", text, re.MULTILINE):
        found.setdefault(word, []).append(rest)
    return found


def test_own_packages_are_not_shadowed_and_fixtures_find_the_fault(scratch: Path) -> None:
    code, text = pytest_in(scratch)

    assert code == 1
    found = outcomes(text)
    assert "test_own.py::test_own_packages_are_ours" in found["PASSED"]
    assert "test_own.py::test_fixture" in found["PASSED"]
    assert found["FAILED"] == ["test_own.py::test_kernel[QLinearMatMul/int8,uint8/003-ties]"]
    assert "would pass with round=away" in text


def test_a_planted_fault_is_found_and_what_is_collected_is_reported(scratch: Path) -> None:
    selection = ["-k", "QLinearMatMul and uint8 and not test_kernel", "--opgauge-budget", "3"]
    backends = ["--opgauge-backend", "backends.kernel:run", "--opgauge-backend", "backends.honest:run"]
    _, listed = pytest_in(scratch, *selection, *backends, "--collect-only")
    collected = set(re.findall(r"^opgauge::\S+$", listed, re.MULTILINE))
    counted = re.search(r"^(\d+)/(\d+) tests collected \((\d+) deselected\)", listed, re.MULTILINE)
    assert counted
    assert int(counted[1]) == int(counted[2]) - int(counted[3]) == len(collected)
    code, text = pytest_in(scratch, *selection, *backends, "-n", "2", "--junitxml", "out.xml")
    found = outcomes(text)
    reported = [name for names in found.values() for name in names]
    cases = ET.parse(scratch / "out.xml").findall(".//testcase")

    assert code == 1
    assert len(collected) == 18  # three rows, three cases, two backends
    refused = sum(int(n) for n in re.findall(r"^SKIPPED \[(\d+)\] .*: unsupported: one a_scale", text, re.MULTILINE))
    assert len(reported) + refused == len(collected)
    assert set(reported) <= collected
    assert len(cases) == 18
    assert set(found) == {"PASSED", "FAILED"}
    assert "opgauge::QLinearMatMul/uint8,uint8/002-ties[backends.kernel:run]" in found["FAILED"]
    assert not [name for name in found["FAILED"] if "honest" in name]
    properties = {p.get("name"): p.get("value") for p in cases[0].findall(".//property")}
    assert properties["opgauge_case"].startswith("QLinearMatMul/")
    assert "opgauge repro 'QLinearMatMul/" in text


def test_an_unknown_backend_operator_or_file_is_a_usage_error(scratch: Path) -> None:
    code, text = pytest_in(scratch, "--opgauge-backend", "onnxrutime", "test_own.py")

    assert code == 4
    assert "did you mean onnxruntime" in text


def test_a_backend_that_cannot_be_loaded_is_not_green(scratch: Path) -> None:
    words = ["--opgauge-backend", "backends.gone:run", "--opgauge-budget", "1", "-k", "QLinearMatMul and not test_own"]
    code, text = pytest_in(scratch, *words, "--deselect", "test_own.py")

    assert code == 1
    assert "unavailable" in text


def test_the_plugin_costs_nothing_where_it_is_not_used() -> None:
    program = (
        "import pytest, time; start = time.perf_counter(); import opgauge.pytest_plugin; "
        "print(1e3 * (time.perf_counter() - start)); "
        "import sys; print([m for m in ('numpy', 'onnx', 'hypothesis', 'pandas', 'numba') if m in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
    told = [run.stdout.split("\n") for run in runs]

    assert min(float(lines[0]) for lines in told) <= IMPORT_LIMIT_MS
    assert {lines[1] for lines in told} == {"[]"}


def test_rows_that_an_expression_cannot_select_are_not_drawn() -> None:
    def possible(text: str) -> set[str]:
        return {row.name for row in pytest_cases.possible_rows(text, ["cpu"])}

    every = {row.name for row in suites.cases()}
    assert possible("") == every
    assert possible("QLinearMatMul and uint8") == {n for n in every if "QLinearMatMul" in n and "uint8" in n}
    assert possible("qlinearmatmul") == {n for n in every if "QLinearMatMul" in n}
    assert possible("ties and QLinearMatMul") == possible("QLinearMatMul")  # a profile is known only when drawn
    assert possible("QLinearMatMul and wgpu") == set()
    assert possible("not QLinearMatMul") == {n for n in every if "QLinearMatMul" not in n}


def test_names_are_the_same_in_every_process_and_markers_pick_rows() -> None:
    row = generate.select(suites.cases(), ["QLinearMatMul"])[0]
    first = pytest_cases.drawn(row.name, 5, 0)
    pytest_cases.drawn.cache_clear()

    assert [c.id for c in first] == [c.id for c in pytest_cases.drawn(row.name, 5, 0)]
    assert {c.label for c in pytest_cases.marked("QLinearMatMul", dtype="uint8,int8", budget=1)} == {"uint8,int8"}
    with pytest.raises(pytest_cases.SelectionError, match="did you mean QLinearMatMul"):
        pytest_cases.marked("QLinearMatMull")
