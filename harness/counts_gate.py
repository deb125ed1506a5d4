"""The gate on counts: exact, in both directions, against baselines/counts.json.

A rise is a regression; a fall is an improvement that must be accepted with a reason, or the next rise back hides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opgauge.backends import resolve
from opgauge.reference_engine import arena, passes
from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.executor import Find, counts, finder
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.placement import is_transfer
from opgauge.reference_engine.types import Finding, Graph, Node, Status
from opgauge.suites.networks import NETWORKS, Network

from . import accepted
from .client import Client
from .model_jobs import COUNTER

# Kinds whose nodes are listed one by one, so that a finding can name the one that came.
LISTED = (
    "DataMove.transpose",
    "DataMove.copy",
    "Elementwise.cast",
    "DataMove.pad",
    "DataMove.concat",
    "DataMove.slice",
)
# What a plan for the GPU is held to, and the largest binding that it may use.
ON_GPU = ("dispatch_count", "copy_count", "fallback_count", "transfer_count")
BINDING = 128 << 20
Entry = Mapping[str, Any]


def ours(network: Network, rules: Sequence[passes.Rule] = passes.RULES) -> dict[str, Any]:
    """Counts of our engine's graph after the rules, its movers by node, and what each rule did."""
    model, feeds = network.build()
    graph, trace = passes.optimise(lower(model, feeds), rules)
    movers = Counter(f"{n.kind} from {n.source}" for n in graph.nodes if n.kind in LISTED)
    done: Counter[str] = Counter()
    for step in trace:
        for name, change in step.change.items():
            done[f"{step.rule}: {name}"] += change
    peak = arena.lay_out(graph).peak
    return {
        "counts": {**counts(graph), "peak_bytes": peak},
        "nodes": dict(movers),
        "rules": {k: v for k, v in done.items() if v},
    }


def planned_on_gpu(
    network: Network, rules: Sequence[passes.Rule] = passes.RULES, find: Find | None = None
) -> dict[str, Any]:
    """Counts of the program that the wgpu engine would run, planned without a device, its fallbacks by node."""
    from opgauge.backends import cpu, wgpu
    from opgauge.backends.wgpu import plan

    model, feeds = network.build()
    graph, _ = passes.optimise(lower(model, feeds), rules)
    find = find or finder(wgpu.kernels())
    program = plan.bind(graph, find, BINDING, finder(cpu.kernels()))
    nodes = Counter(f"fallback {n.kind} from {n.source}" for n in graph.nodes if lacks(find, graph, n))
    nodes.update(f"transfer from {n.source}" for n in (program.host.nodes if program.host else ()) if is_transfer(n))
    kept = {name: program.counts[name] for name in ON_GPU}
    return {"counts": kept, "nodes": dict(nodes)}


def lacks(find: Find, graph: Graph, node: Node) -> bool:
    """Has the device no kernel for the node."""
    dtypes = tuple(graph.specs[name].dtype for name in (*node.inputs, node.output))
    return node.kind != "DataMove.reshape" and find(node.primitive, node.fn, dtypes) is None


def theirs(networks: Sequence[Network]) -> dict[str, dict[str, Any]]:
    """onnxruntime's counts by network, and under `version` its release; empty where it is not there."""
    found: dict[str, dict[str, Any]] = {}
    with Client(resolve(COUNTER), 60.0) as counter, Client(resolve("onnxruntime"), 60.0) as runtime:
        version = runtime.info.get("version", "")
        if not version:
            return {}
        for network in networks:
            model, feeds = network.build()
            counter.submit(network.name, model, feeds, repeats=1)
            seen = counter.receive()
            if seen.status is Status.PASS:
                found[network.name] = {"counts": dict(seen.counts)}
    return {f"onnxruntime {version}": found}


def measure(networks: Sequence[Network] = NETWORKS, runtimes: bool = True) -> dict[str, dict[str, Any]]:
    """{backend: {network: entry}} as it is now."""
    now: dict[str, dict[str, Any]] = {
        "cpu": {n.name: ours(n) for n in networks},
        "wgpu": {n.name: planned_on_gpu(n) for n in networks},
    }
    return now | theirs(networks) if runtimes else now


def compare(baseline: Mapping[str, Mapping[str, Entry]], now: Mapping[str, Mapping[str, Entry]]) -> list[Finding]:
    """One finding for each count that differs, in either direction, and for what has no baseline."""
    found = []
    for backend, models in now.items():
        if backend not in baseline:
            known = ", ".join(sorted(baseline)) or "none"
            found.append(
                Finding("counts", backend, f"no baseline for {backend}; there are {known}: accept it after a look")
            )
            continue
        for model, entry in models.items():
            subject = f"{model} on {backend}"
            if model not in baseline[backend]:
                found.append(Finding("counts", subject, "a new model without a baseline"))
            else:
                found += _differences(subject, baseline[backend][model], entry)
        found += [
            Finding("counts", f"{model} on {backend}", "is in the baseline but was not measured")
            for model in baseline[backend].keys() - models.keys()
        ]
    return found


def _differences(subject: str, was: Entry, now: Entry) -> list[Finding]:
    changed = _changed(was["counts"], now["counts"])
    if not changed:
        return []
    nodes = [f"{k} ({a} -> {b})" for k, (a, b) in _changed(was.get("nodes", {}), now.get("nodes", {})).items()]
    rules = [f"{k} ({a:+} -> {b:+})" for k, (a, b) in _changed(was.get("rules", {}), now.get("rules", {})).items()]
    where = f"; nodes: {', '.join(nodes)}" if nodes else ""
    where += f"; rules: {', '.join(rules)}" if rules else ""
    return [
        Finding(
            "counts",
            subject,
            f"{name} {'rose' if b > a else 'fell'} from {a:,} to {b:,}{where}",
            detail={"was": a, "now": b},
        )
        for name, (a, b) in changed.items()
    ]


def _changed(was: Mapping[str, int], now: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    keys = sorted(was.keys() | now.keys())
    return {k: (was.get(k, 0), now.get(k, 0)) for k in keys if was.get(k, 0) != now.get(k, 0)}


# ---- the file


def read(path: Path | None = None) -> dict[str, Any]:
    """The baseline file, or the shipped one. Raises: BaselineError."""
    document = accepted.read("counts", "counts", path)
    place = path or "the shipped counts.json"
    for backend, models in document["counts"].items():
        for model, entry in models.items() if isinstance(models, dict) else [("?", models)]:
            if not _is_entry(entry):
                raise BaselineError(f"{place}: {backend}: {model}: not an entry of counts: accept it anew")
    return document


def _is_entry(entry: Any) -> bool:
    tables = [entry.get(k, {}) for k in ("counts", "nodes", "rules")] if isinstance(entry, dict) else []
    whole = all(isinstance(t, dict) and all(type(v) is int for v in t.values()) for t in tables)
    return bool(tables) and whole and "counts" in entry


def accept(path: Path, now: Mapping[str, Mapping[str, Entry]], reason: str) -> list[Finding]:
    """Write what is measured as what is right, with the reason; the differences that were accepted.

    Baselines of other releases of a runtime stay. Raises: BaselineError without a reason.
    """
    document = accepted.begun("counts", "counts", path, reason, read)
    changes = compare(document["counts"], now)
    if changes:
        document["counts"].update(now)
        accepted.write(path, document, reason, [f"{c.subject}: {c.message.partition(';')[0]}" for c in changes])
    return changes
