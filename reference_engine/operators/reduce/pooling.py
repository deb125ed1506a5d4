"""Pooling: each window becomes one value, float or quantized; QLinearSoftmax beside them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, cast, elementwise, normal_axis, reshape, scalar, transpose
from ...errors import ModelError, ShapeError
from ...types import Array
from ..checks import one_of, text, versioned, widen
from ..geometry import Ints, Windows, windows
from ..quantization import BYTES, quantize, scale_of, zero_point_of
from .normalization import power
from .reductions import absolute_sum, euclidean, last_axis, mean, per_row


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
) -> tuple[Value, ...]:
    """Y[n,c,o] = max over k of X[n,c,o*stride + k*dilation - pad], the padding being -inf; Indices say where it lies

    Shapes: X [N,C,*S] -> Y [N,C,*O], O empty where no window fits, Indices [N,C,*O] into the flat X, column-major in
        an image where storage_order is 1. Which of equal elements is meant nothing says.
    Source: ONNX MaxPool-22.
    """
    one_of(emit, "X", X, (*dt.FLOATS, "int8", "uint8"))
    _check_image(emit, X)
    window = windows(emit, X.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode, may_be_empty=True)
    lowest = -np.inf if dt.is_float(X.dtype) else dt.limits(X.dtype)[0]
    columns = _as_columns(emit, X, window, lowest)
    made = (*X.shape[:2], *window.out_shape)
    y = reshape(emit, emit("Reduce", columns, fn="max"), made)
    if emit.n_outputs == 1:
        return (y,)
    taps = emit("Reduce", columns, fn="argmax", last=0, tie_free=True)
    return y, reshape(emit, _flat_index(emit, taps, X.shape, window, storage_order), made)


def _flat_index(emit: Emitter, taps: Value, shape: Ints, window: Windows, storage_order: int) -> Value:
    """Where in the flat X each window's tap lies: the first element of the window, and a step along each axis."""
    spatial = shape[2:]
    order = range(len(spatial))
    pitch = [math.prod(spatial[:i] if storage_order else spatial[i + 1 :]) for i in order]
    first = np.zeros((), np.int64)
    for i in order:
        begins = np.arange(window.out_shape[i], dtype=np.int64) * window.strides[i] - window.pads[i]
        first = first[..., None] + begins * pitch[i]
    images = np.arange(math.prod(shape[:2]), dtype=np.int64).reshape(*shape[:2], 1) * math.prod(spatial)
    at = elementwise(emit, "add", emit.constant(images), emit.constant(first.reshape(-1)))
    rest = taps
    for i in order:
        inner = scalar(emit, math.prod(window.kernel_shape[i + 1 :]), "int64")
        step = elementwise(emit, "div", rest, inner)
        rest = elementwise(emit, "sub", rest, elementwise(emit, "mul", step, inner))
        at = elementwise(
            emit, "add", at, elementwise(emit, "mul", step, scalar(emit, window.dilations[i] * pitch[i], "int64"))
        )
    return at


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


def _averages(emit: Emitter, X: Value, window: Windows, count_include_pad: int) -> Value:
    sums = emit("Reduce", _as_columns(emit, X, window, 0), fn="sum")
    counts = emit.constant(_counts(X.shape[2:], window, count_include_pad).astype(dt.numpy_dtype(sums.dtype)))
    y = elementwise(emit, "div", sums, counts, recip=True)
    return reshape(emit, y, (*X.shape[:2], *window.out_shape))


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
    window = windows(emit, X.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode, may_be_empty=True)
    return cast(emit, _averages(emit, widen(emit, X), window, count_include_pad), X.dtype)


def _norm(emit: Emitter, rows: Value, p: int) -> Value:
    """(sum |x|^p)^(1/p) of each row. Raises: ModelError."""
    if p < 1:
        raise ModelError(f"{emit.source}: p is {p}, expected at least 1")
    if p < 3:
        return (absolute_sum if p == 1 else euclidean)(emit, rows)
    size = emit("Elementwise", rows, fn="abs")
    raised = size
    for _ in range(p - 1):
        raised = elementwise(emit, "mul", raised, size)
    return power(emit, emit("Reduce", raised, fn="sum"), 1 / p)


