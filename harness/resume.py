"""Which part of a run is left to do, and where: continue a journal, take one of n parts, put parts together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple

from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.types import Record, Status

from . import store
from .costs import divided
from .costs import load as load_costs
from .run import Settings, Task

# What parts of one run must have in common.
SHARED = ("backends", "budget", "seed")


class Resumed(NamedTuple):
    """A journal that was not finished: its settings, its records so far, the tasks that are left, and all of them."""

    path: Path
    settings: Settings
    tasks: list[Task]
    records: list[Record]
    work: list[tuple[str, ...]]


def work(tasks: Sequence[Task]) -> list[list[str]]:
    """Tasks as a journal keeps them."""
    return [[task.kind, *task.names] for task in tasks]


def settings_of(run: Mapping[str, Any], path: Path) -> Settings:
    """Raises: BaselineError where the journal does not say how it was made."""
    try:
        values = dict(run["settings"])
        for field in fields(Settings):
            if field.name not in values and field.default is not MISSING:
                continue
            value = values[field.name] = _tuples(values[field.name])
            wanted: Any = tuple if field.default is MISSING else type(field.default)
            if not isinstance(value, (float, int) if wanted is float else wanted):
                raise TypeError(f"{field.name} = {value!r:.80}")
        if not all(isinstance(text, str) for text in values["backends"]):
            raise TypeError(f"backends = {values['backends']!r:.80}")
        return Settings(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise BaselineError(f"{path}: its run entry cannot be read ({error}): start a new run") from error


def _tuples(value: Any) -> Any:
    """JSON has lists where settings have tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _list(value: Any, path: Path) -> list[Any]:
    if not isinstance(value, list):
        raise BaselineError(f"{path}: {value!r:.80} is no list of work: the journal is damaged, start a new run")
    return value


def _words(value: Any, path: Path) -> tuple[str, ...]:
    """A task as `work` wrote it. Raises: BaselineError."""
    words = _list(value, path)
    if not words or not all(isinstance(word, str) for word in words):
        raise BaselineError(f"{path}: {value!r:.80} is no task: the journal is damaged, start a new run")
    return tuple(words)


def load(path: Path) -> Resumed:
    """What is left of a run: whole tasks, and of tasks in progress the cases without a verdict of every backend.

    Raises: BaselineError.
    """
    run: dict[str, Any] = {}
    records: list[Record] = []
    done: set[tuple[str, ...]] = set()
    for entry in store.entries(path):
        kind = entry.pop("kind")
        if kind == "run":
            run = entry
        elif kind == "record":
            records.append(store.record_from_dict(entry))
        elif kind == "done":
            done.add(_words(entry.get("task"), path))
    if "work" not in run:
        raise BaselineError(f"{path} is no journal of `opgauge run`: there is nothing to go on with")
    settings = settings_of(run, path)
    judged: dict[str, set[str]] = defaultdict(set)
    for record in records:
        judged[record.case].add(record.backend)
    finished = {case for case, seen in judged.items() if seen >= set(settings.backends)}
    by_row: dict[str, list[str]] = defaultdict(list)
    for case in sorted(finished):
        by_row[_row_of(case)].append(case)
    left = []
    asked = [_words(words, path) for words in _list(run.get("work"), path)]
    for kind, *names in asked:
        if (kind, *names) not in done:
            skip = [case for name in names for case in by_row[name]] if kind == "row" else ()
            left.append(Task(kind, tuple(names), tuple(skip)))
    return Resumed(path, settings, left, [r for r in records if not _again(r, left, finished)], asked)


def _row_of(case: str) -> str:
    return "/".join(case.rpartition("::")[2].split("/")[:2])


def _again(record: Record, left: Sequence[Task], finished: Collection[str]) -> bool:
    """Is the record's case judged again: in flight when the run ended, or of a task that is done in one piece."""
    if record.suite == "operators":
        return record.case not in finished
    suites = {"witness": "witness", "node": "onnx-node"}
    return record.suite in {suites[task.kind] for task in left if task.kind in suites}


def part_of(text: str) -> tuple[int, int]:
    """(i, n) of `i/n`, from 1 to n. Raises: BaselineError."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    part, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part <= count:
        raise BaselineError(f"--shard {text!r} is not i/n with 1 <= i <= n")
    return part, count


def shard(tasks: Sequence[Task], text: str, budget: int = 1, costs: Mapping[str, float] | None = None) -> list[Task]:
    """Part `i/n`, balanced by recorded cost: the same for the same tasks on every machine. Raises: BaselineError."""
    part, count = part_of(text)
    return divided(tasks, count, load_costs() if costs is None else costs, budget)[part - 1]


def _whole(paths: Sequence[Path], runs: Sequence[Mapping[str, Any]]) -> None:
    """Raises: BaselineError where a part is missing, is there twice, or was not finished."""
    shards = [str(run.get("shard") or "") for run in runs]
    for path, text in zip(paths, shards, strict=True):
        if left := load(path).tasks:
            raise BaselineError(f"{path}: {len(left)} tasks are not done, {left[0]} first: finish it with --resume")
        if text and shards.count(text) > 1:
            raise BaselineError(f"{path}: part {text} is there twice")
    counts = {part_of(text)[1] for text in shards if text}
    if len(counts) > 1 or (counts and "" in shards):
        raise BaselineError(f"parts {', '.join(text or 'the whole' for text in shards)} are not of one division")
    for count in counts:
        if missing := [f"{i}/{count}" for i in range(1, count + 1) if f"{i}/{count}" not in shards]:
            raise BaselineError(f"part {missing[0]} is missing: what it holds was not judged")


def merge(paths: Sequence[Path]) -> tuple[dict[str, Any], list[Record]]:
    """The run entry and all records of the parts of one run, sorted, each case and backend once.

    Raises: BaselineError where the parts are not of one run, one of them is missing or unfinished, or two of them
    judged a case differently.
    """
    run: dict[str, Any] = {}
    found: dict[tuple[str, str, str], Record] = {}
    read = [store.read(path) for path in paths]
    for path, contents in zip(paths, read, strict=True):
        mine = settings_of(contents.run, path)
        if run:
            theirs = settings_of(run, paths[0])
            differ = [name for name in SHARED if getattr(mine, name) != getattr(theirs, name)]
            if differ:
                raise BaselineError(f"{path} is of another run than {paths[0]}: {', '.join(differ)} differ")
        run = run or contents.run
        for record in contents.records:
            key = (record.suite, record.case, record.backend)
            known = found.setdefault(key, record)
            if known.status is not record.status:
                # A late death is said after the verdict: the worse word stands. Anything else is a contradiction.
                if Status.CRASH not in (known.status, record.status):
                    raise BaselineError(f"{path}: {record.case} reads {record.status}, elsewhere {known.status}")
                found[key] = record if record.status is Status.CRASH else known
    _whole(paths, [contents.run for contents in read])
    return run, [found[key] for key in sorted(found)]
