"""A .tflite file of tensors and operators: FlatBuffers by the field numbers of the public schema, version 3.

Portable: the worker of a foreign environment runs this file on Python 3.8 with numpy and flatbuffers.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Callable, Mapping, NamedTuple, Sequence, Tuple

import flatbuffers
import numpy as np

from opgauge.reference_engine.errors import UnsupportedError

IDENTIFIER = b"TFL3"
SCHEMA_VERSION = 3
ALIGNMENT = 16  # of the bytes of a constant, as the schema asks
NO_TENSOR = -1  # an operator's optional input that is absent

# enum TensorType, by ONNX's words.
TYPES: dict[str, int] = {
    "float32": 0,
    "float16": 1,
    "int32": 2,
    "uint8": 3,
    "int64": 4,
    "bool": 6,
    "int16": 7,
    "int8": 9,
    "float64": 10,
    "uint64": 12,
    "uint32": 15,
    "uint16": 16,
}
# Fields of option tables: their place in the table and how they are written.
_POOL = {
    "padding": (0, "Int8"),
    "stride_w": (1, "Int32"),
    "stride_h": (2, "Int32"),
    "filter_width": (3, "Int32"),
    "filter_height": (4, "Int32"),
}
Fields = Mapping[str, Tuple[int, str]]


class Kind(NamedTuple):
    """A row of the operator table: its BuiltinOperator, its member of the union BuiltinOptions, its fields."""

    code: int
    options: int = 0
    fields: Fields = MappingProxyType({})


KINDS: dict[str, Kind] = {
    "ADD": Kind(0, 11),
    "SUB": Kind(41, 28),
    "MUL": Kind(18, 21),
    "DIV": Kind(42, 29),
    "MAXIMUM": Kind(55, 39),
    "MINIMUM": Kind(57, 39),
    "NEG": Kind(59, 42),
    "ABS": Kind(101, 78),
    "RELU": Kind(19),
    "LEAKY_RELU": Kind(98, 75, {"alpha": (0, "Float32")}),
    "LOGISTIC": Kind(14),
    "SOFTMAX": Kind(25, 9, {"beta": (0, "Float32")}),
    "QUANTIZE": Kind(114, 89),
    "DEQUANTIZE": Kind(6, 38),
    "CONV_2D": Kind(
        3,
        1,
        {
            "padding": (0, "Int8"),
            "stride_w": (1, "Int32"),
            "stride_h": (2, "Int32"),
            "dilation_w_factor": (4, "Int32"),
            "dilation_h_factor": (5, "Int32"),
        },
    ),
    "DEPTHWISE_CONV_2D": Kind(
        4,
        2,
        {
            "padding": (0, "Int8"),
            "stride_w": (1, "Int32"),
            "stride_h": (2, "Int32"),
            "depth_multiplier": (3, "Int32"),
            "dilation_w_factor": (5, "Int32"),
            "dilation_h_factor": (6, "Int32"),
        },
    ),
    "FULLY_CONNECTED": Kind(9, 8, {"keep_num_dims": (2, "Bool")}),
    "BATCH_MATMUL": Kind(126, 101, {"adj_x": (0, "Bool"), "adj_y": (1, "Bool")}),
    "AVERAGE_POOL_2D": Kind(1, 5, _POOL),
    "MAX_POOL_2D": Kind(17, 5, _POOL),
    "MEAN": Kind(40, 27, {"keep_dims": (0, "Bool")}),
    "CONCATENATION": Kind(2, 10, {"axis": (0, "Int32")}),
    "RESHAPE": Kind(22, 17),
    "TRANSPOSE": Kind(39, 26),
    "SLICE": Kind(65, 48),
    "PAD": Kind(34, 22),
    "PADV2": Kind(60, 43),
}
SAME, VALID = 0, 1  # enum Padding


class Quantization(NamedTuple):
    """value = scale * (q - zero_point), one of each or one for every index along `axis`."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int = 0


class Tensor(NamedTuple):
    """A tensor of the file; one with `data` is a constant."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray | None = None
    quantization: Quantization | None = None


class Operator(NamedTuple):
    """An operator of the file; tensors by their index."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = MappingProxyType({})


