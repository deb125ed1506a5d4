"""Plans kept by what they are good for: one model, one signature of shapes and types, one content of bound inputs."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .types import Array

T = TypeVar("T")
CAPACITY = 16


@dataclass(frozen=True)
class Kept(Generic[T]):
    """A plan, and the content of the inputs that decided a shape or an attribute in it."""

    key: tuple[object, ...]
    content: Mapping[str, bytes]
    plan: T

    def serves(self, key: tuple[object, ...], inputs: Mapping[str, Array]) -> bool:
        return self.key == key and all(inputs[name].tobytes() == data for name, data in self.content.items())


@dataclass
class PlanCache(Generic[T]):
    """The last used plans, at most `capacity`; counts since it was made."""

    capacity: int = CAPACITY
    kept: list[Kept[T]] = field(default_factory=list)  # the last used at the end
    lookups: int = 0
    hits: int = 0
    evictions: int = 0

    def find(self, model: bytes, inputs: Mapping[str, Array]) -> T | None:
        """The plan for these inputs, counted as a hit or a miss."""
        self.lookups += 1
        key = signature(model, inputs)
        for at, entry in enumerate(self.kept):
            if entry.serves(key, inputs):
                self.kept.append(self.kept.pop(at))
                self.hits += 1
                return entry.plan
        return None

    def keep(self, model: bytes, inputs: Mapping[str, Array], bound: tuple[str, ...], plan: T) -> list[T]:
        """Add a plan; those that had to leave, oldest first."""
        content = {name: inputs[name].tobytes() for name in bound}
        self.kept.append(Kept(signature(model, inputs), content, plan))
        gone = [entry.plan for entry in self.kept[: -self.capacity]]
        del self.kept[: -self.capacity]
        self.evictions += len(gone)
        return gone

    def clear(self) -> None:
        self.kept.clear()

    @property
    def hit_rate(self) -> float:
        return self.hits / self.lookups if self.lookups else 0.0

    def counts(self, hit: bool) -> dict[str, int]:
        """This run's hit, and all lookups, hits and evictions so far."""
        return {
            "plan_hit_count": int(hit),
            "plan_lookups": self.lookups,
            "plan_hits": self.hits,
            "plan_eviction_count": self.evictions,
        }


def signature(model: bytes, inputs: Mapping[str, Array]) -> tuple[Any, ...]:
    """The model's hash, and name, type and shape of each input."""
    specs = tuple((name, x.dtype.str, x.dtype.name, x.shape) for name, x in sorted(inputs.items()))
    return (digest(model), specs)


@functools.lru_cache(CAPACITY)
def digest(model: bytes) -> bytes:
    """Once for each model object: hashing weights again in every call would be most of a small model's time."""
    return hashlib.sha256(model).digest()
