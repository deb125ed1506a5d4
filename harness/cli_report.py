"""`opgauge report ...`, `opgauge explain`, `opgauge init`: what is made of runs that are over."""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from opgauge.backends import informative
from opgauge.reference_engine.errors import BaselineError, OpgaugeError
from opgauge.reference_engine.types import FINDINGS, Finding, Record, Status

from . import store

if TYPE_CHECKING:
    from opgauge.reports.extras import Extras

app = typer.Typer(no_args_is_help=True, help="Reports from runs that are over: diff, merge, show, site, annotate.")


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="report")
    root.command()(explain)
    root.command()(init)


RunPath = Annotated[str, typer.Argument(metavar="RUN", help="a run's folder, its journal, or `latest`")]
FAILED, NOTHING, INTERRUPTED = 1, 5, 130


class RunError(OpgaugeError):
    """A run, or a part of one, that the command line names and that is not there."""


class Stored(NamedTuple):
    """A run read back: its records and what a report says about it."""

    name: str
    records: list[Record]
    meta: dict[str, Any]
    cards: Sequence[Mapping[str, Any]] = ()
    counted: Sequence[Record] = ()  # of backends that were there only to be counted

    def more(self, before: Path | None = None) -> Extras:
        from . import extras

        return extras.collect([*self.records, *self.counted], self.meta["backends"], before, cards=self.cards)

    @property
    def findings(self) -> list[Finding]:
        from . import gate

        asked = self.meta.get("backends") or {r.backend for r in self.records}
        return gate.findings(self.records, informative(asked))


def journal_of(text: str) -> Path:
    """Raises: RunError naming what was looked for."""
    try:
        path = store.latest() if text == "latest" else Path(text)
    except BaselineError as error:
        raise RunError(str(error)) from error
    path = path / store.JOURNAL if path.is_dir() else path
    if not path.is_file():
        raise RunError(f"no run at {text}: give the folder of a run, its {store.JOURNAL} or `latest`")
    return path


def read(text: str) -> Stored:
    """Raises: RunError, BaselineError."""
    path = journal_of(text)
    run, records, others = store.read(path)
    end: dict[str, Any] = next((entry for entry in reversed(others) if entry["kind"] == "end"), {})
    cards = [entry for entry in others if entry["kind"] == "card"]
    # Without an end the run was cut short.
    settings, meta = run.get("settings") or {}, end.get("meta") or {}
    told = {
        "command": " ".join(["opgauge", *map(str, run.get("argv") or [])]),
        "version": "",
        "started": "",
        "seconds": 0,
        "seed": settings.get("seed"),
        "budget": settings.get("budget"),
        "backends": end.get("backends") or {},
        "machine": {},
        "exit_code": end.get("exit_code", INTERRUPTED),
        "verdict": "",
    }
    apart = set(run.get("counted") or ())
    shown, counted = ([r for r in records if (r.backend in apart) is side] for side in (False, True))
    return Stored(path.parent.name, shown, {**told, **meta}, cards, counted)


def write_reports(
    files: dict[str, str],
    records: Sequence[Record],
    findings: Sequence[Finding],
    meta: dict[str, Any],
    console: Console,
    more: Callable[[], Extras],
) -> None:
    """Every file that is named, and how large it is and how long it took; `more` gathers what only the page shows."""
    from opgauge.reports import text

    from . import frames

    began = time.perf_counter()
    tables = frames.tables(records)
    spent = time.perf_counter() - began
    text.print_summary(console, tables, records, findings, meta)
    if any(files.values()):
        say(console, f"{len(records):,} records in tables in {spent:.1f} s")
    for module, name in files.items():
        if not name:
            continue
        began = time.perf_counter()
        renderer = importlib.import_module(f"opgauge.reports.{module}")
        arguments = (records, findings, meta) if module == "junit" else (tables, records, findings, meta)
        content = renderer.render(*arguments, *((more(),) if module == "html" else ()))
        if name == "-":
            sys.stdout.write(content)
        else:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(content, encoding="utf-8")
        say_written(console, name, len(content.encode()), began)


def say(console: Console, said: str) -> None:
    console.print(said, highlight=False, markup=False, soft_wrap=True)


