"""What a user declares of a backend's rounding, behind `~` in its name: `mine.py:run~round=away+up,requant=fixed`.

The words are those of Policy (docs/numerics.md N10). They stay part of the backend's name, so that every record and
every reproducing line says under which policy it was judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from opgauge.reference_engine.errors import OpgaugeError
from opgauge.reference_engine.rounding import MODES
from opgauge.reference_engine.types import Policy

DEFAULT = Policy()


class PolicyError(OpgaugeError):
    """A policy that is not one of N10."""


def _one_of(*words: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return value

    return read


def _modes(value: str) -> tuple[str, ...]:
    modes = tuple(dict.fromkeys(value.split("+")))
    if not set(modes) <= set(MODES):
        raise ValueError(f"modes among {', '.join(MODES)}, joined by +")
    return modes


def _ulp(value: str) -> float:
    if not 0.5 <= float(value) <= 16.0:
        raise ValueError("a number from 0.5 to 16")
    return float(value)


def _yes(value: str) -> bool:
    return _one_of("yes", "no")(value) == "yes"


WORDS: dict[str, Callable[[str], Any]] = {
    "round": _modes,
    "zp_inside": _yes,
    "offset_qmin": _yes,
    "requant": _one_of("float32", "fixed"),
    "q_div": _one_of("strict", "wide", "recip"),
    "div_ulp": _ulp,
    "ftz": _yes,
}


def split(text: str) -> tuple[str, str]:
    """A backend's name and what is declared behind it; a `~` of a path (`@~/venv`, `PROGRA~1`) declares nothing."""
    name, _, words = text.rpartition("~")
    return (
        (name, words) if name and words and not re.search(r"[/\\:@]", words) and not words[:1].isdigit() else (text, "")
    )


def parse(words: str, base: Policy = DEFAULT) -> Policy:
    """`base` with what `round=away+up,requant=fixed` says. Raises: PolicyError naming the word and what it may be."""
    fields: dict[str, Any] = {}
    for item in words.split(","):
        name, equals, value = item.partition("=")
        if not equals or name not in WORDS:
            raise PolicyError(f"declared rounding {item!r}: write NAME=VALUE with a name among {', '.join(WORDS)}")
        if name in fields:
            raise PolicyError(f"declared rounding {words!r}: {name} is given twice")
        try:
            fields[name] = WORDS[name](value)
        except ValueError as why:
            raise PolicyError(f"declared rounding {item!r}: {name} is {why}") from None
    return replace(base, **fields)
