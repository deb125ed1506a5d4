"""Im2col, DataMove, Gather and Scatter on the CPU: moves by item size, never by type."""

from __future__ import annotations

import math

import numpy as np

from opgauge.reference_engine.types import Array, Kernel

from .compile import jit, plain
from .swap import turned

Ints = tuple[int, ...]
RAW = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def raw(x: Array) -> Array:
    """The same bytes as unsigned integers."""
    return x.view(RAW[x.itemsize])


@jit
def im2col_rows(x, pad_value, out, row_start, tap_start, stride, width):
    """out[i,j,t,r,l] = x[i, row_start[j,r] + tap_start[t] + l*stride], pad_value outside

    Shapes: x [N*C,S], pad_value [1], out [N*C,J,T,R,L]: j, t taps and r, l positions, along the leading
        axes together and along the last axis.
    Dtypes: unsigned integers of the item's size. row_start is -1 where the row lies in the padding.
    """
    pad = pad_value[0]
    n, n_j, n_t, n_r, n_l = out.shape
    for i in range(n):
        for j in range(n_j):
            for t in range(n_t):
                first = tap_start[t]
                # Positions begin..end-1 read inside the row.
                begin = min(n_l, max(0, (stride - 1 - first) // stride))
                end = max(begin, min(n_l, (width - 1 - first) // stride + 1))
                for r in range(n_r):
                    start = row_start[j, r]
                    row = out[i, j, t, r]
                    if start < 0:
                        row[:] = pad
                        continue
                    row[:begin] = pad
                    for l in range(begin, end):
                        row[l] = x[i, start + first + l * stride]
                    row[end:] = pad


def row_starts(spatial: Ints, kernel_shape: Ints, strides: Ints, dilations: Ints, pads: Ints, out_shape: Ints) -> Array:
    """Flat index of the row that (tap, position) of the leading axes reads; -1 in the padding.

    Shapes: [J,R], the products of the leading kernel_shape and out_shape.
    """
    at = np.zeros((1, 1), np.intp)
    for axis, size in enumerate(spatial[:-1]):
        taps = np.arange(kernel_shape[axis])[:, None] * dilations[axis]
        index = taps + np.arange(out_shape[axis]) * strides[axis] - pads[axis]
        inside = (index >= 0) & (index < size)
        both = (at[:, None, :, None] >= 0) & inside[None, :, None, :]
        joined = np.where(both, at[:, None, :, None] * size + index[None, :, None, :], -1)
        at = joined.reshape(at.shape[0] * kernel_shape[axis], at.shape[1] * out_shape[axis])
    return np.where(at < 0, -1, at * spatial[-1])


def im2col(
    x: Array,
    pad_value: Array,
    out: Array,
    kernel_shape: Ints,
    strides: Ints,
    dilations: Ints,
    pads: Ints,
    out_shape: Ints,
) -> None:
    """out[n,c,k,l] = x[n,c, l * stride - pad + k * dilation], pad_value outside

    Shapes: x [N,C,*S], pad_value [], out [N,C,prod(kernel_shape),prod(out_shape)].
    """
    if not kernel_shape:
        out[...] = x.reshape(out.shape)
        return
    starts = row_starts(x.shape[2:], kernel_shape, strides, dilations, pads, out_shape)
    taps = np.arange(kernel_shape[-1]) * dilations[-1] - pads[len(kernel_shape) - 1]
    images = x.shape[0] * x.shape[1]
    windows = (images, starts.shape[0], len(taps), starts.shape[1], out_shape[-1])
    flat = raw(plain(x)).reshape(images, math.prod(x.shape[2:]))
    pad = np.full(1, raw(pad_value))
    im2col_rows(flat, pad, raw(out).reshape(windows), starts, taps, strides[-1], x.shape[-1])


def transpose(x: Array, out: Array, perm: Ints) -> None:
    if not turned(raw(x), raw(out), perm):
        np.copyto(raw(out), raw(x).transpose(perm))


def expand(x: Array, out: Array, shape: Ints) -> None:
    np.copyto(raw(out), raw(x))


def copy(x: Array, out: Array) -> None:
    np.copyto(raw(out), raw(x))


def transfer(x: Array, out: Array, to: str) -> None:
    np.copyto(raw(out), raw(x))


def slice_(x: Array, out: Array, starts: Ints, ends: Ints, steps: Ints) -> None:
    # An end of -1 means before element 0, which a Python slice writes as None.
    picks = tuple(slice(b, None if e < 0 else e, s) for b, e, s in zip(starts, ends, steps, strict=True))
    np.copyto(raw(out), raw(x)[picks])


def pad(x: Array, value: Array, out: Array, pads: Ints, mode: str) -> None:
    """out[i] = x[place(i - begin)] after a crop by the negative pads

    Shapes: pads begin.. then end..; value [].
    Source: ONNX Pad-19; reflect does not repeat the border.
    """
    rank = x.ndim
    if mode == "constant":
        raw(out)[...] = raw(value)
        kept = [(max(b, 0), d + min(e, 0) + b) for b, e, d in zip(pads[:rank], pads[rank:], x.shape, strict=True)]
        inner = tuple(slice(b, max(b, e)) for b, e in kept)
        source = tuple(slice(b - p, max(b, e) - p) for (b, e), p in zip(kept, pads, strict=False))
        raw(out)[inner] = raw(x)[source]
        return
    places = [PLACES[mode](d, pads[i], pads[rank + i]) for i, d in enumerate(x.shape)]
    raw(out)[...] = raw(x)[np.ix_(*places)] if rank else raw(x)


def cropped(size: int, begin: int, end: int) -> tuple[Array, int, int]:
    """Positions counted from the cropped start, how many the crop drops there, and the cropped size."""
    dropped = max(-begin, 0)
    return np.arange(-max(begin, 0), size - dropped + end), dropped, size - dropped + min(end, 0)


def reflected(size: int, begin: int, end: int) -> Array:
    at, dropped, kept = cropped(size, begin, end)
    period = max(2 * (kept - 1), 1)
    at = at % period
    return np.where(at < kept, at, period - at) + dropped


def edge(size: int, begin: int, end: int) -> Array:
    at, dropped, kept = cropped(size, begin, end)
    return np.clip(at, 0, max(kept - 1, 0)) + dropped


def wrapped(size: int, begin: int, end: int) -> Array:
    at, dropped, kept = cropped(size, begin, end)
    return at % max(kept, 1) + dropped


PLACES = {"reflect": reflected, "edge": edge, "wrap": wrapped}


def concat(*operands) -> None:
    """out = x1, x2, .. joined along axis; called as concat(x1, .., xn, out, axis)"""
    *xs, out, axis = operands
    np.concatenate([raw(x) for x in xs], axis, out=raw(out))


def gather(x: Array, indices: Array, out: Array) -> None:
    """out[o,n,i] = x[o, indices[n], i]

    Shapes: x [O,L,I], indices [n], out [O,n,I]; negative indices count from the end.
    Raises: IndexError naming the value that is out of range.
    """
    length = x.shape[1]
    outside = (indices < -length) | (indices >= length)
    if outside.any():
        raise IndexError(f"Gather: index {indices[outside][0]} is out of range for an axis of {length}")
    if out.size:
        # In range, "wrap" only turns the negative ones; "raise" would go through a buffer.
        np.take(raw(x), indices, axis=1, out=raw(out), mode="wrap")


def gather_nd(x: Array, indices: Array, out: Array) -> None:
    """out[b,n,i] = x[b, indices[b,n,0], .., indices[b,n,r-1], i]

    Shapes: x [B,*D,I], indices [B,N,r], out [B,N,I]. Raises: IndexError as gather.
    """
    rows, width = flat_rows(x, indices, "Gather"), x.shape[-1]
    if out.size:
        np.take(raw(x).reshape(-1, width), rows, axis=0, out=raw(out).reshape(len(rows), width), mode="wrap")


def flat_rows(x: Array, indices: Array, name: str) -> Array:
    """The row of x, seen as [B*prod(D),I], that each index tuple names.

    Raises: IndexError naming the value that is out of range.
    """
    rows = np.repeat(np.arange(indices.shape[0]), indices.shape[1])
    for axis, length in enumerate(x.shape[1:-1]):
        at = indices[:, :, axis].ravel()
        outside = (at < -length) | (at >= length)
        if outside.any():
            raise IndexError(f"{name}: index {at[outside][0]} is out of range for an axis of {length}")
        rows = rows * length + np.where(at < 0, at + length, at)
    return rows


def scatter(ufunc):
    """out = x, then out[b, indices[b,n,..], i] = fn(that, updates[b,n,i]) in the order of n

    Shapes: x, out [B,*D,I], indices [B,N,r], updates [B,N,I]. Raises: IndexError as gather.
    """

    def call(x: Array, indices: Array, updates: Array, out: Array) -> None:
        rows, width = flat_rows(x, indices, "Scatter"), x.shape[-1]
        np.copyto(raw(out), raw(x))
        if not updates.size:
            return
        if ufunc is None:
            raw(out).reshape(-1, width)[rows] = raw(updates).reshape(len(rows), width)
            return
        with np.errstate(all="ignore"):
            ufunc.at(out.reshape(-1, width), rows, updates.reshape(len(rows), width))

    return call


KERNELS = (
    Kernel("Im2col", "", ("*",), im2col),
    Kernel("DataMove", "transpose", ("*",), transpose),
    Kernel("DataMove", "expand", ("*",), expand),
    Kernel("DataMove", "slice", ("*",), slice_),
    Kernel("DataMove", "pad", ("*",), pad),
    Kernel("DataMove", "concat", ("*",), concat),
    Kernel("DataMove", "copy", ("*",), copy),
    Kernel("DataMove", "transfer", ("*",), transfer),
    Kernel("Gather", "", ("*",), gather),
    Kernel("Gather", "nd", ("*",), gather_nd),
    Kernel("Scatter", "none", ("*",), scatter(None)),
    Kernel("Scatter", "add", ("*",), scatter(np.add)),
    Kernel("Scatter", "mul", ("*",), scatter(np.multiply)),
    Kernel("Scatter", "max", ("*",), scatter(np.maximum)),
    Kernel("Scatter", "min", ("*",), scatter(np.minimum)),
)
