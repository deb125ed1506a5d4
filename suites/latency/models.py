"""One call of built-in networks."""

from __future__ import annotations

from typing import Any

from .prepared import BACKENDS, NETWORKS, built_in


def time_model(network: str, backend: str) -> Any:
    return built_in(network, backend)()


time_model.params = (NETWORKS, BACKENDS)  # type: ignore[attr-defined]
time_model.param_names = ("network", "backend")  # type: ignore[attr-defined]
time_model.number = 10  # type: ignore[attr-defined]
time_model.rounds = 2  # type: ignore[attr-defined]
time_model.repeat = (5, 40, 2.0)  # type: ignore[attr-defined]
