"""The messages between a client and its kernel worker: a JSON header and raw tensors, nothing that can be executed.

A frame is `OPG1`, the header's length (uint32), the payload's length (uint64), the header, the payload. Each
tensor of the payload starts at a multiple of 64 bytes; the header's `tensors` lists [dtype word, shape].
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Array

PREFIX = struct.Struct("<4sIQ")
MAGIC = b"OPG1"
MAX_HEADER = 4 << 20
MAX_PAYLOAD = 1 << 30
MAX_RANK = 64  # numpy's own limit
_PADDING = bytes(64)
Tensor = tuple[str, Sequence[int], bytes]  # dtype word, shape, row-major bytes


class WireError(Exception):
    """A frame that is not one; the process that wrote it is not to be trusted any further."""


def encode(header: dict[str, Any], tensors: Sequence[Tensor]) -> bytes:
    """One frame."""
    parts = []
    for _, _, data in tensors:
        parts.append(data)
        parts.append(_PADDING[: -len(data) % 64])
    text = json.dumps({**header, "tensors": [[word, list(shape)] for word, shape, _ in tensors]}).encode()
    payload = sum(map(len, parts))
    if len(text) > MAX_HEADER or payload > MAX_PAYLOAD:
        raise WireError(f"message of {len(text)} + {payload} bytes, limits are {MAX_HEADER} + {MAX_PAYLOAD}")
    return b"".join([PREFIX.pack(MAGIC, len(text), payload), text, *parts])


def lengths(prefix: bytes) -> tuple[int, int]:
    """Header and payload length. Raises: WireError."""
    magic, header, payload = PREFIX.unpack(prefix)
    if magic != MAGIC or header > MAX_HEADER or payload > MAX_PAYLOAD:
        raise WireError(f"not a frame: {bytes(prefix)!r}")
    return header, payload


def decode_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise WireError(f"header is not JSON: {error}") from error
    if not isinstance(header, dict) or not isinstance(header.get("tensors"), list):
        raise WireError("header has no list of tensors")
    return header


def tensors_of(header: dict[str, Any], payload: Any) -> list[Array]:
    """The tensors as views of `payload`. Raises: WireError where the header does not describe the bytes."""
    arrays, offset = [], 0
    for item in header["tensors"]:
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[1], list):
            raise WireError(f"tensor described as {item!r}")
        word, shape = item
        if word not in dt.NUMPY or len(shape) > MAX_RANK or not all(type(d) is int and d >= 0 for d in shape):
            raise WireError(f"tensor described as {item!r}")
        count = math.prod(shape)
        nbytes = count * dt.NUMPY[word].itemsize
        if offset + nbytes > len(payload):
            raise WireError(f"tensor {item!r} ends at byte {offset + nbytes} of {len(payload)}")
        flat = np.frombuffer(payload, dt.NUMPY[word], count, offset) if count else np.empty(0, dt.NUMPY[word])
        arrays.append(flat.reshape(shape))
        offset += nbytes + -nbytes % 64
    if offset != len(payload):
        raise WireError(f"{len(payload) - offset} bytes too many behind the last tensor")
    return arrays
