"""Cast, QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

import math

import numpy as np

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, cast, elementwise, normal_axis, reshape, scalar
from ...errors import DtypeError, ParameterError, UnknownOperatorError
from ..checks import dtype_of, one_of, text, versioned
from ..quantization import SCALES, check_length, check_scale, dequantize, quantize

INTEGERS = ("int8", "uint8", "int16", "uint16", *dt.SUBBYTE)
QUANTIZED = (*INTEGERS, *dt.FLOAT8)


def lower_cast(emit: Emitter, input: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    """output = input converted to `to`; saturate concerns 8-bit floats, round_mode only float8e8m0

    Source: ONNX Cast-25: saturated, a number beyond the largest and infinity become the largest.
    """
    return _converted(emit, input, dtype_of(emit, "to", to), saturate)


def lower_castlike(
    emit: Emitter, input: Value, target_type: Value, *, saturate: int = 1, round_mode: str = "up"
) -> Value:
    """output = input converted to the element type of target_type. Source: ONNX CastLike-25."""
    return _converted(emit, input, target_type.dtype, saturate)


def _converted(emit: Emitter, x: Value, to: str, saturate: int) -> Value:
    if to in dt.FLOAT8 and saturate and x.dtype != to and x.dtype != "bool":
        if x.dtype not in dt.FLOATS:
            x = cast(emit, x, "float32")
        if dt.MAX[x.dtype] >= dt.MAX[to]:
            for fn, edge in (("max", -dt.MAX[to]), ("min", dt.MAX[to])):
                x = elementwise(emit, fn, x, scalar(emit, edge, x.dtype))
    return cast(emit, x, to)


def _parameters(
    emit: Emitter, x: Value, scale: Value, zero_point: Value, axis: int, block_size: int, names: tuple[str, str]
) -> tuple[Value, Value]:
    """scale and zero_point broadcastable to x: one element, one per index of `axis`, or one per block of it.

    Raises: ParameterError, ShapeError.
    """
    check_scale(emit, names[0], scale, signed=True)
    if block_size:
        axis = normal_axis(emit, axis, x.rank)
        return _blocks(emit, x, scale, axis, block_size, names[0]), _blocks(
            emit, x, zero_point, axis, block_size, names[1]
        )
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


def _blocks(emit: Emitter, x: Value, param: Value, axis: int, block_size: int, name: str) -> Value:
    """A parameter per block, repeated to the shape of x. Raises: ParameterError."""
    if block_size < 0:
        raise ParameterError(f"{emit.source}: block_size is {block_size}, expected a positive number")
    count = math.ceil(x.shape[axis] / block_size)
    expected = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    if param.shape != expected:
        raise ParameterError(
            f"{emit.source}: {name} has shape {text(param.shape)}, expected {text(expected)} "
            f"for blocks of {block_size} along axis {axis} of {text(x.shape)}"
        )
    head, tail = x.shape[:axis], x.shape[axis + 1 :]
    each = reshape(emit, param, (*head, count, 1, *tail))
    if block_size != 1:
        each = emit("DataMove", each, fn="expand", shape=(*head, count, block_size, *tail))
    whole = reshape(emit, each, (*head, count * block_size, *tail))
    if whole.shape == x.shape:
        return whole
    starts = (0,) * x.rank
    return emit("DataMove", whole, fn="slice", starts=starts, ends=x.shape, steps=(1,) * x.rank)


def _checked_zero(emit: Emitter, name: str, zero_point: Value) -> None:
    """The zero point of an 8-bit float is 0: ONNX keeps the input only to say which type."""
    if zero_point.dtype not in dt.FLOAT8:
        return
    content = emit.constants.get(zero_point.name, emit.feeds.get(zero_point.name))
    if content is not None and np.any(np.asarray(content).astype(np.float64) != 0):
        raise UnknownOperatorError(f"{emit.source}: {name} of type {zero_point.dtype} is lowered only where it is 0")


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
    """y = saturate(round(x / y_scale) + y_zero_point), halves to even; 8-bit floats: y = cast(x / y_scale)

    Shapes: y_scale and y_zero_point one element, one per index of axis, or one per block of block_size of it.
    Dtypes: float32 float16 bfloat16 int32 -> integers of 2 to 16 bits, 8-bit floats; uint8 where nothing is said.
    Source: ONNX QuantizeLinear-25; saturate concerns 8-bit floats only.
    """
    one_of(emit, "x", x, (*SCALES, "int32"))
    to = dtype_of(emit, "output_dtype", output_dtype) if output_dtype else "uint8"
    if y_zero_point is not None:
        if output_dtype and to != y_zero_point.dtype:
            raise DtypeError(f"{emit.source}: output_dtype is {to} but y_zero_point is {y_zero_point.spec}")
        to = y_zero_point.dtype
        _checked_zero(emit, "y_zero_point", y_zero_point)
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
    return quantize(emit, x, scale, zero, divides_in, saturate=saturate, zp_inside=emit.zp_inside)


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

    Shapes: x_scale and x_zero_point one element, one per index of axis, or one per block of block_size of it.
    Dtypes: integers of 2 to 16 bits, int32, 8-bit floats -> type of x_scale, or output_dtype.
    Source: ONNX DequantizeLinear-25.
    """
    one_of(emit, "x", x, (*QUANTIZED, "int32"))
    zero = x_zero_point or emit.constant(np.zeros(x_scale.shape, dt.numpy_dtype(x.dtype)))
    one_of(emit, "x_zero_point", zero, (x.dtype,))
    _checked_zero(emit, "x_zero_point", zero)
    to = dtype_of(emit, "output_dtype", output_dtype) if output_dtype else x_scale.dtype
    if to not in SCALES:
        raise DtypeError(f"{emit.source}: cannot dequantize to {to}, only to {', '.join(SCALES)}")
    scale, zero = _parameters(emit, x, x_scale, zero, axis, block_size, ("x_scale", "x_zero_point"))
    scale = cast(emit, scale, "float32") if to == "float32" else scale
    return dequantize(emit, x, scale, zero, to, expanded=emit.expanded)


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


