"""Known true deviations of runtimes: which elements they excuse, and whether they are still true.

`baselines/expectations.toml` holds `[[deviation]]` rows, and `[[quarantine]]` ones (quarantine.py). A deviation
excuses only the elements that its predicate explains, only for its operators, runtime, versions and condition; its
witness is a case that is replayed wherever the condition holds, and the row is stale, and a finding, when the witness
passes.
"""

from __future__ import annotations

import datetime
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from opgauge.backends import OURS
from opgauge.backends.result import CONTRADICTED
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import BaselineError
from opgauge.reference_engine.types import Array, Exact, Status, Verdict

from . import quarantine
from .instead import INSTEAD
from .oracles import inside_set

KEYS = ("id", "operators", "runtime", "versions", "when", "case", "predicate", "instead", "witness", "reason", "link")
OPTIONAL = ("when", "case", "predicate", "instead")
EVERY = "*"
INFERRED = "inferred"  # a predicate: outputs are right, the runtime's own inference says another shape
COMPARE: dict[str, Callable[[Array, float], Array]] = {
    ">=": np.greater_equal,
    "<=": np.less_equal,
    ">": np.greater,
    "<": np.less,
    "==": np.equal,
}


@dataclass(frozen=True)
class Deviation:
    """One row: see docs/numerics.md, statuses.

    `predicate` is `name op number` joined by `and`; names: `v` the number before rounding, `w` the same
    with the zero point, `got`, `lo`, `hi`, `under` how far got lies below w, `off` |got - v|, `rel`
    |got - v| / |v|, `nan` 1 where got is NaN and 0 elsewhere; or `inferred` alone: every element is right, and the
    runtime's own shape inference contradicts its output. `when` is a condition on the backend's info and
    options: `key~substring` or `key!~substring` joined by `and`, empty for always. `case` is a regular expression
    that is found in the case id, empty for every case. `instead` names a model of `instead.INSTEAD`: elements outside
    its acceptance set are not excused.
    """

    id: str
    operators: tuple[str, ...]
    runtime: str
    versions: str
    when: str
    predicate: str
    witness: str
    reason: str
    link: str
    case: str = ""
    instead: str = ""


def load(path: Path | None = None) -> tuple[Deviation, ...]:
    """Rows of a file; without one the shipped rows and those of the user's own folder.

    The folder is `baselines` in the settings (config.py); the rows of both are told apart by their ids.

    Raises: BaselineError naming the row and what is wrong.
    """
    if path is not None:
        return parse(_text(path), str(path))
    return _shipped_and(Path(os.environ.get("OPGAUGE_BASELINES") or os.devnull) / "expectations.toml")


@lru_cache(maxsize=4)  # every row of the suite asks
def _shipped_and(own: Path) -> tuple[Deviation, ...]:
    shipped = (resources.files("opgauge.baselines") / "expectations.toml").read_text("utf-8")
    rows = parse(shipped, "baselines/expectations.toml")
    added = parse(_text(own), str(own)) if own.is_file() else ()
    if again := {row.id for row in rows} & {row.id for row in added}:
        raise BaselineError(
            f"{own}: deviation id {sorted(again)[0]!r} is one of the shipped rows: give it another name"
        )
    return rows + added


def quarantined(now: datetime.date) -> tuple[quarantine.Quarantine, ...]:
    """The rows of the user's own file; the shipped one has none. Raises: BaselineError."""
    own = Path(os.environ.get("OPGAUGE_BASELINES") or os.devnull) / "expectations.toml"
    if not own.is_file():
        return ()
    _shipped_and(own)  # the file as a whole is read strictly
    return quarantine.parse(tomllib.loads(_text(own)).get("quarantine", []), str(own), now)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: cannot be read: {error}") from error


def parse(text: str, name: str) -> tuple[Deviation, ...]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BaselineError(f"{name}: not TOML: {error}") from error
    unknown = set(document) - {"deviation", "quarantine"}
    if unknown:
        raise BaselineError(f"{name}: unknown table {sorted(unknown)[0]!r}; known: deviation, quarantine")
    listed = document.get("deviation", [])
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise BaselineError(f"{name}: write each deviation as a table of its own: [[deviation]]")
    quarantine.parse(document.get("quarantine", []), name, quarantine.today())
    rows = tuple(_row(entry, i, name) for i, entry in enumerate(listed))
    ids = [row.id for row in rows]
    doubled = {i for i in ids if ids.count(i) > 1}
    if doubled:
        raise BaselineError(f"{name}: deviation id {sorted(doubled)[0]!r} appears twice")
    return rows


