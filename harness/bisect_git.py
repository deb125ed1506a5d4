"""The commits between two revisions, and a build of each in a worktree and an environment of its own, kept.

The user's repository is only read: worktrees belong to a bare repository under the cache folder that borrows its
objects. Revisions become ids before anything is done with them; commands are lists of words; no hook runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opgauge import backends
from opgauge.reference_engine import caches
from opgauge.reference_engine.errors import BackendUnavailableError, CaseError

from .bisect_search import History, graph
from .repository import git, variables
from .worker import clean

MOST = 20_000  # commits; their ancestors are kept as bit sets
READY, LOG, TREE, VENV = "ready.json", "build.log", "tree", "venv"


class UnbuildableError(BackendUnavailableError):
    """A commit or a release that cannot be built or installed: it is skipped."""


def span(text: str) -> tuple[str, str]:
    """`GOOD..BAD`. Raises: CaseError."""
    good, dots, bad = text.partition("..")
    if not good or not dots or not bad or bad.startswith("."):
        raise CaseError(f"{text!r} is not GOOD..BAD")
    return good, bad


def history(repository: Path, good: str, bad: str, first_parent: bool = False) -> History:
    """The commits that `bad` has and `good` has not, older first; ids, not names, are expected.

    Raises: CaseError where good is no ancestor of bad.
    """
    if good == bad:
        raise CaseError("both ends are the same commit: nothing lies between them")
    if git(repository, "merge-base", "--is-ancestor", good, bad, check=False).returncode:
        raise CaseError(f"{good[:12]} is no ancestor of {bad[:12]}: give `git merge-base` of the two as the good end")
    options = ["--topo-order", "--reverse", "--parents", *(["--first-parent"] if first_parent else [])]
    told = git(repository, "rev-list", *options, f"{good}..{bad}", "--").stdout.splitlines()
    if len(told) > MOST:
        raise CaseError(f"{len(told)} commits are more than {MOST}: try --first-parent, or nearer ends")
    rows = [row.split() for row in told]
    parents = [row[1:2] if first_parent else row[1:] for row in rows]
    return graph([row[0] for row in rows], parents)


@dataclass(frozen=True)
class Builds:
    """How a commit of a repository is built. `words` is the command, none where there is nothing to build.

    `venv`: each build has a virtual environment of its own, whose `python` and `pip` come first in PATH.
    """

    repository: Path
    words: tuple[str, ...] = ()
    venv: bool = False
    timeout_s: float = 1800.0

    @property
    def home(self) -> Path:
        told = json.dumps([str(self.repository.resolve()), self.words, self.venv, sys.version_info[:2], sys.platform])
        return caches.root() / "bisect" / hashlib.sha256(told.encode()).hexdigest()[:16]

    def tree(self, commit: str) -> Path:
        return self.home / commit / TREE

    def python(self, commit: str) -> Path | None:
        """The interpreter of the build's own environment."""
        return _interpreter(self.home / commit / VENV) if self.venv else None


