"""Element-wise functions, casts, and conversions to and from quantized types."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from .. import dtypes as dt
from ..emit import Emitter, OperatorDef, Value, cast, elementwise, normal_axis, reshape, scalar
from ..errors import DtypeError, ModelError, ParameterError, ShapeError, UnknownOperatorError
from .checks import dtype_of, one_of, text, versioned
from .quantization import (
    BYTES,
    SCALES,
    check_length,
    check_scale,
    dequantize,
    multiplier,
    quantize,
    requantize,
    scale_of,
    zero_point_of,
)

QUANTIZED = ("int8", "uint8", "int16", "uint16")


def _unary(fn: str) -> Callable[..., Value]:
    def lower(emit: Emitter, X: Value) -> Value:
        return emit("Elementwise", X, fn=fn)

    return lower


def _binary(fn: str) -> Callable[..., Value]:
    def lower(emit: Emitter, A: Value, B: Value) -> Value:
        return elementwise(emit, fn, A, B)

    return lower


def _variadic(fn: str) -> Callable[..., Value]:
    def lower(emit: Emitter, *data_0: Value | None) -> Value:
        given = [x for x in data_0 if x is not None]
        if not given or len(given) < len(data_0):
            raise ModelError(
                f"{emit.source}: {len(given)} of {len(data_0)} inputs given, expected at least one and no gap"
            )
        one_of(emit, "data_0", given[0], (*dt.FLOATS, *dt.INTS))
        return reduce(lambda left, right: elementwise(emit, fn, left, right), given)

    return lower


def lower_clip(emit: Emitter, input: Value, min: Value | None = None, max: Value | None = None) -> Value:
    """output = minimum(maximum(input, min), max): max wins where min > max

    Shapes: min and max scalars, either may be absent.
    Source: ONNX Clip-13: an absent bound defaults to the type's lowest or largest finite number, while the
        reference implementation leaves infinities alone: an infinite input is undecided there.
    """
    one_of(emit, "input", input, (*dt.FLOATS, *dt.INTS))
    output = input
    for name, bound, fn, edge in (("min", min, "max", -1.0), ("max", max, "min", 1.0)):
        if bound is None and input.dtype in dt.FLOATS:
            end = scalar(emit, edge * dt.MAX[input.dtype], input.dtype)
            output = elementwise(emit, fn, output, end, inf_free=True)
        elif bound is not None:
            if bound.rank:
                raise ShapeError(f"{emit.source}: {name} has shape {text(bound.shape)}, expected a scalar")
            output = elementwise(emit, fn, output, bound)
    return output


def lower_where(emit: Emitter, condition: Value, X: Value, Y: Value) -> Value:
    """output = X where condition else Y, all broadcast. Source: ONNX Where-16."""
    return elementwise(emit, "where", condition, X, Y)


def lower_cast(emit: Emitter, input: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    """output = input converted to `to`; saturate and round_mode concern 8-bit floats only. Source: ONNX Cast-25."""
    return cast(emit, input, dtype_of(emit, "to", to))


def lower_identity(emit: Emitter, input: Value) -> Value:
    return emit("DataMove", input, fn="copy")


def _parameters(
    emit: Emitter, x: Value, scale: Value, zero_point: Value, axis: int, block_size: int, names: tuple[str, str]
) -> tuple[Value, Value]:
    """scale and zero_point broadcastable to x: one element, or one per index of `axis`.

    Raises: ParameterError, ShapeError; UnknownOperatorError for blocks.
    """
    if block_size:
        raise UnknownOperatorError(f"{emit.source}: blocked quantization is not lowered yet (block_size {block_size})")
    check_scale(emit, names[0], scale, signed=True)
    if scale.spec.size == 1 and scale.rank <= 1:
        check_length(emit, names[1], zero_point)
        return reshape(emit, scale, ()), reshape(emit, zero_point, ())
    axis = normal_axis(emit, axis, x.rank)
    for name, value in zip(names, (scale, zero_point), strict=True):
        if value.shape != (x.shape[axis],):
            raise ParameterError(
                f"{emit.source}: {name} has shape {text(value.shape)}, expected a scalar or "
                f"{x.shape[axis]} elements, one per index of axis {axis} of {text(x.shape)}"
            )
    shape = (*scale.shape, *(1,) * (x.rank - 1 - axis))
    return reshape(emit, scale, shape), reshape(emit, zero_point, shape)


def lower_quantizelinear(
    emit: Emitter,
    x: Value,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    axis: int = 1,
    saturate: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
) -> Value:
    """y = saturate(round(x / y_scale) + y_zero_point), halves to even

    Shapes: y_scale and y_zero_point one element, or one per index of axis.
    Dtypes: float32 float16 bfloat16 int32 -> int8 uint8 int16 uint16; uint8 where nothing else is said.
    Source: ONNX QuantizeLinear-25; saturate concerns 8-bit floats only.
    """
    one_of(emit, "x", x, (*SCALES, "int32"))
    to = dtype_of(emit, "output_dtype", output_dtype) if output_dtype else "uint8"
    if y_zero_point is not None:
        if output_dtype and to != y_zero_point.dtype:
            raise DtypeError(f"{emit.source}: output_dtype is {to} but y_zero_point is {y_zero_point.spec}")
        to = y_zero_point.dtype
    if to not in QUANTIZED:
        raise DtypeError(f"{emit.source}: cannot quantize to {to}, only to {', '.join(QUANTIZED)}")
    zero = y_zero_point or emit.constant(np.zeros(y_scale.shape, dt.numpy_dtype(to)))
    scale, zero = _parameters(emit, x, y_scale, zero, axis, block_size, ("y_scale", "y_zero_point"))
    divides_in = dtype_of(emit, "precision", precision) if precision else ""
    if x.dtype == "int32":
        x = cast(emit, x, "float32")
    if scale.dtype not in (x.dtype, "float32"):
        # The type of the scale is the precision of the division even where the kernel gets it widened.
        divides_in, scale = divides_in or scale.dtype, cast(emit, scale, "float32")
    return quantize(emit, x, scale, zero, divides_in)


def lower_dequantizelinear(
    emit: Emitter,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Value:
    """y = (x - x_zero_point) * x_scale in the output's type

    Shapes: x_scale and x_zero_point one element, or one per index of axis.
    Dtypes: int8 uint8 int16 uint16 int32 -> type of x_scale, or output_dtype.
    Source: ONNX DequantizeLinear-25.
    """
    one_of(emit, "x", x, (*QUANTIZED, "int32"))
    zero = x_zero_point or emit.constant(np.zeros(x_scale.shape, dt.numpy_dtype(x.dtype)))
    one_of(emit, "x_zero_point", zero, (x.dtype,))
    to = dtype_of(emit, "output_dtype", output_dtype) if output_dtype else x_scale.dtype
    if to not in SCALES:
        raise DtypeError(f"{emit.source}: cannot dequantize to {to}, only to {', '.join(SCALES)}")
    scale, zero = _parameters(emit, x, x_scale, zero, axis, block_size, ("x_scale", "x_zero_point"))
    return dequantize(emit, x, cast(emit, scale, "float32") if to == "float32" else scale, zero, to)


def lower_dynamicquantizelinear(emit: Emitter, x: Value) -> tuple[Value, Value, Value]:
    """y_scale = (hi - lo) / 255, y_zero_point = saturate(round(-lo / y_scale)), y = QuantizeLinear(x)

    with hi = max(0, max(x)), lo = min(0, min(x)); y_scale is 1 where x is all zero (the function body
    of the standard divides 0 by 0 there).
    Source: ONNX DynamicQuantizeLinear-11.
    """
    one_of(emit, "x", x, ("float32",))
    flat, zero = reshape(emit, x, (x.spec.size,)), scalar(emit, 0, "float32")
    hi = elementwise(emit, "max", emit("Reduce", flat, fn="max"), zero)
    lo = elementwise(emit, "min", emit("Reduce", flat, fn="min"), zero)
    step = elementwise(emit, "div", elementwise(emit, "sub", hi, lo), scalar(emit, 255, "float32"), recip=True)
    y_scale = elementwise(emit, "where", cast(emit, step, "bool"), step, scalar(emit, 1, "float32"))
    y_zero_point = quantize(emit, emit("Elementwise", lo, fn="neg"), y_scale, scalar(emit, 0, "uint8"), roundings=2)
    return quantize(emit, x, y_scale, y_zero_point), y_scale, y_zero_point


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
    a = dequantize(emit, A, scale_of(emit, "A_scale", A_scale), a_zero)
    b = dequantize(emit, B, scale_of(emit, "B_scale", B_scale), b_zero)
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


_UNARY = {"Relu": 6, "Neg": 6, "Abs": 6, "Sigmoid": 6, "Tanh": 6, "Exp": 6, "Log": 6, "Sqrt": 6, "Erf": 9}
POINTWISE: dict[tuple[str, str], OperatorDef] = {
    **{("", name): OperatorDef(_unary(name.lower()), since) for name, since in _UNARY.items()},
    **{("", name): OperatorDef(_binary(name.lower()), since=7) for name in ("Add", "Sub", "Mul", "Div")},
    **{("", name): OperatorDef(_variadic(name.lower()), since=8) for name in ("Max", "Min")},
    ("", "Clip"): OperatorDef(lower_clip, since=11),
    ("", "Where"): OperatorDef(lower_where, since=9),
    ("", "Cast"): OperatorDef(versioned(lower_cast, saturate=(19, None), round_mode=(24, None)), since=6),
    ("", "Identity"): OperatorDef(lower_identity),
    ("", "QuantizeLinear"): OperatorDef(
        versioned(
            lower_quantizelinear,
            axis=(13, None),
            saturate=(19, None),
            block_size=(21, None),
            output_dtype=(21, None),
            precision=(23, None),
        ),
        since=10,
    ),
    ("", "DequantizeLinear"): OperatorDef(
        versioned(lower_dequantizelinear, axis=(13, None), block_size=(21, None), output_dtype=(23, None)), since=10
    ),
    ("", "DynamicQuantizeLinear"): OperatorDef(lower_dynamicquantizelinear, since=11, forced=(1, 2)),
    ("com.microsoft", "QLinearAdd"): OperatorDef(lower_qlinearadd, domain="com.microsoft"),
    ("com.microsoft", "QLinearMul"): OperatorDef(lower_qlinearmul, domain="com.microsoft"),
}
