"""Key cases and networks, loaded and warm: what the benchmarks call."""

from __future__ import annotations

import functools
import importlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opgauge import model, models
from opgauge.backends import resolve
from opgauge.model_jobs import Job
from opgauge.reference_engine.case import parse_id

BACKENDS = ("cpu", "onnxruntime")
NETWORKS = ("mlp-int8", "classifier-int8", "attention")
WARM_CALLS = 5  # the first compiles and plans, a runtime plans memory in the next two
GATES = Path(__file__).resolve().parents[2] / "baselines" / "gates.toml"

KEYS = {
    row["name"]: row["case"] for row in tomllib.loads(GATES.read_text("utf-8"))["latency"]["key"] if row.get("case")
}


@functools.cache
def adapter(backend: str) -> Callable[..., Any]:
    run: Callable[..., Any] = importlib.import_module(resolve(backend).target).load()
    return run


def _warm(backend: str, data: bytes, inputs: Any) -> Callable[[], Any]:
    call = functools.partial(adapter(backend), data, inputs)
    for _ in range(WARM_CALLS):
        call()
    return call


@functools.cache
def key_case(name: str, backend: str) -> Callable[[], Any]:
    """A call without arguments, warm."""
    case, _ = parse_id(KEYS[name])
    return _warm(backend, *model.build(case))


@functools.cache
def built_in(name: str, backend: str) -> Callable[[], Any]:
    """A call without arguments, warm."""
    loaded = models.load(Job(name))
    return _warm(backend, loaded.data, loaded.feeds)
