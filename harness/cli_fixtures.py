"""The commands on portable cases: fixtures export, fixtures run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from opgauge import suites

AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="the folder of exported cases")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Cases as files, for runtimes that Python cannot call.")
    group.command()(export)
    group.command()(run)
    app.add_typer(group, name="fixtures")


def export(
    folder: Folder,
    op: Annotated[list[str], typer.Option("--op", help="operator, repeatable")] = [],  # noqa: B006
    dtype: Annotated[list[str], typer.Option("--dtype", help="element type in any input of a row, repeatable")] = [],  # noqa: B006
    k: Annotated[str, typer.Option("-k", help="whole words joined by and, or, not")] = "",
    per_row: Annotated[int, typer.Option(min=1, help="cases per row of operator and types")] = 3,
    quantized_per_row: Annotated[int, typer.Option(min=1, help="the same for quantized rows")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="same seed, same bytes")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write cases with models, inputs, acceptance sets, an index and two readers (Python and C) that judge outputs."""
    from . import __version__, fixtures, generate
    from .cli import Exit, _progress, terminal

    rows = generate.select(suites.cases(), op, dtype, k)
    with _progress(terminal(stderr=True), len(rows)) as show:
        found = fixtures.collect(rows, per_row, quantized_per_row, seed, lambda done: show(done, 0))
    try:
        total = fixtures.write(found, folder, __version__)
    except fixtures.NoFixturesError as error:
        typer.echo(f"NOTHING RAN (exit {int(Exit.NOTHING)}): {error}")
        raise typer.Exit(Exit.NOTHING) from None
    quantized = sum(f.quantized for f in found)
    operators = len({(f.domain, f.op) for f in found})
    told = {"cases": len(found), "quantized": quantized, "operators": operators, "bytes": total, "folder": str(folder)}
    if as_json:
        typer.echo(json.dumps(told, indent=1))
    else:
        typer.echo(
            f"{len(found):,} cases of {operators} operators, {quantized:,} quantized, {total / 1e6:.1f} MB in {folder}"
        )


def run(
    folder: Folder,
    outputs: Annotated[Path, typer.Argument(metavar="OUTPUTS", help="a folder for NNNN.raw")],
    backend: Annotated[str, typer.Option("--backend", "-b", help="cpu, onnxruntime:level=basic, ...")] = "onnxruntime",
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds per case")] = 20.0,
) -> None:
    """Run exported cases on a backend of opgauge and write its outputs as the readers take them; judges nothing."""
    from . import fixtures_run
    from .cli import Exit

    written, refused = fixtures_run.run(folder, outputs, backend, timeout)
    typer.echo(f"{written:,} cases written to {outputs}, {refused:,} refused or failed")
    raise typer.Exit(Exit.OK if written else Exit.NOTHING)
