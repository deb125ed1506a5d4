"""Exact baselines in the folder of baselines: what was accepted as right, and the reason for each change of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from opgauge.reference_engine.errors import BaselineError

from .store import strict_json

FORMAT = 1


def read(part: str, key: str, path: Path | None = None) -> dict[str, Any]:
    """The baseline file, or the shipped `PART.json`; its table lies under `key`. Raises: BaselineError."""
    place = path or resources.files("opgauge.baselines") / f"{part}.json"
    try:
        document = strict_json(place.read_text("utf-8"), str(place))
    except (OSError, ValueError) as error:
        raise BaselineError(f"{place}: cannot be read: {error}") from error
    good = isinstance(document, dict) and document.get("format") == FORMAT and isinstance(document.get(key), dict)
    if not good:
        raise BaselineError(f"{place}: not a {part} baseline of format {FORMAT}")
    return dict(document)


def begun(part: str, key: str, path: Path, reason: str, opened: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The file as `opened` reads it, or an empty one, to be changed for that reason.

    Raises: BaselineError without a reason.
    """
    if not reason.strip():
        raise BaselineError(f"a baseline is accepted with a reason: --reason 'why the {part} changed'")
    return opened(path) if path.is_file() else {"format": FORMAT, "accepted": [], key: {}}


def write(path: Path, document: dict[str, Any], reason: str, changes: Sequence[str]) -> None:
    document["accepted"].append({"reason": reason, "changes": list(changes)})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
