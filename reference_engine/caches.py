"""Where this program keeps what it can make again: compiled kernels, models, environments."""

from __future__ import annotations

import os
import sys
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
