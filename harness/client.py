"""The near end of kernel workers: sends cases, charges what happens to the case that did it."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opgauge.backends import BackendSpec
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import BackendUnavailableError
from opgauge.reference_engine.types import Array, Observation, Status

from . import environment, isolation, spawn, wire
from .nursery import FORKED_KINDS, Nursery, NurseryError
from .spawn import Ended, Kernel, Late
from .worker import CHANGED, clean

if TYPE_CHECKING:
    from .formulas import Formula

STRETCH = 6  # times its limit that a worker may take by the clock
IDLE = 0.02  # of a core: who uses less waits for something and does not compute
ENOUGH = 0.95  # of its limit in processor time: the rest is ours
LOOK_LEAST_S = 0.1  # in which a process that shares a core with many others gets some of it
GRACE_S = 1.0  # what it printed may have held it up while nobody read
LOAD_CRASHES = 2  # then the backend counts as unavailable
HISTORY = 64  # cases of a process that are kept to be asked again
HISTORY_BYTES = 8 << 20
_ADDRESS_FAULTS = ("SIGSEGV", "SIGBUS")


class Request(NamedTuple):
    """A case as it is sent."""

    case: str
    header: dict[str, Any]
    tensors: list[wire.Tensor]
    nbytes: int


class Client:
    """The kernel workers of one backend; at most one case in flight.

    `submit` returns at once, so that several backends compute side by side; `receive` gives what became of the
    case. A worker that crashed, hung or may be damaged is replaced before the next case; from the first loss on
    (from the start with `spare`) another one waits, loaded.
    """

    def __init__(
        self,
        spec: BackendSpec,
        timeout_s: float = 20.0,
        memory_limit: int | None = None,
        guarded: str = spawn.GUARD,
        spare: bool = False,
        heap_check: bool = False,
    ) -> None:
        self.spec = spec
        self.timeout_s = timeout_s
        self.restarts = 0
        self.late_deaths: list[tuple[str, str]] = []  # (case id, message)
        self.pins: Mapping[tuple[str, str], tuple[Formula, ...]] = {}  # formulas that it is held to
        self._memory_limit = spec.definition.memory_limit if memory_limit is None else memory_limit
        self._guarded, self._variables = guarded, spawn.variables_of(heap_check)
        self._nursery: Nursery | None = None
        self._kernel: Kernel | None = None
        self._spare: Kernel | None = None
        self._keep_spare = spare
        self._unavailable = ""
        self._load_crashes = 0
        self._started = False
        self._info: dict[str, str] | None = None
        self._request = Request("", {}, [], 0)
        self._history: deque[Request] = deque()
        self._history_bytes = 0
        self._in_flight = False
        self._submitted = 0.0
        if spec.kind in FORKED_KINDS and isolation.LINUX and self._open_nursery():
            return
        self._start()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- processes

    def _open_nursery(self) -> bool:
        """Workers are forked from now on; False where the environment cannot be had, which `_start` reports."""
        try:
            command = environment.command(self.spec)
        except BackendUnavailableError:
            return False
        settings = spawn.settings_of(self.spec, self._memory_limit)
        self._nursery = Nursery(command, settings, self._variables, self.spec.definition.load_timeout_s)
        return True

    def _new(self, guarded: str = "") -> Kernel:
        """Raises: BackendUnavailableError."""
        common = (self.spec, self._memory_limit, guarded or self._guarded, self._variables)
        if self._nursery is not None:
            try:
                return Kernel(*common, births=self._nursery)
            except NurseryError:
                self._nursery.close()
                self._nursery = None
        return Kernel(*common, births=None)

    def _start(self) -> None:
        self._started = True
        spare, self._spare = self._spare, None
        try:
            if spare is not None and not spare.alive():
                spare.stop()
                spare = None
            self._kernel = spare or self._new()
            self._prepare_spare()
        except BackendUnavailableError as error:
            self._unavailable = clean(error)
        self._history.clear()
        self._history_bytes = 0

    def _prepare_spare(self) -> None:
        if self._keep_spare and self._spare is None and self._nursery is None:
            self._spare = self._new()

    def _stop(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.stop()

    def close(self) -> None:
        self._note_late_death()
        self._stop()
        if self._spare is not None:
            self._spare.stop()
            self._spare = None
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None

    def _note_late_death(self) -> None:
        """A process that died between two cases is charged to the case before."""
        kernel = self._kernel
        if kernel is not None and kernel.served and not kernel.alive():
            self._kernel = None
            message = f"its process died after the result was in: {kernel.evidence('')}"
            self.late_deaths.append((kernel.served[-1], clean(message)))

    # ---- cases

    def submit(
        self,
        case_id: str,
        model: bytes,
        inputs: Mapping[str, Array],
        repeats: int = 2,
        n_outputs: int = 0,
        rounds: int = 1,
    ) -> None:
        """Send a case. `n_outputs`, where known, is what the adapter must return.

        After its `repeats`, `rounds` times other data of the same shapes and this case take turns: no call may
        show in the result of another.
        """
        header = {
            "id": case_id,
            "names": list(inputs),
            "repeats": repeats,
            "n_outputs": n_outputs,
            "rounds": rounds if repeats > 1 else 0,
        }
        tensors: list[wire.Tensor] = [("uint8", (len(model),), model)]
        nbytes = len(model)
        for x in inputs.values():
            tensors.append((dt.word_of(x.dtype), x.shape, np.asarray(x).tobytes()))
            nbytes += x.nbytes
        if self._in_flight:  # nobody came for the last reply: it must not answer this case
            self._stop()
        self._request, self._in_flight = Request(case_id, header, tensors, nbytes), True
        if not self._unavailable:
            self._dispatch()

    def _dispatch(self) -> None:
        self._note_late_death()
        if self._kernel is None:
            if self._started:
                self.restarts += 1
                self._keep_spare = True
            self._start()
        self._submitted = time.monotonic()
        if self._kernel is not None:
            _send(self._kernel, self._request, self._limit_s(self._kernel))

    def _limit_s(self, kernel: Kernel) -> float:
        return self.timeout_s if kernel.ready else self.spec.definition.load_timeout_s

    def receive(self) -> Observation:
        """What became of the case submitted last."""
        self._in_flight = False
        seen = self._observe()
        if seen.status is Status.CRASH:
            seen = self._investigate(seen, list(self._history))
        elif seen.status is Status.LEAK and seen.message.startswith(CHANGED) and len(self._history) > 1:
            seen = self._late_change(seen)
        if self._keep_spare and not self._unavailable:
            with contextlib.suppress(BackendUnavailableError):
                if self._kernel is None:
                    self._start()
                self._prepare_spare()
        return seen

    def _observe(self) -> Observation:
        if self._unavailable:
            return Observation(Status.UNAVAILABLE, message=self._unavailable)
        try:
            if self._kernel is not None and not self._kernel.ready:
                self._handshake()
        except Ended as error:
            return Observation(Status.UNAVAILABLE, message=clean(error))
        kernel = self._kernel
        if kernel is None:
            return Observation(Status.UNAVAILABLE, message=self._unavailable)
        try:
            reply, seen = _reply(kernel, max(self._submitted, kernel.ready_at), self.timeout_s)
        except Late:
            self._stop()
            return Observation(Status.HANG, message=f"no result in {self.timeout_s:g} s; killed")
        except (Ended, wire.WireError, KeyError, TypeError, ValueError) as error:
            self._kernel = None
            return _crashed(kernel, str(error))
        kernel.served.append(self._request.case)
        self._remember()
        if reply.get("retire"):
            self._stop()
        return seen

    def _remember(self) -> None:
        """Keep what this process did, so that it can be asked again; the oldest go first."""
        if len(self._history) == HISTORY:
            self._history_bytes -= self._history.popleft().nbytes
        self._history.append(self._request)
        self._history_bytes += self._request.nbytes
        while self._history_bytes > HISTORY_BYTES:
            self._history_bytes -= self._history.popleft().nbytes

    def _handshake(self) -> None:
        """Wait for the adapter to load. Raises: Ended where it died while another try may help."""
        limit = self.spec.definition.load_timeout_s
        kernel = self._kernel
        assert kernel is not None
        try:
            reply, _ = kernel.receive(time.monotonic() + limit)
        except Late:
            self._stop()
            self._unavailable = f"not loaded after {limit:g} s; killed"
            return
        except Ended:
            self._load_crashes += 1
            self._kernel = None
            message = kernel.evidence("")
            if self._load_crashes >= LOAD_CRASHES:
                self._unavailable = f"died while loading: {message}"
                return
            self._dispatch()
            return self._handshake() if self._kernel else None
        if "unavailable" in reply:
            self._unavailable = clean(reply["unavailable"])
            self._stop()
            return
        kernel.ready, self._load_crashes, kernel.ready_at = True, 0, time.monotonic()

    def before(self) -> tuple[Request, ...]:
        """What this process did before the case that it did last; the oldest may be forgotten."""
        return tuple(self._history)[:-1]

    def renew(self, after: Sequence[Request] = ()) -> None:
        """The next case runs in a new process that did `after` and nothing else."""
        self._note_late_death()
        self._stop()
        self._keep_spare = True
        self._start()
        for request in after:
            self._request, self._in_flight = request, True
            if not self._unavailable:
                self._dispatch()
            self.receive()

    # ---- after a crash

    def _investigate(self, seen: Observation, before: Sequence[Request]) -> Observation:
        """Whose fault a crash is: this case's alone, or also that of cases before it in the same process."""
        alone = self._again([self._request]) if before else seen
        if alone.status is not Status.CRASH:
            guilty = fewest(before, lambda some: self._again([*some, self._request]).status is Status.CRASH)
            if not guilty:
                why = f"in a process that had run {len(before)} others, last {before[-1].case}; alone the case runs"
                return replace(seen, status=Status.FLAKY, message=clean(f"{seen.message} {why}"))
            text = f"damaged its process: {self._request.case} died after it and runs without it: {seen.message}"
            self.late_deaths.append((guilty[0].case, clean(text)))
            return alone
        if self._guarded == spawn.GUARD and alone.message.startswith(tuple(f"signal {s}" for s in _ADDRESS_FAULTS)):
            return self._without_guards(alone)
        return alone

    def _late_change(self, seen: Observation) -> Observation:
        """Did this case change its process, or the one before, after its result was in?"""
        alone = self._again([self._request])
        if alone.status is Status.LEAK:
            return alone
        text = f"after its result was in, during {self._request.case}: {seen.message}"
        self.late_deaths.append((self._history[-2].case, clean(text)))
        return alone

    def _without_guards(self, seen: Observation) -> Observation:
        """A fault at an address: is it the guard page of a buffer?"""
        loose = self._again([self._request], spawn.LOOSE)
        if loose.status is Status.OVERRUN:
            return replace(loose, message=clean(f"{loose.message} ({seen.message})"))
        if loose.status is Status.PASS:
            text = f"touched memory outside its buffers without writing beside them ({seen.message})"
            return replace(seen, status=Status.OVERRUN, message=clean(text))
        return seen

    def _again(self, requests: Sequence[Request], guarded: str = "") -> Observation:
        """What becomes of the last request in a fresh process that did the others before."""
        kernel = self._new(guarded)
        seen = Observation(Status.UNAVAILABLE)
        try:
            kernel.receive(time.monotonic() + self.spec.definition.load_timeout_s)
            for request in requests:
                _send(kernel, request, self.timeout_s)
                _, seen = _reply(kernel, time.monotonic(), self.timeout_s)
            return seen
        except Late:
            return Observation(Status.HANG, message=f"no result in {self.timeout_s:g} s; killed")
        except (Ended, wire.WireError, KeyError, TypeError, ValueError) as error:
            return _crashed(kernel, str(error))
        finally:
            kernel.stop()

    # ---- about the backend

    @property
    def info(self) -> Mapping[str, str]:
        """What the adapter says about itself, asked once; `unavailable` or `error` where it cannot."""
        if self._info is None:
            self._info = self._ask_info()
        return self._info

    def _ask_info(self) -> dict[str, str]:
        self._request = Request("info", {"want": "info"}, [], 0)
        if not self._unavailable:
            self._dispatch()
        try:
            if self._kernel is not None and not self._kernel.ready and not self._unavailable:
                self._handshake()
            if self._unavailable or self._kernel is None:
                return {"unavailable": self._unavailable}
            reply, _ = self._kernel.receive(time.monotonic() + self.timeout_s)
            return dict(reply["info"])
        except (Ended, Late, KeyError) as error:
            kernel, self._kernel = self._kernel, None
            said = str(error) if isinstance(error, Ended) else "no answer"
            return {"error": kernel.evidence(said) if kernel else said}


