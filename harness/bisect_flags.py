"""Which options of a backend, or which graph rule, changed a verdict, bits, a count, or a latency."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from opgauge.backends import resolve
from opgauge.reference_engine.errors import CaseError

from . import bisect_noise
from .bisect_git import UnbuildableError
from .bisect_notebook import CULPRIT, NO_STEP, UNAVAILABLE, Found, Notebook, Question, Report, Side
from .bisect_probe import LATENCY, Subject, is_saved_case, loaded

if TYPE_CHECKING:  # the command line must start without the engine
    from . import models

Options = Mapping[str, str]
# Options whose values are in order: then the first value that matters is looked for, not only the option.
ORDERED = {"level": ("disable", "basic", "extended", "all")}
UNSET = ""


def options_of(text: str) -> dict[str, str]:
    """Raises: CaseError."""
    pairs = [item.partition("=") for item in text.split(",") if item]
    if not all(key and equals for key, equals, _ in pairs):
        raise CaseError(f"{text!r} is not OPTION=VALUE,OPTION=VALUE")
    return {key: value for key, _, value in pairs}


def spelled(backend: str, options: Options) -> str:
    """The backend with these options, and those of its own that they do not set. Raises: UnknownBackendError."""
    name, _, rest = backend.partition(":")
    merged = {**options_of(rest), **options}
    words = ",".join(f"{k}={v}" for k, v in sorted(merged.items()) if v != UNSET)
    return resolve(f"{name}:{words}" if words else name).text


def ends(backend: str, text: str) -> tuple[str, str]:
    """Backends of `GOOD..BAD`, each a list of options that may be empty. Raises: CaseError, UnknownBackendError."""
    good, dots, bad = text.partition("..")
    if not dots:
        raise CaseError(f"{text!r} is not GOOD..BAD, as in level=basic..level=all,x64quantprecision=1")
    made = spelled(backend, options_of(good)), spelled(backend, options_of(bad))
    if made[0] == made[1]:
        raise CaseError(f"{text!r}: both sides are {made[0]}")
    return made


def differing(good: Options, bad: Options) -> list[str]:
    return sorted(k for k in good.keys() | bad.keys() if good.get(k, UNSET) != bad.get(k, UNSET))


def minimal(keys: Sequence[str], is_bad: Callable[[Sequence[str]], bool]) -> list[str]:
    """A set of keys that is bad and of which none can be left out. `keys` together are bad, none of them is good."""
    kept = list(keys)
    for key in keys:
        fewer = [k for k in kept if k != key]
        if fewer and is_bad(fewer):
            kept = fewer
    return kept


def answer(notebook: Notebook) -> Report:
    """The smallest change of the good end's options that gives the bad end's answer."""
    good, bad = notebook.question.places[0], notebook.question.places[-1]
    name = good.partition(":")[0]
    old, new = options_of(good.partition(":")[2]), options_of(bad.partition(":")[2])
    judge = _slow if notebook.question.what == LATENCY else _like_bad
    try:
        decided = judge(notebook, bad)
        if decided is None:
            return notebook.report(UNAVAILABLE, f"{good} or {bad} gives no answer")
        if not decided:
            return notebook.report(NO_STEP, f"{good} and {bad} give the same")

        def text(change: Options) -> str:
            return spelled(name, {**old, **change})

        def is_bad(keys: Sequence[str]) -> bool:
            return bool(judge(notebook, text({k: new.get(k, UNSET) for k in keys})))

        keys = minimal(differing(old, new), is_bad)
        change = {k: new.get(k, UNSET) for k in keys}
        for key in keys:
            for value in _steps(key, old.get(key, UNSET), change[key]):
                if judge(notebook, text({**change, key: value})):
                    change[key] = value
                    break
    except UnbuildableError as error:
        return notebook.report(UNAVAILABLE, str(error))
    place = text(change)
    told = ", ".join(f"{k}={v or '(not set)'}" for k, v in change.items())
    q, tail = notebook.question, f"{good.partition(':')[2]}..{place.partition(':')[2]}"
    line = shlex.join(["opgauge", "bisect", q.subject.case, "--what", q.what, "--backend", name, "--flags", tail])
    found = Found(place, told, notebook.side(good), notebook.side(place), (), line)
    reason = f"{told}: {found.before.value or 'as before'} -> {found.after.value}"
    return notebook.report(CULPRIT, reason, found=(found,))


def _steps(key: str, good: str, bad: str) -> list[str]:
    """Values of an ordered option from the good end to before the bad one."""
    order = ORDERED.get(key, ())
    if bad not in order:
        return []
    a, b = order.index(good) if good in order else len(order) - 1, order.index(bad)
    return list(order[a + 1 : b]) if a < b else list(reversed(order[b + 1 : a]))


def _like_bad(notebook: Notebook, text: str) -> bool | None:
    """Whether options give what the bad end gives; None where an end gives nothing or both give the same."""
    good, bad = (notebook.answer(p) for p in (notebook.question.places[0], notebook.question.places[-1]))
    if good is None or bad is None:
        return None
    if good.value == bad.value:
        return False
    seen = notebook.answer(text)
    notebook.tell(f"{text}: {seen.value if seen else 'no answer'}")
    return seen is not None and seen.value == bad.value


def _slow(notebook: Notebook, text: str) -> bool:
    """Whether options take more than half of the step between the ends. Raises: UnbuildableError."""
    good, bad = notebook.question.places[0], notebook.question.places[-1]
    limit = notebook.question.pairs
    smallest = math.log1p(notebook.question.smallest)
    same: list[float] = []
    step: list[float] = []
    effect = float(np.median(notebook.pairs(bad))) if text != bad else smallest
    while True:
        step.append(notebook.pair(text, good))
        same.append(notebook.pair(good, good))
        seen = bisect_noise.verify(step, same, abs(effect) if text != bad else smallest)
        if seen.decision != bisect_noise.MORE or len(step) >= limit:
            notebook.tell(f"{text}: {math.expm1(seen.effect):+.1%} in {len(step)} pairs: {seen.decision}")
            return seen.decision == bisect_noise.STEP


# ---- graph rules


def rules(question: Question) -> Report:
    """The graph rule of our engine that does wrong. Raises: CaseError, ModelError."""
    from . import rule_bisect

    culprit = rule_bisect.bisect_model(_model(question.subject), question.backend, question.timeout_s)
    if culprit is None:
        return Report(NO_STEP, "outputs stay in their sets and no count grows with all rules", question.what)
    if not culprit.rule:
        return Report(UNAVAILABLE, culprit.reason, question.what)
    head = "cpu" if not question.backend else question.backend
    off = f"{head}{',' if ':' in head else ':'}disable={culprit.rule}"
    case = question.subject.case
    verb = ["model", case] if case.endswith(".onnx") and not is_saved_case(case) else ["repro", case]
    line = shlex.join(["opgauge", *verb, "--backend", off, "--backend", head])
    sides = (
        Side(off, f"without {culprit.rule}", "right", ""),
        Side(head, f"with {culprit.rule}", "wrong", culprit.reason),
    )
    found = Found(culprit.rule, culprit.rule, *sides, (), line)
    return Report(CULPRIT, f"{culprit.rule}: {culprit.reason}", question.what, found=(found,))


def _model(subject: Subject) -> models.Loaded:
    from opgauge.reference_engine import lower

    from . import models

    made = loaded(subject)
    return models.Loaded(made.case, lower.parse(made.model), made.model, made.inputs, subject.seed)
