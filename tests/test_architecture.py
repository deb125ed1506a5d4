"""The shape of the house: which room may import what, file sizes and names, and the list of packages.

Each check is a function of a root path that returns findings, and each is shown planted violations, so that a
check which sees nothing is itself found out.
"""

from __future__ import annotations

import ast
import fnmatch
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ROOMS = {
    "harness": "opgauge",
    "reference_engine": "opgauge.reference_engine",
    "backends": "opgauge.backends",
    "suites": "opgauge.suites",
    "reports": "opgauge.reports",
    "baselines": "opgauge.baselines",
}
CODE_ROOMS = tuple(room for room in ROOMS if room != "baselines")
MAY_IMPORT = {
    "reference_engine": {"reference_engine"},
    "backends": {"backends", "reference_engine"},
    "suites": {"suites", "reference_engine"},
    "reports": {"reports", "reference_engine"},
    "harness": set(ROOMS),
    "baselines": set(),
}
LEAVES = ("suites/latency",)
# Library: the only places (files, or folders with all they hold) that may import it.
ONLY_IN = {
    "numba": ("backends/cpu",),
    "llvmlite": ("backends/cpu",),
    "wgpu": ("backends/wgpu",),
    "onnxruntime": ("backends/onnxruntime*",),
    "hypothesis": ("suites", "harness/generate.py"),
    "asv": ("suites/latency", "harness/trends.py"),
    "asv_runner": ("suites/latency", "harness/trends.py"),
    "pandas": ("harness/frames.py", "reports"),
    "distributed": ("harness/cluster.py",),
}
FAMILIES = {"linear", "pointwise", "reduce", "movement"}
FAMILY_ROOMS = (
    "reference_engine/operators",
    "reference_engine/primitives",
    "suites",
    "backends/cpu",
    "backends/wgpu",
)
LINES = 500
PUBLISHED = "reports/sample"  # a site made by `opgauge report site`, for people, not for the wheel
BANNED_NAMES = {"utils", "common", "helpers", "base", "manager"}


# ---------------------------------------------------------------- reading the tree


def python_files(root: Path, folders: tuple[str, ...] = (*ROOMS, "tests")) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((root / folder).rglob("*.py"))


