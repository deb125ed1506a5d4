"""The command `bisect`: which commit, release, option or graph rule is to blame."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from opgauge.reference_engine.errors import CaseError

from . import bisect_flags, bisect_git, bisect_notebook, bisect_probe, bisect_releases, store
from .bisect_notebook import CANNOT_TELL, CULPRIT, FLAGS, GIT, HOME, NO_STEP, RELEASES, UNAVAILABLE, Question, Report
from .bisect_probe import LATENCY, VERDICT, Subject
from .cli_model import _numbers as numbers
from .repository import revision

RULES = "rules"
INTERRUPTED = 130
Words = Annotated[list[str], typer.Option("--build", metavar="WORD", help="the build command, one word each time")]
Pairs = Annotated[list[str], typer.Option(metavar="NAME=NUMBER", help="for a model file, as in `opgauge model`")]


def register(app: typer.Typer) -> None:
    app.command()(bisect)


def bisect(
    case: Annotated[str, typer.Argument(metavar="[ID|FILE]", help="a case id, a saved case, or MODEL.onnx")] = "",
    what: Annotated[
        str, typer.Option(help="what changed: verdict, crash, bits, count, count:Transpose, latency")
    ] = VERDICT,
    op: Annotated[str, typer.Option(metavar="OP", help="instead of a case: find a failing one at the bad end")] = "",
    git: Annotated[str, typer.Option("--git", metavar="GOOD..BAD", help="over the commits of --repository")] = "",
    releases: Annotated[
        tuple[str, str], typer.Option("--releases", metavar="PACKAGE LOW..HIGH", help="or PACKAGE A,B,C: over releases")
    ] = ("", ""),
    flags: Annotated[
        str, typer.Option("--flags", metavar="GOOD..BAD", help="over options: level=basic..level=all,threads=2")
    ] = "",
    rules: Annotated[bool, typer.Option("--rules", help="over the graph rules of our engine")] = False,
    backend: Annotated[
        str, typer.Option("--backend", "-b", help="with --git a path inside the build, such as kernels.py:run")
    ] = "",
    repository: Annotated[Path, typer.Option(help="of --git")] = Path("."),
    build: Words = [],  # noqa: B006
    venv: Annotated[bool, typer.Option("--venv", help="a virtual environment for each build")] = False,
    python: Annotated[str, typer.Option(metavar="PATH", help="the build's interpreter, relative to the build")] = "",
    first_parent: Annotated[bool, typer.Option("--first-parent", help="merges count as one commit")] = False,
    dim: Pairs = [],  # noqa: B006
    value: Pairs = [],  # noqa: B006
    inputs: Annotated[str, typer.Option(metavar="FILE.npz", help="inputs of a model file by name")] = "",
    seed: Annotated[int, typer.Option(min=0, help="same seed, same data")] = 0,
    budget: Annotated[int, typer.Option(min=1, help="cases per row, with --op")] = 100,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="posterior asked for, of a latency")] = 0.99,
    smallest: Annotated[float, typer.Option(min=0.005, help="the smallest step of a latency that counts")] = 0.02,
    pairs: Annotated[int, typer.Option(min=5, help="most fresh pairs of one build, of a latency")] = 24,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds per case")] = 60.0,
    build_timeout: Annotated[float, typer.Option(min=1, help="seconds per build")] = 1800.0,
    discard: Annotated[bool, typer.Option("--discard", help="remove the builds at the end")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the last bisect in --out")] = False,
    out: Annotated[Path, typer.Option(help="where the journals of bisects are kept")] = HOME,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Name the commit, release, option or rule that changed a verdict, bits, a crash, a count, or a latency.

    Exit 1 with a culprit, 0 where nothing changed, 3 where an end cannot be had, 5 where it cannot tell.
    """
    tell = _teller()
    if resume:
        journal, question = _left(out)
        tell(f"resumed: {journal.path}")
    else:
        bisect_probe.known(what)
        dims = {k: int(v) for k, v in numbers(dim, "dim").items()}
        subject = Subject(case, dims, numbers(value, "value"), inputs, seed)
        asked = {"git": git, "releases": releases[0], "flags": flags, "rules": rules}
        where = [name for name, given in asked.items() if given]
        if len(where) != 1:
            raise CaseError(f"give one of --git, --releases, --flags, --rules; {' and '.join(where) or 'none'} given")
        if bool(case) == bool(op):
            raise CaseError("give a case id, a file, or --op to look for a failing case; one of them")
        question = Question(
            what, where[0], backend, subject, (), str(repository.resolve()), first_parent, tuple(build), venv, python,
            releases[0], timeout, build_timeout, confidence, smallest, pairs,
        )  # fmt: skip
        question = _placed(question, git, releases, flags, tell)
        if op:
            question = _failing(question, op, budget, tell)
        bisect_probe.loaded(question.subject)  # a case that cannot be read is told before anything is built
        journal = store.create(out)
        journal.append("question", dataclasses.asdict(question))
    with journal:
        try:
            report = _answer(question, journal, tell)
        except KeyboardInterrupt:
            tell(f"INTERRUPTED; go on with: opgauge bisect --resume{f' --out {out}' if out != HOME else ''}")
            raise typer.Exit(INTERRUPTED) from None
    if discard and question.where == GIT:
        bisect_git.discard(bisect_notebook.builds_of(question))
    _show(report, journal.path, as_json)


