"""The command: releases out of a small registry of the test's own, a whole git bisect, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opgauge import cli
from opgauge.bisect_probe import Asker, Subject
from opgauge.reference_engine.errors import CaseError

RELU = "Relu/float32/op13/X=float32:65:normal/y=float32/plain/s0"


def bisect(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bisect", *words])
    return int(ended.value.code or 0)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `uv` that installs a package of one module, `leaky`, whose releases from 3.0 on leak below zero."""
    tools = tmp_path / "bin"
    tools.mkdir()
    fake = tools / "uv"
    fake.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "words = sys.argv[1:]\n"
        "(wanted,) = [w for w in words if w.startswith('leaky==')]\n"
        "version = wanted.partition('==')[2]\n"
        "if version == '2.5': sys.exit('no wheel, says the registry')\n"
        "python = pathlib.Path(words[words.index('--python') + 1])\n"
        "(site,) = python.parent.parent.glob('lib/python*/site-packages')\n"
        "slope = 0.5 if float(version) >= 3 else 0.0\n"
        "(site / 'leaky.py').write_text(f'SLOPE = {slope}\\n')\n"
        f"ours = pathlib.Path({str(Path(np.__file__).parents[1])!r})\n"
        "for name in ('numpy', 'numpy.libs'):\n"
        "    if (ours / name).exists(): (site / name).symlink_to(ours / name)\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OPGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.skipif(os.name == "nt", reason="a script with a first line that names its interpreter")
def test_the_release_that_broke_a_case_is_named(registry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = registry / "adapter.py"
    adapter.write_text(
        "import numpy as np\nimport leaky\n\n\ndef run(model, inputs):\n"
        "    x = inputs['X']\n    return [np.where(x > 0, x, np.float32(leaky.SLOPE) * x)]\n"
    )
    code = bisect(RELU, "--releases", "leaky", "1.0,2.0,2.5,3.0,4.0", "--backend", f"{adapter}:run", "--json")
    told = json.loads(capsys.readouterr().out)
    assert (code, told["result"], told["unbuildable"]) == (1, "culprit", 1)
    (found,) = told["found"]
    assert (found["before"]["place"], found["place"], found["also"]) == ("2.0", "3.0", ["2.5"])
    assert (found["before"]["value"], found["after"]["value"]) == ("pass", "fail: value")
    assert "--releases leaky 2.0,3.0" in found["reproduce"]
    # Another fault of the releases before does not hide it.
    adapter.write_text(
        "import numpy as np\nimport leaky\n\n\ndef run(model, inputs):\n"
        "    x = inputs['X']\n    return [np.where(x > 0, x, x / 2) if leaky.SLOPE else x[:-1]]\n"
    )
    assert bisect(RELU, "--releases", "leaky", "1.0,2.0,3.0,4.0", "--backend", f"{adapter}:run", "--json") == 1
    (found,) = json.loads(capsys.readouterr().out)["found"]
    assert (found["place"], found["before"]["value"], found["after"]["value"]) == ("3.0", "fail: shape", "fail: value")


def git(repository: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, "-C", str(repository), *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six commits of a Relu: the fourth counts one Transpose more, the fifth lets negatives pass."""
    monkeypatch.setenv("OPGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for i in range(6):
        floor, transposes = ("x" if i >= 4 else "np.maximum(x, 0)"), 3 if i >= 3 else 2
        (folder / "kernels.py").write_text(
            "import numpy as np\nfrom opgauge.backends import RunResult\n\n\ndef run(model, inputs):\n"
            f"    x = inputs['X']\n    return RunResult(({floor},), {{'Transpose': {transposes}}})  # {i}\n"
        )
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"commit {i}")
    return folder


def test_a_verdict_and_a_count_have_culprits_of_their_own(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--repository", str(repository), "--git", "main~5..main", "--backend", "kernels.py:run", "--json")
    assert bisect(RELU, *where) == 1
    assert "commit 4" in json.loads(capsys.readouterr().out)["reason"]
    assert bisect(RELU, *where, "--what", "count:Transpose") == 1
    told = json.loads(capsys.readouterr().out)
    assert ("commit 3" in told["reason"], told["builds"]) == (True, 0)  # they were kept
    assert bisect(RELU, *where, "--what", "crash") == 0
    assert json.loads(capsys.readouterr().out)["result"] == "no step"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "none given"),
        ((RELU, "--git", "a..b", "--rules"), "git and rules given"),
        (("--git", "a..b", "--backend", "k.py:run"), "one of them"),
        ((RELU, "--git", "--all..main", "--backend", "k.py:run"), "not a revision"),
        ((RELU, "--git", "main", "--backend", "k.py:run"), "not GOOD..BAD"),
        ((RELU, "--git", "main~1..main"), "needs --backend"),
        ((RELU, "--git", "main~1..main", "--backend", "../k.py:run"), "outside the build"),
        (("Relu/nonsense", "--git", "main~1..main", "--backend", "kernels.py:run"), "Relu/nonsense"),
        (("gone.onnx", "--git", "main~1..main", "--backend", "kernels.py:run"), "no file gone.onnx"),
        ((RELU, "--what", "weight", "--rules"), "there is verdict"),
        ((RELU, "--what", "verdict:x", "--rules"), "there is verdict"),
    ],
)
def test_what_cannot_be_understood_is_said_before_anything_runs(
    repository: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert bisect(*words, "--repository", str(repository)) == 2
    assert said in capsys.readouterr().err


def test_an_interrupted_bisect_says_how_to_go_on(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    where = ("--repository", str(repository), "--git", "main~5..main", "--backend", "kernels.py:run")
    with monkeypatch.context() as patch:
        patch.setattr(Asker, "__call__", stop)
        assert bisect(RELU, *where) == 130
    assert "opgauge bisect --resume" in capsys.readouterr().err
    assert bisect("--resume", "--json") == 1
    assert "commit 4" in json.loads(capsys.readouterr().out)["reason"]


def test_rules_that_do_right_are_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert bisect(RELU, "--rules") == 0


def test_the_reference_worker_is_started_again_after_a_case_that_killed_it() -> None:
    with Asker() as asker:
        assert asker(Subject(RELU), "verdict", "exact", 60).value == "pass"
        first = asker._process
        assert first is not None
        first.kill()
        with pytest.raises(CaseError, match="the reference worker ended"):
            asker(Subject(RELU), "verdict", "exact", 60)
        assert asker(Subject(RELU), "bits", "exact", 60).value == asker(Subject(RELU), "bits", "exact", 60).value
        with pytest.raises(CaseError, match="counts nothing"):
            asker(Subject(RELU), "count", "exact", 60)
        assert asker(Subject(RELU), "count", "onnxruntime", 60).value == "1"
