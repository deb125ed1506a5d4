"""Planted faults of kernels that take another path for large tensors: all are right below a thousand elements."""

from __future__ import annotations

import numpy as np

from .planted import Call, Outputs, Planted, Skip

ANY = ("Reshape", "Concat", "Slice", "Gather", "Pad", "Expand")


def above(y: np.ndarray, least: int) -> np.ndarray:
    """A copy to spoil. Raises: Skip where it is not that large."""
    if y.size < least:
        raise Skip
    return y.copy()


def odd_one_left(call: Call, outputs: Outputs) -> Outputs:
    """Two threads share the elements from 8,192 on, half of the size each."""
    y = above(outputs[0], 8192)
    if y.size % 2 == 0:
        raise Skip
    y.reshape(-1)[-1] = 0
    return [y, *outputs[1:]]


def swapped_tiles(call: Call, outputs: Outputs) -> Outputs:
    """From 2,048 elements on by tiles of 16 x 16, of which two are exchanged."""
    y = above(outputs[0], 2048)
    if y.ndim < 2 or min(y.shape[-2:]) < 32:
        raise Skip
    first, second = y[..., :16, :16].copy(), y[..., 16:32, 16:32].copy()
    y[..., :16, :16], y[..., 16:32, 16:32] = second, first
    return [y]


def offsets_of_15_bits(call: Call, outputs: Outputs) -> Outputs:
    y = above(outputs[0], (1 << 15) + 1)
    flat = y.reshape(-1)
    flat[1 << 15 :] = outputs[0].reshape(-1)[: flat.size - (1 << 15)]
    return [y]


def second_block_of_rows(call: Call, outputs: Outputs) -> Outputs:
    """A block of 128 rows is done; what is left after blocks of four of the others is not."""
    y = outputs[0]
    if y.ndim < 2 or y.shape[-2] <= 128 or y.shape[-2] % 4 == 0:
        raise Skip
    y = y.copy()
    y[..., -(y.shape[-2] % 4) :, :] = 0
    return [y]


def second_block_of_columns(call: Call, outputs: Outputs) -> Outputs:
    """Columns from 256 on are those of the first block."""
    y = outputs[0]
    if y.ndim < 2 or y.shape[-1] <= 256:
        raise Skip
    y = y.copy()
    y[..., 256:] = y[..., np.arange(y.shape[-1] - 256) % 256]
    return [y]


def rows_counted_in_a_byte(call: Call, outputs: Outputs) -> Outputs:
    """Row 256 has the sum of row 0."""
    axis = call.attrs.get("axis", -1)
    y = np.moveaxis(outputs[0], axis, -1)
    rows = y.reshape(-1, y.shape[-1])
    if len(rows) <= 256:
        raise Skip
    x = np.moveaxis(call.need(0), axis, -1).reshape(rows.shape).astype(np.float64)
    with np.errstate(all="ignore"):
        sums = np.exp(x - x.max(-1, keepdims=True)).sum(-1)
        made = (rows * (sums / sums[np.arange(len(sums)) % 256])[:, None]).astype(y.dtype)
    return [np.moveaxis(made.reshape(y.shape), -1, axis)]


def images_counted_in_a_byte(call: Call, outputs: Outputs) -> Outputs:
    """Image 256 is image 0."""
    y = outputs[0]
    if len(y) <= 256:
        raise Skip
    return [y[np.arange(len(y)) % 256], *outputs[1:]]


FAULTS = (
    Planted(
        "Z01", ("Add", "Sigmoid", "Where", "Cast"), "memory", "odd sizes shared by two threads", after=odd_one_left
    ),
    Planted("Z02", ("Transpose",), "indexing", "two tiles exchanged from 2,048 elements on", after=swapped_tiles),
    Planted("Z03", ANY, "indexing", "offsets kept in 15 bits", after=offsets_of_15_bits),
    Planted("Z04", ("MatMul", "Gemm"), "memory", "the last rows of a second block left", after=second_block_of_rows),
    Planted("Z05", ("MatMul",), "indexing", "columns from 256 on repeat", after=second_block_of_columns),
    Planted("Z06", ("Softmax",), "indexing", "sums of rows counted in a byte", after=rows_counted_in_a_byte),
    Planted("Z07", ("MaxPool", "QLinearConv"), "indexing", "images counted in a byte", after=images_counted_in_a_byte),
)
