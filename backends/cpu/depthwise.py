"""Depthwise convolutions of bytes: one input channel to an output channel, so that no element of A is used twice.

Four taps at a time are interleaved into words, and lanes lie along the image: along its rows where channels come
first, along its channels where they come last. Weights too far from their zero point for int8 take plain loops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opgauge.reference_engine.types import Array

from . import panels as p
from .compile import flat, host_codegen, jit
from .integer import Finish, signless
from .threads import spread
from .tile import DEPTH_ROWS, copy_lanes, depth_tile_by_lane, depth_tile_by_row, lanes

COST, SLOW = 0.005, 0.1  # ns of a product


@dataclass(frozen=True)
class Depth:
    """Weights without their zero point [G*M,T], in int8 and in quads where they fit, what the sums start from, factors.

    `quads` is [G*M,Q,4] for channels first, [P,Q,L,4] for channels last; starts and factors have L more.
    `limits`: zero_point, low, high.
    """

    weights: Array
    quads: Array | None
    starts: Array
    factors: Array
    limits: Array


def depth_of(a: Array, a_zero_point: Array, x_zero: int, finish: Finish, last: bool = False) -> Depth:
    """Weights a [1,G,M,T]; the zero points of a and of the image are in what it gives.

    sum (a-za)(x-zx) = sum (a-za) x - zx sum (a-za), all modulo 2^32.
    """
    _, groups, M, taps = a.shape
    weights = (a.astype(np.int32) - a_zero_point.astype(np.int32)).reshape(groups * M, taps)
    L = lanes(host_codegen())
    starts, factors = np.zeros(groups * M + L, np.int32), np.zeros(groups * M + L, np.float32)
    start, factor = (np.broadcast_to(v, (1, groups, M, 1)).reshape(-1) for v in (finish.bias, finish.factor))
    sums = start.astype(np.int64) - x_zero * weights.sum(-1, dtype=np.int64)
    starts[:-L], factors[:-L] = sums.astype(np.int32), factor
    fits = weights.min() >= -128 and weights.max() <= 127 and not (last and M > 1)
    quads = (by_lane(weights, L) if last else whole_quads(weights)) if fits else None
    return Depth(np.ascontiguousarray(weights), quads, starts, factors, np.array(finish.limits, np.int64))


def whole_quads(weights: Array) -> Array:
    return flat(np.pad(weights, ((0, 0), (0, -weights.shape[1] % 4))).astype(np.int8)).view(np.uint8)


def by_lane(weights: Array, L: int) -> Array:
    C, T = weights.shape
    whole = np.pad(weights, ((0, -C % L), (0, -T % 4))).astype(np.int8)
    return flat(np.ascontiguousarray(whole.reshape(-1, L, (T + 3) // 4, 4).swapaxes(1, 2))).view(np.uint8)


def quad_taps(taps: Array) -> Array:
    """Taps in whole quads; those too many repeat the last one and have no weight."""
    return np.concatenate([taps, np.repeat(taps[-1:], -len(taps) % 4)])


# ---- channels first


@jit
def planes(x, matrix, taps, pitch, run, rows, flip, quads, starts, factors, limits, M, L, out, part, parts):
    """out[n,c,r,i] = requantized starts[c] + sum_t w[c,t] * (x[(n,c // M) * matrix + r * pitch + i + taps[t]] ^ flip)

    A plane is computed in one go with what lies between its rows, which is dropped.
    Shapes: flat; quads [C,Q,4]; out [N,C,rows,run]; L more bytes behind x.
    """
    C, size, quad = len(starts) - L, rows * run, len(taps) // 4
    zero, low, high = np.int32(limits[0]), np.int32(limits[1]), np.int32(limits[2])
    blocks = ((rows - 1) * pitch + run + L - 1) // L
    table, scratch = np.arange(blocks) * L, np.empty((blocks + 1) * L, np.uint8)
    own, factor, none = np.empty(DEPTH_ROWS, np.int32), np.empty(L + DEPTH_ROWS, np.float32), np.zeros(L, np.int32)
    total = out.size // size
    for j in range(total * part // parts, total * (part + 1) // parts):
        c = j % C
        own[:] = starts[c]
        factor[:] = factors[c]
        for block in range(0, blocks, DEPTH_ROWS):
            depth_tile_by_row(
                blocks - block == 1, x, table, block, blocks - 1 - block, quads, c * quad * 4, quad, own, 0, none, 0,
                factor, 0, 0, True, zero, low, high, scratch, block * L, L, taps, j // M * matrix, flip,
            )  # fmt: skip
        for r in range(rows):
            for i in range(0, run, L):
                at, seen = r * run + i, r * pitch + i
                if at + L <= size:  # what goes too far is overwritten by what follows
                    copy_lanes(scratch, seen, out, j * size + at)  # type: ignore[call-arg]
                else:
                    for l in range(min(L, run - i)):
                        out[np.uint64(j * size + at + l)] = scratch[np.uint64(seen + l)]


@jit
def channel_by_channel(x, matrix, taps, start, run, flip, weights, starts, factors, limits, M, out, part, parts):
    """The same in plain loops, for any weights: rows begin at start[r]."""
    C, T = weights.shape
    size = len(start) * run
    acc = np.empty(run, np.int32)
    total = out.size // size
    for j in range(total * part // parts, total * (part + 1) // parts):
        c = j % C
        origin = j // M * matrix
        for r in range(len(start)):
            acc[:] = starts[c]
            for t in range(T):
                at, w = origin + start[r] + taps[t], weights[c, t]
                seen = x[at : at + run]
                for i in range(run):
                    acc[i] += w * np.int32(seen[i] ^ flip)
            finish_lanes(acc, run, factors, False, c, limits, out, j * size + r * run)


def depthwise_first(source: Array, rows: p.Rows, flip: int, direct: bool, depth: Depth, out: Array) -> None:
    """Images [N,C,*] where windows of Rows lie: out [N,C,M,prod(out_shape)]; `direct`: nothing lies behind them."""
    T = depth.weights.shape[1]
    taps, start, flipped = rows.base[:T], rows.start, np.uint8(flip)
    pitch = int(start[1]) if len(start) > 1 else 0
    work, target, M = out.size * T, signless(out), out.shape[2]
    if depth.quads is None or (start != np.arange(len(start)) * pitch).any():
        spread(work * SLOW, channel_by_channel, source, rows.matrix, taps, start, rows.run, flipped, depth.weights,
               depth.starts, depth.factors, depth.limits, M, target)  # fmt: skip
        return
    L = lanes(host_codegen())
    x = np.concatenate([source, np.empty(L, np.uint8)]) if direct else source
    spread(work * COST, planes, x, rows.matrix, quad_taps(taps), pitch, rows.run, len(start), flipped, depth.quads,
           depth.starts, depth.factors, depth.limits, M, L, target)  # fmt: skip


# ---- channels last


@jit
def pixels(x, image, base, taps, quads, starts, factors, limits, L, out, part, parts):
    """out[n,l,c] = requantized starts[c] + sum_t w[t,c] * x[n * image + base[l] + taps[t] + c]

    Shapes: flat; quads [P,Q,L,4]; out [N,L,C]; L more bytes behind x.
    """
    C, count, quad = len(starts) - L, len(base), len(taps) // 4
    zero, low, high = np.int32(limits[0]), np.int32(limits[1]), np.int32(limits[2])
    spare, none = np.empty(DEPTH_ROWS * L, np.uint8), np.zeros(DEPTH_ROWS, np.int32)
    tiles, images = (count + DEPTH_ROWS - 1) // DEPTH_ROWS, out.size // (C * count)
    for j in range(images * tiles * part // parts, images * tiles * (part + 1) // parts):
        i, l = j // tiles, j % tiles * DEPTH_ROWS
        for c in range(0, C, L):
            whole = c + L <= C
            to, stride = ((i * count + l) * C + c, C) if whole else (0, L)
            depth_tile_by_lane(
                count - l == 1, x, base, l, count - 1 - l, quads, c * quad * 4, quad, none, 0, starts, c, factors, 0,
                c, False, zero, low, high, out if whole else spare, to, stride, taps, i * image + c, np.uint8(0),
            )  # fmt: skip
            if not whole:
                p.copy_rows(spare, L, min(DEPTH_ROWS, count - l), C - c, out, (i * count + l) * C + c, C)


@jit
def pixel_by_pixel(x, image, base, taps, weights, starts, factors, limits, M, out, part, parts):
    """The same in plain loops, for any weights [T,C] and M outputs of a channel: x at c // M."""
    T, C = weights.shape
    acc = np.empty(C, np.int32)
    total = out.size // C
    for j in range(total * part // parts, total * (part + 1) // parts):
        at = j // len(base) * image + base[j % len(base)]
        acc[:] = starts[:C]
        for t in range(T):
            own = weights[t]
            for c in range(C):
                acc[c] += own[c] * np.int32(x[at + taps[t] + c // M])
        finish_lanes(acc, C, factors, True, 0, limits, out, j * C)


def depthwise_last(image: Array, size: int, base: Array, taps: Array, depth: Depth, M: int, out: Array) -> None:
    """Images [N,*,C] in their padding, `size` bytes each, flat, L more behind them: out [N,prod(out_shape),C*M]."""
    work, target = out.size * len(taps), signless(out)
    if depth.quads is None:
        spread(work * SLOW, pixel_by_pixel, image, size, base, taps, np.ascontiguousarray(depth.weights.T),
               depth.starts, depth.factors, depth.limits, M, target)  # fmt: skip
        return
    spread(work * COST, pixels, image, size, base, quad_taps(taps), depth.quads, depth.starts, depth.factors,
           depth.limits, lanes(host_codegen()), target)  # fmt: skip


@jit
def finish_lanes(acc, size, factors, by_lane, at, limits, out, to):
    """out[to + i] = clip(rint(float32(acc[i]) * factors[at + i]) + zero, low, high), one factor unless `by_lane`"""
    zero = np.int32(limits[0])
    bottom, top = np.float32(limits[1] - zero), np.float32(limits[2] - zero)
    for i in range(size):
        y = np.rint(np.float32(acc[i]) * factors[at + i if by_lane else at])
        y = y if y > bottom else bottom
        y = y if y < top else top
        out[to + i] = np.uint8(np.int32(y) + zero)