def say_written(console: Console, name: str, nbytes: int, began: float) -> None:
    """`began` is in seconds of the performance counter."""
    size = f"{nbytes / 1e3:,.0f} kB" if nbytes >= 1000 else f"{nbytes} bytes"
    where = "standard output" if name == "-" else name
    say(console, f"{where}: {size} in {time.perf_counter() - began:.1f} s")


def _only(records: Sequence[Record], backend: str, where: str) -> list[Record]:
    """Raises: RunError naming the backends that the run has."""
    kept = [r for r in records if not backend or r.backend == backend]
    if not kept and records:
        has = ", ".join(sorted({r.backend for r in records}))
        raise RunError(f"run {where} has no backend {backend!r}; it has {has}")
    return kept


@app.command()
def diff(
    old: RunPath,
    new: RunPath,
    old_backend: Annotated[str, typer.Option(help="only this backend of OLD")] = "",
    new_backend: Annotated[str, typer.Option(help="only this backend of NEW")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """What became red, green or untrusted between two runs; exit 1 when anything became red, 5 without a common case.

    Two backends of one run are compared by naming the run twice.
    """
    from opgauge.reports import diff as differ

    from . import cli

    before, after = _only(read(old).records, old_backend, old), _only(read(new).records, new_backend, new)
    names = (f"{old} {old_backend}".strip(), f"{new} {new_backend}".strip())
    found = differ.compare(before, after, names)
    if as_json:
        cli.print_json(differ.document(found))
    else:
        typer.echo(differ.render(found), nl=False)
    raise typer.Exit(NOTHING if not found.common else FAILED if found.of("newly red") else 0)


@app.command()
def merge(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="folders or journals, of shards for example")],
    out: Annotated[Path, typer.Option(help="where the folders of runs are kept")] = store.HOME,
) -> None:
    """One run out of several; a case that two of them hold on one backend counts once, with the graver status."""
    from opgauge.reports.legend import MARKS

    stored = [read(run) for run in runs]
    kept: dict[tuple[str, str], Record] = {}
    disagree = 0
    for record in (r for run in stored for r in run.records):
        key = (record.case, record.backend)
        if key in kept and kept[key].status is not record.status:
            disagree += 1
        if key not in kept or MARKS[record.status].rank < MARKS[kept[key].status].rank:
            kept[key] = record
    merged = Stored("merged", list(kept.values()), {})
    code = max((run.meta["exit_code"] for run in stored), default=NOTHING)
    code = max(code, FAILED) if merged.findings or disagree else code
    known = {name: info for run in stored for name, info in run.meta["backends"].items()}
    with store.create(out) as journal:
        journal.append("run", {"argv": ["report", "merge", *runs], "settings": {}, "merged": [r.name for r in stored]})
        for record in kept.values():
            journal.record(record)
        journal.append("end", {"exit_code": code, "errors": [], "backends": known})
    total = sum(len(run.records) for run in stored)
    typer.echo(f"{len(stored)} runs, {total:,} records, {len(kept):,} kept, {disagree:,} disagree between runs")
    typer.echo(f"journal: {journal.path}")
    raise typer.Exit(NOTHING if not kept else FAILED if disagree else 0)


@app.command()
def show(
    run: RunPath = "latest",
    html: Annotated[str, typer.Option(metavar="FILE", help="the page for people: one file, works offline")] = "",
    json_file: Annotated[str, typer.Option("--json", metavar="FILE", help="- is standard output")] = "",
    junit: Annotated[str, typer.Option(metavar="FILE", help="JUnit XML")] = "",
    markdown: Annotated[str, typer.Option(metavar="FILE", help="Markdown, for the summary of a job")] = "",
    ctrf: Annotated[str, typer.Option(metavar="FILE", help="JSON in the Common Test Report Format")] = "",
    svg: Annotated[str, typer.Option(metavar="FILE", help="the matrix as a picture")] = "",
    badge: Annotated[str, typer.Option(metavar="FILE", help="JSON for a badge")] = "",
    csv: Annotated[str, typer.Option(metavar="FILE", help="one line a record")] = "",
    scoreboard: Annotated[str, typer.Option(metavar="FILE", help="JSON as ONNX's backend scoreboard reads it")] = "",
    against: Annotated[
        str, typer.Option(metavar="RUN", help="the HTML page compares with it; else with the run before")
    ] = "",
) -> None:
    """A run's reports, made again from its journal."""
    from . import cli, extras, frames

    stored = read(run)
    before = journal_of(against) if against else extras.preceding(journal_of(run)) if html else None
    names = {"html": html, "jsonfile": json_file, "junit": junit, "markdown": markdown, "ctrf": ctrf}
    files = {**names, "matrix_svg": svg, "badge": badge, "scoreboard": scoreboard}
    console = cli.terminal(stderr="-" in files.values())
    write_reports(files, stored.records, stored.findings, stored.meta, console, functools.partial(stored.more, before))
    if csv:
        began = time.perf_counter()
        frames.frame(stored.records).to_csv(csv, index=False)
        say_written(console, csv, Path(csv).stat().st_size, began)
    raise typer.Exit(stored.meta["exit_code"] if stored.records else NOTHING)


