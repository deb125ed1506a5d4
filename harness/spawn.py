"""A kernel worker from outside: its process, its pipes, the memory shared with it, its last words."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from opgauge.backends import BackendSpec

from . import environment, isolation, wire
from .nursery import Forked, Nursery
from .worker import clean

STDERR_KEPT = 4000
OUT_OF_MEMORY = ("MemoryError", "bad_alloc", "Cannot allocate memory", "out of memory")
TELLING = ("Fatal", "File ", "rror", *OUT_OF_MEMORY)  # words of lines that explain an end
READ = 128 << 10  # more than a reply that is not in shared memory
LOOK_S = 0.2  # how often a worker without a reply is asked whether it still lives
SHARED_STEP = 1 << 20
# glibc checks its heap at every malloc and free
HEAP_CHECK = {"LD_PRELOAD": "libc_malloc_debug.so.0", "GLIBC_TUNABLES": "glibc.malloc.check=3"}
PLAIN, GUARD, LOOSE = "plain", "guard", "loose"


class Ended(Exception):
    """The worker died or spoke nonsense."""


class Late(Exception):
    """The time limit passed."""


def settings_of(spec: BackendSpec, memory_limit: int) -> dict[str, Any]:
    """What every worker of a backend is told."""
    options = dict(spec.options)
    common = {"kind": spec.kind, "target": spec.target, "options": options}
    return {**common, "memory_limit": memory_limit, "parent": os.getpid()}


def variables_of(heap_check: bool) -> dict[str, str]:
    """The environment of workers: one thread for numpy's linear algebra, starting more costs more than it saves."""
    return {"OPENBLAS_NUM_THREADS": "1", **os.environ, **(HEAP_CHECK if heap_check else {})}


class Kernel:
    """One process; nothing it says is believed before it was checked."""

    def __init__(
        self,
        spec: BackendSpec,
        memory_limit: int,
        guarded: str,
        variables: Mapping[str, str],
        births: Nursery | None,
        python: str = "",
    ) -> None:
        """Forked where `births` gives it; `python` is the interpreter of another checkout of opgauge.

        Raises: BackendUnavailableError where its environment cannot be had.
        """
        self._shared = [isolation.shared_memory("opgauge-in"), isolation.shared_memory("opgauge-out")]
        self.process: subprocess.Popen[bytes] | Forked
        self._maps: list[mmap.mmap | None] = [None, None]
        self._stderr = bytearray()
        self._buffer = bytearray()
        self.ready, self.ready_at = False, 0.0
        self.served: list[str] = []  # ids of the cases it did
        pipes = [os.pipe() for _ in range(3)]  # in, out, err
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        self._to, self._from, self._err = self._ends = [pipes[0][1], pipes[1][0], pipes[2][0]]
        try:
            shared = [fd for fd in self._shared if fd >= 0]
            if births is not None:
                self.process = births.fork({"guard": guarded}, [*theirs, *shared])
            else:
                settings = {**settings_of(spec, memory_limit), "guard": guarded, "shared": self._shared}
                options: dict[str, Any] = isolation.start_options()
                if not isolation.WINDOWS:
                    options["pass_fds"] = shared
                words = environment.abroad(python) if python else environment.command(spec)
                command = [*words, json.dumps(settings)]
                stdin, stdout, stderr = theirs
                self.process = subprocess.Popen(
                    command, stdin=stdin, stdout=stdout, stderr=stderr, env=dict(variables), **options
                )
        except BaseException:
            self._close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self._open = [self._from, self._err]
        self._wait = isolation.waiter(self._open)
        for fd in (self._to, self._from):
            isolation.enlarge_pipe(fd)
        if not isolation.WINDOWS:
            os.set_blocking(self._to, False)

    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> int:
        """End the process and all that it started; its return code."""
        isolation.kill(self.process)
        self._close()
        return self.process.returncode or 0

    def _close(self) -> None:
        for fd in [*self._ends, *self._shared]:
            if fd >= 0:
                os.close(fd)
        self._ends, self._shared = [], [-1, -1]

    # ---- bytes

    def _pump(self, timeout_s: float, writable: int = -1) -> bool:
        """Read what is there, standard error too; False when nothing came. Raises: Ended."""
        ready = self._wait(timeout_s) if writable < 0 else isolation.wait(self._open, timeout_s, writable)
        if self._err in ready:
            data = os.read(self._err, 1 << 16)
            if not data:
                self._open = [self._from]
                self._wait = isolation.waiter(self._open)
            self._stderr = (self._stderr + data)[-STDERR_KEPT:]
        if self._from in ready:
            data = os.read(self._from, READ)
            if not data:
                raise Ended("")
            self._buffer += data
        return bool(ready)

    def _memory(self, which: int, nbytes: int) -> mmap.mmap | None:
        """The shared memory, grown to hold `nbytes`; None where there is none."""
        fd, known = self._shared[which], self._maps[which]
        if fd < 0 or (known is None and not nbytes):
            return known
        if known is None or len(known) < nbytes:
            size = max(SHARED_STEP, 1 << (nbytes - 1).bit_length())
            os.ftruncate(fd, size)
            known = self._maps[which] = mmap.mmap(fd, size)
        return known

    def send(self, header: Mapping[str, Any], tensors: Sequence[wire.Tensor], limit_s: float) -> None:
        """A worker that died meanwhile is noticed in `receive`. Raises: Late, WireError."""
        large = sum(len(data) + 64 for _, _, data in tensors)
        shared = None
        if wire.SHARED_FROM < large <= wire.MAX_PAYLOAD:
            shared = self._memory(0, large)
            self._memory(1, max(SHARED_STEP, large))
        view, deadline = memoryview(wire.encode(dict(header), tensors, shared)), time.monotonic() + limit_s
        while view:
            try:
                view = view[os.write(self._to, view) :]
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Late from None
                with contextlib.suppress(Ended):
                    self._pump(LOOK_S, writable=self._to)
            except OSError:
                return

    def receive(self, deadline: float) -> tuple[dict[str, Any], bytes]:
        """The next frame. Raises: Ended, Late."""
        try:
            buffer = self._buffer
            while True:
                if len(buffer) >= wire.PREFIX.size:
                    header_length, payload_length = wire.lengths(buffer)
                    start = wire.PREFIX.size + header_length
                    need = start + payload_length
                    if len(buffer) >= need:
                        break
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Late
                if not self._pump(min(left, LOOK_S)) and not self.alive():
                    raise Ended("")  # dead, and a child of its kernel holds the pipe open
            with memoryview(buffer) as frame:
                header, payload = wire.decode_header(frame[wire.PREFIX.size : start]), bytes(frame[start:need])
            del buffer[:need]
            shared = self._memory(1, 0)
            length = wire.shared_length(header, len(shared) if shared else 0)
            # A copy: the worker may write there at any time.
            return header, bytes(memoryview(shared)[:length]) if shared and length else payload
        except wire.WireError as error:
            raise Ended(f"broke the protocol: {error}") from error

    def evidence(self, said: str) -> str:
        """How the worker ended, where, and its last words; it has ended afterwards."""
        with contextlib.suppress(Ended):
            while self._err in self._open and self._pump(0.05):
                pass
        if not said:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the pipe closes before the process is gone
                self.process.wait(1.0)
        code = self.stop()
        lines = [clean(line) for line in self._stderr.decode(errors="replace").splitlines()]
        told = [line for line in lines if any(word in line for word in TELLING)][:4]
        return clean("; ".join([said or isolation.how_it_ended(code), *(told or lines[-2:])]))
