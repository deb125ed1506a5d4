"""opgauge: do ONNX runtimes compute operators as the standard says?

The public API is loaded on first use, so that importing a room of the package costs nothing. `opgauge.check` and
`opgauge.run` are modules of ours that can be called: the functions are `opgauge.api.check` and `opgauge.api.run`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_WHERE = {
    "Client": "client",
    "Report": "api",
    "Run": "api",
    "assert_within_set": "api",
    "check_row": "check",
    "resolve": "backends",
}
_MODULES = ("api", "check", "frames", "run")
_CALLED = ("check", "run")
__all__ = ["Client", "Report", "Run", "__version__", "assert_within_set", "check", "frames", "resolve", "run"]


class _Callable(ModuleType):
    """A module that stands for the function of its name in `opgauge.api`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = getattr(importlib.import_module("opgauge.api"), self.__name__.rpartition(".")[2])
        return function(*args, **kwargs)


class _Package(ModuleType):
    # Importing a submodule sets it here, whoever imports it first.
    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CALLED and isinstance(value, ModuleType):
            value.__class__ = _Callable
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("opgauge")
    if name in _WHERE:
        return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
