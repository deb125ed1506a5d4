"""The table of backends, and how a word of the command line becomes one."""

from __future__ import annotations

import contextlib
import difflib
import functools
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from opgauge.reference_engine.errors import OpgaugeError
from opgauge.reference_engine.types import Policy

from . import declared
from .result import Runner as Runner
from .result import RunResult as RunResult

GIB = 1 << 30
STRICT = Policy()


class UnknownBackendError(OpgaugeError):
    """No backend, or no option of a backend, has this name."""


@dataclass(frozen=True)
class BackendDef:
    """A row of the table. `module` has `load(**options) -> run(model, inputs)` and `info()`.

    `memory_limit` bytes of address space for its worker, 0 for none (GPU drivers reserve more than they use).
    `load_timeout_s` covers imports and the compilation of kernels. `informative` its verdicts are no findings.
    `distribution` is what the registry calls it, where its module is portable: then any version can be asked for.
    `companions` are other distributions that its module imports.
    """

    module: str
    summary: str
    policy: Policy = STRICT
    options: tuple[str, ...] = ()
    memory_limit: int = 4 * GIB
    load_timeout_s: float = 120.0
    informative: bool = False
    distribution: str = ""
    companions: tuple[str, ...] = ()


BACKENDS: dict[str, BackendDef] = {
    "cpu": BackendDef(
        "opgauge.backends.cpu", "our engine, numba kernels", options=("arena", "disable", "only", "threads")
    ),
    "wgpu": BackendDef(
        "opgauge.backends.wgpu",
        "our engine, WGSL kernels on Vulkan, Metal or D3D12",
        # WGSL 15.7.4: subnormals may be flushed. Division is ours, in integers, since WGSL's own may err by 2.5 ulp.
        Policy(ftz=True),
        options=("adapter", "disable", "fallback", "host", "only"),
        memory_limit=0,
    ),
    "exact": BackendDef("opgauge.backends.exact", "the exact reference itself, which must always pass"),
    "onnxruntime": BackendDef(
        "opgauge.backends.onnxruntime",
        "onnxruntime, CPU execution provider",
        options=("level", "threads", "x64quantprecision"),
        distribution="onnxruntime",
    ),
    "openvino": BackendDef(
        "opgauge.backends.openvino",
        "OpenVINO, CPU plugin",
        options=("isa", "precision", "reference", "threads"),
        memory_limit=0,
        distribution="openvino",
    ),
    "litert": BackendDef(
        "opgauge.backends.litert",
        "LiteRT (TensorFlow Lite), CPU, through a builder of ours",
        # N10: kernels requantize in float32 or in fixed point, round half to even, away or up, divide by a reciprocal.
        # Subnormals are flushed while it runs.
        Policy(round=("even", "away", "up"), requant="fixed", q_div="recip", ftz=True),
        options=("kernels", "threads"),
        distribution="ai-edge-litert",
        companions=("onnx",),
    ),
    "onnx-backend": BackendDef(
        "opgauge.backends.onnx_backend", "any class of the ONNX backend interface", options=("class", "device")
    ),
    "onnx-reference": BackendDef(
        "opgauge.backends.onnx_reference",
        "onnx.reference.ReferenceEvaluator, for information",
        # QLinearMatMul and QLinearConv are written rint(acc * multiplier + zero point).
        Policy(zp_inside=True),
        informative=True,
        distribution="onnx",
    ),
}


OURS = ("cpu", "wgpu", "exact")  # of this package: mended, never excused


