"""The ordered table of graph rules, each with a switch, and what each one did.

The reference never runs these: every rule is under test wherever an engine uses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import OpgaugeError
from .executor import counts
from .rules import fusion, linear, movement, pointwise
from .rules.rewrite import Match, prune, rewrite
from .types import Graph

ROUNDS = 12


class UnknownRuleError(OpgaugeError):
    """No rule has this name."""


@dataclass(frozen=True)
class Rule:
    """One row: `match` rewrites a node; `bits` says that no result changes by a bit.

    A `guarded` rule is kept only where bytes moved do not rise.
    """

    id: str
    match: Match
    source: str
    bits: bool = True
    guarded: bool = False


RULES: tuple[Rule, ...] = (
    Rule("constant-folding", pointwise.constant_folding, "what constants give needs no kernel"),
    Rule("constant-functions", pointwise.constant_functions, "the same for functions, correctly rounded", bits=False),
    Rule("copy-elimination", movement.copy_elimination, "ONNX Identity-13 is a name"),
    Rule("no-op-movement", movement.no_op_movement, "Transpose, Slice, Pad, Expand, Concat that move nothing"),
    Rule("im2col-pointwise", movement.im2col_pointwise, "a 1x1 convolution is a matrix product"),
    Rule("transpose-pairs", movement.transpose_pairs, "permutations compose"),
    Rule("gemm-transposes", movement.gemm_transposes, "(A B)' = B' A'; the order over k stays", guarded=True),
    Rule("transpose-through-elementwise", movement.transpose_through_elementwise, "f acts per element", guarded=True),
    Rule(
        "transpose-through-quantize", movement.transpose_through_quantize, "per tensor Q acts per element", guarded=True
    ),
    Rule("layout", movement.layout, "a transpose moves to where the tensor is narrowest", guarded=True),
    Rule("slice-and-concat", movement.slice_and_concat, "intervals compose", guarded=True),
    Rule("elementwise-chains", pointwise.elementwise_chains, "relu relu, neg neg, x * 1, lossless casts"),
    Rule("relu-into-quantize", pointwise.relu_into_quantize, "saturation at the zero point is Relu (N4)"),
    Rule("quantize-pairs", pointwise.quantize_pairs, "Q(DQ(q)) = q, tried on every value (N4)"),
    Rule("lookup-table", pointwise.lookup_table, "256 settled answers (N4, N5)"),
    Rule("affine-into-gemm", linear.affine_into_gemm, "Conv + BatchNormalization, Gemm + scale (N1)", bits=False),
    Rule("requantize-into-gemm", fusion.requantize_into_gemm, "Gemm, Conv + bias + activation + Requantize (N2, N4)"),
)
DEAD_CODE = "dead-code"
SOURCES = {DEAD_CODE: "what no output needs"} | {rule.id: rule.source for rule in RULES}


def version(rules: Sequence[Rule] = RULES) -> str:
    """Changes with every change of the list or its order."""
    return hashlib.sha256(" ".join(rule.id for rule in rules).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Applied:
    """What a rule did in one round: how counts of the graph changed."""

    rule: str
    round: int
    change: dict[str, int]


def select(disable: str = "", only: str = "", rules: Sequence[Rule] = RULES) -> tuple[Rule, ...]:
    """The rules that remain; names joined by `+`, `all` for every one. Raises: UnknownRuleError."""
    off = set(filter(None, disable.split("+")))
    on = set(filter(None, only.split("+")))
    known = {rule.id for rule in rules} | {"all", DEAD_CODE}
    unknown = sorted((off | on) - known)
    if unknown:
        raise UnknownRuleError(f"unknown rule {unknown[0]!r}: there are {', '.join(sorted(known))}")
    return tuple(r for r in rules if "all" not in off and r.id not in off and (not on or r.id in on))


def optimise(graph: Graph, rules: Sequence[Rule] = RULES, clean: bool = True) -> tuple[Graph, tuple[Applied, ...]]:
    """The graph after all rules, round by round until none applies, and what each did.

    `clean` removes dead code at first and after each change.
    """
    trace: list[Applied] = []
    if clean:
        graph = _clean(graph, 0, trace)
    for turn in range(1, ROUNDS + 1):
        before = graph
        for rule in rules:
            graph = _apply(graph, rule, turn, clean, trace)
        if graph is before:
            break
    return graph, tuple(trace)


def _clean(graph: Graph, turn: int, trace: list[Applied]) -> Graph:
    made = prune(graph)
    if made is not graph and len(made.nodes) != len(graph.nodes):
        trace.append(Applied(DEAD_CODE, turn, difference(counts(graph), counts(made))))
    return made


def _apply(graph: Graph, rule: Rule, turn: int, clean: bool, trace: list[Applied]) -> Graph:
    made = rewrite(graph, rule.match)
    if made is graph:
        return graph
    made = prune(made) if clean else made
    old, new = counts(graph), counts(made)
    if rule.guarded and new.get("moved_bytes", 0) > old.get("moved_bytes", 0):
        return graph
    trace.append(Applied(rule.id, turn, difference(old, new)))
    return made


def difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    keys = sorted(before.keys() | after.keys())
    return {k: after.get(k, 0) - before.get(k, 0) for k in keys if after.get(k, 0) != before.get(k, 0)}
