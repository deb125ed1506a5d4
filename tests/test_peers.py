"""Peers compute the same before they are timed; nothing here depends on a time."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from opgauge import peers
from opgauge.cli import app
from opgauge.reference_engine.errors import CaseError
from opgauge.suites.peer_cases import CASES, GEMMS, LAYERS, PAIRS, Layer, Peered, matmul_float, qlinear_conv

SMALL = Layer(3, 4, 8, 9)


def test_every_shape_pair_and_layer_has_its_peer():
    sections = {s: sum(c.section == s for c in CASES) for s in dict.fromkeys(c.section for c in CASES)}
    assert sections["gemm"] == len(GEMMS) * len(PAIRS)
    assert sections["conv"] == sections["fusion"] == len(LAYERS)
    assert len({c.name for c in CASES}) == len(CASES)


def test_cases_are_selected_by_whole_words():
    assert [c.label for c in peers.select(["gemm", "64x64x64", "uint8", "int8"])] == ["uint8,int8 64x64x64"]
    with pytest.raises(CaseError, match="sections are gemm, conv"):
        peers.select(["64x64"])


@pytest.mark.parametrize("peer", ["onnxruntime", "unfused", "onnx-reference"])
def test_a_convolution_is_that_of_each_peer(peer):
    found = peers.measure(Peered("conv", SMALL.name, peer, lambda: qlinear_conv(SMALL)))
    assert found.ratio > 0
    assert found.low <= found.ratio <= found.high
    assert found.rounds >= 9


def test_a_peer_that_computes_something_else_is_named(monkeypatch):
    case = Peered("float", "8x8x8", "numpy", lambda: matmul_float(8, 8, 8))
    assert peers.measure(case).ours_ns > 0  # control
    monkeypatch.setattr(peers, "_into", lambda a, b, out: np.matmul(a, b + 1, out=out))
    with pytest.raises(peers.DifferentError, match="float 8x8x8 numpy"):
        peers.measure(case)


def test_the_command_prints_what_it_measured():
    run = CliRunner()
    made = run.invoke(app, ["bench", "--peers", "float 64x64x64", "--json"])
    assert made.exit_code == 0
    (row,) = json.loads(made.stdout)["rows"]
    assert row["peer"] == "numpy"
    assert isinstance(run.invoke(app, ["bench", "--peers", "nothing"]).exception, CaseError)
