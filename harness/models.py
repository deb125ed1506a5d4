"""Whole-model verdicts: every node judged on the backend's own intermediate inputs, then the model end to end.

Propagated sets are useless in a deep network, free-running outputs differ honestly: so the graph is cut, the
backend shows its tensors once, and each piece is held against the set of its own observed inputs.
Source: docs/numerics.md, chains and whole models.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from opgauge.backends import resolve
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine import lower
from opgauge.reference_engine.errors import CaseError, ModelError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.types import FINDINGS, Array, Exact, Observation, Policy, Record, Status, Verdict
from opgauge.suites import networks, real_models, regions

from . import check, expectations, graph_diff, model_counts, model_inputs, segments
from .client import Client
from .model_jobs import COUNTER, TOOLS, UNOPTIMISED, Job
from .oracles import proves_nothing
from .run import Emit, Settings, Task

WINDOW_BYTES = 256 << 20
QUANTIZE_S = 120.0
# An input moved by one part in a million: what the network itself makes of that is no fault of a runtime.
PROBE = 1e-6
PROBE_SHARE = 100  # of the elements of a quantized input one moves by a step
PROBE_FACTOR = 4.0
SUITE = "model"


@dataclass(frozen=True)
class Loaded:
    """A model in memory with its inputs."""

    title: str
    model: onnx.ModelProto
    data: bytes
    feeds: Mapping[str, Array]
    seed: int
    regions: bool = True


def load(job: Job) -> Loaded:
    """A file, or a built-in network or a real model by its name. Raises: CaseError, ModelError."""
    if not Path(job.path).is_file():
        built = {n.name: n for n in networks.NETWORKS}
        if job.path in built:
            data, feeds = built[job.path].build(job.seed)
            return Loaded(job.title, lower.parse(data), data, feeds, job.seed, job.regions)
        job = fetched(job)
    data = raised(named(model_inputs.read_model(Path(job.path))))
    model = lower.parse(data)
    given = model_inputs.load_inputs(Path(job.inputs), model) if job.inputs else None
    feeds = given or model_inputs.draw(model, job.dims, job.values, job.seed, job.spread)
    return Loaded(job.title, model, data, feeds, job.seed, job.regions)


def fetched(job: Job) -> Job:
    """The job on the real model's file, at the sizes of its row, quantized where the row says so. Raises: CaseError."""
    row = {row.name: row for row in real_models.MODELS}.get(job.path)
    if row is None:
        return job
    path = real_models.fetch(row)
    dims, values, spread = {**row.dims, **job.dims}, {**row.values, **job.values}, {**row.spread, **job.spread}
    made = replace(job, path=str(path), name=job.title, dims=dims, values=values, spread=spread)
    if not row.quantize:
        return made
    target = path.with_suffix(f".{row.quantize}-{job.seed}.onnx")
    return replace(made, path=str(quantized(made, row.quantize, target)))


LOWEST_OPSET = 13


def named(data: bytes) -> bytes:
    """Dimensions of -1, which some exporters write for one that is bound at run time, without a value."""
    model = lower.parse(data)
    infos = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    dims = [d for i in infos for d in i.type.tensor_type.shape.dim if d.HasField("dim_value") and d.dim_value < 0]
    for dim in dims:
        dim.Clear()
    return model.SerializeToString() if dims else data


def raised(data: bytes) -> bytes:
    """The model at opset 13 at least: older Softmax, Squeeze, ReduceSum mean other things. Raises: CaseError."""
    model = lower.parse(data)
    version = max((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), default=LOWEST_OPSET)
    if version >= LOWEST_OPSET:
        return data
    try:
        return onnx.version_converter.convert_version(model, LOWEST_OPSET).SerializeToString()
    except Exception as error:  # its C++ errors have no common class
        raise CaseError(f"the model has opset {version} and cannot be raised to {LOWEST_OPSET}: {error}") from error


def quantized(job: Job, how: str, target: Path) -> Path:
    """The job's model in int8, made by onnxruntime's tools in a process of their own. Raises: CaseError."""
    if target.is_file():
        return target
    loaded = load(job)
    with Client(resolve(f"{TOOLS}:{how}"), QUANTIZE_S) as client:
        seen = _run(client, loaded, loaded.data, f"{SUITE}/{loaded.title}/{how}")
    if seen.status is not Status.PASS:
        raise CaseError(f"{job.title}: {how}: {seen.status} {seen.message}")
    target.write_bytes(seen.outputs[0].tobytes())
    return target


