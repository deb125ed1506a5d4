"""Commands on whole graphs: model, rules, bisect-rules, extract."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from opgauge.reference_engine.errors import CaseError
from opgauge.reference_engine.types import Record, Status

from . import run as supervisor
from . import store
from .model_jobs import Job

if TYPE_CHECKING:
    from rich.progress import Progress

    from .cli import Exit
    from .model_run import Asked, Done

AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Backends = Annotated[list[str], typer.Option("--backend", "-b", help="cpu, onnxruntime:level=basic, ...")]
Pairs = Annotated[list[str], typer.Option(metavar="NAME=NUMBER", help="a dimension, or an input of one number")]
TIMEOUT = 300.0


def register(app: typer.Typer) -> None:
    app.command()(model)
    app.command("graph-diff")(graph_diff)
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
            jobs.append(Job(path, seed=seed, regions=not nodes))
        else:
            names = ", ".join(sorted(known | set(real)))
            raise CaseError(f"there is no file {path}, and no built-in or real model of that name; there are {names}")
    return jobs


def _sampled(count: int, seed: int) -> list[str]:
    from opgauge.suites import real_models

    return [row.name for row in real_models.sample(count, seed)] if count else []


def model(
    path: Annotated[
        list[str], typer.Argument(metavar="MODEL.onnx", help="files, names of built-in networks or real models")
    ] = [],  # noqa: B006
    backend: Backends = ["cpu", "onnxruntime"],  # noqa: B006
    all_real: Annotated[bool, typer.Option("--all-real", help="the pinned real models, fetched once")] = False,
    sample: Annotated[int, typer.Option(min=0, help="so many of the smaller real models, drawn by the seed")] = 0,
    dim: Annotated[list[str], typer.Option(metavar="NAME=N", help="binds a dimension (also INPUT.AXIS=N)")] = [],  # noqa: B006
    value: Annotated[list[str], typer.Option(metavar="INPUT=N", help="an input of one number")] = [],  # noqa: B006
    inputs: Annotated[str, typer.Option(metavar="FILE.npz", help="inputs by name")] = "",
    seed: Annotated[int, typer.Option(min=0, help="same seed, same data")] = 0,
    nodes: Annotated[bool, typer.Option("--nodes", help="judge single nodes, not DQ..Q regions")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="seconds for each run of a model")] = TIMEOUT,
    out: Annotated[Path, typer.Option("--out", help="where the folders of runs are kept")] = store.HOME,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the last run in --out as it was asked")] = False,
    as_json: AsJson = False,
) -> None:
    """Whole models: counts side by side, every node judged on the backend's own inputs, the first divergent named.

    Each model is shown when it is done; the journal keeps what was judged when a long run is cut short,
    and `opgauge report show latest --html FILE` makes a page of it with a strip of each model's nodes.
    """
    from . import model_run
    from .cli import _meta

    if resume:
        asked = model_run.left(out)
    else:
        jobs = _jobs([*path, *_sampled(sample, seed)], all_real, dim, value, inputs, seed, nodes)
        if not jobs:
            raise CaseError("no model given: name a file, a built-in network, --all-real or --sample N")
        asked = model_run.fresh(jobs, [spec.text for spec in supervisor.specs(backend)], timeout)
    console = _console()
    with _bar() as bar:
        line = bar.add_task("", total=len(asked.waiting))

        def on_done(job: Job, records: Sequence[Record]) -> None:
            bar.advance(line)
            if not as_json:
                bar.stop()
                show(console, job.title, records, asked.backends)
                bar.start()

        def on_started(case: str) -> None:
            bar.update(line, description=case.partition("/")[2])

        def meta(ended: Done) -> dict[str, Any]:
            told = _meta(asked.settings, ended.outcome, began, *_summed(asked, ended))
            told["backends"] = {b: info for b, info in told["backends"].items() if b in asked.backends}
            return {k: v for k, v in told.items() if k not in ("budget", "seed")}  # of cases; a model has none

        began = time.time()
        ended = model_run.perform(asked, out, on_done, on_started, meta)
    code, said = _summed(asked, ended)
    errors = ended.outcome.errors
    if not ended.judged(asked.backends) and any("CaseError" in error for error in errors):
        raise CaseError("; ".join(errors))
    if as_json:
        kept = [store.record_to_dict(r) for r in ended.records]
        print(json.dumps({"records": kept, "errors": errors, "journal": str(ended.path)}, indent=1))
        raise typer.Exit(code)
    for error in errors:
        console.print(f"! {error}", markup=False, soft_wrap=True)
    console.print(f"journal: {ended.path}", markup=False, soft_wrap=True)
    console.print(said, style="bold", markup=False, soft_wrap=True)
    raise typer.Exit(code)


def _summed(asked: Asked, ended: Done) -> tuple[Exit, str]:
    """The exit code and the last line."""
    from .cli import WORDS, Exit

    judged, bad = ended.judged(asked.backends), ended.findings(asked.backends)
    code = Exit.FINDING if bad else Exit.OK if judged else Exit.NOTHING
    code = Exit.INTERRUPTED if ended.outcome.interrupted else Exit.HARNESS if ended.outcome.errors else code
    passed = sum(r.status is Status.PASS for r in judged)
    said = f"{WORDS[code]} (exit {int(code)}): {len(asked.jobs)} models, {passed} of {len(judged)} nodes inside"
    return code, f"{said}, {len(bad)} findings, {ended.outcome.seconds:.1f} s"


def _bar() -> Progress:
    """Which node of which model is being judged; nothing where no person watches."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Results go to standard output, which may be a file.
    return Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=not console.is_terminal)


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
        came = model_counts.came(records, before, after)
        if came:
            console.print(f"    came: {model_counts.listed(came)}", markup=False, soft_wrap=True)


