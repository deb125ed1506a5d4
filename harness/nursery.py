"""A process that has loaded an adapter and forks workers: 5 ms for a new one instead of a whole start.

Only kinds that load without starting a thread are forked (a fork after threads is unsafe); the nursery itself
looks, and says no. Client's side: `Nursery`. The nursery's own side, `serve`, is portable.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
from typing import Any, Callable, NamedTuple, Sequence

from . import isolation

FORKED_KINDS = ("native", "callable", "fault")
MESSAGE = 4096
ANSWER_S = 10.0


class NurseryError(Exception):
    """No worker comes from here (any more): start one the long way."""


class Forked:
    """A forked worker, in the words of subprocess.Popen."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery, self.pid = nursery, pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        if self.returncode is None and not select.select([self._pidfd], [], [], 0)[0]:
            return None
        return self._ask("poll", 0.0)

    def wait(self, timeout: float | None = None) -> int | None:
        code = self._ask("wait", ANSWER_S if timeout is None else timeout)
        if code is None and timeout is not None:
            raise subprocess.TimeoutExpired("worker", timeout)
        return code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def _ask(self, word: str, timeout: float) -> int | None:
        if self.returncode is None:
            try:
                self.returncode = self._nursery.ask({word: self.pid, "timeout": timeout}, timeout + ANSWER_S)["code"]
            except NurseryError:  # it died, and its children with it
                self.returncode = -int(signal.SIGKILL)
            if self.returncode is not None:
                os.close(self._pidfd)
        return self.returncode


class Nursery:
    """The client's end."""

    def __init__(
        self, command: Sequence[str], settings: dict[str, Any], variables: dict[str, str], load_s: float
    ) -> None:
        ours, theirs = socket.socketpair()
        self._socket, self._loaded, self._load_s = ours, False, load_s
        words = [*command, json.dumps({**settings, "nursery": theirs.fileno(), "parent": os.getpid()})]
        null = subprocess.DEVNULL
        options: dict[str, Any] = isolation.start_options()
        self.process = subprocess.Popen(
            words, stdin=null, stdout=null, stderr=null, pass_fds=[theirs.fileno()], env=variables, **options
        )
        theirs.close()

    def ask(self, message: dict[str, Any], limit_s: float, fds: Sequence[int] = ()) -> dict[str, Any]:
        """Raises: NurseryError."""
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], fds)
            if not select.select([self._socket], [], [], limit_s)[0]:
                raise NurseryError("no answer")
            answer = json.loads(self._socket.recv(MESSAGE) or b"{}")
        except (OSError, ValueError) as error:
            raise NurseryError(str(error)) from error
        if not answer or "no" in answer:
            raise NurseryError(answer.get("no", "it ended"))
        return answer

    def fork(self, settings: dict[str, Any], fds: Sequence[int]) -> Forked:
        """A worker on these descriptors: its pipes in, out, err, then what else it shares. Raises: NurseryError."""
        limit_s = ANSWER_S if self._loaded else self._load_s
        forked = Forked(self, self.ask({"fork": settings}, limit_s, fds)["pid"])
        self._loaded = True
        return forked

    def close(self) -> None:
        self._socket.close()
        isolation.kill(self.process)


# ---- the nursery's own side


class Birth(NamedTuple):
    """What a forked worker is given."""

    settings: dict[str, Any]
    fds: list[int]


def serve(fd: int, threads: Callable[[], int]) -> Birth:
    """Fork on request until the client is gone; returns only in a child."""
    channel = socket.socket(fileno=fd)
    size = socket.CMSG_SPACE(8 * struct.calcsize("i"))
    while True:
        data, ancillary, _, _ = channel.recvmsg(MESSAGE, size)
        if not data:
            os._exit(0)
        fds = [n for _, _, raw in ancillary for (n,) in struct.iter_unpack("i", raw[: len(raw) // 4 * 4])]
        request = json.loads(data)
        if "fork" in request:
            answer: dict[str, Any] = {"no": "threads are running"}
            if threads() <= 1:
                nursery = os.getpid()
                pid = os.fork()
                if not pid:
                    channel.close()
                    os.setpgid(0, 0)
                    isolation.die_with_parent(nursery)
                    return Birth(request["fork"], fds)
                with contextlib.suppress(OSError):  # the child did it already
                    os.setpgid(pid, pid)
                answer = {"pid": pid}
        else:
            (_, pid), (_, timeout) = request.items()
            answer = {"code": _wait(pid, timeout)}
        for each in fds:
            os.close(each)
        channel.sendall(json.dumps(answer).encode())


def _wait(pid: int, timeout: float) -> int | None:
    """Its return code as subprocess gives it, None while it runs."""
    import time

    deadline = time.monotonic() + timeout
    while True:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return -int(signal.SIGKILL)
        if found:
            return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.0005)
