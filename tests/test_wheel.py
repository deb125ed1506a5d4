"""The built wheel holds every package and data file, and works away from the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE_DIR: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "setuptools"
]["package-dir"]
PROJECT_FILES = ("pyproject.toml", "LICENSE", "README.md")
NOT_SHIPPED = (".pyc", ".md")


def run(command: list[str | Path], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def shipped_files(root: Path) -> set[str]:
    """The names that the wheel must hold: opgauge/backends/cpu/linear.py for backends/cpu/linear.py."""
    names = set()
    for package, room in PACKAGE_DIR.items():
        for path in (root / room).rglob("*"):
            inside = path.relative_to(root / room)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
            if room == "reports" and inside.parts[0] == "sample":
                continue  # a site for people
            if path.is_file() and path.suffix not in NOT_SHIPPED and not hidden:
                names.add("/".join([*package.split("."), *inside.parts]))
    return names


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools writes build/ and *.egg-info beside what it builds."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in PROJECT_FILES:
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, copy / name)
    for room in PACKAGE_DIR.values():
        shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, copy], copy)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def target(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, wheel], folder)
    return folder


def outside(target: Path, folder: Path, *words: str) -> str:
    """Run Python away from the repository. -S leaves out .pth files, so the editable install is not seen."""
    paths = [str(target), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return run([sys.executable, "-S", *words], folder, PYTHONPATH=os.pathsep.join(dict.fromkeys(paths)))


def test_wheel_holds_every_file(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == shipped_files(ROOT)


def test_wheel_says_what_it_is(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    texts = {name.split("/", 1)[1]: name for name in archive.namelist() if ".dist-info/" in name}
    metadata = archive.read(texts["METADATA"]).decode()
    assert "Requires-Python: >=3.11" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert "licenses/LICENSE" in texts
    assert "opgauge = opgauge.__main__:main" in archive.read(texts["entry_points.txt"]).decode()


def test_wheel_imports_away_from_the_repository(target: Path, tmp_path: Path) -> None:
    packages = [*PACKAGE_DIR, "opgauge.cli"]
    program = f"import importlib\nfor name in {packages}: print(importlib.import_module(name).__file__)"
    for line in outside(target, tmp_path, "-c", program).splitlines():
        assert Path(line).is_relative_to(target), line


def test_wheel_runs_away_from_the_repository(target: Path, tmp_path: Path) -> None:
    assert json.loads(outside(target, tmp_path, "-m", "opgauge", "list", "--json"))
