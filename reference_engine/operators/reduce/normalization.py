"""Normalisation: rows lose their mean and are divided by their spread."""

from __future__ import annotations

import math

import numpy as np

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, cast, elementwise, expand, normal_axis, reshape, scalar, transpose
from ...errors import ModelError, ShapeError, UnknownOperatorError
from ..checks import dtype_of, one_of, text, versioned, widen
from ..geometry import Windows
from .reductions import Ints, absolute_sum, euclidean, last_axis, mean, rows_of

EPSILON = 9.999999747378752e-06  # 1e-5 as the float32 that the standard stores


def _column(emit: Emitter, x: Value) -> Value:
    """One value per row, beside the rows."""
    return reshape(emit, x, (*x.shape, 1))


def _statistics(emit: Emitter, rows: Value) -> tuple[Value, Value]:
    """(mean, variance) of each row: mean(x), then mean((x - mean)^2), N1 with a stored mean."""
    middle = mean(emit, rows, running=True)
    away = elementwise(emit, "sub", rows, _column(emit, middle), settled=True)
    return middle, mean(emit, elementwise(emit, "mul", away, away, settled=True), running=True)


def _differences(emit: Emitter, rows: Value) -> tuple[Value, Value]:
    """(mean, variance) of each row as mean(x^2) - mean(x)^2: what some function bodies of the standard say."""
    middle = mean(emit, rows, running=True)
    squares = mean(emit, elementwise(emit, "mul", rows, rows), running=True)
    return middle, elementwise(emit, "sub", squares, elementwise(emit, "mul", middle, middle))


def _spread(emit: Emitter, variance: Value, epsilon: float) -> Value:
    return emit("Elementwise", elementwise(emit, "add", variance, scalar(emit, epsilon, variance.dtype)), fn="sqrt")


def _standardised(emit: Emitter, rows: Value, middle: Value, spread: Value) -> Value:
    """(x - mean) / spread; a kernel may as well compute x * (1 / spread) - mean * (1 / spread)."""
    away = elementwise(emit, "sub", rows, _column(emit, middle), settled=True)
    return elementwise(emit, "div", away, _column(emit, spread), recip=True)


def _in_type(emit: Emitter, fn: str, x: Value, y: Value) -> Value:
    """fn in the tensors' own type; 16-bit floats round each step."""
    return cast(emit, elementwise(emit, fn, widen(emit, x), widen(emit, y)), x.dtype)


def _scaled(emit: Emitter, x: Value, scale: Value, bias: Value | None) -> Value:
    made = _in_type(emit, "mul", x, scale)
    return made if bias is None else _in_type(emit, "add", made, bias)


def _stash(emit: Emitter, X: Value, stash_type: int) -> str:
    """The type of the first stage. Raises: UnknownOperatorError."""
    word = dtype_of(emit, "stash_type", stash_type)
    if word not in ("float32", "float64"):
        raise UnknownOperatorError(f"{emit.source}: stash_type {word} is not lowered, only float32 and float64")
    return word


def _same_type(emit: Emitter, X: Value, **others: Value | None) -> None:
    one_of(emit, "X", X, dt.FLOATS)
    for name, value in others.items():
        if value is not None:
            one_of(emit, name, value, (X.dtype,))


def _fits(emit: Emitter, name: str, value: Value, shape: Ints) -> Value:
    """`value` broadcast to `shape`, which it must not enlarge. Raises: ShapeError."""
    padded = (1,) * (len(shape) - value.rank) + value.shape
    if len(padded) != len(shape) or any(d not in (1, s) for d, s in zip(padded, shape, strict=True)):
        raise ShapeError(f"{emit.source}: {name} is {text(value.shape)}, which does not broadcast to {text(shape)}")
    return expand(emit, value, shape)