def _row(entry: Mapping[str, Any], index: int, name: str) -> Deviation:
    where = f"{name}: deviation {entry.get('id', index)!r}"
    if missing := [k for k in KEYS if k not in entry and k not in OPTIONAL]:
        raise BaselineError(f"{where}: {missing[0]!r} is missing")
    if extra := sorted(set(entry) - set(KEYS)):
        raise BaselineError(f"{where}: unknown key {extra[0]!r}; known: {', '.join(KEYS)}")
    named = entry["operators"]
    if not isinstance(named, list) or not all(isinstance(op, str) for op in named):
        raise BaselineError(f"{where}: operators = {named!r:.80} is not a list of names")
    if entry["runtime"] in OURS:
        raise BaselineError(f"{where}: our own backends are never excused")
    if "predicate" not in entry and "instead" not in entry:
        raise BaselineError(f"{where}: `predicate` or `instead` must say which elements are excused")
    if EVERY in named and (len(named) > 1 or not entry.get("instead")):
        raise BaselineError(f"{where}: every operator (`*`) is excused only with `instead`, and stands alone")
    if entry.get("instead", "") not in ("", *INSTEAD):
        raise BaselineError(f"{where}: unknown `instead` {entry['instead']!r}; known: {', '.join(INSTEAD)}")
    fields = {k: str(entry.get(k, "")) for k in KEYS if k != "operators"}
    row = Deviation(operators=tuple(named), **fields)
    try:
        clauses(row.predicate)
        version_range(row.versions)
        re.compile(row.case)
    except (ValueError, re.error) as error:
        raise BaselineError(f"{where}: {error}") from error
    return row


@lru_cache(maxsize=256)
def clauses(predicate: str) -> tuple[tuple[str, str, float], ...]:
    """(name, comparison, number) of each `and`-joined clause. Raises: ValueError."""
    found = []
    if predicate == INFERRED:
        return ()
    for clause in filter(None, predicate.split(" and ")):
        match = re.fullmatch(r"\s*(v|w|got|lo|hi|under|off|rel|nan)\s*(>=|<=|==|>|<)\s*([-+0-9.e]+)\s*", clause)
        if not match:
            raise ValueError(
                f"predicate clause {clause!r} is not `v|w|got|lo|hi|under|off|rel|nan` compared with a number"
            )
        found.append((match[1], match[2], float(match[3])))
    return tuple(found)


