"""The smallest case that still fails, and for the same reason: first other shapes, then pieces of the very data.

Deterministic: each round tries changes of a case in a fixed order and keeps the first that fails alike.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from opgauge.backends.result import CONTRADICTED
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import OpgaugeError
from opgauge.reference_engine.types import Arg, Attr, Case, Record, Status, Verdict
from opgauge.suites.profiles import tensor

# Up to so many elements in all inputs are spelled out, so that what is left of them are the same numbers.
LITERAL = 2048
FEW = 8  # output elements that a person reads at a glance
SPELLED = 96  # more of them in the result, and the case with drawn data is the better one to read


def symptom(found: Verdict | Record) -> str:
    """The reason of a failure as a word: what kind of thing was wrong, not where or by how much.

    `fail: value`, `fail: NaN`, `fail: no NaN`, `fail: type`, `fail: shape`, `fail: inferred shape`, `fail: count`,
    `fail: raised KeyError`, `crash: SIGSEGV`; empty where nothing failed.
    """
    status, text = found.status, found.message
    if status in (Status.PASS, Status.DEVIATION, Status.UNTRUSTED, Status.UNSUPPORTED, Status.INVALID):
        return ""
    if status is not Status.FAIL:
        signal = re.search(r"SIG[A-Z]+", text)
        return f"{status}: {signal[0]}" if signal else str(status)
    if match := re.match(r"raised (\w+)", text):
        return f"fail: raised {match[1]}"
    if text.startswith("returned "):
        return "fail: count"
    if CONTRADICTED in found.detail:
        return "fail: inferred shape"
    got, expected = _firsts(found.detail)
    if " has shape " in text:
        return "fail: shape"
    if "elements outside" not in text and "got" in found.detail:
        return f"fail: type {found.detail['got']}"
    if got == "nan" or expected == "NaN":
        return "fail: NaN" if got == "nan" else "fail: no NaN"
    return "fail: value"


def _firsts(detail: Mapping[str, Any]) -> tuple[str, str]:
    return tuple(  # type: ignore[return-value]
        str(found[0]) if isinstance(found := detail.get(key), list) and found else "" for key in ("got", "expected")
    )


def alike(first: Verdict | Record, again: Verdict | Record) -> bool:
    """The same symptom, and whatever rounding policies explained the first explain the second too."""
    if not symptom(first) or symptom(first) != symptom(again):
        return False
    wanted, found = (_policies(v.detail.get("wider") or "") for v in (first, again))
    return wanted <= found if wanted else not found or not first.detail.get("wider")


def _policies(text: str) -> frozenset[str]:
    """`would pass with round=up or zp_inside` as a set; nothing where no policy explains it."""
    said = text.removeprefix("would pass with ").partition(" and 8 more")[0]
    return frozenset(said.split(" or ")) if text.startswith("would") else frozenset()


def size(case: Case) -> int:
    """Elements of all inputs."""
    return sum(math.prod(arg.shape) for arg in case.args if not arg.absent)


def minimise(case: Case, same: Callable[[Case], bool], limit_s: float = 5.0) -> Case:
    """The smallest case met, within the time, for which `same` holds; the case itself where there is none."""
    deadline = time.monotonic() + limit_s
    tried: set[Case] = set()

    def fails(candidate: Case) -> bool:
        if candidate in tried or time.monotonic() > deadline:
            return False
        tried.add(candidate)
        try:
            return same(candidate)
        except (OpgaugeError, ValueError, KeyError, IndexError, OverflowError):
            return False  # a change that makes no case

    drawn = _descend(case, lambda c: (*plainer(c), *smaller(c)), fails)
    if size(drawn) > LITERAL:
        return drawn
    spelled = literal(drawn)
    if not fails(spelled):
        return drawn
    cut = _descend(spelled, lambda c: (*slices(c), *plainer(c), *simpler_numbers(c)), fails)
    return cut if size(cut) <= SPELLED else drawn


def _descend(case: Case, changes: Callable[[Case], Iterator[Case] | tuple[Case, ...]], fails) -> Case:
    """Take the first change that fails alike, until none does."""
    going = True
    while going:
        going = False
        for candidate in changes(case):
            if fails(candidate):
                case, going = candidate, True
                break
    return case


# ---- other shapes, data drawn anew


def smaller(case: Case) -> Iterator[Case]:
    """One size made smaller: everywhere, in attributes too, then in single places and pairs of places."""
    places = [(i, axis) for i, arg in enumerate(case.args) if not arg.absent for axis in range(len(arg.shape))]
    sizes = sorted({case.args[i].shape[axis] for i, axis in places}, reverse=True)
    for d in sizes:
        mine = [p for p in places if case.args[p[0]].shape[p[1]] == d]
        for n in _below(d):
            yield resized(case, dict.fromkeys(mine, n), d, n)
            yield resized(case, dict.fromkeys(mine, n))
            groups = [[p] for p in mine] if len(mine) > 1 else []
            groups += [[p, q] for x, p in enumerate(mine) for q in mine[x + 1 :]] if 2 < len(mine) <= 8 else []
            for group in groups:
                yield resized(case, dict.fromkeys(group, n))
                yield resized(case, dict.fromkeys(group, n), d, n)


def _below(d: int) -> list[int]:
    return sorted({n for n in (1, 2, d // 4, d // 2, d - 1) if 0 < n < d})


def resized(case: Case, sizes: Mapping[tuple[int, int], int], old: int = -1, new: int = -1) -> Case:
    """The case with other dimensions; literal elements are cut; `old` becomes `new` in attributes and int64 inputs."""
    args = []
    for i, arg in enumerate(case.args):
        shape = tuple(sizes.get((i, axis), d) for axis, d in enumerate(arg.shape))
        values = arg.values
        if values is not None and shape != arg.shape:
            values = _taken(values, arg.shape, [range(n) for n in shape])
        elif values is not None and arg.dtype == "int64" and old >= 0:
            values = tuple(new if v == old else v for v in values)
        args.append(replace(arg, shape=shape, values=values))
    attrs = tuple((name, _swapped(value, old, new)) for name, value in case.attrs) if old >= 0 else case.attrs
    return replace(case, args=tuple(args), attrs=attrs)


def _swapped(value: Attr | Arg, old: int, new: int) -> Attr | Arg:
    if isinstance(value, tuple):
        return tuple(new if type(v) is int and v == old else v for v in value)  # type: ignore[return-value]
    return value


def _taken(values: tuple[float, ...], shape: tuple[int, ...], kept: list[range] | list[list[int]]) -> tuple[float, ...]:
    """The elements at these places of each axis, row-major."""
    import numpy as np

    index = np.arange(math.prod(shape)).reshape(shape)[np.ix_(*kept)] if shape else np.zeros((), int)
    return tuple(values[i] for i in index.ravel())


def plainer(case: Case) -> Iterator[Case]:
    """Fewer inputs and attributes, and numbers of attributes nearer to 0 and 1."""
    for i in range(len(case.args) - 1, 0, -1):
        if not case.args[i].absent:
            args = (*case.args[:i], Arg(case.args[i].name), *case.args[i + 1 :])
            while args and args[-1].absent:
                args = args[:-1]
            yield replace(case, args=args)
    for i, (name, value) in enumerate(case.attrs):
        rest = case.attrs[:i], case.attrs[i + 1 :]
        yield replace(case, attrs=(*rest[0], *rest[1]))
        for other in _nearer(value):
            yield replace(case, attrs=(*rest[0], (name, other), *rest[1]))


def _nearer(value: Attr | Arg) -> Iterator[Attr]:
    if isinstance(value, tuple) and value and all(type(v) is int for v in value):
        numbers = [v for v in value if isinstance(v, int)]
        for n in (0, 1):
            if any(v > n for v in numbers):
                yield tuple(min(v, n) for v in numbers)
        for i, v in enumerate(numbers):
            for n in (0, 1):
                if v > n:
                    yield (*numbers[:i], n, *numbers[i + 1 :])
    elif type(value) is int and value > 1:
        yield 1


# ---- the same data, less of them


def literal(case: Case) -> Case:
    """Every input spelled out."""
    args = []
    for i, arg in enumerate(case.args):
        if arg.absent or arg.values is not None:
            args.append(arg)
            continue
        array = tensor(arg, case.seed, i)
        plain = array.astype(float) if dt.is_float(arg.dtype) else array.astype(int)
        args.append(replace(arg, profile="", params=(), values=tuple(plain.ravel().tolist())))
    return replace(case, args=tuple(args))


def slices(case: Case) -> Iterator[Case]:
    """A run of places kept along one size, wherever that size occurs: halves, quarters, ..., all but one."""
    places = [(i, axis) for i, arg in enumerate(case.args) if not arg.absent for axis in range(len(arg.shape))]
    for d in sorted({case.args[i].shape[axis] for i, axis in places}, reverse=True):
        mine = [p for p in places if case.args[p[0]].shape[p[1]] == d]
        groups = [mine, *([p] for p in mine if len(mine) > 1)]
        groups += [[p, q] for x, p in enumerate(mine) for q in mine[x + 1 :]] if 2 < len(mine) <= 6 else []
        for kept in _runs(d):
            for group in groups:
                for everywhere in (False, True):
                    yield sliced(case, group, kept, d if everywhere else -1)


def _runs(d: int) -> Iterator[list[int]]:
    every = list(range(d))
    parts = 2
    while parts <= d:
        width = -(-d // parts)
        blocks = [every[i : i + width] for i in range(0, d, width)]
        yield from blocks
        if parts > 2:
            yield from ([i for i in every if i not in block] for block in blocks)
        if parts == d:
            return
        parts = min(2 * parts, d)


def sliced(case: Case, group: list[tuple[int, int]], kept: list[int], old: int) -> Case:
    args = list(case.args)
    for i, arg in enumerate(args):
        mine = [axis for j, axis in group if j == i]
        if arg.values is None:
            continue
        if mine:
            take = [kept if axis in mine else list(range(d)) for axis, d in enumerate(arg.shape)]
            shape = tuple(map(len, take))
            args[i] = replace(arg, shape=shape, values=_taken(arg.values, arg.shape, take))
        elif arg.dtype == "int64" and old >= 0:
            args[i] = replace(arg, values=tuple(len(kept) if v == old else v for v in arg.values))
    attrs = tuple((n, _swapped(v, old, len(kept))) for n, v in case.attrs) if old >= 0 else case.attrs
    return replace(case, args=tuple(args), attrs=attrs)


def simpler_numbers(case: Case) -> Iterator[Case]:
    """All elements of an input, or one of a few, replaced by 0 or 1."""
    for i, arg in enumerate(case.args):
        if arg.values is None or arg.dtype == "int64":
            continue
        for number in (0, 1):
            yield _with_values(case, i, (number,) * len(arg.values))
        if len(arg.values) <= 16:
            for j, v in enumerate(arg.values):
                if v not in (0, 1):
                    for number in (0, 1):
                        yield _with_values(case, i, (*arg.values[:j], number, *arg.values[j + 1 :]))


def _with_values(case: Case, index: int, values: tuple[float, ...]) -> Case:
    arg = case.args[index]
    changed = tuple(float(v) for v in values) if dt.is_float(arg.dtype) else values
    if changed == arg.values:
        return case
    return replace(case, args=(*case.args[:index], replace(arg, values=changed), *case.args[index + 1 :]))
