"""A run over whole models: what is asked, what is left of a run that was cut short, and its journal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.types import FINDINGS, Record

from . import resume, store
from . import run as supervisor
from .model_jobs import COUNTER, UNOPTIMISED, Job

PERFORM = "opgauge.models:perform"


class Asked(NamedTuple):
    """`jobs` in all, those `waiting`, the `records` of the others; `backends` that are judged, not only counted."""

    jobs: list[Job]
    waiting: list[Job]
    backends: tuple[str, ...]
    settings: supervisor.Settings
    records: list[Record]
    path: Path | None = None


class Done(NamedTuple):
    """How it ended; errors of `outcome` name the model that they are about."""

    records: list[Record]
    outcome: supervisor.Outcome
    path: Path

    def judged(self, backends: Sequence[str]) -> list[Record]:
        """Nodes and regions that were held against a set."""
        return [r for r in self.records if r.backend in backends and r.elements]

    def findings(self, backends: Sequence[str]) -> list[Record]:
        return [r for r in self.records if r.backend in backends and r.status in FINDINGS]


def fresh(jobs: Sequence[Job], backends: Sequence[str], timeout_s: float) -> Asked:
    made = [replace(job, unoptimised=UNOPTIMISED in backends) for job in jobs]
    texts = tuple(dict.fromkeys([UNOPTIMISED, *backends, COUNTER]))
    return Asked(made, made, tuple(backends), supervisor.Settings(texts, timeout_s=timeout_s), [])


def left(home: Path) -> Asked:
    """What the last run in `home` has not judged; a model that was cut short is judged again.

    Raises: BaselineError where the last run was not one over models.
    """
    found = resume.load(store.latest(home))
    if any(kind != "model" for kind, *_ in found.work):
        raise BaselineError(f"{found.path} is no run of `opgauge model`: go on with `opgauge run --resume`")
    jobs = [Job(**json.loads(name)) for _, *names in found.work for name in names]
    waiting = [Job(**json.loads(name)) for task in found.tasks for name in task.names]
    helpers = {COUNTER} if any(job.unoptimised for job in jobs) else {COUNTER, UNOPTIMISED}
    backends = tuple(text for text in found.settings.backends if text not in helpers)
    again = {job.title for job in waiting}
    records = [r for r in found.records if r.case.split("/")[1] not in again]
    return Asked(jobs, waiting, backends, found.settings, records, found.path)


def perform(
    asked: Asked,
    home: Path,
    done: Callable[[Job, Sequence[Record]], None],
    started: Callable[[str], None] = lambda _: None,
    meta: Callable[[Done], dict[str, Any]] = lambda _: {},
) -> Done:
    """Judge what waits; `done` gets each model with its records as soon as it is over.

    `started` hears which node comes, `meta` says what a report tells of the whole run.
    """
    tasks = [supervisor.Task("model", (job.text(),)) for job in asked.waiting]
    records, words = list(asked.records), {job.title: job.name or job.path for job in asked.jobs}
    with store.reopen(asked.path) if asked.path else store.create(home) as journal:
        if asked.path is None:
            run = {"argv": sys.argv[1:], "settings": vars(asked.settings), "work": resume.work(tasks)}
            counted = [text for text in asked.settings.backends if text not in asked.backends]
            journal.append("run", {**run, "counted": counted})

        def on_record(record: Record) -> None:
            record = replace(record, detail={**record.detail, "model": words.get(record.case.split("/")[1], "")})
            journal.record(record)
            records.append(record)

        def on_task(task: supervisor.Task) -> None:
            job = Job(**json.loads(task.names[0]))
            mine = of(records, job)
            if mine:  # a model that could not be fetched is tried again
                journal.append("done", {"task": [task.kind, *task.names]})
            done(job, mine)

        outcome = supervisor.run(tasks, asked.settings, 1, on_record, on_task, started, PERFORM)
        errors = [_plain(error, asked.waiting) for error in outcome.errors]
        ended = Done(records, outcome._replace(errors=errors), journal.path)
        about = meta(ended)
        code = about.get("exit_code", 0)
        journal.append("end", {"exit_code": code, "errors": errors, "backends": outcome.backends, "meta": about})
    return ended


def of(records: Sequence[Record], job: Job) -> list[Record]:
    return [r for r in records if r.case.startswith(f"model/{job.title}/")]


def _plain(error: str, jobs: Sequence[Job]) -> str:
    """With the model's name for what was asked of it."""
    for job in jobs:
        error = error.replace(job.text(), job.title)
    return error
