"""What a lowering writes with: values, `emit`, and the few moves that every lowering shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import dtypes as dt
from .errors import ModelError, ShapeError
from .known import Unknowable, content
from .primitives import primitive_of
from .types import Array, Node, TensorSpec


@dataclass(frozen=True)
class Value:
    """A tensor in a graph under construction."""

    name: str
    spec: TensorSpec

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> str:
        return self.spec.dtype

    @property
    def rank(self) -> int:
        return len(self.spec.shape)


@dataclass(frozen=True)
class OperatorDef:
    """How one ONNX operator becomes primitives.

    `lower(emit, *inputs, **attributes)`; `since` the lowest opset it is right for. `forced` output
    indices that the other outputs are judged against as returned.
    """

    lower: Callable[..., Any]
    since: int = 1
    domain: str = ""
    forced: tuple[int, ...] = ()


@dataclass
class Emitter:
    """Appends primitives to a graph, inferring shapes and dtypes on the spot."""

    nodes: list[Node] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    feeds: Mapping[str, Array] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    source: str = ""
    opset: int = 0
    onnx_opset: int = 0
    n_outputs: int = 1
    zp_inside: bool = False
    expanded: bool = False
    uncertain: dict[str, Array] = field(default_factory=dict)

    def __call__(self, primitive: str, *inputs: Value, fn: str = "", **attrs: Any) -> Value:
        definition = primitive_of(primitive)
        try:
            spec = definition.infer(*(v.spec for v in inputs), fn=fn, **attrs)
        except ModelError as error:
            raise type(error)(f"{self.source}: {error}") from error
        name = f"%{len(self.nodes)}"
        self.nodes.append(Node(primitive, fn, tuple(v.name for v in inputs), name, attrs, self.source))
        self.specs[name] = spec
        return Value(name, spec)

    def constant(self, array: Any, uncertain: Array | None = None) -> Value:
        """A constant of the graph; the array's dtype decides the tensor's. See `Graph.uncertain`."""
        data = np.asarray(array)
        name = f"%c{len(self.constants)}"
        self.constants[name] = data
        self.specs[name] = TensorSpec(data.shape, dt.word_of(data.dtype))
        if uncertain is not None:
            self.uncertain[name] = uncertain
        return Value(name, self.specs[name])

    def data(self, value: Value, what: str) -> Array:
        """The content of a constant, of a run-time input that a shape depends on, or of what these give exactly.

        Raises: ModelError where the content is only known after other nodes have run.
        """
        if value.name in self.constants:
            return self.constants[value.name]
        if value.name in self.feeds:
            self.bound.add(value.name)
            return np.asarray(self.feeds[value.name])
        try:
            found, used = content(value.name, self.nodes, self.specs, self.constants, self.feeds)
        except Unknowable as reason:
            raise ModelError(f"{self.source}: {what} depends on a computed tensor: {reason}") from None
        self.bound |= used
        return found


def reshape(emit: Emitter, x: Value, shape: tuple[int, ...]) -> Value:
    shape = tuple(int(d) for d in shape)
    return x if shape == x.shape else emit("DataMove", x, fn="reshape", shape=shape)


def transpose(emit: Emitter, x: Value, perm: tuple[int, ...]) -> Value:
    perm = tuple(int(p) for p in perm)
    return x if perm == tuple(range(x.rank)) else emit("DataMove", x, fn="transpose", perm=perm)


def expand(emit: Emitter, x: Value, shape: tuple[int, ...]) -> Value:
    """Broadcast to `shape`, numpy rules. Raises: ShapeError."""
    shape = tuple(int(d) for d in shape)
    if shape == x.shape:
        return x
    x = reshape(emit, x, (1,) * (len(shape) - x.rank) + x.shape)
    return x if x.shape == shape else emit("DataMove", x, fn="expand", shape=shape)


def broadcast_shape(emit: Emitter, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        text = " and ".join("x".join(map(str, s)) or "scalar" for s in shapes)
        raise ShapeError(f"{emit.source}: shapes {text} do not broadcast") from None


def broadcast(emit: Emitter, *values: Value) -> tuple[Value, ...]:
    shape = broadcast_shape(emit, *(v.shape for v in values))
    return tuple(expand(emit, v, shape) for v in values)


def elementwise(emit: Emitter, fn: str, *values: Value, **attrs: Any) -> Value:
    """fn over the broadcast operands."""
    return emit("Elementwise", *broadcast(emit, *values), fn=fn, **attrs)


def cast(emit: Emitter, x: Value, to: str) -> Value:
    return x if x.dtype == to else emit("Elementwise", x, fn="cast", to=to)


def scalar(emit: Emitter, value: float, dtype: str) -> Value:
    return emit.constant(np.asarray(value, dt.numpy_dtype(dtype)))


def normal_axis(emit: Emitter, axis: int, rank: int) -> int:
    """A non-negative axis. Raises: ShapeError when out of range."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{emit.source}: axis {axis} is out of range for rank {rank}")
    return axis % rank
