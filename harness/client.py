"""The near end of a kernel worker: sends cases, charges what happens to the case that did it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from opgauge.backends import BackendSpec
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Array, Observation, Status

from . import isolation, wire
from .worker import clean

STDERR_KEPT = 4000
LOOK_S = 0.2  # how often a worker without a reply is asked whether it still lives
GRACE_S = 1.0  # what it printed may have held it up while nobody read
LOAD_CRASHES = 2  # then the backend counts as unavailable
_OUT_OF_MEMORY = ("MemoryError", "bad_alloc", "Cannot allocate memory", "out of memory")


class _Ended(Exception):
    """The worker died or spoke nonsense."""


class _Late(Exception):
    """The time limit passed."""


class Client:
    """A kernel worker of one backend; at most one case in flight.

    `submit` returns at once, so that several backends compute side by side; `receive` gives what became of the
    case. A worker that crashed, hung or may be damaged is replaced before the next case.
    """

    def __init__(self, spec: BackendSpec, timeout_s: float = 20.0, memory_limit: int | None = None) -> None:
        self.spec = spec
        self.timeout_s = timeout_s
        self.restarts = 0
        self.late_deaths: list[tuple[str, str]] = []  # (case id, message)
        self._memory_limit = spec.definition.memory_limit if memory_limit is None else memory_limit
        self._process: subprocess.Popen[bytes] | None = None
        self._unavailable = ""
        self._load_crashes = 0
        self._info: dict[str, str] | None = None
        self._case = self._previous = self._suspects = ""
        self._frame, self._in_flight = b"", False
        self._submitted = 0.0
        self._start()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the process

    def _start(self) -> None:
        settings = {"backend": self.spec.text, "memory_limit": self._memory_limit, "parent": os.getpid()}
        # -P: the current folder may hold a `backends` or an `onnx` of its own.
        command = [sys.executable, "-P", "-m", "opgauge.worker", json.dumps(settings)]
        pipe = subprocess.PIPE
        options: dict[str, Any] = isolation.start_options()
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, **options)
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._to, self._from, self._err = (stream.fileno() for stream in streams if stream)
        self._open = [self._from, self._err]
        for fd in (self._to, self._from):
            isolation.enlarge_pipe(fd)
        if not isolation.WINDOWS:
            os.set_blocking(self._to, False)
        self._ready = False
        self._ready_at = 0.0
        self._served = 0
        self._previous = ""
        self._stderr = bytearray()
        self._buffer = bytearray()

    def _stop(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        isolation.kill(process)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        return process.returncode

    def close(self) -> None:
        self._note_late_death()
        self._stop()

    def _note_late_death(self) -> None:
        """A process that died between two cases is charged to the case before."""
        if self._process is not None and self._process.poll() is not None and self._served:
            message = self._evidence("")
            self.late_deaths.append((self._previous, clean(f"its process died after the result was in: {message}")))

    # ---- bytes

    def _pump(self, timeout_s: float, writable: int = -1) -> bool:
        """Read what is there, standard error too; False when nothing came. Raises: _Ended."""
        ready = isolation.wait(self._open, timeout_s, writable)
        if self._err in ready:
            data = os.read(self._err, 1 << 16)
            if not data:
                self._open.remove(self._err)
            self._stderr = (self._stderr + data)[-STDERR_KEPT:]
        if self._from in ready:
            data = os.read(self._from, 1 << 20)
            if not data:
                raise _Ended("")
            self._buffer += data
        return bool(ready)

    def _frame_in(self, deadline: float) -> tuple[dict[str, Any], bytes]:
        """The next frame. Raises: _Ended, _Late."""
        try:
            need = wire.PREFIX.size
            while True:
                if len(self._buffer) >= wire.PREFIX.size:
                    header_length, payload_length = wire.lengths(bytes(self._buffer[: wire.PREFIX.size]))
                    need = wire.PREFIX.size + header_length + payload_length
                    if len(self._buffer) >= need:
                        break
                left = deadline - time.monotonic()
                if left <= 0:
                    raise _Late
                alive = self._process is not None and self._process.poll() is None
                if not self._pump(min(left, LOOK_S)) and not alive:
                    raise _Ended("")  # dead, and a child of its kernel holds the pipe open
            data = bytes(self._buffer[:need])
            del self._buffer[:need]
            start = wire.PREFIX.size + header_length
            return wire.decode_header(data[wire.PREFIX.size : start]), data[start:]
        except wire.WireError as error:
            raise _Ended(f"broke the protocol: {error}") from error

    def _frame_out(self) -> None:
        """Send the request; a worker that died meanwhile is noticed in `receive`. Raises: _Late."""
        view, deadline = memoryview(self._frame), time.monotonic() + self._limit_s()
        while view:
            try:
                view = view[os.write(self._to, view) :]
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise _Late from None
                with contextlib.suppress(_Ended):
                    self._pump(LOOK_S, writable=self._to)
            except OSError:
                return

    def _limit_s(self) -> float:
        return self.timeout_s if self._ready else self.spec.definition.load_timeout_s

    # ---- cases

    def submit(
        self, case_id: str, model: bytes, inputs: Mapping[str, Array], repeats: int = 2, n_outputs: int = 0
    ) -> None:
        """Send a case. `n_outputs`, where known, is what the adapter must return."""
        header = {"id": case_id, "names": list(inputs), "repeats": repeats, "n_outputs": n_outputs}
        tensors = [("uint8", (len(model),), model)]
        tensors += [(dt.word_of(x.dtype), x.shape, np.asarray(x).tobytes()) for x in inputs.values()]
        if self._in_flight:  # nobody came for the last reply: it must not answer this case
            self._stop()
        self._case, self._frame, self._in_flight = case_id, wire.encode(header, tensors), True
        if not self._unavailable:
            self._dispatch()

    def _dispatch(self) -> None:
        self._note_late_death()
        if self._process is None:
            self.restarts += 1
            self._start()
        self._submitted = time.monotonic()
        with contextlib.suppress(_Late):  # `receive` finds out
            self._frame_out()

    def receive(self) -> Observation:
        """What became of the case submitted last."""
        self._in_flight = False
        seen = self._observe()
        if seen.status is Status.CRASH and self._suspects:
            # Not the first case of its process: an earlier one may have done the damage. Ask a fresh one.
            previous = self._suspects
            self._dispatch()
            again = self._observe()
            if again.status is not Status.CRASH:
                why = f"in a process that had run others, last {previous}; alone the case runs"
                return replace(seen, status=Status.FLAKY, message=clean(f"{seen.message} {why}"))
            return again
        return seen

    def _observe(self) -> Observation:
        self._suspects = ""
        if self._unavailable:
            return Observation(Status.UNAVAILABLE, message=self._unavailable)
        try:
            if not self._ready:
                self._handshake()
                if self._unavailable:
                    return Observation(Status.UNAVAILABLE, message=self._unavailable)
            deadline = max(self._submitted, self._ready_at) + self.timeout_s
            reply, payload = self._frame_in(max(deadline, time.monotonic() + min(GRACE_S, self.timeout_s)))
            seen = _observation(reply, wire.tensors_of(reply, payload))
        except _Late:
            self._stop()
            return Observation(Status.HANG, message=f"no result in {self.timeout_s:g} s; killed")
        except (_Ended, wire.WireError, KeyError, TypeError, ValueError) as error:
            return self._crashed(str(error))
        self._served += 1
        self._previous = self._case
        if reply.get("retire"):
            self._stop()
        return seen

    def _handshake(self) -> None:
        """Wait for the adapter to load. Raises: _Ended where it died while another try may help."""
        limit = self.spec.definition.load_timeout_s
        try:
            reply, _ = self._frame_in(time.monotonic() + limit)
        except _Late:
            self._stop()
            self._unavailable = f"not loaded after {limit:g} s; killed"
            return
        except _Ended:
            self._load_crashes += 1
            if self._load_crashes >= LOAD_CRASHES:
                self._unavailable = f"died while loading: {self._evidence('')}"
                return
            self._stop()
            self._dispatch()
            return self._handshake()
        if "unavailable" in reply:
            self._unavailable = clean(reply["unavailable"])
            self._stop()
            return
        self._ready, self._load_crashes, self._ready_at = True, 0, time.monotonic()

    def _evidence(self, said: str) -> str:
        """How the worker ended, where, and its last words."""
        with contextlib.suppress(_Ended):
            while self._err in self._open and self._pump(0.05):
                pass
        if self._process is not None and not said:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the pipe closes before the process is gone
                self._process.wait(1.0)
        code = self._stop()
        lines = [clean(line) for line in self._stderr.decode(errors="replace").splitlines()]
        told = [line for line in lines if line.startswith(("Fatal", "File", "  File")) or "rror" in line][:4]
        return clean("; ".join([said or isolation.how_it_ended(code), *(told or lines[-2:])]))

    def _crashed(self, said: str) -> Observation:
        self._suspects = self._previous
        message = self._evidence(said)
        status = Status.OOM if any(word in message for word in _OUT_OF_MEMORY) else Status.CRASH
        return Observation(status, message=message)

    @property
    def info(self) -> Mapping[str, str]:
        """What the adapter says about itself, asked once; `unavailable` or `error` where it cannot."""
        if self._info is None:
            self._info = self._ask_info()
        return self._info

    def _ask_info(self) -> dict[str, str]:
        self._case, self._frame = "info", wire.encode({"want": "info"}, [])
        self._submitted = time.monotonic()
        if not self._unavailable:
            self._dispatch()
        try:
            if not self._ready and not self._unavailable:
                self._handshake()
            if self._unavailable:
                return {"unavailable": self._unavailable}
            reply, _ = self._frame_in(time.monotonic() + self.timeout_s)
            return dict(reply["info"])
        except (_Ended, _Late, KeyError) as error:
            return {"error": self._evidence(str(error) if isinstance(error, _Ended) else "no answer")}


def _observation(reply: Mapping[str, Any], tensors: list[Array]) -> Observation:
    status = Status(reply["status"])
    counts = {str(k): int(v) for k, v in reply.get("counts", {}).items()}
    times = {str(k): int(v) for k, v in reply.get("times_ns", {}).items()}
    return Observation(status, tuple(tensors), clean(reply.get("message", "")), counts, times)
