"""A bisect's question, its notebook and its report: builds, answers and pairs are asked for once and kept on disk."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opgauge.reference_engine.errors import BackendUnavailableError, BaselineError, CaseError

from . import store
from .bisect_git import Builds, UnbuildableError, backend_in, build
from .bisect_probe import LATENCY, Answer, Subject
from .repository import title

HOME = Path(".opgauge") / "bisect"
CULPRIT, NO_STEP, CANNOT_TELL, UNAVAILABLE = "culprit", "no step", "cannot tell", "unavailable"
GIT, RELEASES, FLAGS = "git", "releases", "flags"
Measure = Callable[[str, str], float]  # log(time of the second backend / time of the first), one fresh pair
Tell = Callable[[str], None]
Ask = Callable[[Subject, str, str, float], Answer]  # subject, what, backend, seconds


@dataclass(frozen=True)
class Question:
    """What changed, and where to look. `places` are ids of commits or releases, the good end first.

    `smallest` is the smallest step of a latency that counts, `confidence` the posterior that is asked for,
    `pairs` the most fresh pairs of one build.
    """

    what: str
    where: str
    backend: str
    subject: Subject
    places: tuple[str, ...]
    repository: str = ""
    first_parent: bool = False
    words: tuple[str, ...] = ()
    venv: bool = False
    python: str = ""
    package: str = ""
    timeout_s: float = 20.0
    build_timeout_s: float = 1800.0
    confidence: float = 0.99
    smallest: float = 0.02
    pairs: int = 24


def question_of(entry: Mapping[str, Any]) -> Question:
    """Raises: BaselineError for what is no question."""
    try:
        told: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
        told["subject"] = Subject(**told["subject"])
        return Question(**told)
    except (KeyError, TypeError) as error:
        raise BaselineError(f"not the journal of a bisect: {error}") from error


class Side(NamedTuple):
    """One side of a culprit: its place, what that is called, and what it gave."""

    place: str
    title: str
    value: str
    message: str


@dataclass(frozen=True)
class Found:
    """A change: the first place with the new value, the last with the old; `also` could not be told from the first."""

    place: str
    title: str
    before: Side
    after: Side
    also: tuple[str, ...]
    reproduce: str


@dataclass(frozen=True)
class Report:
    """How a bisect ended. `result` is `culprit`, `no step`, `cannot tell` or `unavailable`, with a reason."""

    result: str
    reason: str
    what: str
    found: tuple[Found, ...] = ()
    effect: float = 0.0
    interval: tuple[float, float] = (0.0, 0.0)
    confidence: float = 1.0
    looks: int = 0
    builds: int = 0
    unbuildable: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        told = asdict(self)
        told["found"] = [{**asdict(f), "before": f.before._asdict(), "after": f.after._asdict()} for f in self.found]
        return told


# ---- what was asked before is not asked again


class Notebook:
    """Builds, answers and pairs of a question, each asked once and kept in the journal."""

    def __init__(
        self, question: Question, journal: store.Journal, tell: Tell, ask: Ask, measure: Measure | None = None
    ) -> None:
        self.question, self.tell = question, tell
        self._journal, self._ask, self._measure = journal, ask, measure
        self._answers: dict[str, Answer] = {}
        self._pairs: dict[str, list[float]] = {}
        self._failed: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._used: dict[str, int] = {}
        self.builds = self.looks = 0
        self.began = time.monotonic()
        for entry in store.entries(journal.path):
            self._recall(entry)

    def _recall(self, entry: Mapping[str, Any]) -> None:
        place = str(entry.get("place", ""))
        if entry["kind"] == "answer":
            self._answers[place] = Answer(entry["value"], entry["message"])
        elif entry["kind"] == "pair":
            self._pairs.setdefault(place, []).append(float(entry["log_ratio"]))
        elif entry["kind"] == "unbuildable":
            self._failed[place] = entry["message"]
        elif entry["kind"] == "built":
            self.builds += 1
        self.looks += entry["kind"] in ("answer", "pair")

    def _keep(self, kind: str, **entry: Any) -> None:
        self._journal.append(kind, entry)
        self._journal.flush()

    @property
    def unbuildable(self) -> int:
        return len(self._failed)

    def title(self, place: str) -> str:
        q = self.question
        if q.where == GIT:
            return title(Path(q.repository), place)
        return f"{q.package} {place}" if q.where == RELEASES else place

    def backend(self, place: str) -> str:
        """The backend of a commit or a release, built where it is not yet. Raises: UnbuildableError."""
        if place in self._failed:
            raise UnbuildableError(self._failed[place])
        if place not in self._texts:
            began = time.monotonic()
            try:
                self._texts[place], fresh = prepare(self.question, place)
            except (BackendUnavailableError, CaseError) as error:
                if isinstance(error, CaseError):
                    raise
                self._unbuildable(place, str(error))
                raise UnbuildableError(str(error)) from error
            if fresh:
                self.builds += 1
                self._keep("built", place=place, seconds=round(time.monotonic() - began, 3))
        return self._texts[place]

    def _unbuildable(self, place: str, message: str) -> None:
        self._failed[place] = message
        self._keep("unbuildable", place=place, message=message)
        self.tell(f"{self.title(place)}: skipped, {message}")

    def answer(self, place: str) -> Answer | None:
        """None where the place cannot be built or loaded."""
        if place in self._answers:
            return self._answers[place]
        try:
            text = self.backend(place)
        except UnbuildableError:
            return None
        answer = self._ask(self.question.subject, self.question.what, text, self.question.timeout_s)
        if not answer.value:
            self._unbuildable(place, answer.message)
            return None
        self.looks += 1
        self._answers[place] = answer
        self._keep("answer", place=place, value=answer.value, message=answer.message)
        return answer

    def pair(self, place: str, base: str) -> float:
        """The next log ratio of `place` against `base`: one that is in the journal, or a new one.

        Raises: UnbuildableError.
        """
        key = place if base == self.question.places[0] else f"{base}..{place}"
        used = self._used.get(key, 0)
        known = self._pairs.setdefault(key, [])
        if used == len(known):
            texts = self.backend(base), self.backend(place)
            if self._measure is None:
                raise CaseError("latency cannot be measured here")
            try:
                known.append(self._measure(*texts))
            except BackendUnavailableError as error:
                self._unbuildable(place, str(error))
                raise UnbuildableError(str(error)) from error
            self.looks += 1
            self._keep("pair", place=key, log_ratio=known[-1])
        self._used[key] = used + 1
        return known[used]

    def pairs(self, place: str) -> list[float]:
        """Those against the good end."""
        return self._pairs.get(place, [])

    def report(self, result: str, reason: str, **more: Any) -> Report:
        made = Report(
            result,
            reason,
            self.question.what,
            looks=self.looks,
            builds=self.builds,
            unbuildable=self.unbuildable,
            seconds=round(time.monotonic() - self.began, 1),
        )
        made = replace(made, **more)
        self._keep("end", **made.to_dict())
        return made

    def side(self, place: str) -> Side:
        if self.question.what == LATENCY:
            return Side(place, self.title(place), _percent(self.pairs(place)), f"{len(self.pairs(place))} pairs")
        answer = self._answers.get(place, Answer("", ""))
        return Side(place, self.title(place), answer.value, answer.message)

    def found(self, before: str, after: str, also: Sequence[str] = ()) -> Found:
        line = reproduction(self.question, before, after)
        return Found(after, self.title(after), self.side(before), self.side(after), tuple(also), line)


def _percent(pairs: Sequence[float]) -> str:
    return f"{math.expm1(float(np.median(pairs))):+.1%}" if pairs else ""


def prepare(question: Question, place: str) -> tuple[str, bool]:
    """(backend, whether something was built). Raises: UnbuildableError, BackendUnavailableError, CaseError."""
    if question.where == GIT:
        builds = builds_of(question)
        tree, fresh = build(builds, place)
        return backend_in(question.backend, tree, builds.python(place), question.python), fresh
    if question.where == RELEASES:
        return release_backend(question.backend, question.package, place)
    return place, False


def builds_of(question: Question) -> Builds:
    return Builds(Path(question.repository), question.words, question.venv, question.build_timeout_s)


def release_backend(backend: str, package: str, version: str) -> tuple[str, bool]:
    """The backend on a release: of the package itself, or an adapter of yours that imports it.

    Raises: BackendUnavailableError.
    """
    from opgauge.backends import BACKENDS

    from . import environment

    name, _, rest = (backend or package).partition(":")
    row = BACKENDS.get(name)
    began = time.time()
    python = environment.made(package, version, row.companions if row and row.distribution == package else ())
    fresh = (python.parent.parent / environment.READY).stat().st_mtime >= began
    if row is not None and row.distribution == package:
        return f"{name}=={version}{':' if rest else ''}{rest}", fresh
    return f"{backend or package}@{python}", fresh


def reproduction(question: Question, before: str, after: str) -> str:
    """The one command that shows the change again."""
    q, subject = question, question.subject
    words = ["opgauge", "bisect", subject.case, "--what", q.what]
    if q.where == RELEASES:
        words += ["--releases", q.package, f"{before},{after}"]
        words += ["--backend", q.backend] if q.backend and q.backend != q.package else []
    else:
        words += ["--git", f"{before[:12]}..{after[:12]}", "--repository", q.repository, "--backend", q.backend]
        words += [w for word in q.words for w in ("--build", word)]
        words += ["--venv"] if q.venv else []
        words += ["--python", q.python] if q.python else []
    words += [w for k, v in subject.dims.items() for w in ("--dim", f"{k}={v:g}")]
    words += [w for k, v in subject.values.items() for w in ("--value", f"{k}={v:g}")]
    words += ["--inputs", subject.inputs] if subject.inputs else []
    words += ["--seed", str(subject.seed)] if subject.seed else []
    return shlex.join(words)
