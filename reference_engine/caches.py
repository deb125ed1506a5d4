"""Where this program keeps what it can make again: compiled kernels, models, environments."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


def root() -> Path:
    """OPGAUGE_CACHE_DIR, else the platform's cache folder of the user."""
    if own := os.environ.get("OPGAUGE_CACHE_DIR"):
        return Path(own)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "opgauge"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/opgauge"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opgauge"


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """One process at a time makes what this file stands for; on Windows they may meet."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "a+") as handle:
        if os.name != "nt":
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
