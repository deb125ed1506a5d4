"""How the second operand of a product reaches the register tile: panels of L columns, four rows side by side.

A constant operand is packed once. Any other is packed panel by panel into a scratch that stays in the cache: from
its own rows, or for a convolution from the image itself, so that no columns are ever written (implicit im2col).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from opgauge.reference_engine.memory import ALIGNMENT, empty
from opgauge.reference_engine.types import Array

from .compile import host_codegen, jit, plain
from .tile import copy_every_second, copy_lanes, interleave, interleave_runs, lanes

STAGED = 64  # rows that are staged at once where a panel's lanes lie apart
Ints = tuple[int, ...]


@jit
def near(size, alignment):
    """`size` unset bytes that start at a multiple of `alignment`, inside compiled code."""
    raw = np.empty(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]


@dataclass(frozen=True)
class Rows:
    """Where row k, column n of matrix i lies in flat bytes: i * matrix + base[k] + start[n // run] + n % run.

    `base` has K rounded up to whole quads; rows past K repeat the last one (their partners in A are zero). `far` is
    the largest of it.
    """

    matrix: int
    base: Array
    far: int
    run: int
    start: Array


@lru_cache(maxsize=64)
def rows_of(K: int, N: int) -> Rows:
    """The rows of matrices [*,K,N] as they lie in memory."""
    return Rows(K * N, *_whole_quads(np.arange(K, dtype=np.int64) * N), max(N, 1), np.zeros(1, np.int64))


def _whole_quads(base: Array) -> tuple[Array, int]:
    return np.concatenate([base, np.repeat(base[-1:], -len(base) % 4)]), int(base.max(initial=0))


@jit
def pack_panel(source, origin, base, far, run, start, n, N, flip, stage, panel, at, L):
    """panel[k/4,l,k%4] = source[origin + base[k] + start[(n+l) // run] + (n+l) % run] ^ flip for lanes up to N"""
    K = len(base)
    width = min(L, N - n)
    first = origin + start[n // run] + n % run
    whole = n % run + width <= run
    last = n if whole else n + width - 1
    inside = origin + far + start[last // run] + last % run + L <= source.size
    if inside and whole:
        for k in range(0, K, 4):
            interleave(  # type: ignore[call-arg]
                source, first + base[k], first + base[k + 1], first + base[k + 2], first + base[k + 3],
                flip, panel, at + k * L,
            )  # fmt: skip
        return
    rest = width - (run - n % run)  # lanes after the first run
    if inside and rest <= 2 * run:
        bound, bound_2 = width - rest, width - max(rest - run, 0)
        # A run that starts at lane b is read as if it had started at lane 0: never before the first byte of source.
        jump = origin + start[n // run + 1] - bound - first
        jump_2 = origin + start[last // run] - bound_2 - first if bound_2 < width else jump
        for k in range(0, K, 4):
            interleave_runs(  # type: ignore[call-arg]
                source, first + base[k], first + base[k + 1], first + base[k + 2], first + base[k + 3],
                jump, bound, jump_2, bound_2, flip, panel, at + k * L,
            )  # fmt: skip
        return
    pitch = 2 * L
    for low in range(0, K, STAGED):
        high = min(low + STAGED, K)
        lane = 0
        while lane < width:
            r, c = divmod(n + lane, run)
            take = min(run - c, width - lane)
            begin = origin + start[r] + c
            if inside:
                for k in range(low, high):
                    copy_lanes(source, begin + base[k], stage, (k - low) * pitch + lane)  # type: ignore[call-arg]
            else:
                for k in range(low, high):
                    for l in range(take):
                        stage[(k - low) * pitch + lane + l] = source[begin + base[k] + l]
            lane += take
        for k in range(0, high - low, 4):
            s = k * pitch
            interleave(stage, s, s + pitch, s + 2 * pitch, s + 3 * pitch, flip, panel, at + (low + k) * L)  # type: ignore[call-arg]


@jit
def pack_panels(source, origin, base, far, run, start, N, flip, panels, at, L):
    stage = np.empty(2 * L * STAGED + L, np.uint8)
    for p in range((N + L - 1) // L):
        pack_panel(source, origin, base, far, run, start, p * L, N, flip, stage, panels, at + p * len(base) * L, L)


@lru_cache(maxsize=256)
def batch_index(batch: Ints, full: Ints) -> Array:
    """Which matrix of a stack shaped `batch` each matrix of the broadcast stack `full` reads."""
    own = np.arange(math.prod(batch)).reshape(batch)
    return own.ravel() if batch == full else np.broadcast_to(own, full).ravel()


def batch_size(x: Array) -> int:
    return math.prod(x.shape[:-2])


def packed(b: Array, flip: int) -> Array:
    """All panels of matrices [*,K,N] of bytes, each ^ flip: [*,ceil(N / L),ceil(K / 4),L,4] flat and aligned."""
    L, N, rows = lanes(host_codegen()), b.shape[-1], rows_of(*b.shape[-2:])
    size = -(-N // L) * len(rows.base) * L
    panels, source = empty(batch_size(b) * size, np.uint8), b.reshape(-1).view(np.uint8)
    for i in range(batch_size(b) if size else 0):
        pack_panels(
            source, i * rows.matrix, rows.base, rows.far, rows.run, rows.start, N, np.uint8(flip), panels, i * size, L
        )
    return panels


# ---- windows


@dataclass(frozen=True)
class Window:
    """One channel of an image taken apart by stride, so that every tap of a window reads along rows.

    `shape` is (stride, positions) of each spatial axis in turn: plane p, position j hold the padded image at
    j * stride + p. `row` is the image row of each line of all but the last axis, -1 in the padding. `tap` and
    `start` are offsets of the taps and of the output rows.
    """

    shape: Ints
    row: Array
    tap: Array
    start: Array
    direct: bool


@lru_cache(maxsize=64)
def window(spatial: Ints, kernel: Ints, strides: Ints, dilations: Ints, pads: Ints, out: Ints) -> Window:
    reach = [(k - 1) * d // s for k, d, s in zip(kernel, dilations, strides, strict=True)]
    planes = [(s, o + r) for s, o, r in zip(strides, out, reach, strict=True)]
    direct = (
        all(s == 1 for s in strides)
        and not any(pads)
        and all(o + r == n for o, r, n in zip(out, reach, spatial, strict=True))
    )
    shape = tuple(d for pair in planes for d in pair)
    step = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    row, size = np.zeros(1, np.int64), 1
    for axis, (s, count) in enumerate(planes[:-1]):
        at = np.arange(count) * s + np.arange(s)[:, None] - pads[axis]
        inside = ((at >= 0) & (at < spatial[axis])).ravel()
        joined = row[:, None] * spatial[axis] + at.ravel()
        row = np.where((row[:, None] >= 0) & inside, joined, -1).ravel()
        size *= spatial[axis]
    tap, start = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for axis, (k, d, s) in enumerate(zip(kernel, dilations, strides, strict=True)):
        reached = np.arange(k) * d
        tap = (tap[:, None] + reached % s * step[2 * axis] + reached // s * step[2 * axis + 1]).ravel()
        if axis < len(kernel) - 1:
            start = (start[:, None] + np.arange(out[axis]) * step[2 * axis + 1]).ravel()
    return Window(shape, row, tap, start, direct)


@jit
def copy_rows(spare, L, rows, width, out, to, pitch):
    """out[to + r * pitch + l] = spare[r * L + l] for r < rows, l < width: the last columns of a tile, flat arrays"""
    for r in range(rows):
        for l in range(width):
            out[to + r * pitch + l] = spare[r * L + l]


@jit
def take_apart(x, row, width, stride, pad, count, pad_value, out, channels, L):
    """out[c,r,p,j] = x[c, row[r], j*stride + p - pad], pad_value outside

    Shapes: x flat [C,H,width], out flat [C,R,stride,count] and L bytes behind it.
    """
    R, height = len(row), x.size // (width * channels)
    begins, ends = np.empty(stride, np.int64), np.empty(stride, np.int64)
    for p in range(stride):
        begins[p] = min(count, max(0, (pad - p + stride - 1) // stride))
        ends[p] = max(begins[p], min(count, (width - 1 - p + pad) // stride + 1))
    to = 0
    for c in range(channels):
        for r in range(R):
            if row[r] < 0:
                out[to : to + stride * count] = pad_value
                to += stride * count
                continue
            first = (c * height + row[r]) * width - pad
            for p in range(stride):
                begin, end = begins[p], ends[p]
                for j in range(begin):
                    out[np.uint64(to + j)] = pad_value
                if stride == 1 and first + end + L <= x.size:
                    for j in range(begin, end, L):  # what goes too far is overwritten by what follows
                        copy_lanes(x, first + j, out, to + j)  # type: ignore[call-arg]
                elif stride == 2 and first + 2 * end + 4 * L <= x.size:
                    for j in range(begin, end, L):
                        copy_every_second(x, first + p + 2 * j, out, to + j)  # type: ignore[call-arg]
                else:
                    for j in range(begin, end):
                        out[np.uint64(to + j)] = x[np.uint64(first + p + j * stride)]
                for j in range(end, count):
                    out[np.uint64(to + j)] = pad_value
                to += count


def image_rows(
    x: Array, pad_value: int, groups: int, kernel: Ints, strides: Ints, dilations: Ints, pads: Ints, out: Ints
) -> tuple[Array, Rows]:
    """Images [N,C,*S] of bytes and where in them the columns that Im2col would give lie, by image and group."""
    plan = window(tuple(x.shape[2:]), kernel, strides, dilations, pads, out)
    n, c = x.shape[:2]
    size = math.prod(plan.shape)
    source = plain(x).reshape(-1).view(np.uint8)
    if not plan.direct:
        made = np.empty(n * c * size + 2 * ALIGNMENT, np.uint8)  # lanes read past the last row
        take_apart(
            source, plan.row, x.shape[-1], strides[-1], pads[len(kernel) - 1], plan.shape[-1],
            np.uint8(pad_value & 255), made, n * c, lanes(host_codegen()),
        )  # fmt: skip
        source = made
    return source, Rows(c // groups * size, *_windowed(plan.tap.tobytes(), c // groups, size), out[-1], plan.start)


@lru_cache(maxsize=64)
def _windowed(tap: bytes, channels: int, size: int) -> tuple[Array, int]:
    return _whole_quads((np.arange(channels)[:, None] * size + np.frombuffer(tap, np.int64)).ravel())
