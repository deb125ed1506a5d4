"""Where the interpreter of a backend's worker comes from: this one, a virtual environment, or one made for a version.

`onnxruntime==1.24.4` gets an environment under the user's cache folder, made once with uv or pip; the folder's
name holds the requirement and the version of Python. A foreign worker sees only files that are portable.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from opgauge.backends import BackendSpec
from opgauge.reference_engine import caches
from opgauge.reference_engine.errors import BackendUnavailableError

INSTALL_S = 900.0
READY = "opgauge-ready.json"
OLD_NUMPY = "compiled using NumPy 1.x"
# `opgauge`, its rooms and nothing that their __init__.py would import: only portable files are ever loaded.
_START = """
import sys, types
sys.path[:] = [p for p in sys.path if p]
for item in sys.argv.pop(1).split("|"):
    name, _, folder = item.partition("=")
    module = types.ModuleType(name)
    module.__path__ = [folder]
    sys.modules[name] = module
from opgauge.worker import main
main()
"""
# Another checkout's rooms, this harness's worker: what is judged may be older than what judges.
_START_ABROAD = """
import sys, types
sys.path[:] = [p for p in sys.path if p]
package = types.ModuleType("opgauge_here")
package.__path__ = [sys.argv.pop(1)]
sys.modules["opgauge_here"] = package
from opgauge_here.worker import main
main()
"""


def abroad(python: str) -> list[str]:
    """The words that start our worker in an interpreter that has an opgauge of its own, whose backends it loads."""
    return [python, "-c", _START_ABROAD, str(Path(__file__).resolve().parent)]


def command(spec: BackendSpec) -> list[str]:
    """The words that start a worker, without its settings. Raises: BackendUnavailableError."""
    if spec.kind == "native":  # needs no more than a foreign one, and starts three times as fast
        return [sys.executable, "-c", _START, _rooms()]
    if not spec.environment:
        # -P: the current folder may hold a `backends` or an `onnx` of its own.
        return [sys.executable, "-P", "-m", "opgauge.worker"]
    return [str(python_of(spec)), "-c", _START, _rooms()]


@functools.cache
def _rooms() -> str:
    import opgauge
    from opgauge import backends, reference_engine

    rooms = {"opgauge": opgauge, "opgauge.backends": backends, "opgauge.reference_engine": reference_engine}
    return "|".join(f"{name}={Path(module.__file__ or '').resolve().parent}" for name, module in rooms.items())


def python_of(spec: BackendSpec) -> Path:
    """The interpreter of `spec.environment`, `@FOLDER` or `==VERSION`. Raises: BackendUnavailableError."""
    if spec.environment.startswith("@"):
        folder = Path(spec.environment[1:]).expanduser()
        found = [p for p in _interpreters(folder) if p.exists()]
        if not found:
            raise BackendUnavailableError(f"{spec.text}: no interpreter in {folder}: give a virtual environment")
        return found[0]
    return made(spec.distribution, spec.environment.removeprefix("=="), spec.definition.companions)


def _interpreters(folder: Path) -> tuple[Path, ...]:
    return folder / "bin" / "python", folder / "Scripts" / "python.exe", folder


def made(distribution: str, version: str, companions: tuple[str, ...] = ()) -> Path:
    """The interpreter of an environment that holds this version and its companions, made where it is missing.

    Raises: BackendUnavailableError with what the installer said.
    """
    requirement = f"{distribution}=={version}"
    if not distribution or not re.fullmatch(r"[0-9A-Za-z.+!_-]+", version):
        raise BackendUnavailableError(f"{requirement!r} is not a version that can be installed")
    wanted = " ".join((requirement, *companions))
    word = hashlib.sha256(f"{wanted} {sys.version_info[:2]} {sys.platform}".encode()).hexdigest()[:8]
    folder = caches.root() / "environments" / f"{distribution}-{version}-{word}"
    if not (folder / READY).exists():
        with caches.alone(folder.with_name(f"{folder.name}.lock")):
            if not (folder / READY).exists():
                _make(folder, distribution, requirement, companions)
    return next(p for p in _interpreters(folder) if p.exists())


def uv() -> str | None:
    return shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))


def creator(folder: Path) -> list[str]:
    """The command that makes a virtual environment for `installer`."""
    return [sys.executable, "-m", "venv", *(["--without-pip"] if uv() else []), str(folder)]


def installer(python: Path) -> list[str]:
    """The command that installs the packages named after it into the environment of that interpreter."""
    found = uv()
    words = [found, "pip", "install", "--python", str(python)] if found else [str(python), "-m", "pip", "install"]
    return [*words, "-q"]


def _make(folder: Path, distribution: str, requirement: str, companions: tuple[str, ...] = ()) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _run(creator(folder), requirement)
    python = next(p for p in _interpreters(folder) if p.exists())
    install = installer(python)
    _run([*install, requirement, *companions, "numpy", "ml_dtypes"], requirement)
    check = [str(python), "-c", f"import {distribution.replace('-', '_')}"]
    seen = subprocess.run(check, capture_output=True, text=True, timeout=INSTALL_S, check=False, errors="replace")
    if seen.returncode or OLD_NUMPY in seen.stderr:
        # Old releases do not say that they need numpy 1; some are imported with a warning, then crash on arrays.
        _run([*install, requirement, *companions, "numpy<2", "ml_dtypes"], requirement)
        _run(check, requirement)
    listed = [str(python), "-c", _LIST]
    (folder / READY).write_text(_run(listed, requirement))


_LIST = """
import json, sys
from importlib.metadata import distributions
print(json.dumps({"python": sys.version.split()[0], **{d.metadata["Name"]: d.version for d in distributions()}}))
"""


def _run(words: Sequence[str], requirement: str) -> str:
    """Raises: BackendUnavailableError."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendUnavailableError(f"{requirement}: cannot be installed: {error}") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
        raise BackendUnavailableError(f"{requirement}: cannot be installed: {' '.join(lines[-3:])[:300]}")
    return done.stdout


def packages(spec: BackendSpec) -> dict[str, str]:
    """What was resolved for a `==VERSION` environment, empty elsewhere."""
    if not spec.environment.startswith("=="):
        return {}
    folder = python_of(spec).parent.parent
    return dict(json.loads((folder / READY).read_text()))
