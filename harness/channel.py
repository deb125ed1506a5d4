"""A kernel worker's end of the channel: pipes to its client and the memory shared with it.

Portable: in a foreign environment it runs on Python 3.8 with numpy and nothing else (environment.py).
"""

from __future__ import annotations

import io
import mmap
import os
from typing import Any, Sequence

import numpy as np

from . import guard, watch, wire


class Channel:
    """The pipes to the client and the memory shared with it."""

    def __init__(self, source: int, sink: int, inbox: int, outbox: int) -> None:
        self.source, self.sink = source, sink
        self._stream = io.FileIO(source, closefd=False)
        self._shared = [inbox, outbox]
        self._maps: list[Any] = [None, None]
        self._prefix = bytearray(wire.PREFIX.size)

    def shared(self, which: int) -> Any:
        """What the client made of this size by now."""
        fd = self._shared[which]
        if fd < 0:
            return b""
        size = os.fstat(fd).st_size
        if size and (self._maps[which] is None or len(self._maps[which]) != size):
            self._maps[which] = memoryview(mmap.mmap(fd, size))  # which keeps a descriptor of its own
            watch.forget()
        return self._maps[which] if size else b""

    def _fill(self, buffer: Any) -> None:
        """Read straight to where the bytes belong."""
        view = memoryview(buffer)
        while view:
            count = self._stream.readinto(view)
            if not count:  # the client is gone
                os._exit(0)
            view = view[count:]

    def receive(self, copied: bool) -> tuple[dict[str, Any], Any]:
        """The next request; its payload is aligned, a view of shared memory unless `copied`."""
        self._fill(self._prefix)
        header_length, payload_length = wire.lengths(self._prefix)
        text = bytearray(header_length)
        self._fill(text)
        header = wire.decode_header(text)
        if "shared" not in header:
            payload = guard.aligned(payload_length)
            self._fill(payload)
            return header, payload
        shared = self.shared(0)
        payload = np.frombuffer(shared, np.uint8, wire.shared_length(header, len(shared)))
        if copied:
            held = guard.aligned(len(payload))
            held[:] = payload
            return header, held
        return header, payload

    def send(self, header: dict[str, Any], tensors: Sequence[Any] = ()) -> None:
        large = sum(len(data) for _, _, data in tensors) > wire.SHARED_FROM
        view = memoryview(wire.encode(header, tensors, self.shared(1) if large else None))
        while view:
            view = view[os.write(self.sink, view) :]
