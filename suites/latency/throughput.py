"""What one case costs the harness: build its model, lower it, evaluate it exactly, judge a result."""

from __future__ import annotations

import functools
from typing import Any

from opgauge import model, oracles
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Observation, Policy, Status

from .prepared import KEYS

CASES = ("QLinearMatMul uint8 64x256x64", "Softmax float32 64x512")


@functools.cache
def _parts(name: str) -> tuple[Any, ...]:
    case, _ = parse_id(KEYS[name])
    data, inputs = model.build(case)
    graph = lower(data, inputs)
    exacts = evaluate(graph, inputs)
    seen = Observation(Status.PASS, tuple(e.value.astype(e.dtype) for e in exacts))
    return case, data, inputs, graph, exacts, seen


def time_build(name: str) -> Any:
    return model.build(_parts(name)[0])


def time_lower(name: str) -> Any:
    _, data, inputs, *_ = _parts(name)
    return lower(data, inputs)


def time_evaluate(name: str) -> Any:
    _, _, inputs, graph, *_ = _parts(name)
    return evaluate(graph, inputs)


def time_judge(name: str) -> Any:
    *_, exacts, seen = _parts(name)
    return oracles.judge(exacts, seen, Policy())


for _benchmark in (time_build, time_lower, time_evaluate, time_judge):
    _benchmark.params = (CASES,)  # type: ignore[attr-defined]
    _benchmark.param_names = ("case",)  # type: ignore[attr-defined]
    _benchmark.number = 5  # type: ignore[attr-defined]
    _benchmark.rounds = 2  # type: ignore[attr-defined]
    _benchmark.repeat = (3, 20, 2.0)  # type: ignore[attr-defined]