def place(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def module_package(root: Path, path: Path) -> list[str]:
    """The package that a relative import in `path` starts from."""
    room, *inner = path.parent.relative_to(root).parts
    return [*ROOMS.get(room, room).split("."), *inner]


def imports(root: Path, path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported; `from a import b` gives a.b, since b may be a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module_package(root, path)[: -(node.level - 1) or None] if node.level else []
            stem = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "import_module":
            words = [each.value for each in node.args[:1] if isinstance(each, ast.Constant)]
            yield from ((node.lineno, word) for word in words if isinstance(word, str))


def room_of(name: str) -> str | None:
    """The room that a dotted import name lies in: `opgauge.cli` is harness."""
    parts = name.split(".")
    if parts[0] != "opgauge":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS and parts[1] != "harness" else "harness"


def lies_in(where: str, places: tuple[str, ...]) -> bool:
    parts = where.split("/")
    heads = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return any(fnmatch.fnmatchcase(head, each) for head in heads for each in places)


# ---------------------------------------------------------------- the checks


def room_imports(root: Path) -> list[str]:
    found = []
    for path in python_files(root, tuple(ROOMS)):
        where = place(root, path)
        if lies_in(where, LEAVES):
            continue
        here = where.split("/")[0]
        found += [
            f"{where}:{line}: {here} imports {name} ({room})"
            for line, name in imports(root, path)
            if (room := room_of(name)) and room not in MAY_IMPORT[here]
        ]
    return found


def bare_room_imports(root: Path) -> list[str]:
    return [
        f"{place(root, path)}:{line}: {name} must be imported as opgauge..., a bare room is a second copy"
        for path in python_files(root)
        for line, name in imports(root, path)
        if name.split(".")[0] in ROOMS
    ]


def library_imports(root: Path) -> list[str]:
    return [
        f"{place(root, path)}:{line}: {name} belongs only in {', '.join(ONLY_IN[name.split('.')[0]])}"
        for path in python_files(root, tuple(ROOMS))
        for line, name in imports(root, path)
        if name.split(".")[0] in ONLY_IN and not lies_in(place(root, path), (*ONLY_IN[name.split(".")[0]], *LEAVES))
    ]


def long_files(root: Path) -> list[str]:
    paths = [*python_files(root), *(p for room in ROOMS for p in sorted((root / room).rglob("*.wgsl")))]
    paths += [root / "x"] if (root / "x").exists() else []
    counted = ((path, len(path.read_text(encoding="utf-8").splitlines())) for path in paths)
    return [f"{place(root, path)}: {lines} lines, split it by family" for path, lines in counted if lines > LINES]


def banned_names(root: Path) -> list[str]:
    inside = (path for folder in (*ROOMS, "tests") for path in sorted((root / folder).rglob("*")))
    return [
        f"{place(root, path)}: the name says nothing"
        for path in inside
        if "__pycache__" not in path.parts and path.name.split(".")[0] in BANNED_NAMES
    ]


def tree_packages(root: Path) -> list[str]:
    return sorted(
        ".".join([package, *init.parent.relative_to(root / room).parts])
        for room, package in ROOMS.items()
        for init in (root / room).rglob("__init__.py")
    )


def package_list(root: Path) -> list[str]:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    listed, real = set(settings["packages"]), set(tree_packages(root))
    found = [f"pyproject.toml lists {name}, which is not in the tree" for name in sorted(listed - real)]
    found += [f"pyproject.toml does not list {name}" for name in sorted(real - listed)]
    expected = {package: room for room, package in ROOMS.items() if package in listed}
    if settings["package-dir"] != expected:
        found.append(f"pyproject.toml: package-dir is {settings['package-dir']}, expected {expected}")
    return found


def packageless_modules(root: Path) -> list[str]:
    """A module in a folder without __init__.py is left out of the wheel."""
    return [
        f"{place(root, path)}: its folder has no __init__.py"
        for path in python_files(root, tuple(ROOMS))
        if not (path.parent / "__init__.py").exists()
    ]


def data_files(root: Path) -> Iterator[Path]:
    for room in ROOMS:
        for path in sorted((root / room).rglob("*")):
            hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(root).parts)
            if (
                path.is_file()
                and path.suffix not in (".py", ".pyc", ".md")
                and not hidden
                and not lies_in(place(root, path), (PUBLISHED,))
            ):
                yield path


def uncovered_data(root: Path) -> list[str]:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    patterns = settings["package-data"]["*"]
    folders = {root / room for room in ROOMS if (root / room / "__init__.py").exists()}
    covered = {path for folder in folders for pattern in patterns for path in folder.glob(pattern)}
    return [f"{place(root, path)}: no package-data pattern" for path in data_files(root) if path not in covered]


def missing_families(root: Path) -> list[str]:
    found = []
    for room in FAMILY_ROOMS:
        if not (root / room).is_dir():
            continue
        names = {
            path.stem
            for path in (root / room).iterdir()
            if path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py")))
        }
        if names & FAMILIES:
            found += [f"{room}: no {name}" for name in sorted(FAMILIES - names)]
    return found


CHECKS: tuple[Callable[[Path], list[str]], ...] = (
    room_imports,
    bare_room_imports,
    library_imports,
    long_files,
    banned_names,
    package_list,
    packageless_modules,
    uncovered_data,
    missing_families,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_tree_holds(check: Callable[[Path], list[str]]) -> None:
    assert check(ROOT) == []


# ---------------------------------------------------------------- the checks see what they should

PYPROJECT = """
[tool.setuptools]
packages = ["opgauge", "opgauge.backends"]
[tool.setuptools.package-dir]
"opgauge" = "harness"
"opgauge.backends" = "backends"
[tool.setuptools.package-data]
"*" = ["py.typed", "**/*.wgsl"]
"""
GOOD = {
    "pyproject.toml": PYPROJECT,
    "harness/__init__.py": "",
    "harness/py.typed": "",
    "harness/cli.py": "import json\nfrom opgauge import backends\nfrom opgauge.suites import a\nfrom . import gate\n",
    "harness/generate.py": "import hypothesis.strategies as st\n",
    "harness/frames.py": "import pandas as pd\n",
    "harness/trends.py": "from asv.step_detect import detect_steps\n",
    "backends/__init__.py": "from opgauge.reference_engine import types\n",
    "backends/onnxruntime_quantized.py": "import onnxruntime.quantization\n",
    "tests/test_all.py": "import numba\nfrom opgauge.backends import cpu\n",
}
Plant = tuple[Callable[[Path], list[str]], str, str]
PLANTS: tuple[Plant, ...] = (
    (room_imports, "reference_engine/a.py", "from opgauge.backends import cpu\n"),
    (room_imports, "reference_engine/a.py", "from opgauge import backends\n"),
    (room_imports, "reference_engine/a.py", "from .. import backends\n"),
    (room_imports, "reference_engine/operators/a.py", "from ...suites import linear\n"),
    (room_imports, "reference_engine/a.py", "import opgauge\n"),
    (room_imports, "reference_engine/a.py", "def f():\n    import opgauge.gate\n"),
    (room_imports, "backends/a.py", "from opgauge.suites import linear\n"),
    (room_imports, "backends/a.py", "import importlib\nimportlib.import_module('opgauge.reports')\n"),
    (room_imports, "suites/a.py", "import opgauge.backends.cpu\n"),
    (room_imports, "suites/a.py", "from opgauge import generate\n"),
    (room_imports, "reports/a.py", "from ..backends import wgpu\n"),
    (bare_room_imports, "harness/a.py", "import harness\n"),
    (bare_room_imports, "tests/a.py", "from reference_engine.types import Case\n"),
    (bare_room_imports, "suites/latency/a.py", "import suites.linear\n"),
    (library_imports, "harness/a.py", "import numba\n"),
    (library_imports, "backends/wgpu/a.py", "from llvmlite import ir\n"),
    (library_imports, "backends/cpu/a.py", "import wgpu.utils\n"),
    (library_imports, "suites/a.py", "from onnxruntime import InferenceSession\n"),
    (library_imports, "backends/exact.py", "import onnxruntime as ort\n"),
    (library_imports, "harness/a.py", "from hypothesis import given\n"),
    (library_imports, "suites/a.py", "from asv import config\n"),
    (library_imports, "backends/a.py", "import pandas\n"),
    (long_files, "harness/a.py", "x = 1\n" * 501),
    (long_files, "backends/wgpu/a.wgsl", "// a\n" * 501),
    (long_files, "x", "x = 1\n" * 501),
    (banned_names, "harness/utils.py", ""),
    (banned_names, "backends/cpu/common/a.py", ""),
    (banned_names, "backends/wgpu/base.wgsl", ""),
    (package_list, "backends/cpu/__init__.py", ""),
    (package_list, "pyproject.toml", PYPROJECT.replace('"opgauge.backends"]', '"opgauge.backends", "opgauge.gone"]')),
    (package_list, "pyproject.toml", PYPROJECT.replace('"opgauge" = "harness"', '"opgauge" = "opgauge"')),
    (packageless_modules, "backends/cpu/a.py", ""),
    (uncovered_data, "backends/table.csv", ""),
    (uncovered_data, "reports/page.wgsl", ""),
    (missing_families, "suites/linear.py", ""),
    (missing_families, "backends/cpu/linear/gemm.py", ""),
)


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_good_tree_is_clean(check: Callable[[Path], list[str]], tmp_path: Path) -> None:
    assert check(plant(tmp_path, GOOD)) == []


@pytest.mark.parametrize(
    ("check", "name", "text"), PLANTS, ids=[f"{c.__name__}-{n}-{i}" for i, (c, n, _) in enumerate(PLANTS)]
)
def test_a_planted_violation_is_found(check: Callable[[Path], list[str]], name: str, text: str, tmp_path: Path) -> None:
    findings = check(plant(tmp_path, {**GOOD, name: text}))
    assert findings
    assert all(name.split("/")[0] in each for each in findings)


def test_every_check_has_a_planted_violation() -> None:
    assert {check for check, _, _ in PLANTS} == set(CHECKS)


def test_the_latency_leaf_may_import_anything(tmp_path: Path) -> None:
    leaf = {"suites/latency/a.py": "import asv, numba, onnxruntime\nfrom opgauge import backends, cli\n"}
    root = plant(tmp_path, {**GOOD, **leaf})
    assert room_imports(root) == library_imports(root) == []


def test_families_may_be_files_or_folders(tmp_path: Path) -> None:
    files = {f"suites/{name}.py": "" for name in FAMILIES} | {f"backends/cpu/{name}/a.py": "" for name in FAMILIES}
    assert missing_families(plant(tmp_path, files)) == []
