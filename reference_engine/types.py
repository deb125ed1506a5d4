"""The values that flow between rooms. All frozen; none knows a file, a backend or a test framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

Array = np.ndarray
Attr = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


class Status(StrEnum):
    """The only list of statuses (docs/numerics.md explains each)."""

    PASS = "pass"
    DEVIATION = "deviation"
    UNTRUSTED = "untrusted"
    UNSUPPORTED = "unsupported"
    FAIL = "fail"
    CRASH = "crash"
    HANG = "hang"
    OOM = "oom"
    OVERRUN = "overrun"
    UNWRITTEN = "unwritten"
    CLOBBERED = "clobbered"
    LEAK = "leak"
    FLAKY = "flaky"
    INVALID = "invalid"
    UNAVAILABLE = "unavailable"


MISBEHAVIOUR = frozenset(
    {
        Status.CRASH,
        Status.HANG,
        Status.OOM,
        Status.OVERRUN,
        Status.UNWRITTEN,
        Status.CLOBBERED,
        Status.LEAK,
        Status.FLAKY,
    }
)
FINDINGS = MISBEHAVIOUR | {Status.FAIL}


@dataclass(frozen=True)
class TensorSpec:
    """Shape and element type of a tensor, the type in ONNX's own word (`float32`, `uint8`)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)  # exact: numpy would wrap

    def __str__(self) -> str:
        return f"{self.dtype}[{'x'.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Arg:
    """One input of a case: drawn from a data profile, or a literal.

    `values` literal elements in row-major order; otherwise `profile` names how the seed becomes data.
    `const` stores the tensor as an initializer instead of a run-time input. An absent optional input
    has an empty `dtype`.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    profile: str = ""
    params: tuple[float, ...] = ()
    values: tuple[float, ...] | None = None
    const: bool = False

    @property
    def absent(self) -> bool:
        return not self.dtype


@dataclass(frozen=True)
class Case:
    """One single-operator model with its inputs, spelled completely by `case.id_of` (DESIGN: drawn values).

    An attribute that holds a tensor is an `Arg` with literal elements.
    """

    op: str
    domain: str
    opset: int
    args: tuple[Arg, ...]
    outputs: tuple[str, ...]
    attrs: tuple[tuple[str, Attr | Arg], ...] = ()
    seed: int = 0
    profile: str = "plain"


@dataclass(frozen=True)
class CaseSpec:
    """A row of a suite: what is tried and by whose authority.

    `draw` is a Hypothesis strategy of `Case`; `label` the dtype part of the id (`uint8,int8`).
    """

    op: str
    label: str
    draw: Any
    source: str
    domain: str = ""

    @property
    def name(self) -> str:
        return f"{self.op}/{self.label}"


@dataclass(frozen=True)
class Node:
    """One primitive: `output = primitive.fn(inputs; attrs)`; `source` is the ONNX node it came from."""

    primitive: str
    fn: str
    inputs: tuple[str, ...]
    output: str
    attrs: Mapping[str, Any]
    source: str

    @property
    def kind(self) -> str:
        return f"{self.primitive}.{self.fn}" if self.fn else self.primitive


@dataclass(frozen=True)
class Graph:
    """A primitive graph in topological order, every shape and dtype known.

    `bound` names the run-time inputs whose *content* decided a shape or an attribute, so that a plan
    may be reused only for the same content. `forced` are output indices that other outputs are judged
    against as returned (see `OperatorDef.forced`). `uncertain` constants that an honest kernel computes
    itself: how far from a float one it may be, what an integer one may be instead.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    output_names: tuple[str, ...]
    specs: Mapping[str, TensorSpec]
    constants: Mapping[str, Array]
    bound: tuple[str, ...] = ()
    forced: tuple[int, ...] = ()
    uncertain: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Policy:
    """What a runtime declares about its rounding (NUMERICS section 0); never guessed per element."""

    round: tuple[str, ...] = ("even",)
    zp_inside: bool = False
    offset_qmin: bool = False
    requant: str = "float32"
    q_div: str = "wide"
    div_ulp: float = 0.5
    ftz: bool = False

    def __str__(self) -> str:
        default = Policy()
        words = {True: "yes", False: "no"}
        changed = [(k, v) for k in self.__dataclass_fields__ if (v := getattr(self, k)) != getattr(default, k)]
        texts = [f"{k}={'+'.join(v) if isinstance(v, tuple) else words.get(v, v)}" for k, v in changed]
        return ",".join(texts) or "default"


@dataclass(frozen=True)
class Exact:
    """The acceptance set of one output tensor.

    `value` what an exact kernel returns, already in the output dtype. `lo`, `hi` the inclusive bounds per
    element (int64 for integers, float64 for floats). `members` if not empty, the only admissible values
    (each an array). `nan` elements that must be NaN. `free` elements that the specification leaves
    undecided. `real` the number before rounding where there is one. `also` a second set, of a kernel that reads
    subnormal operands as zeros (policy `ftz`): an element may lie in either.
    """

    dtype: str
    value: Array
    lo: Array
    hi: Array
    members: tuple[Array, ...] = ()
    nan: Array | None = None
    free: Array | None = None
    real: Array | None = None
    zero_point: Array | None = None
    also: Exact | None = None


@dataclass(frozen=True)
class Observation:
    """What a backend did with one case: outputs or a refusal, with evidence."""

    status: Status
    outputs: tuple[Array, ...] = ()
    message: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    times_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The oracle's word on one observation."""

    status: Status
    message: str = ""
    explained: str = ""  # exact | within | formula name
    elements: int = 0
    outside: int = 0
    undecided: int = 0
    saturated: int = 0
    ties: int = 0
    set_size: float = 0.0
    sized: int = 0  # unsaturated elements of quantized outputs: what set_size is the mean of
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """One line of the journal: a case on a backend."""

    case: str
    suite: str
    op: str
    label: str
    profile: str
    backend: str
    status: Status
    message: str = ""
    explained: str = ""
    elements: int = 0
    outside: int = 0
    undecided: int = 0
    saturated: int = 0
    ties: int = 0
    set_size: float = 0.0
    sized: int = 0  # unsaturated elements of quantized outputs: what set_size is the mean of
    us: float = 0.0
    detail: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """Something a person must look at: a failing record, a stale deviation, too many untrusted cases."""

    rule: str
    subject: str
    message: str
    repro: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


Hold = Callable[..., Callable[[], None] | None]


@dataclass(frozen=True)
class Bound:
    """A call with its constants made ready.

    `hold(*inputs, out, *attrs)` gives what `call` with them does, as a call of no arguments that may be repeated while
    the arrays stay where they are; None where it has nothing better than `call`.
    """

    call: Callable[..., None]
    hold: Hold


@dataclass(frozen=True)
class Kernel:
    """One row of a device's registry.

    `call(*inputs, out, *attrs)`: inputs and out are C-contiguous arrays, attrs in the order of the
    primitive's `attrs`; it never allocates its result. `dtypes` are those of the inputs, then of the
    output; `("*",)` serves every dtype. `bind(constants, specs)`, where there is one, gives a `call` for inputs of
    which `constants`, by position, never change: what it makes of them (packed weights) is made once. It may give a
    `Bound` with a `hold` besides.
    """

    primitive: str
    fn: str
    dtypes: tuple[str, ...]
    call: Callable[..., None]
    bind: Callable[[Mapping[int, Array], tuple[TensorSpec, ...]], Callable[..., None] | Bound] | None = None
    hold: Hold | None = None