def graph_diff(
    path: Annotated[str, typer.Argument(metavar="MODEL.onnx", help="a file, or the name of a built-in network")],
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="cpu:disable=all, onnxruntime:level=basic, ...")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="cpu, wgpu, onnxruntime==1.24.4, ...")],
    dim: Pairs = [],  # noqa: B006
    value: Pairs = [],  # noqa: B006
    inputs: Annotated[str, typer.Option(metavar="FILE.npz", help="inputs by name")] = "",
    seed: Annotated[int, typer.Option(min=0, help="same seed, same data")] = 0,
    timeout: Annotated[float, typer.Option(min=1, help="seconds for each run of a model")] = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Two graphs of a model by node: before and after rules, two backends, two releases; exit 1 where they differ."""
    from . import graph_diff as diff
    from .cli import Exit
    from .models import load

    loaded = load(_jobs([path], False, dim, value, inputs, seed, False)[0])
    sides = [diff.listing(loaded, text, timeout) for text in (before, after)]
    changes = diff.difference(*sides)
    code = Exit.FINDING if changes else Exit.OK
    if as_json:
        rows = [{"name": c.name, "before": list(c.before), "after": list(c.after)} for c in changes]
        counts = [sum(map(len, side.values())) for side in sides]
        print(json.dumps({"before": before, "after": after, "nodes": counts, "changes": rows}, indent=1))
        raise typer.Exit(code)
    for change in changes:
        typer.echo(str(change))
    was, now = (sum(map(len, side.values())) for side in sides)
    word = "DIFFERENT" if changes else "THE SAME"
    typer.echo(f"{word} (exit {int(code)}): {len(changes)} names differ; {was} nodes in {before}, {now} in {after}")
    raise typer.Exit(code)


def rules(
    only: Annotated[list[str], typer.Argument(metavar="RULE", help="all where none is named")] = [],  # noqa: B006
    draws: Annotated[int, typer.Option("--try", min=0, help="so many random draws of each of their templates")] = 0,
    as_json: AsJson = False,
) -> None:
    """The graph rules in their order, with what each rests on; with --try what each changes and whether it wins."""
    from opgauge.reference_engine import passes

    chosen = passes.select(only="+".join(only))
    if draws:
        raise typer.Exit(_try_rules([rule.id for rule in chosen], draws, as_json))
    rows = [{"rule": r.id, "bits": "same bits" if r.bits else "within the set", "source": r.source} for r in chosen]
    if not only:
        rows.insert(0, {"rule": passes.DEAD_CODE, "bits": "same bits", "source": passes.SOURCES[passes.DEAD_CODE]})
    if as_json:
        print(json.dumps({"version": passes.version(), "rules": rows}, indent=1))
    else:
        for row in rows:
            typer.echo("\t".join(row.values()))
        typer.echo(f"version {passes.version()}; cpu:disable=RULE+RULE, cpu:only=RULE+RULE, disable=all")


def _try_rules(names: Sequence[str], draws: int, as_json: bool) -> Exit:
    from opgauge.backends.cpu import kernels
    from opgauge.reference_engine import passes
    from opgauge.reference_engine.executor import finder
    from opgauge.suites.networks import NETWORKS
    from opgauge.suites.templates import TEMPLATES

    from . import rule_trials
    from .cli import WORDS, Exit

    find = finder(kernels())
    chosen = [t for t in TEMPLATES if t.rule in names]
    with _bar() as bar:
        found = [(t, rule_trials.tried(t, draws, find, timed=True)) for t in bar.track(chosen)]
    rows = rule_trials.by_rule(found)
    worth = {name: row for name, row in rule_trials.worth(NETWORKS, find).items() if name in names}
    faults = [f"{t.name}: {said}" for t, tally in found for said in tally.faults]
    code = Exit.FINDING if faults else Exit.OK if found else Exit.NOTHING
    if as_json:
        print(
            json.dumps(
                {"version": passes.version(), "draws": draws, "rules": rows, "networks": worth} | {"faults": faults},
                indent=1,
            )
        )
        return code
    for name, row in rows.items():
        speed = f"{row['speed']:.2f} times as fast on them" if row["speed"] else "not timed"
        speed += "".join(f", {ratio:.2f} in {network}" for network, ratio in worth[name].items())
        said = f"changed {row['changed']} results, by {row['effect']:g} ulp of the largest element or quanta at most"
        typer.echo(f"{name}: {row['templates']} templates, applied {row['applied']}; {said}; {speed}")
    for said in faults:
        typer.echo(said)
    typer.echo(f"{WORDS[code]} (exit {int(code)}): {len(chosen)} templates, {draws} draws each, {len(faults)} faults")
    return code


def bisect_rules(
    path: Annotated[str, typer.Argument(metavar="MODEL.onnx", help="a file, or the name of a built-in network")],
    dim: Pairs = [],  # noqa: B006
    value: Pairs = [],  # noqa: B006
    inputs: Annotated[str, typer.Option(metavar="FILE.npz", help="inputs by name")] = "",
    seed: Annotated[int, typer.Option(min=0, help="same seed, same data")] = 0,
    backend: Annotated[str, typer.Option("--backend", "-b", help="an engine of ours")] = "cpu",
    timeout: Annotated[float, typer.Option(min=1, help="seconds for each run of a model")] = TIMEOUT,
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
    path: Annotated[str, typer.Argument(metavar="MODEL.onnx", help="a file, or the name of a built-in network")],
    dim: Pairs = [],  # noqa: B006
    value: Pairs = [],  # noqa: B006
    seed: Annotated[int, typer.Option(min=0, help="same seed, same data")] = 0,
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
