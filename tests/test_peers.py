"""Peers compute the same before they are timed; nothing here depends on a time."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from opgauge import peers
from opgauge.cli import app
from opgauge.reference_engine.errors import CaseError
from opgauge.suites.peer_cases import (
    BATCHES,
    CASES,
    GEMMS,
    GROUPED,
    LAYERS,
    PAIRS,
    Layer,
    Peered,
    matmul_float,
    matmul_integer,
    qlinear_conv,
    qlinear_mlp,
)

SMALL = Layer(3, 4, 8, 9)


def test_every_shape_pair_and_layer_has_its_peer():
    sections = {s: sum(c.section == s for c in CASES) for s in dict.fromkeys(c.section for c in CASES)}
    assert sections["gemm"] == len(GEMMS) * len(PAIRS)
    assert sections["conv"] == 2 * sections["fusion"] == 2 * len(LAYERS)
    assert sections["grouped"] == 2 * len(GROUPED)
    assert sections["mlp"] == len(BATCHES)
    assert len({c.name for c in CASES}) == len(CASES)


def test_cases_are_selected_by_whole_words():
    assert [c.label for c in peers.select(["gemm", "64x64x64", "uint8", "int8"])] == ["uint8,int8 64x64x64"]
    with pytest.raises(CaseError, match="sections are gemm, grouped, conv"):
        peers.select(["64x64"])


@pytest.mark.parametrize("peer", ["onnxruntime", "unfused", "onnx-reference"])
def test_a_convolution_is_that_of_each_peer(peer):
    found = peers.measure(Peered("conv", SMALL.name, peer, lambda: qlinear_conv(SMALL)))
    assert found.ratio > 0
    assert found.low <= found.ratio <= found.high
    assert found.rounds >= 9


@pytest.mark.parametrize("layer", [SMALL, Layer(3, 8, 8, 9, 2, 8)])
def test_a_convolution_with_channels_last_is_that_of_onnxruntime(layer):
    assert peers.measure(Peered("conv", "NHWC", "onnxruntime", lambda: qlinear_conv(layer, True))).ratio > 0


def test_a_network_is_that_of_the_function_by_hand():
    assert peers.measure(Peered("mlp", "batch 2", "hand-written", lambda: qlinear_mlp(2))).ratio > 0


def test_two_threads_give_what_one_gives():
    case = Peered("threads", "8x8x8", "one-thread", lambda: matmul_integer(8, 8, 8, "uint8", "int8"), 1.3)
    found = peers.measure(case)
    assert found.ratio > 0
    assert found.goal <= 1.3


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
