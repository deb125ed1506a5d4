"""What a finding means: symptom, likely cause, evidence, next command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from opgauge.reference_engine.types import Record, Status
from opgauge.reports.legend import MARKS, clean
from opgauge.reports.tables import relation, repro_line

from .api import evidence

WIDTHS = (64, 32, 16, 8, 4)  # tile and vector widths that kernels use
SHARE = 0.9


class Advice(NamedTuple):
    cause: str
    next: str


STATUSES: dict[Status, Advice] = {
    Status.CRASH: Advice("a wrong pointer or length in native code", "run the kernel under a debugger or a sanitizer"),
    Status.HANG: Advice("a deadlock, or a loop that never ends for this shape", "look at the shape for zeros and ones"),
    Status.OOM: Advice("memory that grows with the shape or with each call", "run the case twice and watch its memory"),
    Status.OVERRUN: Advice("a tail or a padded tile is read or written past the end", "compare sizes with tile widths"),
    Status.UNWRITTEN: Advice("a tail or an empty loop leaves elements as they were", "compare sizes with tile widths"),
    Status.CLOBBERED: Advice(
        "the kernel works in place on a tensor that it does not own", "copy, or write only to out"
    ),
    Status.LEAK: Advice("memory of each call is kept", "free what a call allocates, or cache it by shape"),
    Status.FLAKY: Advice("uninitialised memory, or a race between threads", "run with one thread and compare"),
    Status.UNSUPPORTED: Advice("the runtime refuses a legal case", "read its message; it is no failure"),
    Status.UNAVAILABLE: Advice("the backend cannot be loaded here", "opgauge doctor"),
    Status.UNTRUSTED: Advice("the data saturate or are undecided, so passing proves nothing", "raise --budget"),
    Status.INVALID: Advice("the case is not legal ONNX: a mistake of ours", "report it with the case id"),
    Status.DEVIATION: Advice("a recorded, true deviation of this runtime", "see baselines/expectations.toml"),
    Status.PASS: Advice("nothing is wrong", "nothing to do"),
}
POLICIES: tuple[tuple[str, str], ...] = (
    ("round=away", "ties are rounded away from zero; the standard rounds them to even"),
    ("round=up", "ties are rounded up (floor(x + 0.5)); the standard rounds them to even"),
    ("round=floor", "the result is floored instead of rounded"),
    ("round=trunc", "the result is truncated instead of rounded (a cast without rounding)"),
    ("zp_inside", "the zero point is added before rounding instead of after"),
    ("more float32 roundings", "the scale is applied in more steps than one multiplication"),
    ("any rounding", "the rounding is not one of the known modes, but the number before it is right"),
)


def likely_cause(record: Record) -> Advice:
    """The most specific cause that the evidence supports; a guess, and said to be one."""
    detail = record.detail
    if detail.get("after"):
        return Advice(
            "state kept between calls: a cache whose key lacks what differs, or memory that an earlier call wrote",
            "compare the two cases: what differs between them belongs into the key",
        )
    if record.status is not Status.FAIL:
        return STATUSES[record.status]
    if "has shape" in record.message:
        return Advice("the shape is computed wrongly", "check pads, strides, ceil_mode and broadcasting")
    if "expected" in record.message and isinstance(detail.get("got"), str):
        return Advice("the element type of an output is wrong", "cast the result to the type that ONNX states")
    if "returned" in record.message:
        return Advice("the number of outputs is wrong", "return every output of the node, in ONNX's order")
    wider = str(detail.get("wider", ""))
    cause = next((cause for word, cause in POLICIES if word in wider), "")
    if known := detail.get("formula"):
        exactly = f"it computes {known[0]}, to the bit"
        told = f"{cause}: {exactly}" if cause else exactly
        return Advice(told, "opgauge fingerprint BACKEND; compare with docs/numerics.md, N4 and N10")
    if cause:
        return Advice(cause, "compare with docs/numerics.md, N4 and N10")
    stripes = pattern(detail)
    if said := relation(detail):
        return Advice(f"{said}; {stripes}" if stripes else said, str(detail["relation"][-1]))
    if stripes:
        return Advice(stripes, "try a size that is a multiple of the width: then it should pass")
    if "no rounding policy" in wider:
        return Advice(
            "the number before rounding is wrong: accumulator, zero point or scale", "test a scale of 1 first"
        )
    return Advice(
        "arithmetic: the error is larger than any order of evaluation explains", "test the smallest shape first"
    )


def pattern(detail: Mapping[str, Any]) -> str:
    """Do the outside elements lie in the tail of the last axis, for one of the usual widths."""
    positions, shape = detail.get("positions"), detail.get("shape")
    if not positions or not shape or int(shape[-1]) < WIDTHS[-1]:
        return ""
    last = int(shape[-1])
    columns = np.asarray(positions) % last
    for width in WIDTHS:
        tail = last % width
        if tail and last > width and (columns >= last - tail).mean() >= SHARE:
            return f"errors lie in the last {tail} of {last} columns: the tail beyond a tile of {width}"
    return ""


def explain(record: Record) -> str:
    """Plain text in four parts."""
    advice, mark = likely_cause(record), MARKS[record.status]
    lines = [
        f"symptom   {mark.glyph} {record.status}: {record.op} {record.label} on {clean(record.backend)}",
        f"          {mark.meaning}",
        f"cause     likely: {clean(advice.cause, 400)}",
    ]
    found = [clean(record.message, 400), *(line.strip() for line in evidence(record.detail))]
    shown = [line for line in found if line]
    lines += [f"{'evidence' if i == 0 else '':<9} {line}" for i, line in enumerate(shown)]
    lines += [f"next      {clean(advice.next)}", f"          {repro_line(record)}"]
    return "\n".join(lines) + "\n"


def listing(records: Sequence[Record]) -> list[str]:
    """Numbered lines, the way `explain NUMBER` counts them."""
    return [
        f"{i:>3}  {r.status:<10} {r.op} {r.label} on {clean(r.backend, 60)}: {clean(r.message, 100)}"
        for i, r in enumerate(records, 1)
    ]
