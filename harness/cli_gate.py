"""Commands on baselines: gate, baseline accept, show, diff."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from opgauge.reference_engine.errors import BaselineError, CaseError
from opgauge.reference_engine.types import Finding

PARTS = ("counts", "verdicts", "coverage", "sensitivity", "latency")
KEPT = ("counts", "coverage")  # parts with a baseline file of their own
FOLDER = Path("baselines")
Only = Annotated[list[str], typer.Option(help=f"which parts, repeatable: {', '.join(PARTS)}")]
Kept = Annotated[str, typer.Option(help=f"which baseline: {', '.join(KEPT)}")]
BaselineFile = Annotated[
    Path | None, typer.Option("--baseline", metavar="FILE", help="the baseline file, else baselines/PART.json")
]
Ours = Annotated[bool, typer.Option("--ours", help="our engine only, no other runtime")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def register(app: typer.Typer) -> None:
    app.command()(gate)
    baseline = typer.Typer(no_args_is_help=True, help="What is taken for right.")
    baseline.command()(accept)
    baseline.command()(show)
    baseline.command()(diff)
    app.add_typer(baseline, name="baseline")


def _known(names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise CaseError(f"--only {name!r}: there is {', '.join(known)}")


def gate(
    only: Only = [],  # noqa: B006
    against: Annotated[str, typer.Option(metavar="REV", help="also latency, against the merge base with REV")] = "",
    baseline: BaselineFile = None,
    folder: Annotated[Path, typer.Option("--baselines", metavar="FOLDER", help="where the baselines are")] = FOLDER,
    backend: Annotated[list[str], typer.Option("--backend", "-b", help="instead of those in gates.toml")] = [],  # noqa: B006
    op: Annotated[list[str], typer.Option("--op", help="verdicts and coverage of these operators only")] = [],  # noqa: B006
    ours: Ours = False,
    record: Annotated[bool, typer.Option("--record", help="add the times to baselines/latency")] = False,
    as_json: AsJson = False,
) -> None:
    """Hold this tree against its baselines, and against another revision's speed; exit 1 where anything got worse.

    Without --only: counts, verdicts, coverage and sensitivity, with --against also latency. A key case whose latency
    cannot be told is a finding. Exit 5 where nothing was measured.
    """
    from . import whole_gate
    from .cli import WORDS, Exit, terminal

    _known(only, PARTS)
    if "latency" in only and not against:
        raise CaseError("--only latency needs --against REV: a stored time is no measure of anything")
    if baseline is not None and list(only) != ["counts"]:
        raise CaseError("--baseline goes with --only counts; else say --baselines FOLDER")
    parts = tuple(only) or tuple(p for p in PARTS if p != "latency" or against)
    console = terminal(stderr=True)
    say = (lambda text: console.print(text, style="dim", markup=False)) if console.is_terminal else (lambda text: None)
    outcome = whole_gate.Outcome()
    if baseline is not None:
        found, measured = _counts(baseline, ours)
        outcome.findings, outcome.measured = found, {"counts": measured}
    else:
        asked = whole_gate.Asked(parts, folder, against, ours, record, tuple(backend), tuple(op))
        outcome = whole_gate.run(asked, say)
    nothing = not any(outcome.measured.values()) or any(not n for n in outcome.measured.values())
    code = Exit.HARNESS if outcome.errors else Exit.FINDING if outcome.findings else Exit.OK
    code = Exit.NOTHING if code is Exit.OK and nothing else code
    if as_json:
        typer.echo(json.dumps({**outcome.plain(), "exit_code": int(code)}, indent=1, default=str))
        raise typer.Exit(code)
    for line in [*outcome.lines, *(f"notice: {n}" for n in outcome.notices), *(f"! {e}" for e in outcome.errors)]:
        typer.echo(line)
    for finding in outcome.findings:
        typer.echo(f"{finding.rule}: {finding.subject}: {finding.message}")
        if finding.repro:
            typer.echo(f"  {finding.repro}")
    tally = ", ".join(f"{name} {count:,}" for name, count in outcome.measured.items()) or "nothing"
    took = sum(outcome.seconds.values())
    typer.echo(f"{WORDS[code]} (exit {int(code)}): measured {tally}; {len(outcome.findings)} findings, {took:.0f} s")
    raise typer.Exit(code)


def _counts(baseline: Path, ours: bool) -> tuple[list[Finding], int]:
    from . import counts_gate

    now = counts_gate.measure(runtimes=not ours)
    return counts_gate.compare(counts_gate.read(baseline)["counts"], now), sum(map(len, now.values()))


def _file(only: str, baseline: Path | None) -> Path:
    _known([only], KEPT)
    return baseline or FOLDER / f"{only}.json"


def accept(
    reason: Annotated[str, typer.Option(help="why the numbers changed")] = "",
    only: Kept = "counts",
    baseline: BaselineFile = None,
    ours: Ours = False,
) -> None:
    """Take what is measured now for right, with the reason written beside it."""
    from . import counts_gate, coverage_gate

    path = _file(only, baseline)
    if not reason.strip():
        raise BaselineError("a baseline is accepted with a reason: --reason 'why the numbers changed'")
    if only == "counts":
        changes = counts_gate.accept(path, counts_gate.measure(runtimes=not ours), reason)
    else:
        changes = coverage_gate.accept(path, _coverage(ours), reason)
    for change in changes:
        typer.echo(f"accepted {change.subject}: {change.message}")
    typer.echo(f"{len(changes)} changes accepted into {path}")


def _coverage(ours: bool) -> dict[str, list[str]]:
    from . import coverage_gate, latency_gate, whole_gate

    asked = whole_gate.Asked(("coverage",), FOLDER, ours=ours)
    own = FOLDER / "gates.toml"
    gates = latency_gate.read(own if own.is_file() else None)
    records = whole_gate.judged(gates, asked, whole_gate.Outcome(), lambda text: None)
    return coverage_gate.measure(records, coverage_gate.places())


def show(only: Kept = "counts", baseline: BaselineFile = None, as_json: AsJson = False) -> None:
    """What is taken for right, and why: how much, and the reasons in their order."""
    document = _document(only, baseline)
    rows = document["counts"] if only == "counts" else document["rows"]
    if as_json:
        typer.echo(json.dumps(document, indent=1, sort_keys=True))
        return
    for name, inner in sorted(rows.items()):
        typer.echo(f"{name}: {len(inner)} {'models' if only == 'counts' else 'rows'}")
    for change in document["accepted"]:
        typer.echo(f"accepted: {change['reason']} ({len(change['changes'])} changes)")


def diff(only: Kept = "counts", baseline: BaselineFile = None, ours: Ours = False, as_json: AsJson = False) -> None:
    """What `accept` would change; exit 1 where there is anything."""
    from . import counts_gate, coverage_gate
    from .cli import Exit

    document = _document(only, baseline)
    if only == "counts":
        found = counts_gate.compare(document["counts"], counts_gate.measure(runtimes=not ours))
    else:
        found = coverage_gate.compare(document["rows"], _coverage(ours))
    if as_json:
        typer.echo(json.dumps([vars(f) for f in found], indent=1, default=str))
    else:
        for finding in found:
            typer.echo(f"{finding.subject}: {finding.message}")
        typer.echo(f"{len(found)} changes")
    raise typer.Exit(Exit.FINDING if found else Exit.OK)


def _document(only: str, baseline: Path | None) -> dict[str, Any]:
    from . import counts_gate, coverage_gate

    path: Path | None = _file(only, baseline)
    if path and not path.is_file() and baseline is None:
        path = None  # the shipped one
    return counts_gate.read(path) if only == "counts" else coverage_gate.read(path)
