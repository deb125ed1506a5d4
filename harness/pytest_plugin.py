"""The pytest plugin: suite cases as test items, and fixtures for tests of one's own.

`pytest --opgauge-backend my_pkg:run -k "QLinearConv and uint8"` adds an item for each case and backend, called
`Op/dtypes/NNN-profile[backend]`. Every pytest run on a machine with opgauge imports this file: it imports nothing
but pytest until something of it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from opgauge.api import Report
    from opgauge.client import Client
    from opgauge.expectations import Deviation
    from opgauge.pytest_cases import SuiteCase
    from opgauge.reference_engine.types import CaseSpec, Record

QUANTIZED = re.compile(r"QLinear|Quantize|Integer|^Q[A-Z]|NBits")
MARKERS = (
    "op(name, dtype='', budget=10, seed=0): the operator of an opgauge case, or those that `opgauge_case` goes through",
    "backend(name): the backend that an opgauge case runs on",
    "quant: an opgauge case of a quantized operator",
    "slow: takes more than a few seconds",
)
CLIENTS = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("opgauge", "conformance of ONNX kernels (opgauge)")
    add = group.addoption
    add("--opgauge-backend", action="append", default=[], metavar="BACKEND", help="cpu, my_pkg:run, path.py:run ...")
    add("--opgauge-budget", type=int, default=10, metavar="N", help="cases per row of operator and dtypes")
    add("--opgauge-seed", type=int, default=0, metavar="N", help="same seed, same cases")
    add("--opgauge-timeout", type=float, default=20.0, metavar="S", help="seconds per case")
    add("--opgauge-expectations", default="", metavar="FILE", help="known deviations instead of the shipped ones")


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)


def pytest_unconfigure(config: pytest.Config) -> None:
    for client in config.stash.get(CLIENTS, {}).values():
        client.close()


# ---- items of the suite


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the suite's items before anything is deselected."""
    texts = config.getoption("opgauge_backend")
    if not texts:
        return
    from opgauge import pytest_cases

    try:
        backends = pytest_cases.backends(texts)
        rows = pytest_cases.possible_rows(config.getoption("keyword"), backends)
        known = pytest_cases.deviations(config.getoption("opgauge_expectations"))
    except pytest_cases.SelectionError as error:
        raise pytest.UsageError(f"opgauge: {error}") from error
    suite = Suite.from_parent(session, name="opgauge", nodeid="opgauge")
    budget, seed = config.getoption("opgauge_budget"), config.getoption("opgauge_seed")
    added: list[pytest.Item] = []
    for row in rows:
        for case in pytest_cases.drawn(row.name, budget, seed):
            added += [CaseItem.of(suite, row, case, text) for text in backends]
    for witness in known:
        added += [WitnessItem.of(suite, witness, text) for text in backends]
    items += added
    # Whoever counts what was collected must hear of them, or deselected items make a negative number.
    report = pytest.CollectReport(suite.nodeid, "passed", None, [*added])
    config.hook.pytest_collectreport(report=report)


class Suite(pytest.Collector):
    """The parent of all items; it collects nothing itself."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        return []


class CaseItem(pytest.Item):
    """One case on one backend."""

    case: SuiteCase
    backend: str

    @classmethod
    def of(cls, suite: Suite, row: CaseSpec, case: SuiteCase, backend: str) -> CaseItem:
        item: CaseItem = cls.from_parent(suite, name=f"{case.name}[{backend}]")
        item.case, item.backend = case, backend
        item.add_marker(pytest.mark.op(name=row.op, dtype=row.label))
        item.add_marker(pytest.mark.backend(name=backend))
        if QUANTIZED.search(row.op):
            item.add_marker(pytest.mark.quant)
        return item

    def reportinfo(self) -> tuple[str, int | None, str]:
        return "opgauge", None, self.name

    def runtest(self) -> None:
        from opgauge import pytest_cases

        client = _client(self.config, self.backend)
        record = self.case.run_on(client, _known(self.config))
        self.user_properties += [("opgauge_case", record.case), ("opgauge_status", str(record.status))]
        self.tell(record, pytest_cases.told(record))

    def tell(self, record: Record, text: str) -> None:
        """The status as pytest's outcome. An untrusted case proves nothing, so it is not shown as passed."""
        if record.status in ("unsupported", "untrusted"):
            pytest.skip(f"{record.status}: {record.message}")
        elif record.status == "deviation":
            pytest.xfail(record.message)
        elif record.status != "pass":
            pytest.fail(text, pytrace=False)


class WitnessItem(CaseItem):
    """The witness of a recorded deviation: it must still deviate where its condition holds."""

    row: Deviation

    @classmethod
    def of(cls, suite: Suite, row: Deviation, backend: str) -> WitnessItem:  # type: ignore[override]
        from opgauge import pytest_cases

        case = pytest_cases.spelled(row.witness)
        name = f"{case.case.op}/{case.label}/witness-{row.id}[{backend}]"
        item: WitnessItem = cls.from_parent(suite, name=name)
        item.case, item.backend, item.row = case, backend, row
        item.add_marker(pytest.mark.op(name=case.case.op, dtype=case.label))
        item.add_marker(pytest.mark.backend(name=backend))
        return item

    def runtest(self) -> None:
        from opgauge import check, expectations

        client = _client(self.config, self.backend)
        if not expectations.applies(self.row, client.spec.name, check.told(client)):
            pytest.skip(f"deviation {self.row.id} is not about {self.backend}")
        super().runtest()

    def tell(self, record: Record, text: str) -> None:
        if record.status != "deviation":
            pytest.fail(f"deviation {self.row.id} is stale: its witness reads {record.status}\n{text}", pytrace=False)
        super().tell(record, text)


def _client(config: pytest.Config, text: str) -> Client:
    """One kernel worker per backend and process, started when its first case runs."""
    from opgauge.backends import resolve
    from opgauge.client import Client

    clients = config.stash.setdefault(CLIENTS, {})
    if text not in clients:
        clients[text] = Client(resolve(text), config.getoption("opgauge_timeout"))
    return clients[text]


def _known(config: pytest.Config) -> tuple[Deviation, ...]:
    from opgauge import pytest_cases

    return pytest_cases.deviations(config.getoption("opgauge_expectations"))


# ---- for tests of one's own


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`opgauge_case` goes through the cases that the test's `op` markers select."""
    if "opgauge_case" not in metafunc.fixturenames:
        return
    from opgauge import pytest_cases

    wanted = list(metafunc.definition.iter_markers("op"))
    if not wanted:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid} uses opgauge_case without saying which: add @pytest.mark.op('QLinearMatMul')"
        )
    try:
        cases = [case for mark in wanted for case in pytest_cases.marked(*mark.args, **mark.kwargs)]
    except (pytest_cases.SelectionError, TypeError) as error:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: pytest.mark.op: {error}") from error
    metafunc.parametrize("opgauge_case", cases, ids=[case.name for case in cases])


@pytest.fixture
def assert_within_set() -> Callable[..., Report]:
    """`assert_within_set(actual, model, inputs)`: every element of `actual` is one that an honest kernel may return."""
    from opgauge import api

    return api.assert_within_set
