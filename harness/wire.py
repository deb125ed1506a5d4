"""The messages between a client and its kernel worker: a JSON header and raw tensors, nothing that can be executed.

A frame is `OPG1`, the header's length (uint32), the payload's length (uint64), the header, the payload. Each
tensor of the payload starts at a multiple of 64 bytes; the header's `tensors` lists [dtype word, shape]. A large
payload travels in shared memory instead: then the header's `shared` is its length and the frame's own is 0.

Portable: the worker of a foreign environment runs this file on Python 3.8 with numpy and nothing else.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Sequence, Tuple

import numpy as np

from opgauge.backends.result import FOREIGN

NUMPY = {
    word: np.dtype("bool" if word == "bool" else word)
    for word in "float32 float64 float16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()
}
_WORD = {dtype: word for word, dtype in NUMPY.items()}
NUMPY.update(FOREIGN)
_WORD.update({dtype: word for word, dtype in FOREIGN.items() if dtype.metadata is None})

PREFIX = struct.Struct("<4sIQ")
MAGIC = b"OPG1"
MAX_HEADER = 4 << 20
MAX_PAYLOAD = 1 << 30
MAX_RANK = 64  # numpy's own limit
SHARED_FROM = 16 << 10  # bytes; below it the pipe is as fast
_PADDING = bytes(64)
_DECODER, _ENCODER = json.JSONDecoder(), json.JSONEncoder(check_circular=False)
Tensor = Tuple[str, Sequence[int], bytes]  # dtype word, shape, row-major bytes


class WireError(Exception):
    """A frame that is not one; the process that wrote it is not to be trusted any further."""


def word_of(dtype: np.dtype) -> str:
    """The ONNX word of a numpy dtype, empty where there is none."""
    if dtype.metadata and "onnx" in dtype.metadata:
        return str(dtype.metadata["onnx"])
    return _WORD.get(dtype, "")


def encode(header: dict[str, Any], tensors: Sequence[Tensor], shared: Any = None) -> bytes:
    """One frame of tensors (dtype word, shape, row-major bytes); `shared` is a buffer that may take the payload."""
    payload = 0
    parts, described = [], []
    for word, shape, data in tensors:
        described.append([word, list(shape)])
        nbytes = len(data)
        parts.append(data)
        if nbytes % 64:
            parts.append(_PADDING[: -nbytes % 64])
            nbytes += -nbytes % 64
        payload += nbytes
    inline = payload
    if shared is not None and SHARED_FROM < payload <= len(shared):
        header = {**header, "shared": payload}
        offset = inline = 0
        for data in parts:
            shared[offset : offset + len(data)] = data
            offset += len(data)
        parts.clear()
    text = _ENCODER.encode({**header, "tensors": described}).encode()
    if len(text) > MAX_HEADER or payload > MAX_PAYLOAD:
        raise WireError(f"message of {len(text)} + {payload} bytes, limits are {MAX_HEADER} + {MAX_PAYLOAD}")
    return b"".join([PREFIX.pack(MAGIC, len(text), inline), text, *parts])


def lengths(prefix: Any) -> tuple[int, int]:
    """Header and payload length of the frame that begins there. Raises: WireError."""
    magic, header, payload = PREFIX.unpack_from(prefix)
    if magic != MAGIC or header > MAX_HEADER or payload > MAX_PAYLOAD:
        raise WireError(f"not a frame: {bytes(prefix[: PREFIX.size])!r}")
    return header, payload


def decode_header(text: Any) -> dict[str, Any]:
    try:
        written = str(text, "utf-8")
        header, end = _DECODER.raw_decode(written)  # half the time of json.loads
        if end != len(written):
            raise ValueError(f"more text from character {end} on")
    except (ValueError, RecursionError) as error:
        raise WireError(f"header is not JSON: {error}") from error
    if not isinstance(header, dict) or not isinstance(header.get("tensors"), list):
        raise WireError("header has no list of tensors")
    return header


def shared_length(header: dict[str, Any], limit: int) -> int:
    """Bytes of the payload that lie in shared memory, 0 for none. Raises: WireError."""
    length = header.get("shared", 0)
    if type(length) is not int or not 0 <= length <= limit:
        raise WireError(f"{length!r} bytes of {limit} in shared memory")
    return length


def tensors_of(header: dict[str, Any], payload: Any) -> list[np.ndarray]:
    """The tensors as views of `payload`. Raises: WireError where the header does not describe the bytes."""
    arrays, offset = [], 0
    for item in header["tensors"]:
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[1], list):
            raise WireError(f"tensor described as {item!r}")
        word, shape = item
        if not isinstance(word, str) or word not in NUMPY or len(shape) > MAX_RANK:
            raise WireError(f"tensor described as {item!r}")
        count, dtype = 1, NUMPY[word]
        for size in shape:
            if type(size) is not int or size < 0:
                raise WireError(f"tensor described as {item!r}")
            count *= size
        nbytes = count * dtype.itemsize
        if offset + nbytes > len(payload):
            raise WireError(f"tensor {item!r} ends at byte {offset + nbytes} of {len(payload)}")
        flat = np.frombuffer(payload, dtype, count, offset) if count else np.empty(0, dtype)
        arrays.append(flat.reshape(shape))
        offset += nbytes + -nbytes % 64
    if offset != len(payload):
        raise WireError(f"{len(payload) - offset} bytes too many behind the last tensor")
    return arrays
