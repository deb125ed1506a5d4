"""git as this program asks it: lists of words, no hooks, no settings of the caller's environment, errors by name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from opgauge.reference_engine.errors import CaseError

from .worker import clean

GIT_S = 300.0
# What would lead git or Python elsewhere.
_FOREIGN = ("GIT_", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTEST_", "OPGAUGE_")
_SAFE = ("-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false", "-c", "protocol.ext.allow=never")


def variables() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    return kept | {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


def git(repository: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Raises: CaseError with what git said."""
    command = ["git", *_SAFE, "-C", str(repository), *words]
    try:
        done = subprocess.run(
            command, env=variables(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GIT_S,
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CaseError(f"git {words[0]}: {error}") from error
    if check and done.returncode:
        raise CaseError(f"git {words[0]} in {repository}: {clean(done.stderr.strip() or done.returncode)}")
    return done


def revision(repository: Path, text: str) -> str:
    """The id of a commit. Raises: CaseError where the text looks like an option or a range, or names no commit."""
    if not text or text.startswith("-") or ".." in text or not text.isprintable() or " " in text:
        raise CaseError(f"{text!r} is not a revision: give a branch, a tag or an id")
    done = git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}", check=False)
    found = done.stdout.strip()
    if done.returncode or not found:
        raise CaseError(
            f"{repository} has no commit {text!r}: {clean(done.stderr.strip()) or 'git knows no such name'}"
        )
    return found


def title(repository: Path, commit: str) -> str:
    """Id, date and subject in one line."""
    told = git(repository, "log", "-1", "--format=%h %as %s", commit, "--", check=False).stdout
    return clean(told.strip())[:120] or commit[:12]
