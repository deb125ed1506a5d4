"""How a status, a number and a stranger's text are shown: one table and three formatters for every report."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from opgauge.reference_engine.types import MISBEHAVIOUR, Status


class Mark(NamedTuple):
    """`tone` is the colour class; `rank` orders by gravity, 0 the gravest."""

    glyph: str
    tone: str
    rank: int
    meaning: str


MARKS: dict[Status, Mark] = {
    Status.FAIL: Mark("✗", "bad", 0, "outside the acceptance set, wrong shape or dtype, or accepts what is illegal"),
    Status.CRASH: Mark("!", "bad", 1, "the kernel process died"),
    Status.HANG: Mark("!", "bad", 2, "no answer within the time limit"),
    Status.OOM: Mark("!", "bad", 3, "ran out of memory"),
    Status.OVERRUN: Mark("!", "bad", 4, "wrote or read outside a buffer"),
    Status.UNWRITTEN: Mark("!", "bad", 5, "left output elements unwritten"),
    Status.CLOBBERED: Mark("!", "bad", 6, "changed its input"),
    Status.LEAK: Mark("!", "bad", 7, "left process state or resources behind"),
    Status.FLAKY: Mark("!", "bad", 8, "two runs of one case disagreed"),
    Status.DEVIATION: Mark("≠", "note", 9, "outside, but explained by a recorded, true deviation of that runtime"),
    Status.UNTRUSTED: Mark("?", "warn", 10, "would pass, but the data proved nothing"),
    Status.INVALID: Mark("¬", "dim", 11, "the case itself is not legal; counted for nobody"),
    Status.UNSUPPORTED: Mark("∅", "dim", 12, "the runtime refuses a legal case, with its message"),
    Status.UNAVAILABLE: Mark("○", "dim", 13, "the backend could not be loaded"),
    Status.PASS: Mark("✓", "ok", 14, "inside the acceptance set"),
}
STATUSES: tuple[Status, ...] = tuple(MARKS)
RED: tuple[Status, ...] = tuple(s for s in STATUSES if MARKS[s].tone == "bad")
MISBEHAVED: tuple[Status, ...] = tuple(s for s in STATUSES if s in MISBEHAVIOUR)
JUDGED: tuple[Status, ...] = (Status.PASS, Status.DEVIATION, Status.UNTRUSTED, Status.FAIL)
NO_RESULT = "no result"

# Controls (a terminal obeys them, XML forbids them), bidirectional overrides (they reorder what is read), surrogates.
_HOSTILE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufffe\uffff]+")


def clean(text: object, limit: int = 200) -> str:
    """A stranger's text on one line, without control characters, at most `limit` characters long."""
    shown = _HOSTILE.sub(" ", str(text)[: 4 * limit]).strip()
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def number(value: Any) -> str:
    """`12,345`, `0.0312`; `no result` where there is no number."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NO_RESULT
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{int(value):,}" if not isinstance(value, float) or math.isfinite(value) else str(value)


def share(part: float, whole: float) -> str:
    """A percentage that never rounds something to nothing; `no result` without a denominator."""
    if not whole or math.isnan(whole) or math.isnan(part):
        return NO_RESULT
    percent = 100 * part / whole
    if 0 < percent < 0.01:
        return "<0.01 %"
    if 99.99 < percent < 100:
        return ">99.99 %"
    return f"{percent:.2f} %" if percent % 1 else f"{percent:.0f} %"


def element(value: Any) -> str:
    """One number of an offending element, or its index, exactly enough to find it again."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(element, value))
    return clean(value, 60)


def acceptance(value: Any) -> str:
    """What was admissible: a number, words, a pair (inclusive bounds) or a longer list (the only members)."""
    if not isinstance(value, (list, tuple)):
        return element(value)
    if len(value) == 2:
        return element(value[0]) if value[0] == value[1] else f"{element(value[0])} … {element(value[1])}"
    return "{" + ", ".join(map(element, value)) + "}"
