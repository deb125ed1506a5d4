"""The command `fingerprint`: how a backend computes, as a card."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from opgauge.backends import BackendSpec, resolve
from opgauge.reference_engine.errors import BackendUnavailableError
from opgauge.reference_engine.types import CaseSpec, Record

from .run import Task
from .store import Journal

if TYPE_CHECKING:
    from .fingerprint import Card
    from .traits import Trait

POLICIES = ("standard", "pinned")
Measure = Annotated[
    str,
    typer.Option(
        metavar="WORD",
        help="standard: the sets; pinned: where a backend's own formula is known, its results to the bit",
    ),
]


def pins(
    policy: str, specs: Sequence[BackendSpec], rows: Sequence[CaseSpec], timeout: float, console: Console
) -> tuple[tuple[str, ...], ...]:
    """What `run --policy` holds the backends to. Raises: SelectionError."""
    from . import generate

    generate.require([policy], set(POLICIES), "policy")
    if policy == "standard":
        return ()
    from . import pinned

    return pinned.measure(specs, {row.op for row in rows}, timeout, lambda text: console.print(text, markup=False))


Coverage = Annotated[bool, typer.Option("--coverage", help="what the cases exercised, counted in classes")]


def covered(records: Sequence[Record], meta: dict[str, Any]) -> list[str]:
    """The lines of `run --coverage`; the same goes into `meta`, and so into the journal and the JSON report."""
    from . import coverage

    rows = coverage.of_records(records)
    meta["coverage"] = coverage.as_dict(rows)
    return coverage.lines(rows)


Cards = Annotated[
    bool, typer.Option("--fingerprint", help="how each backend rounds and sums, on the report; half a minute each")
]


def cards(specs: Sequence[BackendSpec], timeout: float, journal: Journal) -> list[dict[str, Any]]:
    """The cards of `run --fingerprint`, kept in the journal so that later reports show them too."""
    from . import fingerprint as gauge

    made = []
    for spec in specs:
        try:
            made.append(as_dict(_measured(spec, timeout, gauge.select(()))))
        except BackendUnavailableError:
            continue  # the run itself says so
        journal.append("card", made[-1])
    return made


def _measured(spec: BackendSpec, timeout: float, traits: Sequence[Trait]) -> Card:
    """Raises: BackendUnavailableError."""
    from rich.progress import Progress

    from . import fingerprint as gauge
    from .cli import terminal

    console = terminal(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(spec.text, total=len(traits))
        return gauge.card(spec, timeout, traits, lambda trait: bar.update(task, advance=1))


Opsets = Annotated[str, typer.Option(metavar="all", help="each case at every opset that can spell it")]


def swept(tasks: list[Task], opsets: str) -> list[Task]:
    """Rows become sweeps with `run --opsets all`. Raises: SelectionError."""
    from . import generate

    generate.require([opsets], {"", "all"}, "choice of opsets")
    return [replace(t, kind="opsets") if opsets and t.kind == "row" else t for t in tasks]


def register(app: typer.Typer) -> None:
    app.command()(fingerprint)


def fingerprint(
    backend: Annotated[str, typer.Argument(help="cpu, onnxruntime:level=basic, path.py:run ...")],
    op: Annotated[list[str], typer.Option("--op", help="only traits of this operator, repeatable")] = [],  # noqa: B006
    markdown: Annotated[str, typer.Option(metavar="FILE", help="the card as Markdown; - is standard output")] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds per case")] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Measure how a backend rounds, scales, accumulates and treats special values; print what explains all of it.

    Each property is asked with cases that tell its known alternatives apart. An answer is the set of alternatives that
    explain every element of every case; `none of the known` where there is none, with a case that shows it.
    """
    from opgauge.reports import card as reports

    from . import fingerprint as gauge
    from .cli import Exit

    spec = resolve(backend)
    try:
        traits = gauge.select(op)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    try:
        found = _measured(spec, timeout, traits)
    except BackendUnavailableError as error:
        typer.echo(f"opgauge: {error}", err=True)
        raise typer.Exit(Exit.UNAVAILABLE) from error
    document = as_dict(found)
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    elif markdown == "-":
        sys.stdout.write(reports.markdown(document))
    else:
        sys.stdout.write(reports.text(document))
    if markdown not in ("", "-"):
        Path(markdown).parent.mkdir(parents=True, exist_ok=True)
        Path(markdown).write_text(reports.markdown(document), "utf-8")
    answered = [a for a in found.answers if a.status not in (gauge.UNSUPPORTED, gauge.FAILED)]
    tally = {status: sum(a.status == status for a in found.answers) for status in gauge.STATUSES}
    said = ", ".join(f"{count} {status}" for status, count in tally.items() if count)
    typer.echo(f"{len(found.answers)} properties: {said}", err=as_json or markdown == "-")
    raise typer.Exit(Exit.OK if answered else Exit.NOTHING)


def as_dict(card: Card) -> dict[str, Any]:
    """The card as JSON holds it; formulas by `operator element-type`."""
    formulas = {f"{op} {dtype}": [str(f) for f in found] for (op, dtype), found in card.formulas.items()}
    return {
        "backend": card.backend,
        "info": card.info,
        "answers": [asdict(a) for a in card.answers],
        "formulas": formulas,
    }
