"""A result that is wrong only after other cases says after which, and its line brings that about."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opgauge import check, cli, client, dependence, generate
from opgauge.backends import resolve
from opgauge.client import Client, Request, fewest
from opgauge.explain import explain
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.types import Record, Status
from opgauge.reports.tables import repro_line
from opgauge.suites import cases

HEAD = """
import numpy as np, onnx
from onnx import numpy_helper
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from pathlib import Path

def right(model, inputs):
    return [e.value.astype(e.dtype) for e in evaluate(lower(model, inputs), inputs)]
"""
CACHED = """
PACKED = {}

def run(model, inputs):
    parsed = onnx.load_from_string(model)
    for i, t in enumerate(parsed.graph.initializer):
        packed = PACKED.setdefault((t.name, tuple(t.dims)), onnx.TensorProto.FromString(t.SerializeToString()))
        parsed.graph.initializer[i].CopyFrom(packed)
    return right(parsed.SerializeToString(), inputs)
"""
WRONG = """
def run(model, inputs):
    return [y + 1 for y in right(model, inputs)]
"""
ONCE = """
def run(model, inputs):
    mark = Path(__file__).with_suffix(".done")
    calls = len(mark.read_text()) if mark.exists() else 0
    mark.write_text("x" * (calls + 1))
    return [y + (4 <= calls < 8) for y in right(model, inputs)]  # a case takes four calls
"""
WORN = """
CALLS = []

def run(model, inputs):
    CALLS.append(None)
    return [y + (y.size > 8 or len(CALLS) > 12) for y in right(model, inputs)]
"""
NAMED = {row.name: row for row in cases()}
FIRST, OTHER, LAST = (
    f"MatMul/int32/op13/A=int32:{m}x3:uniform@-9@9/B!=int32:{k}x{n}:uniform@-9@9/y=int32/plain/s{s}"
    for m, k, n, s in ((2, 3, 2, 1), (1, 3, 5, 2), (4, 3, 2, 3))
)


@pytest.fixture
def kernel(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Client]:
    path = tmp_path / "kernel.py"
    path.write_text(HEAD + request.param)
    with Client(resolve(f"{path}:run")) as made:
        yield made


def judged(kernel: Client, *texts: str) -> list[Record]:
    """Records of cases done one after the other, each failure settled."""
    found = []
    for text in texts:
        case, label = parse_id(text)
        subject = check.subject_of(case, label)

        def once(on: Client, subject: check.Subject = subject) -> Record:
            return check.check(subject, [on])[0]

        found.append(dependence.settled(once(kernel), kernel, once))
    return found


@pytest.mark.parametrize("kernel", [CACHED], indirect=True)
def test_a_cache_of_too_small_a_key_is_named_with_the_case_that_filled_it(
    kernel: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    *before, last = judged(kernel, FIRST, OTHER, LAST)

    assert [r.status for r in before] == [Status.PASS, Status.PASS]
    assert (last.status, last.detail["after"]) == (Status.FLAKY, [FIRST])
    assert f"only after {FIRST}, right in a fresh process: output 0: " in last.message
    assert "a cache whose key lacks what differs" in explain(last)

    words = shlex.split(repro_line(last))
    assert words == ["opgauge", "repro", LAST, "--after", FIRST, "--backend", kernel.spec.text]
    with pytest.raises(SystemExit) as ended:
        cli.main(words[1:])
    assert (ended.value.code, "the same in a second process" in capfd.readouterr().out) == (1, True)
    with pytest.raises(SystemExit) as alone:  # control
        cli.main([*words[1:3], *words[-2:]])
    assert alone.value.code == 0


@pytest.mark.parametrize("kernel", [WRONG], indirect=True)
def test_what_is_wrong_alone_stays_a_failure(kernel: Client) -> None:
    for found in judged(kernel, FIRST, LAST):
        assert found.status is Status.FAIL
        assert "after" not in found.detail


@pytest.mark.parametrize("kernel", [ONCE], indirect=True)
def test_what_does_not_repeat_says_so(kernel: Client) -> None:
    first, last = judged(kernel, FIRST, LAST)

    assert first.status is Status.PASS
    assert (last.status, last.detail["after"]) == (Status.FLAKY, [])
    assert "once after 1 others in its process, right in a fresh one and after them" in last.message
    assert "--after" not in repro_line(last)


@pytest.mark.parametrize("kernel", [CACHED], indirect=True)
def test_a_row_tells_such_results_from_failures_and_makes_no_smaller_case_of_them(
    kernel: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(check.minimise, "minimise", lambda *words: tried.append(words))
    monkeypatch.setattr(generate, "draw_round", lambda *_: [parse_id(text)[0] for text in (FIRST, OTHER, LAST)])
    found: list[Record] = []
    check.check_row(NAMED["MatMul/int32"], 3, 0, [kernel], found.append)

    assert [r.status for r in found] == [Status.PASS, Status.PASS, Status.FLAKY]
    assert not tried


@pytest.mark.parametrize("kernel", [WORN], indirect=True)
def test_a_smaller_case_is_one_that_fails_in_a_process_of_its_own(kernel: Client) -> None:
    """Wrong for more than eight elements, and always after twelve calls, as they are soon made on the way to less."""
    found: list[Record] = []
    check.check_row(NAMED["Relu/int32"], 2, 0, [kernel], found.append)

    wrong = [r for r in found if r.status is Status.FAIL]
    assert wrong
    for record in wrong:
        with Client(kernel.spec) as fresh:
            case, label = parse_id(record.detail.get("smaller", {}).get("case", record.case))
            assert check.check(check.subject_of(case, label), [fresh])[0].status is Status.FAIL


@pytest.mark.parametrize(
    ("needed", "named"),
    [({5}, [5]), ({0}, [0]), ({2, 3}, [2, 3]), ({1, 6}, list(range(8))), ({9}, [])],
    ids=["one", "the first", "two side by side", "two apart", "not again"],
)
def test_the_fewest_cases_before_are_found_by_halving(needed: set[int], named: list[int]) -> None:
    before = [Request(str(i), {}, [], 0) for i in range(8)]
    asked: list[int] = []

    def holds(some: Any) -> bool:
        asked.append(len(some))
        return needed <= {int(request.case) for request in some}

    assert [int(request.case) for request in fewest(before, holds)] == named
    assert len(asked) <= 7


def test_a_new_process_has_done_only_what_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(HEAD + CACHED)
    with Client(resolve(f"{path}:run")) as kernel:
        judged(kernel, FIRST, OTHER, LAST.replace("s3", "s4"))
        assert [request.case for request in kernel.before()] == [FIRST]  # what the failure needs
        judged(kernel, OTHER, FIRST)
        (earlier, *_) = kernel.before()
        assert isinstance(earlier, client.Request)
        kernel.renew([replace_id(earlier, "told")])
        judged(kernel, OTHER)
        assert [request.case for request in kernel.before()] == ["told"]


def replace_id(request: Request, text: str) -> Request:
    return request._replace(case=text, header={**request.header, "id": text})
