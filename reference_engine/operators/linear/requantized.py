"""Quantized movement: operands brought to the scale of the output."""

from __future__ import annotations

from ...emit import Emitter, OperatorDef, Value, broadcast_shape, cast, elementwise, expand, normal_axis
from ...errors import ModelError
from ..checks import one_of
from ..quantization import BYTES, requantize, scale_of, zero_point_of


def _brought(
    emit: Emitter, name: str, x: Value, scale: Value, zero_point: Value, y_scale: Value, y_zero: Value
) -> Value:
    """saturate(round((x - zero_point) * (scale / y_scale)) + y_zero)."""
    one_of(emit, name, x, (y_zero.dtype,))
    zero = zero_point_of(emit, f"{name}_zero_point", zero_point, x)
    difference = elementwise(emit, "sub", cast(emit, x, "int32"), cast(emit, zero, "int32"))
    factor = elementwise(emit, "div", scale_of(emit, f"{name}_scale", scale), y_scale)
    return requantize(emit, difference, factor, y_zero)


def lower_qlinearconcat(emit: Emitter, Y_scale: Value, Y_zero_point: Value, *inputs: Value, axis: int) -> Value:
    """Y = concat over i of saturate(round((x_i - zero_point_i) * (scale_i / Y_scale)) + Y_zero_point)

    Shapes: x_i equal outside the axis; all parameters per tensor; inputs are x, scale, zero point by turns.
    Source: com.microsoft QLinearConcat-1.
    """
    if not inputs or len(inputs) % 3:
        raise ModelError(
            f"{emit.source}: {len(inputs)} inputs after Y_zero_point, expected triples of x, scale, zero point"
        )
    one_of(emit, "Y_zero_point", Y_zero_point, BYTES)
    y_scale = scale_of(emit, "Y_scale", Y_scale)
    y_zero = zero_point_of(emit, "Y_zero_point", Y_zero_point, Y_zero_point)
    parts = [
        _brought(emit, f"x{i // 3}", inputs[i], inputs[i + 1], inputs[i + 2], y_scale, y_zero)
        for i in range(0, len(inputs), 3)
    ]
    return emit("DataMove", *parts, fn="concat", axis=normal_axis(emit, axis, parts[0].rank))


def lower_qlinearwhere(
    emit: Emitter,
    condition: Value,
    X: Value,
    x_scale: Value,
    x_zero_point: Value,
    Y: Value,
    y_scale: Value,
    y_zero_point: Value,
    z_scale: Value,
    z_zero_point: Value,
) -> Value:
    """Z = where(condition, X', Y'), each brought to z_scale and z_zero_point as in QLinearConcat

    Shapes: condition, X and Y broadcast; all parameters per tensor.
    Source: com.microsoft QLinearWhere-1.
    """
    one_of(emit, "condition", condition, ("bool",))
    one_of(emit, "z_zero_point", z_zero_point, BYTES)
    scale = scale_of(emit, "z_scale", z_scale)
    zero = zero_point_of(emit, "z_zero_point", z_zero_point, z_zero_point)
    x = _brought(emit, "X", X, x_scale, x_zero_point, scale, zero)
    y = _brought(emit, "Y", Y, y_scale, y_zero_point, scale, zero)
    shape = broadcast_shape(emit, condition.shape, x.shape, y.shape)
    return emit("Elementwise", *(expand(emit, v, shape) for v in (condition, x, y)), fn="where")


REQUANTIZED: dict[tuple[str, str], OperatorDef] = {
    ("com.microsoft", "QLinearConcat"): OperatorDef(lower_qlinearconcat, domain="com.microsoft"),
    ("com.microsoft", "QLinearWhere"): OperatorDef(lower_qlinearwhere, domain="com.microsoft"),
}
