"""The command line: arguments in, exit code out; the last line printed is the verdict."""

from __future__ import annotations

import functools
import importlib
import json
import os
import shlex
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from opgauge import backends, suites
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.errors import CaseError, OpgaugeError
from opgauge.reference_engine.types import FINDINGS, CaseSpec, Finding, Record, Status

from . import cli_fingerprint, cli_report, config, costs, store
from . import run as supervisor

SUITES = ("operators", "onnx-node")
WIDTH = 140  # of output that nobody's terminal shows


class Exit(IntEnum):
    OK = 0
    FINDING = 1
    USAGE = 2
    UNAVAILABLE = 3
    HARNESS = 4
    NOTHING = 5
    INTERRUPTED = 130


WORDS = {
    Exit.OK: "PASS",
    Exit.FINDING: "FAIL",
    Exit.UNAVAILABLE: "UNAVAILABLE",
    Exit.HARNESS: "HARNESS ERROR",
    Exit.NOTHING: "NOTHING RAN",
    Exit.INTERRUPTED: "INTERRUPTED",
}

HELP = """Does a runtime compute ONNX operators as the standard says?

\b
opgauge run -b my_runtime.py:run --op Conv    judge; exit 1 when something is wrong
opgauge explain 1                             what the first finding means
opgauge repro 'ID' -b my_runtime.py:run       one case again
opgauge run --html report.html                everything, as a page
opgauge list --backends                       what can be judged

Exit codes: 0 nothing found, 1 findings, 2 not understood, 3 a required backend is unavailable, 4 opgauge went wrong,
5 nothing was judged, 130 interrupted. Settings: [tool.opgauge] in pyproject.toml, OPGAUGE_* variables, flags.
"""
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, help=HELP)


def _backend_names(incomplete: str) -> list[str]:
    return sorted(name for name in backends.table() if name.startswith(incomplete))


def _operator_names(incomplete: str) -> list[str]:
    return sorted({row.op for row in suites.cases() if row.op.startswith(incomplete)})


Backends = Annotated[
    list[str],
    typer.Option(
        "--backend", "-b", help="cpu, onnxruntime:level=basic, path.py:run ...", autocompletion=_backend_names
    ),
]
Ops = Annotated[list[str], typer.Option("--op", help="operator, repeatable", autocompletion=_operator_names)]
Dtypes = Annotated[list[str], typer.Option("--dtype", help="element type in any input of a row, repeatable")]
Expression = Annotated[str, typer.Option("-k", help="whole words joined by and, or, not: 'MatMul and not float16'")]
Seed = Annotated[int, typer.Option(min=0, help="same seed, same cases")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Home = Annotated[Path, typer.Option("--out", help="where the folders of runs are kept")]
DEFAULT_BACKENDS = ["cpu", "onnxruntime"]


def terminal(stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=WIDTH)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


# ---- run


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[int, int], None]]:
    """A function of (tasks done, verdicts so far); silent where no person watches."""
    if not console.is_terminal:
        yield lambda done, verdicts: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    said = TextColumn("rows, {task.fields[verdicts]:,} verdicts")
    with Progress(BarColumn(), MofNCompleteColumn(), said, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=total, verdicts=0)
        yield lambda done, verdicts: bar.update(task, completed=done, verdicts=verdicts)


def exit_code(
    records: Sequence[Record], findings: Sequence[Finding], outcome: supervisor.Outcome, missing: Sequence[str]
) -> Exit:
    """The gravest thing that can be said of a run: an incomplete one is never green, nor one that judged nothing."""
    if outcome.interrupted:
        return Exit.INTERRUPTED
    if outcome.errors:
        return Exit.HARNESS
    if missing:
        return Exit.UNAVAILABLE
    if findings:
        return Exit.FINDING
    judged = any(r.status not in (Status.UNAVAILABLE, Status.INVALID, Status.UNSUPPORTED) for r in records)
    return Exit.OK if judged else Exit.NOTHING


