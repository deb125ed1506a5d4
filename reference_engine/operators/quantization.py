"""Scales and zero points: what is checked, and how they meet the tensor that they belong to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import dtypes as dt
from ..emit import Emitter, Value, broadcast_shape, cast, elementwise, expand, reshape, scalar
from ..errors import ParameterError
from ..types import Array
from .checks import one_of, text

BYTES = ("int8", "uint8")
SCALES = ("float32", "float16", "bfloat16")


def known(emit: Emitter, value: Value) -> Array | None:
    """The content where it is known now. Unlike `emit.data` this binds no plan to it."""
    found = emit.constants.get(value.name)
    return emit.feeds.get(value.name) if found is None else found


def check_scale(emit: Emitter, name: str, scale: Value, *, signed: bool = False) -> None:
    """A scale is finite and > 0 (signed: not 0), as far as its content is known.

    Raises: DtypeError, ParameterError naming the input and the element.
    """
    one_of(emit, name, scale, SCALES)
    content = known(emit, scale)
    if content is None:
        return
    data = np.asarray(content).astype(np.float64).ravel()
    bad = ~np.isfinite(data) | (data == 0 if signed else data <= 0)
    if bad.any():
        at = int(bad.argmax())
        raise ParameterError(
            f"{emit.source}: {name}[{at}] is {data[at]}: a scale must be finite and {'not 0' if signed else '> 0'}"
        )


def check_length(
    emit: Emitter, name: str, value: Value, allowed: tuple[int, ...] | None = None, what: str = ""
) -> None:
    """One element, or exactly the shape `allowed`. Raises: ParameterError."""
    if (value.spec.size == 1 and value.rank <= 1) or value.shape == allowed:
        return
    also = "" if allowed is None else f" or {text(allowed)} ({what})"
    raise ParameterError(f"{emit.source}: {name} has shape {text(value.shape)}, expected a scalar{also}")


def per_tensor(emit: Emitter, name: str, value: Value) -> Value:
    """The parameter as a scalar. Raises: ParameterError."""
    check_length(emit, name, value)
    return reshape(emit, value, ())


def scale_of(emit: Emitter, name: str, scale: Value) -> Value:
    """A checked per-tensor scale in float32."""
    check_scale(emit, name, scale)
    return cast(emit, per_tensor(emit, name, scale), "float32")


def zero_point_of(emit: Emitter, name: str, zero_point: Value | None, like: Value) -> Value:
    """The per-tensor zero point of `like`; 0 where absent. Raises: DtypeError, ParameterError."""
    if zero_point is None:
        return scalar(emit, 0, like.dtype)
    one_of(emit, name, zero_point, (like.dtype,))
    return per_tensor(emit, name, zero_point)


def multiplier(emit: Emitter, a_scale: Value, b_scale: Value, y_scale: Value) -> Value:
    """(a_scale * b_scale) / y_scale in float32, in this order."""
    return elementwise(emit, "div", elementwise(emit, "mul", a_scale, b_scale), y_scale)


def requantize(emit: Emitter, acc: Value, factor: Value, zero_point: Value, *, zp_inside: bool = False) -> Value:
    """saturate(round(acc * factor) + zero_point), the parameters broadcast to acc as numpy would."""
    blocks, params = along(emit, acc, factor, zero_point)
    y = emit("Requantize", blocks, *params, to=zero_point.dtype, zp_inside=zp_inside)
    return reshape(emit, y, acc.shape)


def quantize(
    emit: Emitter,
    x: Value,
    scale: Value,
    zero_point: Value,
    precision: str = "",
    *,
    zp_inside: bool = False,
    roundings: int = 0,
    saturate: int = 1,
) -> Value:
    """saturate(round(x / scale) + zero_point), the parameters broadcast to x; 8-bit floats: the cast of x / scale."""
    blocks, params = along(emit, x, scale, zero_point)
    to = zero_point.dtype
    if to in dt.FLOAT8:
        y = emit("Quantize", blocks, *params, fn="float8", to=to, precision=precision, saturate=saturate)
    else:
        lenience: dict[str, Any] = {"zp_inside": zp_inside, "roundings": roundings}
        y = emit("Quantize", blocks, *params, to=to, precision=precision, **lenience)
    return reshape(emit, y, x.shape)


def dequantize(
    emit: Emitter, x: Value, scale: Value, zero_point: Value, to: str = "float32", *, expanded: bool = False
) -> Value:
    """(x - zero_point) * scale, the parameters broadcast to x."""
    blocks, params = along(emit, x, scale, zero_point)
    return reshape(emit, emit("Dequantize", blocks, *params, to=to, expanded=expanded), x.shape)


def along(emit: Emitter, x: Value, *params: Value) -> tuple[Value, list[Value]]:
    """x as [O,C,I] and the parameters as [C]: C spans the axes along which a parameter varies.

    Shapes: each parameter broadcasts to x.
    """
    shape = broadcast_shape(emit, *(p.shape for p in params))
    shape = (1,) * (x.rank - len(shape)) + shape
    varies = [i for i, d in enumerate(shape) if d != 1]
    first, last = (varies[0], varies[-1] + 1) if varies else (0, 0)
    span = x.shape[first:last]
    count = math.prod(span)
    outer = math.prod(x.shape[:first])
    blocks = reshape(emit, x, (outer, count, math.prod(x.shape[last:])))
    return blocks, [reshape(emit, expand(emit, _on_span(emit, p, x.rank, first, last), span), (count,)) for p in params]


def _on_span(emit: Emitter, param: Value, rank: int, first: int, last: int) -> Value:
    shape = (1,) * (rank - param.rank) + param.shape
    return reshape(emit, param, shape[first:last])
