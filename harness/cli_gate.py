"""Commands on baselines: gate, baseline accept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from opgauge.reference_engine.errors import CaseError

ONLY = ("counts",)
Only = Annotated[str, typer.Option(help=f"which gate: {', '.join(ONLY)}")]
BaselineFile = Annotated[Path, typer.Option("--baseline", metavar="FILE", help="the baseline file")]
DEFAULT = Path("baselines") / "counts.json"


def register(app: typer.Typer) -> None:
    app.command()(gate)
    baseline = typer.Typer(no_args_is_help=True, help="What is taken for right.")
    baseline.command()(accept)
    app.add_typer(baseline, name="baseline")


def _known(only: str) -> None:
    if only not in ONLY:
        raise CaseError(f"--only {only!r}: there is {', '.join(ONLY)}")


def gate(
    only: Only = "counts",
    baseline: BaselineFile = DEFAULT,
    ours: Annotated[bool, typer.Option("--ours", help="our engine only, no other runtime")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Hold counts against their baseline, exactly and in both directions; exit 1 where anything differs."""
    from . import counts_gate
    from .cli import Exit

    _known(only)
    document = counts_gate.read(baseline if baseline.is_file() or baseline != DEFAULT else None)
    now = counts_gate.measure(runtimes=not ours)
    found = counts_gate.compare(document["counts"], now)
    measured = sum(len(models) for models in now.values())
    code = Exit.FINDING if found else Exit.OK if measured else Exit.NOTHING
    if as_json:
        typer.echo(json.dumps({"findings": [vars(f) for f in found], "measured": measured}, indent=1))
        raise typer.Exit(code)
    for finding in found:
        typer.echo(f"{finding.subject}: {finding.message}")
    typer.echo(f"{'FAIL' if found else 'PASS'} (exit {int(code)}): counts of {measured} models, {len(found)} findings")
    raise typer.Exit(code)


def accept(
    reason: Annotated[str, typer.Option(help="why the numbers changed")] = "",
    only: Only = "counts",
    baseline: BaselineFile = DEFAULT,
    ours: Annotated[bool, typer.Option("--ours", help="our engine only, no other runtime")] = False,
) -> None:
    """Take what is measured now for right, with the reason written beside it."""
    from . import counts_gate

    _known(only)
    changes = counts_gate.accept(baseline, counts_gate.measure(runtimes=not ours), reason)
    for change in changes:
        typer.echo(f"accepted {change.subject}: {change.message}")
    typer.echo(f"{len(changes)} changes accepted into {baseline}")
