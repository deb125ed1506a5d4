"""The command on failing models: reduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from opgauge.reference_engine.errors import CaseError

AsJson = Annotated[bool, typer.Option("--json", help="print JSON; progress goes to standard error")]
CHECK = "opgauge.check"
NO_CHECK = "--check must be the last option, followed by a command, as in: --check python check.py {model}"


class ReduceCommand(TyperCommand):
    """Everything after --check is the command that judges."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--check" in args:
            at = args.index("--check")
            args, ctx.meta[CHECK] = args[:at], args[at + 1 :]
            if not ctx.meta[CHECK]:
                raise CaseError(NO_CHECK)
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    app.command(cls=ReduceCommand)(reduce)


def reduce(
    context: typer.Context,
    path: Annotated[str, typer.Argument(metavar="MODEL.onnx", help="a file, or the name of a built-in network")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="the reduced model; its inputs beside it, .npz")
    ] = Path("reduced.onnx"),
    backend: Annotated[str, typer.Option("--backend", "-b", help="judged against the reference, without --check")] = "",
    check: Annotated[
        bool, typer.Option("--check", help="CMD ...: exit 0 is good; {model}, {inputs} are paths")
    ] = False,
    mode: Annotated[str, typer.Option(help="bisect, or linear where failures come and go with the length")] = "bisect",
    min_good: Annotated[str, typer.Option(metavar="FILE", help="the smallest part that was tried and is good")] = "",
    fail_codes: Annotated[list[int], typer.Option("--fail-codes", help="only these exit codes are failures")] = [],  # noqa: B006
    no_reduce_outputs: Annotated[bool, typer.Option("--no-reduce-outputs", help="keep the end of the model")] = False,
    no_reduce_inputs: Annotated[bool, typer.Option("--no-reduce-inputs", help="keep its beginning")] = False,
    dim: Annotated[list[str], typer.Option(metavar="NAME=N", help="binds a dimension (also INPUT.AXIS=N)")] = [],  # noqa: B006
    value: Annotated[list[str], typer.Option(metavar="INPUT=N", help="an input of one number")] = [],  # noqa: B006
    inputs: Annotated[str, typer.Option(metavar="FILE.npz", help="inputs by name")] = "",
    seed: Annotated[int, typer.Option(min=0, help="same seed, same data")] = 0,
    timeout: Annotated[float, typer.Option(min=1, help="seconds for one try")] = 300.0,
    as_json: AsJson = False,
) -> None:
    """Reduce a failing model to the fewest nodes that fail for the same reason; exit 5 where it does not fail.

    Judged by --backend against the reference, in process and node by node, or by a command: everything after --check
    is that command, which ends with 0 for a good model.
    """
    from opgauge.backends import resolve

    from . import reduce as reducer
    from .cli import Exit
    from .cli_model import _jobs
    from .client import Client
    from .models import load

    command = context.meta.get(CHECK)
    if bool(command) == bool(backend):
        raise CaseError("say who judges: --backend B, or --check CMD ... as the last option, and not both")
    if mode not in reducer.MODES:
        raise CaseError(f"--mode {mode!r}: there is {', '.join(reducer.MODES)}")
    loaded = load(_jobs([path], False, dim, value, inputs, seed, False)[0])

    def say(text: str) -> None:
        typer.echo(text, err=True)

    def reduced(fails: reducer.Fails) -> reducer.Reduced:
        return reducer.reduce(loaded, fails, mode, not no_reduce_outputs, not no_reduce_inputs, say)

    try:
        if command:
            found = reduced(reducer.on_command(command, fail_codes, timeout))
        else:
            with Client(resolve(backend), timeout) as client:
                found = reduced(reducer.on_backend(client, seed))
    except reducer.NoFailureError as error:
        typer.echo(json.dumps({"error": str(error)}) if as_json else f"NOTHING RAN (exit 5): {error}")
        raise typer.Exit(Exit.NOTHING) from None
    saved = reducer.save(found.part, output)
    if min_good and found.good is not None:
        reducer.save(found.good, Path(min_good))
    told = reducer.describe(found)
    if as_json:
        typer.echo(json.dumps({**told, "model": str(saved[0]), "inputs_file": str(saved[1])}, indent=1))
        return
    for node in told["nodes"]:
        typer.echo(f"{node['index']:04d} {node['op']} {node['name'] or node['outputs'][0]}")
    typer.echo(
        f"{len(told['nodes'])} of {told['nodes_before']} nodes fail alike ({found.reason}), {found.tries} tries: "
        f"{saved[0]}, inputs {saved[1].name}"
    )
