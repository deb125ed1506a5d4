"""How a backend computes: for each trait, the known alternatives that explain everything that it returned."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opgauge.backends import BackendSpec
from opgauge.reference_engine.errors import BackendUnavailableError
from opgauge.reference_engine.types import Array, Observation, Status

from .client import Client
from .formulas import Formula
from .traits import BUILT_IN, FORMULA_TRAITS, Labels, Probe, Says, Trait, probe_of
from .traits_float import TRAITS
from .worker import clean

Ask = Callable[[Probe], Observation]
STATUSES = ("known", "several", "open", "none", "unsupported", "failed")
SHOWN = 8  # elements of a failure
KNOWN, SEVERAL, OPEN, NONE, UNSUPPORTED, FAILED = STATUSES


@dataclass(frozen=True)
class Answer:
    """What is known of one axis of a trait.

    `status`: known (one alternative is left), several, open (all are left: the cases that would tell them apart were
    refused), none (no known alternative explains what came), unsupported, failed (misbehaviour instead of a result).
    `found` are the alternatives left; `elements` what had to be explained; `against` by how many elements the
    likeliest of the excluded alternatives failed. Of a `none`, `witness` is a case and `message` an element of it.
    """

    trait: str
    axis: str
    status: str
    found: tuple[str, ...] = ()
    elements: int = 0
    against: int = 0
    cases: int = 0
    refused: int = 0
    message: str = ""
    witness: str = ""


@dataclass(frozen=True)
class Card:
    """The answers of one backend. `formulas` are those left for an operator and an output type, whole."""

    backend: str
    info: dict[str, str]
    answers: tuple[Answer, ...]
    formulas: dict[tuple[str, str], tuple[Formula, ...]]


@dataclass
class _Tally:
    """What an alternative failed to explain, and where first."""

    wrong: int = 0
    first: str = ""
    witness: str = ""


def agrees(says: Says, actual: Array) -> Array:
    """Per element: is it what the alternative says. Bits decide, except that any NaN is as good as another."""
    if callable(says):
        return np.asarray(says(actual))
    wanted = np.asarray(says)
    if actual.shape != wanted.shape:
        actual = actual.reshape(wanted.shape)
    same = actual == wanted
    if wanted.dtype.kind != "f":
        return np.asarray(same)
    return np.asarray((same & (np.signbit(actual) == np.signbit(wanted))) | (np.isnan(actual) & np.isnan(wanted)))


def investigate(trait: Trait, ask: Ask) -> tuple[tuple[Answer, ...], tuple[Labels, ...]]:
    """The answers on each axis, and the alternatives that are left, whole."""
    tallies: dict[Labels, _Tally] = {}
    elements = cases = 0
    refusals: list[str] = []
    for text in trait.cases:
        probe = probe_of(text)
        seen = ask(probe)
        if seen.status is Status.UNSUPPORTED:
            refusals.append(seen.message)
            continue
        says = trait.predict(probe)
        why = "" if seen.status is not Status.PASS else _misfit(seen, says)
        if seen.status is not Status.PASS or why:
            message = why or f"{seen.status}: {seen.message}"
            return _all(trait, Answer("", "", FAILED, message=clean(message), witness=text, cases=cases)), ()
        actual = seen.outputs[0]
        elements, cases = elements + actual.size, cases + 1
        for labels, said in says.items():
            # An alternative that only some cases know (a block longer than a sum) has nothing to fear from the others.
            tally = tallies.setdefault(labels, _Tally())
            wrong = ~agrees(said, actual).ravel()
            if wrong.any():
                tally.wrong += int(wrong.sum())
                if not tally.first:
                    tally.first, tally.witness = _element(said, actual, int(wrong.argmax())), text
    if not cases:
        return _all(trait, Answer("", "", UNSUPPORTED, refused=len(refusals), message=clean(refusals[0]))), ()
    left = tuple(labels for labels, tally in tallies.items() if not tally.wrong)
    left = left[:1] if trait.nested else left
    counts: dict[str, Any] = {"elements": elements, "cases": cases, "refused": len(refusals)}
    if not left:
        nearest = min(tallies, key=lambda labels: tallies[labels].wrong)
        tally = tallies[nearest]
        message = f"nearest is {', '.join(nearest)} with {tally.wrong} of {elements} elements otherwise: {tally.first}"
        return _all(trait, Answer("", "", NONE, message=message, witness=tally.witness, **counts)), ()
    return tuple(_answer(trait, axis, left, tallies, counts) for axis in range(len(trait.axes))), left


def _misfit(seen: Observation, says: Mapping[Labels, Says]) -> str:
    """Why an output cannot be compared at all."""
    if not seen.outputs:
        return "no output was returned"
    sizes = {np.asarray(said).size for said in says.values() if not callable(said)}
    size = seen.outputs[0].size
    return f"{size} elements were returned, expected {min(sizes)}" if sizes and size not in sizes else ""


def _answer(
    trait: Trait, axis: int, left: Sequence[Labels], tallies: dict[Labels, _Tally], counts: dict[str, Any]
) -> Answer:
    found = tuple(dict.fromkeys(labels[axis] for labels in left))
    every = {labels[axis] for labels in tallies}
    others = [tally.wrong for labels, tally in tallies.items() if labels[axis] not in found and tally.wrong]
    status = KNOWN if len(found) == 1 else OPEN if len(found) == len(every) else SEVERAL
    return Answer(trait.name, trait.axes[axis], status, found, against=min(others, default=0), **counts)


def _all(trait: Trait, answer: Answer) -> tuple[Answer, ...]:
    rest = {k: v for k, v in vars(answer).items() if k not in ("trait", "axis")}
    return tuple(Answer(trait.name, axis, **rest) for axis in trait.axes)


def _element(said: Says, actual: Array, flat: int) -> str:
    got = actual.ravel()[flat]
    wanted = "" if callable(said) else f" instead of {np.asarray(said).ravel()[flat]!s}"
    return f"element {flat} is {got!s}{wanted}"


# ---- a backend


def measure(
    ask: Ask, traits: Sequence[Trait] = TRAITS, progress: Callable[[Trait], None] = lambda _: None
) -> tuple[tuple[Answer, ...], dict[tuple[str, str], tuple[Formula, ...]]]:
    """Every trait in turn: (answers, formulas by operator and output type)."""
    found: list[Answer] = []
    formulas: dict[tuple[str, str], tuple[Formula, ...]] = {}
    for trait in traits:
        answers, left = investigate(trait, ask)
        found += answers
        if trait in FORMULA_TRAITS and left:
            op, _, dtype = trait.name.partition(" ")
            formulas[op, dtype] = tuple(Formula(*(w if w != BUILT_IN else "" for w in labels)) for labels in left)
        progress(trait)
    return tuple(found), formulas


@contextlib.contextmanager
def asking(spec: BackendSpec, timeout_s: float = 20.0) -> Iterator[tuple[Ask, Client]]:
    """A function that asks the kernel worker of a backend. Raises: BackendUnavailableError on the first case."""
    with Client(spec, timeout_s) as client:

        def ask(probe: Probe) -> Observation:
            client.submit(probe.id, probe.model, probe.inputs, repeats=1)
            seen = client.receive()
            if seen.status is Status.UNAVAILABLE:
                raise BackendUnavailableError(f"{spec.text}: {seen.message}")
            return seen

        yield ask, client


def card(
    spec: BackendSpec,
    timeout_s: float = 20.0,
    traits: Sequence[Trait] = TRAITS,
    progress: Callable[[Trait], None] = lambda _: None,
) -> Card:
    """The card of a backend, measured in a process of its own. Raises: BackendUnavailableError."""
    with asking(spec, timeout_s) as (ask, client):
        answers, formulas = measure(ask, traits, progress)
        return Card(spec.text, dict(client.info), answers, formulas)


def select(words: Sequence[str]) -> tuple[Trait, ...]:
    """Traits whose name begins with one of the words; all of them without words. Raises: ValueError naming a word."""
    for word in words:
        if not any(trait.name.startswith(word) for trait in TRAITS):
            known = ", ".join(dict.fromkeys(trait.name.partition(" ")[0] for trait in TRAITS))
            raise ValueError(f"--op {word!r}: no trait of that operator; there are {known}")
    return tuple(t for t in TRAITS if not words or any(t.name.startswith(w) for w in words))
