"""Rows that other packages add to our tables: offered through entry points, loaded where the table is read.

| group | what the entry point names |
|---|---|
| `opgauge.operators` | a mapping (domain, op_type) -> `OperatorDef` |
| `opgauge.primitives` | a mapping name -> `PrimitiveDef` |
| `opgauge.kernels.cpu`, `opgauge.kernels.wgpu` | a sequence of `Kernel` |
| `opgauge.suites` | a sequence of `CaseSpec` |

A backend (`opgauge.backends`) is a module by name, which only its own worker imports: see `backends.table`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from importlib import metadata
from typing import Any, NamedTuple

from .errors import OpgaugeError


class ExtensionError(OpgaugeError):
    """What an installed package offers cannot be loaded, is no row, or takes the place of another row."""


class Offer(NamedTuple):
    """What one entry point names, and how messages call it."""

    name: str
    value: Any


@functools.cache
def extensions(group: str) -> tuple[Offer, ...]:
    """What installed packages offer to a table, in the order of their names.

    Raises: ExtensionError naming the distribution that does not load.
    """
    offers = []
    for entry in sorted(metadata.entry_points(group=group), key=lambda e: (e.dist.name if e.dist else "", e.name)):
        by = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
        name = f"{by}: entry point {entry.name!r} of {group} ({entry.value})"
        try:
            offers.append(Offer(name, entry.load()))
        except Exception as error:  # an import may raise anything
            raise ExtensionError(
                f"{name} does not load: {type(error).__name__}: {error}; repair or uninstall it"
            ) from error
    return tuple(offers)


def added(
    group: str, kind: type, own: Iterable[Hashable], key: Callable[[Any], Hashable] | None = None
) -> dict[Any, Any]:
    """The rows that other packages add to those at `own`; `key` gives the place of a row in a sequence.

    Raises: ExtensionError for what is no row, or is there already.
    """
    taken, rows = set(own), {}
    for name, value in extensions(group):
        for place, row in _placed(name, value, kind, key):
            if not isinstance(row, kind):
                raise ExtensionError(f"{name}: {place!r} is {type(row).__name__}, expected {kind.__name__}")
            if place in taken:
                raise ExtensionError(f"{name}: there is a row for {place!r} already; take another name")
            taken.add(place)
            rows[place] = row
    return rows


def _placed(name: str, value: Any, kind: type, key: Callable[[Any], Hashable] | None) -> Iterable[tuple[Hashable, Any]]:
    wanted = f"a mapping to {kind.__name__}" if key is None else f"a sequence of {kind.__name__}"
    if key is None and isinstance(value, Mapping):
        return value.items()
    if key is not None and isinstance(value, (tuple, list)):
        return [(key(row) if isinstance(row, kind) else i, row) for i, row in enumerate(value)]
    raise ExtensionError(f"{name} is {type(value).__name__}, expected {wanted}")
