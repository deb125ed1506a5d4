"""Command on stability: soak."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    app.command()(soak)


def soak(
    case: Annotated[list[str], typer.Argument(metavar="CASE|MODEL", help="case ids, model files, built-in networks")],
    backend: Annotated[list[str], typer.Option("--backend", "-b", help="repeatable")] = ["cpu"],  # noqa: B006
    runs: Annotated[int, typer.Option(min=60, help="calls in one process")] = 1000,
    prometheus: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also as text for node-exporter, name it *.prom")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="same seed, same data")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Run cases many times in one process: P50, P99 and whether it holds, memory growth, launch cost, fallbacks.

    Exit 1 where memory grows, a backend falls back, or the tail wanders while the machine does not; limits in [soak]
    of gates.toml. A tail on a machine that wanders itself reads 'cannot tell', which is no finding. Exit 5 where
    nothing could be run.
    """
    from opgauge.reference_engine.errors import BackendUnavailableError

    from . import latency_gate
    from . import soak as soaking
    from .cli import WORDS, Exit, terminal
    from .pairs import MeasureError
    from .workloads import Side, workload

    own = Path("baselines") / "gates.toml"
    gates = latency_gate.read(own if own.is_file() else None)
    limits = latency_gate.limits_of(soaking.Limits, "soak", gates.sections.get("soak", {}))
    console = terminal(stderr=True)
    say = (lambda text: console.print(text, style="dim", markup=False)) if console.is_terminal else (lambda text: None)
    done, refused = [], []
    for text in case:
        work = workload(text, seed)
        for b in backend:
            try:
                done.append(soaking.soak(work, Side(b), limits, runs, say, seed))
            except (MeasureError, BackendUnavailableError) as error:
                refused.append(f"{work.name} on {b}: {error}")
    found = [f"{s.case} on {s.backend}: {text}" for s in done for text in s.findings]
    code = Exit.FINDING if found else Exit.OK if done else Exit.NOTHING
    if prometheus is not None and done:
        soaking.write_prometheus(done, prometheus)
    if as_json:
        rows = {"soaked": [s.plain() for s in done], "refused": refused, "exit_code": int(code)}
        typer.echo(json.dumps(rows, indent=1))
        raise typer.Exit(code)
    for s in done:
        typer.echo(_line(s))
    for line in [*(f"not run: {r}" for r in refused), *found]:
        typer.echo(line)
    typer.echo(f"{WORDS[code]} (exit {int(code)}): {len(done)} soaked, {len(refused)} not run, {len(found)} findings")
    raise typer.Exit(code)


WORDS_OF_TAIL = {"same": "P99 holds", "slower": "P99 wanders", "cannot tell": "cannot tell P99"}


def _line(s: Any) -> str:
    parts = [
        f"P50 {s.p50_ns / 1e3:.1f} us, P99 {s.p99_ns / 1e3:.1f} us",
        f"{WORDS_OF_TAIL[s.call]}: {s.p99_off:.0%} off its median at most, the machine's own loop {s.noise_off:.0%}",
        f"memory {s.grown_bytes / 2**20:+.2f} MiB in 1,000 runs",
        f"first run {s.first_run_ns / 1e6:.1f} ms",
        f"launch {s.launch_ns / 1e3:.1f} us" if s.launch_ns is not None else "launch not told",
        f"{s.fallbacks} fallbacks",
    ]
    parts += [f"fragmentation {s.fragmentation:.0%}"] if s.fragmentation is not None else []
    if s.plan_hit_rate is not None:
        parts.append(f"plans {s.plan_hit_rate:.1%} hits, {s.plan_evictions or 0} evicted")
    return f"{s.case} on {s.backend}, {s.runs} runs: " + "; ".join(parts)
