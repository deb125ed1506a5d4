"""Is a backend fit to stand beside a peer? Six checks, one verdict; limits in [certify] of gates.toml.

certify(resolve("mine.py:run"), resolve("onnxruntime"), Limits(), works, tasks)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import BackendUnavailableError, ModelError
from opgauge.reference_engine.types import Array, Finding, Observation, Status

from .latency import Call, Estimate, Plan
from .workloads import Side, Workload

CHECKS = ("conformance", "psnr", "stability", "resources", "fallbacks", "speed")


class Word(StrEnum):
    """What a check says."""

    PASS = "pass"
    FAIL = "fail"
    UNCLEAR = "cannot tell"
    NOTHING = "not measured"


@dataclass(frozen=True)
class Limits:
    """[certify] of gates.toml.

    `psnr_db` of every float output, `speed` as a share of the peer's, `memory` as a multiple of the peer's peak,
    `grown_bytes` that 1,000 runs may add, `fallbacks` a run, `budget` cases for each suite row, `repeats` processes
    that must give the same bits.
    """

    psnr_db: float = 45.0
    speed: float = 0.80
    memory: float = 2.0
    grown_bytes: int = 1 << 20
    fallbacks: int = 0
    budget: int = 10
    repeats: int = 3


@dataclass(frozen=True)
class Check:
    """One line of a certificate: `measured` cases, the worst of them in words."""

    name: str
    word: Word
    measured: int
    said: str
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ran:
    """A case on the backend, in several fresh processes.

    `psnr_db` of its worst float output against the exact reference: None where it has none, infinite where all
    elements are equal. `bits` are digests of the outputs, one for each process; `refused` is the message of a refusal.
    """

    name: str
    psnr_db: float | None = None
    bits: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True)
class Certificate:
    backend: str
    peer: str
    checks: tuple[Check, ...]

    @property
    def word(self) -> Word:
        """The worst of the checks: fail, then cannot tell. A check that measured nothing certifies nothing."""
        words = [c.word for c in self.checks]
        if all(w is Word.NOTHING for w in words):
            return Word.NOTHING
        if Word.FAIL in words:
            return Word.FAIL
        return Word.PASS if all(w is Word.PASS for w in words) else Word.UNCLEAR

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        rows = [{**asdict(c), "word": str(c.word), "subjects": list(c.subjects)} for c in self.checks]
        return {"backend": self.backend, "peer": self.peer, "verdict": str(self.word), "checks": rows}


# ---- what the numbers mean


def psnr_db(right: Array, actual: Array) -> float:
    """10 log10(max|right|^2 / mean((right - actual)^2)); infinite for equal arrays, -inf for unequal shapes or NaNs.

    Equal infinities and NaNs at the same places count as equal.
    """
    if right.shape != actual.shape:
        return -math.inf
    a, b = np.asarray(right, np.float64), np.asarray(actual, np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return -math.inf
    a, b = a[finite], b[finite]
    noise = float(np.mean((a - b) ** 2)) if a.size else 0.0
    span = float(np.abs(a).max(initial=0.0))
    if not noise:
        return math.inf
    return 10 * math.log10(span**2 / noise) if span else -math.inf


def conformance(judged: int, findings: Sequence[Finding]) -> Check:
    if not judged:
        return Check("conformance", Word.NOTHING, 0, "no case was judged")
    bad = tuple(f"{f.subject}: {f.message}" for f in findings)
    said = f"{judged:,} verdicts, {len(bad)} findings"
    return Check("conformance", Word.FAIL if bad else Word.PASS, judged, said, bad[:5])


def quality(ran: Sequence[Ran], limits: Limits, float_outputs: bool = True) -> Check:
    """A suite without float outputs has no such quality: that passes, said so."""
    seen = [(r.psnr_db, r.name) for r in ran if r.psnr_db is not None]
    if not seen:
        word = Word.NOTHING if float_outputs else Word.PASS
        return Check("psnr", word, 0, "no float output to compare" if float_outputs else "no float output among them")
    worst, name = min(seen)
    bad = tuple(f"{n}: {p:.1f} dB" for p, n in seen if p < limits.psnr_db)
    said = f"worst {worst:.1f} dB ({name}), at least {limits.psnr_db:g}"
    return Check("psnr", Word.FAIL if bad else Word.PASS, len(seen), said, bad)


def stability(ran: Sequence[Ran], limits: Limits) -> Check:
    seen = [r for r in ran if len(r.bits) > 1]
    if not seen:
        return Check("stability", Word.NOTHING, 0, "no case ran twice")
    bad = tuple(r.name for r in seen if len(set(r.bits)) > 1)
    said = f"the bits of {len(seen) - len(bad)} of {len(seen)} cases repeat in {limits.repeats} processes"
    return Check("stability", Word.FAIL if bad else Word.PASS, len(seen), said, bad)


def resources(estimates: Sequence[Estimate], grown: Mapping[str, float], limits: Limits) -> Check:
    """Peak memory against the peer's, and growth over repeated runs."""
    peaks = [
        (e.detail["peak_rss_new_bytes"] / e.detail["peak_rss_base_bytes"], e.name)
        for e in estimates
        if e.detail.get("peak_rss_base_bytes") and e.detail.get("peak_rss_new_bytes")
    ]
    if not peaks and not grown:
        return Check("resources", Word.NOTHING, 0, "memory was not seen")
    bad = [f"{n}: peak {x:.2f} x the peer's" for x, n in peaks if x > limits.memory]
    bad += [f"{n}: {g / 2**20:+.2f} MiB in 1,000 runs" for n, g in grown.items() if g > limits.grown_bytes]
    said = f"peak {max((x for x, _ in peaks), default=math.nan):.2f} x the peer's, at most {limits.memory:g}"
    said += f"; {max(grown.values(), default=0) / 2**20:+.2f} MiB in 1,000 runs"
    return Check("resources", Word.FAIL if bad else Word.PASS, max(len(peaks), len(grown)), said, tuple(bad))


