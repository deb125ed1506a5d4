"""Settings: `[tool.opgauge]` of the nearest pyproject.toml < OPGAUGE_* < flags.

Flags win because these values are only the defaults of the command line's own options.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from opgauge.reference_engine.errors import OpgaugeError

PREFIX = "OPGAUGE_"
BASELINES = "OPGAUGE_BASELINES"  # expectations.load reads it in every process of a run


class ConfigError(OpgaugeError):
    """A setting that does not exist or has a value of the wrong kind."""


class Key(NamedTuple):
    """A setting: how text becomes its value, and what it is called in words."""

    name: str
    convert: Callable[[str], Any]
    kind: type
    meaning: str


KEYS = (
    Key("backend", str.split, list, "backends of a run, separated by blanks in the environment"),
    Key("suite", str.split, list, "suites of a run"),
    Key("op", str.split, list, "operators of a run"),
    Key("dtype", str.split, list, "element types of a run"),
    Key("require", str.split, list, "backends that must be available"),
    Key("k", str, str, "expression that selects rows"),
    Key("budget", int, int, "cases per row"),
    Key("seed", int, int, "seed of the cases"),
    Key("jobs", int, int, "reference workers, 0 for one per core or as many as the work is worth"),
    Key("timeout", float, float, "seconds per case and backend"),
    Key("out", str, str, "folder of the runs"),
    Key("baselines", str, str, "folder of your expectations.toml, beside the shipped one"),
)
NAMES = {key.name: key for key in KEYS}


# Which settings are options of which command.
COMMANDS: dict[str, set[str]] = {
    "run": {key.name for key in KEYS} - {"baselines"},
    "repro": {"backend", "timeout"},
    "list": {"seed"},
    "sensitivity": {"seed"},
}


class Setting(NamedTuple):
    value: Any
    origin: str


def project_file(start: Path) -> Path | None:
    """The nearest pyproject.toml at or above a folder."""
    return next((f for d in (start, *start.parents) if (f := d / "pyproject.toml").is_file()), None)


def from_project(path: Path) -> dict[str, Setting]:
    """Raises: ConfigError naming the file, the key and what was expected."""
    try:
        table: Any = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    for name in ("tool", "opgauge"):
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} = {table!r:.80}: expected a table")
    found = {}
    for name, value in table.items():
        key = NAMES.get(name)
        if key is None:
            raise ConfigError(f"{path}: [tool.opgauge] has no key {name!r}; there are {', '.join(NAMES)}")
        if key.kind is float and isinstance(value, int):
            value = float(value)
        strings = not isinstance(value, list) or all(isinstance(v, str) for v in value)
        if not isinstance(value, key.kind) or isinstance(value, bool) or not strings:
            wanted = "a list of strings" if key.kind is list else key.kind.__name__
            raise ConfigError(f"{path}: [tool.opgauge] {name} = {value!r}: expected {wanted}")
        if name in ("baselines", "out"):
            value = str(path.parent / str(value))
        found[name] = Setting(value, f"{path} [tool.opgauge]")
    return found


def from_environment(environment: Mapping[str, str]) -> dict[str, Setting]:
    """Only names of KEYS: other OPGAUGE_ variables belong to other programs. Raises: ConfigError."""
    found = {}
    for key in KEYS:
        name = PREFIX + key.name.upper()
        if text := environment.get(name):
            try:
                found[key.name] = Setting(key.convert(text), name)
            except ValueError as error:
                raise ConfigError(f"{name}={text!r}: expected {key.kind.__name__}") from error
    return found


def settings(start: Path | None = None, environment: Mapping[str, str] | None = None) -> dict[str, Setting]:
    """Everything that is set, each with its origin. Raises: ConfigError."""
    path = project_file((start or Path.cwd()).resolve())
    project = from_project(path) if path else {}
    return project | from_environment(os.environ if environment is None else environment)


def defaults() -> dict[str, dict[str, Any]]:
    """For each command the settings that are options of it: what click calls a default map. Raises: ConfigError.

    The folder of baselines is no option: every process of a run finds it in its environment.
    """
    found = settings()
    if "baselines" in found:
        os.environ[BASELINES] = found["baselines"].value
    return {
        command: {name: setting.value for name, setting in found.items() if name in options}
        for command, options in COMMANDS.items()
    }


def shown(context: Any) -> str:
    """`budget = 5    flag`: every effective setting of a command (its click context) and where it comes from."""
    found, lines = settings(), []
    for key in KEYS:
        setting, value = found.get(key.name), context.params.get(key.name)
        if key.name not in context.params:
            value = setting.value if setting else None
        given = getattr(context.get_parameter_source(key.name), "name", "") == "COMMANDLINE"
        origin = "flag" if given else setting.origin if setting else "default"
        text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value or "")
        lines.append(f"{key.name:<10} {text or '-':<30} {origin}")
    return "\n".join(lines)
