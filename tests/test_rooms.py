"""What is declared in one room is served in the next: operators have rows, rows have kernels."""

from __future__ import annotations

from opgauge import model, suites
from opgauge.backends.cpu import kernels
from opgauge.reference_engine.operators import OPERATORS
from opgauge.reference_engine.primitives import PRIMITIVES
from opgauge.suites import regions

ALIASES = {("DataMove", "reshape")}  # no bytes move: the executor makes a view


def test_every_operator_has_a_suite_row_and_every_row_an_operator():
    rows = {(row.domain, row.op) for row in suites.cases()}
    assert {row for row in rows if row[0] != regions.DOMAIN} == set(OPERATORS)
    assert {op for domain, op in rows if domain == regions.DOMAIN} == set(model.TEMPLATES)


def test_row_names_are_unique():
    names = [row.name for row in suites.cases()]
    assert len(names) == len(set(names))


def test_every_primitive_has_a_cpu_kernel_and_every_kernel_a_primitive():
    declared = {(name, fn) for name, row in PRIMITIVES.items() for fn in row.fns} - ALIASES
    assert {(k.primitive, k.fn) for k in kernels()} == declared


def test_no_two_kernels_claim_the_same_place():
    places = [(k.primitive, k.fn, k.dtypes) for k in kernels()]
    assert len(places) == len(set(places))
