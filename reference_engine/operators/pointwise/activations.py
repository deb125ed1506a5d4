"""Activation functions, written with the functions that are primitives; 16-bit floats in float32, rounded once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, cast, elementwise, expand, scalar
from ...errors import ModelError, UnknownOperatorError
from ..checks import one_of, same_dtype, widen


def _in_float32(lower: Callable[..., Value]) -> Callable[..., Any]:
    """`lower` on the widened input, its result rounded back once."""

    @functools.wraps(lower)
    def wrapped(emit: Emitter, X: Value, **attrs: Any) -> Value:
        one_of(emit, "X", X, dt.FLOATS)
        return cast(emit, lower(emit, widen(emit, X), **attrs), X.dtype)

    return wrapped


def _apply(emit: Emitter, fn: str, *operands: Value | float, **attrs: bool) -> Value:
    """fn over operands, numbers among them in the type of the first tensor."""
    dtype = next(x.dtype for x in operands if isinstance(x, Value))
    values = [x if isinstance(x, Value) else scalar(emit, x, dtype) for x in operands]
    return elementwise(emit, fn, *values, **attrs)


def _where_negative(emit: Emitter, x: Value, below: Value, above: Value) -> Value:
    return elementwise(emit, "where", _apply(emit, "less", x, 0.0), below, above)


def lower_leakyrelu(emit: Emitter, X: Value, *, alpha: float = 0.01) -> Value:
    """Y = alpha * X where X < 0, else X. Source: ONNX LeakyRelu-16."""
    return _where_negative(emit, X, _apply(emit, "mul", X, alpha), X)


def lower_prelu(emit: Emitter, X: Value, slope: Value) -> Value:
    """Y = slope * X where X < 0, else X

    Shapes: slope broadcasts to X. Source: ONNX PRelu-16.
    """
    one_of(emit, "X", X, (*dt.FLOATS, "int32", "int64", "uint32", "uint64"))
    same_dtype(emit, X=X, slope=slope)
    x = widen(emit, X)
    zero = scalar(emit, 0, x.dtype)
    scaled = elementwise(emit, "mul", x, expand(emit, widen(emit, slope), x.shape))
    return cast(emit, elementwise(emit, "where", elementwise(emit, "less", x, zero), scaled, x), X.dtype)


def lower_elu(emit: Emitter, X: Value, *, alpha: float = 1.0) -> Value:
    """Y = alpha * (exp(X) - 1) where X < 0, else X. Source: ONNX Elu-22."""
    below = _apply(emit, "mul", _apply(emit, "sub", emit("Elementwise", X, fn="exp"), 1.0), alpha)
    return _where_negative(emit, X, below, X)


def lower_celu(emit: Emitter, X: Value, *, alpha: float = 1.0) -> Value:
    """Y = max(0, X) + min(0, alpha * (exp(X / alpha) - 1)): the second term where X < 0, whatever the sign of alpha

    Source: ONNX Celu-12.
    """
    if not alpha:
        raise ModelError(f"{emit.source}: alpha is 0, and Celu divides by it")
    power = emit("Elementwise", _apply(emit, "div", X, alpha, recip=True), fn="exp")
    return _where_negative(emit, X, _apply(emit, "mul", _apply(emit, "sub", power, 1.0), alpha), X)


# The float32 numbers of the schema's defaults.
SELU = {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}


def lower_selu(emit: Emitter, X: Value, *, alpha: float = SELU["alpha"], gamma: float = SELU["gamma"]) -> Value:
    """Y = gamma * (alpha * exp(X) - alpha) where X <= 0, else gamma * X. Source: ONNX Selu-22."""
    below = _apply(emit, "sub", _apply(emit, "mul", emit("Elementwise", X, fn="exp"), alpha), alpha)
    return _where_negative(emit, X, _apply(emit, "mul", below, gamma), _apply(emit, "mul", X, gamma))


def lower_gelu(emit: Emitter, X: Value, *, approximate: str = "none") -> Value:
    """Y = X / 2 * (1 + erf(X / sqrt(2))), or with tanh(sqrt(2 / pi) * (X + 0.044715 X^3)) instead of erf

    Source: ONNX Gelu-20; the limit at -Inf, a product of infinity and 0 as written, is undecided (N7).
    """
    if approximate not in ("none", "tanh"):
        raise ModelError(f"{emit.source}: approximate is {approximate!r}, expected 'none' or 'tanh'")
    if approximate == "none":
        bent = emit("Elementwise", _apply(emit, "mul", X, math.sqrt(0.5)), fn="erf")
    else:
        cube = _apply(emit, "mul", _apply(emit, "mul", X, X), X)
        inner = _apply(emit, "add", X, _apply(emit, "mul", cube, 0.044715))
        bent = emit("Elementwise", _apply(emit, "mul", inner, math.sqrt(2 / math.pi)), fn="tanh")
    half = _apply(emit, "mul", X, 0.5)
    return _apply(emit, "mul", half, _apply(emit, "add", bent, 1.0), zero_free=True)


def lower_hardsigmoid(emit: Emitter, X: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Value:
    """Y = max(0, min(1, alpha * X + beta)). Source: ONNX HardSigmoid-22."""
    return _clamped(emit, _apply(emit, "add", _apply(emit, "mul", X, alpha), beta))


def _clamped(emit: Emitter, x: Value) -> Value:
    return _apply(emit, "max", _apply(emit, "min", x, 1.0), 0.0)


def lower_hardswish(emit: Emitter, X: Value) -> Value:
    """Y = X * max(0, min(1, X / 6 + 1/2))

    Source: ONNX HardSwish-22, whose function body is HardSigmoid with the float32 number 1/6, then Mul: in float64
        the factor may be that number, and 16-bit floats may be rounded between the two. -Inf * 0 is undecided (N7).
    """
    one_of(emit, "X", X, dt.FLOATS)
    x = widen(emit, X)
    sixth = np.asarray(1 / 6, dt.numpy_dtype(x.dtype))
    loose = np.abs(sixth - np.float32(1 / 6)) if x.dtype == "float64" else None
    scaled = elementwise(emit, "mul", x, emit.constant(sixth, loose))
    gate = _clamped(emit, _apply(emit, "add", scaled, 0.5))
    gate = cast(emit, cast(emit, gate, X.dtype), x.dtype)
    return cast(emit, _apply(emit, "mul", x, gate, zero_free=True), X.dtype)


def lower_softplus(emit: Emitter, X: Value) -> Value:
    """Y = log(1 + exp(X)) = max(X, 0) + log(1 + exp(-|X|)), which never overflows. Source: ONNX Softplus-22."""
    small = emit("Elementwise", emit("Elementwise", emit("Elementwise", X, fn="abs"), fn="neg"), fn="exp")
    return _apply(
        emit, "add", emit("Elementwise", X, fn="relu"), emit("Elementwise", _apply(emit, "add", small, 1.0), fn="log")
    )


def lower_mish(emit: Emitter, X: Value) -> Value:
    """Y = X * tanh(softplus(X)). Source: ONNX Mish-22; -Inf * 0 is undecided (N7)."""
    return _apply(emit, "mul", X, emit("Elementwise", lower_softplus(emit, X), fn="tanh"), zero_free=True)


def lower_swish(emit: Emitter, X: Value, *, alpha: float = 1.0) -> Value:
    """Y = X * sigmoid(alpha * X). Source: ONNX Swish-24; -Inf * 0 is undecided (N7)."""
    gate = emit("Elementwise", _apply(emit, "mul", X, alpha), fn="sigmoid")
    return _apply(emit, "mul", X, gate, zero_free=True)


def lower_softsign(emit: Emitter, X: Value) -> Value:
    """Y = X / (1 + |X|). Source: ONNX Softsign-22; Inf / Inf is undecided (N7)."""
    return _apply(emit, "div", X, _apply(emit, "add", emit("Elementwise", X, fn="abs"), 1.0), recip=True, inf_free=True)


def lower_thresholdedrelu(emit: Emitter, X: Value, *, alpha: float = 1.0) -> Value:
    """Y = X where X > alpha, else 0. Source: ONNX ThresholdedRelu-22; NaN is undecided (N7)."""
    above = _apply(emit, "less", alpha, X, nan_free=True)
    return elementwise(emit, "where", above, X, scalar(emit, 0, X.dtype))


def lower_shrink(emit: Emitter, input: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    """output = input + bias where input < -lambd, input - bias where input > lambd, else 0

    Source: ONNX Shrink-9 on floats; NaN is undecided (N7).
    """
    if input.dtype not in dt.FLOATS:
        raise UnknownOperatorError(f"{emit.source}: Shrink is lowered for floats only, input is {input.spec}")
    x = widen(emit, input)
    low, high = _apply(emit, "less", x, -lambd, nan_free=True), _apply(emit, "less", lambd, x, nan_free=True)
    middle = elementwise(emit, "where", high, _apply(emit, "sub", x, bias), scalar(emit, 0, x.dtype))
    return cast(emit, elementwise(emit, "where", low, _apply(emit, "add", x, bias), middle), input.dtype)


_SIMPLE: dict[str, tuple[Callable[..., Value], int]] = {
    "LeakyRelu": (lower_leakyrelu, 6),
    "Elu": (lower_elu, 6),
    "Celu": (lower_celu, 12),
    "Selu": (lower_selu, 6),
    "Gelu": (lower_gelu, 20),
    "HardSigmoid": (lower_hardsigmoid, 6),
    "Softplus": (lower_softplus, 1),
    "Mish": (lower_mish, 18),
    "Swish": (lower_swish, 24),
    "Softsign": (lower_softsign, 1),
    "ThresholdedRelu": (lower_thresholdedrelu, 10),
}
ACTIVATIONS: dict[tuple[str, str], OperatorDef] = {
    **{("", name): OperatorDef(_in_float32(lower), since) for name, (lower, since) in _SIMPLE.items()},
    ("", "HardSwish"): OperatorDef(lower_hardswish, since=14),
    ("", "PRelu"): OperatorDef(lower_prelu, since=9),
    ("", "Shrink"): OperatorDef(lower_shrink, since=9),
}
