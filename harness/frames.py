"""Records as tables: the one place where a report's numbers are counted."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import pandas as pd

from opgauge.backends import informative
from opgauge.reference_engine.types import Record, Status
from opgauge.reports.legend import JUDGED, MISBEHAVED, STATUSES
from opgauge.reports.tables import Tables

FIELDS = (
    "case suite op label profile backend status message explained "
    "elements outside undecided saturated ties set_size sized us"
).split()
ORDINARY = ("plain",)  # every other data profile is drawn to be special: ties, hazards, saturation
UNTRUSTED_LIMIT = {False: 0.02, True: 0.10}  # per operator: ordinary profiles, special profiles
VACUOUS_LEAST = 2


def frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row a record, without detail and counts; `special` marks the data profiles that are not ordinary."""
    rows = pd.DataFrame(list(map(attrgetter(*FIELDS), records)), columns=FIELDS)
    rows["status"] = [r.status.value for r in records]
    rows["special"] = ~rows["profile"].isin(ORDINARY)
    rows["judged"] = rows["status"].isin([str(s) for s in JUDGED])
    return rows


def counts(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Cases per status (one column each, all statuses), `cases` their sum, grouped by the columns `by`."""
    if rows.empty:
        index = pd.MultiIndex.from_arrays([[]] * len(by), names=by) if len(by) > 1 else pd.Index([], name=by[0])
        table = pd.DataFrame(0, index=index, columns=[str(s) for s in STATUSES])
    else:
        table = rows.groupby([*by, "status"], sort=True).size().unstack(fill_value=0)
        table = table.reindex(columns=[str(s) for s in STATUSES], fill_value=0)
    table.columns.name = None
    table["cases"] = table.sum(axis=1)
    return table.astype(int)


def matrix(rows: pd.DataFrame) -> pd.DataFrame:
    """Cases per status for each (op, backend)."""
    return counts(rows, ["op", "backend"])


def by_dtype(rows: pd.DataFrame) -> pd.DataFrame:
    """Cases per status for each (op, label, backend)."""
    return counts(rows, ["op", "label", "backend"])


def _denominators(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """What stands behind the counts: elements of judged cases, explanations, ties, mean set size (weighted)."""
    table = counts(rows, [by])
    table["judged"] = table[[str(s) for s in JUDGED]].sum(axis=1)
    table["misbehaviour"] = table[[str(s) for s in MISBEHAVED]].sum(axis=1)
    passed = rows[rows["status"] == Status.PASS.value]
    kind = passed["explained"].where(passed["explained"].isin(["exact", "within", ""]), "formula")
    for name, word in (("exact", "exact"), ("within", "within"), ("formula", "formula"), ("unexplained", "")):
        table[name] = passed[kind == word].groupby(by).size().reindex(table.index, fill_value=0)
    judged = rows[rows["judged"]]
    for name in ("elements", "outside", "undecided", "saturated", "ties"):
        table[name] = judged.groupby(by)[name].sum().reindex(table.index, fill_value=0)
    table["seconds"] = rows.groupby(by)["us"].sum().reindex(table.index, fill_value=0) / 1e6
    for name, column in _sets(judged, [by]).items():
        table[name] = column.reindex(table.index)
    table["sized"] = table["sized"].fillna(0).astype(int)
    whole = table["elements"].where(table["elements"] > 0, np.nan)
    table["undecided_share"] = table["undecided"] / whole
    return table


def _sets(judged: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """How sharp the sets were: mean size and share of exact ties over `sized` unsaturated quantized elements."""
    weighed = judged.assign(sum=judged["sized"] * judged["set_size"])
    table = weighed.groupby(by)[["sized", "sum", "ties"]].sum()
    whole = table["sized"].where(table["sized"] > 0, np.nan)
    return pd.DataFrame(
        {"sized": table["sized"], "set_size": table["sum"] / whole, "ties_share": table["ties"] / whole}
    )


def by_profile(rows: pd.DataFrame) -> pd.DataFrame:
    """Sharpness of the sets for each (op, profile) that has quantized outputs, counted on one backend."""
    judged = rows[rows["judged"]]
    first = judged[judged["backend"] == judged["backend"].iloc[0]] if len(judged) else judged
    table = _sets(first, ["op", "profile"])
    return table[table["sized"] > 0]


def by_operator(rows: pd.DataFrame) -> pd.DataFrame:
    """Denominators for each operator, over all backends."""
    return _denominators(rows, "op")


def by_backend(rows: pd.DataFrame) -> pd.DataFrame:
    """Denominators for each backend, and `operators`, how many of them it gave a verdict on."""
    table = _denominators(rows, "backend")
    ran = rows[rows["judged"]].groupby("backend")["op"].nunique()
    table["operators"] = ran.reindex(table.index, fill_value=0).astype(int)
    return table


def formulas(rows: pd.DataFrame) -> pd.DataFrame:
    """Cases and operators for each (backend, explained): which formula explains a backend's bits."""
    passed = rows[(rows["status"] == Status.PASS.value) & (rows["explained"] != "")]
    table = passed.groupby(["backend", "explained"]).agg(cases=("case", "size"), operators=("op", "nunique"))
    return table.astype(int)


def quality(rows: pd.DataFrame) -> pd.DataFrame:
    """How much of each operator's evidence is worth nothing, for ordinary and special profiles separately.

    A case that proves nothing counts as one vacuous case, any other by its share of undecided elements; a case
    counts once, by the worst of its verdicts.
    Units: untrusted_share and vacuous_share of judged cases; undecided_share of their elements; NaN where nothing
        was judged. A share of a handful of cases says nothing: up to VACUOUS_LEAST are never over the limit.
    """
    judged = rows[rows["judged"]].assign(untrusted=lambda r: r["status"] == Status.UNTRUSTED.value)
    undecided = judged["undecided"] / judged["elements"].where(judged["elements"] > 0, np.nan)
    judged = judged.assign(vacuous=judged["untrusted"].astype(float).where(judged["untrusted"], undecided.fillna(0.0)))
    worst = judged.groupby(["op", "special", "case"])[["untrusted", "elements", "undecided", "vacuous"]].max()
    table = worst.groupby(["op", "special"]).sum()
    table.insert(0, "cases", worst.groupby(["op", "special"]).size())
    table["untrusted_share"] = table["untrusted"] / table["cases"]
    table["undecided_share"] = table["undecided"] / table["elements"].where(table["elements"] > 0, np.nan)
    table["limit"] = table.index.get_level_values("special").map(UNTRUSTED_LIMIT).astype(float)
    table["vacuous_share"] = table["vacuous"] / table["cases"]
    table["over"] = (table["vacuous_share"] > table["limit"]) & (table["vacuous"] > VACUOUS_LEAST)
    return table


def tables(records: Sequence[Record]) -> Tables:
    """Everything that the reports count, from one frame."""
    rows = frame(records)
    return Tables(
        matrix(rows),
        by_dtype(rows),
        by_operator(rows),
        by_backend(rows),
        quality(rows),
        formulas(rows),
        by_profile(rows),
        len(records),
        informative({r.backend for r in records}),
    )