def write(
    tensors: Sequence[Tensor], operators: Sequence[Operator], inputs: Sequence[int], outputs: Sequence[int]
) -> bytes:
    """The bytes of a model with one subgraph. Raises: UnsupportedError where the schema has no such element type."""
    b = flatbuffers.Builder(1024)
    kinds = list(dict.fromkeys(op.kind for op in operators))
    buffers = [_table(b, 1)]  # buffer 0 is the empty one
    placed = []
    for tensor in tensors:
        at = 0
        if tensor.data is not None:
            at = len(buffers)
            buffers.append(_buffer(b, np.ascontiguousarray(tensor.data)))
        placed.append(_tensor(b, tensor, at))
    made = [_operator(b, op, kinds.index(op.kind)) for op in operators]
    codes = [_code(b, KINDS[kind].code) for kind in kinds]
    graph = _table(
        b,
        5,
        (0, "UOffsetTRelative", _offsets(b, placed)),
        (1, "UOffsetTRelative", _numbers(b, inputs, "Int32", 4)),
        (2, "UOffsetTRelative", _numbers(b, outputs, "Int32", 4)),
        (3, "UOffsetTRelative", _offsets(b, made)),
    )
    model = _table(
        b,
        5,
        (0, "Uint32", SCHEMA_VERSION),
        (1, "UOffsetTRelative", _offsets(b, codes)),
        (2, "UOffsetTRelative", _offsets(b, [graph])),
        (3, "UOffsetTRelative", b.CreateString("opgauge")),
        (4, "UOffsetTRelative", _offsets(b, buffers)),
    )
    b.Finish(model, file_identifier=IDENTIFIER)
    return bytes(b.Output())


def _table(b: Any, size: int, *fields: tuple[int, str, Any]) -> int:
    b.StartObject(size)
    for slot, kind, value in fields:
        if kind == "UOffsetTRelative":
            b.PrependUOffsetTRelativeSlot(slot, value, 0)
        else:
            # A field equal to its default is left out; None is equal to nothing, so every field is written.
            write_slot: Callable[..., None] = getattr(b, "Prepend" + kind + "Slot")
            write_slot(slot, value, None)
    return int(b.EndObject())


def _offsets(b: Any, offsets: Sequence[int]) -> int:
    b.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return int(b.EndVector())


def _numbers(b: Any, values: Sequence[Any], kind: str, size: int) -> int:
    b.StartVector(size, len(values), size)
    for value in reversed(values):
        getattr(b, "Prepend" + kind)(value)
    return int(b.EndVector())


def _buffer(b: Any, data: np.ndarray) -> int:
    content = data.tobytes()
    b.StartVector(1, len(content), ALIGNMENT)
    b.head = b.head - len(content)
    b.Bytes[b.head : b.head + len(content)] = content
    vector = b.EndVector()
    return _table(b, 1, (0, "UOffsetTRelative", vector))


def _tensor(b: Any, tensor: Tensor, buffer: int) -> int:
    if tensor.dtype not in TYPES:
        raise UnsupportedError(f"LiteRT has no element type {tensor.dtype}")
    name = b.CreateString(tensor.name)
    shape = _numbers(b, tensor.shape, "Int32", 4)
    fields: list[Any] = [
        (0, "UOffsetTRelative", shape),
        (1, "Int8", TYPES[tensor.dtype]),
        (2, "Uint32", buffer),
        (3, "UOffsetTRelative", name),
    ]
    if tensor.quantization is not None:
        scale, zero_point, axis = tensor.quantization
        scales = _numbers(b, scale, "Float32", 4)
        zeros = _numbers(b, zero_point, "Int64", 8)
        parameters = _table(b, 7, (2, "UOffsetTRelative", scales), (3, "UOffsetTRelative", zeros), (6, "Int32", axis))
        fields.append((4, "UOffsetTRelative", parameters))
    return _table(b, 10, *fields, (8, "Bool", True))


def _operator(b: Any, op: Operator, code: int) -> int:
    kind = KINDS[op.kind]
    inputs = _numbers(b, op.inputs, "Int32", 4)
    outputs = _numbers(b, op.outputs, "Int32", 4)
    fields: list[Any] = [
        (0, "Uint32", code),
        (1, "UOffsetTRelative", inputs),
        (2, "UOffsetTRelative", outputs),
    ]
    if kind.options:
        given = [(*kind.fields[name], value) for name, value in op.options.items()]
        size = max((slot for slot, _ in kind.fields.values()), default=0) + 1
        options = _table(b, size, *given)
        fields += [(3, "Uint8", kind.options), (4, "UOffsetTRelative", options)]
    return _table(b, 9, *fields)


def _code(b: Any, code: int) -> int:
    # Field 0 is the code of schemas before 3a, a byte: 127 there means "see field 3".
    return _table(b, 4, (0, "Int8", min(code, 127)), (2, "Int32", 1), (3, "Int32", code))