def perform(task: Task, settings: Settings, clients: Sequence[Client], emit: Callable[[Record], None]) -> None:
    """What a reference worker does with a `model` task: its names are jobs."""
    started = emit.started if isinstance(emit, Emit) else None
    for text in task.names:
        job = Job(**json.loads(text))
        if started is not None:
            started(f"{SUITE}/{job.title}")
        counted = {COUNTER} if job.unoptimised else {COUNTER, UNOPTIMISED}
        judge_model(load(job), clients, emit, counted, started)


def judge_model(
    loaded: Loaded,
    clients: Sequence[Client],
    emit: Callable[[Record], None],
    counted: Collection[str] = (COUNTER,),
    started: Callable[[str], None] | None = None,
) -> None:
    """Records of one model: for each backend its nodes, the whole, and its counts; of `counted` ones counts alone.

    A model that cannot be lowered gives one `unsupported` record that names the node. `started` hears what comes.
    """
    try:
        shapes = tensor_sizes(loaded)
    except ModelError as error:
        for client in clients:
            if client.spec.text == COUNTER:
                emit(_counts(loaded, client, _run(client, loaded, loaded.data, f"{SUITE}/{loaded.title}/whole")))
            else:
                emit(_record(loaded, "whole", "", client, Status.UNSUPPORTED, f"{type(error).__name__}: {error}"))
        return

    @functools.cache  # backends of one policy share them
    def references(policy: Policy) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        moved = perturbed(loaded.feeds, loaded.seed, quantized_inputs(loaded.model.graph))
        return _reference(loaded, loaded.feeds, policy), _reference(loaded, moved, policy)

    for client in clients:
        whole = _run(client, loaded, loaded.data, f"{SUITE}/{loaded.title}/whole")
        emit(_counts(loaded, client, whole))
        if client.spec.text in counted:
            continue
        if whole.status is not Status.PASS:
            emit(_record(loaded, "whole", "", client, whole.status, whole.message))
            continue
        judged = _judge_nodes(loaded, client, shapes, emit, started)
        emit(_end_to_end(loaded, client, whole, judged, references))


def tensor_sizes(loaded: Loaded) -> dict[str, int]:
    """Bytes of every computed tensor. Raises: ModelError where the model cannot be lowered."""
    constant = segments.stored(loaded.model.graph)
    names = [n for node in loaded.model.graph.node for n in node.output if n and n not in constant]
    graph = lower.lower(segments.exposed(loaded.model, names), loaded.feeds)
    sizes = {name: x.nbytes for name, x in loaded.feeds.items()}
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        spec = graph.specs[value]
        sizes[name] = spec.size * dt.numpy_dtype(spec.dtype).itemsize
    return sizes


def _run(client: Client, loaded: Loaded, data: bytes, case: str, outputs: int = 0) -> Observation:
    client.submit(case, data, loaded.feeds, repeats=1, n_outputs=outputs)
    return client.receive()


# ---- self-forced


class Judged(NamedTuple):
    """Failing segments in order of the graph; the model's outputs beside the shown tensors; how wide their sets are."""

    failing: list[Record]
    shown: dict[str, Array]
    width: dict[str, float]


def _judge_nodes(
    loaded: Loaded,
    client: Client,
    sizes: dict[str, int],
    emit: Callable[[Record], None],
    started: Callable[[str], None] | None = None,
) -> Judged:
    rows = expectations.load()
    pieces = segments.cut(loaded.model.graph, loaded.regions)
    judged = Judged([], {}, {})
    for window in segments.windows(pieces, sizes, WINDOW_BYTES):
        names = list(dict.fromkeys(n for s in window for n in (*s.inputs, *s.outputs) if n not in loaded.feeds))
        model = segments.exposed(loaded.model, names)
        seen = _run(
            client, loaded, model.SerializeToString(), f"{SUITE}/{loaded.title}/exposed", len(model.graph.output)
        )
        if seen.status is not Status.PASS:
            emit(_record(loaded, "exposed", "", client, seen.status, seen.message))
            return judged
        tensors = dict(loaded.feeds) | dict(zip((o.name for o in model.graph.output), seen.outputs, strict=True))
        for output in loaded.model.graph.output:
            judged.shown.setdefault(output.name, tensors[output.name])
        for segment in window:
            if started is not None:
                started(f"{SUITE}/{loaded.title}/{segment.index:04d} {segment.name} on {client.spec.text}")
            made = judge_segment(loaded, segment, tensors, client, rows)
            emit(made)
            if made.status in FINDINGS:
                judged.failing.append(made)
            judged.width.update(made.detail.get("width") or {})
    return judged


