"""Matrices turned over in tiles: most Transposes are this, once axes that stay together are taken as one.

A tile is read as rows and written as columns, each of them whole, so that a matrix whose rows lie a power of two
apart does not throw its own lines out of the cache, and the time does not hang on which pages the process got.
"""

from __future__ import annotations

import math
from functools import lru_cache

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from opgauge.reference_engine.types import Array

from .compile import flat, jit
from .vectors import data_of, load, mask, store

Ints = tuple[int, ...]
EDGE = 16  # rows and columns of a tile
LEAST = 1 << 11  # items: below it the call costs more than numpy's strided copy


@intrinsic
def turn_tile(typingctx, x, at, stride, out, out_at, out_stride):
    """out[out_at + c*out_stride + r] = x[at + r*stride + c] for r, c below the edge of a tile

    Shapes: flat arrays of unsigned integers of one width.
    """
    index = types.intp

    def emit(context, builder, signature, args):
        source, target = (data_of(context, builder, signature, args, n) for n in (0, 3))
        element = context.get_data_type(signature.args[0].dtype)
        size = context.get_abi_sizeof(element)
        vector, half = ir.VectorType(element, EDGE), EDGE // 2
        rows = [load(builder, source, _far(builder, args[1], args[2], r), 0, vector, size) for r in range(EDGE)]
        halves = [mask([begin + i // 2 + EDGE * (i % 2) for i in range(EDGE)]) for begin in (0, half)]
        for _ in range(EDGE.bit_length() - 1):  # each time the first half of the rows is zipped with the second
            pairs = zip(rows[:half], rows[half:], strict=True)
            rows = [builder.shuffle_vector(*pair, picked) for pair in pairs for picked in halves]
        for c, column in enumerate(rows):
            store(builder, column, target, _far(builder, args[4], args[5], c), 0, size)
        return context.get_dummy_value()

    return types.void(x, index, index, out, index, index), emit


def _far(builder, at, stride, count):
    return builder.add(at, builder.mul(stride, stride.type(count)))


@jit
def turn(x, out, matrices, rows, columns):
    """out[i,c,r] = x[i,r,c]

    Shapes: flat; matrices, rows and columns are the extents of i, r and c.
    Dtypes: unsigned integers of one width.
    """
    whole_rows, whole_columns = rows - rows % EDGE, columns - columns % EDGE
    for i in range(matrices):
        at = i * rows * columns
        for c in range(0, whole_columns, EDGE):
            for r in range(0, whole_rows, EDGE):
                turn_tile(x, at + r * columns + c, columns, out, at + c * rows + r, rows)  # type: ignore[call-arg]
            for r in range(whole_rows, rows):
                for k in range(c, c + EDGE):
                    out[at + k * rows + r] = x[at + r * columns + k]
        for c in range(whole_columns, columns):
            for r in range(rows):
                out[at + c * rows + r] = x[at + r * columns + c]


@lru_cache(maxsize=256)
def matrices_of(shape: Ints, perm: Ints) -> Ints | None:
    """(matrices, rows, columns) where the permutation turns matrices over; None where it does anything else."""
    moved = [axis for axis in perm if shape[axis] != 1]
    ordered = sorted(moved)
    if moved == ordered:
        return None
    first = next(i for i, (a, b) in enumerate(zip(moved, ordered, strict=True)) if a != b)
    cut = ordered.index(moved[first])
    stay, rows, columns = ordered[:first], ordered[first:cut], ordered[cut:]
    if moved != stay + columns + rows:
        return None
    return math.prod(shape[k] for k in stay), math.prod(shape[k] for k in rows), math.prod(shape[k] for k in columns)


def turned(x: Array, out: Array, perm: Ints) -> bool:
    """Transpose raw items where that turns matrices of at least a tile over; False and nothing done otherwise."""
    found = matrices_of(x.shape, perm) if x.size >= LEAST else None
    if found is None or min(found[1:]) < EDGE:
        return False
    turn(flat(x), out.reshape(-1), *found)
    return True
