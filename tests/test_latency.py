"""From pair values to verdicts: planted slowdowns, none at all, noise that hides them. No clock decides here."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from opgauge import history, latency, latency_gate, pairs, trends, workloads
from opgauge.latency import Call, Plan
from opgauge.latency_gate import Key
from opgauge.reference_engine.errors import BaselineError
from opgauge.workloads import Side, Workload

PLAN = Plan()
WORK = Workload("w", b"model", {"x": np.zeros(3, np.float32)})


def sequential(rng, effect, sd, plan=PLAN, suite_sd=None, tails=0.0):
    """The verdict on simulated pairs, and how many it took; `tails` is the share of pairs that are wild."""

    def draw(centre):
        return rng.gauss(centre, sd * (6 if rng.random() < tails else 1))

    values, control = [], []
    while True:
        values.append(draw(math.log1p(effect)))
        control.append(draw(0.0))
        said = latency.decide(plan, values, control, suite_sd or sd)
        if said is not None:
            return said, len(values)


def rate(effect, sd, wanted, trials=300, **more):
    rng = random.Random(7)
    outcomes = [sequential(rng, effect, sd, **more) for _ in range(trials)]
    return sum(o in wanted for o, _ in outcomes) / trials, sum(n for _, n in outcomes) / trials


@pytest.mark.parametrize("tails", [0.0, 0.1])
def test_unchanged_pairs_raise_no_alarm_and_mostly_stop_at_the_first_look(tails):
    false, pairs_each = rate(0.0, 0.008, (Call.SLOWER, Call.FASTER), tails=tails)
    assert false == 0
    assert pairs_each < 5


@pytest.mark.parametrize(("effect", "least"), [(0.05, 0.99), (0.10, 0.99), (0.03, 0.9)])
def test_a_planted_slowdown_is_seen(effect, least):
    seen, _ = rate(effect, 0.008, (Call.SLOWER,))
    assert seen >= least


def test_a_speed_up_is_told_as_one():
    assert rate(-0.06, 0.008, (Call.FASTER,))[0] >= 0.99


def test_noise_that_would_hide_the_limit_is_never_called_the_same():
    same, pairs_each = rate(0.0, 0.09, (Call.SAME,))
    assert same < 0.05
    assert pairs_each > 11


def test_a_control_that_moves_as_well_is_no_alarm():
    moved = [0.05] * PLAN.most
    assert latency.decide(PLAN, moved, [0.0] * PLAN.most, 0.004) is Call.SLOWER
    assert latency.decide(PLAN, moved, moved, 0.004) is Call.UNCLEAR


def test_an_alarm_that_fresh_pairs_do_not_show_is_none():
    luck, quiet = [0.04, 0.05, 0.045, 0.05], [0.001, -0.002, 0.003, -0.001]

    assert latency.decide(replace(PLAN, confirm=0), luck, quiet, 0.004) is Call.SLOWER
    assert latency.decide(PLAN, luck, quiet, 0.004) is None
    assert latency.decide(PLAN, luck * 2, quiet * 2, 0.004) is Call.SLOWER
    assert latency.decide(PLAN, luck + quiet, quiet * 2, 0.004) is None
    assert latency.decide(PLAN, luck + quiet * 3, quiet * 4, 0.004) is Call.SAME


def test_a_noisy_case_in_a_quiet_suite_raises_no_more_alarms(monkeypatch):
    """Its own pairs say how noisy it is, not only the others."""

    def alarms():
        rng = random.Random(11)
        outcomes = [sequential(rng, 0.0, 0.03, suite_sd=0.01)[0] for _ in range(900)]
        return sum(o in (Call.SLOWER, Call.FASTER) for o in outcomes)

    assert alarms() <= 1
    monkeypatch.setattr(latency, "noise_of", lambda values, control, suite_sd: suite_sd)
    assert alarms() > 10


def test_few_values_are_not_taken_for_less_spread_than_they_have():
    rng = random.Random(2)
    few = sum(latency.spread([rng.gauss(0, 1) for _ in range(4)]) for _ in range(2000)) / 2000
    assert 0.85 < few < 1.15


def test_the_threshold_grows_with_noise_and_with_the_number_of_comparisons():
    quiet, noisy = (latency.threshold(PLAN, sd, 12) for sd in (0.001, 0.03))
    assert quiet == math.log1p(PLAN.alarm)
    assert noisy == pytest.approx(4 * latency.sd_of_estimate(12, 0.03))
    assert latency.threshold(PLAN, 0.001, 12, floor=False) < quiet
    assert latency.threshold(PLAN, 0.03, 12, 10_000) > noisy


def test_the_interval_comes_from_pairs_and_is_never_narrower_than_the_noise():
    values = [0.049, 0.051, 0.05, 0.05]
    made = latency.estimate(PLAN, "x", values, [0.0] * 4, 0.01, Call.SLOWER, seconds=1.0)
    assert made.low < 0.049 - 2 * made.noise
    assert made.high > 0.051
    assert made.change == pytest.approx(math.expm1(0.05))
    wild = latency.resampled([0.0, 0.0, 0.1, 0.1], 0.99)
    assert wild == (0.0, 0.1)


@pytest.mark.parametrize(
    ("alarms", "trials", "bound"), [(0, 1500, 0.002), (0, 160, 0.0186), (11, 100, 0.176), (3, 3, 1)]
)
def test_the_upper_bound_of_a_rate_is_clopper_pearson(alarms, trials, bound):
    assert latency.upper_rate(alarms, trials) == pytest.approx(bound, abs=6e-3 if alarms == 11 else 2e-4)


# ---- pairs


def taken(base, new, **changed):
    calm = pairs.Conditions(2, (28e3, 28e3), (1.0, 1.0))
    made = pairs.Taken(tuple(tuple((x, x) for x in side) for side in (base, new)), ({}, {}), calm, calm, 0.5)
    return replace(made, **changed)


def test_the_ratio_of_a_pair_is_the_median_over_its_rounds():
    assert taken([100, 100, 100], [105, 105, 900]).log_ratio() == pytest.approx(math.log(1.05))


def test_the_new_side_is_held_against_the_mean_of_both_bases():
    three = replace(taken([100] * 4, [104] * 4), lows=tuple(((x, x),) * 4 for x in (100, 104, 102)))
    assert three.value() == pytest.approx(math.log(1.04) - math.log(1.02) / 2)
    assert taken([100] * 4, [104] * 4).value() == pytest.approx(math.log(1.04))


def test_a_change_of_load_frequency_or_cores_is_noticed_and_a_drift_of_both_sides_is_not():
    assert taken([1], [1]).disturbed == ""
    one = pairs.Conditions(2, (28e3, 33e3), (1.0, 1.0))
    both = pairs.Conditions(2, (33e3, 33e3), (1.0, 1.0))
    assert "frequency" in taken([1], [1], after=one).disturbed
    assert taken([1], [1], after=both).disturbed == ""
    assert "cores" in taken([1], [1], after=replace(both, cores=1)).disturbed
    assert "load" in taken([1], [1], after=replace(both, pace_ns=(28e3, 28e3), busy=(1.0, 0.5))).disturbed


def scripted(monkeypatch, ratios, control=0.0):
    """`compare_all` on given log ratios instead of processes; what was opened and timed."""
    opened, timed = [], []
    monkeypatch.setattr(pairs, "opened", lambda sides, plan, rng: opened.append(sides) or list(sides))
    monkeypatch.setattr(pairs, "close", lambda meters: None)

    def take(meters, work, plan, rng, others=None, pair_s=0.0):
        timed.append(work.name)
        ratio = ratios[work.name]
        if isinstance(ratio, Exception):
            raise ratio
        noise = rng.gauss(0, 0.004)
        sides = tuple(((x, x),) * 5 for x in (1e6, 1e6 * math.exp(ratio + noise), 1e6 * math.exp(control - noise)))
        calm = pairs.Conditions(2, (28e3,) * 3, (1.0,) * 3)
        start = {"first_ns": 5e6, "peak_rss_bytes": 1 << 20}
        return pairs.Taken(sides[: len(meters)], (start,) * len(meters), calm, calm, 0.75)

    monkeypatch.setattr(pairs, "take", take)
    return opened, timed


def named(*names):
    return [replace(WORK, name=n) for n in names]


def test_only_cases_that_need_it_get_more_pairs(monkeypatch):
    opened, timed = scripted(
        monkeypatch, {"calm": 0.0, "slow": math.log(1.05), "broken": pairs.MeasureError("no kernel")}
    )
    found = pairs.compare_all(named("calm", "slow", "broken"), Side("cpu"), Side("onnxruntime"), Plan(seed=1))
    assert [e.verdict for e in found] == [Call.SAME, Call.SLOWER, Call.UNCLEAR]
    assert timed.count("calm") == 2
    assert timed.count("slow") > 2
    assert found[2].reason == "no kernel"
    assert found[1].change == pytest.approx(0.05, abs=0.01)
    assert all(len(sides) == 3 for sides in opened)


def test_first_looks_are_short_and_later_ones_longer(monkeypatch):
    scripted(monkeypatch, {"slow": math.log(1.05)})
    honest, lengths = pairs.take, []

    def take(meters, work, plan, rng, others=None, pair_s=0.0):
        lengths.append(pair_s)
        return honest(meters, work, plan, rng, others, pair_s)

    monkeypatch.setattr(pairs, "take", take)
    pairs.compare_all(named("slow"), Side("cpu"), Side("onnxruntime"), Plan(seed=1))
    assert lengths[:3] == [PLAN.pair_s, PLAN.pair_s, PLAN.more_s]


def test_equal_sides_are_not_timed_at_all(monkeypatch):
    opened, _ = scripted(monkeypatch, {"w": 0.05})
    one = pairs.compare(WORK, Side("cpu"), Side("cpu"))
    assert (one.verdict, one.pairs, opened) == (Call.SAME, 0, [])
    other = pairs.compare(WORK, Side("cpu"), Side("cpu:disable=all"), Plan(seed=1))
    assert other.verdict is Call.SLOWER


def test_a_disturbed_pair_is_taken_again(monkeypatch):
    scripted(monkeypatch, {"w": 0.0})
    calm, tries = pairs.take, []

    def take(meters, work, plan, rng, others=None, pair_s=0.0):
        made = calm(meters, work, plan, rng, others, pair_s)
        tries.append(1)
        return replace(made, after=replace(made.after, cores=1)) if len(tries) == 1 else made

    monkeypatch.setattr(pairs, "take", take)
    found = pairs.compare(WORK, Side("cpu"), Side("onnxruntime"), Plan(seed=1))
    assert found.repeated == 1
    assert found.verdict is Call.SAME


# ---- identity


def test_options_feeds_models_and_builds_tell_work_apart_and_names_do_not():
    same = workloads.identity(Side("onnxruntime"), WORK)
    assert same == workloads.identity(Side("onnxruntime"), replace(WORK, name="other"))
    others = [
        workloads.identity(Side("onnxruntime:level=basic"), WORK),
        workloads.identity(Side("onnxruntime", threads=2), WORK),
        workloads.identity(Side("onnxruntime", variables=(("A", "1"),)), WORK),
        workloads.identity(Side("onnxruntime", build="abc"), WORK),
        workloads.identity(Side("onnxruntime==1.20.0"), WORK),
        workloads.identity(Side("onnxruntime"), replace(WORK, model=b"other")),
        workloads.identity(Side("onnxruntime"), replace(WORK, inputs={"x": np.ones(3, np.float32)})),
    ]
    assert len({same, *others}) == 8


def test_a_changed_kernel_file_is_other_work(tmp_path):
    for name, text in (("a", "x = 1"), ("b", "x = 1"), ("c", "x = 2")):
        (tmp_path / f"{name}.py").write_text(f"{text}\ndef run(model, inputs): return []\n")
    a, b, c = (workloads.identity(Side(f"{tmp_path}/{n}.py:run"), WORK) for n in "abc")
    assert len({a, b, c}) == 3  # a file may import its neighbours: another path is never taken for the same


# ---- the gate


def measured(call, change, high, key=True, limit=0.05):
    e = latency.Estimate("k", math.log1p(change), 0.0, math.log1p(high), 12, 6.0, call, 0.004, (0.0,) * 12)
    return [("cpu", Key("k", case="c", limit=limit, key=key), e)]


def test_a_confirmed_slowdown_that_may_reach_its_limit_is_red_and_one_that_cannot_is_not():
    (red,) = latency_gate.findings(measured(Call.SLOWER, 0.048, 0.056))
    assert red.message.startswith("slower: +4.8%")
    assert latency_gate.findings(measured(Call.SLOWER, 0.025, 0.035)) == []
    assert latency_gate.findings(measured(Call.FASTER, -0.2, -0.1)) == []
    assert latency_gate.findings(measured(Call.SLOWER, 0.025, 0.035, limit=0.02))


def test_cannot_tell_is_not_green_on_a_key_case():
    (red,) = latency_gate.findings(measured(Call.UNCLEAR, 0.01, 0.2))
    assert red.message.startswith("cannot tell")
    assert latency_gate.findings(measured(Call.UNCLEAR, 0.01, 0.2, key=False)) == []


def test_the_shipped_gates_name_cases_that_exist():
    gates = latency_gate.read()
    assert len(gates.keys) >= 6
    assert all(k.work().inputs for k in gates.keys)
    assert latency_gate.plan_of(gates).limit == 0.05


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[speed]\n", "no section"),
        ("[latency]\nlimt = 0.1\n", "limt"),
        ("[[latency.key]]\nname = 'a'\n", "a case or a model"),
        ("[[latency.key]]\nname = 'a'\nmodl = 'b'\n", "modl"),
        ("[latency\n", "cannot be read"),
    ],
)
def test_a_wrong_gates_file_is_named(tmp_path, text, words):
    (tmp_path / "gates.toml").write_text(text)
    with pytest.raises(BaselineError, match=words):
        latency_gate.read(tmp_path / "gates.toml")


# ---- history


def test_a_planted_step_is_found_where_it_is_and_noise_is_not_one():
    rng = random.Random(3)
    flat = [100 * math.exp(rng.gauss(0, 0.02)) for _ in range(40)]
    assert trends.change_points(flat) == []
    ((at, share),) = trends.change_points([v * (1.1 if i >= 25 else 1) for i, v in enumerate(flat)])
    assert abs(at - 25) <= 1
    assert share == pytest.approx(0.1, abs=0.03)


def test_history_is_kept_by_run_and_told_as_a_trend(tmp_path):
    path = tmp_path / "latency" / "m.jsonl"
    for i in range(20):
        history.append(path, f"c{i}", "now", {"MatMul on cpu": 100.0 + i % 3 + (30 if i >= 12 else 0)})
    (found,) = trends.of_machine(path)
    assert "c12" in found.said
    path.write_text(path.read_text() + "not json\n")
    assert len(history.read(path)) == 20
    assert history.fingerprint({"cpu": "a", "load": "1"}) == history.fingerprint({"cpu": "a", "load": "9"})
