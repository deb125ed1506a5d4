"""Reductions, softmax and pooling: rows of the last axis become one value each."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .. import dtypes as dt
from ..emit import Emitter, OperatorDef, Value, cast, elementwise, normal_axis, reshape, scalar, transpose
from ..errors import ModelError, ShapeError, UnknownOperatorError
from ..types import Array
from .checks import integers, one_of, text, versioned, widen
from .geometry import Ints, Windows, windows

SUMMED = (*dt.FLOATS, "int32", "int64", "uint32", "uint64")


def lower_softmax(emit: Emitter, input: Value, *, axis: int = -1) -> Value:
    """y = exp(x - max(x)) / sum(exp(x - max(x))) along axis

    Dtypes: floats, 16-bit ones computed in float32.
    Source: ONNX Softmax-13.
    """
    one_of(emit, "input", input, dt.FLOATS)
    axis = normal_axis(emit, axis, input.rank)
    if not input.spec.size:
        return input
    swap = list(range(input.rank))
    swap[axis], swap[-1] = swap[-1], swap[axis]
    x = transpose(emit, widen(emit, input), tuple(swap))
    rows = (*x.shape[:-1], 1)
    shifted = elementwise(emit, "sub", x, reshape(emit, emit("Reduce", x, fn="max"), rows))
    e = emit("Elementwise", shifted, fn="exp")
    y = elementwise(emit, "div", e, reshape(emit, emit("Reduce", e, fn="sum"), rows), recip=True)
    return cast(emit, transpose(emit, y, tuple(swap)), input.dtype)


def _reduced_axes(
    emit: Emitter, rank: int, axes_input: Value | None, axes: Ints | None, noop_with_empty_axes: int
) -> Ints | None:
    """Sorted axes to reduce; None where nothing is to be done. Raises: ShapeError, ModelError."""
    listed = integers(emit, axes_input, "axes") if axes_input is not None else tuple(axes or ())
    if not listed:
        return None if noop_with_empty_axes else tuple(range(rank))
    found = sorted(normal_axis(emit, int(a), rank) for a in listed)
    if len(set(found)) < len(found):
        raise ModelError(f"{emit.source}: axes {listed} name an axis twice")
    return tuple(found)


def _rows(emit: Emitter, x: Value, axes: Ints) -> Value:
    """The reduced axes moved last and joined into one."""
    kept = tuple(i for i in range(x.rank) if i not in axes)
    moved = transpose(emit, x, (*kept, *axes))
    return reshape(emit, moved, (*(x.shape[i] for i in kept), math.prod(x.shape[i] for i in axes)))


def _reduction(fn: str, allowed: tuple[str, ...]) -> Callable[..., Value]:
    def lower(
        emit: Emitter,
        data: Value,
        axes_input: Value | None = None,
        *,
        axes: Ints | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Value:
        one_of(emit, "data", data, allowed)
        reduced = _reduced_axes(emit, data.rank, axes_input, axes, noop_with_empty_axes)
        if reduced is None:
            return data
        kept = tuple(1 if i in reduced else d for i, d in enumerate(data.shape) if keepdims or i not in reduced)
        return cast(emit, reshape(emit, _reduce_rows(emit, _rows(emit, data, reduced), fn), kept), data.dtype)

    return lower


def _reduce_rows(emit: Emitter, rows: Value, fn: str) -> Value:
    if fn in ("max", "min"):
        return emit("Reduce", cast(emit, rows, "uint8") if rows.dtype == "bool" else rows, fn=fn)
    sums = emit("Reduce", widen(emit, rows), fn="sum")
    if fn == "sum":
        return sums
    count = rows.shape[-1]
    if not count and sums.spec.size:
        raise ShapeError(f"{emit.source}: the mean of no elements is undefined")
    return elementwise(emit, "div", sums, scalar(emit, count, sums.dtype), recip=True)


def _as_columns(emit: Emitter, X: Value, window: Windows, pad: float | int) -> Value:
    """[N,C,L,K]: each row holds the elements of one window."""
    columns = emit("Im2col", X, scalar(emit, pad, X.dtype), **window.attrs)
    return transpose(emit, columns, (0, 1, 3, 2))


def _check_image(emit: Emitter, X: Value) -> None:
    if X.rank < 3:
        raise ShapeError(f"{emit.source}: X is {text(X.shape)}, expected [N,C,...] with at least one spatial axis")


def lower_maxpool(
    emit: Emitter,
    X: Value,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    storage_order: int = 0,
    strides: Ints | None = None,
) -> Value:
    """Y[n,c,o] = max over k of X[n,c,o*stride + k*dilation - pad], the padding being -inf

    Shapes: X [N,C,*S] -> Y [N,C,*O]; storage_order concerns Indices only, which are not lowered.
    Source: ONNX MaxPool-22.
    """
    one_of(emit, "X", X, (*dt.FLOATS, "int8", "uint8"))
    _check_image(emit, X)
    if emit.n_outputs > 1:
        raise UnknownOperatorError(f"{emit.source}: output Indices is not lowered, only Y is")
    window = windows(emit, X.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    lowest = -np.inf if dt.is_float(X.dtype) else dt.limits(X.dtype)[0]
    y = emit("Reduce", _as_columns(emit, X, window, lowest), fn="max")
    return reshape(emit, y, (*X.shape[:2], *window.out_shape))


def _counts(spatial: Ints, window: Windows, count_include_pad: int) -> Array:
    """How many elements each window averages. What ceil_mode adds beyond the padding never counts."""
    rank = len(spatial)
    total = np.ones((), np.int64)
    for i, size in enumerate(spatial):
        at = np.arange(window.out_shape[i])[:, None] * window.strides[i] - window.pads[i]
        at = at + np.arange(window.kernel_shape[i])[None, :] * window.dilations[i]
        low, high = (-window.pads[i], size + window.pads[rank + i]) if count_include_pad else (0, size)
        total = total[..., None] * ((at >= low) & (at < high)).sum(1)
    return total.ravel()


def lower_averagepool(
    emit: Emitter,
    X: Value,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    """Y[n,c,o] = sum over k of X[n,c,o*stride + k*dilation - pad] / count[o]

    Shapes: X [N,C,*S] -> Y [N,C,*O]; count: elements inside X, or inside the padded X.
    Dtypes: floats, 16-bit ones summed in float32.
    Source: ONNX AveragePool-22.
    """
    one_of(emit, "X", X, dt.FLOATS)
    _check_image(emit, X)
    window = windows(emit, X.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    sums = emit("Reduce", _as_columns(emit, widen(emit, X), window, 0), fn="sum")
    counts = emit.constant(_counts(X.shape[2:], window, count_include_pad).astype(dt.numpy_dtype(sums.dtype)))
    y = elementwise(emit, "div", sums, counts, recip=True)
    return cast(emit, reshape(emit, y, (*X.shape[:2], *window.out_shape)), X.dtype)


def _global(fn: str) -> Callable[..., Value]:
    def lower(emit: Emitter, X: Value) -> Value:
        one_of(emit, "X", X, dt.FLOATS)
        _check_image(emit, X)
        rows = reshape(emit, X, (*X.shape[:2], math.prod(X.shape[2:])))
        y = reshape(emit, _reduce_rows(emit, rows, fn), (*X.shape[:2], *(1,) * (X.rank - 2)))
        return cast(emit, y, X.dtype)

    return lower


_AXES_UNTIL_17 = {"axes": (1, 17), "noop_with_empty_axes": (18, None)}
_SMALL = (*SUMMED, "int8", "uint8", "bool")
REDUCE: dict[tuple[str, str], OperatorDef] = {
    ("", "Softmax"): OperatorDef(lower_softmax, since=13),
    ("", "ReduceSum"): OperatorDef(versioned(_reduction("sum", SUMMED), axes=(1, 12), noop_with_empty_axes=(13, None))),
    ("", "ReduceMean"): OperatorDef(versioned(_reduction("mean", SUMMED), **_AXES_UNTIL_17)),
    ("", "ReduceMax"): OperatorDef(versioned(_reduction("max", _SMALL), **_AXES_UNTIL_17)),
    ("", "ReduceMin"): OperatorDef(versioned(_reduction("min", _SMALL), **_AXES_UNTIL_17)),
    ("", "MaxPool"): OperatorDef(lower_maxpool, since=10),
    ("", "AveragePool"): OperatorDef(versioned(lower_averagepool, dilations=(19, None)), since=10),
    ("", "GlobalAveragePool"): OperatorDef(_global("mean")),
    ("", "GlobalMaxPool"): OperatorDef(_global("max")),
}
