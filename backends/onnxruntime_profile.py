"""Where onnxruntime says the time of a model goes: its own profile, read back."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError
from opgauge.reference_engine.types import Array

from . import RunResult

RUNS = 15
WARM = 3  # memory is planned in the first two runs
SUFFIX = "_kernel_time"


def run(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
    """Outputs, and ns of every node as `node|OP|NAME`, with `traced` for the whole profiled run.

    Its node times are whole microseconds. Raises: UnsupportedError, BackendUnavailableError.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise BackendUnavailableError(f"onnxruntime: {error}; pip install onnxruntime") from error
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        try:
            session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            for _ in range(WARM + RUNS):
                outputs = session.run(None, dict(inputs))
        except Exception as error:  # its errors have no common class
            raise UnsupportedError(f"{type(error).__name__}: {error}") from error
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    return RunResult(tuple(outputs), counts(events), times(events))


def kernels(events: list[dict[str, Any]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(name of the node, operator, event) of each kernel call of a profile, in its order."""
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(SUFFIX):
            yield name.removesuffix(SUFFIX), str(event.get("args", {}).get("op_name", "?")), event


def times(events: list[dict[str, Any]]) -> dict[str, int]:
    """ns of each node by `node|OP|NAME`, the median over runs after the warm ones; `traced` of a whole run."""
    nodes: dict[str, list[int]] = defaultdict(list)
    for name, op, event in kernels(events):
        index = int(event.get("args", {}).get("node_index", 0))
        nodes[f"node|{op}|{index:04d} {name}"].append(int(event["dur"]) * 1000)
    whole = [int(e["dur"]) * 1000 for e in events if e.get("cat") == "Session" and e.get("name") == "model_run"]
    found = {name: int(median(seen[WARM:] or seen)) for name, seen in nodes.items()}
    return {**found, "traced": int(median(whole[WARM:] or whole or [sum(found.values())]))}


def counts(events: list[dict[str, Any]]) -> dict[str, int]:
    """Bytes that the nodes of the last run wrote, by operator."""
    last: dict[str, tuple[str, int]] = {}
    for name, op, event in kernels(events):
        last[name] = op, int(event.get("args", {}).get("output_size", 0) or 0)
    found: dict[str, int] = defaultdict(int)
    for op, size in last.values():
        found[f"{op}_written_bytes"] += size
    return dict(found)