@dataclass(frozen=True)
class BackendSpec:
    """A backend with its options, as the command line spells it.

    `kind` is `table` (a row, `target` its module), `callable` (`target` is `module:attr` or `path.py:attr`),
    `native` (`target` is `path.so:SYMBOL`) or `fault` (`target` is `path.py:ID`). `environment` is empty, `@FOLDER`
    (a virtual environment) or `==VERSION` of `distribution` (made on demand).
    """

    text: str
    kind: str
    target: str
    options: tuple[tuple[str, str], ...] = ()
    definition: BackendDef = BackendDef("", "")
    environment: str = ""

    @property
    def name(self) -> str:
        text, _ = declared.split(self.text)
        return re.split(r":|==|@", text)[0] if self.kind == "table" else text

    @property
    def policy(self) -> Policy:
        return self.definition.policy

    @property
    def distribution(self) -> str:
        return self.definition.distribution


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
    """The backend that a word of the command line means. Raises: UnknownBackendError naming close matches, PolicyError.

    `onnxruntime:level=basic,threads=1`, `onnxruntime==1.24.4`, `onnxruntime@FOLDER:level=basic`, `module:attr`,
    `path.py:attr@FOLDER`, `native:PATH.so:SYMBOL`, `faults:PATH:ID`; FOLDER is a virtual environment. Any of them may
    end in `~round=away+up,requant=fixed`: the rounding that is declared for it (declared.py).
    """
    text, words = declared.split(text)
    spec = _undeclared(text)
    if not words:
        return spec
    policy = declared.parse(words, spec.policy)
    return replace(spec, text=f"{spec.text}~{words}", definition=replace(spec.definition, policy=policy))


def informative(texts: Collection[str]) -> frozenset[str]:
    """Those whose verdicts are no findings, of the backends of a run; a run without others is about them."""
    found = set()
    for text in texts:
        with contextlib.suppress(UnknownBackendError, declared.PolicyError):  # of a record made elsewhere
            if resolve(text).definition.informative:
                found.add(text)
    return frozenset(found) if found != set(texts) else frozenset()


def _undeclared(text: str) -> BackendSpec:
    name, _, rest = text.partition(":")
    if name == "faults":
        path, _, fault = rest.rpartition(":")
        if not path or not fault:
            raise UnknownBackendError(f"backend {text!r}: write faults:PATH.py:FAULT_ID")
        return BackendSpec(text, "fault", rest)
    if name == "native":
        if not re.search(r".:[A-Za-z_]\w*$", rest):
            raise UnknownBackendError(f"backend {text!r}: write native:PATH.so:SYMBOL")
        return BackendSpec(text, "native", rest, definition=BackendDef("", "a C kernel of yours"))
    version = re.fullmatch(r"([\w.-]+)(==[^:@]+|@.*?)(?::((?:\w+=[^,:@]*,?)*))?", text)
    if version and version[1] in BACKENDS:
        return _elsewhere(text, version[1], version[2], version[3] or "")
    definition = BACKENDS.get(name) or table().get(name)
    if definition:
        options = tuple(sorted(_options(text, name, rest, definition)))
        return BackendSpec(_spelled(name, options), "table", definition.module, options, definition)
    called = re.fullmatch(r"(.+?:[A-Za-z_]\w*)(@.+)?", text)
    if called:
        definition = BackendDef("", "a callable of yours")
        return BackendSpec(text, "callable", called[1], definition=definition, environment=called[2] or "")
    close = difflib.get_close_matches(name, table(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(table()))}"
    raise UnknownBackendError(f"unknown backend {name!r}: {hint}")


def _elsewhere(text: str, name: str, environment: str, rest: str) -> BackendSpec:
    definition = BACKENDS[name]
    if not definition.distribution:
        able = ", ".join(n for n, row in sorted(BACKENDS.items()) if row.distribution)
        raise UnknownBackendError(f"backend {text!r}: {name} runs in this environment only; any version of: {able}")
    options = tuple(sorted(_options(text, name, rest, definition)))
    return BackendSpec(
        _spelled(name + environment, options), "table", definition.module, options, definition, environment
    )


def _spelled(name: str, options: tuple[tuple[str, str], ...]) -> str:
    return f"{name}:{','.join(f'{k}={v}' for k, v in options)}" if options else name


def _options(text: str, name: str, rest: str, definition: BackendDef) -> list[tuple[str, str]]:
    pairs = []
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not (key in definition.options or "*" in definition.options):
            known = ", ".join(definition.options) or "none"
            raise UnknownBackendError(f"backend {text!r}: {item!r} is not OPTION=VALUE; options of {name}: {known}")
        pairs.append((key, value))
    return pairs
