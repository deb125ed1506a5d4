"""Command on histories: trends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

FOLDER = Path("baselines")


def register(app: typer.Typer) -> None:
    app.command()(trends)


def trends(
    folder: Annotated[Path, typer.Option("--baselines", metavar="FOLDER", help="where latency/ is")] = FOLDER,
    asv: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="also write asv result files there: baselines/asv")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Steps in what key cases took, run by run, found by asv's step detection; exit 5 where there is no history.

    They tell where to look and gate nothing: a change on this machine is told by `opgauge gate --against`.
    """
    from opgauge.reference_engine.errors import BaselineError

    from . import trends as histories
    from .cli import WORDS, Exit

    try:
        found = histories.trends(folder)
    except BaselineError as error:
        typer.echo(f"{WORDS[Exit.NOTHING]} (exit {int(Exit.NOTHING)}): {error}", err=as_json)
        raise typer.Exit(Exit.NOTHING) from error
    lines, fed = [], {}
    if asv is not None:
        written, missing = histories.feed(found, asv, _commit, _machine())
        fed = {"folder": str(asv), "results": written, "missing_commits": missing}
        lines.append(f"{written} asv result files in {asv}; show them with: asv publish && asv preview")
        if missing:
            lines.append(f"{len(missing)} commits are not in this repository: {', '.join(missing[:5])}")
    if as_json:
        typer.echo(json.dumps({"trends": [t.plain() for t in found], "asv": fed, "exit_code": 0}, indent=1))
        raise typer.Exit(Exit.OK)
    for t in found:
        now = f"{len(t.ns)} runs, now {t.ns[-1] / 1e3:.1f} us"
        typer.echo(f"{t.name} on machine {t.machine}: {t.said or 'no step'} ({now})")
    for line in lines:
        typer.echo(line)
    steps_found = sum(len(t.steps) for t in found)
    typer.echo(f"{WORDS[Exit.OK]} (exit 0): {len(found)} histories, {steps_found} steps")
    raise typer.Exit(Exit.OK)


def _commit(short: str) -> tuple[str, int] | None:
    from opgauge.reference_engine.errors import CaseError

    from .repository import git

    try:
        whole, seconds = git(Path.cwd(), "log", "-1", "--format=%H %ct", short, "--").stdout.split()
    except (CaseError, ValueError):
        return None
    return whole, int(seconds) * 1000


def _machine() -> dict[str, str]:
    from . import doctor

    seen = doctor.machine()
    return {"os": seen["system"], "arch": seen["machine"], "cpu": seen["cpu"], "num_cpu": seen["cores"], "ram": ""}
