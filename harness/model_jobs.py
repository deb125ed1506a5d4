"""What a command asks of a reference worker about a whole model: a small value that travels as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

UNOPTIMISED = "cpu:disable=all"
TOOLS = "opgauge.backends.onnxruntime_counts"
COUNTER = f"{TOOLS}:count"


@dataclass(frozen=True)
class Job:
    """A model to judge. `dims`, `values` and `spread` as in `model_inputs.draw`; `inputs` an .npz instead.

    `path` is a file, or the name of a built-in network or of a row of `suites/real_models.py`, which is fetched where
    it is loaded. `unoptimised`: judge the engine without rules too, which is only counted otherwise.
    """

    path: str
    name: str = ""
    dims: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)
    inputs: str = ""
    seed: int = 0
    regions: bool = True
    unoptimised: bool = False

    def text(self) -> str:
        return json.dumps(vars(self), sort_keys=True)

    @property
    def title(self) -> str:
        return self.name or Path(self.path).stem
