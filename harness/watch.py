"""What a kernel may leave behind in its process that falsifies every later case: read before and after.

Portable: runs on Python 3.8 with the standard library alone; what a system cannot tell is left out.
"""

from __future__ import annotations

import ctypes
import locale
import os
import re
import signal
from typing import Any, NamedTuple

resource: Any
try:
    import resource
except ImportError:  # Windows
    resource = None

_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE) if resource else ()
_ONE, _HALF_ULP, _SUBNORMAL = 1.0, 2.0**-53, 5e-324
_LIBC: Any = ctypes.CDLL(None) if os.name == "posix" else None
_STATUS_NAMES = ("file mode mask", "blocked signals", "ignored signals", "handled signals", "processors")
_STATUS = re.compile(
    rb"Umask:\t(\w+).*SigBlk:\t(\w+)\nSigIgn:\t(\w+)\nSigCgt:\t(\w+)\n.*Cpus_allowed_list:\t(\S+)", re.DOTALL
)
_LOAD = re.compile(rb"VmRSS:\s*(\d+) kB\n.*Threads:\t(\d+)\n", re.DOTALL)
_WAITED: Any = (
    (os.P_ALL, 0, ctypes.create_string_buffer(256), os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if hasattr(os, "waitid")
    else ()
)
_fegetexcept = getattr(_LIBC, "fegetexcept", int)
_fegetround = getattr(_LIBC, "fegetround", int)  # the x87 unit has a mode of its own
_THREAD_SIGNALS = 0b11 << 31  # 32 and 33: glibc handles them once a thread was started
_files: dict[str, int] = {}
_states: list[tuple[Any, ...]] = []
_loads: list[Load] = []
_LOWEST = [1 << 30]


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
    """Open what later reads need, so that they leave the descriptors as they are; again after a fork.

    What is read now is what every case finds: a process that a case left otherwise gets no other case.
    """
    for fd in _files.values():  # /proc/self of the process that opened it
        os.close(fd)
    _files.clear()
    status()
    _states[:] = [state()]
    _loads.clear()


def status() -> bytes:
    """What the system tells about this process, for `state` and `load` together: it is what costs most there."""
    return _proc("status")


def state(told: bytes = b"") -> tuple[Any, ...]:
    """The floating-point environment, the working directory, signals, timers, masks; `changes` gives them names.

    `told` is a `status` just read.
    """
    try:
        folder = os.getcwd()
    except OSError:
        folder = "(gone)"
    found = _STATUS.search(told or status())
    return (
        (_ONE + _HALF_ULP, -_ONE - _HALF_ULP, _ONE + 1.5 * _HALF_ULP),
        _SUBNORMAL * _ONE > 0,  # a bool: once flushed, 5e-324 == 0
        folder,
        _fegetexcept(),
        _fegetround(),
        _timers(),
        tuple([resource.getrlimit(kind)[0] for kind in _LIMITS]),
        _locale(),
        *(found.groups() if found else ()),
    )


def state_before() -> tuple[Any, ...]:
    """The state when the process was ready. Not read again: what a thread of an earlier case changed late, shows."""
    return _states[0] if _states else state()


def _timers() -> tuple[bool, ...]:
    if os.name != "posix":
        return ()
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0, signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 0


def _locale() -> str:
    try:
        return locale.setlocale(locale.LC_ALL)
    except locale.Error as error:
        return str(error)


def _named(seen: tuple[Any, ...]) -> dict[str, str]:
    """Each thing in words."""
    (up, down, over), subnormal, folder, traps, x87, timers, limits, place, *others = seen
    if over == _ONE:
        rounding = "downward" if down != -_ONE else "toward zero"
    else:
        rounding = "upward" if up != _ONE else "nearest"
    found = {
        "rounding mode": rounding,
        "subnormal numbers": "kept" if subnormal else "flushed to zero",
        "working directory": folder,
        "floating-point traps": hex(traps),
        "rounding mode of the C library": hex(x87),
        "timers": "running" if any(timers) else "none",
        "resource limits": " ".join(map(str, limits)),
        "locale": place,
    }
    for name, value in zip(_STATUS_NAMES, others):
        text = value.decode()
        found[name] = f"{int(text, 16) & ~_THREAD_SIGNALS:x}" if name.endswith("signals") else text
    return found


def changes(before: tuple[Any, ...], after: tuple[Any, ...]) -> str:
    """`rounding mode upward (was nearest); ...`, empty where nothing changed."""
    if before == after:
        return ""
    was, now = _named(before), _named(after)
    return "; ".join(f"{name} {now.get(name)} (was {was[name]})" for name in was if was[name] != now.get(name))


def load(fd: int, told: bytes = b"") -> Load:
    """Threads, the lowest free descriptor (`fd` is any that is open), children, resident bytes.

    `told` is a `status` just read.
    """
    free = os.dup(fd)
    os.close(free)
    found = _LOAD.search(told or status())
    return Load(int(found[2]), free, _children(), int(found[1]) << 10) if found else Load(0, free, _children(), 0)


def earlier(fd: int) -> Load:
    """The load when the case before was over, or now."""
    if not _loads:
        remember(load(fd))
    return _loads[-1]


def forget() -> None:
    """The harness itself opened something: what is open is read again before the next case."""
    _loads.clear()


def remember(found: Load) -> None:
    """What a case left, which was nothing; the lowest free descriptor of all cases so far is kept.

    A background thread of a runtime may hold a descriptor for a moment: one that is free now and was free before
    is nobody's loss.
    """
    _LOWEST[0] = min(_LOWEST[0], found.fds)
    _loads[:] = [found]


def _children() -> int:
    """1 where a child is left, running or not collected. C's function: os.waitid says no with a slow exception."""
    return int(bool(_WAITED) and _LIBC.waitid(*_WAITED) == 0)


def grown(before: Load, after: Load) -> str:
    """What is left running or open, empty where nothing is."""
    left = []
    if after.threads > before.threads:
        left.append(f"{after.threads - before.threads} more threads running")
    if after.fds > before.fds:
        left.append(f"open descriptors (the lowest free one is {after.fds}, was {before.fds})")
    if after.fds < min(before.fds, _LOWEST[0]):
        left.append(f"a descriptor closed that was not its own ({after.fds})")
    if after.children > before.children:
        left.append("a child process")
    return "; ".join(left)
