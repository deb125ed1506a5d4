"""One call of each key case of gates.toml."""

from __future__ import annotations

from typing import Any

from .prepared import BACKENDS, KEYS, key_case


def time_operator(case: str, backend: str) -> Any:
    return key_case(case, backend)()


time_operator.params = (tuple(KEYS), BACKENDS)  # type: ignore[attr-defined]
time_operator.param_names = ("case", "backend")  # type: ignore[attr-defined]
time_operator.number = 20  # type: ignore[attr-defined]
time_operator.rounds = 2  # type: ignore[attr-defined]
time_operator.repeat = (5, 40, 2.0)  # type: ignore[attr-defined]
