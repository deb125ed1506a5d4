"""Commands on whole graphs: model, rules, bisect-rules, extract."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from opgauge.reference_engine.errors import CaseError
from opgauge.reference_engine.types import FINDINGS, Record, Status

from . import run as supervisor
from . import store
from .model_jobs import COUNTER, UNOPTIMISED, Job

if TYPE_CHECKING:
    from opgauge.suites.real_models import RealModel

AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Backends = Annotated[list[str], typer.Option("--backend", "-b", help="cpu, onnxruntime:level=basic, ...")]
Pairs = Annotated[list[str], typer.Option(metavar="NAME=NUMBER")]
TIMEOUT = 300.0


def register(app: typer.Typer) -> None:
    app.command()(model)
    app.command()(rules)
    app.command("bisect-rules")(bisect_rules)
    app.command()(extract)


def _numbers(texts: Sequence[str], what: str) -> dict[str, float]:
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise CaseError(f"--{what} {text!r} is not NAME=NUMBER") from None
    return found


def _console(stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=160)


def _jobs(
    paths: Sequence[str], all_real: bool, dim: Sequence[str], value: Sequence[str], inputs: str, seed: int, nodes: bool
) -> list[Job]:
    """Files, built-in networks and real models by their names. Raises: CaseError."""
    from opgauge.suites import networks, real_models

    dims, values = {k: int(v) for k, v in _numbers(dim, "dim").items()}, _numbers(value, "value")
    real = {row.name: row for row in real_models.MODELS}
    known = {n.name for n in networks.NETWORKS}
    jobs = []
    for path in dict.fromkeys([*paths, *(real if all_real else ())]):
        if Path(path).is_file() or path in known:
            jobs.append(Job(path, dims=dims, values=values, inputs=inputs, seed=seed, regions=not nodes))
        elif path in real:
            jobs.append(_real_job(real[path], seed, nodes))
        else:
            names = ", ".join(sorted(known | set(real)))
            raise CaseError(f"there is no file {path}, and no built-in or real model of that name; there are {names}")
    return jobs


def _sampled(count: int, seed: int) -> list[str]:
    from opgauge.suites import real_models

    return [row.name for row in real_models.sample(count, seed)] if count else []


def _real_job(row: RealModel, seed: int, nodes: bool) -> Job:
    from opgauge.suites import real_models

    from . import models

    path = real_models.fetch(row)
    job = Job(str(path), row.name, row.dims, row.values, row.spread, seed=seed, regions=not nodes)
    if row.quantize:
        made = models.quantized(job, row.quantize, path.with_suffix(f".{row.quantize}-{seed}.onnx"))
        job = replace(job, path=str(made))
    return job


def model(
    path: Annotated[list[str], typer.Argument(metavar="MODEL.onnx", help="files, or names of built-in networks")] = [],  # noqa: B006
    backend: Backends = ["cpu", "onnxruntime"],  # noqa: B006
    all_real: Annotated[bool, typer.Option("--all-real", help="the pinned real models, fetched once")] = False,
    sample: Annotated[int, typer.Option(min=0, help="so many of the smaller real models, drawn by the seed")] = 0,
    dim: Annotated[list[str], typer.Option(metavar="NAME=N", help="binds a dimension (also INPUT.AXIS=N)")] = [],  # noqa: B006
    value: Annotated[list[str], typer.Option(metavar="INPUT=N", help="an input of one number")] = [],  # noqa: B006
    inputs: Annotated[str, typer.Option(metavar="FILE.npz", help="inputs by name")] = "",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    nodes: Annotated[bool, typer.Option("--nodes", help="judge single nodes, not DQ..Q regions")] = False,
    timeout: Annotated[float, typer.Option(min=1)] = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Whole models: counts side by side, every node judged on the backend's own inputs, the first divergent named."""
    from .cli import WORDS, Exit

    jobs = _jobs([*path, *_sampled(sample, seed)], all_real, dim, value, inputs, seed, nodes)
    if not jobs:
        raise CaseError("no model given: name a file, a built-in network, --all-real or --sample N")
    asked = tuple(spec.text for spec in supervisor.specs(backend))
    texts = tuple(dict.fromkeys([UNOPTIMISED, *asked, COUNTER]))
    tasks = [supervisor.Task("model", (job.text(),)) for job in jobs]
    records: list[Record] = []
    settings = supervisor.Settings(texts, timeout_s=timeout)
    outcome = supervisor.run(tasks, settings, 1, records.append, how="opgauge.models:perform")
    if any("CaseError" in error for error in outcome.errors):
        raise CaseError("; ".join(outcome.errors))
    bad = [r for r in records if r.status in FINDINGS and r.backend in asked]
    judged = [r for r in records if r.backend in asked and r.elements]
    code = Exit.FINDING if bad else Exit.OK if judged else Exit.NOTHING
    code = Exit.INTERRUPTED if outcome.interrupted else Exit.HARNESS if outcome.errors else code
    if as_json:
        print(json.dumps({"records": [store.record_to_dict(r) for r in records], "errors": outcome.errors}, indent=1))
        raise typer.Exit(code)
    console = _console()
    for job in jobs:
        show(console, job.title, [r for r in records if r.case.startswith(f"model/{job.title}/")], asked)
    for error in outcome.errors:
        console.print(f"! {error}", markup=False, soft_wrap=True)
    passed = sum(r.status is Status.PASS for r in judged)
    line = f"{WORDS[code]} (exit {int(code)}): {len(jobs)} models, {passed} of {len(judged)} nodes inside"
    line += f", {len(bad)} findings, {outcome.seconds:.1f} s"
    console.print(line, style="bold", markup=False, soft_wrap=True)
    raise typer.Exit(code)


