"""Quantized convolutions of images with channels last: pixels are A, read where they lie tap by tap; weights are B.

Nothing is gathered: a row of A is the image itself at a pixel and each tap of the window (implicit im2row).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from opgauge.reference_engine.memory import empty
from opgauge.reference_engine.types import Array, TensorSpec

from . import panels as p
from .compile import flat, jit, plain
from .depthwise import Depth, depth_of, depthwise_last
from .integer import NEAR, Call, Finish, Ints, cost, finish_of, flipped, shape_of_tile, signless, uniform
from .threads import spread
from .tile import window_tile
from .windows import FEW, by_output, gemm_window, unsigned_zero


@jit
def window_product(x, base, taps, b, out, plan, starts, factors, part, parts):
    """out[n,l,g*M + m] = requantized starts[g,m] + sum_tk x[n * image + base[l] + taps[t] + g * C + k] * b[g,t,k,m]

    Shapes: flat; x of bytes, panels b [G,P,T,W,L,4] with W = ceil(C / 4), starts and factors [G,P*L]; out [N,P,G*M].
    `b_zero` takes what the C bytes at the taps sum to.
    """
    count, image, groups, C, M, L, step = plan[0], plan[1], plan[2], plan[3], plan[4], plan[5], plan[6]
    group, b_zero, zero, low, high = plan[7], plan[8], np.int32(plan[9]), np.int32(plan[10]), np.int32(plan[11])
    words, pixels, T, P = (C + 3) // 4, len(base), len(taps), (M + L - 1) // L
    size, pitch, tiles = T * words * L * 4, groups * M, (pixels + step - 1) // step
    spare, at = np.empty(step * L, np.uint8), np.empty(pixels, np.int64)
    row_starts = np.zeros(step, np.int32)
    begin, end = count * tiles * part // parts, count * tiles * (part + 1) // parts
    for i in range(count):
        first, last = max(begin - i * tiles, 0) * step, min((min(end - i * tiles, tiles)) * step, pixels)
        for g in range(groups):
            for l in range(first, last):
                at[l] = i * image + g * C + base[l]
            for leader in range(0, P, group):
                for l in range(first, last, step):
                    if b_zero:
                        for r in range(min(step, last - l)):
                            row_starts[r] = np.int32(-b_zero * window_sum(x, at[l + r], taps, C))
                    for q in range(leader, min(leader + group, P)):
                        n, column = q * L, (g * P + q) * L
                        whole = n + L <= M
                        to, stride = ((i * pixels + l) * pitch + g * M + n, pitch) if whole else (0, L)
                        window_tile(  # type: ignore[call-arg]
                            last - l == 1, x, at, l, last - 1 - l, b, (g * P + q) * size, words, row_starts, 0,
                            starts, column, factors, 0, column, False, zero, low, high, out if whole else spare,
                            to, stride, taps, T,
                        )  # fmt: skip
                        if not whole:
                            to = (i * pixels + l) * pitch + g * M + n
                            p.copy_rows(spare, L, min(step, last - l), M - n, out, to, pitch)


@jit
def window_sum(x, at, taps, C):
    total = np.int32(0)
    for t in range(len(taps)):
        seen = x[at + taps[t] : at + taps[t] + C]
        for c in range(C):
            total = np.int32(total + np.int32(seen[c]))
    return total


@jit
def frame(x, line, pitch, before, width, length, flip, pad_value, out):
    """out[r] = pad_value, `width` bytes of line line[r] of x ^ flip from `before` on, pad_value; -1 is all padding

    Shapes: x flat [*,pitch]; out flat [R,length].
    """
    for r in range(len(line)):
        to = r * length
        if line[r] < 0:
            out[to : to + length] = pad_value
            continue
        out[to : to + before] = pad_value
        source, made = x[line[r] * pitch : line[r] * pitch + width], out[to + before : to + before + width]
        for j in range(width):
            made[j] = source[j] ^ flip
        out[to + before + width : to + length] = pad_value


@dataclass(frozen=True)
class Framed:
    """Where windows lie in an image [*S,C] with its padding around: `line` are its lines, `base` pixels, taps.

    `direct`: it is the image as it lies.
    """

    line: Array
    before: int
    width: int
    length: int
    base: Array
    taps: Array
    direct: bool

    @property
    def size(self) -> int:
        return len(self.line) * self.length


@lru_cache(maxsize=64)
def framed(spatial: Ints, C: int, kernel: Ints, strides: Ints, dilations: Ints, pads: Ints, out: Ints) -> Framed | None:
    """None where padding is negative."""
    rank = len(spatial)
    if min(pads) < 0:
        return None
    needed = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(out, strides, kernel, dilations, strict=True)]
    line = np.zeros(1, np.int64)
    for axis in range(rank - 1):
        at = np.arange(needed[axis]) - pads[axis]
        inside = (line[:, None] >= 0) & (at >= 0) & (at < spatial[axis])
        line = np.where(inside, line[:, None] * spatial[axis] + at, -1).ravel()
    before = min(pads[rank - 1], needed[-1])
    width = min(spatial[-1], needed[-1] - before)
    step = [math.prod(needed[axis + 1 :]) * C for axis in range(rank)]
    base, taps = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for axis in range(rank):
        base = (base[:, None] + np.arange(out[axis]) * strides[axis] * step[axis]).ravel()
        taps = (taps[:, None] + np.arange(kernel[axis]) * dilations[axis] * step[axis]).ravel()
    direct = tuple(needed) == spatial and not any(pads[:rank])  # what begins in padding is shifted
    return Framed(line, before * C, width * C, needed[-1] * C, base, taps, direct)


def frame_image(x: Array, made: Framed, flip: int, pad_value: int, words: bool) -> Array:
    """The images [N,*S,C] in their padding, flat, in uint8; x itself where that is the same and is read in `words`."""
    source = signless(x)
    if made.direct and not flip and words:
        return source
    count, lines = x.shape[0], math.prod(x.shape[1:-2])
    out = empty(count * made.size + p.ALIGNMENT, np.uint8)  # lanes reach past the last channel
    line = made.line
    if count > 1:
        several = np.arange(count)[:, None] * lines
        line = np.where(line < 0, -1, line + several).ravel()
    frame(
        source, line, x.shape[-2] * x.shape[-1], made.before, made.width, made.length, np.uint8(flip),
        np.uint8((pad_value & 255) ^ flip), out,
    )  # fmt: skip
    return out


def gemm_rows(
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
    """gemm_window with channels last: x [N,*S,C] -> out [N,prod(out_shape),M]; layouts are changed on the way"""
    first = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    groups, M = a.shape[1:3]
    made = empty((x.shape[0], groups, M, out.shape[1]), out.dtype)
    gemm_window(
        a, first, a_zero_point, x_zero_point, bias, multiplier, zero_point, made, to, low, high, zp_inside, *geometry
    )
    out[...] = made.reshape(x.shape[0], groups * M, out.shape[1]).swapaxes(1, 2)


def bind_rows(constants: Mapping[int, Array], specs: Sequence[TensorSpec]) -> Call:
    """gemm_rows where nothing but the image changes and the weights have one zero point: nothing is moved."""
    if any(n not in constants for n in (0, 2, 3, 4, 5, 6)) or not specs[0].size or not specs[1].size:
        return gemm_rows
    a, za, zx, bias, factor, zero_point = (constants[n] for n in (0, 2, 3, 4, 5, 6))
    if uniform(za) is None or not (by_output(bias, a.shape) and by_output(factor, a.shape)):
        return gemm_rows
    depth = a.shape[1] == specs[1].shape[-1] and a.shape[2] <= FEW
    kept: list[Weights | Depth] = []

    def call(a, x, a_zero_point, x_zero_point, _, __, ___, out, to, low, high, zp_inside, *geometry):
        made = framed(x.shape[1:-1], x.shape[-1], *geometry)
        if made is None or not out.size:
            gemm_rows(a, x, za, zx, bias, factor, zero_point, out, to, low, high, zp_inside, *geometry)
            return
        flip = 128 if x.dtype.char == "b" else 0
        image = frame_image(x, made, flip, zx.item(), not depth and x.shape[-1] // a.shape[1] % 4 == 0)
        if not kept:
            finish = finish_of(bias, factor, zero_point, low, high)
            shift = unsigned_zero(zx)
            kept.append(
                depth_of(a, za, shift, finish, True) if depth else weights_of(a, za, shift, x.shape[-1], finish)
            )
        one = kept[0]
        if isinstance(one, Depth):
            depthwise_last(image, made.size, made.base, made.taps, one, a.shape[2], out)
            return
        plan = np.array([x.shape[0], made.size, *one.plan], np.int64)
        work = out.size * a.shape[-1] * cost()
        spread(work, window_product, image, made.base, made.taps, one.panels, signless(out), plan, one.starts,
               one.factors)  # fmt: skip

    return call


@dataclass(frozen=True)
class Weights:
    """Panels, and what window_product is told besides."""

    panels: Array
    starts: Array
    factors: Array
    plan: Ints


def weights_of(a: Array, za: Array, x_zero: int, channels: int, finish: Finish) -> Weights:
    """Weights [1,G,M,C*T] in int8 as panels [G,P,T,ceil(C / 4),L,4]."""
    L, step = shape_of_tile()
    _, groups, M, K = a.shape
    C = channels // groups
    flip, shift = flipped(a.dtype.name, False)
    rows = plain(a).reshape(groups, M, C, K // C).view(np.uint8)
    taps = np.full((groups, K // C, C + -C % 4, M), flip, np.uint8)  # zeros once they are flipped
    taps[:, :, :C] = rows.transpose(0, 3, 2, 1)
    w_zero = int(uniform(za) or 0) - shift
    sums = a.astype(np.int64).reshape(groups, M, K).sum(-1) - shift * K
    start, factor = (np.broadcast_to(v, (1, groups, M, 1)).reshape(groups, M) for v in (finish.bias, finish.factor))
    P = -(-M // L)
    starts, factors = np.zeros((groups, P * L), np.int32), np.zeros((groups, P * L), np.float32)
    starts[:, :M] = (start.astype(np.int64) - x_zero * (sums - K * w_zero)).astype(np.int32)
    factors[:, :M] = factor
    group = max(1, NEAR // max(K * L, 1))
    panels = p.packed(taps.reshape(groups, -1, M), flip)
    return Weights(panels, flat(starts), flat(factors), (groups, C, M, L, step, group, w_zero, *finish.limits))
