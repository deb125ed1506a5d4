"""What a backend takes at all: operator x element types x opset, found by asking it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from opgauge.reference_engine.errors import BaselineError, ModelError
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Case, CaseSpec, Finding, Status

from . import check, generate
from .client import Client

OPSETS = (13, 17, 19, 21, 23)
YES, NO, SOME = "yes", "no", "some"
FORMAT = 1


@dataclass
class Form:
    """One row of the matrix.

    `opsets` says for each opset yes, no, some (of the cases) or a status such as crash, `message` why not.
    """

    operator: str
    domain: str
    dtypes: str
    opsets: dict[int, str] = field(default_factory=dict)
    message: str = ""


def probe(
    client: Client,
    rows: Sequence[CaseSpec],
    opsets: Sequence[int] = OPSETS,
    cases: int = 1,
    seed: int = 0,
    show: Callable[[Form], None] = lambda _: None,
) -> list[Form]:
    """Ask for the first cases of each row at each opset that can express them; their results are not judged."""
    forms = []
    for row in rows:
        form = Form(row.op, row.domain, row.label)
        drawn = generate.draw_round(row, seed, 0)[:cases]
        for opset in opsets:
            seen = [_ask(client, replace(case, opset=opset), row.label, form) for case in drawn if case.opset <= opset]
            words = set(filter(None, seen))
            if words:
                form.opsets[opset] = words.pop() if len(words) == 1 else SOME
        if not form.opsets and drawn:  # newer than every opset that was asked for
            newest = max(drawn, key=lambda case: case.opset)
            form.opsets[newest.opset] = _ask(client, newest, row.label, form) or NO
        forms.append(form)
        show(form)
    return forms


def _ask(client: Client, case: Case, label: str, form: Form) -> str:
    """Empty where the case means nothing at this opset."""
    subject = check.subject_of(case, label, "support")
    try:
        lower(subject.model, subject.inputs)
    except ModelError:
        return ""
    client.submit(subject.case, subject.model, subject.inputs, repeats=1, rounds=0)
    seen = client.receive()
    if seen.status is not Status.PASS:
        form.message = form.message or seen.message
    return YES if seen.status is Status.PASS else NO if seen.status is Status.UNSUPPORTED else str(seen.status)


def document(backend: str, info: Mapping[str, str], forms: Sequence[Form]) -> dict[str, Any]:
    """What is printed as JSON and kept as a baseline."""
    return {"format": FORMAT, "backend": backend, "info": dict(info), "forms": [asdict(form) for form in forms]}


def compare(baseline: Any, forms: Sequence[Form], where: str) -> list[Finding]:
    """Forms that the baseline says are taken and that are not any more. Raises: BaselineError."""
    try:
        if baseline["format"] != FORMAT:
            raise ValueError(f"format {baseline['format']!r}, expected {FORMAT}")
        was = {(f["domain"], f["operator"], f["dtypes"]): dict(f["opsets"]) for f in baseline["forms"]}
    except (KeyError, TypeError, ValueError) as error:
        raise BaselineError(f"{where}: not what `opgauge support --json` prints: {error}") from error
    found = []
    for form in forms:
        before = was.get((form.domain, form.operator, form.dtypes), {})
        lost = [n for n, word in form.opsets.items() if before.get(str(n)) == YES and word != YES]
        if lost:
            text = f"was taken at opset {', '.join(map(str, lost))}, now {form.opsets[lost[0]]}: {form.message}"
            found.append(Finding("unsupported", f"{form.operator}/{form.dtypes}", text))
    return found