def judge_segment(
    loaded: Loaded,
    segment: segments.Segment,
    tensors: Mapping[str, Array],
    client: Client,
    rows: Sequence[expectations.Deviation] = (),
) -> Record:
    """The verdict on one segment, fed with what the backend itself had computed."""
    started = time.perf_counter()
    feeds = {name: tensors[name] for name in segment.inputs}
    model = segments.alone(loaded.model, segment, feeds)
    seen = Observation(Status.PASS, tuple(tensors[name] for name in segment.outputs))
    where = f"{segment.index:04d} {segment.name}"
    subject = check.Subject(where, SUITE, segment.op, "", "", b"", feeds)
    try:
        graph = lower.lower(model, feeds)
        exacts = evaluate(graph, feeds, client.spec.policy)
        verdict = check.verdict_of(subject, graph, exacts, seen, client)
        for op, piece in _excused_as(loaded, segment) if verdict.status is Status.FAIL and rows else ():
            data = segments.alone(loaded.model, piece, feeds).SerializeToString()
            verdict = check.verdict_of(replace(subject, op=op, model=data), graph, exacts, seen, client, rows)
            if verdict.status is not Status.FAIL:
                break
    except ModelError as error:
        return _record(loaded, where, segment.op, client, Status.UNSUPPORTED, f"{type(error).__name__}: {error}")
    if verdict.status is Status.UNTRUSTED and proves_nothing(exacts, verdict) == verdict.message:
        verdict = replace(verdict, status=Status.PASS)  # a network may saturate; its nodes are judged together
    made = _record(loaded, where, segment.op, client, verdict.status, verdict.message, verdict)
    outputs = {o.name for o in loaded.model.graph.output}
    width = {name: _width(exact) for name, exact in zip(segment.outputs, exacts, strict=True) if name in outputs}
    made = replace(made, detail={**made.detail, "width": width}) if width else made
    return replace(made, us=round((time.perf_counter() - started) * 1e6, 1))


def _excused_as(loaded: Loaded, segment: segments.Segment) -> Iterator[tuple[str, segments.Segment]]:
    """Whose deviations may be meant: the operator's, the fused region's, those of an output that is read as well."""
    yield segment.op, segment
    if segment.fused:
        yield segment.fused, segment
    if shown := segments.with_readers(loaded.model.graph, segment):
        yield regions.SHOWN, shown


def _width(exact: Exact) -> float:
    """Of the widest set: two honest kernels may be so far apart on the same operands."""
    with np.errstate(invalid="ignore"):
        wide = np.asarray(exact.hi, np.float64) - np.asarray(exact.lo, np.float64)
    return float(wide[np.isfinite(wide)].max(initial=0.0))


# ---- end to end


def _end_to_end(
    loaded: Loaded,
    client: Client,
    whole: Observation,
    judged: Judged,
    references: Callable[[Policy], tuple[tuple[Array, ...], tuple[Array, ...]]],
) -> Record:
    """Signal to noise, top-1 and largest difference against the free-running reference; smoke, never the criterion.

    Beside `shown` tensors a runtime may fuse less: its outputs then are compared with those of the model as it is.
    """
    reference, moved = references(client.spec.policy)
    detail: dict[str, Any] = {"outputs": []}
    for name, right, shifted, actual in zip(
        (o.name for o in loaded.model.graph.output), reference, moved, whole.outputs, strict=False
    ):
        detail["outputs"].append({"name": name, **compare(right, actual, shifted, judged, name)})
    if judged.failing:
        first = judged.failing[0]
        message = f"first divergent node: {first.case.rpartition('/')[2]} ({first.op}): {first.message}"
        detail["divergent"] = [r.case for r in judged.failing]
        return replace(_record(loaded, "whole", "", client, Status.FAIL, message), detail=detail)
    odd = [o for o in detail["outputs"] if o["suspicious"]]
    name = odd[0]["name"] if odd else ""
    message = f"{name} differs by more than the network's own sensitivity; no node fails" if odd else ""
    return replace(_record(loaded, "whole", "", client, Status.PASS, message), detail=detail)


def _reference(loaded: Loaded, feeds: Mapping[str, Array], policy: Policy) -> tuple[Array, ...]:
    graph = lower.lower(loaded.model, feeds)
    return tuple(e.value for e in evaluate(graph, feeds, policy))


def quantized_inputs(graph: onnx.GraphProto) -> dict[str, float]:
    """Float inputs that are quantized first, with the size of a step."""
    scales = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    names = {info.name for info in graph.input}
    return {
        node.input[0]: float(scales[node.input[1]].ravel()[0])
        for node in graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] in names and node.input[1] in scales
    }


