"""The command on planted faults: sensitivity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opgauge import suites

OWN = Path(suites.__file__).parent / "faults" / "__init__.py"


def register(app: typer.Typer) -> None:
    app.command()(sensitivity)


def sensitivity(
    faults: Annotated[
        Path, typer.Option(help="a Python module with FAULTS and BENIGN", show_default="opgauge's own")
    ] = OWN,
    cases: Annotated[int, typer.Option(min=1, help="cases per suite row")] = 100,
    op: Annotated[list[str], typer.Option("--op", help="operator, repeatable")] = [],  # noqa: B006
    fault: Annotated[list[str], typer.Option(help="id of a fault, repeatable")] = [],  # noqa: B006
    seed: Annotated[int, typer.Option(min=0, help="same seed, same cases")] = 0,
    compare: Annotated[
        bool, typer.Option("--compare", help="ask the criteria of others about the same outputs")
    ] = False,
    markdown: Annotated[str, typer.Option(metavar="FILE", help="the comparison as a page; implies --compare")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """How many planted faults the suite sees; exit 1 when an honest variant is flagged."""
    from . import sensitivity as gauge
    from .cli import WORDS, Exit, print_json, terminal

    console = terminal(stderr=as_json)

    def show(found: gauge.Outcome) -> None:
        seen = (
            f"{found.status} after {found.caught_after} cases" if found.caught else f"not seen in {found.cases} cases"
        )
        also = f" (also {', '.join(found.others)})" if found.others else ""
        console.print(f"{found.id} {found.op}: {seen}  {found.title}{also}", markup=False, soft_wrap=True)

    asked = compare or bool(markdown)
    outcomes = list(gauge.measure(faults, suites.cases(), cases, seed, op, fault, show, compare=asked))
    summary = gauge.summary(outcomes, gauge.catalogue(faults))
    if as_json:
        print_json(summary)
    if markdown:
        from opgauge.reports import sensitivity as page

        Path(markdown).write_text(page.render(summary, cases), encoding="utf-8")
    flagged, honest = (len(list(summary[key])) for key in ("benign_flagged", "benign"))  # type: ignore[call-overload]
    code = Exit.NOTHING if not outcomes else Exit.FINDING if flagged else Exit.OK
    console.print(
        f"{WORDS[code]} (exit {int(code)}): {summary['caught']} of {summary['applicable']} faults seen, "
        f"{flagged} of {honest} honest variants flagged",
        style="bold",
    )
    raise typer.Exit(code)
