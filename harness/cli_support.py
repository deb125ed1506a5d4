"""The command `opgauge support`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from opgauge import suites
from opgauge.backends import resolve

from . import store


def register(app: typer.Typer) -> None:
    app.command()(support)


def support(
    backend: Annotated[str, typer.Argument(help="onnxruntime, onnxruntime==1.24.4, path.py:run ...")],
    op: Annotated[list[str], typer.Option(help="operator, repeatable")] = [],  # noqa: B006
    dtype: Annotated[list[str], typer.Option(help="element type in any input of a row, repeatable")] = [],  # noqa: B006
    k: Annotated[str, typer.Option("-k", help="whole words joined by and, or, not")] = "",
    opset: Annotated[list[int], typer.Option(min=1, help="repeatable; 13, 17, 19, 21, 23 otherwise")] = [],  # noqa: B006
    cases: Annotated[int, typer.Option(min=1, max=4, help="cases asked for each row and opset")] = 1,
    baseline: Annotated[str, typer.Option(metavar="FILE", help="earlier --json: what is lost is a finding")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """What a backend takes: operator x element types x opset, found by asking; results are not judged.

    Exit 1 where a form of --baseline is not taken any more, 3 where the backend cannot be loaded.
    """
    from . import generate
    from . import support as matrix
    from .cli import Exit, print_json
    from .client import Client

    rows = generate.select(suites.cases(), op, dtype, k)
    known = store.strict_json(Path(baseline).read_text("utf-8"), baseline) if baseline else None
    with Client(resolve(backend)) as client:
        info = client.info
        if trouble := info.get("unavailable") or info.get("error"):
            typer.echo(f"{backend}: {trouble}", err=True)
            raise typer.Exit(Exit.UNAVAILABLE)
        show = (lambda _: None) if as_json else _show
        forms = matrix.probe(client, rows, sorted(set(opset)) or matrix.OPSETS, cases, show=show)
    findings = matrix.compare(known, forms, baseline) if known is not None else []
    code = Exit.NOTHING if not forms else Exit.FINDING if findings else Exit.OK
    if as_json:
        found = [vars(finding) for finding in findings]
        print_json({**matrix.document(backend, info, forms), "findings": found})
        raise typer.Exit(code)
    for finding in findings:
        typer.echo(f"lost: {finding.subject}: {finding.message}")
    words = Counter(_word(form.opsets) for form in forms)
    told = ", ".join(f"{count} {word}" for word, count in words.most_common())
    typer.echo(f"support (exit {int(code)}): {backend} {info.get('version', '')}: {len(forms)} forms: {told}")
    raise typer.Exit(code)


def _word(opsets: dict[int, str]) -> str:
    found = set(opsets.values())
    return found.pop() if len(found) == 1 else "by opset" if found else "not asked"


def _show(form: object) -> None:
    from .support import Form

    assert isinstance(form, Form)
    asked = " ".join(f"{opset}:{word}" for opset, word in form.opsets.items())
    name = f"{form.domain}::{form.operator}" if form.domain else form.operator
    typer.echo(f"{name}\t{form.dtypes}\t{asked}\t{form.message[:120]}")
