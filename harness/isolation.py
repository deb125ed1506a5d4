"""What keeps a worker from hurting anybody else: Linux first, with portable fallbacks."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import signal
import sys
import time
from typing import Any, Callable, Iterator, Sequence

LINUX = sys.platform.startswith("linux")
WINDOWS = os.name == "nt"
_PR_SET_PDEATHSIG = 1
_F_SETPIPE_SZ = 1031


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; elsewhere the end of the request pipe does it.

    The signal is tied to the parent's *thread* that started this process: start workers from a thread that stays.
    """
    if LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before the call above
            os._exit(1)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back; a process that is started meanwhile holds it back too, until it calls `ignore_interrupts`.

    Otherwise a worker that is still importing shows the person at the terminal a traceback.
    """
    mask = getattr(signal, "pthread_sigmask", None)  # not on Windows
    before = mask(signal.SIG_BLOCK, {signal.SIGINT}) if mask else None
    try:
        yield
    finally:
        if mask:
            mask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """Ctrl-C is the supervisor's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def limit_memory(nbytes: int) -> None:
    """Limit the address space; 0 is no limit. Only the soft limit, so that a child may choose its own."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = nbytes or hard
        resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def forbid_core_dumps() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def enlarge_pipe(fd: int) -> None:
    """1 MiB instead of 64 KiB: fewer switches between two processes that share a core."""
    if LINUX:
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, _F_SETPIPE_SZ, 1 << 20)


def start_options() -> dict[str, bool]:
    """A session of its own: the terminal's Ctrl-C stays with us, and a kill reaches a kernel's children too."""
    return {} if WINDOWS else {"start_new_session": True}


def shared_memory(name: str) -> int:
    """A descriptor of memory that no file names and that dies with its holders; -1 where there is none."""
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        return -1


def cores() -> list[int]:
    """The cores that this process may use, as the system numbers them."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:
        return list(range(os.cpu_count() or 1))


def pin(wanted: Sequence[int]) -> None:
    """Stay on these cores, threads started later too; nothing where the system cannot."""
    if wanted:
        with contextlib.suppress(AttributeError, OSError):
            os.sched_setaffinity(0, wanted)


def peak_memory() -> int:
    """The most resident bytes that this process ever had, 0 where the system does not say."""
    with contextlib.suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 0


def processor_s(pid: int) -> float:
    """Seconds of a processor that a process has had, all its threads together; infinity where that cannot be told."""
    try:
        return time.clock_gettime(~pid << 3 | 2) if LINUX else math.inf  # CPUCLOCK_SCHED of a process
    except OSError:
        return math.inf


def kill(process: Any) -> None:
    """End the process and all that it started, whatever signals it ignores."""
    with contextlib.suppress(OSError):
        if WINDOWS:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def how_it_ended(returncode: int) -> str:
    """`signal SIGSEGV` or `exit code 3`."""
    if returncode >= 0:
        return f"exit code {returncode}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-returncode).name}"
    return f"signal {-returncode}"


def wait(fds: Sequence[int], timeout_s: float, writable: int = -1) -> list[int]:
    """Those of `fds` that have data or have ended, and `writable` when it takes data; empty after `timeout_s`."""
    if WINDOWS:
        return _wait_windows(fds, timeout_s, writable)
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    if writable >= 0:
        poller.register(writable, select.POLLOUT)
    return [fd for fd, _ in poller.poll(max(0.0, timeout_s) * 1000)]


def waiter(fds: Sequence[int]) -> Callable[[float], list[int]]:
    """`wait` for the same descriptors again and again, which are told to the system only once."""
    if WINDOWS:
        return lambda timeout_s: _wait_windows(fds, timeout_s, -1)
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return lambda timeout_s: [fd for fd, _ in poller.poll(max(0.0, timeout_s) * 1000)]


def _wait_windows(fds: Sequence[int], timeout_s: float, writable: int) -> list[int]:
    import _winapi  # type: ignore[import-not-found,unused-ignore]
    import msvcrt

    deadline = time.monotonic() + timeout_s
    while True:
        ready = [writable] if writable >= 0 else []  # writes block there
        for fd in fds:
            try:
                handle = msvcrt.get_osfhandle(fd)  # type: ignore[attr-defined,unused-ignore]
                if _winapi.PeekNamedPipe(handle, 0)[0]:  # type: ignore[attr-defined,unused-ignore]
                    ready.append(fd)
            except OSError:
                ready.append(fd)
        if ready or time.monotonic() >= deadline:
            return ready
        time.sleep(0.0005)