def lower_layernormalization(
    emit: Emitter,
    X: Value,
    Scale: Value,
    B: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = EPSILON,
    stash_type: int = 1,
) -> tuple[Value, ...]:
    """Y = (X - Mean) * InvStdDev * Scale + B over the axes from `axis` on, InvStdDev = 1 / sqrt(Var + epsilon)

    Shapes: Scale and B broadcastable to X; Mean and InvStdDev with 1 in place of the normalised axes.
    Dtypes: the first stage in stash_type, its result rounded to the type of X, the second stage in that type.
    Source: ONNX LayerNormalization-17.
    """
    _same_type(emit, X, Scale=Scale, B=B)
    axis, word = normal_axis(emit, axis, X.rank), _stash(emit, X, stash_type)
    outer = X.shape[:axis]
    rows = reshape(emit, cast(emit, X, word), (math.prod(outer), math.prod(X.shape[axis:])))
    middle, variance = _statistics(emit, rows)
    spread = _spread(emit, variance, epsilon)
    normal = cast(emit, reshape(emit, _standardised(emit, rows, middle, spread), X.shape), X.dtype)
    bias = None if B is None else _fits(emit, "B", B, X.shape)
    Y = _scaled(emit, normal, _fits(emit, "Scale", Scale, X.shape), bias)
    if emit.n_outputs == 1:
        return (Y,)
    ones = (*outer, *(1,) * (X.rank - axis))
    inverse = elementwise(emit, "div", scalar(emit, 1, word), spread)
    return Y, reshape(emit, middle, ones), reshape(emit, inverse, ones)


def lower_rmsnormalization(
    emit: Emitter, X: Value, scale: Value, *, axis: int = -1, epsilon: float = EPSILON, stash_type: int = 1
) -> Value:
    """Y = X / sqrt(mean(X^2) + epsilon) * scale over the axes from `axis` on

    Dtypes: as LayerNormalization.
    Source: ONNX RMSNormalization-23.
    """
    one_of(emit, "X", X, dt.FLOATS)
    if scale.dtype != X.dtype:
        raise UnknownOperatorError(f"{emit.source}: X {X.spec} and scale {scale.spec} of two types are not lowered")
    axis, word = normal_axis(emit, axis, X.rank), _stash(emit, X, stash_type)
    rows = reshape(emit, cast(emit, X, word), (math.prod(X.shape[:axis]), math.prod(X.shape[axis:])))
    spread = _spread(emit, mean(emit, elementwise(emit, "mul", rows, rows)), epsilon)
    normal = elementwise(emit, "div", rows, _column(emit, spread), recip=True)
    fitting = _fits(emit, "scale", scale, X.shape)
    return _in_type(emit, "mul", cast(emit, reshape(emit, normal, X.shape), X.dtype), fitting)


def _per_channel(emit: Emitter, name: str, value: Value, X: Value) -> Value:
    """A vector of one number per channel as [1,C,1..]. Raises: ShapeError."""
    if value.shape != X.shape[1:2]:
        raise ShapeError(
            f"{emit.source}: {name} is {text(value.shape)}, expected {X.shape[1]} elements, one per channel"
        )
    return reshape(emit, value, (1, X.shape[1], *(1,) * (X.rank - 2)))


def _check_channels(emit: Emitter, X: Value) -> None:
    if X.rank < 2:
        raise ShapeError(f"{emit.source}: X is {text(X.shape)}, expected [N,C,...]")


