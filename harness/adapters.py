"""How a kernel worker finds its adapter. Portable: runs on Python 3.8 with numpy and nothing else."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from opgauge.reference_engine.errors import BackendUnavailableError


class Adapter(NamedTuple):
    """`run(model, inputs)`, often a `backends.result.Runner`, and what the adapter says of itself."""

    run: Callable[..., Any]
    info: Callable[[], Mapping[str, str]]


@contextlib.contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _module_at(path: str) -> ModuleType:
    file = Path(path).resolve()
    spec = importlib.util.spec_from_file_location(f"opgauge_loaded_{file.stem}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise BackendUnavailableError(f"no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with _importing_from(str(file.parent)):
        spec.loader.exec_module(module)
    return module


def _load_fault(target: str) -> Callable[..., Any]:
    path, _, name = target.rpartition(":")
    module = _module_at(path)
    rows = [*getattr(module, "FAULTS", ()), *getattr(module, "BENIGN", ())]
    fault = next((row for row in rows if row.id == name), None)
    if fault is None:
        raise BackendUnavailableError(f"{path} has no fault {name!r}")
    if hasattr(fault, "reset"):
        fault.reset()
    return lambda model, inputs: fault.run(model, inputs, base="ort")


def load_callable(target: str) -> Callable[..., Any]:
    """The object at `module:attr` or `path.py:attr`. Raises: BackendUnavailableError."""
    place, _, name = target.rpartition(":")
    if place.endswith(".py"):
        module = _module_at(place)
    else:
        with _importing_from(os.getcwd()):
            module = importlib.import_module(place)
    try:
        return getattr(module, name)
    except AttributeError:
        raise BackendUnavailableError(f"{place} has no {name!r}") from None


def load(kind: str, target: str, options: Mapping[str, str]) -> Adapter:
    """The adapter of a BackendSpec. Raises: BackendUnavailableError."""
    if kind == "fault":
        return Adapter(_load_fault(target), dict)
    if kind == "callable":
        return Adapter(load_callable(target), dict)
    if kind == "native":
        from opgauge.backends import native

        return Adapter(native.load(target), dict)
    module = importlib.import_module(target)
    return Adapter(module.load(**options), module.info)
