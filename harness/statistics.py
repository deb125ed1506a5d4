"""The second oracle: are the errors of many outputs as large, and as random, as honest rounding makes them.

A bound is what the worst kernel may do; random data stay far inside it, and so do accumulators of too few bits.
Over all random cases of a row the errors, each divided by what theory expects of it, show three numbers: their
size (`z_rms`), whether they lean to one side (`t_bias`), and whether they grow with the result (`t_slope`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine import real as r
from opgauge.reference_engine.primitives import primitive_of
from opgauge.reference_engine.types import Array, Case, CaseSpec, Exact, Graph, Record, Status
from opgauge.suites.profiles import tensor

# N11: least number of outputs that says anything, of roundings that are random; limits of the three numbers.
ENOUGH = 512
# Of a handful of groups the spread is itself a guess, and t has long tails.
ENOUGH_GROUPS = 128
ROUNDINGS = 8
Z_RMS = 0.75
T_LIMIT = 6.0
# One rounding is uniform between two neighbours: its root mean square in units of u |result|.
LAST = 0.43


@dataclass(frozen=True)
class Moments:
    """Sums over groups of outputs that share an error; they add up over cases.

    With z = (actual - value) / sigma and w = value / sigma: `b` sums z of a group, `s` z w, `q` w w.
    """

    n: int = 0
    groups: int = 0
    b: float = 0.0
    bb: float = 0.0
    s: float = 0.0
    q: float = 0.0
    ss: float = 0.0
    sq: float = 0.0
    qq: float = 0.0
    sized: float = 0.0
    zz: float = 0.0

    def __add__(self, other: Moments) -> Moments:
        return Moments(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


def measure(value: Array, sigma: Array, actual: Array, group: int = 1, sized: bool = True) -> Moments:
    """The moments of one tensor; elements without a finite value or a positive sigma count for nothing.

    Each `group` consecutive elements share errors (a row and its mean). `sized` whether the data are centred,
    so that the size of the errors has a limit and not only their lean.
    Source: N11.
    """
    value, sigma, actual = (np.asarray(x, np.float64).ravel() for x in (value, sigma, actual))
    with np.errstate(all="ignore"):
        z, w = (actual - value) / sigma, value / sigma
    good = np.isfinite(z) & np.isfinite(w) & (sigma > 0)
    n = int(good.sum())
    if not n:
        return Moments()
    z, w = (np.where(good, x, 0.0).reshape(-1, group) for x in (z, w))
    b, s, q = z.sum(1), (z * w).sum(1), (w * w).sum(1)
    sums = {"b": b.sum(), "bb": b @ b, "s": s.sum(), "q": q.sum(), "ss": s @ s, "sq": s @ q, "qq": q @ q}
    size = {"sized": n, "zz": (z * z).sum()} if sized else {}
    return Moments(n=n, groups=b.size, **{name: float(v) for name, v in (sums | size).items()})


def z_rms(m: Moments) -> float:
    return math.sqrt(m.zz / m.sized) if m.sized else 0.0


def t_bias(m: Moments) -> float:
    """mean(b) / (sd(b) / sqrt(groups))"""
    spread = m.bb - m.b**2 / m.groups if m.groups else 0.0
    return m.b / math.sqrt(spread) if spread > 0 else 0.0


def t_slope(m: Moments) -> float:
    """beta / se(beta) for z = beta w, beta the relative error of the results"""
    beta = m.s / m.q if m.q else 0.0
    rest = m.ss - 2.0 * beta * m.sq + beta**2 * m.qq
    return m.s / math.sqrt(rest) if rest > 0 else 0.0


def squared_terms(graph: Graph, feeds: Mapping[str, Array]) -> tuple[Array, int]:
    """(sum of the squares of the terms, number of roundings) of the one output of a graph of sums and products.

    The graph itself, run on the squares of its tensors, adds up the squares of its terms.
    """
    tensors = {**graph.constants, **{name: feeds[name] for name in graph.inputs}}
    values = {}
    for name, array in tensors.items():
        word = graph.specs[name].dtype
        values[name] = r.leaf(np.asarray(array, np.float64) ** 2 if dt.is_float(word) else array, word)
    for node in graph.nodes:
        operands = (values[name] for name in node.inputs)
        values[node.output] = primitive_of(node.primitive).exact(*operands, fn=node.fn, **node.attrs)
    made = values[graph.outputs[0]]
    return np.asarray(made.value, np.float64), made.k


def product_sigma(case: Case, graph: Graph, feeds: Mapping[str, Array], value: Array) -> tuple[Array, int, int]:
    """u sqrt(K) sqrt(sum of squared terms), K, and 1: no two outputs share an error. Source: N11."""
    squares, k = squared_terms(graph, feeds)
    return dt.UNIT["float32"] * np.sqrt(max(k, 1) * squares), k, 1


def layer_sigma(case: Case, graph: Graph, feeds: Mapping[str, Array], value: Array) -> tuple[Array, int, int]:
    """LayerNormalization, a row as one group: errors of mean, variance and the last operations, as if independent.

    Source: N11.
    """
    tensors = [tensor(arg, case.seed, i).astype(np.float64) for i, arg in enumerate(case.args)]
    attrs = dict(case.attrs)
    X, scale = tensors[0], tensors[1]
    axes = tuple(range(int(attrs.get("axis", -1)) % X.ndim, X.ndim))  # type: ignore[arg-type]
    away = X - X.mean(axes, keepdims=True)
    variance = (away**2).mean(axes, keepdims=True)
    spread = np.sqrt(variance + float(attrs.get("epsilon", 1e-5)))  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        tails = (away**4).mean(axes, keepdims=True) / variance**2
    middle = (X**2).mean(axes, keepdims=True) / spread**2
    length = math.prod(X.shape[a] for a in axes)
    squared = length * tails / 4  # squares have one sign: partial sums grow like k, not like its root
    squares = scale**2 * (middle + (squared + 3 * LAST**2) * (away / spread) ** 2) + LAST**2 * value**2
    return dt.UNIT["float32"] * np.sqrt(squares), length, length


Sigma = Callable[[Case, Graph, Mapping[str, Array], Array], tuple[Array, int, int]]
SIGMAS: dict[str, Sigma] = {
    "MatMul": product_sigma,
    "Gemm": product_sigma,
    "Conv": product_sigma,
    "ReduceSum": product_sigma,
    "ReduceMean": product_sigma,
    "LayerNormalization": layer_sigma,
}
CENTRED, POSITIVE = "normal", "positive"


def randomness(case: Case) -> str:
    """`normal` or `positive` where that is what all that is added up is drawn from, else nothing."""
    summed = case.args[:1] if case.op == "LayerNormalization" else case.args
    kinds = {(arg.profile, arg.params) for arg in summed if dt.is_float(arg.dtype)}
    return next((kind for kind in (CENTRED, POSITIVE) if kinds == {(kind, ())}), "")


def tally(case: Case, graph: Graph, feeds: Mapping[str, Array], exact: Exact, actual: Array) -> Moments:
    """What the first output of one case adds to its row; nothing where its data are not random or its sums short."""
    kind = randomness(case)
    # A 16-bit result is one rounding and little else; a float64 one is as exact as the reference.
    comparable = actual.shape == exact.value.shape and actual.dtype == np.float32 and exact.dtype == "float32"
    if case.op not in SIGMAS or case.domain or not kind or not comparable or exact.real is None:
        return Moments()
    sigma, k, group = SIGMAS[case.op](case, graph, feeds, exact.real)
    if k < ROUNDINGS:
        return Moments()
    if exact.free is not None:
        sigma = np.where(exact.free, 0.0, sigma)
    return measure(exact.real, sigma, actual, group, sized=kind == CENTRED)


PREFIX = "statistics/"


def record(row: CaseSpec, backend: str, budget: int, seed: int, m: Moments) -> Record | None:
    """The verdict on a row, or None where too few outputs were random. Source: N11."""
    if m.n < ENOUGH:
        return None
    leaning = m.groups >= ENOUGH_GROUPS
    found = {"z_rms": z_rms(m), "t_bias": t_bias(m) if leaning else 0.0, "t_slope": t_slope(m) if leaning else 0.0}
    broken = [
        f"{name} {value:.3g}, limit {limit:g}"
        for (name, value), limit in zip(found.items(), (Z_RMS, T_LIMIT, T_LIMIT), strict=True)
        if abs(value) > limit
    ]
    text = f"errors are not those of honest rounding: {'; '.join(broken)}" if broken else ""
    return Record(
        f"{PREFIX}{row.name}/b{budget}/s{seed}",
        "statistics",
        row.op,
        row.label,
        "random",
        backend,
        Status.FAIL if broken else Status.PASS,
        text,
        "" if broken else "within",
        m.n,
        detail={**found, "n": m.n, "groups": m.groups},
    )