def lower_groupnormalization(
    emit: Emitter,
    X: Value,
    scale: Value,
    bias: Value,
    *,
    num_groups: int,
    epsilon: float = EPSILON,
    stash_type: int = 1,
) -> Value:
    """Y = (X - mean) / sqrt(variance + epsilon) * scale + bias, statistics per instance and group of channels

    Shapes: X [N,C,*]; scale, bias [C], up to opset 20 [num_groups].
    Dtypes: as LayerNormalization.
    Source: ONNX GroupNormalization-18 and -21, whose text does not say how the variance is computed and whose
        function body takes the difference of two large numbers.
    """
    _same_type(emit, X, scale=scale, bias=bias)
    _check_channels(emit, X)
    N, C = X.shape[:2]
    if num_groups < 1 or C % num_groups:
        raise ShapeError(f"{emit.source}: {C} channels do not divide into {num_groups} groups")
    word = _stash(emit, X, stash_type)
    rows = reshape(emit, cast(emit, X, word), (N, num_groups, math.prod(X.shape[1:]) // num_groups))
    middle, variance = _differences(emit, rows)
    normal = cast(
        emit, reshape(emit, _standardised(emit, rows, middle, _spread(emit, variance, epsilon)), X.shape), X.dtype
    )
    wide = []
    for name, value in (("scale", scale), ("bias", bias)):
        if emit.onnx_opset < 21:
            if value.shape != (num_groups,):
                raise ShapeError(
                    f"{emit.source}: {name} is {text(value.shape)}, expected one number for each of {num_groups} groups"
                )
            value = reshape(
                emit, expand(emit, reshape(emit, value, (num_groups, 1)), (num_groups, C // num_groups)), (C,)
            )
        wide.append(_per_channel(emit, name, value, X))
    return _scaled(emit, normal, wide[0], wide[1])


def lower_instancenormalization(
    emit: Emitter, input: Value, scale: Value, B: Value, *, epsilon: float = EPSILON
) -> Value:
    """y = scale * (x - mean) / sqrt(variance + epsilon) + B, statistics per instance and channel

    Shapes: input [N,C,*], scale, B [C].
    Dtypes: floats, 16-bit ones computed in float32.
    Source: ONNX InstanceNormalization-6.
    """
    _same_type(emit, input, scale=scale, B=B)
    _check_channels(emit, input)
    rows = reshape(emit, widen(emit, input), (*input.shape[:2], math.prod(input.shape[2:])))
    middle, variance = _statistics(emit, rows)
    normal = reshape(emit, _standardised(emit, rows, middle, _spread(emit, variance, epsilon)), input.shape)
    wide = [_per_channel(emit, name, widen(emit, v), input) for name, v in (("scale", scale), ("B", B))]
    return cast(emit, _scaled(emit, normal, wide[0], wide[1]), input.dtype)


def lower_batchnormalization(
    emit: Emitter,
    X: Value,
    scale: Value,
    B: Value,
    input_mean: Value,
    input_var: Value,
    *,
    epsilon: float = EPSILON,
    momentum: float = 0.8999999761581421,
    training_mode: int = 0,
) -> tuple[Value, ...]:
    """Y = (X - mean) / sqrt(var + epsilon) * scale + B per channel; in training of the batch's own statistics

    Shapes: X [N,C,*], the others [C]. Training also returns running = input * momentum + current * (1 - momentum).
    Dtypes: floats, 16-bit ones computed in float32.
    Source: ONNX BatchNormalization-9, -14, -15.
    """
    for name, value in (("X", X), ("scale", scale), ("B", B), ("input_mean", input_mean), ("input_var", input_var)):
        one_of(emit, name, value, dt.FLOATS)
    _check_channels(emit, X)
    if emit.n_outputs > 1 and not training_mode:
        raise ModelError(f"{emit.source}: {emit.n_outputs} outputs, but only training returns more than Y")
    x = widen(emit, X)
    vectors = [cast(emit, v, x.dtype) for v in (scale, B, input_mean, input_var)]
    gain, bias, middle, variance = vectors
    if training_mode:
        rows = rows_of(emit, x, (0, *range(2, X.rank)))
        middle, variance = _statistics(emit, rows)
    names = ("scale", "B", "input_mean", "input_var")
    gain_, bias_, middle_, spread_ = (
        _per_channel(emit, name, v, X)
        for name, v in zip(names, (gain, bias, middle, _spread(emit, variance, epsilon)), strict=True)
    )
    away = elementwise(emit, "sub", x, middle_, settled=True)
    Y = cast(emit, _scaled(emit, elementwise(emit, "div", away, spread_, recip=True), gain_, bias_), X.dtype)
    if not training_mode:
        return (Y,)
    keep = float(np.float32(momentum))
    running = []
    for old, new, word in ((vectors[2], middle, input_mean.dtype), (vectors[3], variance, input_var.dtype)):
        kept = elementwise(emit, "mul", old, scalar(emit, keep, x.dtype))
        running.append(
            cast(
                emit,
                elementwise(emit, "add", kept, elementwise(emit, "mul", new, scalar(emit, 1 - keep, x.dtype))),
                word,
            )
        )
    return (Y, *running)


def lower_meanvariancenormalization(emit: Emitter, X: Value, *, axes: Ints = (0, 2, 3)) -> Value:
    """Y = (X - mean(X)) / (sqrt(mean(X^2) - mean(X)^2) + 1e-9)

    Source: ONNX MeanVarianceNormalization-13, its function body: the variance is a difference of large
        numbers, and undecided where rounding may make it negative. The text has no 1e-9: either will do.
    """
    one_of(emit, "X", X, dt.FLOATS)
    found = tuple(sorted({normal_axis(emit, a, X.rank) for a in axes}))
    x = widen(emit, X)
    rows = rows_of(emit, x, found)
    middle, variance = _differences(emit, rows)
    deviation = emit("Elementwise", variance, fn="sqrt")
    spread = elementwise(emit, "add", deviation, scalar(emit, 1e-9, x.dtype), optional=True)
    shape = tuple(1 if i in found else d for i, d in enumerate(X.shape))
    away = elementwise(emit, "sub", x, reshape(emit, middle, shape), settled=True)
    return cast(emit, elementwise(emit, "div", away, reshape(emit, spread, shape), recip=True), X.dtype)


def lower_lpnormalization(emit: Emitter, input: Value, *, axis: int = -1, p: int = 2) -> Value:
    """y = x / (sum |x|^p)^(1/p) along axis; 0 where the sum is 0, which before opset 22 nothing says

    Source: ONNX LpNormalization-1 and -22, p 1 or 2.
    """
    one_of(emit, "input", input, dt.FLOATS)
    if p not in (1, 2):
        raise ModelError(f"{emit.source}: p is {p}, only 1 and 2 are supported by the standard")
    x, back = last_axis(emit, widen(emit, input), normal_axis(emit, axis, input.rank))
    norm = expand(emit, _column(emit, (absolute_sum if p == 1 else euclidean)(emit, x)), x.shape)
    y = elementwise(emit, "div", x, norm, recip=True, zero_free=emit.onnx_opset < 22)
    if emit.onnx_opset >= 22:
        y = elementwise(emit, "where", cast(emit, norm, "bool"), y, scalar(emit, 0, x.dtype))
    return cast(emit, transpose(emit, y, back), input.dtype)


def power(emit: Emitter, x: Value, exponent: float) -> Value:
    return elementwise(emit, "pow", x, scalar(emit, exponent, x.dtype))


def lower_lrn(
    emit: Emitter, X: Value, *, alpha: float = 9.999999747378752e-05, beta: float = 0.75, bias: float = 1.0, size: int
) -> Value:
    """Y = X / (bias + alpha / size * sum of X^2 over `size` channels around)^beta

    Shapes: X [N,C,*]; the window reaches floor((size-1)/2) channels down and ceil((size-1)/2) up.
    Source: ONNX LRN-13.
    """
    one_of(emit, "X", X, dt.FLOATS)
    _check_channels(emit, X)
    if size < 1:
        raise ModelError(f"{emit.source}: size is {size}, expected at least 1")
    N, C, S = X.shape[0], X.shape[1], math.prod(X.shape[2:])
    x = widen(emit, X)
    squares = transpose(emit, reshape(emit, elementwise(emit, "mul", x, x), (N, C, S)), (0, 2, 1))
    pads = ((size - 1) // 2, size // 2)
    around = Windows((size,), (1,), (1,), pads, (C,))
    windows = transpose(emit, emit("Im2col", squares, scalar(emit, 0, x.dtype), **around.attrs), (0, 1, 3, 2))
    sums = reshape(emit, transpose(emit, emit("Reduce", windows, fn="sum"), (0, 2, 1)), X.shape)
    share = elementwise(emit, "mul", sums, scalar(emit, alpha, x.dtype))
    share = elementwise(emit, "div", share, scalar(emit, size, x.dtype), recip=True)
    base = elementwise(emit, "add", share, scalar(emit, bias, x.dtype))
    return cast(emit, elementwise(emit, "div", x, power(emit, base, beta), recip=True), X.dtype)


NORMALIZATION: dict[tuple[str, str], OperatorDef] = {
    ("", "LayerNormalization"): OperatorDef(lower_layernormalization, since=17),
    ("", "RMSNormalization"): OperatorDef(lower_rmsnormalization, since=23),
    ("", "GroupNormalization"): OperatorDef(versioned(lower_groupnormalization, stash_type=(21, None)), since=18),
    ("", "InstanceNormalization"): OperatorDef(lower_instancenormalization, since=6),
    ("", "BatchNormalization"): OperatorDef(versioned(lower_batchnormalization, training_mode=(14, None)), since=9),
    ("", "MeanVarianceNormalization"): OperatorDef(lower_meanvariancenormalization, since=9),
    ("", "LpNormalization"): OperatorDef(lower_lpnormalization),
    ("", "LRN"): OperatorDef(lower_lrn),
}