_QUANTIZE = versioned(
    lower_quantizelinear,
    axis=(13, None),
    saturate=(19, None),
    block_size=(21, None),
    output_dtype=(21, None),
    precision=(23, None),
)
_DEQUANTIZE = versioned(lower_dequantizelinear, axis=(13, None), block_size=(21, None), output_dtype=(23, None))


def lower_quantizelinear_ms(
    emit: Emitter,
    x: Value,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    axis: int = 1,
) -> Value:
    """The same as ai.onnx's without blocks, at every opset. Source: com.microsoft QuantizeLinear-1."""
    return lower_quantizelinear(emit, x, y_scale, y_zero_point, axis=axis)


def lower_dequantizelinear_ms(
    emit: Emitter,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None = None,
    *,
    axis: int = 1,
) -> Value:
    """The same as ai.onnx's without blocks, at every opset. Source: com.microsoft DequantizeLinear-1."""
    return lower_dequantizelinear(emit, x, x_scale, x_zero_point, axis=axis)


MS = "com.microsoft"
CONVERSIONS: dict[tuple[str, str], OperatorDef] = {
    ("", "Cast"): OperatorDef(versioned(lower_cast, saturate=(19, None), round_mode=(24, None)), since=6),
    ("", "CastLike"): OperatorDef(versioned(lower_castlike, saturate=(19, None), round_mode=(24, None)), since=15),
    ("", "QuantizeLinear"): OperatorDef(_QUANTIZE, since=10),
    ("", "DequantizeLinear"): OperatorDef(_DEQUANTIZE, since=10),
    ("", "DynamicQuantizeLinear"): OperatorDef(lower_dynamicquantizelinear, since=11, forced=(1, 2)),
    (MS, "QuantizeLinear"): OperatorDef(lower_quantizelinear_ms, domain=MS),
    (MS, "DequantizeLinear"): OperatorDef(lower_dequantizelinear_ms, domain=MS),
}
