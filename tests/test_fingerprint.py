"""Does the card name what a kernel is made of: planted kernels by the dozen, some of which nobody knows."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import fingerprint_kernels as k
import numpy as np
import pytest

from opgauge import cli, fingerprint, traits
from opgauge.reference_engine.types import Observation, Status
from opgauge.reports import card as reports

HERE = Path(__file__).parent


MATMUL, ORDER, SHIFTED = (
    ("QLinearMatMul uint8",),
    ("order of sums", "contraction"),
    ("formula", "rounding", "zero point"),
)
Q, R, Z = "x / scale", "half to even", "outside"
M = "acc * ((sa * sb) / sy)"

# (name, kernel, trait, {axis: what the card must say})
PLANTED: tuple[tuple[str, Any, str, dict[str, str]], ...] = (
    (
        "quantize even",
        k.quantize(k.even, k.divided),
        "QuantizeLinear uint8",
        {"formula": Q, "rounding": R, "zero point": Z},
    ),
    (
        "quantize away",
        k.quantize(k.away, k.divided),
        "QuantizeLinear uint8",
        {"formula": Q, "rounding": "half away from zero", "zero point": Z},
    ),
    ("quantize up", k.quantize(k.up, k.divided), "QuantizeLinear int8", {"formula": Q, "rounding": "half up"}),
    ("quantize down", k.quantize(k.down, k.divided), "QuantizeLinear uint8", {"rounding": "half down"}),
    ("quantize odd", k.quantize(k.odd, k.divided), "QuantizeLinear uint8", {"rounding": "half to odd"}),
    ("quantize floor", k.quantize(math.floor, k.divided), "QuantizeLinear int8", {"rounding": "floor"}),
    (
        "quantize truncated",
        k.quantize(int, k.divided),
        "QuantizeLinear uint8",
        {"rounding": "truncate", "zero point": Z},
    ),
    (
        "quantize by reciprocal",
        k.quantize(k.even, k.by_reciprocal),
        "QuantizeLinear uint8",
        {"formula": "x * (1 / scale)", "rounding": R},
    ),
    (
        "quantize in double",
        k.quantize(k.even, k.in_double),
        "QuantizeLinear uint8",
        {"formula": "x / scale in float64", "rounding": R},
    ),
    (
        "quantize inside",
        k.quantize(k.even, k.divided, True),
        "QuantizeLinear uint8",
        {"formula": Q, "rounding": R, "zero point": "inside"},
    ),
    ("NaN to the zero point", k.quantize(k.even, k.divided), "QuantizeLinear", {"NaN": "to the zero point"}),
    (
        "requantize",
        k.requantize(k.even, k.multiplied),
        "QLinearMatMul uint8",
        {"formula": M, "rounding": R, "zero point": Z},
    ),
    (
        "requantize int8",
        k.requantize(k.even, k.multiplied),
        "QLinearMatMul int8",
        {"formula": M, "rounding": R, "zero point": Z},
    ),
    (
        "requantize away",
        k.requantize(k.away, k.multiplied),
        "QLinearMatMul uint8",
        {"formula": M, "rounding": "half away from zero"},
    ),
    (
        "requantize up, inside",
        k.requantize(k.up, k.multiplied, True),
        "QLinearMatMul int8",
        {"formula": M, "rounding": "half up", "zero point": "inside"},
    ),
    (
        "divide last",
        k.requantize(k.even, k.divided_last),
        "QLinearMatMul uint8",
        {"formula": "(acc * (sa * sb)) / sy", "rounding": R},
    ),
    (
        "two steps",
        k.requantize(k.even, k.two_steps),
        "QLinearMatMul uint8",
        {"formula": "((acc * sa) * sb) / sy", "rounding": R},
    ),
    (
        "reciprocal",
        k.requantize(k.even, k.with_reciprocal),
        "QLinearMatMul uint8",
        {"formula": "acc * ((sa * sb) * (1 / sy))", "rounding": R},
    ),
    (
        "first scale over",
        k.requantize(k.even, k.first_over),
        "QLinearMatMul int8",
        {"formula": "acc * ((sa / sy) * sb)", "rounding": R},
    ),
    (
        "double multiplier",
        k.requantize(k.even, k.double),
        "QLinearMatMul uint8",
        {"formula": "acc * ((sa * sb) / sy) in float64"},
    ),
    (
        "half multiplier",
        k.requantize(k.even, k.half_scale),
        "QLinearMatMul uint8",
        {"formula": "acc * float16((sa * sb) / sy)"},
    ),
    ("Q31 once", k.requantize(k.even, k.q31_once), "QLinearMatMul uint8", {"formula": "Q31, one rounding half up"}),
    ("Q31 twice", k.requantize(k.even, k.q31_twice), "QLinearMatMul uint8", {"formula": "Q31, two roundings"}),
    (
        "product inside",
        k.requantize(k.even, k.multiplied, True, "QLinearMul"),
        "QLinearMul uint8",
        {"formula": M, "rounding": R, "zero point": "inside"},
    ),
    ("int32", k.integer_sum(k.wrapped), "MatMulInteger", {"accumulator": "int32, wraps"}),
    ("int32 saturating", k.integer_sum(k.saturated(32)), "MatMulInteger", {"accumulator": "int32, saturates"}),
    ("int16 saturating", k.integer_sum(k.saturated(16)), "MatMulInteger", {"accumulator": "int16, saturates"}),
    (
        "int16 pairs",
        k.integer_sum(k.paired),
        "MatMulInteger",
        {"accumulator": "pairs in int16 that saturate, then int32"},
    ),
    ("float32 sums", k.integer_sum(k.in_float), "MatMulInteger", {"accumulator": "float32"}),
    (
        "in turn",
        k.float_sum(k.in_turn),
        "MatMul",
        {"order of sums": "one after the other", "contraction": "multiply, then add"},
    ),
    (
        "in turn, fused",
        k.float_sum(k.in_turn_fused),
        "MatMul",
        {"order of sums": "one after the other", "contraction": "fused multiply-add"},
    ),
    ("backwards", k.float_sum(k.backwards), "MatMul", {"order of sums": "from the last to the first"}),
    ("eight lanes", k.float_sum(k.eight_lanes), "MatMul", {"order of sums": "8 lanes, reduced by halves"}),
    ("blocks of 32", k.float_sum(k.blocked), "MatMul", {"order of sums": "blocks of 32"}),
    ("pairwise", k.float_sum(k.pairwise), "MatMul", {"order of sums": "pairwise"}),
    ("float64 sums", k.float_sum(k.wide), "MatMul", {"order of sums": "in float64, rounded once"}),
    ("tf32", k.narrowed(11), "MatMul", {"input precision": "rounded to tf32"}),
    ("bfloat16", k.narrowed(8), "MatMul", {"input precision": "rounded to bfloat16"}),
    ("flushes all", k.flushing(True, True), "Mul", {"subnormal inputs": "flushed", "subnormal results": "flushed"}),
    ("flushes results", k.flushing(False, True), "Mul", {"subnormal inputs": "kept", "subnormal results": "flushed"}),
    ("flushes nothing", k.flushing(False, False), "Mul", {"subnormal inputs": "kept", "subnormal results": "kept"}),
    ("max second", k.pairs("Max", k.second), "Max", {"NaN": "the second operand", "zeros": "the second operand"}),
    ("max first", k.pairs("Max", k.first), "Max", {"NaN": "the first operand", "zeros": "the first operand"}),
    ("max drops NaN", k.pairs("Max", k.dropped), "Max", {"NaN": "the other operand", "zeros": "+0"}),
    (
        "relu drops NaN",
        k.each("Relu", lambda x: x if x > 0 else 0.0),
        "Relu",
        {"NaN": "to 0", "negative zero": "to +0"},
    ),
    (
        "relu keeps both",
        k.each("Relu", lambda x: 0.0 if x < 0 else x),
        "Relu",
        {"NaN": "propagates", "negative zero": "kept"},
    ),
)
# Kernels that are none of the known, and the traits on which nothing may be asserted.
STRANGERS: tuple[tuple[str, Any, str, str], ...] = (
    ("a rounding of its own", k.quantize(k.stochastic, k.divided), "QuantizeLinear uint8", "rounding"),
    ("a multiplier a little off", k.requantize(k.even, k.off_by_a_little), "QLinearMatMul uint8", "formula"),
    ("sums of 20 bits", k.integer_sum(k.byte_sum), "MatMulInteger", "accumulator"),
    ("an order of its own", k.float_sum(k.shuffled), "MatMul", "order of sums"),
    ("relu turns NaN into 1", k.each("Relu", lambda x: 1.0 if x != x else max(x, 0.0)), "Relu", "NaN"),
)


def asked(run: Any) -> fingerprint.Ask:
    def ask(probe: traits.Probe) -> Observation:
        try:
            return Observation(Status.PASS, tuple(run(probe.model, probe.inputs)))
        except NotImplementedError as error:
            return Observation(Status.UNSUPPORTED, message=str(error))

    return ask


SAID: dict[tuple[str, str], Any] = {}


def remembering(trait: traits.Trait) -> traits.Trait:
    """The same trait: what its alternatives say is computed once for all kernels."""

    def predict(probe: traits.Probe) -> Any:
        key = (trait.name + "".join(trait.axes), probe.id)
        if key not in SAID:
            SAID[key] = trait.predict(probe)
        return SAID[key]

    return replace(trait, predict=predict)


def answers(run: Any, name: str, axes: Any) -> dict[str, fingerprint.Answer]:
    (trait,) = (t for t in fingerprint.TRAITS if t.name == name and set(axes) & set(t.axes))
    return {a.axis: a for a in fingerprint.investigate(remembering(trait), asked(run))[0]}


@pytest.mark.parametrize(("name", "run", "trait", "expected"), PLANTED, ids=[row[0] for row in PLANTED])
def test_a_planted_kernel_is_named(name: str, run: Any, trait: str, expected: dict[str, str]) -> None:
    found = answers(run, trait, expected)

    assert {axis: found[axis].found for axis in expected} == {axis: (word,) for axis, word in expected.items()}
    assert all(a.status == "known" and a.elements for a in found.values() if a.axis in expected)


@pytest.mark.parametrize(("name", "run", "trait", "axis"), STRANGERS, ids=[row[0] for row in STRANGERS])
def test_a_kernel_that_is_none_of_the_known_is_not_misnamed(name: str, run: Any, trait: str, axis: str) -> None:
    found = answers(run, trait, [axis])[axis]

    assert (found.status, found.found) == ("none", ())
    assert "nearest is" in found.message
    assert found.witness.startswith(trait.split()[0])
    traits.probe_of(found.witness)


def test_every_pair_of_alternatives_that_differ_is_told_apart_by_some_case() -> None:
    same = []
    for trait in fingerprint.TRAITS:
        if trait in traits.FORMULA_TRAITS or trait.nested or "order of sums" in trait.axes:
            continue  # some of those compute the same function, and the planted kernels show that the others do not
        probes = [traits.probe_of(text) for text in trait.cases]
        says = [trait.predict(p) for p in probes]
        for i, one in enumerate(says[0]):
            for other in list(says[0])[i + 1 :]:
                told = [(~fingerprint.agrees(s[other], np.asarray(s[one]))).sum() for s in says if not callable(s[one])]
                if told and sum(told) < 2:
                    same.append((trait.name, one, other))

    assert same == []


def test_refused_cases_leave_the_answer_open_instead_of_guessed() -> None:
    """Only the case with exact ties at one zero point is taken: the place of the zero point cannot be known."""
    run = k.quantize(k.away, k.divided)
    trait = next(t for t in fingerprint.TRAITS if t.name == "QuantizeLinear uint8")
    taken = trait.cases[0]
    found = {
        a.axis: a
        for a in fingerprint.investigate(
            trait, lambda p: asked(run)(p) if p.id == taken else Observation(Status.UNSUPPORTED, message="no")
        )[0]
    }

    assert found["formula"].status in ("several", "open")
    assert "x / scale" in found["formula"].found
    assert "x * (1 / scale)" in found["formula"].found
    assert found["formula"].refused == len(trait.cases) - 1


def test_refusals_and_misbehaviour_are_told_apart() -> None:
    refused = answers(k.quantize(k.even, k.divided), "QLinearMatMul uint8", ["formula"])["formula"]
    trait = next(t for t in fingerprint.TRAITS if t.name == "Relu")
    crashed = fingerprint.investigate(trait, lambda p: Observation(Status.CRASH, message="SIGSEGV"))[0][0]
    short = fingerprint.investigate(trait, lambda p: Observation(Status.PASS, (np.zeros(3, np.float32),)))[0][0]

    assert (refused.status, refused.message) == ("unsupported", "only QuantizeLinear")
    assert (crashed.status, crashed.message) == ("failed", "crash: SIGSEGV")
    assert (short.status, short.message) == ("failed", "3 elements were returned, expected 42")


def test_the_card_shows_each_answer_and_says_what_it_rests_on() -> None:
    found = [
        *answers(k.quantize(k.away, k.divided), "QuantizeLinear uint8", ["formula"]).values(),
        *answers(k.float_sum(k.shuffled), "MatMul", ["order of sums"]).values(),
    ]
    document = {"backend": "mine", "info": {"version": "1.2"}, "answers": [vars(a) for a in found]}
    text, markdown = reports.text(document), reports.markdown(document)

    assert text.startswith("fingerprint of mine (1.2)\nQuantizeLinear uint8")
    assert "half away from zero  [" in text
    assert "none of the known: nearest is" in text
    assert text.count("none of the known") == 1
    assert "| QuantizeLinear uint8 | formula | `x / scale` |" in markdown


KERNEL = """
import importlib.util
import pathlib
place = pathlib.Path(__file__).parent / "fingerprint_kernels.py"
spec = importlib.util.spec_from_file_location("fingerprint_kernels", place)
k = importlib.util.module_from_spec(spec)
spec.loader.exec_module(k)
run = k.each("Relu", lambda x: x if x > 0 else 0.0)
"""


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["fingerprint", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_command_prints_a_card_of_a_kernel_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fingerprint_kernels.py").write_text((HERE / "fingerprint_kernels.py").read_text("utf-8"))
    (tmp_path / "mine.py").write_text(KERNEL)
    backend = f"{tmp_path / 'mine.py'}:run"

    code, out, _ = command(capsys, backend, "--op", "Relu", "--json")
    assert code == 0
    assert [(a["axis"], a["found"]) for a in json.loads(out)["answers"]] == [
        ("NaN", ["to 0"]),
        ("negative zero", ["to +0"]),
    ]
    code, out, _ = command(capsys, backend, "--op", "Clip")
    assert code == 5
    assert "unsupported" in out
    code, _, err = command(capsys, backend, "--op", "Relv")
    assert code == 2
    assert "no trait of that operator" in err
    code, _, err = command(capsys, f"{tmp_path / 'absent.py'}:run", "--op", "Relu")
    assert code == 3
    assert "no Python file" in err
