"""Histories and their steps: planted steps beside none; what asv reads of what is written for it."""

from __future__ import annotations

import json
import math
import random

import pytest
from asv.benchmarks import Benchmarks
from asv.config import Config
from asv.results import iter_results
from typer.testing import CliRunner

from opgauge import history, trends
from opgauge.cli import app
from opgauge.reference_engine.errors import BaselineError


def series(levels, sd=0.01, seed=0, ns=50_000.0):
    """Times of runs at each (number, share) level, with normal noise on their logarithms."""
    rng = random.Random(seed)
    return [ns * (1 + share) * math.exp(rng.gauss(0, sd)) for count, share in levels for _ in range(count)]


def planted(folder, levels=((12, 0.0), (10, 0.08)), name="Conv on cpu", seed=0):
    path = folder / "latency" / "abc123.jsonl"
    for i, ns in enumerate(series(levels, seed=seed)):
        history.append(path, f"c{i:06d}", f"2026-11-{1 + i:02d}T00:00:00Z", {name: ns, "Add on cpu": 1000.0 + i % 2})
    return folder


# ---- steps


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.05, 0.10, -0.06])
def test_a_planted_step_is_found_where_it_is(share, seed):
    ((at, found),) = trends.change_points(series([(12, 0.0), (10, share)], seed=seed))
    assert abs(at - 12) <= 1
    assert found == pytest.approx(share, abs=0.015)


def test_two_steps_are_two():
    found = trends.change_points(series([(12, 0.0), (12, 0.10), (12, 0.0)]))
    assert [at for at, _ in found] == [12, 24]
    assert [math.copysign(1, share) for _, share in found] == [1, -1]


def test_a_history_without_a_step_has_none():
    false = sum(bool(trends.change_points(series([(24, 0.0)], sd=0.02, seed=seed))) for seed in range(100))
    assert false <= 4


@pytest.mark.parametrize("values", [[], [1.0] * 7, [1.0] * 30, [0.0] * 20, series([(20, 0.0), (2, 0.5)])])
def test_few_or_equal_values_or_a_short_spike_have_no_step(values):
    assert trends.change_points(values) == []


def test_a_trend_names_the_commit_of_its_step(tmp_path):
    by_name = {t.name: t for t in trends.trends(planted(tmp_path))}
    (step,) = by_name["Conv on cpu"].steps
    assert (step.at, step.commit) == (12, "c000012")
    assert by_name["Add on cpu"].steps == ()
    assert json.loads(json.dumps(by_name["Conv on cpu"].plain()))["steps"][0]["commit"] == "c000012"


def test_no_history_is_an_error_that_says_how_to_make_one(tmp_path):
    with pytest.raises(BaselineError, match="--record"):
        trends.trends(tmp_path)
    result = CliRunner().invoke(app, ["trends", "--baselines", str(tmp_path)])
    assert (result.exit_code, "NOTHING RAN (exit 5)" in result.output) == (5, True)


# ---- asv's files


def whole(commit):
    return (commit.ljust(40, "0"), 1_790_000_000_000) if commit != "c000003" else None


def test_asv_reads_what_is_written_for_it(tmp_path):
    found, folder = trends.trends(planted(tmp_path)), tmp_path / "asv"
    written, missing = trends.feed(found, folder, whole, {"cpu": "a processor"})
    assert (written, missing) == (21, ["c000003"])
    conf = Config.from_json({"repo": ".", "results_dir": str(folder), "benchmark_dir": "suites/latency"})
    listed = Benchmarks.load(conf)
    assert sorted(listed) == ["interleaved.Add on cpu", "interleaved.Conv on cpu"]
    results = {r.commit_hash: r for r in iter_results(str(folder))}
    seen = results[whole("c000012")[0]].get_result_value("interleaved.Conv on cpu", [])
    conv = next(t for t in found if t.name == "Conv on cpu")
    assert seen == pytest.approx([conv.ns[12] / 1e9])
    assert results[whole("c000012")[0]].params["machine"] == "abc123"


def test_feeding_twice_changes_nothing_and_keeps_asvs_own_benchmarks(tmp_path):
    folder = tmp_path / "asv"
    found = trends.trends(planted(tmp_path))
    trends.feed(found, folder, whole, {})
    listed = json.loads((folder / "benchmarks.json").read_text())
    listed["operators.time_operator"] = {**listed["interleaved.Add on cpu"], "name": "operators.time_operator"}
    (folder / "benchmarks.json").write_text(json.dumps(listed))
    trends.feed(found, folder, whole, {})
    assert json.loads((folder / "benchmarks.json").read_text()).keys() == listed.keys()
    assert len(list((folder / "abc123").glob("*-interleaved.json"))) == 21


def test_several_runs_of_a_commit_are_samples_of_one_value(tmp_path):
    for ns in (100.0, 300.0, 200.0):
        history.append(tmp_path / "latency" / "m.jsonl", "c0", "", {"a": ns})
    trends.feed(trends.trends(tmp_path), tmp_path / "asv", whole, {})
    (result,) = iter_results(str(tmp_path / "asv"))
    assert result.get_result_value("interleaved.a", []) == pytest.approx([200e-9])
    assert result.get_result_stats("interleaved.a", [])[0]["repeat"] == 3


def test_the_command_tells_steps_in_words_and_as_json(tmp_path):
    planted(tmp_path)
    said = CliRunner().invoke(app, ["trends", "--baselines", str(tmp_path)])
    assert said.exit_code == 0
    assert "since c000012" in said.output
    assert "PASS (exit 0): 2 histories, 1 steps" in said.output
    told = json.loads(CliRunner().invoke(app, ["trends", "--baselines", str(tmp_path), "--json"]).output)
    assert [s["commit"] for t in told["trends"] for s in t["steps"]] == ["c000012"]


# ---- asv's benchmarks


def test_every_benchmark_sets_its_number_and_has_no_setup_hook():
    """Either lets asv time single calls, silently."""
    from opgauge.suites.latency import models, operators, startup, throughput

    found = [
        f
        for module in (models, operators, startup, throughput)
        for name, f in vars(module).items()
        if name.startswith(("time_", "timeraw_"))
    ]
    assert len(found) == 7
    assert all(f.number > 0 and f.repeat and f.params for f in found)
    assert not any(hasattr(f, "setup") for f in found)


def test_benchmarks_cover_the_key_cases_and_run():
    from opgauge import latency_gate
    from opgauge.suites.latency import operators, throughput

    keys = [k.name for k in latency_gate.read().keys if k.case]
    assert list(operators.time_operator.params[0]) == keys
    assert operators.time_operator("Softmax float32 64x512", "onnxruntime") is not None
    assert str(throughput.time_judge(throughput.CASES[0]).status) == "pass"


# ---- in the report


def test_the_report_shows_the_change_point_of_a_planted_step(tmp_path):
    from opgauge import extras, frames
    from opgauge.reference_engine.types import Record, Status
    from opgauge.reports import html
    from opgauge.reports.extras import Extras

    records = [Record("Add/float32/x", "operators", "Add", "float32", "plain", "cpu", Status.PASS, elements=1)]
    meta = {"exit_code": 0, "verdict": "PASS", "version": "0", "command": "", "started": "", "seconds": 1.0}
    meta |= {"seed": 0, "budget": 1, "backends": {"cpu": {}}, "machine": {}}

    def page(levels, name):
        folder = planted(tmp_path / name, levels)
        return html.render(frames.tables(records), records, [], meta, Extras(trends=extras.trends(folder)))

    assert "since c000012" in page(((12, 0.0), (10, 0.08)), "step")
    assert "since c0" not in page(((22, 0.0),), "flat")
