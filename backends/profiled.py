"""What a profile is made of: the same document from every backend, carried as text in one tensor.

A profile function is a callable backend `run(model, inputs)`; what it is asked for comes in the input REQUEST.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from opgauge.reference_engine.types import Array

from . import RunResult

REQUEST = "opgauge:profile"
BUDGET_S = 2.0
LEAST, MOST = 5, 200
# What moves, reorders or converts data and computes nothing: primitives, and operators as onnxruntime's profile names
# them (it leaves the domain away).
MOVES = frozenset(
    "DataMove Im2col Gather Scatter Elementwise.cast "
    "Cast Transpose Identity Reshape Squeeze Unsqueeze Flatten Concat Slice Split Pad Expand Tile GatherElements "
    "GatherND ScatterND ScatterElements DepthToSpace SpaceToDepth ReorderInput ReorderOutput MemcpyToHost "
    "MemcpyFromHost".split()
)  # fmt: skip


def moves(kind: str) -> bool:
    """Whether a node of that kind (`DataMove.transpose`, `Elementwise.cast`, `Concat`) is data movement."""
    return kind in MOVES or kind.partition(".")[0] in MOVES


def with_request(inputs: Mapping[str, Array], options: Mapping[str, str]) -> dict[str, Array]:
    """The inputs with the backend's options among them."""
    return {**inputs, REQUEST: np.frombuffer(json.dumps(dict(options)).encode(), np.uint8)}


def taken(inputs: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, str]]:
    """Inputs and options apart."""
    rest = dict(inputs)
    asked = rest.pop(REQUEST, None)
    return rest, {} if asked is None else json.loads(asked.tobytes())


def rounds(one_ns: int, budget_s: float = BUDGET_S) -> int:
    """How many runs of that length fit the budget."""
    return max(LEAST, min(MOST, round(budget_s * 1e9 / max(one_ns, 1))))


def timed(run: Callable[[], Any]) -> int:
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start


def alone(run: Callable[[], Any], budget_s: float) -> int:
    """The least time of a call, repeated by itself."""
    first = timed(run)
    return min(timed(run) for _ in range(max(3, min(50, round(budget_s * 1e9 / max(first, 1))))))


def node(name: str, kind: str, movement: bool, in_graph_ns: int | None, alone_ns: int | None, start_ns: int) -> dict:
    """One node: how long it takes inside the graph and by itself, when it began in one run."""
    return {
        "name": name,
        "kind": kind,
        "movement": movement,
        "in_graph_ns": in_graph_ns,
        "alone_ns": alone_ns,
        "start_ns": start_ns,
    }


def result(nodes: list[dict], end_to_end_ns: list[int], **facts: Any) -> RunResult:
    """`end_to_end_ns` of runs that nobody watched; `facts` are what else is known, such as `transfer_ns`."""
    document = {"nodes": nodes, "end_to_end_ns": sorted(end_to_end_ns), **facts}
    return RunResult((np.frombuffer(json.dumps(document).encode(), np.uint8).copy(),))


def read(array: Array) -> dict[str, Any]:
    return json.loads(array.tobytes())
