"""Two graphs of one model node by node: before and after rules, two backends, two releases, two levels.

A listing says what stands for each name: kinds of primitives for the ONNX node that they come from (our engine), or
the operator that makes a tensor (onnxruntime, whose optimised model keeps the names of the tensors that it keeps).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opgauge import backends
from opgauge.backends import BackendSpec, resolve
from opgauge.reference_engine.errors import CaseError
from opgauge.reference_engine.types import Graph, Status

from . import environment
from .client import Client

if TYPE_CHECKING:
    from .models import Loaded

Listing = Mapping[str, Sequence[str]]
OURS = ("cpu", "wgpu")
VIEW = "DataMove.reshape"


class Change(NamedTuple):
    """What stood for a name and what stands for it now; empty where nothing does."""

    name: str
    before: Sequence[str]
    after: Sequence[str]

    def __str__(self) -> str:
        was, now = (" + ".join(kinds) or "nothing" for kinds in (self.before, self.after))
        return f"{self.name}: {was} -> {now}"


def difference(before: Listing, after: Listing) -> list[Change]:
    """Names whose kinds differ: those of `before` in its order, then those that came."""
    names = dict.fromkeys([*before, *after])
    pairs = [Change(name, before.get(name, ()), after.get(name, ())) for name in names]
    return [change for change in pairs if sorted(change.before) != sorted(change.after)]


def of_graph(graph: Graph) -> Listing:
    """Primitives by the node that they were lowered from; views are no work and are left out."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in graph.nodes:
        if node.kind != VIEW:
            found[node.source].append(node.kind)
    return found


def listing(loaded: Loaded, text: str, timeout_s: float) -> Listing:
    """The graph that a backend makes of the model. Raises: CaseError, BackendUnavailableError, ModelError.

    `cpu`, `cpu:disable=all`, `wgpu`, `onnxruntime:level=basic`, `onnxruntime==1.24.4`.
    """
    from opgauge.backends.onnxruntime_counts import makers
    from opgauge.reference_engine.lower import parse

    spec = resolve(text)
    if spec.name in OURS:
        return of_graph(optimised(loaded, spec))
    if spec.name != "onnxruntime":
        raise CaseError(f"backend {text!r} does not show its graph: write {', '.join(OURS)} or onnxruntime")
    level = dict(spec.options).get("level", "all")
    with Client(grapher(spec, level), timeout_s) as client:
        client.submit(f"graph/{loaded.title}", loaded.data, loaded.feeds, repeats=1)
        seen = client.receive()
    if seen.status is not Status.PASS:
        raise CaseError(f"{text}: {seen.status}: {seen.message}")
    return makers(parse(seen.outputs[0].tobytes()).graph)


def optimised(loaded: Loaded, spec: BackendSpec) -> Graph:
    """The primitive graph after the rules that the options leave."""
    from opgauge.reference_engine import passes
    from opgauge.reference_engine.lower import lower

    options = dict(spec.options)
    rules = passes.select(options.get("disable", ""), options.get("only", ""))
    graph = lower(loaded.data, loaded.feeds)
    return passes.optimise(graph, rules)[0] if rules else graph


def grapher(spec: BackendSpec, level: str) -> BackendSpec:
    """What gives onnxruntime's optimised graph in the environment of `spec`. Raises: BackendUnavailableError."""
    file = Path(backends.__file__ or "").resolve().parent / "onnxruntime_graph.py"
    at = f"@{environment.python_of(spec)}" if spec.environment else ""
    return resolve(f"{file}:{level}{at}")