def perturbed(feeds: Mapping[str, Array], seed: int, steps: Mapping[str, float] | None = None) -> dict[str, Array]:
    """Float inputs moved by one part in a million at random, a hundredth of a quantized one by a step up or down.

    `steps` are those of float inputs that are quantized first: a part in a million would round away.
    """
    rng = np.random.Generator(np.random.PCG64(seed + 1))
    steps = steps or {}

    def some(shape: tuple[int, ...]) -> Array:
        """-1, 0 or 1; one element in a hundred, or one, is not 0."""
        size = math.prod(shape)
        moves = np.zeros(size)
        count = max(1, size // PROBE_SHARE)
        moves[rng.permutation(size)[:count]] = rng.choice((-1.0, 1.0), count)
        return moves.reshape(shape)

    def moved(name: str, x: Array) -> Array:
        if not x.size:
            return x
        if dt.is_float(dt.word_of(x.dtype)):
            slight = x * (1 + PROBE * rng.standard_normal(x.shape))
            return (slight + some(x.shape) * steps.get(name, 0.0)).astype(x.dtype)
        if x.dtype.kind in "iu" and x.dtype.itemsize <= 2:
            ends = np.iinfo(x.dtype)
            return np.clip(x + some(x.shape), ends.min, ends.max).astype(x.dtype)
        return x

    return {name: moved(name, x) for name, x in feeds.items()}


def compare(
    right: Array, actual: Array, shifted: Array, judged: Judged | None = None, name: str = ""
) -> dict[str, Any]:
    """Measures of one output; `suspicious` where neither the probe nor the set of its last node explains them.

    `shown_difference` is from the run that gave the tensors which were judged.
    """
    if right.shape != actual.shape:
        return {"suspicious": True, "shape": [list(actual.shape), list(right.shape)]}
    a, b, c = (np.nan_to_num(np.asarray(x).astype(np.float64)) for x in (right, actual, shifted))
    largest = float(np.abs(a - b).max(initial=0.0))
    probe = float(np.abs(a - c).max(initial=0.0)) if a.shape == c.shape else 0.0
    span = float(np.abs(a).max(initial=0.0))
    quantum = 1.0 if not dt.is_float(dt.word_of(right.dtype)) else 0.0
    width, shown = (judged.width.get(name, 0.0), judged.shown.get(name)) if judged else (0.0, None)
    allowed = max(PROBE_FACTOR * probe, 2 * quantum, 1e-4 * span, width)
    noise, signal = float(((a - b) ** 2).sum()), float((a**2).sum())
    found: dict[str, Any] = {
        "sqnr_db": round(10 * math.log10(signal / noise), 2) if noise and signal else None,
        "psnr_db": round(10 * math.log10(span**2 * a.size / noise), 2) if noise and span else None,
        "largest_difference": largest,
        "probe_difference": probe,
        "suspicious": largest > allowed,
    }
    if shown is not None and shown.shape == actual.shape:
        apart = np.abs(np.nan_to_num(np.asarray(shown).astype(np.float64)) - b)
        found["shown_difference"] = float(apart.max(initial=0.0))
        found["suspicious"] |= found["shown_difference"] > allowed
    if a.ndim and a.shape[-1] > 1 and a.size:
        found["top1"] = round(float((a.argmax(-1) == b.argmax(-1)).mean()), 6)
    return found


# ---- records


def _record(
    loaded: Loaded, where: str, op: str, client: Client, status: Status, message: str, verdict: Verdict | None = None
) -> Record:
    v = verdict or Verdict(status)
    return Record(
        case=f"{SUITE}/{loaded.title}/{where}",
        suite=SUITE,
        op=op or "model",
        label="",
        profile="",
        backend=client.spec.text,
        status=status,
        message=message,
        explained=v.explained,
        elements=v.elements,
        outside=v.outside,
        undecided=v.undecided,
        saturated=v.saturated,
        ties=v.ties,
        set_size=v.set_size,
        detail=dict(v.detail),
    )


def _counts(loaded: Loaded, client: Client, seen: Observation) -> Record:
    made = _record(
        loaded, "counts", "", client, Status.PASS if seen.status is Status.PASS else seen.status, seen.message
    )
    counts = {k: v for k, v in seen.counts.items() if not k.startswith("plan_")}
    detail = {"times_ns": dict(seen.times_ns), "info": dict(client.info), "movers": _movers(loaded, client, seen)}
    return replace(made, counts=counts, detail=detail)


def _movers(loaded: Loaded, client: Client, seen: Observation) -> dict[str, dict[str, list[str]]]:
    """What moves or converts data by node, of each column of the counts: {column: {name: kinds}}."""
    if seen.status is not Status.PASS:
        return {}
    if client.spec.text == COUNTER:
        levels = json.loads(seen.outputs[0].tobytes())
        return {f"onnxruntime {level}": model_counts.movers(found) for level, found in levels.items()}
    if client.spec.name not in graph_diff.OURS:
        return {}
    graph = graph_diff.optimised(loaded, client.spec)
    return {client.spec.text: model_counts.movers(graph_diff.of_graph(graph))}
