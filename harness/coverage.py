"""What drawn cases exercised, in classes: shapes by vector widths, attributes, parameters, data, broadcasting, opsets.

A class is a short text (`A last % 16 = 1`); two cases that share all their classes are much the same to a kernel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.errors import CaseError
from opgauge.reference_engine.types import Arg, Attr, Case, Record

WIDTHS = (4, 8, 16, 32, 64)  # vectors and tiles of common kernels
GROUPS = ("shape", "attributes", "parameters", "data", "broadcasting", "opset", "outcome")
Class = tuple[str, str]  # its group and its text


def classes(case: Case) -> frozenset[Class]:
    """Everything that a case exercises before it runs."""
    found: set[Class] = {("opset", f"opset {case.opset}"), ("data", f"profile {case.profile}")}
    for arg in case.args:
        found.update(_of_arg(arg))
    for name, value in case.attrs:
        found.add(("attributes", f"{name} {_of_attr(value)}"))
    found.add(("attributes", "with " + ("+".join(sorted(n for n, _ in case.attrs)) or "none")))
    found.update(_broadcasting([a for a in case.args if not a.absent and a.values is None]))
    return frozenset(found)


def residue(size: int, width: int) -> str:
    """Where a size stands to a vector width."""
    if size < width:
        return "below"
    rest = size % width
    return {0: "= 0", 1: "= 1", width - 1: "= -1"}.get(rest, "else")


def _of_arg(arg: Arg) -> Iterator[Class]:
    if arg.absent:
        yield "parameters", f"{arg.name} absent"
        return
    yield "parameters", f"{arg.name} {'constant' if arg.const else 'at run time'}"
    if arg.values is not None and len(arg.values) <= 1:
        yield "parameters", f"{arg.name} {_of_value(arg)}"
        return
    shape = arg.shape
    yield "shape", f"{arg.name} rank {len(shape)}"
    if arg.values is None:
        yield "data", f"{arg.name} {arg.profile}"
    if not shape:
        return
    for width in WIDTHS:
        yield "shape", f"{arg.name} last % {width} {residue(shape[-1], width)}"
    yield "shape", f"{arg.name} 2^{math.prod(shape).bit_length()} elements"
    for word, holds in (
        ("empty", 0 in shape),
        ("dimension of 1", 1 in shape),
        ("equal dimensions", len(shape) > 1 and len(set(shape)) == 1),
        ("unequal dimensions", len(set(shape)) > 1),
    ):
        if holds:
            yield "shape", f"{arg.name} {word}"


def _of_value(arg: Arg) -> str:
    """The class of a scalar: of a zero point where it lies in its type, of a float what kind of number it is."""
    value = (arg.values or (0,))[0]
    if not dt.is_float(arg.dtype):
        low, high = dt.limits(arg.dtype) if arg.dtype != "bool" else (0, 1)
        named = {low: "least", high: "largest", (low + high + 1) // 2: "middle", 0: "0"}
        return named.get(int(value), "odd" if int(value) % 2 else "even")
    if not math.isfinite(value) or value == 0:
        return str(value)
    fraction, exponent = math.frexp(abs(value))
    size = "tiny" if exponent < -13 else "large" if exponent > 1 else "usual"
    kind = "2^k" if fraction == 0.5 else "3 * 2^k" if fraction == 0.75 else "other"
    if kind == "other" and abs(value) <= dt.MAX["float16"] and float(np.float16(value)) == value:
        kind = "float16"
    return f"{kind}, {size}{', negative' if value < 0 else ''}"


def _of_attr(value: Attr | Arg) -> str:
    if isinstance(value, Arg):
        return value.dtype
    if not isinstance(value, tuple):
        return f"{value:.3g}" if isinstance(value, float) else str(value)
    if not value:
        return "empty"
    if len(set(value)) == 1:
        return f"all {value[0]}"
    return "some 0" if 0 in value else "mixed"


def _broadcasting(args: Sequence[Arg]) -> Iterator[Class]:
    """How the first two tensors meet."""
    if len(args) < 2:
        return
    a, b = args[0].shape, args[1].shape
    if a == b:
        yield "broadcasting", "same shape"
        return
    if len(a) != len(b):
        yield "broadcasting", f"rank {'+' if len(a) > len(b) else '-'}{abs(len(a) - len(b))}"
    for x, y in zip(reversed(a), reversed(b), strict=False):
        if x != y and 1 in (x, y):
            yield "broadcasting", f"{'first' if x == 1 else 'second'} repeated"


def outcome(record: Record) -> frozenset[Class]:
    """What only the result shows."""
    words = [name for name in ("ties", "saturated", "undecided") if getattr(record, name)]
    words += ["set of several" for _ in range(record.set_size > 1)]
    return frozenset(("outcome", word) for word in words)


@dataclass(frozen=True)
class Row:
    """The coverage of one suite row. `once` are classes that a single case hit: more of them are still to be found."""

    name: str
    cases: int
    classes: Mapping[Class, int]

    @property
    def once(self) -> int:
        return sum(count == 1 for count in self.classes.values())

    def groups(self) -> dict[str, int]:
        return {g: sum(group == g for group, _ in self.classes) for g in GROUPS}


def of_cases(name: str, cases: Iterable[Case]) -> Row:
    found: Counter[Class] = Counter()
    number = 0
    for case in cases:
        found.update(classes(case))
        number += 1
    return Row(name, number, dict(found))


def of_records(records: Iterable[Record]) -> list[Row]:
    """The rows of a run; a case counts once, whatever the number of backends."""
    seen: dict[str, dict[str, set[Class]]] = {}
    for record in records:
        if record.suite not in ("operators", "opsets") or record.case.startswith("statistics/"):
            continue
        try:
            case, label = parse_id(record.case)
        except CaseError:
            continue
        rows = seen.setdefault(f"{case.op}/{label}", {})
        rows.setdefault(record.case, set(classes(case))).update(outcome(record))
    return [
        Row(name, len(cases), dict(Counter(c for found in cases.values() for c in found)))
        for name, cases in sorted(seen.items())
    ]


def as_dict(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For JSON: counts by group, and every class with the number of cases that hit it."""
    return [
        {
            "row": row.name,
            "cases": row.cases,
            "classes": len(row.classes),
            "once": row.once,
            "groups": row.groups(),
            "hits": {f"{group}: {text}": row.classes[group, text] for group, text in sorted(row.classes)},
        }
        for row in rows
    ]


def lines(rows: Sequence[Row]) -> list[str]:
    """A table for terminals."""
    width = max([len("row"), *(len(row.name) for row in rows)])
    heads = ["cases", "classes", "once", *GROUPS]
    found = ["  ".join([f"{'row':<{width}}", *heads])]
    for row in rows:
        numbers = [row.cases, len(row.classes), row.once, *row.groups().values()]
        cells = [f"{n:>{len(head)}}" for n, head in zip(numbers, heads, strict=True)]
        found.append("  ".join([f"{row.name:<{width}}", *cells]))
    total, once = sum(len(r.classes) for r in rows), sum(r.once for r in rows)
    return [*found, f"coverage: {total:,} classes in {len(rows):,} rows, {once:,} of them hit by one case only"]