@lru_cache(maxsize=256)
def version_range(versions: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(comparison, release) of each comma-joined bound; `*` is every version. Raises: ValueError."""
    if versions.strip() == "*":
        return ()
    found = []
    for bound in versions.split(","):
        match = re.fullmatch(r"\s*(>=|<=|==|>|<)\s*(\d+(?:\.\d+)*)\s*", bound)
        if not match:
            raise ValueError(f"version bound {bound!r} is not like `>=1.17`")
        found.append((match[1], tuple(int(p) for p in match[2].split("."))))
    return tuple(found)


def matches_version(version: str, versions: str) -> bool:
    """Is a release inside the range; `1.32` counts as `1.32.*` in an upper bound."""
    release = tuple(int(p) for p in re.findall(r"\d+", version)[:3])
    for comparison, bound in version_range(versions):
        short = release[: len(bound)]
        holds = {
            ">=": short >= bound,
            "<=": short <= bound,
            "==": short == bound,
            ">": short > bound,
            "<": short < bound,
        }[comparison]
        if not holds:
            return False
    return True


def applies(row: Deviation, runtime: str, info: Mapping[str, str]) -> bool:
    """Does the row speak of this runtime, version and condition."""
    if row.runtime != runtime or not matches_version(info.get("version", "0"), row.versions):
        return False
    for clause in filter(None, (c.strip() for c in row.when.split(" and "))):
        key, _, part = clause.partition("~")
        if (part in info.get(key.removesuffix("!"), "")) is key.endswith("!"):
            return False
    return True


def about(row: Deviation, op: str) -> bool:
    """`*` is every operator: what such a row excuses is narrowed by `instead` alone."""
    return op in row.operators or row.operators == (EVERY,)


def speaks_of(row: Deviation, case: str) -> bool:
    """Is the case one of those that the row is about."""
    return re.search(row.case, case) is not None


def excused(row: Deviation, exact: Exact, actual: Array) -> Array:
    """Elements that the predicate explains. Quantized outputs only know `v` and `w`."""
    if row.predicate == INFERRED:
        return np.zeros(exact.value.shape, bool)
    names: dict[str, Array] = {"got": actual.astype(np.float64), "lo": exact.lo, "hi": exact.hi}
    names["nan"] = np.isnan(names["got"]).astype(np.float64)
    if exact.real is not None:
        names["v"] = exact.real
        names["w"] = exact.real + (0.0 if exact.zero_point is None else exact.zero_point)
        with np.errstate(all="ignore"):
            names["under"] = names["w"] - names["got"]
            names["off"] = np.abs(names["got"] - exact.real)
            names["rel"] = names["off"] / np.abs(exact.real)
    mask = np.ones(exact.value.shape, bool)
    for name, comparison, number in clauses(row.predicate):
        if name not in names:
            return np.zeros(exact.value.shape, bool)
        with np.errstate(invalid="ignore"):
            mask &= COMPARE[comparison](names[name], number)
    return mask


Alternative = Callable[[str], Sequence[Exact]]


def explain(
    rows: Sequence[Deviation],
    op: str,
    exacts: Sequence[Exact],
    outputs: Sequence[Array],
    verdict: Verdict,
    alternative: Alternative = lambda name: (),
) -> Verdict:
    """A failure whose every offending element is excused becomes a deviation; anything else stays.

    `alternative` gives the acceptance sets of a model of `instead.INSTEAD` on the same inputs. An output of another
    shape is excused as a whole, where all outputs are inside the sets of such a model.
    """
    mine = [row for row in rows if about(row, op)]
    if verdict.status is not Status.FAIL or not mine or len(exacts) != len(outputs):
        return verdict
    used: set[str] = {row.id for row in mine if row.predicate == INFERRED and CONTRADICTED in verdict.detail}
    others = {row.instead: alternative(row.instead) for row in mine if row.instead}
    for i, (exact, actual) in enumerate(zip(exacts, outputs, strict=True)):
        if actual.shape != exact.value.shape:
            shaped = [row.id for row in mine if row.instead and _returned(others[row.instead], outputs)]
            if not shaped:
                return verdict
            used.add(shaped[0])
            continue
        if dt.WORD.get(actual.dtype) != exact.dtype:
            return verdict
        outside = ~inside_set(exact, actual)
        if exact.free is not None:
            outside &= ~exact.free
        for row in mine:
            mask = excused(row, exact, actual) & outside
            if row.instead:
                mask &= _inside(others[row.instead][i : i + 1], actual)
            if mask.any():
                used.add(row.id)
                outside &= ~mask
        if outside.any():
            return verdict
    if not used:  # nothing is outside: the fault is another one
        return verdict
    names = ", ".join(sorted(used))
    reason = next(row.reason for row in mine if row.id in used)
    return replace(
        verdict,
        status=Status.DEVIATION,
        message=f"{names}: {reason}",
        detail={**verdict.detail, "deviations": sorted(used)},
    )


def _returned(exacts: Sequence[Exact], outputs: Sequence[Array]) -> bool:
    """Is all of this what the other model would give, shapes included."""
    return len(exacts) == len(outputs) and all(
        e.value.shape == o.shape and bool(_inside([e], o).all()) for e, o in zip(exacts, outputs, strict=True)
    )


def _inside(exacts: Sequence[Exact], actual: Array) -> Array:
    if not exacts or exacts[0].value.shape != actual.shape or exacts[0].dtype != dt.WORD.get(actual.dtype):
        return np.zeros(actual.shape, bool)
    inside = inside_set(exacts[0], actual)
    return inside if exacts[0].free is None else inside | exacts[0].free
