"""opgauge: do ONNX runtimes compute operators as the standard says?

The public API is loaded on first use, so that importing a room of the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "Client": "client",
    "check_case": "check",
    "check_row": "check",
    "resolve": "backends",
}
__all__ = ["Client", "__version__", "check_case", "check_row", "resolve"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("opgauge")
    if name in _WHERE:
        return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
