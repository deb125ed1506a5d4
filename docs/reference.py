"""A mkdocs hook: reference pages made from the code when the site is built, so that none can be out of date."""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer.main

HEADS = {
    "reference/commands.md": "Commands",
    "reference/settings.md": "Settings",
    "reference/backends.md": "Backends",
    "reference/operators.md": "Operators",
    "reference/python.md": "Python",
}


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def pages() -> dict[str, str]:
    made = {
        "reference/commands.md": commands(),
        "reference/settings.md": settings(),
        "reference/backends.md": backends(),
        "reference/operators.md": operators(),
        "reference/python.md": python(),
    }
    return {path: f"# {HEADS[path]}\n\n{text}\n" for path, text in made.items()}


def cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("\n", " ")


def table(heads: list[str], rows: list[list[object]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(cell, row))} |" for row in rows)])


def commands() -> str:
    """Every command with its options, as `--help` shows them."""
    from opgauge import cli

    return "\n\n".join(_command(name, each) for name, each in _leaves("opgauge", typer.main.get_command(cli.app)))


def _leaves(name: str, command: Any) -> list[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return [(name, command)]
    return [leaf for word, each in sorted(inner.items()) for leaf in _leaves(f"{name} {word}", each)]


def _command(name: str, command: Any) -> str:
    rows: list[list[object]] = []
    for each in command.params:
        if each.name == "help":
            continue
        words = " ".join(each.opts) if each.opts and each.opts[0].startswith("-") else each.metavar or each.name.upper()
        default = each.default() if callable(each.default) else each.default
        shown = "" if default in (None, "", [], (), False) else f"`{default}`"
        rows.append([f"`{words}`", getattr(each, "help", "") or "", shown])
    said = re.sub(r"^\x08\n((?:.+\n?)+)", r"```sh\n\1\n```\n", inspect.cleandoc(command.help or ""), flags=re.MULTILINE)
    return "\n\n".join([f"## {name}", said, table(["option", "meaning", "default"], rows) if rows else ""]).rstrip()


def settings() -> str:
    from opgauge.config import COMMANDS, KEYS, PREFIX

    rows: list[list[object]] = []
    for key in KEYS:
        users = ", ".join(f"`{name}`" for name, options in COMMANDS.items() if key.name in options)
        rows.append([f"`{key.name}`", f"`{PREFIX}{key.name.upper()}`", key.kind.__name__, key.meaning, users])
    said = "`[tool.opgauge]` in the nearest `pyproject.toml`, then the environment, then flags: the later wins.\n\n"
    return said + table(["key", "variable", "kind", "meaning", "commands"], rows)


def backends() -> str:
    from opgauge.backends import BACKENDS

    rows: list[list[object]] = [
        [f"`{name}`", row.summary, " ".join(f"`{o}=`" for o in row.options), row.policy]
        for name, row in sorted(BACKENDS.items())
    ]
    return table(["backend", "what it is", "options", "declared policy"], rows)


def operators() -> str:
    from opgauge import suites
    from opgauge.reference_engine.operators import OPERATORS

    labels: dict[tuple[str, str], list[str]] = {}
    for row in suites.cases():
        labels.setdefault((row.domain, row.op), []).append(row.label)
    rows: list[list[object]] = [
        [domain or "ai.onnx", op, len(labels.get((domain, op), [])), ", ".join(labels.get((domain, op), [])) or "-"]
        for domain, op in sorted(OPERATORS)
    ]
    said = f"{len(rows)} operators can be judged. A row of the suite is an operator with element types.\n\n"
    return said + table(["domain", "operator", "rows", "element types"], rows)


def python() -> str:
    """Signatures and docstrings of the public API."""
    from opgauge import api, onnx_backend, pytest_cases

    parts = ["Import from `opgauge.api`; `opgauge.check` and `opgauge.run` are the same functions."]
    parts += [_object(name, getattr(api, name)) for name in api.__all__]
    parts += [_object("opgauge_case: SuiteCase", pytest_cases.SuiteCase)]
    parts += [_object("opgauge.onnx_backend.CpuBackend", onnx_backend.CpuBackend)]
    return "\n\n".join(parts)


def _object(name: str, thing: Any) -> str:
    signature = str(inspect.signature(thing)) if inspect.isfunction(thing) else ""
    lines = [f"## {name}", f"```python\n{thing.__name__}{signature}\n```", inspect.getdoc(thing) or ""]
    if inspect.isclass(thing):
        for word, member in vars(thing).items():
            inner = getattr(member, "fget", member)
            inner = getattr(inner, "__func__", inner)
            if not word.startswith("_") and inspect.isfunction(inner) and inner.__doc__:
                lines.append(f"- `{word}`: {inspect.getdoc(inner)}")
    return "\n\n".join(lines)
