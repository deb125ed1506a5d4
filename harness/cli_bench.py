"""Command on speed: bench."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from opgauge.reference_engine.errors import CaseError

Backends = Annotated[list[str], typer.Option("--backend", "-b", help="the first is the base of the ratios")]


def register(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    case: Annotated[
        list[str], typer.Argument(metavar="CASE|MODEL", help="case ids, saved cases, model files, built-in networks")
    ] = [],  # noqa: B006
    backend: Backends = ["cpu", "onnxruntime"],  # noqa: B006
    op: Annotated[list[str], typer.Option("--op", help="key cases of gates.toml with this operator")] = [],  # noqa: B006
    profiles: Annotated[
        bool, typer.Option("--profiles", help="zero, sparse, subnormal, saturating, NaN, wide data on each backend")
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="our kernels against onnxruntime, numpy, ONNX's reference; CASE: words")
    ] = False,
    rounds: Annotated[int, typer.Option(min=9, help="interleaved rounds of --peers")] = 9,
    pairs: Annotated[int, typer.Option(min=2, help="fresh process pairs at most")] = 12,
    seconds: Annotated[float, typer.Option(min=0.02, help="measuring seconds of a pair")] = 0.5,
    stages: Annotated[bool, typer.Option(help="operators, movement, first run and memory too")] = True,
    seed: Annotated[int, typer.Option(min=0, help="same seed, same data")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Time cases on backends, interleaved in fresh processes: ratios with their intervals, never a bare number.

    Exit 1 with --profiles where the speed of a backend changes with the data, 5 where nothing could be timed.
    """
    from . import bench as measuring
    from .cli import WORDS, Exit, terminal
    from .latency import Plan

    if peers:
        _peers(case, rounds, as_json)
    works = _works(case, op, seed)
    plan = Plan(min(4, pairs), pairs, pair_s=seconds, more_s=seconds, skip_unchanged=False, seed=seed)
    console = terminal(stderr=True)
    say = (lambda text: console.print(text, style="dim", markup=False)) if console.is_terminal else (lambda text: None)
    if profiles:
        rows = [r for w in works for b in backend for r in measuring.by_data(w, b, plan, say)]
        flagged = [r for r in rows if measuring.moved(r)]
        timed = any(r.estimate.pairs for r in rows)
    else:
        rows = list(measuring.table(works, backend, plan, stages, say))
        flagged, timed = [], any(r.estimate.pairs or r.stages for r in rows)
    code = Exit.FINDING if flagged else Exit.OK if timed else Exit.NOTHING
    if as_json:
        found = {"rows": [_plain(r) for r in rows], "flagged": [f"{r.case} on {r.backend}" for r in flagged]}
        typer.echo(json.dumps({**found, "exit_code": int(code)}, indent=1))
        raise typer.Exit(code)
    for row in rows:
        typer.echo(_line(row))
    for row in flagged:
        typer.echo(f"data-dependent: {row.backend} takes {row.estimate.change:+.0%} on {row.case} data")
    typer.echo(f"{WORDS[code]} (exit {int(code)}): {len(works)} cases, {len(rows)} rows, {len(flagged)} flagged")
    raise typer.Exit(code)


def _peers(words: Sequence[str], rounds: int, as_json: bool) -> NoReturn:
    """The table of --peers; exit 0 whatever the ratios are: goals depend on the CPU and its load."""
    from . import peers as against
    from .cli import WORDS, Exit, print_json, terminal

    console = terminal(stderr=True)
    rows: list[against.Against] = []
    cases = against.select([word for text in words for word in text.split()])
    for row in against.measure_all(cases, rounds, lambda text: console.print(text, style="dim", markup=False)):
        rows.append(row)
        if not as_json:
            goal = f", asked for {row.goal:g}{'' if row.met else ': missed'}" if row.goal else ""
            typer.echo(
                f"{row.section} {row.label}: {row.peer} / ours {row.ratio:.2f} ({row.low:.2f} to {row.high:.2f}), "
                f"{row.ours_ns / 1e3:.1f} us against {row.peer_ns / 1e3:.1f} us{goal}"
            )
    if as_json:
        print_json({"rows": [{**dataclasses.asdict(row), "met": row.met} for row in rows], "exit_code": 0})
    else:
        goals = [row.met for row in rows if row.goal]
        typer.echo(f"{WORDS[Exit.OK]} (exit 0): {len(rows)} cases, {sum(goals)} of {len(goals)} goals met")
    raise typer.Exit(Exit.OK)


def _works(case: Sequence[str], op: Sequence[str], seed: int) -> list[Any]:
    """Raises: CaseError where nothing is named or nothing is found."""
    from . import latency_gate
    from .workloads import workload

    works = [workload(text, seed) for text in case]
    if op:
        keys = [k for k in latency_gate.read().keys if k.case.partition("/")[0] in op]
        if not keys:
            known = sorted({k.case.partition("/")[0] for k in latency_gate.read().keys if k.case})
            raise CaseError(f"--op {' '.join(op)}: no key case; there are {', '.join(known)}. Give a case id instead")
        works += [k.work() for k in keys]
    if not works:
        raise CaseError("nothing to time: give a case id, a model, a built-in network, or --op OPERATOR")
    return works


def _plain(row: Any) -> dict[str, Any]:
    from . import latency_gate

    return {
        "case": row.case,
        "backend": row.backend,
        "estimate": latency_gate.plain(row.estimate) if row.estimate.pairs else None,
        "reason": row.estimate.reason,
        "stages": row.stages.plain() if row.stages else None,
    }


def _line(row: Any) -> str:
    from . import stages

    e = row.estimate
    times = f"; {stages.text(row.stages)}" if row.stages else ""
    if not e.pairs:
        return f"{row.case} on {row.backend}: {e.reason}{times}"
    low, high = math.exp(e.low), math.exp(e.high)
    ratio = f"{math.exp(e.log_ratio):.3f} x ({low:.3f} to {high:.3f})"
    return f"{row.case} on {row.backend}: {ratio}, {e.verdict}, {e.pairs} pairs{times}"
