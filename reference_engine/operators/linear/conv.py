"""Convolutions through one Gemm: Im2col, the product, the bias."""

from __future__ import annotations

import math

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, cast, elementwise, reshape, scalar, transpose
from ...errors import ModelError, ShapeError, UnknownOperatorError
from ..checks import one_of, same_dtype, text, widen
from ..geometry import Ints, one_per_axis, windows
from ..quantization import BYTES, check_length, check_scale, multiplier, requantize, scale_of, zero_point_of


def _convolve(
    emit: Emitter,
    X: Value,
    W: Value,
    x_zero_point: Value,
    w_zero_point: Value | None,
    group: int,
    kernel_shape: Ints | None,
    strides: Ints | None,
    dilations: Ints | None,
    pads: Ints | None,
    auto_pad: str,
) -> tuple[Value, Ints]:
    """The accumulator [N,M,L] of a convolution and its spatial shape; pads hold x_zero_point.

    The weights are Gemm's A and the columns its B, so that nothing is transposed.
    Shapes: X [N,C,*S], W [M,C/group,*kernel_shape]. Raises: ShapeError.
    """
    if X.rank < 3 or W.rank != X.rank:
        raise ShapeError(
            f"{emit.source}: X is {text(X.shape)} and W is {text(W.shape)}: both need [N,C,...] of one rank"
        )
    (n, c), (m, c_group), kernel = X.shape[:2], W.shape[:2], W.shape[2:]
    if group < 1 or c != c_group * group or m % group:
        raise ShapeError(
            f"{emit.source}: X is {text(X.shape)} and W is {text(W.shape)}, which do not form {group} groups"
        )
    if kernel_shape is not None and tuple(kernel_shape) != kernel:
        raise ShapeError(f"{emit.source}: kernel_shape is {text(tuple(kernel_shape))} but W is {text(W.shape)}")
    window = windows(emit, X.shape[2:], kernel, strides, dilations, pads, auto_pad)
    depth = c_group * math.prod(kernel)
    columns = emit("Im2col", X, x_zero_point, **window.attrs)
    columns = reshape(emit, columns, (n, group, depth, columns.shape[-1]))
    weights = reshape(emit, W, (1, group, m // group, depth))
    zeros: tuple[Value, ...] = ()
    if w_zero_point is not None:
        per_channel = w_zero_point.shape == (m,) and m > 1
        rows = reshape(emit, w_zero_point, (1, group, m // group, 1) if per_channel else ())
        zeros = (rows, x_zero_point)
    acc = emit("Gemm", weights, columns, *zeros)
    return reshape(emit, acc, (n, m, columns.shape[-1])), window.out_shape


def _check_bias(emit: Emitter, B: Value, W: Value, dtype: str) -> None:
    one_of(emit, "B", B, (dtype,))
    if B.shape != W.shape[:1]:
        raise ShapeError(f"{emit.source}: B is {text(B.shape)} but W is {text(W.shape)}: one bias per output channel")


def lower_conv(
    emit: Emitter,
    X: Value,
    W: Value,
    B: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    """Y[n,m,o] = sum_ck W[m,c,k] X[n,c,o*stride + k*dilation - pad] + B[m]

    Shapes: X [N,C,*S], W [M,C/group,*kernel_shape], B [M] -> Y [N,M,*O].
    Dtypes: floats.
    Source: ONNX Conv-22.
    """
    same_dtype(emit, X=X, W=W)
    one_of(emit, "X", X, dt.FLOATS)
    x, w = widen(emit, X), widen(emit, W)
    zero = scalar(emit, 0, x.dtype)
    acc, out = _convolve(emit, x, w, zero, None, group, kernel_shape, strides, dilations, pads, auto_pad)
    if B is not None:
        _check_bias(emit, B, W, X.dtype)
        acc = elementwise(emit, "add", acc, reshape(emit, widen(emit, B), (*B.shape, 1)))
    return cast(emit, reshape(emit, acc, (*acc.shape[:2], *out)), X.dtype)


def _channel_zero_point(emit: Emitter, zero_point: Value | None, w: Value) -> Value:
    if zero_point is None:
        return scalar(emit, 0, w.dtype)
    one_of(emit, "w_zero_point", zero_point, (w.dtype,))
    check_length(emit, "w_zero_point", zero_point, w.shape[:1], "one per output channel")
    return zero_point


def lower_convinteger(
    emit: Emitter,
    x: Value,
    w: Value,
    x_zero_point: Value | None = None,
    w_zero_point: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    """y[n,m,o] = sum_ck (w[m,c,k] - w_zero_point[m]) (x[...] - x_zero_point) in int32; pads are real zeros

    Shapes: as Conv; x_zero_point [], w_zero_point [] or [M].
    Source: ONNX ConvInteger-10.
    """
    one_of(emit, "x", x, BYTES)
    one_of(emit, "w", w, BYTES)
    x_zero = zero_point_of(emit, "x_zero_point", x_zero_point, x)
    w_zero = _channel_zero_point(emit, w_zero_point, w)
    acc, out = _convolve(emit, x, w, x_zero, w_zero, group, kernel_shape, strides, dilations, pads, auto_pad)
    return reshape(emit, acc, (*acc.shape[:2], *out))


def lower_qlinearconv(
    emit: Emitter,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    w: Value,
    w_scale: Value,
    w_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    B: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    """y = saturate(round((acc + B) * ((x_scale * w_scale[m]) / y_scale)) + y_zero_point), acc as ConvInteger

    Shapes: as Conv; w_scale and w_zero_point [] or [M]; B int32 [M], added modulo 2^32.
    Source: ONNX QLinearConv-10.
    """
    for name, value in (("x", x), ("w", w), ("y_zero_point", y_zero_point)):
        one_of(emit, name, value, BYTES)
    check_scale(emit, "w_scale", w_scale)
    check_length(emit, "w_scale", w_scale, w.shape[:1], "one per output channel")
    x_zero = zero_point_of(emit, "x_zero_point", x_zero_point, x)
    w_zero = _channel_zero_point(emit, w_zero_point, w)
    acc, out = _convolve(emit, x, w, x_zero, w_zero, group, kernel_shape, strides, dilations, pads, auto_pad)
    if B is not None:
        _check_bias(emit, B, w, "int32")
        acc = elementwise(emit, "add", acc, reshape(emit, B, (*B.shape, 1)))
    channels = reshape(emit, cast(emit, w_scale, "float32"), (w_scale.spec.size, 1) if w_scale.spec.size > 1 else ())
    x_s, y_s = scale_of(emit, "x_scale", x_scale), scale_of(emit, "y_scale", y_scale)
    factor = multiplier(emit, x_s, channels, y_s)
    y = requantize(emit, acc, factor, zero_point_of(emit, "y_zero_point", y_zero_point, y_zero_point))
    return reshape(emit, y, (*acc.shape[:2], *out))


def _transposed_window(
    emit: Emitter,
    spatial: Ints,
    kernel: Ints,
    strides: Ints,
    dilations: Ints,
    pads: Ints | None,
    output_padding: Ints,
    output_shape: Ints | None,
    auto_pad: str,
) -> tuple[Ints, Ints]:
    """Begin pads and output shape: out = stride * (in - 1) + output_padding + (kernel - 1) * dilation + 1 - pads.

    Raises: ShapeError where nothing is left, UnknownOperatorError where ONNX leaves the padding open.
    Source: ONNX ConvTranspose-22; SAME with output_shape absent: out = in * stride.
    """
    rank = len(spatial)
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ModelError(f"{emit.source}: auto_pad {auto_pad!r} is not NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    full = [
        s * (n - 1) + extra + (k - 1) * d + 1
        for n, k, s, d, extra in zip(spatial, kernel, strides, dilations, output_padding, strict=True)
    ]
    wanted = output_shape
    if wanted is None and auto_pad.startswith("SAME"):
        wanted = tuple(n * s for n, s in zip(spatial, strides, strict=True))
    if wanted is None:
        around = one_per_axis(emit, "pads", pads, 0, 2 * rank, 0)
        out = tuple(f - around[i] - around[rank + i] for i, f in enumerate(full))
        if min(out) < 1:
            raise ShapeError(f"{emit.source}: pads {around} leave nothing of an output of {text(tuple(full))}")
        return around[:rank], out
    wanted = one_per_axis(emit, "output_shape", wanted, 0, rank, 1)
    totals = [f - w for f, w in zip(full, wanted, strict=True)]
    if any(
        t < 0 and (auto_pad != "NOTSET" or w - f >= stride)
        for t, w, f, stride in zip(totals, wanted, full, strides, strict=True)
    ):
        raise UnknownOperatorError(f"{emit.source}: output {text(wanted)} is larger than {text(tuple(full))}, use pads")
    totals = [max(t, 0) for t in totals]  # less than a stride is missing: the end is what no window reached
    return tuple(t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in totals), wanted


def _spread(emit: Emitter, x: Value, strides: Ints) -> Value:
    """stride - 1 zeros after every element of each spatial axis."""
    if all(s == 1 for s in strides):
        return x
    spatial = x.shape[2:]
    apart = reshape(emit, x, (*x.shape[:2], *(d for n in spatial for d in (n, 1))))
    ends = (0, 0, *(e for s in strides for e in (0, s - 1)))
    filled = emit(
        "DataMove", apart, scalar(emit, 0, x.dtype), fn="pad", pads=(*(0,) * apart.rank, *ends), mode="constant"
    )
    return reshape(emit, filled, (*x.shape[:2], *(n * s for n, s in zip(spatial, strides, strict=True))))


def _framed(emit: Emitter, x: Value, begins: Ints, ends: Ints) -> Value:
    """Zeros around the spatial axes; negative numbers crop what the zeros do not."""
    around = (0, 0, *(max(b, 0) for b in begins), 0, 0, *(max(e, 0) for e in ends))
    if any(around):
        x = emit("DataMove", x, scalar(emit, 0, x.dtype), fn="pad", pads=around, mode="constant")
    starts = (0, 0, *(max(-b, 0) for b in begins))
    stops = (*x.shape[:2], *(n - max(-e, 0) for n, e in zip(x.shape[2:], ends, strict=True)))
    if not any(starts) and stops == x.shape:
        return x
    return emit("DataMove", x, fn="slice", starts=starts, ends=stops, steps=(1,) * x.rank)


def lower_convtranspose(
    emit: Emitter,
    X: Value,
    W: Value,
    B: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    """Y[n,m,i*stride + k*dilation - pad] += sum_c X[n,c,i] W[c,m,k], then + B[m]

    Written as a convolution of X, with stride - 1 zeros after each element, and the mirrored weights.
    Shapes: X [N,C,*S], W [C,M/group,*kernel_shape], B [M] -> Y [N,M,*O].
    Dtypes: floats.
    Source: ONNX ConvTranspose-22.
    """
    same_dtype(emit, X=X, W=W)
    one_of(emit, "X", X, dt.FLOATS)
    if X.rank < 3 or W.rank != X.rank or group < 1 or X.shape[1] != W.shape[0] or X.shape[1] % group:
        raise ShapeError(
            f"{emit.source}: X is {text(X.shape)} and W is {text(W.shape)}, which do not form {group} groups"
        )
    (n, c), (_, outs), kernel, rank = X.shape[:2], W.shape[:2], W.shape[2:], X.rank - 2
    if kernel_shape is not None and tuple(kernel_shape) != kernel:
        raise ShapeError(f"{emit.source}: kernel_shape is {text(tuple(kernel_shape))} but W is {text(W.shape)}")
    strides = one_per_axis(emit, "strides", strides, 1, rank, 1)
    dilations = one_per_axis(emit, "dilations", dilations, 1, rank, 1)
    extra = one_per_axis(emit, "output_padding", output_padding, 0, rank, 0)
    begins, out = _transposed_window(emit, X.shape[2:], kernel, strides, dilations, pads, extra, output_shape, auto_pad)
    reach = tuple((k - 1) * d for k, d in zip(kernel, dilations, strict=True))
    spread = _spread(emit, widen(emit, X), strides)
    before = tuple(r - b for r, b in zip(reach, begins, strict=True))
    after = tuple(o + r - s - b for o, r, s, b in zip(out, reach, spread.shape[2:], before, strict=True))
    framed = _framed(emit, spread, before, after)
    columns = emit(
        "Im2col",
        framed,
        scalar(emit, 0, framed.dtype),
        kernel_shape=kernel,
        strides=(1,) * rank,
        dilations=dilations,
        pads=(0,) * (2 * rank),
        out_shape=out,
    )
    depth = c // group * math.prod(kernel)
    columns = reshape(emit, columns, (n, group, depth, columns.shape[-1]))
    acc = reshape(
        emit, emit("Gemm", _mirrored(emit, widen(emit, W), group), columns), (n, group * outs, columns.shape[-1])
    )
    if B is not None:
        one_of(emit, "B", B, (X.dtype,))
        if B.shape != (group * outs,):
            raise ShapeError(
                f"{emit.source}: B is {text(B.shape)}, expected {group * outs}: one bias per output channel"
            )
        acc = elementwise(emit, "add", acc, reshape(emit, widen(emit, B), (*B.shape, 1)))
    return cast(emit, reshape(emit, acc, (*acc.shape[:2], *out)), X.dtype)


def _mirrored(emit: Emitter, W: Value, group: int) -> Value:
    """[C,M/group,*k] with every kernel axis reversed, as [1,group,M/group,C/group*k]."""
    kernel = W.shape[2:]
    flipped = emit(
        "DataMove",
        W,
        fn="slice",
        starts=(0, 0, *(k - 1 for k in kernel)),
        ends=(*W.shape[:2], *(-1,) * len(kernel)),
        steps=(1, 1, *(-1,) * len(kernel)),
    )
    taps, (c, outs) = math.prod(kernel), W.shape[:2]
    rows = transpose(emit, reshape(emit, flipped, (group, c // group, outs, taps)), (0, 2, 1, 3))
    return reshape(emit, rows, (1, group, outs, c // group * taps))


CONV: dict[tuple[str, str], OperatorDef] = {
    ("", "Conv"): OperatorDef(lower_conv),
    ("", "ConvInteger"): OperatorDef(lower_convinteger, since=10),
    ("", "QLinearConv"): OperatorDef(lower_qlinearconv, since=10),
    ("", "ConvTranspose"): OperatorDef(lower_convtranspose),
}
