"""Any class of the ONNX backend interface, onnx.backend.base.Backend: `onnx-backend:class=MODULE:CLASS`."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError
from opgauge.reference_engine.types import Array

from . import RunResult

_about: dict[str, str] = {}


def _class_at(place: str) -> Any:
    """A class, or a module that has `prepare` itself; modules in the current folder are found too.

    Raises: BackendUnavailableError.
    """
    module, _, name = place.partition(":")
    sys.path.append(os.getcwd())
    try:
        found = importlib.import_module(module)
        found = getattr(found, name) if name else found
    except (ImportError, AttributeError, ValueError) as error:
        raise BackendUnavailableError(f"onnx-backend: class={place}: {error}") from error
    finally:
        sys.path.pop()
    if not hasattr(found, "prepare"):
        raise BackendUnavailableError(f"onnx-backend: {place} has no `prepare`: name a class of onnx.backend.base")
    _about.update({"class": place, "version": str(getattr(importlib.import_module(module), "__version__", "unknown"))})
    return found


def load(**options: str) -> Callable[[bytes, Mapping[str, Array]], RunResult]:
    """Raises: BackendUnavailableError where there is no such class."""
    import onnx
    from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

    backend, device = _class_at(options.get("class", "")), options.get("device", "CPU")

    @functools.lru_cache(maxsize=1)
    def prepared(data: bytes) -> tuple[Any, list[str]]:
        # Classes run onnx's checker, which wants the shapes of outputs; our models leave them to the runtime.
        model = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(data), data_prop=True)
        if hasattr(backend, "is_compatible") and not backend.is_compatible(model, device):
            raise UnsupportedError(f"{options['class']} says that the model is not compatible")
        stored = {tensor.name for tensor in model.graph.initializer}
        return backend.prepare(model, device), [i.name for i in model.graph.input if i.name not in stored]

    def run(data: bytes, inputs: Mapping[str, Array]) -> RunResult:
        try:
            rep, names = prepared(data)
            outputs = rep.run([inputs[name] for name in names])
        except (BackendIsNotSupposedToImplementIt, NotImplementedError, onnx.checker.ValidationError) as error:
            raise UnsupportedError(str(error)) from error
        return RunResult(tuple(np.asarray(y) for y in outputs))

    return run


def info() -> dict[str, str]:
    return {**_about, "sums": "its own order"}