def verdict_line(code: Exit, records: Sequence[Record], findings: int, seconds: float) -> str:
    """The word that agrees with the exit code, and every denominator."""
    tally = Counter(r.status for r in records)
    statuses = ", ".join(f"{tally[s]:,} {s}" for s in Status if tally[s]) or "no verdict"
    cases, judged = len({r.case for r in records}), {r.backend for r in records}
    rate = f"{cases / seconds:,.0f} cases/s" if seconds else "no time"
    return (
        f"{WORDS[code]} (exit {int(code)}): {cases:,} cases on {len(judged)} backends, {len(records):,} verdicts "
        f"({statuses}), {sum(r.elements for r in records):,} elements, {findings:,} findings, {seconds:.1f} s, {rate}"
    )


def _missing(required: Sequence[str], records: Sequence[Record], outcome: supervisor.Outcome) -> list[str]:
    """Required backends that judged nothing, with the reason."""
    missing = []
    for spec in supervisor.specs(required):
        said = [r for r in records if r.backend == spec.text]
        why = outcome.backends.get(spec.text, {}).get("unavailable", "")
        if why or not said or all(r.status is Status.UNAVAILABLE for r in said):
            missing.append(f"required backend {spec.text} is unavailable: {why or 'it gave no verdict'}")
    return missing


def _meta(
    settings: supervisor.Settings, outcome: supervisor.Outcome, started: float, code: Exit, line: str
) -> dict[str, Any]:
    """What a report says about a run besides its records."""
    from . import __version__, doctor

    return {
        "command": " ".join(["opgauge", *sys.argv[1:]]),
        "version": __version__,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(outcome.seconds, 3),
        "seed": settings.seed,
        "budget": settings.budget,
        "backends": outcome.backends,
        "machine": doctor.machine(),
        "exit_code": int(code),
        "verdict": line,
    }


def _machine() -> dict[str, str]:
    from . import doctor

    return {**doctor.versions(), **doctor.machine()}


def _tasks(suite: Sequence[str], rows: Sequence[CaseSpec], ops: Sequence[str]) -> list[supervisor.Task]:
    tasks = [supervisor.Task("node", tuple(ops))] if "onnx-node" in suite else []
    if "operators" in suite and rows:
        names = sorted({row.op for row in rows}) if len(rows) < len(suites.cases()) else []
        tasks += [*(supervisor.Task("row", (row.name,)) for row in rows), supervisor.Task("witness", tuple(names))]
    return tasks


