"""A failing model made small: the fewest nodes that still fail, and for the same reason.

A part of a model is a set of its nodes, fed with the tensors that the whole model computes at its edges. Outputs are
cut back first, then inputs, then single nodes are left out until none can be spared.
Source: the order of the two cuts, and the names of the options, are those of Polygraphy's `debug reduce`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from opgauge.backends import resolve
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine import lower
from opgauge.reference_engine.errors import ModelError, OpgaugeError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.types import FINDINGS, Array, Record, Status

from . import check, extraction, minimise, models, segments
from .client import Client
from .oracles import judge

MODES = ("bisect", "linear")
SUSPICIOUS = "fail: value"  # of the whole, where every node by itself is right


class NoFailureError(OpgaugeError):
    """The model passes, so that there is nothing to reduce."""


@dataclass(frozen=True)
class Part:
    """Some nodes of a model as a model of their own, with its inputs."""

    nodes: tuple[int, ...]
    model: onnx.ModelProto
    feeds: Mapping[str, Array]


Fails = Callable[[Part], str]


@dataclass
class Search:
    """The whole model with all its tensors, the reason that is looked for, and what was tried."""

    loaded: models.Loaded
    tensors: Mapping[str, Array]
    fails: Fails
    reason: str = ""
    tried: dict[tuple[int, ...], str] = field(default_factory=dict)
    good: Part | None = None
    say: Callable[[str], None] = lambda text: None

    def __call__(self, nodes: Sequence[int]) -> bool:
        """Does this part fail for the reason of the whole. Remembers the largest part that does not."""
        key = tuple(nodes)
        if not key:
            return False
        if key not in self.tried:
            part = self.part(key)
            try:
                self.tried[key] = self.fails(part)
            except ModelError:  # a part that the reference does not take says nothing
                self.tried[key] = ""
            self.say(f"{len(self.tried)}: {len(key)} nodes: {self.tried[key] or 'good'}")
            if not self.tried[key] and (self.good is None or len(key) < len(self.good.nodes)):
                self.good = part
        return self.tried[key] == self.reason

    def part(self, nodes: Sequence[int]) -> Part:
        return part_of(self.loaded.model, nodes, self.tensors)


@dataclass(frozen=True)
class Reduced:
    """The smallest failing part, why it fails, and the smallest part that was tried and is good."""

    part: Part
    reason: str
    tries: int
    before: int
    good: Part | None


def part_of(model: onnx.ModelProto, nodes: Sequence[int], tensors: Mapping[str, Array]) -> Part:
    """Nodes with the constants that they read; what else they read is an input, what none of them reads an output."""
    graph = model.graph
    chosen = [graph.node[i] for i in nodes]
    constant = segments.stored(graph)
    made = {name for node in chosen for name in node.output if name}
    read = {name for node in chosen for name in _reads(node) if name}
    inputs = sorted((name for name in read - made - constant if name in tensors), key=str)
    finals = {o.name for o in graph.output}
    # What a node inside reads is no output, even of the whole: a runtime may only fuse what nobody looks at.
    outputs = [n for node in chosen for n in node.output if n and n not in read]
    outputs = outputs or [n for node in chosen for n in node.output if n in finals]
    missing = read - made - constant - set(inputs)
    if missing:
        raise ModelError(f"no tensor for {', '.join(sorted(missing))}")
    segment = segments.Segment(nodes[-1], tuple(chosen), tuple(inputs), tuple(outputs))
    feeds = {name: tensors[name] for name in inputs}
    alone = segments.alone(model, segment, feeds)
    for info in alone.graph.output:
        if info.name in tensors:
            word, shape = dt.word_of(tensors[info.name].dtype), tensors[info.name].shape
            info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, dt.ONNX[word], shape))
    have = {t.name for t in alone.graph.initializer}  # graphs inside nodes read constants too
    alone.graph.initializer.extend(t for t in graph.initializer if t.name in read - have)
    alone.functions.extend(model.functions)
    return Part(tuple(nodes), alone, feeds)


def _reads(node: onnx.NodeProto) -> list[str]:
    """Inputs of a node, with those of the graphs inside it."""
    inner = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    names = list(node.input)
    for graph in inner:
        own = {t.name for t in graph.initializer} | {n for each in graph.node for n in each.output}
        names += [name for each in graph.node for name in _reads(each) if name not in own]
    return names


def needed(model: onnx.ModelProto, last: int, among: Sequence[int]) -> list[int]:
    """The nodes that node `last` depends on, and itself."""
    wanted, kept = set(_reads(model.graph.node[last])), [last]
    for i in sorted((i for i in among if i < last), reverse=True):
        if wanted & set(model.graph.node[i].output):
            wanted |= set(_reads(model.graph.node[i]))
            kept.append(i)
    return sorted(kept)


def reduce(
    loaded: models.Loaded,
    fails: Fails,
    mode: str = "bisect",
    outputs: bool = True,
    inputs: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Reduced:
    """The fewest nodes that fail for the reason of the whole. Raises: NoFailureError, ModelError."""
    tensors = tensors_of(loaded)
    graph = loaded.model.graph
    constant = segments.stored(graph)
    every = [i for i, node in enumerate(graph.node) if not (node.output and node.output[0] in constant)]
    if not every:
        raise ModelError(f"{loaded.title} has no nodes")
    search = Search(loaded, tensors, fails, say=say)
    reason = fails(search.part(every))
    if not reason:
        raise NoFailureError(f"{loaded.title} does not fail: nothing to reduce")
    search.reason, search.tried[tuple(every)] = reason, reason
    nodes = every
    if outputs:
        nodes = _cut_outputs(search, nodes, mode)
    if inputs:
        nodes = _cut_inputs(search, nodes, mode)
    if outputs and inputs:
        nodes = _spare(search, nodes)
    return Reduced(search.part(nodes), reason, len(search.tried), len(every), search.good)


def _cut_outputs(search: Search, nodes: list[int], mode: str) -> list[int]:
    """What the first failing node depends on: a model of fewer outputs."""
    model = search.loaded.model
    ends = [needed(model, i, nodes) for i in nodes]
    found = _first(ends, search, mode)
    return nodes if found is None else found


def _cut_inputs(search: Search, nodes: list[int], mode: str) -> list[int]:
    """The fewest last nodes that still fail, fed in the middle."""
    starts = [nodes[-n:] for n in range(1, len(nodes) + 1)]
    found = _first(starts, search, mode)
    return nodes if found is None else found


def _first(candidates: list[list[int]], search: Search, mode: str) -> list[int] | None:
    """The first candidate that fails: one after another, or by halving where the last one fails."""
    if mode == "linear":
        return next((c for c in candidates if search(c)), None)
    low, high = -1, len(candidates) - 1
    if not search(candidates[high]):
        return next((c for c in candidates if search(c)), None)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if search(candidates[middle]) else (middle, high)
    return candidates[high]


def _spare(search: Search, nodes: list[int]) -> list[int]:
    """Leave out halves, quarters, ..., single nodes while what is left fails: then each of them is needed."""
    width = max(1, len(nodes) // 2)
    while True:
        for at in range(0, len(nodes), width):
            rest = nodes[:at] + nodes[at + width :]
            if rest and search(rest):
                nodes, width = rest, max(1, min(width, len(rest) // 2))
                break
        else:
            if width == 1:
                return nodes
            width = max(1, width // 2)


def tensors_of(loaded: models.Loaded) -> Mapping[str, Array]:
    """Every tensor of the model: the reference's, or onnxruntime's where the reference does not know an operator."""
    try:
        return extraction.observe(loaded)
    except ModelError:
        graph = loaded.model.graph
        constant = segments.stored(graph)
        names = [n for node in graph.node for n in node.output if n and n not in constant]
        model = segments.exposed(loaded.model, names)
        with Client(resolve("onnxruntime:level=disable"), 300.0) as client:
            client.submit("reduce", model.SerializeToString(), loaded.feeds, repeats=1)
            seen = client.receive()
        if seen.status is not Status.PASS:
            raise
        return dict(loaded.feeds) | dict(zip((o.name for o in model.graph.output), seen.outputs, strict=True))


# ---- what counts as a failure


def on_backend(client: Client, seed: int = 0) -> Fails:
    """A part fails where the backend misbehaves, leaves the sets of the outputs, or those of a single node."""

    def fails(part: Part) -> str:
        data = part.model.SerializeToString()
        client.submit(f"reduce/{len(part.nodes)} nodes", data, part.feeds, repeats=1)
        seen = client.receive()
        if seen.status is Status.UNSUPPORTED:
            return ""
        if seen.status is not Status.PASS:
            return minimise.symptom(_record(seen.status, seen.message))
        graph = lower.lower(part.model, part.feeds)
        exacts = evaluate(graph, part.feeds, client.spec.policy)
        forced = check.forced_outputs(graph, seen, exacts)
        exacts = evaluate(graph, part.feeds, client.spec.policy, forced) if forced else exacts
        verdict = judge(exacts, seen, client.spec.policy)
        if verdict.status is Status.FAIL:
            return minimise.symptom(verdict)
        if len(part.nodes) == 1:
            return ""
        # The sets of a deep model are wide: then its nodes are judged one by one on what the backend gave each.
        records: list[Record] = []
        whole = models.Loaded("part", part.model, data, part.feeds, seed)
        models.judge_model(whole, [client], records.append)
        failing = [r for r in records if r.status in FINDINGS and not r.case.endswith("/whole")]
        if failing:
            return minimise.symptom(failing[0])
        odd = any(o["suspicious"] for r in records for o in r.detail.get("outputs", ()))
        return SUSPICIOUS if odd else ""

    return fails


def _record(status: Status, message: str) -> Record:
    return Record("", "reduce", "", "", "", "", status, message)


def on_command(command: Sequence[str], fail_codes: Sequence[int] = (), timeout_s: float = 300.0) -> Fails:
    """A part fails where the command ends with another code than 0, or with one of `fail_codes`.

    `{model}` and `{inputs}` (an .npz) in its words are replaced by paths; a command without `{model}` gets it as its
    last word. Both are in the environment too, as OPGAUGE_MODEL and OPGAUGE_INPUTS.
    """
    words = list(command) if any("{model}" in w for w in command) else [*command, "{model}"]

    def fails(part: Part) -> str:
        with tempfile.TemporaryDirectory(prefix="opgauge-reduce-") as folder:
            paths = save(part, Path(folder) / "opgauge_debug.onnx")
            filled = [w.replace("{model}", str(paths[0])).replace("{inputs}", str(paths[1])) for w in words]
            names = {"OPGAUGE_MODEL": str(paths[0]), "OPGAUGE_INPUTS": str(paths[1])}
            try:
                done = subprocess.run(
                    filled, env={**os.environ, **names}, capture_output=True, timeout=timeout_s, check=False
                )
            except subprocess.TimeoutExpired:
                return "hang"
            except OSError as error:
                raise OpgaugeError(f"--check {shlex.join(command)}: {error}") from error
        bad = done.returncode in fail_codes if fail_codes else done.returncode != 0
        return f"exit {done.returncode}" if bad else ""

    return fails


def save(part: Part, path: Path) -> tuple[Path, Path]:
    """The model and, beside it, its inputs as .npz (16-bit and narrower floats by their bits)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(part.model.SerializeToString())
    stored: dict[str, Any] = {
        n: x if x.dtype.isbuiltin == 1 else x.view(f"u{x.dtype.itemsize}") for n, x in part.feeds.items()
    }
    inputs = path.with_suffix(".npz")
    np.savez(inputs, **stored)
    return path, inputs


def describe(reduced: Reduced) -> dict[str, Any]:
    """The result for --json."""
    part = reduced.part
    return {
        "reason": reduced.reason,
        "nodes_before": reduced.before,
        "nodes": [
            {"index": i, "op": node.op_type, "name": node.name, "outputs": list(node.output)}
            for i, node in zip(part.nodes, _nodes(part), strict=True)
        ],
        "inputs": {name: f"{dt.word_of(x.dtype)}{list(x.shape)}" for name, x in part.feeds.items()},
        "tries": reduced.tries,
        "good_nodes": None if reduced.good is None else len(reduced.good.nodes),
    }


def _nodes(part: Part) -> list[onnx.NodeProto]:
    constant = segments.stored(part.model.graph)
    return [n for n in part.model.graph.node if not (n.output and n.output[0] in constant)]
