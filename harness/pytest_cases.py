"""What the pytest plugin collects: suite cases by name, drawn once in a process."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opgauge import suites
from opgauge.backends import UnknownBackendError, resolve, table
from opgauge.reference_engine.case import id_of, parse_id
from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.types import Array, Case, CaseSpec, Record
from opgauge.reports.tables import repro_line

from . import api, check, dependence, expectations, generate, model
from .client import Client

MAYBE = re.compile(r"\d+|[a-z]{3,12}")  # a word of -k that may be an ordinal or a profile
MAYBE_LIMIT = 6


class SelectionError(Exception):
    """A backend, an operator or a file that the command line or a marker names and nobody knows."""


@dataclass(frozen=True)
class SuiteCase:
    """A case of the suite, for a test: `model` and `inputs` in, `assert_within_set(outputs)` out.

    `id` is what `opgauge repro` takes.
    """

    name: str
    case: Case
    label: str

    @property
    def id(self) -> str:
        return id_of(self.case, self.label)

    @property
    def op(self) -> str:
        return self.case.op

    @property
    def model(self) -> bytes:
        return _built(self.case)[0]

    @property
    def inputs(self) -> dict[str, Array]:
        return dict(_built(self.case)[1])

    def check(self, outputs: api.Tensors) -> api.Report:
        return api.check(self.model, self.inputs, outputs)

    def assert_within_set(self, outputs: api.Tensors) -> api.Report:
        """Raises: AssertionError with the elements outside and the id of the case."""
        __tracebackhide__ = True
        report = self.check(outputs)
        if not report.within:
            raise AssertionError(f"{report}\n  case {self.id}")
        return report

    def run_on(self, client: Client, known: Sequence[expectations.Deviation]) -> Record:
        subject = check.subject_of(self.case, self.label)

        def once(on: Client) -> Record:
            return check.check(subject, [on], known)[0]

        return dependence.settled(once(client), client, once)


@functools.lru_cache(maxsize=1)
def _built(case: Case) -> tuple[bytes, dict[str, Array]]:
    return model.build(case)


@functools.cache
def _rows() -> dict[str, CaseSpec]:
    return {row.name: row for row in suites.cases()}


@functools.cache
def drawn(row: str, budget: int, seed: int) -> tuple[SuiteCase, ...]:
    """Up to `budget` cases of a row, named `Op/dtypes/NNN-profile`; the same ones in every process."""
    spec, found = _rows()[row], list[SuiteCase]()

    def visit(_: str, case: Case) -> None:
        found.append(SuiteCase(f"{spec.name}/{len(found):03}-{case.profile}", case, spec.label))

    generate.explore(spec, budget, seed, visit)
    return tuple(found)


def spelled(text: str) -> SuiteCase:
    case, label = parse_id(text)
    return SuiteCase(text, case, label)


def marked(name: str, dtype: str = "", budget: int = 10, seed: int = 0) -> list[SuiteCase]:
    """Cases of an `op` marker. Raises: SelectionError naming close matches."""
    try:
        rows = generate.select(tuple(_rows().values()), [name], [dtype] if dtype and "," not in dtype else [])
    except generate.SelectionError as error:
        raise SelectionError(str(error)) from error
    wanted = [row for row in rows if "," not in dtype or row.label == dtype]
    return [case for row in wanted for case in drawn(row.name, budget, seed)]


def backends(texts: Sequence[str]) -> tuple[str, ...]:
    """Raises: SelectionError."""
    try:
        return tuple(dict.fromkeys(resolve(text).text for text in texts))
    except UnknownBackendError as error:
        raise SelectionError(str(error)) from error


@functools.cache
def deviations(path: str) -> tuple[expectations.Deviation, ...]:
    """Raises: SelectionError."""
    try:
        return expectations.load(Path(path) if path else None)
    except BaselineError as error:
        raise SelectionError(str(error)) from error


def possible_rows(expression: str, texts: Sequence[str]) -> list[CaseSpec]:
    """Rows whose cases a `-k` expression may select; drawing the rest would take half a minute for nothing."""
    rows = list(_rows().values())
    words = [w for w in re.findall(r"[^\s()]+", expression) if w.lower() not in ("and", "or", "not")]
    if not words:
        return rows
    names = {row.name: f"opgauge {row.name} [{' '.join(texts)}]".lower() for row in rows}
    whole = " ".join([*names.values(), *table()])
    maybe = [w for w in words if w.lower() not in whole and MAYBE.fullmatch(w.lower())]
    if len(maybe) > MAYBE_LIMIT:
        return rows
    return [row for row in rows if _may_match(expression, f"{row.name}", texts, maybe)]


def _may_match(expression: str, name: str, texts: Sequence[str], maybe: Sequence[str]) -> bool:
    """Does any choice for the words that are not known beforehand make the expression true."""
    from _pytest.mark.expression import Expression

    try:
        compiled = Expression.compile(expression)
    except SyntaxError:
        return True  # pytest itself will say what is wrong with it
    for text, chosen in itertools.product(texts, _choices(maybe)):
        said = f"opgauge/{name}[{text}]".lower()
        if compiled.evaluate(lambda word, /, **_: word.lower() in said or word in chosen):  # noqa: B023
            return True
    return False


def _choices(words: Sequence[str]) -> list[frozenset[str]]:
    return [frozenset(some) for n in range(len(words) + 1) for some in itertools.combinations(words, n)]


def told(record: Record) -> str:
    """A record that is not green, as pytest shows it."""
    lines = [f"{record.status}: {record.op} {record.label} on {record.backend}: {record.message}"]
    return "\n".join([*lines, *api.evidence(record.detail), f"  {repro_line(record)}"])