def fewest(before: Sequence[Request], holds: Callable[[Sequence[Request]], bool]) -> Sequence[Request]:
    """Those among the cases before without which something does not hold, by halving; none where it does not repeat."""
    if not holds(before):
        return ()
    while len(before) > 1:
        middle = len(before) // 2
        for half in (before[middle:], before[:middle]):  # the later ones first: damage is mostly fresh
            if holds(half):
                before = half
                break
        else:  # it takes several
            break
    return before


def _send(kernel: Kernel, request: Request, limit_s: float) -> None:
    with contextlib.suppress(Late):  # `receive` finds out
        kernel.send(request.header, request.tensors, limit_s)


def _reply(kernel: Kernel, since: float, limit_s: float) -> tuple[dict[str, Any], Observation]:
    """The reply and what it says.

    The limit is meant for the work: a worker that still computes, but had less than `limit_s` of a processor since,
    shares the machine or compiles for the first time, and is waited for, by the clock at most STRETCH times as long.

    Raises: Ended, Late, WireError, KeyError, TypeError, ValueError.
    """
    looked, deadline = time.monotonic(), max(since + limit_s, time.monotonic() + min(GRACE_S, limit_s))
    last, begun = deadline + (STRETCH - 1) * limit_s, isolation.processor_s(kernel.process.pid)
    used = begun
    while True:
        try:
            reply, payload = kernel.receive(deadline)
            break
        except Late:
            before, used = used, isolation.processor_s(kernel.process.pid)
            now = time.monotonic()
            computes = used - before > IDLE * (now - looked) and used - begun < ENOUGH * limit_s
            if not computes or now >= last:
                raise
            looked, deadline = now, min(last, now + max(limit_s - (used - begun), LOOK_LEAST_S))
    return reply, _observation(reply, wire.tensors_of(reply, payload))


def _crashed(kernel: Kernel, said: str) -> Observation:
    message = kernel.evidence(said)
    status = Status.OOM if any(word in message for word in spawn.OUT_OF_MEMORY) else Status.CRASH
    return Observation(status, message=message)


def _observation(reply: Mapping[str, Any], tensors: list[Array]) -> Observation:
    status, message = Status(reply["status"]), reply.get("message", "")
    counts = {str(k): int(v) for k, v in reply.get("counts", {}).items()}
    times = {str(k): int(v) for k, v in reply.get("times_ns", {}).items()}
    return Observation(status, tuple(tensors), clean(message) if message else "", counts, times)
