"""Quantized convolutions: the columns of an image are panels that are packed when their turn comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from opgauge.reference_engine.types import Array, TensorSpec

from . import panels as p
from .depthwise import Depth, depth_of, depthwise_first
from .integer import (
    SUMS,
    Arranged,
    Call,
    Finish,
    Ints,
    Left,
    Product,
    Right,
    finish_of,
    flipped,
    multiply,
    settle,
    settled,
    settled_left,
    words_of,
)

FEW = 4  # outputs of an input channel: of more a product makes more


def gemm_window(
    a: Array,
    x: Array,
    a_zero_point: Array,
    x_zero_point: Array,
    bias: Array,
    multiplier: Array,
    zero_point: Array,
    out: Array,
    to: str,
    low: int,
    high: int,
    zp_inside: object,
    *geometry: Ints,
) -> None:
    """gemm_requantize of a and the columns of an image, which are never written; pads hold x_zero_point

    Shapes: a [1,G,M/G,C/G*prod(kernel_shape)], x [N,C,*S]; out [N,G,M/G,prod(out_shape)]; the rest as gemm_requantize.
    """
    finish = finish_of(bias, multiplier, zero_point, low, high)
    if not a.size or not x.size:
        settle(np.broadcast_to(bias, out.shape), finish, out)
        return
    if is_depthwise(a.shape, x.shape[1], finish):
        by_channel(x, x_zero_point, depth_of(a, a_zero_point, unsigned_zero(x_zero_point), finish), out, geometry)
        return
    windowed(Left(a.shape, a.dtype == np.int8), words_of(a), x, a_zero_point, x_zero_point, finish, out, geometry)


def is_depthwise(a: Ints, channels: int, finish: Finish) -> bool:
    """One input channel to a group and few outputs, each with one bias and one factor."""
    return a[1] == channels and a[2] <= FEW and all(by_output(v, a) for v in (finish.bias, finish.factor))


def by_output(value: Array, a: Ints) -> bool:
    """Is it one for all or one for each output channel."""
    return value.size == 1 or value.shape == (1, *a[1:3], 1)


def unsigned_zero(zero_point: Array) -> int:
    """The zero point of the same values as uint8."""
    return int(zero_point.item()) + (128 if zero_point.dtype == np.int8 else 0)


def by_channel(x: Array, x_zero_point: Array, depth: Depth, out: Array, geometry: tuple[Ints, ...]) -> None:
    source, rows_ = p.image_rows(x, x_zero_point.item(), x.shape[1], *geometry)
    direct = source.size == x.size
    depthwise_first(source, rows_, 128 if x.dtype == np.int8 else 0, direct, depth, out)


def windowed(
    left: Left,
    a: Array,
    x: Array,
    a_zero_point: Array,
    x_zero_point: Array,
    finish: Finish,
    out: Array,
    geometry: tuple[Ints, ...],
    made: Arranged | None = None,
) -> None:
    image, rows_ = p.image_rows(x, x_zero_point.item(), left.shape[1], *geometry)
    if made is not None:
        multiply(a, image, out, made)
        return
    shape = (x.shape[0], left.shape[1], left.shape[-1], out.shape[-1])
    right = Right(shape, *flipped(x.dtype.name, left.signed), rows=rows_)
    Product(left, right, a, image)(a, image, a_zero_point, x_zero_point, finish, out)


def bind_window(constants: Mapping[int, Array], specs: Sequence[TensorSpec]) -> Call:
    """gemm_window where A never changes; where nothing but the image does, all is arranged beforehand."""
    if 0 not in constants or not specs[0].size or not specs[1].size:
        return gemm_window
    left, data = settled_left(constants[0])
    kept: list[Arranged | None] = []
    depths: list[Depth] = []
    whole = all(n in constants for n in range(2, 7))

    def call(a, x, a_zero_point, x_zero_point, bias, multiplier, zero_point, out, to, low, high, zp_inside, *geometry):
        if depths:
            by_channel(x, x_zero_point, depths[0], out, geometry)
            return
        finish = SUMS if kept and kept[0] is not None else finish_of(bias, multiplier, zero_point, low, high)
        if is_depthwise(a.shape, x.shape[1], finish):
            depth = depth_of(a, a_zero_point, unsigned_zero(x_zero_point), finish)
            if whole:
                depths.append(depth)
            by_channel(x, x_zero_point, depth, out, geometry)
            return
        if not kept:
            rows_ = p.image_rows(x, x_zero_point.item(), left.shape[1], *geometry)[1]
            shape = (x.shape[0], left.shape[1], left.shape[-1], out.shape[-1])
            right = Right(shape, *flipped(x.dtype.name, True), rows=rows_)
            kept.append(settled(Product(left, right), constants, range(2, 7), finish, out.shape[:-2]))
        windowed(left, data, x, a_zero_point, x_zero_point, finish, out, geometry, kept[0])

    return call
