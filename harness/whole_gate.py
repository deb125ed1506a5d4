"""Every gate in one run: counts, verdicts, coverage, sensitivity, latency; findings and what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opgauge.reference_engine.errors import BaselineError, CaseError
from opgauge.reference_engine.types import Finding, Record

from . import latency_gate
from .latency import Call, Estimate

PARTS = ("counts", "verdicts", "coverage", "sensitivity", "latency")
Say = Callable[[str], None]


@dataclass
class Outcome:
    """What a gate found. `measured` says for each part how much; `notices` are no findings; `lines` are shown."""

    findings: list[Finding] = field(default_factory=list)
    measured: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    latency: list[tuple[str, latency_gate.Key, Estimate]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "findings": [vars(f) for f in self.findings],
            "measured": self.measured,
            "notices": self.notices,
            "seconds": self.seconds,
            "errors": self.errors,
            "latency": [
                {"backend": backend, "key": key.key, "limit": key.limit, **latency_gate.plain(e)}
                for backend, key, e in self.latency
            ],
        }


@dataclass(frozen=True)
class Asked:
    """What to gate: `parts` of PARTS, `against` a revision or nothing, baselines in `folder` where they are."""

    parts: tuple[str, ...]
    folder: Path
    against: str = ""
    ours: bool = False
    record: bool = False
    backends: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()


def run(asked: Asked, say: Say) -> Outcome:
    """Raises: BaselineError, CaseError."""
    outcome = Outcome()
    own = asked.folder / "gates.toml"
    gates = latency_gate.read(own if own.is_file() else None)
    records: list[Record] = []
    for part in PARTS:
        if part not in asked.parts:
            continue
        started = time.monotonic()
        say(part)
        if part == "counts":
            _counts(asked, outcome)
        elif part == "verdicts" or (part == "coverage" and not records):
            records = judged(gates, asked, outcome, say)
            if part == "verdicts":
                _verdicts(records, outcome)
        if part == "coverage":
            _coverage(records, asked, outcome)
        elif part == "sensitivity":
            _sensitivity(gates, outcome)
        elif part == "latency":
            _latency(gates, asked, outcome, say)
        outcome.seconds[part] = round(time.monotonic() - started, 1)
    return outcome


def _baseline(asked: Asked, name: str) -> Path | None:
    """The file in the folder, or None: the shipped one, which is the tree's own where this is our repository."""
    path = asked.folder / name
    return path if path.is_file() else None


def _counts(asked: Asked, outcome: Outcome) -> None:
    from . import counts_gate

    now = counts_gate.measure(runtimes=not asked.ours)
    outcome.measured["counts"] = sum(len(models) for models in now.values())
    outcome.findings += counts_gate.compare(counts_gate.read(_baseline(asked, "counts.json"))["counts"], now)


def judged(gates: latency_gate.Gates, asked: Asked, outcome: Outcome, say: Say) -> list[Record]:
    """Every suite row on the backends of [verdicts], `budget` cases each."""
    from opgauge import suites

    from . import generate
    from . import run as supervisor

    section = gates.sections.get("verdicts", {})
    texts = asked.backends or tuple(section.get("backends", ("cpu", "onnxruntime")))
    texts = tuple(t for t in texts if t == "cpu" or not asked.ours)
    rows = generate.select(suites.cases(), asked.ops)
    tasks = [
        *(supervisor.Task("row", (row.name,)) for row in rows),
        *([] if asked.ops else [supervisor.Task("witness")]),
    ]
    records: list[Record] = []
    settings = supervisor.Settings(texts, budget=int(section.get("budget", 1)), shrink=False)
    done: list[int] = []

    def on_task(_: supervisor.Task) -> None:
        done.append(1)
        if len(done) % 50 == 0:
            say(f"verdicts: {len(done)} of {len(tasks)} rows")

    result = supervisor.run(tasks, settings, supervisor.default_jobs(), records.append, on_task)
    outcome.errors += result.errors
    if result.interrupted:
        raise KeyboardInterrupt
    return records