def show(console: Console, title: str, records: Sequence[Record], asked: Sequence[str]) -> None:
    """One model: verdicts, the ends, counts, diffs."""
    from rich.table import Table

    from opgauge.suites import real_models

    from . import model_counts

    refused = next((row.refused for row in real_models.MODELS if row.name == title), "")
    console.print(f"\n{title}", style="bold", markup=False)
    for text in asked:
        mine = [r for r in records if r.backend == text]
        nodes = [r for r in mine if r.elements or (r.op != "model" and r.status is Status.UNSUPPORTED)]
        tally = Counter(r.status for r in nodes)
        said = ", ".join(f"{n} {s}" for s, n in tally.items()) or "none judged"
        console.print(f"  {text}: {len(nodes)} nodes or regions: {said}", markup=False)
        for r in mine:
            if r.status is not Status.PASS or r.message:
                known = f" (expected: it has {refused})" if refused and r.status is Status.UNSUPPORTED else ""
                console.print(
                    f"    {r.status}  {r.case.partition('/')[2].partition('/')[2]} {r.op}: {r.message}{known}",
                    markup=False,
                    soft_wrap=True,
                )
            for output in r.detail.get("outputs", ()):
                said = ", ".join(f"{k} {v}" for k, v in output.items() if k != "name" and v is not None)
                console.print(f"    output {output['name']}: {said}", markup=False, soft_wrap=True)
    found = model_counts.columns(records)
    head, *rows = model_counts.table(found)
    grid = Table(*head, box=None, header_style="bold")
    for row in rows:
        grid.add_row(*row)
    console.print(grid)
    for before, after in model_counts.pairs(found):
        changes = model_counts.difference(found[before], found[after])
        text = ", ".join(f"{k} {a} -> {b}" for k, (a, b) in changes.items() if not k.endswith("_bytes"))
        console.print(f"  {before} -> {after}: {text or 'the same nodes'}", markup=False, soft_wrap=True)


def rules(as_json: AsJson = False) -> None:
    """The graph rules in their order, with what each rests on."""
    from opgauge.reference_engine import passes

    rows = [
        {"rule": r.id, "bits": "same bits" if r.bits else "within the set", "source": r.source} for r in passes.RULES
    ]
    rows.insert(0, {"rule": passes.DEAD_CODE, "bits": "same bits", "source": passes.SOURCES[passes.DEAD_CODE]})
    if as_json:
        print(json.dumps({"version": passes.version(), "rules": rows}, indent=1))
    else:
        for row in rows:
            typer.echo("\t".join(row.values()))
        typer.echo(f"version {passes.version()}; cpu:disable=RULE+RULE, cpu:only=RULE+RULE, disable=all")


def bisect_rules(
    path: Annotated[str, typer.Argument(metavar="MODEL.onnx")],
    dim: Pairs = [],  # noqa: B006
    value: Pairs = [],  # noqa: B006
    inputs: Annotated[str, typer.Option(metavar="FILE.npz")] = "",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    backend: Annotated[str, typer.Option("--backend", "-b", help="an engine of ours")] = "cpu",
    timeout: Annotated[float, typer.Option(min=1)] = TIMEOUT,
) -> None:
    """Name the rule that moves an output out of its set, changes bits it must keep, or makes a count grow."""
    from . import rule_bisect
    from .cli import Exit
    from .models import load

    job = _jobs([path], False, dim, value, inputs, seed, False)[0]
    culprit = rule_bisect.bisect_model(load(job), backend, timeout)
    if culprit is None:
        typer.echo(f"no rule: outputs stay in their sets and no count grows with all rules on {backend}")
        raise typer.Exit(Exit.OK)
    typer.echo(f"{culprit.rule or 'no rule'}: {culprit.reason}")
    raise typer.Exit(Exit.FINDING)


def extract(
    path: Annotated[str, typer.Argument(metavar="MODEL.onnx")],
    dim: Pairs = [],  # noqa: B006
    value: Pairs = [],  # noqa: B006
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[str, typer.Option(metavar="FILE", help="write the ids there, one a line")] = "",
    as_json: AsJson = False,
) -> None:
    """One case for each distinct node of a model: operator, shapes, element types, attributes, parameters, ranges."""
    from . import extraction
    from .models import load

    loaded = load(_jobs([path], False, dim, value, "", seed, False)[0])
    found, skipped = extraction.extract(loaded)
    if out:
        Path(out).write_text("".join(f"{text}\n" for text in found), encoding="utf-8")
    if as_json:
        print(json.dumps({"cases": found, "skipped": skipped}, indent=1))
        return
    for text, number in found.items():
        typer.echo(text if not out else f"{number} x {text.split('/')[0]}")
    for name, why in skipped.items():
        typer.echo(f"skipped {name}: {why}", err=True)
    typer.echo(f"{len(found)} distinct cases from {sum(found.values())} nodes, {len(skipped)} skipped", err=True)
