"""Buffers between pages that nobody may touch, with canaries around them and two poisons inside.

Right-flush: the buffer ends at the guard page, so that one byte too far is a fault. Left-flush: it begins behind
one. What lies between a buffer and the far guard page is canary, compared after each call. `loose` memory has
canary pages instead of guard pages: a case that died of a guard page says there what it wrote.

Portable: runs on Python 3.8 with numpy and nothing else.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any, NamedTuple, Sequence

import numpy as np

PAGE = mmap.PAGESIZE
CANARY = 0xC5
CANARIES = bytes([CANARY]) * (4 * PAGE)  # more than lies beside any buffer
POISONS = (0xFE, 0x5A)  # glibc cannot fill what it allocates with 0xFF
ALIGNED = 64
KEPT_BYTES = 256 << 20  # of pages for later cases
_PROT_NONE = 0
_LIBC = ctypes.CDLL(None) if os.name == "posix" else None
_COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
_mallopt: Any = getattr(_LIBC, "mallopt", None)
_memcmp = _COMPARE(("memcmp", _LIBC)) if _LIBC is not None else None


class GuardError(Exception):
    """A buffer's surroundings, or an input, is not as it was."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Buffer(NamedTuple):
    """`area` is all that may be touched without a fault, the tensor lies at `start`."""

    name: str
    area: np.ndarray
    address: int
    start: int
    nbytes: int


def same(address: int, expected: bytes, count: int) -> bool:
    """memory[address:][:count] == expected[:count], at the speed of the C library."""
    if _memcmp is None:
        return ctypes.string_at(address, count) == expected[:count]
    return not _memcmp(address, expected, count)


def address_of(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])  # three times as fast as `array.ctypes.data`


class Pages:
    """Writable pages between two that nobody may touch (writable ones where `loose`)."""

    def __init__(self, count: int, loose: bool) -> None:
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
        self._memory = mmap.mmap(-1, (count + 2) * PAGE, **private)
        self._whole = np.frombuffer(self._memory, np.uint8)
        self.area = self._whole if loose else self._whole[PAGE:-PAGE]
        self.address = address_of(self.area)
        if _LIBC is not None and not loose:
            for address in (self.address - PAGE, self.address + count * PAGE):
                if _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), _PROT_NONE):
                    raise OSError("mprotect refused a guard page")


class Memory:
    """Buffers of one worker; pages are kept for later cases of the same size."""

    def __init__(self, loose: bool = False) -> None:
        self.loose = loose
        self._free: dict[int, list[Pages]] = {}
        self._used: list[tuple[int, Pages]] = []
        self._kept = 0

    def release(self) -> None:
        """All buffers may be used again."""
        for count, pages in self._used:
            self._free.setdefault(count, []).append(pages)
        self._used.clear()
        if self._kept > KEPT_BYTES:
            self._free.clear()
            self._kept = 0

    def buffer(self, name: str, nbytes: int, right: bool, align: int) -> Buffer:
        """A place for `nbytes`, canary all around."""
        count = max(1, -(-nbytes // PAGE))
        free = self._free.get(count)
        pages = free.pop() if free else Pages(count, self.loose)
        if not free:
            self._kept += count * PAGE
        self._used.append((count, pages))
        area = pages.area
        margin = PAGE if self.loose else 0
        start = (len(area) - margin - nbytes) // align * align if right else margin
        area[:start] = CANARY
        area[start + nbytes :] = CANARY
        return Buffer(name, area, pages.address, start, nbytes)

    def place(self, name: str, array: np.ndarray, right: bool, align: int) -> tuple[Buffer, np.ndarray]:
        """The array's bytes in a new buffer, and the array there."""
        made = self.buffer(name, array.nbytes, right, align)
        view = array_in(made, array.dtype, array.shape)
        np.copyto(view, array)
        return made, view


def array_in(buffer: Buffer, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    count = buffer.nbytes // dtype.itemsize
    if not count:
        return np.empty(shape, dtype)
    # frombuffer checks no alignment and keeps the area alive
    return np.frombuffer(buffer.area.data, dtype, count, buffer.start).reshape(shape)


def aligned(nbytes: int) -> np.ndarray:
    """Kernels see every tensor at a multiple of 64 bytes: alignment alone may change a sum's last bit."""
    raw = np.empty(nbytes + ALIGNED, np.uint8)
    start = -address_of(raw) % ALIGNED
    return raw[start : start + nbytes]


def differing(a: np.ndarray, b: np.ndarray, floating: bool) -> np.ndarray:
    """Which elements' bits differ; any NaN equals any other."""
    bits = np.dtype(f"u{a.dtype.itemsize}")
    differs = np.frombuffer(a.tobytes(), bits) != np.frombuffer(b.tobytes(), bits)
    if floating and a.dtype.metadata is None:
        differs &= ~(np.isnan(a).ravel() & np.isnan(b).ravel())
    return differs


def check_outside(buffer: Buffer, kind: str) -> None:
    """Raises: GuardError where a canary beside the buffer is gone."""
    end = buffer.start + buffer.nbytes
    if same(buffer.address, CANARIES, buffer.start) and same(buffer.address + end, CANARIES, len(buffer.area) - end):
        return
    before = np.flatnonzero(buffer.area[: buffer.start] != CANARY)
    behind = np.flatnonzero(buffer.area[end:] != CANARY)
    if before.size:
        first = buffer.start - int(before[-1])
        raise GuardError("overrun", f"wrote {before.size} bytes before {kind} {buffer.name}, from byte -{first} on")
    if behind.size:
        raise GuardError("overrun", f"wrote {behind.size} bytes past {kind} {buffer.name}, from byte +{behind[0]} on")


def check_input(buffer: Buffer, view: np.ndarray, pristine: bytes, floating: bool) -> None:
    """Raises: GuardError where the input or its surroundings changed; `pristine` is the input as it was."""
    check_outside(buffer, "input")
    if same(buffer.address + buffer.start, pristine, len(pristine)):
        return
    before = np.frombuffer(pristine, view.dtype).reshape(view.shape)
    count = int(differing(before, view, floating).sum()) or view.size
    raise GuardError("clobbered", f"input {buffer.name!r} changed: {count} of {view.size} elements")


def unwritten(first: np.ndarray, later: np.ndarray, poisons: Sequence[int]) -> int:
    """Elements that hold the poison of their call in both: nobody wrote them."""
    size = first.dtype.itemsize
    rows = [np.frombuffer(a.tobytes(), np.uint8).reshape(-1, size) for a in (first, later)]
    held = [(row == poison).all(axis=1) for row, poison in zip(rows, poisons)]
    return int((held[0] & held[1]).sum())


def poison_allocations(byte: int) -> None:
    """What malloc returns from now on is filled with `byte`, with 0 with nothing (glibc; elsewhere never)."""
    if _mallopt is not None:
        _mallopt(-6, ~byte & 0xFF if byte else 0)  # M_PERTURB fills with the complement
