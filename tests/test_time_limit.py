"""A case's time limit is meant for its work: a busy machine and a cold compile do not make a hang."""

from __future__ import annotations

import time

import numpy as np
import pytest

from opgauge import isolation
from opgauge.backends import resolve
from opgauge.client import Client
from opgauge.reference_engine.types import Status

ADAPTER = """
import time

def run(model, inputs):
    kind, until = model.decode(), time.monotonic() + 2.0
    while kind == "spin": pass
    if kind == "sleep": time.sleep(60)
    while kind == "shared" and time.monotonic() < until:  # as a process that has a sixth of a core
        began = time.process_time()
        while time.process_time() - began < 0.005: pass
        time.sleep(0.025)
    return [inputs["x"]]
"""
LIMIT_S = 1.0


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    path = tmp_path_factory.mktemp("adapter") / "adapter.py"
    path.write_text(ADAPTER)
    with Client(resolve(f"{path}:run"), LIMIT_S) as made:
        made.submit("warm", b"warm", {"x": np.zeros(3, np.float32)}, repeats=1)
        assert made.receive().status is Status.PASS
        yield made


def asked(client, kind):
    began = time.monotonic()
    client.submit(kind, kind.encode(), {"x": np.zeros(3, np.float32)}, repeats=1)
    return client.receive().status, time.monotonic() - began


def test_a_case_that_computes_on_a_small_share_of_a_core_is_waited_for(client):
    status, took = asked(client, "shared")
    assert (status, took > 2 * LIMIT_S * 0.9) == (Status.PASS, True)


def test_a_case_that_computes_without_end_is_a_hang(client):
    assert asked(client, "spin")[0] is Status.HANG


def test_a_case_that_sleeps_is_late_at_once(client, monkeypatch):
    looks, told = [], isolation.processor_s
    monkeypatch.setattr(isolation, "processor_s", lambda pid: looks.append(pid) or told(pid))
    assert asked(client, "sleep")[0] is Status.HANG
    assert len(looks) == 2  # when the wait began and when the limit had passed


def test_where_the_system_cannot_tell_the_clock_decides_alone(client, monkeypatch):
    monkeypatch.setattr(isolation, "LINUX", False)
    assert isolation.processor_s(1) == float("inf")
    assert asked(client, "shared")[0] is Status.HANG