@app.command()
def run(
    context: typer.Context,
    backend: Backends = DEFAULT_BACKENDS,
    suite: Annotated[list[str], typer.Option(help="operators, onnx-node; repeatable")] = ["operators"],  # noqa: B006
    op: Ops = [],  # noqa: B006
    dtype: Dtypes = [],  # noqa: B006
    k: Expression = "",
    budget: Annotated[int, typer.Option(min=1, help="cases per row of operator and dtypes")] = 100,
    seed: Seed = 0,
    jobs: Annotated[
        int, typer.Option(min=0, help="reference workers; 0 is one per core, 8 at most, fewer for little work")
    ] = 0,
    require: Annotated[list[str], typer.Option(help="exit 3 unless this backend ran; repeatable")] = [],  # noqa: B006
    html: Annotated[str, typer.Option(metavar="FILE", help="the page for people: one file, works offline")] = "",
    json_file: Annotated[str, typer.Option("--json", metavar="FILE", help="- is standard output")] = "",
    junit: Annotated[str, typer.Option(metavar="FILE", help="JUnit XML")] = "",
    markdown: Annotated[str, typer.Option(metavar="FILE", help="Markdown, for the summary of a job")] = "",
    ctrf: Annotated[str, typer.Option(metavar="FILE", help="JSON in the Common Test Report Format")] = "",
    svg: Annotated[str, typer.Option(metavar="FILE", help="the matrix as a picture")] = "",
    badge: Annotated[str, typer.Option(metavar="FILE", help="JSON for a badge")] = "",
    out: Home = store.HOME,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds per case and backend")] = 20.0,
    no_shrink: Annotated[bool, typer.Option("--no-shrink", help="do not look for smaller failing cases")] = False,
    heap_check: Annotated[bool, typer.Option("--heap-check", help="glibc checks its heap in each worker")] = False,
    policy: cli_fingerprint.Measure = "standard",
    coverage: cli_fingerprint.Coverage = False,
    opsets: cli_fingerprint.Opsets = "",
    fingerprint: cli_fingerprint.Cards = False,
    shard: Annotated[str, typer.Option(metavar="I/N", help="only part I of N; put parts together with merge")] = "",
    cluster: Annotated[str, typer.Option(metavar="ADDRESS", help="tcp://host:port of a dask scheduler")] = "",
    show_config: Annotated[
        bool, typer.Option("--show-config", help="print each setting and its origin, then end")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the last run in --out as it was asked")] = False,
) -> None:
    """Check operators on backends; exit 1 on any finding, 3, 4, 5 when it could not, went wrong, nothing ran.

    \b
    opgauge run --backend cpu --backend onnxruntime:level=basic --op QLinearMatMul
    opgauge run --backend my_runtime.py:run -k 'MatMul and not float16' --budget 500
    opgauge run --backend onnxruntime==1.24.4 --backend onnxruntime --html report.html
    """
    from . import generate
    from . import resume as parts

    if show_config:
        typer.echo(config.shown(context))
        raise typer.Exit(Exit.OK)
    generate.require(suite, set(SUITES), "suite")
    specs = supervisor.specs([*backend, *require])
    rows = generate.select(suites.cases(), op, dtype, k)
    tasks = cli_fingerprint.swept(_tasks(suite, rows, op), opsets)
    tasks = parts.shard(tasks, shard, budget) if shard else tasks
    files = {"html": html, "jsonfile": json_file, "junit": junit, "markdown": markdown, "ctrf": ctrf}
    files |= {"matrix_svg": svg, "badge": badge}
    console = terminal(stderr="-" in files.values())
    if not tasks:
        console.print(
            verdict_line(Exit.NOTHING, [], 0, 0.0) + ": no row is selected, see `opgauge list`", soft_wrap=True
        )
        raise typer.Exit(Exit.NOTHING)

    started = time.time()
    pins = cli_fingerprint.pins(policy, specs, rows, timeout, console)
    left = parts.load(store.latest(out)) if resume else None
    with store.reopen(left.path) if left else store.create(out) as journal:
        folder = journal.path.parent
        texts = tuple(spec.text for spec in specs)
        settings = supervisor.Settings(
            texts, budget, seed, timeout, not no_shrink, str(folder / "failures"), heap_check, pins
        )
        records: list[Record] = []
        if left:
            settings, tasks, specs = left.settings, left.tasks, supervisor.specs(left.settings.backends)
            records += left.records
        else:
            asked = {"argv": sys.argv[1:], "settings": settings.__dict__, "work": parts.work(tasks), "shard": shard}
            journal.append("run", {**asked, "machine": _machine()})
        cards = cli_fingerprint.cards(specs if fingerprint else (), timeout, journal)
        done: list[supervisor.Task] = []
        with _progress(terminal(stderr=True), len(tasks)) as show:

            def on_record(record: Record) -> None:
                journal.record(record)
                records.append(record)
                if len(records) % 50 == 0:
                    show(len(done), len(records))

            def on_task(task: supervisor.Task) -> None:
                journal.append("done", {"task": [task.kind, *task.names]})
                done.append(task)
                show(len(done), len(records))

            def on_started(case: str) -> None:
                journal.append("started", {"case": case})

            if cluster:
                from . import cluster as dask_cluster

                told = functools.partial(journal.append, "worker")
                outcome = dask_cluster.run(cluster, tasks, settings, on_record, on_task, told)
            else:
                workers = jobs or costs.workers(tasks, supervisor.default_jobs(), costs.load(), settings.budget)
                outcome = supervisor.run(tasks, settings, workers, on_record, on_task, on_started)
        from . import extras, gate  # pandas is slow to import, and workers wait for nothing

        findings = gate.findings(records, backends.informative([spec.text for spec in specs]))
        missing = _missing(require, records, outcome)
        code = exit_code(records, findings, outcome, missing)
        line = verdict_line(code, records, len(findings), outcome.seconds)
        meta = _meta(settings, outcome, started, code, line)
        shown = cli_fingerprint.covered(records, meta) if coverage else []
        journal.append(
            "end", {"exit_code": int(code), "errors": outcome.errors, "backends": outcome.backends, "meta": meta}
        )
    before = extras.preceding(journal.path) if html else None
    more = functools.partial(extras.collect, records, outcome.backends, before, cards=cards)
    cli_report.write_reports(files, records, findings, meta, console, more)
    for text in shown:
        console.print(text, markup=False, soft_wrap=True)
    for text in [*outcome.errors, *missing]:
        console.print(f"[red]![/] {escape(text)}", soft_wrap=True)
    console.print(f"journal: {journal.path}", soft_wrap=True)
    if outcome.interrupted:
        where = f" --out {shlex.quote(str(out))}" if out != store.HOME else ""
        console.print(f"what was judged is kept; go on with: opgauge run --resume{where}", markup=False, soft_wrap=True)
    console.print(line, style="bold", markup=False, soft_wrap=True)
    raise typer.Exit(code)


# ---- list


@app.command(name="list")
def list_(
    operators: Annotated[bool, typer.Option("--operators", help="operators that the reference lowers")] = False,
    rows: Annotated[bool, typer.Option("--rows", help="rows of the suite (the default)")] = False,
    backend_table: Annotated[bool, typer.Option("--backends", help="backends and their options")] = False,
    cases: Annotated[str, typer.Option(metavar="OP", help="ids of the cases of an operator")] = "",
    budget: Annotated[int, typer.Option(min=1, help="cases per row, with --cases")] = 10,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """What there is: operators, suite rows, backends, case ids."""
    found: list[dict[str, Any]] = []
    if operators:
        from opgauge.reference_engine import operators as lowered

        tested = Counter((row.domain, row.op) for row in suites.cases())
        names = sorted(lowered.table())
        found += [{"operator": op, "domain": domain or "ai.onnx", "rows": tested[domain, op]} for domain, op in names]
        typer.echo(lowered.summary(), err=True)
    if backend_table:
        for name, row in sorted(backends.table().items()):
            options = " ".join(f"{o}=" for o in row.options)
            found.append({"backend": name, "options": options, "policy": str(row.policy), "summary": row.summary})
    if cases:
        found += [{"case": text} for text in _case_ids(cases, budget, seed)]
    if rows or not found:
        found += [{"row": r.name, "domain": r.domain or "ai.onnx", "source": r.source} for r in suites.cases()]
    if as_json:
        print_json(found)
    else:
        for entry in found:
            typer.echo("\t".join(str(v) for v in entry.values()))
    raise typer.Exit(Exit.OK)


def _case_ids(op: str, budget: int, seed: int) -> list[str]:
    from . import generate

    ids: list[str] = []
    for row in generate.select(suites.cases(), [op]):
        generate.explore(row, budget, seed, lambda text, _: ids.append(text))
    return ids


# ---- repro


@app.command()
def repro(
    case: Annotated[str, typer.Argument(metavar="ID|FILE", help="a case id, or a saved case's .json, .onnx or .npz")],
    backend: Backends = DEFAULT_BACKENDS,
    after: Annotated[list[str], typer.Option(metavar="ID", help="what its process does before")] = [],  # noqa: B006
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds per case")] = 20.0,
    as_json: AsJson = False,
) -> None:
    """Run one case again, each backend in fresh processes: the set, what it gave, and whether the bits repeat."""
    for text in (*after, case):
        _require_case(text)
    texts = tuple(spec.text for spec in supervisor.specs(backend))
    records: list[Record] = []
    task = supervisor.Task("repro", (*after, case))
    outcome = supervisor.run([task], supervisor.Settings(texts, timeout_s=timeout), 1, records.append)
    if any("CaseError" in error for error in outcome.errors):
        raise CaseError("; ".join(outcome.errors))
    code = exit_code(records, [Finding(r.status, "", "") for r in records if r.status in FINDINGS], outcome, [])
    if as_json:
        print_json({"records": [store.record_to_dict(r) for r in records], "errors": outcome.errors})
        raise typer.Exit(code)
    console = terminal()
    for record in records:
        _show(console, record)
    for error in outcome.errors:
        console.print(f"! {error}", markup=False, soft_wrap=True)
    findings = sum(r.status in FINDINGS for r in records)
    line = verdict_line(code, records, findings, outcome.seconds)
    console.print(line, style="bold", markup=False, soft_wrap=True)
    raise typer.Exit(code)


def _require_case(text: str) -> None:
    """Raises: CaseError where it is neither a file nor an id."""
    if Path(text).is_file() or text.startswith(("onnx-node/", "statistics/")):
        return
    if text.endswith((".json", ".onnx", ".npz")):
        raise CaseError(f"there is no file {text}")
    parse_id(text)


def _show(console: Console, record: Record) -> None:
    detail = record.detail
    lines = [f"{record.status}  {record.op} {record.label} on {record.backend}: {record.message or record.explained}"]
    lines += [f"  input {name}: {spec}" for name, spec in detail.get("inputs", {}).items()]
    for row in detail.get("elements_shown", ()):
        extra = f"; real {row['real']}" if row["real"] is not None else ""
        extra += f"; {row['tie_distance']:.3g} from a tie" if row["tie_distance"] is not None else ""
        lines.append(f"  output {row['output']} [{row['index']}]: set {row['expected']}, got {row['got']}{extra}")
    if detail.get("wider"):
        lines.append(f"  a wider policy: {detail['wider']}")
    if "bits" in detail:
        again = "the same" if detail["same_bits"] else "DIFFERENT (flaky)"
        lines.append(f"  bits sha256:{detail['bits']}, {again} in a second process")
    console.print("\n".join(lines), markup=False, soft_wrap=True)


# Modules with commands, in the order of the help.
GROUPS = (
    "doctor",
    "bisect",
    "model",
    "reduce",
    "fingerprint",
    "sensitivity",
    "profile",
    "records",
    "support",
    "fixtures",
    "gate",
    "bench",
    "trends",
    "certify",
    "soak",
    "report",
)
for group in GROUPS:
    importlib.import_module(f"{__package__}.cli_{group}").register(app)


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: every way to end has its exit code, and no error of ours reads as a finding."""
    signal.signal(signal.SIGTERM, _terminated)
    from .generate import SelectionError

    try:
        code = app(args=arguments, standalone_mode=False, default_map=config.defaults()) or Exit.OK
        if code == Exit.INTERRUPTED and not isinstance(code, Exit):  # typer's own: no command has said anything
            typer.echo("opgauge: interrupted", err=True)
    except (SelectionError, CaseError, config.ConfigError, cli_report.RunError, backends.UnknownBackendError) as error:
        typer.echo(f"opgauge: {error}", err=True)
        code = Exit.USAGE
    except OpgaugeError as error:
        typer.echo(f"opgauge: {type(error).__name__}: {error}", err=True)
        code = Exit.HARNESS
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains at its end
        code = Exit.HARNESS
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # typer's own: usage
            error.show()
            code = Exit.USAGE
        else:
            traceback.print_exc()
            code = Exit.HARNESS
    sys.exit(int(code))