def lower_lppool(
    emit: Emitter,
    X: Value,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    p: int = 2,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    """Y[n,c,o] = (sum over k of |X[n,c,o*stride + k*dilation - pad]|^p)^(1/p)

    Source: ONNX LpPool-2 to -22.
    """
    one_of(emit, "X", X, dt.FLOATS)
    _check_image(emit, X)
    window = windows(emit, X.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode, may_be_empty=True)
    y = _norm(emit, _as_columns(emit, widen(emit, X), window, 0), p)
    return cast(emit, reshape(emit, y, (*X.shape[:2], *window.out_shape)), X.dtype)


def _global(emit: Emitter, X: Value, reduce: Callable[[Emitter, Value], Value]) -> Value:
    """`reduce` over the image of each channel. Dtypes: floats, 16-bit ones computed in float32."""
    one_of(emit, "X", X, dt.FLOATS)
    _check_image(emit, X)
    rows = reshape(emit, widen(emit, X), (*X.shape[:2], math.prod(X.shape[2:])))
    return cast(emit, reshape(emit, reduce(emit, rows), (*X.shape[:2], *(1,) * (X.rank - 2))), X.dtype)


def lower_globalaveragepool(emit: Emitter, X: Value) -> Value:
    return _global(emit, X, mean)


def lower_globalmaxpool(emit: Emitter, X: Value) -> Value:
    return _global(emit, X, lambda e, rows: e("Reduce", rows, fn="max"))


def lower_globallppool(emit: Emitter, X: Value, *, p: int = 2) -> Value:
    return _global(emit, X, lambda e, rows: _norm(e, rows, p))


def _real_values(emit: Emitter, X: Value, x_scale: Value, x_zero_point: Value | None, names: tuple[str, str]) -> Value:
    """(X - x_zero_point) * x_scale: the difference is an exact integer, the product one rounding of it."""
    one_of(emit, "X", X, BYTES)
    return elementwise(emit, "mul", _differences(emit, X, x_zero_point, names[1]), scale_of(emit, names[0], x_scale))


def _differences(emit: Emitter, X: Value, zero_point: Value | None, name: str) -> Value:
    zero = zero_point_of(emit, name, zero_point, X)
    return cast(emit, elementwise(emit, "sub", cast(emit, X, "int32"), cast(emit, zero, "int32")), "float32")


def _requantized(emit: Emitter, y: Value, y_scale: Value, y_zero_point: Value | None, like: Value) -> Value:
    zero = zero_point_of(emit, "y_zero_point", y_zero_point, like)
    return quantize(emit, y, scale_of(emit, "y_scale", y_scale), zero, zp_inside=True, roundings=2)


def _channels_first(emit: Emitter, x: Value, channels_last: int) -> Value:
    return transpose(emit, x, (0, x.rank - 1, *range(1, x.rank - 1))) if channels_last else x


def _channels_back(emit: Emitter, x: Value, channels_last: int) -> Value:
    return transpose(emit, x, (0, *range(2, x.rank), 1)) if channels_last else x


def lower_qlinearaveragepool(
    emit: Emitter,
    X: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    """Y = saturate(round(sum over the window of (X - x_zero_point) * x_scale / count / y_scale) + y_zero_point)

    Source: com.microsoft QLinearAveragePool-1, padding being real zeros; no rounding text (N4).
    """
    _check_image(emit, X)
    x = _channels_first(emit, _real_values(emit, X, x_scale, x_zero_point, ("x_scale", "x_zero_point")), channels_last)
    window = windows(emit, x.shape[2:], kernel_shape, strides, None, pads, auto_pad, ceil_mode)
    y = _channels_back(emit, _averages(emit, x, window, count_include_pad), channels_last)
    return _requantized(emit, y, y_scale, y_zero_point, X)


def lower_qlinearglobalaveragepool(
    emit: Emitter,
    X: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    channels_last: int = 0,
) -> Value:
    """Y = saturate(round(mean over the image of (X - x_zero_point) * x_scale / y_scale) + y_zero_point)

    Source: com.microsoft QLinearGlobalAveragePool-1; no rounding text (N4).
    """
    _check_image(emit, X)
    x = _channels_first(emit, _real_values(emit, X, x_scale, x_zero_point, ("x_scale", "x_zero_point")), channels_last)
    y = _channels_back(emit, _global(emit, x, mean), channels_last)
    return _requantized(emit, y, y_scale, y_zero_point, X)


def lower_qlinearsoftmax(
    emit: Emitter,
    X: Value,
    X_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value,
    *,
    axis: int = -1,
    opset: int,
) -> Value:
    """Y = saturate(round(softmax((X - x_zero_point) * X_scale) / y_scale) + y_zero_point)

    Shapes: along axis; with opset below 13 over all axes from `axis` on. The zero point of X cancels.
    Source: com.microsoft QLinearSoftmax-1; no rounding text (N4).
    """
    one_of(emit, "X", X, BYTES)
    axis = normal_axis(emit, axis, X.rank)
    d = _differences(emit, X, x_zero_point, "x_zero_point")
    if opset < 13:
        d = reshape(emit, d, (*X.shape[:axis], math.prod(X.shape[axis:])))
    rows, back = last_axis(emit, d, axis)
    t = elementwise(
        emit, "mul", elementwise(emit, "sub", rows, per_row(emit, "max", rows)), scale_of(emit, "X_scale", X_scale)
    )
    e = emit("Elementwise", t, fn="exp")
    y = transpose(emit, elementwise(emit, "div", e, per_row(emit, "sum", e), recip=True), back)
    return _requantized(emit, reshape(emit, y, X.shape), y_scale, y_zero_point, X)


MS = "com.microsoft"
_DILATED = {"dilations": (18, None), "ceil_mode": (18, None)}
POOLING: dict[tuple[str, str], OperatorDef] = {
    ("", "MaxPool"): OperatorDef(lower_maxpool, since=10),
    ("", "AveragePool"): OperatorDef(versioned(lower_averagepool, dilations=(19, None)), since=10),
    ("", "LpPool"): OperatorDef(versioned(lower_lppool, **_DILATED), since=2),
    ("", "GlobalAveragePool"): OperatorDef(lower_globalaveragepool),
    ("", "GlobalMaxPool"): OperatorDef(lower_globalmaxpool),
    ("", "GlobalLpPool"): OperatorDef(lower_globallppool, since=2),
    (MS, "QLinearAveragePool"): OperatorDef(lower_qlinearaveragepool, domain=MS),
    (MS, "QLinearGlobalAveragePool"): OperatorDef(lower_qlinearglobalaveragepool, domain=MS),
    (MS, "QLinearSoftmax"): OperatorDef(lower_qlinearsoftmax, domain=MS),
}
