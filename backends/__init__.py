"""The table of backends, and how a word of the command line becomes one."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from opgauge.reference_engine.errors import OpgaugeError
from opgauge.reference_engine.types import Array, Policy

GIB = 1 << 30
STRICT = Policy()


class RunResult(NamedTuple):
    """What an adapter returns: outputs in graph order, what it counted, what it timed."""

    outputs: tuple[Array, ...]
    counts: Mapping[str, int] = {}
    times_ns: Mapping[str, int] = {}


class UnknownBackendError(OpgaugeError):
    """No backend, or no option of a backend, has this name."""


@dataclass(frozen=True)
class BackendDef:
    """A row of the table. `module` has `load(**options) -> run(model, inputs)` and `info()`.

    `memory_limit` bytes of address space for its worker, 0 for none (GPU drivers reserve more than they use).
    `load_timeout_s` covers imports and the compilation of kernels. `informative` its verdicts are no findings.
    """

    module: str
    summary: str
    policy: Policy = STRICT
    options: tuple[str, ...] = ()
    memory_limit: int = 4 * GIB
    load_timeout_s: float = 120.0
    informative: bool = False


BACKENDS: dict[str, BackendDef] = {
    "cpu": BackendDef("opgauge.backends.cpu", "our engine, numba kernels", options=("disable", "threads")),
    "wgpu": BackendDef(
        "opgauge.backends.wgpu",
        "our engine, WGSL kernels on Vulkan, Metal or D3D12",
        # WGSL 15.7.4: subnormals may be flushed. Division is ours, in integers, since WGSL's own may err by 2.5 ulp.
        Policy(ftz=True),
        options=("adapter", "disable", "fallback"),
        memory_limit=0,
    ),
    "exact": BackendDef("opgauge.backends.exact", "the exact reference itself, which must always pass"),
    "onnxruntime": BackendDef(
        "opgauge.backends.onnxruntime",
        "onnxruntime, CPU execution provider",
        options=("level", "threads", "x64quantprecision"),
    ),
    "onnx-reference": BackendDef(
        "opgauge.backends.onnx_reference", "onnx.reference.ReferenceEvaluator, for information", informative=True
    ),
}


@dataclass(frozen=True)
class BackendSpec:
    """A backend with its options, as the command line spells it.

    `kind` is `table` (a row, `target` its module), `callable` (`target` is `module:attr` or `path.py:attr`) or
    `fault` (`target` is `path.py:ID`).
    """

    text: str
    kind: str
    target: str
    options: tuple[tuple[str, str], ...] = ()
    definition: BackendDef = BackendDef("", "")

    @property
    def name(self) -> str:
        return self.text.partition(":")[0] if self.kind == "table" else self.text

    @property
    def policy(self) -> Policy:
        return self.definition.policy


@functools.cache
def table() -> dict[str, BackendDef]:
    """BACKENDS and what other packages offer through the entry point group `opgauge.backends`."""
    from importlib import metadata  # every kernel worker imports this file; few need that one

    offered = {
        e.name: BackendDef(e.value, f"entry point of {e.dist.name if e.dist else '?'}", options=("*",))
        for e in metadata.entry_points(group="opgauge.backends")
    }
    return {**offered, **BACKENDS}


def resolve(text: str) -> BackendSpec:
    """`onnxruntime:level=basic,threads=1`, `faults:PATH:ID`, `module:attr`, `path.py:attr` -> BackendSpec.

    Raises: UnknownBackendError naming close matches.
    """
    name, _, rest = text.partition(":")
    if name == "faults":
        path, _, fault = rest.rpartition(":")
        if not path or not fault:
            raise UnknownBackendError(f"backend {text!r}: write faults:PATH.py:FAULT_ID")
        return BackendSpec(text, "fault", rest)
    definition = BACKENDS.get(name) or table().get(name)
    if definition:
        options = tuple(sorted(_options(text, name, rest, definition)))
        spelled = ",".join(f"{k}={v}" for k, v in options)
        return BackendSpec(f"{name}:{spelled}" if spelled else name, "table", definition.module, options, definition)
    if re.search(r":[A-Za-z_]\w*$", text):
        return BackendSpec(text, "callable", text, definition=BackendDef("", "a callable of yours"))
    close = difflib.get_close_matches(name, table(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(table()))}"
    raise UnknownBackendError(f"unknown backend {name!r}: {hint}")


def _options(text: str, name: str, rest: str, definition: BackendDef) -> list[tuple[str, str]]:
    pairs = []
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not (key in definition.options or "*" in definition.options):
            known = ", ".join(definition.options) or "none"
            raise UnknownBackendError(f"backend {text!r}: {item!r} is not OPTION=VALUE; options of {name}: {known}")
        pairs.append((key, value))
    return pairs
