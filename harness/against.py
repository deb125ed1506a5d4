"""The merge base of a revision as a build of its own: worktree, environment, cached by commit.

    opgauge gate --against origin/main

A build is the checkout's files laid out as its pyproject.toml says, in a virtual environment that sees the packages
of this one; where the two checkouts ask for different packages, it gets packages of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opgauge.reference_engine import caches
from opgauge.reference_engine.errors import CaseError

from . import environment
from .repository import GIT_S, git, revision, variables

READY = "opgauge-ready.json"


@dataclass(frozen=True)
class Built:
    """A commit that can be run. `python` is its interpreter, `folder` its files."""

    commit: str
    title: str
    folder: Path
    python: str


def root(folder: Path) -> Path:
    """The top of the working tree. Raises: CaseError."""
    return Path(git(folder, "rev-parse", "--show-toplevel").stdout.strip()).resolve()


def merge_base(name: str, folder: Path) -> str:
    """The commit from which this branch left the revision of that name. Raises: CaseError."""
    return git(folder, "merge-base", revision(folder, name), "HEAD").stdout.strip()


def build(commit: str, top: Path) -> Built:
    """The commit's files and an interpreter that runs them. Raises: CaseError."""
    place = caches.root() / "against" / commit
    files, python = place / "tree", place / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    title = git(top, "log", "-1", "--format=%h %s", commit, "--").stdout.strip()
    with caches.alone(place.with_name(f"{commit}.lock")):
        if not (place / READY).is_file():
            shutil.rmtree(place, ignore_errors=True)
            files.mkdir(parents=True)
            _unpack(_archive(commit, top), files)
            _environment(files, place / "env", python, top)
            (place / READY).write_text(json.dumps({"commit": commit, "title": title}))
    return Built(commit, title, files, str(python))


def _archive(commit: str, top: Path) -> bytes:
    """Raises: CaseError."""
    words = ["git", "-C", str(top), "archive", "--format=tar", commit]
    done = subprocess.run(words, capture_output=True, check=False, timeout=GIT_S, env=variables())
    if done.returncode:
        raise CaseError(f"git archive {commit}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _unpack(data: bytes, folder: Path) -> None:
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")


def _environment(files: Path, place: Path, python: Path, top: Path) -> None:
    """A virtual environment with the checkout's packages in it. Raises: CaseError."""
    _run(environment.creator(place), files)
    found = next(place.rglob("site-packages"))
    lay_out(files, found)
    if _asked(files) == _asked(top):
        # The same requirements: the packages of this environment serve, without our own editable finder.
        (found / "packages.pth").write_text("".join(f"{p}\n" for p in packages()))
        return
    _run([*environment.installer(python), *(_asked(files) or [])], files)


def packages() -> list[str]:
    """The folders of installed packages that this interpreter sees, those of a parent environment too."""
    own = sysconfig.get_path("purelib")
    return [own, *(p for p in sys.path if Path(p).name in ("site-packages", "dist-packages") and p != own)]


def lay_out(files: Path, target: Path) -> None:
    """Copy the packages of a checkout to where its pyproject.toml maps them. Raises: CaseError."""
    try:
        mapping = tomllib.loads((files / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-dir"]
    except (OSError, KeyError, ValueError) as error:
        raise CaseError(f"{files.name}: pyproject.toml has no [tool.setuptools.package-dir]: {error}") from error
    for package, room in sorted(mapping.items()):
        shutil.copytree(files / room, target.joinpath(*package.split(".")), dirs_exist_ok=True)


def _asked(folder: Path) -> list[str] | None:
    try:
        return tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    except (OSError, KeyError, ValueError):
        return None


def _run(words: Sequence[str], folder: Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise CaseError(f"{folder}: {' '.join(words[:4])}: {(done.stderr or done.stdout).strip()[-400:]}")


def is_installed(top: Path) -> bool:
    """Whether the opgauge that runs is this working tree's."""
    return top in Path(__file__).resolve().parents
