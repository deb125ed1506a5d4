"""The command `opgauge doctor`."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """What this machine can measure: versions, runtimes, processor, Vulkan adapters, noise of the clock."""
    from . import doctor as examination
    from .cli import Exit, print_json, terminal

    found = examination.examine()
    if as_json:
        print_json(found)
        raise typer.Exit(Exit.OK)
    console = terminal()
    for title, values in found.items():
        console.print(title, style="bold")
        rows = (
            values.items() if isinstance(values, dict) else enumerate(values if isinstance(values, list) else [values])
        )
        for name, value in rows:
            text = ", ".join(f"{k} {v}" for k, v in value.items() if v != "") if isinstance(value, dict) else value
            console.print(f"  {name:<14} {text}", markup=False, soft_wrap=True)
    usable = [n for n, v in found["backends"].items() if not {"unavailable", "error"} & set(v)]
    console.print(f"{len(usable)} of {len(found['backends'])} backends usable: {', '.join(usable)}", style="bold")
    raise typer.Exit(Exit.OK)