def _verdicts(records: Sequence[Record], outcome: Outcome) -> None:
    from . import gate

    outcome.measured["verdicts"] = len(records)
    outcome.findings += gate.findings(records)


def _coverage(records: Sequence[Record], asked: Asked, outcome: Outcome) -> None:
    from . import coverage_gate

    now = coverage_gate.measure(records, coverage_gate.places())
    outcome.measured["coverage"] = sum(map(len, now.values()))
    try:
        baseline = coverage_gate.read(_baseline(asked, "coverage.json"))["rows"]
    except BaselineError:
        coverage_gate.accept(asked.folder / "coverage.json", now, "first run: nothing was known")
        outcome.notices.append(f"there was no coverage baseline: recorded in {asked.folder / 'coverage.json'}")
        return
    partly = asked.ours or asked.backends or asked.ops
    known = {k: v for k, v in baseline.items() if k in now or not partly}
    if asked.ops:
        known |= {k: [r for r in v if r.split()[0] in asked.ops] for k, v in baseline.items() if k != "cpu kernels"}
        now = {k: now.get(k, []) for k in known}  # no row of a backend at all is told row by row
    outcome.findings += coverage_gate.compare(known, now)


def _sensitivity(gates: latency_gate.Gates, outcome: Outcome) -> None:
    from opgauge import suites
    from opgauge.suites import faults

    from . import sensitivity

    section = gates.sections.get("sensitivity", {})
    path = Path(faults.__file__ or "")
    outcomes = list(
        sensitivity.measure(path, suites.cases(), int(section.get("cases", 40)), only=section.get("faults", ()))
    )
    seeded = {o.id for o in outcomes if not o.benign}
    caught = {o.id for o in outcomes if o.caught and not o.benign}
    outcome.measured["sensitivity"] = len(seeded)
    least = float(section.get("least", 1.0))
    if seeded and len(caught) < least * len(seeded):
        text = f"{len(caught)} of {len(seeded)} planted faults found, at least {least:.0%} must be: missed "
        outcome.findings.append(Finding("sensitivity", "suite", text + ", ".join(sorted(seeded - caught))))
    flagged = [f"{o.id} {o.op}" for o in outcomes if o.benign and o.caught]
    outcome.findings += [Finding("sensitivity", f, "an honest variant is flagged") for f in flagged]


def _latency(gates: latency_gate.Gates, asked: Asked, outcome: Outcome, say: Say) -> None:
    from . import against

    top = against.root(Path.cwd())
    if not against.is_installed(top):
        raise CaseError(f"the opgauge that runs is not that of {top}: run ./x env there, and its own command")
    base = against.build(against.merge_base(asked.against, top), top)
    say(f"latency against {base.title}")
    plan = latency_gate.plan_of(gates)
    chosen = [b for b in asked.backends or gates.backends if b == "cpu" or not asked.ours]
    measured = latency_gate.measure(gates, chosen, plan, lambda backend: latency_gate.sides(backend, base.python), say)
    outcome.latency = measured
    outcome.measured["latency"] = sum(e.verdict is not Call.UNCLEAR or e.pairs > 0 for _, _, e in measured)
    outcome.findings += latency_gate.findings(measured)
    for backend, key, e in measured:
        outcome.lines.append(f"{e.verdict:12} {key.name} on {backend}: {latency_gate.said(e)}")
    outcome.lines.append(latency_gate.statement(measured, plan))
    _history(asked, measured, outcome, top)


def _history(
    asked: Asked, measured: Sequence[tuple[str, latency_gate.Key, Estimate]], outcome: Outcome, top: Path
) -> None:
    from . import doctor, history, trends
    from .repository import git

    path = asked.folder / "latency" / f"{history.fingerprint(doctor.machine())}.jsonl"
    ns = {f"{key.name} on {backend}": e.new_ns for backend, key, e in measured if e.pairs}
    if asked.record and ns:
        commit = git(top, "rev-parse", "--short", "HEAD").stdout.strip()
        history.append(path, commit, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), ns)
    found = [t for t in trends.of_machine(path) if t.steps]
    outcome.notices += [f"trend: {t.name}: {t.said} ({len(t.ns)} runs)" for t in found]
