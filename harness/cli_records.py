"""Commands on records of earlier runs: merge, costs, query."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from opgauge.backends import informative
from opgauge.reference_engine.types import Status

from . import store

Home = Annotated[Path, typer.Option("--out", help="where the folders of runs are kept")]
SHORT = 'backend, op, label, status, message, "case"'


def register(app: typer.Typer) -> None:
    app.command()(merge)
    app.command()(costs)
    app.command()(query)


def merge(
    journals: Annotated[list[Path], typer.Argument(help="journals of the parts of one run")], out: Home = store.HOME
) -> None:
    """Put the parts of one run (`run --shard`) together into a new journal; exit 1 on any finding."""
    from . import cli, gate, resume
    from . import run as supervisor

    run, records = resume.merge(journals)
    with store.create(out) as journal:
        journal.append("run", {**run, "merged": [str(path) for path in journals], "shard": ""})
        for record in records:
            journal.record(record)
    settings = resume.settings_of(run, journals[0])
    findings = gate.findings(records, informative(settings.backends))
    outcome = supervisor.Outcome([], False, 0.0, {})
    code = cli.exit_code(records, findings, outcome, [])
    typer.echo(f"journal: {journal.path}")
    typer.echo(cli.verdict_line(code, records, len(findings), 0.0))
    raise typer.Exit(code)


def costs(
    journal: Annotated[str, typer.Option(help="a journal; the last run of --out otherwise")] = "",
    out: Home = store.HOME,
    file: Annotated[Path, typer.Option(help="where the table is kept")] = Path("baselines/costs.json"),
    reason: Annotated[str, typer.Option(help="why it changes: it is kept beside the table")] = "",
) -> None:
    """Keep what a case of each operator cost in a run: `run --shard` divides by it."""
    from . import accepted
    from . import costs as recorded

    document = accepted.begun("costs", recorded.KEY, file, reason, recorded.read)
    found = recorded.measured(store.read(Path(journal) if journal else store.latest(out)).records)
    if not found:
        typer.echo("NOTHING RAN (exit 5): no case of the run says how long it took")
        raise typer.Exit(5)
    document.setdefault(recorded.KEY, {}).update(found)
    accepted.write(file, document, reason, sorted(found))
    typer.echo(f"{file}: {len(found)} operator{'s' * (len(found) != 1)}")


def query(
    where: Annotated[str, typer.Argument(help="a condition (status = 'fail'), or a whole SELECT on `records`")] = "",
    journal: Annotated[str, typer.Option(help="a journal; the last run of --out otherwise")] = "",
    out: Home = store.HOME,
    limit: Annotated[int, typer.Option(min=1, help="at most so many rows")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Records of a run by SQL, read only: `opgauge query "status = 'fail' and op like 'QLinear%'"`."""
    from . import query as index

    sql = where
    if not where.lstrip().lower().startswith(("select", "with")):
        bad = ", ".join(f"'{s}'" for s in (Status.PASS, Status.UNSUPPORTED, Status.DEVIATION))
        sql = f"SELECT {SHORT} FROM records WHERE {where or f'status NOT IN ({bad})'} LIMIT {limit}"
    found = index.ask(Path(journal) if journal else store.latest(out), sql)
    if as_json:
        rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        for row in (found.columns, *found.rows):
            typer.echo("\t".join(str(value) for value in row))
