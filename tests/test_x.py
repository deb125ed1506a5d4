"""./x and the files it reads: what can be checked without making an environment."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOCK = (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def x() -> ModuleType:
    loader = SourceFileLoader("x", str(ROOT / "x"))
    spec = importlib.util.spec_from_loader("x", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def plant(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")
    return root


# ---------------------------------------------------------------- the files


def test_x_starts_on_python_3_9_with_the_standard_library_alone() -> None:
    tree = ast.parse((ROOT / "x").read_text(encoding="utf-8"), feature_version=(3, 9))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such bit")
@pytest.mark.parametrize("name", ["x", ".ci/run"])
def test_scripts_are_executable(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)


def test_the_lock_names_no_host_and_no_path() -> None:
    assert not re.search(r"https?:|file:|^\s*-[-\w]*(index|find-links)|^\s*/|@ ", LOCK, re.MULTILINE)


def test_every_locked_package_has_a_hash_and_one_version() -> None:
    blocks = re.findall(r"^([\w.-]+)==\S+(.*(?:\n    --hash=sha256:[0-9a-f]{64}.*)+)", LOCK, re.MULTILINE)
    names = re.findall(r"^([\w.-]+)==", LOCK, re.MULTILINE)
    assert [name for name, _ in blocks] == names == sorted(set(names))


def test_every_dependency_is_locked() -> None:
    extras = dict(PROJECT["optional-dependencies"])
    del extras["litert"]  # a runtime that is judged: any release, in an environment of its own
    wanted = [*PROJECT["dependencies"], *(each for extra in extras.values() for each in extra)]
    names = {re.split(r"[^\w.-]", each)[0].lower().replace("_", "-") for each in wanted}
    assert names <= set(re.findall(r"^([\w.-]+)==", LOCK, re.MULTILINE))


def test_workflow_actions_are_pinned_by_commit() -> None:
    used = re.findall(r"uses: *(\S+)(.*)", (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment)


# ---------------------------------------------------------------- arguments


def test_conformance_defaults(x: ModuleType) -> None:
    assert " ".join(x.conformance_arguments([])) == (
        "run --backend cpu --backend onnxruntime --backend exact --suite operators --suite onnx-node "
        "--budget 1 --html opgauge-report.html --json opgauge-report.json --junit opgauge-report.xml"
    )


def test_a_flag_of_the_user_replaces_its_default(x: ModuleType) -> None:
    words = x.conformance_arguments(["--backend", "wgpu", "--suite=models", "--html", "a b.html", "--limit", "3"])
    assert words[1:7] == ["--budget", "1", "--json", "opgauge-report.json", "--junit", "opgauge-report.xml"]
    assert words[7:] == ["--backend", "wgpu", "--suite=models", "--html", "a b.html", "--limit", "3"]
    assert x.report_path(words) == "a b.html"
    assert x.report_path(["--html=b.html"]) == "b.html"


@pytest.mark.parametrize("own", [["-n0"], ["-n", "4"], ["--numprocesses=1"], ["--pdb"], ["-p", "no:xdist"], ["-s"]])
def test_pytest_runs_two_workers_unless_told(x: ModuleType, own: list[str]) -> None:
    assert x.pytest_arguments(["-k", "a"]) == ["-n", "2", "-k", "a"]
    assert x.pytest_arguments(own) == own


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), ([], 2), (["nothing"], 2)])
def test_usage(words: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, ROOT / "x", *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == code
    assert all(name in done.stdout for name in ("conformance", "test", "lint", "env", "clean"))


def test_mypy_messages_name_the_real_file(x: ModuleType) -> None:
    links = "build/__editable__.opgauge-0.1.0-py3-none-any/opgauge"
    assert x.real_paths(f"{links}/cli.py:1: e\n{links}/suites/a.py:2: e\n") == "harness/cli.py:1: e\nsuites/a.py:2: e\n"


# ---------------------------------------------------------------- the stamp


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return plant(tmp_path, "requirements/lock.txt", "pyproject.toml", "harness/cli.py", "backends/a.wgsl")


def changed(x: ModuleType, tree: Path, name: str) -> set[str]:
    before = x.wanted_stamp(tree)
    plant(tree, name).joinpath(name).write_text("new")
    return {key for key, value in x.wanted_stamp(tree).items() if value != before[key]}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("requirements/lock.txt", {"lock"}),
        ("pyproject.toml", {"project"}),
        ("harness/new.py", {"project"}),
        ("backends/wgpu/new.wgsl", {"project"}),
        ("reports/page.html.j2", {"project"}),
        ("harness/cli.py", set()),
        ("tests/new.py", set()),
        ("harness/__pycache__/cli.py", set()),
        ("harness/notes.txt", set()),
    ],
)
def test_the_stamp_changes_with_what_must_be_installed(x: ModuleType, tree: Path, name: str, keys: set[str]) -> None:
    assert changed(x, tree, name) == keys


def test_a_copied_tree_does_not_use_the_originals_environment(x: ModuleType, tree: Path) -> None:
    assert x.wanted_stamp(tree)["root"] == str(tree)


@pytest.mark.parametrize("text", [None, "", "{"])
def test_a_broken_stamp_is_no_stamp(x: ModuleType, tree: Path, text: str | None) -> None:
    if text is not None:
        plant(tree, ".venv/opgauge-stamp.json").joinpath(".venv/opgauge-stamp.json").write_text(text)
    assert x.read_stamp(tree) == {}


# ---------------------------------------------------------------- Python and Vulkan


def test_too_old_a_python_is_said_plainly(x: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(x, "MINIMUM", (99, 0))
    with pytest.raises(x.Stop, match=r"needs Python 3\.11 or newer") as stopped:
        x.find_python()
    assert stopped.value.code == 3


def test_no_ensurepip_names_the_package(x: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(x, "quiet", lambda command, *_: ("import sys" in command[-1], "3.12.1\n"))
    monkeypatch.setattr(x, "is_root", lambda: False)
    with pytest.raises(x.Stop, match=r"apt-get install -y python3\.12-venv"):
        x.require_venv_module("python3")


MACHINE = os.uname().machine if hasattr(os, "uname") else ""
LAVAPIPE = f"usr/share/vulkan/icd.d/lvp_icd.{MACHINE}.json"
CHROME = "opt/google/chrome/vk_swiftshader_icd.json"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux needs a Vulkan driver")


@linux
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], None),
        ([CHROME], CHROME),
        ([CHROME, LAVAPIPE], LAVAPIPE),
        (["usr/share/vulkan/icd.d/lvp_icd.other.json", CHROME], CHROME),
        (["usr/share/vulkan/icd.d/lvp_icd.json"], "usr/share/vulkan/icd.d/lvp_icd.json"),
        (["usr/share/vulkan/icd.d/intel_icd.json"], None),
    ],
)
def test_driver_search(x: ModuleType, names: list[str], expected: str | None, tmp_path: Path) -> None:
    assert x.find_driver(plant(tmp_path, *names)) == (tmp_path / expected if expected else None)


@linux
@pytest.mark.parametrize("name", ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"])
def test_the_users_driver_is_honoured(
    x: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for each in x.DRIVER_VARIABLES:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "/some/icd.json")
    monkeypatch.setattr(x, "ensure_driver", lambda *_: pytest.fail("looked for a driver"))
    assert not set(x.ensure_vulkan(tmp_path)) & set(x.DRIVER_VARIABLES)


@linux
def test_a_browsers_driver_is_listed_behind_the_systems(
    x: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for each in x.DRIVER_VARIABLES:
        monkeypatch.delenv(each, raising=False)
    top, find = plant(tmp_path, LAVAPIPE, CHROME), x.find_driver
    monkeypatch.setattr(x, "find_driver", lambda _, patterns: find(top, patterns))
    for found, listed in ((LAVAPIPE, [LAVAPIPE, CHROME]), (CHROME, [CHROME])):
        monkeypatch.setattr(x, "ensure_driver", lambda *_, found=found: (top / found, []))
        assert x.ensure_vulkan(tmp_path)["VK_DRIVER_FILES"] == os.pathsep.join(str(top / name) for name in listed)


@linux
def test_no_driver_is_said_and_gone_past(
    x: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in x.DRIVER_VARIABLES:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setattr(x, "ensure_driver", lambda *_: (None, []))
    assert "VK_DRIVER_FILES" not in x.ensure_vulkan(tmp_path)
    assert "'unavailable'" in capsys.readouterr().out


@linux
def test_a_private_driver_is_found_with_its_libraries(
    x: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home, library = tmp_path / "home", "root/usr/lib/triplet/libvulkan.so.1"
    plant(home, f"root/{LAVAPIPE}", library, "root/usr/lib/triplet/engines/deep.so.1")
    monkeypatch.setattr(x.ctypes.util, "find_library", lambda _: None)
    assert x.find_vulkan(home, tmp_path / "top") == (home / "root" / LAVAPIPE, [str((home / library).parent)])


@linux
def test_a_browsers_loader_is_taken_alone(x: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    top = plant(tmp_path / "top", CHROME, "opt/google/chrome/libvulkan.so.1", "opt/google/chrome/libEGL.so")
    monkeypatch.setattr(x.ctypes.util, "find_library", lambda _: None)
    driver, folders = x.find_vulkan(tmp_path / "home", top)
    assert driver == top / CHROME
    assert [sorted(os.listdir(each)) for each in folders] == [["libvulkan.so.1"]]


def test_an_unpacked_icd_names_the_unpacked_library(x: ModuleType, tmp_path: Path) -> None:
    plant(tmp_path, "icd.json", "usr/lib/triplet/libvulkan_lvp.so")
    icd = {"ICD": {"library_path": "/usr/lib/triplet/libvulkan_lvp.so", "api_version": "1.3"}}
    (tmp_path / "icd.json").write_text(json.dumps(icd))
    x.move_library_path(tmp_path / "icd.json", tmp_path)
    moved = json.loads((tmp_path / "icd.json").read_text())
    assert moved == {"ICD": {"library_path": f"{tmp_path}/usr/lib/triplet/libvulkan_lvp.so", "api_version": "1.3"}}
