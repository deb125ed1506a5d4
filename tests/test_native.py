"""C kernels that misbehave: each is charged to its case by name, and no other case is lost, wherever it stands."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from opgauge import isolation
from opgauge.backends import UnknownBackendError, resolve
from opgauge.client import Client
from opgauge.reference_engine.types import Observation, Status

SOURCE = Path(__file__).parent / "native" / "misbehaviour.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")
N = 100
KINDS = {name: i for i, name in enumerate(re.findall(r"[A-Z_]+", SOURCE.read_text().split("enum {")[1].split("}")[0]))}

# (kind, status, words of the evidence)
EXPECTED = (
    ("NULL_WRITE", "crash", "SIGSEGV"),
    ("DIVIDE_BY_ZERO", "crash", "SIGFPE"),
    ("ABORTS", "crash", "SIGABRT"),
    ("ILLEGAL", "crash", "SIGILL"),
    ("BUS", "crash", "SIGBUS"),
    ("RECURSES", "crash", "SIGSEGV"),
    ("EXITS", "crash", "exit code 3"),
    ("QUITS", "crash", "exit code 0"),
    ("KILLS_ITSELF", "crash", "SIGKILL"),
    ("TERMINATES", "crash", "SIGTERM"),
    ("SPINS", "hang", "no result in 0.4 s"),
    ("SLEEPS", "hang", "no result in 0.4 s"),
    ("STOPS", "hang", "no result in 0.4 s"),
    ("DEADLOCK", "hang", "no result in 0.4 s"),
    ("PAUSES_BLOCKED", "hang", "no result in 0.4 s"),
    ("KEEPS_MEMORY", "leak", "resident memory grows by 10"),
    ("KEEPS_FILE", "leak", "open descriptors"),
    ("KEEPS_THREAD", "leak", "threads running"),
    ("KEEPS_CHILD", "leak", "a child process"),
    ("FORKS_ON", "leak", "a child process"),
    ("WRITES_PAST", "overrun", "wrote 4 bytes past output 0, from byte +0 on"),
    ("WRITES_BEFORE", "overrun", "wrote 4 bytes before output 0, from byte -"),
    ("WRITES_FAR", "overrun", "wrote 4 bytes past output 0, from byte +4000 on"),
    ("READS_PAST", "overrun", "without writing beside them"),
    ("READS_BEFORE", "overrun", "without writing beside them"),
    ("WRITES_PAST_INPUT", "overrun", "past input x"),
    ("SKIPS_LAST", "unwritten", "1 of 100 elements of output 0"),
    ("SKIPS_ALL", "unwritten", "100 of 100 elements of output 0"),
    ("SKIPS_ODD", "unwritten", "50 of 100 elements of output 0"),
    ("CHANGES_INPUT", "clobbered", "input 'x' changed: 1 of 100 elements"),
    ("CHANGES_DIRECTORY", "leak", "working directory"),
    ("ROUNDS_UP", "leak", "rounding mode upward"),
    ("ROUNDS_TO_ZERO", "leak", "rounding mode toward zero"),
    ("FLUSHES", "leak", "subnormal numbers flushed to zero"),
    ("TRAPS", "leak", "floating-point traps"),
    ("BLOCKS_SIGNALS", "leak", "blocked signals"),
    ("IGNORES_SIGNALS", "leak", "ignored signals"),
    ("HANDLES_SIGNALS", "leak", "handled signals"),
    ("SETS_ALARM", "leak", "timers running"),
    ("MASKS_FILES", "leak", "file mode mask 0777"),
    ("SETS_LOCALE", "leak", "locale"),
    ("ONE_PROCESSOR", "leak", "processors"),
    ("LIMITS_FILES", "leak", "resource limits"),
    ("COUNTS_CALLS", "flaky", "differs in 1 of 100 elements"),
    ("WRITES_LATE", "leak", "threads running"),
    ("FREES_TWICE", "crash", "SIGABRT"),
    ("NO_MEMORY", "oom", "out of memory"),
    ("CLOSES_ALL", "crash", ""),
    ("SPEAKS_PROTOCOL", "crash", "broke the protocol"),
    ("PRINTS", "pass", ""),
)

pytestmark = pytest.mark.skipif(not (COMPILER and isolation.LINUX), reason="needs Linux and a C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("native") / "misbehaviour.so"
    command = [str(COMPILER), "-O1", "-w", "-shared", "-fPIC", "-o", str(path), str(SOURCE), "-lpthread", "-lm"]
    subprocess.run(command, check=True)
    return str(path)


@pytest.fixture(scope="module")
def client(library: str) -> Iterator[Client]:
    with Client(resolve(f"native:{library}:kernel"), spare=True) as client:
        yield client


HANGING = {KINDS[kind] for kind, status, _ in EXPECTED if status == "hang"}


def ask(client: Client, kind: int, n: int = N) -> Observation:
    x = np.arange(n, dtype=np.float32)
    x[0] = kind
    patience = client.timeout_s
    client.timeout_s = 0.4 if kind in HANGING else patience  # no other verdict depends on how fast the machine is
    client.submit(f"kind{kind}", b"", {"x": x})
    seen = client.receive()
    client.timeout_s = patience
    return seen


def honest(seen: Observation, n: int = N) -> bool:
    right = np.arange(n, dtype=np.float32) * 2
    return seen.status is Status.PASS and np.array_equal(seen.outputs[0], right)


def test_there_are_enough_kinds_and_each_is_expected_to_read_something() -> None:
    beside = {"HONEST", "SMASHES_HEAP", "POISONS_NEXT", "KINDS"}  # tests of their own
    assert {kind for kind, *_ in EXPECTED} | beside == set(KINDS)
    assert len(EXPECTED) >= 28
    assert {status for _, status, _ in EXPECTED} >= set("crash hang oom overrun unwritten clobbered leak flaky".split())


@pytest.mark.parametrize("part", range(2))
def test_each_misbehaviour_is_charged_to_its_case_at_any_position_and_no_other_is_lost(
    client: Client, part: int
) -> None:
    order = list(EXPECTED)[part::2]
    random.Random(part).shuffle(order)
    wrong = []
    for kind, status, evidence in order:
        if kind == "ONE_PROCESSOR" and len(isolation.cores()) == 1:  # it changes nothing then
            continue
        seen, after = ask(client, KINDS[kind]), ask(client, 0)
        if (seen.status, evidence in seen.message, honest(after)) != (Status(status), True, True):
            wrong.append((kind, status, evidence, seen, after.status))
    assert not wrong
    assert not client.late_deaths


@pytest.mark.parametrize("n", [1, 3, 16, 1024, 5000, 300_000])
def test_an_honest_kernel_passes_at_every_size(client: Client, n: int) -> None:
    assert honest(ask(client, 0, n), n)


@pytest.mark.parametrize("n", [16, 1024, 300_000])
def test_one_element_too_far_is_seen_at_every_size(client: Client, n: int) -> None:
    for kind in ("WRITES_PAST", "READS_PAST", "READS_BEFORE", "SKIPS_LAST"):
        status = Status.UNWRITTEN if kind == "SKIPS_LAST" else Status.OVERRUN
        assert ask(client, KINDS[kind], n).status is status


def test_silent_heap_damage_is_seen_in_the_checking_mode(library: str) -> None:
    spec = resolve(f"native:{library}:kernel")
    with Client(spec, heap_check=True) as checked:
        assert honest(ask(checked, 0))  # control
        seen = ask(checked, KINDS["SMASHES_HEAP"])
        assert seen.status is Status.CRASH, seen
        assert "SIGABRT" in seen.message
        assert honest(ask(checked, 0))


def test_a_case_that_breaks_its_successors_is_named_and_they_keep_their_verdicts(library: str) -> None:
    spec = resolve(f"native:{library}:second_call_breaks")
    with Client(spec) as client:
        for kind in (1, 2, 9, 3, 4, 6):
            assert ask(client, kind).status is Status.PASS
        assert ask(client, 5).status is Status.PASS
        ((case, message),) = client.late_deaths
        assert case == "kind9"
        assert "kind5 died after it and runs without it: signal SIGABRT" in message
        assert ask(client, 5).status is Status.PASS


def test_a_kernel_of_another_signature_is_refused_and_a_missing_one_is_unavailable(library: str) -> None:
    with Client(resolve(f"native:{library}:kernel")) as client:
        client.submit("int8", b"", {"x": np.zeros(3, np.int8)})
        assert client.receive().status is Status.UNSUPPORTED
    with Client(resolve(f"native:{library}:nothing")) as client:
        seen = ask(client, 0)
    assert seen.status is Status.UNAVAILABLE
    assert "nothing" in seen.message
    with pytest.raises(UnknownBackendError, match=r"PATH\.so:SYMBOL"):
        resolve("native:kernel")