def _teller() -> Callable[[str], None]:
    from .cli import terminal

    console = terminal(stderr=True)
    return lambda text: console.print(text, markup=False, soft_wrap=True)


def _left(out: Path) -> tuple[store.Journal, Question]:
    """The last journal and its question. Raises: CaseError, BaselineError."""
    path = store.latest(out)
    entries = list(store.entries(path))
    if not entries or entries[0]["kind"] != "question":
        raise CaseError(f"{path} holds no question: start again without --resume")
    told = {k: v for k, v in entries[0].items() if k != "kind"}
    return store.reopen(path), bisect_notebook.question_of(told)


def _placed(
    question: Question, git: str, releases: tuple[str, str], flags: str, tell: Callable[[str], None]
) -> Question:
    """The question with its places and its backend. Raises: CaseError, UnknownBackendError."""
    where, backend = question.where, question.backend
    if where == GIT:
        repository = Path(question.repository)
        good, bad = (revision(repository, end) for end in bisect_git.span(git))
        if not backend:
            raise CaseError("--git needs --backend, a path inside the build such as kernels.py:run")
        bisect_git.backend_in(backend, repository, Path("python") if question.venv else None, question.python)
        count = len(bisect_git.history(repository, good, bad, question.first_parent).names)
        tell(f"{count} commits from {good[:12]} to {bad[:12]}")
        return dataclasses.replace(question, places=(good, bad))
    if where == RELEASES:
        places, out_of_reach = bisect_releases.named(*releases)
        tell(f"{len(places)} releases of {releases[0]}, {places[0]} to {places[-1]}")
        if out_of_reach:
            tell(out_of_reach)
        return dataclasses.replace(question, places=tuple(places), backend=backend or releases[0])
    if where == FLAGS:
        backend = backend or "onnxruntime"
        return dataclasses.replace(question, places=bisect_flags.ends(backend, flags), backend=backend)
    return dataclasses.replace(question, backend=backend or "cpu")


def _failing(question: Question, op: str, budget: int, tell: Callable[[str], None]) -> Question:
    """The question with a case that fails at the bad end. Raises: CaseError, SelectionError."""
    if not question.places:
        raise CaseError("--op needs --git, --releases or --flags")
    text, _ = bisect_notebook.prepare(question, question.places[-1])
    tell(f"looking for a failing case of {op} on {question.places[-1]}")
    found = bisect_probe.failing(op, text, budget, question.timeout_s)
    if not found:
        raise CaseError(f"no case of {op} fails on {text} within --budget {budget}: nothing to bisect")
    with bisect_probe.Asker() as asker:  # better one that the good end does well
        base, _ = bisect_notebook.prepare(question, question.places[0])
        fine = [t for t in found if asker(Subject(t), VERDICT, base, question.timeout_s).value == "pass"]
    picked = next(iter([*fine, *found]))
    tell(f"failing: {picked}")
    return dataclasses.replace(question, subject=Subject(picked))


def _answer(question: Question, journal: store.Journal, tell: Callable[[str], None]) -> Report:
    from . import bisect as search

    if question.where == RULES:
        return bisect_flags.rules(question)
    measure = _measure(question) if question.what == LATENCY else None
    with bisect_probe.Asker() as asker:
        notebook = bisect_notebook.Notebook(question, journal, tell, asker, measure)
        return bisect_flags.answer(notebook) if question.where == FLAGS else search.answer(notebook)


def _measure(question: Question) -> bisect_notebook.Measure:
    from . import bisect_pairs

    return bisect_pairs.measure(question.subject, question.timeout_s)


def _show(report: Report, path: Path, as_json: bool) -> None:
    from .cli import WORDS, Exit, print_json, terminal

    codes = {CULPRIT: Exit.FINDING, NO_STEP: Exit.OK, CANNOT_TELL: Exit.NOTHING, UNAVAILABLE: Exit.UNAVAILABLE}
    code = codes[report.result]
    if as_json:
        print_json({**report.to_dict(), "exit_code": int(code), "journal": str(path)})
        raise typer.Exit(code)
    console = terminal()
    for found in report.found:
        console.print(f"{report.result}: {found.title}", style="bold", markup=False, soft_wrap=True)
        for word, side in (("before", found.before), ("after", found.after)):
            console.print(f"  {word}: {side.title}: {side.value} {side.message[:200]}", markup=False, soft_wrap=True)
        if found.also:
            console.print(f"  or, not judged: {', '.join(p[:12] for p in found.also)}", markup=False, soft_wrap=True)
        console.print(f"  again: {found.reproduce}", markup=False, soft_wrap=True)
    if report.what == LATENCY and report.effect:
        low, high = report.interval
        said = f"  effect: {report.effect:+.1%} ({low:+.1%} to {high:+.1%}), confidence {report.confidence:.2%}"
        console.print(said, markup=False, soft_wrap=True)
    console.print(f"journal: {path}", markup=False, soft_wrap=True)
    word = {CULPRIT: "FAIL", CANNOT_TELL: "CANNOT TELL"}.get(report.result, WORDS[code])
    line = f"{word} (exit {int(code)}): {report.result}: {report.reason}; {report.looks} looks, "
    line += f"{report.builds} builds, {report.unbuildable} not judged, {report.seconds:.1f} s"
    console.print(line, style="bold", markup=False, soft_wrap=True)
    raise typer.Exit(code)
