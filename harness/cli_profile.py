"""The command `profile`: where the time of a model goes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from opgauge.reference_engine.errors import BackendUnavailableError

from .cli_model import TIMEOUT, AsJson, Backends, Pairs, _console, _jobs

if TYPE_CHECKING:
    from .profile import Attribution

LONGEST = 8
ROWS = (
    ("end to end, least", "end_to_end_ns"),
    ("median", "median_ns"),
    ("middle half spans", "spread_ns"),
    ("operators", "kernel_ns"),
    ("data movement", "movement_ns"),
    ("runtime", "runtime_ns"),
)


def register(app: typer.Typer) -> None:
    app.command()(profile)


def profile(
    path: Annotated[str, typer.Argument(metavar="MODEL.onnx", help="a file, a built-in network or a real model")],
    backend: Backends = ["cpu", "onnxruntime"],  # noqa: B006
    dim: Pairs = [],  # noqa: B006
    value: Pairs = [],  # noqa: B006
    inputs: Annotated[str, typer.Option(metavar="FILE.npz", help="inputs by name")] = "",
    seed: Annotated[int, typer.Option(min=0, help="same seed, same data")] = 0,
    nodes: Annotated[int, typer.Option(min=0, help="how many of the longest nodes are shown")] = LONGEST,
    trace: Annotated[str, typer.Option(metavar="FILE", help="write a Chrome trace there")] = "",
    timeout: Annotated[float, typer.Option(min=1, help="seconds for each run of a model")] = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Where the time goes: end to end, operators, data movement, runtime; each node in the graph and alone.

    Figures of one machine at one moment: compare backends side by side, gate counts instead of times.
    """
    from . import models
    from . import profile as profiling
    from .cli import WORDS, Exit
    from .run import specs

    loaded = models.load(_jobs([path], False, dim, value, inputs, seed, False)[0])
    documents, missing = {}, []
    for spec in specs(backend):
        try:
            documents[spec.text] = profiling.measure(loaded, spec.text, timeout)
        except BackendUnavailableError as error:
            missing.append(str(error))
    found = [profiling.attribute(text, document) for text, document in documents.items()]
    if trace and documents:
        Path(trace).write_text(json.dumps(profiling.trace(documents)), encoding="utf-8")
    code = Exit.UNAVAILABLE if missing and not found else Exit.OK
    if as_json:
        attributions = [{**asdict(a), "nodes": documents[a.backend]["nodes"]} for a in found]
        print(json.dumps({"backends": attributions, "unavailable": missing}, indent=1))
        raise typer.Exit(code)
    console = _console()
    console.print(f"{loaded.title}", style="bold", markup=False)
    show(console, found, documents, nodes)
    for why in missing:
        console.print(f"! unavailable: {why}", markup=False, soft_wrap=True)
    if trace and documents:
        console.print(f"trace: {trace}", markup=False, soft_wrap=True)
    word = "MEASURED" if code is Exit.OK else WORDS[code]
    console.print(f"{word} (exit {int(code)}): {len(found)} backends", style="bold", markup=False)
    raise typer.Exit(code)


def show(
    console: Console, found: Sequence[Attribution], documents: Mapping[str, Mapping[str, Any]], nodes: int
) -> None:
    """Numbers side by side, the words, the longest nodes of each."""
    from rich.table import Table

    from . import profile as profiling

    grid = Table("", *(a.backend for a in found), box=None, header_style="bold")
    for title, field in ROWS:
        grid.add_row(title, *(f"{getattr(a, field) / 1e6:.3f} ms" for a in found))
    console.print(grid)
    for a in found:
        console.print(f"  {a.backend}: {a.said}", markup=False, soft_wrap=True)
        for node in profiling.longest(documents[a.backend], nodes):
            alone = f", {node['alone_ns'] / 1000:.1f} us alone" if node["alone_ns"] else ""
            inside = "" if node["in_graph_ns"] is None else f"{node['in_graph_ns'] / 1000:.1f} us in the graph"
            console.print(
                f"    {node['kind']} of {node['name']}: {(inside + alone).lstrip(', ')}", markup=False, soft_wrap=True
            )