def fallbacks(ran: Sequence[Ran], limits: Limits) -> Check:
    """Counts of fallbacks, where the backend counts; a refusal is a fallback that its user would have to write."""
    if not ran:
        return Check("fallbacks", Word.NOTHING, 0, "no case ran")
    bad = [f"{r.name}: refused: {r.refused}" for r in ran if r.refused]
    counted = [(sum(v for k, v in r.counts.items() if "fallback" in k), r.name) for r in ran if not r.refused]
    bad += [f"{n}: {c} fallbacks" for c, n in counted if c > limits.fallbacks]
    reported = any("fallback" in k for r in ran for k in r.counts)
    said = f"{sum(c for c, _ in counted)} fallbacks, {sum(bool(r.refused) for r in ran)} refusals in {len(ran)} cases"
    said += "" if reported else " (the backend reports no count of fallbacks)"
    return Check("fallbacks", Word.FAIL if bad else Word.PASS, len(ran), said, tuple(bad))


def speed(estimates: Sequence[Estimate], limits: Limits) -> Check:
    """Peer's time / backend's time, each with its interval: below the limit fails, an interval across it tells nothing.

    The estimates are ln(backend / peer).
    """
    timed = [e for e in estimates if e.pairs]
    untimed = [e for e in estimates if not e.pairs and e.verdict is Call.UNCLEAR]
    same = [e for e in estimates if not e.pairs and e.verdict is Call.SAME]
    if not timed and not same:
        reasons = tuple(f"{e.name}: {e.reason}" for e in untimed)
        return Check("speed", Word.NOTHING, 0, "no case could be timed", reasons)
    most = -math.log(limits.speed)
    slow = [e for e in timed if e.low > most]
    unclear = [e for e in timed if e.low <= most < e.high]
    bad = [f"{e.name}: {_share(e)}" for e in slow]
    bad += [f"{e.name}: cannot tell, {_share(e)}" for e in unclear]
    bad += [f"{e.name}: cannot tell, {e.reason}" for e in untimed]
    said = f"{len(same)} cases are the same work" if not timed else ""
    if timed:
        worst = max(timed, key=lambda e: e.log_ratio)
        said = f"slowest case {_share(worst)} ({worst.name}), at least {limits.speed:.0%}"
    word = Word.FAIL if slow else Word.UNCLEAR if unclear or untimed else Word.PASS
    return Check("speed", word, len(timed) + len(same), said, tuple(bad))


def _share(e: Estimate) -> str:
    return f"{math.exp(-e.log_ratio):.0%} of the peer's speed ({math.exp(-e.high):.0%} to {math.exp(-e.low):.0%})"


# ---- what is measured


def ran(work: Workload, backend: str, repeats: int, timeout_s: float = 60.0) -> Ran:
    """The case in `repeats` fresh processes; its first outputs against the exact reference."""
    from opgauge.backends import resolve

    from .client import Client
    from .repro import digest

    spec, seen = resolve(backend), []
    for _ in range(repeats):
        with Client(spec, timeout_s) as client:
            client.submit(work.name, work.model, work.inputs)
            seen.append(client.receive())
        if seen[-1].status is not Status.PASS:
            return Ran(work.name, refused=f"{seen[-1].status}: {seen[-1].message}")
    return Ran(work.name, _quality(work, seen[0], spec.policy), tuple(digest(o.outputs) for o in seen), seen[0].counts)


def _quality(work: Workload, seen: Observation, policy: Any) -> float | None:
    from opgauge.reference_engine.evaluate import evaluate
    from opgauge.reference_engine.lower import lower

    try:
        exacts = evaluate(lower(work.model, work.inputs), work.inputs, policy)
    except ModelError:
        return None
    found = [psnr_db(e.value, y) for e, y in zip(exacts, seen.outputs, strict=False) if dt.is_float(e.dtype)]
    return min(found, default=None)


def certify(
    backend: str,
    peer: str,
    limits: Limits,
    works: Sequence[Workload],
    judge: Callable[[], tuple[int, Sequence[Finding]]],
    plan: Plan = Plan(),  # noqa: B008
    soak_runs: int = 200,
    say: Callable[[str], None] = lambda text: None,
) -> Certificate:
    """`judge` gives the number of verdicts of the suite and its findings; the rest is measured on `works`.

    Raises: BackendUnavailableError where either side cannot be loaded.
    """
    from . import pairs, soak

    say("conformance")
    checks = [conformance(*judge())]
    say("quality and stability")
    seen = [ran(work, backend, limits.repeats) for work in works]
    # What the peer refuses too is no shortcoming beside it.
    kept = [(w, r) for w, r in zip(works, seen, strict=True) if not r.refused or not ran(w, peer, 1).refused]
    seen = [r for _, r in kept]
    fit = [w for w, r in kept if not r.refused]
    say("speed")
    estimates = pairs.compare_all(fit, Side(peer), Side(backend), replace(plan, limit=1 / limits.speed - 1))
    say("memory")
    grown = {}
    for work in fit:
        try:
            held = soak.soak(work, Side(backend), runs=soak_runs)
        except (pairs.MeasureError, BackendUnavailableError):
            continue
        grown[work.name] = held.grown_bytes
    floats = any(r.psnr_db is not None for r in seen) or not fit
    checks += [
        quality(seen, limits, floats),
        stability(seen, limits),
        resources(estimates, grown, limits),
        fallbacks(seen, limits),
        speed(estimates, limits),
    ]
    return Certificate(backend, peer, tuple(checks))
