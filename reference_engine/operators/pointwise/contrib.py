"""com.microsoft: quantized arithmetic and quantized functions of one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...emit import Emitter, OperatorDef, Value, cast, elementwise, scalar
from ..checks import one_of
from ..quantization import (
    BYTES,
    dequantize,
    multiplier,
    quantize,
    requantize,
    scale_of,
    zero_point_of,
)


def _pair(
    emit: Emitter,
    A: Value,
    A_zero_point: Value | None,
    B: Value,
    B_zero_point: Value | None,
    C_zero_point: Value | None,
) -> tuple[Value, Value, Value]:
    """The three zero points of a binary operator on one quantized type. Raises: DtypeError."""
    one_of(emit, "A", A, BYTES)
    one_of(emit, "B", B, (A.dtype,))
    named = (("A_zero_point", A_zero_point), ("B_zero_point", B_zero_point), ("C_zero_point", C_zero_point))
    a, b, c = (zero_point_of(emit, name, value, A) for name, value in named)
    return a, b, c


def lower_qlinearadd(
    emit: Emitter,
    A: Value,
    A_scale: Value,
    A_zero_point: Value | None,
    B: Value,
    B_scale: Value,
    B_zero_point: Value | None,
    C_scale: Value,
    C_zero_point: Value | None = None,
) -> Value:
    """C = saturate(round(((A - A_zero_point) * A_scale + (B - B_zero_point) * B_scale) / C_scale) + C_zero_point)

    Source: com.microsoft QLinearAdd-1, parameters per tensor; no rounding text, the zero point may be
        added before or after rounding.
    """
    a_zero, b_zero, c_zero = _pair(emit, A, A_zero_point, B, B_zero_point, C_zero_point)
    a = dequantize(emit, A, scale_of(emit, "A_scale", A_scale), a_zero, expanded=True)
    b = dequantize(emit, B, scale_of(emit, "B_scale", B_scale), b_zero, expanded=True)
    return quantize(emit, elementwise(emit, "add", a, b), scale_of(emit, "C_scale", C_scale), c_zero, zp_inside=True)


def lower_qlinearmul(
    emit: Emitter,
    A: Value,
    A_scale: Value,
    A_zero_point: Value | None,
    B: Value,
    B_scale: Value,
    B_zero_point: Value | None,
    C_scale: Value,
    C_zero_point: Value | None = None,
) -> Value:
    """C = saturate(round((A - A_zero_point) * (B - B_zero_point) * ((A_scale * B_scale) / C_scale) + C_zero_point))

    Source: com.microsoft QLinearMul-1, parameters per tensor; no rounding text, the zero point may be
        added before or after rounding.
    """
    a_zero, b_zero, c_zero = _pair(emit, A, A_zero_point, B, B_zero_point, C_zero_point)
    a = elementwise(emit, "sub", cast(emit, A, "int32"), cast(emit, a_zero, "int32"))
    b = elementwise(emit, "sub", cast(emit, B, "int32"), cast(emit, b_zero, "int32"))
    scales = (scale_of(emit, n, s) for n, s in (("A_scale", A_scale), ("B_scale", B_scale), ("C_scale", C_scale)))
    return requantize(emit, elementwise(emit, "mul", a, b), multiplier(emit, *scales), c_zero, zp_inside=True)


def _single(
    emit: Emitter, X: Value, X_scale: Value, X_zero_point: Value | None, Y_scale: Value, Y_zero_point: Value | None
) -> tuple[Value, Value, Value, Value]:
    """X - X_zero_point, that times X_scale, and the parameters of Y. Raises: DtypeError, ParameterError."""
    one_of(emit, "X", X, BYTES)
    x_zero = zero_point_of(emit, "X_zero_point", X_zero_point, X)
    y_zero = zero_point_of(emit, "Y_zero_point", Y_zero_point, X)
    steps = elementwise(emit, "sub", cast(emit, X, "int32"), cast(emit, x_zero, "int32"))
    x = elementwise(emit, "mul", cast(emit, steps, "float32"), scale_of(emit, "X_scale", X_scale))
    return steps, x, scale_of(emit, "Y_scale", Y_scale), y_zero


def lower_qlinearleakyrelu(
    emit: Emitter,
    X: Value,
    X_scale: Value,
    X_zero_point: Value | None,
    Y_scale: Value,
    Y_zero_point: Value | None = None,
    *,
    alpha: float = 0.01,
) -> Value:
    """Y = saturate(round(leaky((X - X_zero_point) * X_scale) / Y_scale) + Y_zero_point), leaky(x) = alpha x below 0

    Source: com.microsoft QLinearLeakyRelu-1; no rounding text, the zero point may be added before or after
        rounding; gamma_6 covers every order of the three factors (N4).
    """
    steps, x, y_scale, y_zero = _single(emit, X, X_scale, X_zero_point, Y_scale, Y_zero_point)
    below = elementwise(emit, "less", steps, scalar(emit, 0, "int32"))
    y = elementwise(emit, "where", below, elementwise(emit, "mul", x, scalar(emit, alpha, "float32")), x)
    return quantize(emit, y, y_scale, y_zero, zp_inside=True, roundings=3)


def lower_qlinearsigmoid(
    emit: Emitter,
    X: Value,
    X_scale: Value,
    X_zero_point: Value | None,
    Y_scale: Value,
    Y_zero_point: Value | None = None,
) -> Value:
    """Y = saturate(round(sigmoid((X - X_zero_point) * X_scale) / Y_scale) + Y_zero_point)

    Source: com.microsoft QLinearSigmoid-1; no rounding text, the zero point may be added before or after rounding.
    """
    _, x, y_scale, y_zero = _single(emit, X, X_scale, X_zero_point, Y_scale, Y_zero_point)
    return quantize(emit, emit("Elementwise", x, fn="sigmoid"), y_scale, y_zero, zp_inside=True, roundings=1)


_LOWERINGS: dict[str, Callable[..., Any]] = {
    "QLinearAdd": lower_qlinearadd,
    "QLinearMul": lower_qlinearmul,
    "QLinearLeakyRelu": lower_qlinearleakyrelu,
    "QLinearSigmoid": lower_qlinearsigmoid,
}
CONTRIB: dict[tuple[str, str], OperatorDef] = {
    ("com.microsoft", name): OperatorDef(lower, domain="com.microsoft") for name, lower in _LOWERINGS.items()
}
