"""Einsum: two operands through Gemm, anything else as products over the whole index space."""

from __future__ import annotations

import math

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, broadcast_shape, cast, elementwise, expand, reshape, transpose
from ...errors import ModelError, ShapeError, UnknownOperatorError
from ..checks import one_of, same_dtype, text, widen
from .matmul import WIDE_INTS, product

DOTS = "."  # `.0`, `.1`... name the axes of an ellipsis, counted from the right


def _labels(emit: Emitter, term: str, dots: int) -> tuple[str, ...]:
    """The axes of one term, the ellipsis spelled out. Raises: ModelError for what is not a letter."""
    before, found, after = term.partition("...")
    for part in (before, after):
        if not part.isalpha() and part:
            raise ModelError(f"{emit.source}: {term!r} in the equation is not letters and at most one '...'")
    middle = tuple(f"{DOTS}{i}" for i in reversed(range(dots))) if found else ()
    return (*before, *middle, *after)


def parsed(emit: Emitter, equation: str, ranks: tuple[int, ...]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Axes of each operand and of the output.

    Without an arrow the output has the ellipsis, then the letters that occur once, in alphabetical order.
    Raises: ModelError where the equation does not fit; UnknownOperatorError for a letter twice in one term.
    Source: ONNX Einsum-12.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ModelError(f"{emit.source}: equation {equation!r} has {len(terms)} terms for {len(ranks)} operands")
    operands = []
    for term, rank in zip(terms, ranks, strict=True):
        dots = rank - len(term.replace("...", "")) if "..." in term else 0
        labels = _labels(emit, term, max(dots, 0))
        if len(labels) != rank:
            raise ShapeError(f"{emit.source}: term {term!r} does not fit an operand of rank {rank}")
        if len(set(labels)) < rank:
            raise UnknownOperatorError(f"{emit.source}: term {term!r} repeats a letter; diagonals are not lowered")
        operands.append(labels)
    every = [label for labels in operands for label in labels]
    dots = max((sum(label[0] == DOTS for label in labels) for labels in operands), default=0)
    if arrow:
        output = _labels(emit, right, dots)
    else:
        single = sorted(label for label in set(every) if every.count(label) == 1 and label[0] != DOTS)
        output = (*_labels(emit, "...", dots), *single)
    if len(set(output)) < len(output) or not set(output) <= set(every):
        raise ModelError(f"{emit.source}: output {right!r} repeats a letter or names one that no operand has")
    return operands, output


def _sizes(emit: Emitter, operands: list[tuple[str, ...]], values: tuple[Value, ...]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for labels, value in zip(operands, values, strict=True):
        for label, size in zip(labels, value.shape, strict=True):
            seen = sizes.setdefault(label, size)
            if label[0] == DOTS:
                sizes[label] = broadcast_shape(emit, (seen,), (size,))[0]
            elif seen != size:
                raise ShapeError(f"{emit.source}: index {label!r} is {seen} and {size}, in {text(value.shape)}")
    return sizes


def _arranged(emit: Emitter, x: Value, labels: tuple[str, ...], order: tuple[str, ...]) -> Value:
    """x with its axes in `order`, 1 where it lacks one."""
    own = [label for label in order if label in labels]
    moved = transpose(emit, x, tuple(labels.index(label) for label in own))
    return reshape(emit, moved, tuple(x.shape[labels.index(label)] if label in labels else 1 for label in order))


def lower_einsum(emit: Emitter, *Inputs: Value, equation: str) -> Value:
    """Y[output] = sum over the other indices of the product of all operands

    Shapes: by the equation; axes of an ellipsis broadcast. Letters once per term.
    Dtypes: floats, int32 int64 uint32 uint64.
    Source: ONNX Einsum-12; the sum over all indices at once bounds every order of pairwise products (N1).
    """
    if not Inputs:
        raise ModelError(f"{emit.source}: no operands")
    same_dtype(emit, **{f"input {i}": x for i, x in enumerate(Inputs)})
    one_of(emit, "input 0", Inputs[0], (*dt.FLOATS, *WIDE_INTS))
    operands, output = parsed(emit, equation, tuple(x.rank for x in Inputs))
    sizes = _sizes(emit, operands, Inputs)
    values = [widen(emit, x) for x in Inputs]
    summed = tuple(label for label in sizes if label not in output)
    shape = tuple(sizes[label] for label in output)
    if len(values) == 2 and summed and all(label in a for label in summed for a in operands):
        y = _contracted(emit, values, operands, output, summed, sizes)
    else:
        order = (*output, *summed)
        y = _arranged(emit, values[0], operands[0], order)
        for value, labels in zip(values[1:], operands[1:], strict=True):
            y = elementwise(emit, "mul", y, _arranged(emit, value, labels, order))
        y = expand(emit, y, tuple(sizes[label] for label in order))
        if summed:
            y = emit("Reduce", reshape(emit, y, (*shape, math.prod(sizes[label] for label in summed))), fn="sum")
    return cast(emit, reshape(emit, y, shape), Inputs[0].dtype)


def _contracted(
    emit: Emitter,
    values: list[Value],
    operands: list[tuple[str, ...]],
    output: tuple[str, ...],
    summed: tuple[str, ...],
    sizes: dict[str, int],
) -> Value:
    """batch x rows x columns through one product: batch in both operands, rows only in the first."""
    a, b = operands
    batch = tuple(label for label in output if (label in a and label in b) or label[0] == DOTS)
    rows = tuple(label for label in output if label not in batch and label in a)
    columns = tuple(label for label in output if label not in batch and label in b)

    def matrix(value: Value, labels: tuple[str, ...], last: tuple[tuple[str, ...], tuple[str, ...]]) -> Value:
        placed = _arranged(emit, value, labels, (*batch, *last[0], *last[1]))
        kept = placed.shape[: len(batch)]
        return reshape(emit, placed, (*kept, *(math.prod(sizes[label] for label in part) for part in last)))

    y = product(emit, matrix(values[0], a, (rows, summed)), matrix(values[1], b, (summed, columns)))
    made = (*batch, *rows, *columns)
    full = reshape(emit, y, tuple(sizes[label] for label in made))
    return transpose(emit, full, tuple(made.index(label) for label in output))


EINSUM: dict[tuple[str, str], OperatorDef] = {("", "Einsum"): OperatorDef(lower_einsum, since=12)}
