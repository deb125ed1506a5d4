"""Workers of other environments: what they may import, where their interpreter comes from, what they answer."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from opgauge import environment
from opgauge.backends import UnknownBackendError, resolve
from opgauge.client import Client
from opgauge.reference_engine.errors import BackendUnavailableError
from opgauge.reference_engine.types import Status

ROOT = Path(__file__).parents[1]
PORTABLE = [
    name
    for name, version in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"][
        "per-file-target-version"
    ].items()
    if version == "py38"
]
OF_OURS = {"opgauge.backends.result", "opgauge.reference_engine.errors", "opgauge.backends"}
X = np.arange(3, dtype=np.float32)


@pytest.mark.parametrize("name", PORTABLE)
def test_portable_files_are_python_3_8_and_import_only_portable_files(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text(), feature_version=(3, 8))
    runtimes = {"numpy", "ml_dtypes", Path(name).stem.removesuffix("_graph"), "onnx"}
    if "litert" in name:
        runtimes |= {"ai_edge_litert", "flatbuffers"}
    portable = {Path(each).stem for each in PORTABLE}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots = {alias.name.split(".")[0] for alias in node.names}
            assert roots <= runtimes | sys.stdlib_module_names, roots
        elif isinstance(node, ast.ImportFrom) and node.level:
            assert {alias.name for alias in node.names} <= portable or node.module in portable
        elif isinstance(node, ast.ImportFrom):
            module = str(node.module)
            assert module in OF_OURS or module.split(".")[0] in runtimes | sys.stdlib_module_names, module


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with numpy and nothing else: no opgauge, no ml_dtypes."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    ours = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (ours / name).exists():
            (site / name).symlink_to(ours / name)
    return folder


@pytest.mark.skipif(os.name == "nt", reason="symbolic links")
def test_an_adapter_runs_in_another_environment_with_numpy_alone(venv: Path, tmp_path: Path) -> None:
    path = tmp_path / "adapter.py"
    path.write_text(
        "import sys\n"
        "def run(model, inputs):\n"
        "    x = inputs['x']\n"
        "    assert sys.prefix == model.decode(), sys.prefix\n"
        "    assert 'ml_dtypes' not in sys.modules and 'onnx' not in sys.modules\n"
        "    if x[0] == 9: import os; os.abort()\n"
        "    return [x + x.dtype.type(1)] if x.dtype.kind == 'f' else [x]\n"
    )
    with Client(resolve(f"{path}:run@{venv}")) as client:
        assert client.spec.environment == f"@{venv}"
        for _ in range(2):
            client.submit("add", str(venv).encode(), {"x": X})
            seen = client.receive()
            assert seen.status is Status.PASS, seen
            np.testing.assert_array_equal(seen.outputs[0], X + 1)
            client.submit("abort", str(venv).encode(), {"x": X + 9})
            assert "SIGABRT" in client.receive().message
        short = np.array([1, 2], ml_dtypes.bfloat16)
        client.submit("bits", str(venv).encode(), {"x": short})
        (y,) = client.receive().outputs
        assert y.dtype == short.dtype
        np.testing.assert_array_equal(y, short)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `uv` that puts a small onnxruntime of the wanted version into the environment, and a log of its calls."""
    log, tools = tmp_path / "log", tmp_path / "bin"
    tools.mkdir()
    fake = tools / "uv"
    fake.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        f"open({str(log)!r}, 'a').write(' '.join(sys.argv[1:]) + chr(10))\n"
        "words = sys.argv[1:]\n"
        "(wanted,) = [w for w in words if w.startswith('onnxruntime==')]\n"
        "if wanted.endswith('0.0.0'): sys.exit('no such version, says the registry')\n"
        "python = pathlib.Path(words[words.index('--python') + 1])\n"
        "(site,) = python.parent.parent.glob('lib/python*/site-packages')\n"
        "old = 'numpy<2' in words\n"
        "bad = wanted.endswith('1.1.1') and not old\n"
        "(site / 'onnxruntime.py').write_text('1/0' if bad else '__version__ = ' + repr(wanted[13:]))\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OPGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    return log


@pytest.mark.skipif(os.name == "nt", reason="a script with a first line that names its interpreter")
def test_an_environment_is_made_once_for_a_version(registry: Path) -> None:
    spec = resolve("onnxruntime==9.8.7:level=basic")
    first = environment.python_of(spec)
    assert environment.python_of(spec) == first
    assert registry.read_text().count("\n") == 1
    said = subprocess.run(
        [first, "-c", "import onnxruntime as o; print(o.__version__)"], capture_output=True, text=True
    )
    assert said.stdout == "9.8.7\n"
    assert (spec.name, spec.text) == ("onnxruntime", "onnxruntime==9.8.7:level=basic")
    assert "python" in environment.packages(spec)


@pytest.mark.skipif(os.name == "nt", reason="a script with a first line that names its interpreter")
def test_a_release_that_wants_numpy_1_gets_it_and_a_missing_one_is_unavailable(registry: Path) -> None:
    environment.python_of(resolve("onnxruntime==1.1.1"))
    assert "numpy<2" in registry.read_text().splitlines()[-1]
    with Client(resolve("onnxruntime==0.0.0")) as client:
        client.submit("x", b"", {"x": X})
        seen = client.receive()
    assert seen.status is Status.UNAVAILABLE
    assert "no such version, says the registry" in seen.message


@pytest.mark.parametrize("version", ["1.2;touch x", "-r /etc/passwd", "", "1 2"])
def test_a_version_that_is_none_installs_nothing(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_make", lambda *_: pytest.fail("installs"))
    with pytest.raises(BackendUnavailableError, match="not a version"):
        environment.made("onnxruntime", version)


def test_elsewhere_is_spelled_one_way_and_only_where_it_can_be() -> None:
    assert (
        resolve("onnxruntime@/some/venv:threads=1,level=basic").text == "onnxruntime@/some/venv:level=basic,threads=1"
    )
    with pytest.raises(UnknownBackendError, match="any version of: litert, onnx-reference, onnxruntime, openvino"):
        resolve("cpu==1.0")
    with Client(resolve("onnxruntime@/no/such/folder")) as client:
        assert "no interpreter in" in client.info["unavailable"]
