"""Commits and builds of real repositories: what is refused, what is kept, what is skipped, and a whole bisect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opgauge import bisect as search
from opgauge import bisect_git, bisect_notebook, store
from opgauge.bisect_notebook import GIT, Notebook, Question, Report
from opgauge.bisect_probe import Answer, Subject
from opgauge.reference_engine.errors import CaseError
from opgauge.repository import revision, variables

RIGHT, WRONG = "right", "wrong"


def git(repository: Path, *words: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", *settings, "-C", str(repository), *words]
    return subprocess.run(command, env=variables(), check=True, capture_output=True, text=True).stdout


def commit(repository: Path, text: str, file: str = "value.txt") -> str:
    (repository / file).write_text(text)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "--allow-empty", "-m", text)
    return git(repository, "rev-parse", "HEAD").strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


@pytest.mark.parametrize("text", ["", "-h", "--upload-pack=x", "a..b", "no such", "gone", "main\n"])
def test_what_is_no_revision_is_refused(repository: Path, text: str) -> None:
    first = commit(repository, "one")
    assert revision(repository, "main") == revision(repository, first[:10]) == first
    with pytest.raises(CaseError):
        revision(repository, text)


def test_a_history_holds_merged_branches_unless_first_parents_are_asked_for(repository: Path) -> None:
    good = commit(repository, "one")
    git(repository, "checkout", "-q", "-b", "side")
    side = commit(repository, "side", "other.txt")
    git(repository, "checkout", "-q", "main")
    two = commit(repository, "two")
    git(repository, "merge", "-q", "--no-ff", "-m", "merge", "side")
    bad = git(repository, "rev-parse", "HEAD").strip()
    history = bisect_git.history(repository, good, bad)
    assert set(history.names) == {side, two, bad}
    assert history.names[-1] == bad
    assert history.ancestors[-1] == 0b111
    assert bisect_git.history(repository, good, bad, first_parent=True).names == (two, bad)
    with pytest.raises(CaseError, match="no ancestor"):
        bisect_git.history(repository, side, two)


def test_a_build_is_kept_and_a_broken_one_tells_the_end_of_its_log(repository: Path) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho hooked > hooked\n")
    hook.chmod(0o755)
    good = commit(repository, "fine")
    bad = commit(repository, "broken")
    script = "import os, sys\nt = open('value.txt').read()\nprint('says', t)\nopen('made', 'a').write(os.getcwd())\n"
    words = (sys.executable, "-c", script + "sys.exit(3 if t == 'broken' else 0)")
    builds = bisect_git.Builds(repository, words)
    tree, fresh = bisect_git.build(builds, good)
    assert fresh
    assert (tree / "made").read_text() == str(tree)
    assert not (tree / "hooked").exists()
    assert bisect_git.build(builds, good) == (tree, False)
    assert (tree / "made").read_text() == str(tree)
    with pytest.raises(bisect_git.UnbuildableError, match="exits 3: says broken"):
        bisect_git.build(builds, bad)
    assert git(repository, "worktree", "list").count("\n") == 1  # the user's repository knows of none
    assert git(repository, "status", "--porcelain") == ""
    bisect_git.discard(builds)
    assert not tree.exists()


def test_a_build_that_does_not_end_or_start_is_unbuildable(repository: Path) -> None:
    only = commit(repository, "one")
    sleeper = bisect_git.Builds(repository, (sys.executable, "-c", "import time; time.sleep(60)"), timeout_s=0.5)
    with pytest.raises(bisect_git.UnbuildableError, match=r"not over after 0\.5 s"):
        bisect_git.build(sleeper, only)
    with pytest.raises(bisect_git.UnbuildableError, match="one word for each --build"):
        bisect_git.build(bisect_git.Builds(repository, ("make -j2",)), only)


def test_a_build_sees_no_variables_that_lead_elsewhere(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only = commit(repository, "one")
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("GIT_DIR", "elsewhere")
    script = "import json, os; json.dump(dict(os.environ), open('env.json', 'w'))"
    tree, _ = bisect_git.build(bisect_git.Builds(repository, (sys.executable, "-c", script)), only)
    seen = json.loads((tree / "env.json").read_text())
    assert not {"PYTHONPATH", "GIT_DIR"} & set(seen)
    assert seen["OPGAUGE_BISECT_COMMIT"] == only


@pytest.mark.skipif(os.name == "nt", reason="paths")
def test_a_backend_lies_inside_the_build(tmp_path: Path) -> None:
    tree, python = tmp_path / "tree", tmp_path / "venv/bin/python"
    tree.mkdir()
    place = bisect_git.backend_in
    assert place("kernels.py:run", tree, None) == f"{tree.resolve()}/kernels.py:run"
    assert place("native:b/k.so:conv", tree, None) == f"native:{tree.resolve()}/b/k.so:conv"
    assert place("onnxruntime:level=basic", tree, python) == f"onnxruntime@{python}:level=basic"
    assert place("mine.runtime:run", tree, None, "env/bin/python") == f"mine.runtime:run@{tree}/env/bin/python"
    for wrong in ("../kernels.py:run", "/etc/kernels.py:run", "onnxruntime", "onnxruntime==1.20.0", "a.py:run@venv"):
        with pytest.raises(CaseError):
            place(wrong, tree, None)


# ---- a whole bisect, the answers read from a file of the build


def ask(subject: Subject, what: str, backend: str, timeout_s: float) -> Answer:
    text = (Path(backend.rpartition(":")[0]).parent / "value.txt").read_text().split()[0]
    return Answer("" if text == "unloadable" else text, "evidence")


def question(repository: Path, good: str, bad: str, what: str = "verdict") -> Question:
    script = "import sys; sys.exit(open('value.txt').read().startswith('broken'))"
    words = (sys.executable, "-c", script)
    subject = Subject("case")
    return Question(what, GIT, "kernels.py:run", subject, (good, bad), str(repository), words=words)


def run(asked: Question, home: Path, told: list[str], reply: Any = ask, resume: bool = False) -> Report:
    if resume:
        journal = store.reopen(store.latest(home))
    else:
        journal = store.create(home)
        journal.append("question", {"question": True})
    with journal:
        return search.answer(Notebook(asked, journal, told.append, reply))


def test_the_first_bad_commit_is_named_beside_those_that_cannot_be_judged(repository: Path, tmp_path: Path) -> None:
    texts = ["right 0", "right 1", "broken 2", "right 3", "right 4", "unloadable 5", "wrong 6", "broken 7", "wrong 8"]
    commits = [commit(repository, text) for text in texts]
    told: list[str] = []
    report = run(question(repository, commits[0], commits[-1]), tmp_path / "home", told)
    (found,) = report.found
    assert (report.result, found.place, found.also) == ("culprit", commits[6], (commits[5],))
    assert (found.before.place, found.before.value, found.after.value) == (commits[4], RIGHT, WRONG)
    assert f"--git {commits[4][:12]}..{commits[6][:12]}" in found.reproduce
    assert report.looks + 1 == report.builds  # and the one that did not load
    assert any("skipped" in line for line in told)


def test_equal_ends_are_no_step_and_an_end_without_an_answer_is_unavailable(repository: Path, tmp_path: Path) -> None:
    good, same, gone = (commit(repository, text) for text in ("right 0", "right 1", "unloadable 2"))
    told: list[str] = []
    assert run(question(repository, good, same), tmp_path / "a", told).result == "no step"
    assert run(question(repository, good, gone), tmp_path / "b", told).result == "unavailable"


def test_a_bisect_that_was_killed_asks_nothing_twice(repository: Path, tmp_path: Path) -> None:
    commits = [commit(repository, f"{'right' if i < 11 else 'wrong'} {i}") for i in range(16)]
    asked = question(repository, commits[0], commits[-1])
    calls: list[str] = []

    def counted(subject: Subject, what: str, backend: str, timeout_s: float) -> Answer:
        if len(calls) == 4:
            calls.append("stop")
            raise KeyboardInterrupt
        calls.append(backend)
        return ask(subject, what, backend, timeout_s)

    home = tmp_path / "home"
    with pytest.raises(KeyboardInterrupt):
        run(asked, home, [], counted)
    with open(store.latest(home), "ab") as file:
        file.write(b'{"crc":"0000')  # the machine died while it wrote
    report = run(asked, home, [], counted, resume=True)
    assert report.found[0].place == commits[11]
    once = [c for c in calls if c != "stop"]
    assert len(once) == len(set(once)) == report.looks


def test_a_count_between_the_ends_belongs_to_the_nearer_one() -> None:
    assert search.like("3", "2", "6", "count:Transpose") == "good"
    assert search.like("5", "2", "6", "count:Transpose") == "bad"
    assert search.like("crash", "pass", "fail", "verdict") == "skip"


def test_another_symptom_belongs_to_the_end_that_fails_where_only_one_does() -> None:
    assert search.like("fail: shape", "pass", "fail: value", "verdict") == "bad"
    assert search.like("fail: shape", "fail: value", "pass", "verdict") == "good"
    assert search.like("fail: NaN", "fail: shape", "fail: value", "verdict") == "skip"


def test_a_question_outlives_its_journal(repository: Path, tmp_path: Path) -> None:
    import dataclasses

    asked = question(repository, "a" * 40, "b" * 40)
    with store.create(tmp_path) as journal:
        journal.append("question", dataclasses.asdict(asked))
    (entry,) = store.entries(journal.path)
    entry.pop("kind")
    assert bisect_notebook.question_of(entry) == asked
