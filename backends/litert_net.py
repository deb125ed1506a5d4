"""An ONNX graph on its way into a .tflite file: which tensors there are, what is fed to them, what is read back.

LiteRT keeps images as NHWC, ONNX as NCHW. The data of inputs, constants and outputs are moved here, in numpy; only
between two operators is a TRANSPOSE written. What LiteRT keeps as attributes of a tensor or of an operator (scales,
zero points, shapes, axes) is taken from the case's data when the file is built, even where ONNX has run-time inputs.

Portable: the worker of a foreign environment runs this file on Python 3.8 with numpy and onnx.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
import onnx
from onnx import numpy_helper

from opgauge.reference_engine.errors import UnsupportedError

from . import litert_builder
from .litert_builder import Operator, Quantization, Tensor

Shape = Tuple[int, ...]
PLAIN, LAST, FLAT = "plain", "last", "flat"


class Feed(NamedTuple):
    """Tensor `place` of the file is fed with a run-time input, reshaped, then transposed."""

    place: int
    name: str
    shape: Shape
    perm: Shape | None
    dtype: str


class Made(NamedTuple):
    """A tensor of the file that holds an ONNX value of this shape.

    `form` plain: as it is; last: an image with its channels last; flat: the same order of elements, another shape.
    """

    place: int
    shape: Shape
    form: str = PLAIN


class Node(NamedTuple):
    """An ONNX node with its attributes as Python values."""

    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


class Plan(NamedTuple):
    """A .tflite file, what goes into it, and where each output of the ONNX graph is found."""

    model: bytes
    feeds: tuple[Feed, ...]
    fetches: tuple[Made, ...]
    kinds: tuple[str, ...]


class Net:
    """What is written so far, as an emitter: `op` appends an operator and gives its output."""

    def __init__(self, model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], xnnpack: bool = True) -> None:
        graph = model.graph
        self.inputs, self.xnnpack = inputs, xnnpack
        self.constants = {t.name: _array(t) for t in graph.initializer if t.name not in inputs}
        self.nodes = tuple(map(_node, graph.node))
        self.outputs = tuple(o.name for o in graph.output)
        self.opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=13)
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []
        self.feeds: list[Feed] = []
        self.made: dict[str, Made] = {}
        self.sources: dict[Any, int] = {}

    # ---- values of the ONNX graph

    def data(self, name: str) -> np.ndarray:
        """The content of an input or constant. Raises: UnsupportedError for a value that is computed."""
        if name in self.inputs:
            return self.inputs[name]
        if name in self.constants:
            return self.constants[name]
        raise UnsupportedError(f"{name} is computed, and LiteRT wants it when the model is built")

    def known(self, name: str) -> bool:
        return name in self.inputs or name in self.constants

    def dtype(self, name: str) -> str:
        if name in self.made:
            return self.tensors[self.made[name].place].dtype
        return self.data(name).dtype.name

    def shape(self, name: str) -> Shape:
        return self.made[name].shape if name in self.made else self.data(name).shape

    # ---- tensors of the file

    def tensor(
        self,
        dtype: str,
        shape: Sequence[int],
        data: np.ndarray | None = None,
        quantization: Quantization | None = None,
    ) -> int:
        self.tensors.append(Tensor(f"t{len(self.tensors)}", dtype, tuple(int(n) for n in shape), data, quantization))
        return len(self.tensors) - 1

    def constant(self, values: Any, dtype: str = "int32", quantization: Quantization | None = None) -> int:
        array = np.asarray(values, dtype)
        return self.tensor(dtype, array.shape, array, quantization)

    def source(
        self,
        name: str,
        shape: Shape | None = None,
        perm: Shape | None = None,
        quantization: Quantization | None = None,
        dtype: str = "",
    ) -> int:
        """The tensor that holds an input or constant, reshaped, then transposed; constants stay constants."""
        array = self.data(name)
        dtype = dtype or array.dtype.name
        key = (name, shape, perm, quantization, dtype)
        if key not in self.sources:
            first = array.shape if shape is None else shape
            feed = Feed(len(self.tensors), name, first, perm, dtype)
            moved = prepared(feed, array)
            constant = name in self.constants
            self.tensor(dtype, moved.shape, moved if constant else None, quantization)
            if not constant:
                self.feeds.append(feed)
            self.sources[key] = feed.place
        return self.sources[key]

    def op(
        self,
        kind: str,
        inputs: Sequence[int],
        dtype: str,
        shape: Sequence[int],
        quantization: Quantization | None = None,
        **options: Any,
    ) -> int:
        output = self.tensor(dtype, shape, None, quantization)
        self.operators.append(Operator(kind, tuple(inputs), (output,), options))
        return output

    # ---- layouts

    def plain(self, name: str, quantization: Quantization | None = None) -> int:
        """The tensor that holds a value as ONNX has it."""
        if name not in self.made:
            return self.source(name, quantization=quantization)
        made = self.made[name]
        if made.form == PLAIN:
            return made.place
        index = made.place
        if made.form == LAST:
            index = self._transposed(index, (0, 3, 1, 2))
        if self.tensors[index].shape != made.shape:
            index = self._reshaped(index, made.shape)
        self.made[name] = Made(index, made.shape)
        return index

    def last(self, name: str, quantization: Quantization | None = None) -> int:
        """The tensor that holds an image of one or two axes as N H W C."""
        shape = image(self.shape(name))
        if name not in self.made:
            return self.source(name, shape, (0, 2, 3, 1), quantization)
        made = self.made[name]
        if made.form == LAST:
            return made.place
        index = self.plain(name)
        if shape != made.shape:
            index = self._reshaped(index, shape)
        return self._transposed(index, (0, 2, 3, 1))

    def _transposed(self, index: int, perm: Shape) -> int:
        x = self.tensors[index]
        shape = [x.shape[p] for p in perm]
        return self.op("TRANSPOSE", (index, self.constant(perm)), x.dtype, shape, x.quantization)

    def _reshaped(self, index: int, shape: Shape) -> int:
        x = self.tensors[index]
        return self.op("RESHAPE", (index, self.constant(shape)), x.dtype, shape, x.quantization)

    # ---- the result

    def plan(self) -> Plan:
        fetches = []
        for name in self.outputs:
            if name not in self.made:
                raise UnsupportedError(f"output {name} is no result of an operator")
            fetches.append(self.made[name])
        feeds = tuple(self.feeds)
        written = litert_builder.write(
            self.tensors, self.operators, [f.place for f in feeds], [m.place for m in fetches]
        )
        return Plan(written, feeds, tuple(fetches), tuple(op.kind for op in self.operators))


def image(shape: Shape) -> Shape:
    """N C H W. Raises: UnsupportedError."""
    if len(shape) == 3:
        return (*shape[:2], 1, shape[2])
    if len(shape) != 4:
        raise UnsupportedError(f"an image of {len(shape) - 2} axes; LiteRT's operators take one or two")
    return shape


def prepared(feed: Feed, array: np.ndarray) -> np.ndarray:
    """What is fed for an input: never a change of a value, only of places and of the width of integers."""
    moved = array.reshape(feed.shape)
    if feed.perm is not None:
        moved = moved.transpose(feed.perm)
    return np.ascontiguousarray(moved, np.dtype(feed.dtype)).reshape(moved.shape)


def fetched(made: Made, array: np.ndarray) -> np.ndarray:
    """An output of the file as ONNX has it."""
    if made.form == LAST:
        array = array.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(array).reshape(made.shape)


def _array(tensor: onnx.TensorProto) -> np.ndarray:
    return np.asarray(numpy_helper.to_array(tensor))


def _node(proto: onnx.NodeProto) -> Node:
    attributes = {a.name: _value(a) for a in proto.attribute}
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    return Node(proto.op_type, domain, tuple(proto.input), tuple(proto.output), attributes)


def _value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, (list, tuple)) or hasattr(value, "extend") else value
