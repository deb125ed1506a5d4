"""Command on admission: certify."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from opgauge.reference_engine.errors import CaseError


def register(app: typer.Typer) -> None:
    app.command()(certify)


def certify(
    backend: Annotated[str, typer.Argument(metavar="BACKEND", help="what is to be admitted")],
    against: Annotated[str, typer.Option("--against", metavar="PEER", help="what it must keep up with")],
    op: Annotated[list[str], typer.Option("--op", help="these operators only, repeatable")] = [],  # noqa: B006
    k: Annotated[str, typer.Option("-k", help="whole words joined by and, or, not: 'MatMul and not float16'")] = "",
    model: Annotated[list[str], typer.Option("--model", help="further models, repeatable")] = [],  # noqa: B006
    budget: Annotated[int, typer.Option(min=0, help="cases for each suite row; 0: as [certify] says")] = 0,
    pairs: Annotated[int, typer.Option(min=2, help="fresh process pairs at most")] = 12,
    seconds: Annotated[float, typer.Option(min=0.02, help="measuring seconds of a pair")] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="same seed, same data")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """One verdict on a new backend: conformance, PSNR, repeated bits, memory, fallbacks, speed beside a peer.

    Limits are in [certify] of gates.toml. Timed are the key cases of these operators, else one case of each of their
    rows. Exit 0 certified, 1 not certified or not told, 3 where a side is unavailable, 5 where nothing was measured.
    """
    from opgauge.reference_engine.errors import BackendUnavailableError

    from . import certify as certifying
    from . import latency_gate
    from .cli import WORDS, Exit, terminal
    from .latency import Plan

    own = Path("baselines") / "gates.toml"
    gates = latency_gate.read(own if own.is_file() else None)
    limits = latency_gate.limits_of(certifying.Limits, "certify", gates.sections.get("certify", {}))
    rows = _rows(op, k)
    works = _works(gates, rows, op, k, model, seed)
    console = terminal(stderr=True)
    say = (lambda text: console.print(text, style="dim", markup=False)) if console.is_terminal else (lambda text: None)
    plan = Plan(min(2, pairs), pairs, pair_s=seconds, more_s=seconds, seed=seed)
    try:
        given = certifying.certify(
            backend,
            against,
            limits,
            works,
            lambda: _judged(backend, rows, budget or limits.budget, seed),
            plan,
            say=say,
        )
    except BackendUnavailableError as error:
        typer.echo(f"{WORDS[Exit.UNAVAILABLE]} (exit {int(Exit.UNAVAILABLE)}): {error}", err=as_json)
        raise typer.Exit(Exit.UNAVAILABLE) from error
    code = {certifying.Word.PASS: Exit.OK, certifying.Word.NOTHING: Exit.NOTHING}.get(given.word, Exit.FINDING)
    if as_json:
        typer.echo(json.dumps({**given.plain(), "exit_code": int(code)}, indent=1))
        raise typer.Exit(code)
    for check in given.checks:
        typer.echo(f"{check.word:12} {check.name}: {check.said}")
        for subject in check.subjects:
            typer.echo(f"             {subject}")
    said = "certified" if code is Exit.OK else f"not certified ({given.word})"
    typer.echo(f"{WORDS[code]} (exit {int(code)}): {backend} beside {against}: {said}, {len(works)} cases measured")
    raise typer.Exit(code)


def _rows(op: Sequence[str], k: str) -> list[Any]:
    from opgauge import suites

    from . import generate

    rows = generate.select(suites.cases(), list(op), (), k)
    if not rows:
        raise CaseError("nothing to certify: no suite row is selected, see `opgauge list`")
    return list(rows)


def _works(gates: Any, rows: Sequence[Any], op: Sequence[str], k: str, model: Sequence[str], seed: int) -> list[Any]:
    """Key cases of the selected rows, models, else one case of each row."""
    from . import generate
    from .workloads import workload

    whole = not op and not k
    words = [generate.words_of(row) for row in rows]
    keys = [x for x in gates.keys if (whole if x.model else any(_words(x.case) <= w for w in words))]
    works = [x.work() for x in keys] + [workload(text, seed) for text in model]
    if works:
        return works
    ids: list[str] = []
    for row in rows[:12]:
        generate.explore(row, 1, seed, lambda text, _: ids.append(text))
    return [workload(text) for text in ids]


def _words(case: str) -> set[str]:
    """Operator and element types of a case id."""
    op, label = case.split("/")[:2]
    return {op, *label.split(",")}


def _judged(backend: str, rows: Sequence[Any], budget: int, seed: int) -> tuple[int, list[Any]]:
    """Raises: BackendUnavailableError."""
    from opgauge.reference_engine.errors import BackendUnavailableError
    from opgauge.reference_engine.types import Status

    from . import gate
    from . import run as supervisor

    records: list[Any] = []
    settings = supervisor.Settings((backend,), budget=budget, seed=seed, shrink=False)
    tasks = [supervisor.Task("row", (row.name,)) for row in rows]
    outcome = supervisor.run(tasks, settings, supervisor.default_jobs(), records.append)
    if outcome.interrupted:
        raise KeyboardInterrupt
    why = [info["unavailable"] for info in outcome.backends.values() if info.get("unavailable")]
    if why or (records and all(r.status is Status.UNAVAILABLE for r in records)):
        raise BackendUnavailableError(f"{backend}: {why[0] if why else records[0].message}")
    judged = [r for r in records if r.status not in (Status.INVALID, Status.UNSUPPORTED)]
    return len(judged), gate.findings(records)