@app.command()
def site(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="where the pages are written")],
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="folders or journals of runs")],
    title: Annotated[str, typer.Option(help="what the pages are headed with")] = "opgauge",
    with_reports: Annotated[bool, typer.Option("--with-reports", help="a whole report of each run, too")] = False,
) -> None:
    """A small static site from stored runs: runtimes over their versions, what broke in which release, deviations.

    Each backend of each run is a column; of one version in several runs the latest is shown. Exit 5 without a verdict.
    """
    from opgauge.reports import html

    from . import frames, publish

    stored = [read(run) for run in dict.fromkeys(runs)]
    found = [column for run in stored for column in publish.columns(run.name, run.records, run.meta)]
    reports: dict[str, str] = {}
    for run in stored if with_reports else ():
        reports[run.name] = html.render(frames.tables(run.records), run.records, run.findings, run.meta, run.more())
    made = publish.write(folder, found, title, reports)
    size = sum(path.stat().st_size for path in made)
    typer.echo(
        f"{len(made)} files, {size:,} bytes, {len(found)} columns from {len(stored)} runs: {folder / 'index.html'}"
    )
    raise typer.Exit(0 if any(column.records for column in found) else NOTHING)


@app.command()
def annotate(run: RunPath = "latest") -> None:
    """The ten gravest findings as GitHub annotations, on standard output."""
    from opgauge.reports import annotations

    stored = read(run)
    sys.stdout.write(annotations.render(stored.records, stored.findings))


def explain(
    finding: Annotated[
        str, typer.Argument(metavar="[NUMBER|ID|STATUS|all]", help="nothing: list the last run's; all: each in full")
    ] = "",
    run: Annotated[str, typer.Option(metavar="RUN", help="a run's folder, its journal, or `latest`")] = "latest",
) -> None:
    """What a finding means: symptom, likely cause, evidence, next command."""
    from . import explain as explanation

    if finding in {str(s) for s in Status}:
        advice = explanation.likely_cause(Record("", "", "", "", "", "", Status(finding)))
        from opgauge.reports.legend import MARKS

        typer.echo(f"{finding}: {MARKS[Status(finding)].meaning}\nlikely: {advice.cause}\nnext: {advice.next}")
        return
    from opgauge.reports.tables import red, smaller

    records = read(run).records
    failing = red(r for r in records if r.status in FINDINGS)
    if not finding:
        typer.echo("\n".join(explanation.listing(failing)) or "no failing case in this run")
        return
    if finding == "all":
        typer.echo("\n".join(map(explanation.explain, failing)) or "no failing case in this run")
        return
    if finding.isdigit() and 1 <= int(finding) <= len(failing):
        typer.echo(explanation.explain(failing[int(finding) - 1]), nl=False)
        return
    chosen = [r for r in records if finding in (r.case, smaller(r.detail))]
    if not chosen:
        raise RunError(f"run {run} has no case {finding!r:.200}, and {len(failing)} failing ones to number")
    typer.echo("\n".join(explanation.explain(r) for r in chosen), nl=False)


def init(folder: Annotated[Path, typer.Argument(help="the root of your repository")] = Path()) -> None:
    """Make baselines/expectations.toml and a GitHub workflow in your repository; nothing is overwritten."""
    from . import scaffold

    for name, made in scaffold.create(folder):
        typer.echo(f"{'made' if made else 'kept'} {name}")
    typer.echo(f"Settings go into pyproject.toml:\n\n{scaffold.SETTINGS}")
