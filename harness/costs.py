"""What a case of each operator costs, as an earlier run recorded it: `--shard` divides a run by it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.types import Record

from . import accepted
from .run import Task

KEY = "ms_per_case"
START_S = 1.5  # of a core, before the first case: what a reference worker and its kernel worker cost
WHOLE = {"node": 1000.0, "witness": 30.0}  # cases that are one task, in cases of a row


def read(path: Path | None = None) -> dict[str, Any]:
    """The whole document; the shipped one without a path. Raises: BaselineError."""
    document = accepted.read("costs", KEY, path)
    for op, cost in document[KEY].items():
        if isinstance(cost, bool) or not isinstance(cost, (int, float)) or not 0 < cost < 1e9:
            raise BaselineError(f"costs: {op} = {cost!r:.80} is no number of milliseconds")
    return document


def load(path: Path | None = None) -> dict[str, float]:
    """Milliseconds per case by operator; the shipped ones without a path. Raises: BaselineError."""
    return {op: float(cost) for op, cost in read(path)[KEY].items()}


def measured(records: Sequence[Record]) -> dict[str, float]:
    """Median milliseconds of a case by operator, the reference's work and that of every backend together.

    The median: on a busy machine a mean is that of its interruptions.
    """
    longest: dict[tuple[str, str], float] = defaultdict(float)
    for record in records:
        if record.suite == "operators" and record.us > 0:
            key = (record.op, record.case)
            longest[key] = max(longest[key], record.us / 1e3)
    by_op: dict[str, list[float]] = defaultdict(list)
    for (op, _), cost in longest.items():
        by_op[op].append(cost)
    return {op: max(round(median(costs), 1), 0.1) for op, costs in sorted(by_op.items())}


def cost_of(task: Task, costs: Mapping[str, float], budget: int) -> float:
    """Of a whole task; an operator without a record costs what the median one does."""
    usual = median(costs.values()) if costs else 1.0
    if task.kind in WHOLE:
        return (1.0 if task.names else WHOLE[task.kind]) * usual
    return sum(costs.get(name.rpartition("::")[2].partition("/")[0], usual) * budget for name in task.names)


def divided(tasks: Sequence[Task], count: int, costs: Mapping[str, float], budget: int) -> list[list[Task]]:
    """The tasks in `count` parts of like cost: the dearest first, each to the part that has least.

    The same for the same tasks and costs on every machine; within a part, tasks keep their order.
    """
    each = [cost_of(task, costs, budget) for task in tasks]
    loads, parts = [0.0] * count, [list[int]() for _ in range(count)]
    for i in sorted(range(len(tasks)), key=lambda i: (-each[i], i)):
        least = min(range(count), key=lambda part: (loads[part], part))
        loads[least] += each[i]
        parts[least].append(i)
    return [[tasks[i] for i in sorted(part)] for part in parts]


def workers(tasks: Sequence[Task], most: int, costs: Mapping[str, float], budget: int) -> int:
    """Reference workers, `most` at most: each has at least as much to do as it costs to start."""
    total_s = sum(cost_of(task, costs, budget) for task in tasks) / 1e3
    return max(1, min(most, int(total_s / START_S)))