def _interpreter(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def build(builds: Builds, commit: str) -> tuple[Path, bool]:
    """The worktree of a commit after the build command, and whether it was built now; else it was kept.

    Raises: UnbuildableError with the end of what the command printed.
    """
    folder = builds.home / commit
    if (folder / READY).exists():
        return builds.tree(commit), False
    with caches.alone(builds.home / f"{commit}.lock"):
        if (folder / READY).exists():
            return builds.tree(commit), False
        mirror = _mirror(builds)
        _discard(mirror, folder)
        folder.mkdir(parents=True)
        began = time.monotonic()
        git(mirror, "worktree", "add", "--force", "--detach", str(builds.tree(commit)), commit)
        if builds.venv:
            _run(builds, folder, [sys.executable, "-m", "venv", str(folder / VENV)], commit)
        if builds.words:
            _run(builds, folder, builds.words, commit)
        told = {"commit": commit, "words": builds.words, "seconds": round(time.monotonic() - began, 3)}
        (folder / READY).write_text(json.dumps(told))
    return builds.tree(commit), True


def discard(builds: Builds) -> None:
    """Remove every kept build of these settings."""
    shutil.rmtree(builds.home, ignore_errors=True)


def _discard(mirror: Path, folder: Path) -> None:
    """What a build that was broken off has left."""
    shutil.rmtree(folder, ignore_errors=True)
    git(mirror, "worktree", "prune")


def _mirror(builds: Builds) -> Path:
    """A bare repository that borrows the objects of the user's."""
    mirror = builds.home / "mirror.git"
    with caches.alone(builds.home / "mirror.lock"):
        if not (mirror / "objects" / "info" / "alternates").exists():
            shutil.rmtree(mirror, ignore_errors=True)
            mirror.mkdir(parents=True)
            git(mirror, "init", "--quiet", "--bare", "--template=")
            told = git(builds.repository, "rev-parse", "--git-path", "objects").stdout.strip()
            objects = (builds.repository / told).resolve()
            (mirror / "objects" / "info").mkdir(parents=True, exist_ok=True)
            (mirror / "objects" / "info" / "alternates").write_text(f"{objects}\n")
    return mirror


def _run(builds: Builds, folder: Path, words: Sequence[str], commit: str) -> None:
    """Raises: UnbuildableError."""
    told = variables() | {"OPGAUGE_BISECT_COMMIT": commit}
    if builds.venv:
        python = _interpreter(folder / VENV)
        told |= {"VIRTUAL_ENV": str(folder / VENV), "PATH": f"{python.parent}{os.pathsep}{told.get('PATH', '')}"}
    with open(folder / LOG, "ab") as log:
        try:
            child = subprocess.Popen(
                list(words), cwd=folder / TREE, env=told, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            one = " (one word for each --build)" if " " in words[0] else ""
            raise UnbuildableError(f"the build command does not start: {error}{one}") from error
        try:
            code: int | None = child.wait(builds.timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(child)
    if code:
        raise UnbuildableError(f"the build exits {code}: {_tail(folder / LOG)}")
    if code is None:
        raise UnbuildableError(f"the build is not over after {builds.timeout_s:g} s: {_tail(folder / LOG)}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """The build and all that it started."""
    with contextlib.suppress(OSError):
        if os.name == "nt":
            child.kill()
        else:
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _tail(log: Path) -> str:
    lines = [text for text in log.read_text(errors="replace").splitlines() if text.strip()]
    return clean(" | ".join(lines[-3:]))[-300:] or "it printed nothing"


def backend_in(text: str, tree: Path, python: Path | None, relative_python: str = "") -> str:
    """The backend as it lies in a build: paths are inside the worktree, and its interpreter runs them.

    `kernels.py:run`, `native:build/libk.so:conv`, `faults:f.py:ID`, or a row of the table, which needs an interpreter
    of the build. Raises: CaseError.
    """
    place = tree / relative_python if relative_python else python
    at = f"@{place}" if place else ""
    head, _, rest = text.partition(":")
    if "@" in text or "==" in text:
        raise CaseError(f"backend {text!r}: the build decides where it runs; leave @ and == away")
    if head in ("native", "faults"):
        file, _, name = rest.rpartition(":")
        return f"{head}:{_inside(tree, file, text)}:{name}"
    file, _, name = text.rpartition(":")
    if file.endswith(".py"):
        return f"{_inside(tree, file, text)}:{name}{at}"
    if not at:
        raise CaseError(
            f"backend {text!r} does not come from the build: give a file inside it, such as kernels.py:run, "
            "or the build's interpreter with --venv or --python"
        )
    return f"{head}{at}{':' if rest else ''}{rest}" if head in backends.BACKENDS else f"{text}{at}"


def _inside(tree: Path, file: str, text: str) -> Path:
    found = (tree / file).resolve()
    if not found.is_relative_to(tree.resolve()):
        raise CaseError(f"backend {text!r} lies outside the build: give a path relative to the repository")
    return found
