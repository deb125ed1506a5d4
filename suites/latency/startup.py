"""How long a command takes before it does anything; each sample is a fresh interpreter."""

from __future__ import annotations

STARTS = {
    "package": "import opgauge",
    "command line": "import opgauge.cli",
    "cpu": "import opgauge.backends.cpu as b; b.load()",
    "onnxruntime": "import opgauge.backends.onnxruntime as b; b.load()",
}


def timeraw_start(what: str) -> str:
    return STARTS[what]


timeraw_start.params = (tuple(STARTS),)  # type: ignore[attr-defined]
timeraw_start.param_names = ("what",)  # type: ignore[attr-defined]
timeraw_start.number = 1  # type: ignore[attr-defined]
timeraw_start.rounds = 1  # type: ignore[attr-defined]
timeraw_start.repeat = (3, 5, 10.0)  # type: ignore[attr-defined]
