"""Soaks from recorded windows: planted growth, wandering tails, fallbacks, beside quiet ones. No clock decides."""

from __future__ import annotations

import json
import math
import random
import re

import pytest
from typer.testing import CliRunner

from opgauge import cli_soak, latency_gate, soak
from opgauge.cli import app
from opgauge.latency import Call
from opgauge.pairs import Side, workload
from opgauge.reference_engine.errors import BaselineError
from opgauge.soak import Limits, Window

MIB = 1 << 20


def windows(count=10, calls=100, spikes=0.0, noise=0.0, grown=0, seed=0, jump=0):
    """Calls of 100 us within 1 %; in one window, `spikes` and `noise` are the factor of its slowest calls and loops."""
    rng = random.Random(seed)

    def times(factor):
        drawn = [int(100_000 * (1 + 0.01 * rng.random())) for _ in range(calls)]
        return tuple(drawn[:-3] + [int(t * (1 + factor)) for t in drawn[-3:]])

    rss = [100 * MIB + i * grown * calls // 1000 + (jump if i > 2 else 0) for i in range(count)]
    return [
        Window(times(spikes if i == 4 else 0), times(noise if i == 6 else 0), rss[i]) for i in range(count)
    ]  # fmt: skip


def judged(made, counts=None, **more):
    return soak.judge("case", "cpu", made, {"first_ns": 5, "peak_rss_bytes": 7}, counts or {}, Limits(), **more)


def test_a_quiet_soak_holds_and_has_no_finding():
    s = judged(windows())
    assert (s.call, s.findings, s.runs, s.fallbacks) == (Call.SAME, (), 1000, 0)
    assert 100_000 <= s.p50_ns <= s.p99_ns <= 101_001


def test_a_tail_that_wanders_on_a_quiet_machine_is_a_finding():
    s = judged(windows(spikes=0.4))
    assert s.call is Call.SLOWER
    assert "wanders" in s.findings[0]


def test_a_tail_that_wanders_with_the_machine_cannot_be_told():
    s = judged(windows(spikes=0.4, noise=0.3))
    assert (s.call, s.findings) == (Call.UNCLEAR, ())
    assert s.noise_off > 0.05


def test_a_noisy_machine_does_not_spoil_a_tail_that_holds():
    assert judged(windows(noise=0.5)).call is Call.SAME


@pytest.mark.parametrize(("bytes_each_thousand", "found"), [(0, False), (MIB // 2, False), (4 * MIB, True)])
def test_planted_growth_is_measured(bytes_each_thousand, found):
    s = judged(windows(grown=bytes_each_thousand))
    assert s.grown_bytes == pytest.approx(bytes_each_thousand, rel=0.02, abs=10)
    assert any("memory grows" in f for f in s.findings) is found


def test_a_cache_that_fills_once_is_no_growth():
    assert judged(windows(jump=50 * MIB)).grown_bytes == 0


def test_fallbacks_are_findings():
    assert "2 fallbacks" in judged(windows(), {"fallback_count": 2, "dispatch_count": 9}).findings[0]
    assert judged(windows(), {"fallback_count": 0, "dispatch_count": 9}).findings == ()


def test_quantiles_are_values_that_were_measured():
    assert soak.quantile([3, 1, 2, 4], 0.5) == 2
    assert soak.quantile(range(1, 101), 0.99) == 99
    assert soak.quantile([5], 0.99) == 5


def test_too_few_windows_say_nothing():
    with pytest.raises(BaselineError, match="windows"):
        judged(windows(count=2))


def test_prometheus_text_is_well_formed_and_escaped(tmp_path):
    s = soak.judge('a "case"\n\\', "cpu", windows(noise=0.2, spikes=0.2), {}, {}, Limits(), fragmentation=0.25)
    text = soak.prometheus([s])
    sample = re.compile(r'[a-z_0-9]+\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+\} (?:NaN|[-+0-9.e]+)')
    names = set()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            names.add(line.split()[2])
        elif not line.startswith("# HELP"):
            assert sample.fullmatch(line), line
            assert line.partition("{")[0] in names
    assert text.endswith("\n")
    assert 'quantile="0.99"' in text
    assert "opgauge_soak_stable" in text
    assert re.search(r"stable\{.*\} NaN", text)
    assert "launch_seconds" not in text  # it was not told
    assert re.search(r"fragmentation_ratio\{.*\} 0.25", text)
    soak.write_prometheus([s], tmp_path / "a.prom")
    assert (tmp_path / "a.prom").read_text() == text
    assert [p.name for p in tmp_path.iterdir()] == ["a.prom"]


def test_limits_are_those_of_gates_toml_and_unknown_ones_are_refused():
    assert latency_gate.limits_of(Limits, "soak", latency_gate.read().sections["soak"]) == Limits()
    with pytest.raises(BaselineError, match="p98"):
        latency_gate.limits_of(Limits, "soak", {"p98": 1})


def test_a_real_soak_reports_every_figure():
    s = soak.soak(workload("mlp-int8"), Side("cpu"), runs=60)
    assert s.runs == 60
    assert 0 < s.p50_ns <= s.p99_ns
    assert math.isfinite(s.grown_bytes)
    assert s.launch_ns > 0
    assert 0 <= s.fragmentation < 1
    assert s.fallbacks == 0


def test_the_command_prints_json_and_refuses_what_is_no_backend():
    result = CliRunner().invoke(app, ["soak", "mlp-int8", "--backend", "nothing_here.py:run", "--runs", "60", "--json"])
    told = json.loads(result.output)
    assert (result.exit_code, told["soaked"], len(told["refused"])) == (5, [], 1)


def test_hits_and_evictions_of_plans_are_told():
    told = {"plan_lookups": 1000, "plan_hits": 999, "plan_eviction_count": 3}
    made = soak.judge("c", "cpu", windows(), {}, told, soak.Limits())
    assert (made.plan_hit_rate, made.plan_evictions) == (0.999, 3)
    assert "plans 99.9% hits, 3 evicted" in cli_soak._line(made)
    silent = soak.judge("c", "onnxruntime", windows(), {}, {}, soak.Limits())
    assert silent.plan_hit_rate is None
    assert "plans" not in cli_soak._line(silent)
