"""Where the time of a model goes: end to end, operators, data movement, and what is left for the runtime."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opgauge.backends import resolve
from opgauge.backends.profiled import read, with_request
from opgauge.reference_engine.errors import BackendUnavailableError, CaseError
from opgauge.reference_engine.types import Status

from .client import Client
from .models import Loaded

# Backends that can say what each node took, and the function that asks them.
PROFILERS = {
    "cpu": "opgauge.backends.cpu.profile:profile",
    "wgpu": "opgauge.backends.wgpu.profile:profile",
    "onnxruntime": "opgauge.backends.onnxruntime_nodes:profile",
}
# A share below which the largest of three is no bottleneck.
CLEAR = 0.45
BOTTLENECKS = {"kernel": "the kernel", "movement": "movement", "runtime": "the runtime"}


@dataclass(frozen=True)
class Attribution:
    """One backend's time by where it went, ns.

    `end_to_end_ns` of the least disturbed run, which the shares are of; `median_ns` of all runs, `spread_ns` of their
    middle half.

    `bottleneck` is kernel, movement, runtime, or empty where none of them stands out; `said` the same in words with
    the evidence. `kernel_ns` the operators, `runtime_ns` what no node accounts for.
    """

    backend: str
    end_to_end_ns: int
    median_ns: int
    spread_ns: int
    kernel_ns: int
    movement_ns: int
    runtime_ns: int
    bottleneck: str
    said: str


def measure(loaded: Loaded, text: str, timeout_s: float) -> dict[str, Any]:
    """The profile document of a model on a backend, made in a process of its own.

    Raises: CaseError for a backend that cannot be profiled or fails; BackendUnavailableError.
    """
    spec = resolve(text)
    if spec.name not in PROFILERS:
        raise CaseError(f"backend {text!r} cannot be profiled: there are {', '.join(PROFILERS)}")
    feeds = with_request(loaded.feeds, dict(spec.options))
    with Client(resolve(PROFILERS[spec.name]), timeout_s, memory_limit=spec.definition.memory_limit) as client:
        client.submit(f"profile/{loaded.title}", loaded.data, feeds, repeats=1)
        seen = client.receive()
    if seen.status is Status.UNAVAILABLE:
        raise BackendUnavailableError(f"{text}: {seen.message}")
    if seen.status is not Status.PASS:
        raise CaseError(f"{loaded.title} on {text}: {seen.status} {seen.message}")
    return read(seen.outputs[0])


def time_of(node: Mapping[str, Any]) -> int:
    """What a node took in the graph; alone where a device tells no more."""
    return int(node["alone_ns"] if node["in_graph_ns"] is None else node["in_graph_ns"])


def attribute(backend: str, document: Mapping[str, Any]) -> Attribution:
    """Pure: a document becomes numbers and words."""
    runs = sorted(document["end_to_end_ns"])
    whole = runs[0]
    spread = runs[3 * len(runs) // 4] - runs[len(runs) // 4]
    nodes = document["nodes"]
    moved = sum(time_of(n) for n in nodes if n["movement"]) + document.get("transfer_ns", 0)
    kernel = sum(time_of(n) for n in nodes if not n["movement"])
    if document.get("passes_ns"):  # the device's own clock over all of them; times alone only say how they share it
        scale = document["passes_ns"] / max(sum(time_of(n) for n in nodes), 1)
        kernel = round(kernel * scale)
        moved = round((moved - document.get("transfer_ns", 0)) * scale) + document.get("transfer_ns", 0)
    rest = max(whole - kernel - moved, 0)
    parts = {"kernel": kernel, "movement": moved, "runtime": rest}
    top = max(parts, key=lambda k: parts[k])
    total = max(sum(parts.values()), 1)
    word = top if parts[top] / total >= CLEAR else ""
    return Attribution(
        backend,
        whole,
        int(statistics.median(runs)),
        spread,
        kernel,
        moved,
        rest,
        word,
        _said(word or top, word, parts, total, whole, document),
    )


def _said(top: str, word: str, parts: Mapping[str, int], total: int, whole: int, document: Mapping[str, Any]) -> str:
    shares = ", ".join(f"{name} {parts[key] / total:.0%}" for key, name in SHARES.items())
    verdict = f"the bottleneck is {BOTTLENECKS[word]}" if word else "no single bottleneck"
    return f"{verdict}: {shares} of {_ms(whole)}; {_evidence(top, parts, total, document)}"


SHARES = {"kernel": "operators", "movement": "data movement", "runtime": "runtime"}


def _evidence(top: str, parts: Mapping[str, int], total: int, document: Mapping[str, Any]) -> str:
    nodes = document["nodes"]
    if top == "runtime":
        between = parts["runtime"] / max(len(nodes), 1) / 1000
        return f"{len(nodes)} nodes with {between:.1f} us around each"
    mine = [n for n in nodes if n["movement"] == (top == "movement")]
    if not mine:
        return f"transfers to and from the device take {_ms(document.get('transfer_ns', 0))}"
    hottest = max(mine, key=time_of)
    share = time_of(hottest) / max(sum(time_of(n) for n in nodes), 1)
    said = f"{len(mine)} nodes, the longest {hottest['kind']} of {hottest['name']} with {share:.0%} of all node time"
    ratio = slowdown(mine)
    return said + (f"; {ratio:.2f} times as long in the graph as alone" if ratio else "")


def slowdown(nodes: Sequence[Mapping[str, Any]]) -> float:
    """Time in the graph over time alone, of nodes that have both; 0 where none has."""
    both = [n for n in nodes if n["in_graph_ns"] is not None and n["alone_ns"]]
    alone = sum(n["alone_ns"] for n in both)
    return sum(n["in_graph_ns"] for n in both) / alone if alone else 0.0


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f} ms"


def longest(document: Mapping[str, Any], count: int) -> list[Mapping[str, Any]]:
    return sorted(document["nodes"], key=time_of, reverse=True)[:count]


def trace(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One run of each backend in the Trace Event Format that chrome://tracing and Perfetto read; times in us."""
    events: list[dict[str, Any]] = []
    for pid, (backend, document) in enumerate(documents.items()):
        events.append({"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": backend}})
        events.extend(_event(pid, node) for node in document["nodes"])
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _event(pid: int, node: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": pid,
        "tid": int(node["movement"]),
        "name": node["kind"],
        "cat": "movement" if node["movement"] else "operator",
        "ts": node["start_ns"] / 1000,
        "dur": time_of(node) / 1000,
        "args": {"node": node["name"], "alone_us": (node["alone_ns"] or 0) / 1000},
    }
