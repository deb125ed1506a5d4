"""onnxruntime's own profile of a model, as the document that every backend gives."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opgauge.reference_engine.types import Array

from . import RunResult, onnxruntime, profiled
from .onnxruntime_profile import kernels


def profile(model: bytes, inputs: Mapping[str, Array]) -> RunResult:
    """A profile; options `level`, `threads`. Node times are whole microseconds, watched; end to end nobody watches."""
    feeds, options = profiled.taken(inputs)
    ort = onnxruntime._import()
    with tempfile.TemporaryDirectory() as folder:
        settings = [
            onnxruntime._session_options(ort, options.get("level", "all"), options.get("threads", "1"), "0")
            for _ in range(2)
        ]
        for made in settings:
            made.enable_cpu_mem_arena = made.enable_mem_pattern = True
        settings[1].enable_profiling = True
        settings[1].profile_file_prefix = str(Path(folder) / "profile")
        plain, watched = (ort.InferenceSession(model, s, providers=onnxruntime.PROVIDERS) for s in settings)

        def run() -> Any:
            return plain.run(None, feeds)

        for _ in range(3):  # its memory plan settles in the first runs
            run()
        whole = []
        times = profiled.rounds(profiled.timed(run))
        for _ in range(times):
            whole.append(profiled.timed(run))
            watched.run(None, feeds)
        events = json.loads(Path(watched.end_profiling()).read_text())
    return profiled.result(nodes_of(events), whole, runs=times)


def nodes_of(events: list[dict[str, Any]]) -> list[dict]:
    """The nodes of the run that took them least time."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for name, op, event in kernels(events):
        found[name, op].append((event["ts"], event["dur"]))
    if not found:
        return []
    runs = min(map(len, found.values()))
    best = min(range(runs), key=lambda i: sum(spans[i][1] for spans in found.values()))
    began = min(spans[best][0] for spans in found.values())
    made = [
        profiled.node(name, kind, profiled.moves(kind), spans[best][1] * 1000, None, (spans[best][0] - began) * 1000)
        for (name, kind), spans in found.items()
    ]
    return sorted(made, key=lambda n: n["start_ns"])
