"""What a kernel may leave behind in its process that falsifies every later case: read before and after.

Portable: runs on Python 3.8 with the standard library alone; what a system cannot tell is left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import locale
import os
import signal
from typing import Any, NamedTuple

_ONE, _HALF_ULP, _SUBNORMAL = 1.0, 2.0**-53, 5e-324
_LIBC: Any = ctypes.CDLL(None) if os.name == "posix" else None
_STATUS = {
    b"Umask": "file mode mask",
    b"SigBlk": "blocked signals",
    b"SigIgn": "ignored signals",
    b"SigCgt": "handled signals",
    b"Cpus_allowed_list": "processors",
}
_files: dict[str, int] = {}


class Load(NamedTuple):
    """What may only grow while calls repeat."""

    threads: int
    fds: int
    children: int
    rss: int


def _proc(name: str) -> bytes:
    """A file of /proc/self through a descriptor that stays open; empty where there is none."""
    try:
        if name not in _files:
            _files[name] = os.open(f"/proc/self/{name}", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        return os.pread(_files[name], 8192, 0)
    except (OSError, AttributeError):
        return b""


def prepare() -> None:
    """Open what later reads need, so that they leave the descriptors as they are."""
    _proc("status")
    _proc("statm")


def _rounding() -> str:
    up, down, over = _ONE + _HALF_ULP, -_ONE - _HALF_ULP, _ONE + 1.5 * _HALF_ULP
    if over == _ONE:
        return "downward" if down != -_ONE else "toward zero"
    return "upward" if up != _ONE else "nearest"


def state() -> dict[str, str]:
    """The floating-point environment, the working directory, signals, timers, masks."""
    try:
        folder = os.getcwd()
    except OSError:
        folder = "(gone)"
    found = {
        "rounding mode": _rounding(),
        "subnormal numbers": "kept" if _SUBNORMAL * _ONE > 0 else "flushed to zero",
        "working directory": folder,
    }
    if hasattr(_LIBC, "fegetexcept"):
        found["floating-point traps"] = hex(_LIBC.fegetexcept())
    if hasattr(_LIBC, "fegetround"):  # the x87 unit has a mode of its own
        found["x87 rounding mode"] = hex(_LIBC.fegetround())
    with contextlib.suppress(AttributeError):  # Windows
        timers = [signal.getitimer(kind)[0] > 0 for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL)]
        found["timers"] = "running" if any(timers) else "none"
    with contextlib.suppress(locale.Error):
        found["locale"] = locale.setlocale(locale.LC_ALL)
    for line in _proc("status").split(b"\n"):
        key, _, value = line.partition(b":")
        if key in _STATUS:
            found[_STATUS[key]] = value.strip().decode()
    return found


def changes(before: dict[str, str], after: dict[str, str]) -> str:
    """`rounding mode upward (was nearest); ...`, empty where nothing changed."""
    return "; ".join(f"{k} {after.get(k)} (was {before[k]})" for k in before if before[k] != after.get(k))


def load(fd: int) -> Load:
    """Threads, the lowest free descriptor (`fd` is any that is open), children, resident bytes."""
    try:
        threads = os.stat("/proc/self/task").st_nlink - 2
    except OSError:
        threads = 0
    free = os.dup(fd)
    os.close(free)
    statm = _proc("statm").split()
    return Load(threads, free, _children(), int(statm[1]) * 4096 if len(statm) > 1 else 0)


def _children() -> int:
    """1 where a child is left, running or not collected."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return 1
    except (ChildProcessError, AttributeError):
        return 0


def grown(before: Load, after: Load) -> str:
    """What is left running or open, empty where nothing is."""
    left = []
    if after.threads > before.threads:
        left.append(f"{after.threads - before.threads} more threads running")
    if after.fds > before.fds:
        left.append(f"open descriptors (the lowest free one is {after.fds}, was {before.fds})")
    if after.fds < before.fds:
        left.append(f"a descriptor closed that was not its own ({after.fds})")
    if after.children > before.children:
        left.append("a child process")
    return "; ".join(left)
