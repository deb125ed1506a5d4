"""Planted faults of element-wise functions, casts, quantization."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from opgauge.reference_engine.types import Array

from . import kernels as k
from .planted import Call, Outputs, Planted, Skip, honest

F = np.float32
H = np.float16
B16 = ml_dtypes.bfloat16


def on(types: tuple[type, ...], change: Callable[..., Array]) -> Callable[[Call, Outputs], Outputs]:
    """`change(y, *inputs)` on results of these types."""

    def after(call: Call, outputs: Outputs) -> Outputs:
        y = outputs[0]
        if y.dtype.type not in types:
            raise Skip
        with np.errstate(all="ignore"):
            made = np.asarray(change(y.copy(), *(x for x in call.inputs if x is not None)))
        return [made.astype(y.dtype).reshape(y.shape), *outputs[1:]]

    return after


FLOATS = (np.float32, np.float64)
INTS = (np.int8, np.uint8, np.int32, np.int64)


def fn(change: Callable[..., Array]) -> Callable[[Call], Outputs]:
    """A float32 function computed in another way."""

    def inside(call: Call) -> Outputs:
        x = call.need(0)
        k.require(x.dtype == F)
        with np.errstate(all="ignore"):
            return [np.asarray(change(x)).astype(F)]

    return inside


# Quantization: per-tensor float32 to 8 or 16 bits.


def quantize(
    rounding: k.Rounding = np.rint,
    divide: Callable[[Array, Array], Array] = lambda x, s: (x / s).astype(F),
    saturate: Callable[[Array, np.dtype], Array] = k.clipped,
    inside: bool = False,
) -> Callable[[Call], Outputs]:
    def kernel(call: Call) -> Outputs:
        x, s, z = call.need(0), call.need(1), call.operand(2)
        dtype = np.dtype(np.uint8) if z is None else z.dtype
        k.require(x.dtype == F and s.dtype == F and s.size == 1 and dtype.kind in "iu" and dtype.itemsize < 4)
        k.require(not set(call.attrs) & {"output_dtype", "precision", "block_size"})
        zero = 0 if z is None else int(k.scalar(z))
        with np.errstate(all="ignore"):
            v = divide(x, s.reshape(()))
            whole = rounding(v + F(zero)) if inside else rounding(v) + zero
            return [saturate(whole, dtype)]

    return kernel


def wrapped(x: Array, dtype: np.dtype) -> Array:
    return np.nan_to_num(x, nan=0, posinf=0, neginf=0).astype(np.int64).astype(dtype)


def short_int8(x: Array, dtype: np.dtype) -> Array:
    if dtype != np.int8:
        raise Skip
    return np.clip(np.nan_to_num(x, nan=-127), -127, 127).astype(dtype)


def below_the_top(x: Array, dtype: np.dtype) -> Array:
    """The largest number is never reached."""
    return np.minimum(k.clipped(x, dtype), np.iinfo(dtype).max - 1).astype(dtype)


def shifted_axis(call: Call) -> Call:
    """Parameters of one channel taken from that before it."""
    scale = call.need(1)
    if scale.ndim != 1 or scale.size < 2:
        raise Skip
    return call.with_input(1, np.roll(scale, 1))


def first_of_axis(index: int) -> Callable[[Call], Call]:
    def before(call: Call) -> Call:
        p = call.need(index)
        if p.ndim != 1 or p.size < 2:
            raise Skip
        return call.with_input(index, np.full_like(p, p[0]))

    return before


def signed_zero_point(call: Call) -> Outputs:
    """A uint8 zero point of 128 or more read as negative."""
    z, scale = call.need(2), call.need(1)
    if z.dtype != np.uint8 or z.size != 1 or scale.size != 1 or z.max() < 128 or scale.dtype != F:
        raise Skip
    return [((call.need(0).astype(F) - z.astype(np.int8).astype(F)) * scale).astype(F)]


def scale_in(kind: type) -> Callable[[Call], Call]:
    def before(call: Call) -> Call:
        s = call.need(1)
        k.require(s.dtype == F)
        with np.errstate(all="ignore"):
            narrow = s.astype(kind).astype(F)
        return call.with_input(1, np.where((narrow == 0) | ~np.isfinite(narrow), s, narrow))

    return before


def no_zero_point(index: int) -> Callable[[Call], Call]:
    return lambda call: call.with_input(index, np.zeros_like(call.need(index)))


def half_scale_shift(call: Call, outputs: Outputs) -> Outputs:
    """A dynamic range that leaves out zero where all data are positive."""
    y, scale, zero = outputs
    x = call.need(0)
    if x.size == 0 or x.min() <= 0 or not np.isfinite(x).all():
        raise Skip
    return [y, ((x.max() - x.min()) / F(255)).astype(F).reshape(scale.shape), zero]


def range_of_254(call: Call, outputs: Outputs) -> Outputs:
    y, scale, zero = outputs
    return [y, (scale * F(255 / 254)).astype(F), zero]


def added(call: Call, rounding: k.Rounding, product: bool) -> Array:
    """The float32 sum or product before rounding, zero point outside."""
    a, sa, za, b, sb, zb, sc = (call.operand(i) for i in range(7))
    k.require(all(x is not None for x in (a, sa, b, sb, sc)))
    left = (a.astype(F) - F(k.scalar(za))) * F(k.scalar(sa))  # type: ignore[union-attr]
    right = (b.astype(F) - F(k.scalar(zb))) * F(k.scalar(sb))  # type: ignore[union-attr]
    with np.errstate(all="ignore"):
        return rounding((left * right if product else left + right) / F(k.scalar(sc)))


def qlinear(rounding: k.Rounding = np.rint, saturate: Callable[[Array, np.dtype], Array] = k.clipped):
    def kernel(call: Call) -> Outputs:
        a = call.need(0)
        whole = added(call, rounding, call.op == "QLinearMul") + int(k.scalar(call.operand(7)))
        return [saturate(whole, a.dtype)]

    return kernel


def same_count(call: Call) -> Outputs:
    """Operands of one element count taken for one shape."""
    a, b = call.need(0), call.need(1)
    if a.shape == b.shape or a.size != b.size or a.size < 2:
        raise Skip
    shape = np.broadcast_shapes(a.shape, b.shape)
    small = honest(call.with_input(1, b.reshape(a.shape)))[0]
    return [np.resize(small, shape).astype(small.dtype)]


def first_of_row(call: Call) -> Call:
    """A broadcast row is read at its first element."""
    b = call.need(1)
    if b.ndim == 0 or b.shape[-1] < 2 or (call.need(0).ndim <= b.ndim and call.need(0).shape == b.shape):
        raise Skip
    return call.with_input(1, np.broadcast_to(b[..., :1], b.shape).copy())


def drop_nan(y: Array, *xs: Array) -> Array:
    if len(xs) < 2:
        raise Skip
    pick = np.fmax
    return np.where(np.isnan(y), pick.reduce(np.broadcast_arrays(*xs)), y)


def drop_nan_min(y: Array, *xs: Array) -> Array:
    if len(xs) < 2:
        raise Skip
    return np.where(np.isnan(y), np.fmin.reduce(np.broadcast_arrays(*xs)), y)


def floor_division(y: Array, a: Array, b: Array) -> Array:
    return np.where((b != 0), np.floor_divide(a, np.where(b == 0, 1, b)), y)


def reciprocal_in_half(y: Array, a: Array, b: Array) -> Array:
    return (a * (F(1) / b).astype(H).astype(F)).astype(F)


def tail(limit: float, high: float, low: float):
    """A function that stops beyond |x| > limit."""
    return lambda y, x: np.where(x > limit, high, np.where(x < -limit, low, y))


def early_identity(x: Array) -> Array:
    y = np.log1p(np.exp(np.minimum(x, F(5))))
    return np.where(x > F(5), x, y)


def gelu_tanh(call: Call) -> Call:
    if call.attrs.get("approximate", "none") != "none":
        raise Skip
    return call.with_attrs(approximate="tanh")


def attribute_default(name: str, value: float) -> Callable[[Call], Call]:
    """An attribute that is not read."""

    def before(call: Call) -> Call:
        if name not in call.attrs:
            raise Skip
        return call.with_attrs(**{name: value})

    return before


def swapped_branches(call: Call) -> Call:
    return call.with_input(1, call.need(2)).with_input(2, call.need(1))


def rounds_cast(y: Array, x: Array) -> Array:
    if x.dtype.kind != "f" or y.dtype.kind not in "iu":
        raise Skip
    info = np.iinfo(y.dtype)
    return np.where((x > info.min) & (x < info.max), np.rint(x), y)


def floors_cast(y: Array, x: Array) -> Array:
    if x.dtype.kind != "f" or y.dtype.kind not in "iu":
        raise Skip
    info = np.iinfo(y.dtype)
    return np.where((x > info.min) & (x < info.max), np.floor(x), y)


def truncated_half(y: Array, x: Array) -> Array:
    if x.dtype != F or y.dtype != H:
        raise Skip
    near = x.astype(H)
    return np.where(np.abs(near.astype(F)) > np.abs(x), np.nextafter(near, H(0)), near)


def low_byte_is_true(y: Array, x: Array) -> Array:
    if y.dtype != np.bool_ or x.dtype.kind not in "f":
        raise Skip
    return np.trunc(x) != 0


def lacks_lower(call: Call) -> Call:
    call.need(1)
    return call.with_input(1, None)


def lacks_upper(call: Call) -> Call:
    call.need(2)
    return call.with_input(2, None)


def sign_of_divisor(call: Call) -> Call:
    return (
        call.with_attrs(fmod=0 if call.attrs.get("fmod", 0) else 1)
        if call.need(0).dtype.kind == "i"
        else call.with_attrs(fmod=0)
    )


def away(y: Array, x: Array) -> Array:
    return np.where(np.isfinite(x), k.half_away(x.astype(np.float64)), y)


LINEAR_PAIR = ("QLinearAdd", "QLinearMul")
FAULTS = (
    Planted("P01", ("QuantizeLinear",), "numeric", "ties round up", inside=quantize(k.half_up)),
    Planted("P02", ("QuantizeLinear",), "numeric", "ties round away from zero", inside=quantize(k.half_away)),
    Planted("P03", ("QuantizeLinear",), "numeric", "truncates", inside=quantize(np.trunc)),
    Planted("P04", ("QuantizeLinear",), "numeric", "zero point added before rounding", inside=quantize(inside=True)),
    Planted("P05", ("QuantizeLinear",), "numeric", "wraps", inside=quantize(saturate=wrapped)),
    Planted("P06", ("QuantizeLinear",), "numeric", "int8 stops at -127", inside=quantize(saturate=short_int8)),
    Planted(
        "P07",
        ("QuantizeLinear",),
        "numeric",
        "never reaches the largest number",
        inside=quantize(saturate=below_the_top),
    ),
    Planted(
        "P08",
        ("QuantizeLinear",),
        "numeric",
        "reciprocal of the scale in bfloat16",
        inside=quantize(divide=lambda x, s: x * (F(1) / s).astype(B16).astype(F)),
    ),
    Planted("P09", ("QuantizeLinear", "DequantizeLinear"), "numeric", "scale in float16", before=scale_in(H)),
    Planted("P10", ("QuantizeLinear", "DequantizeLinear"), "numeric", "scale in bfloat16", before=scale_in(B16)),
    Planted(
        "P11", ("QuantizeLinear", "DequantizeLinear"), "indexing", "scales shifted by one channel", before=shifted_axis
    ),
    Planted(
        "P12",
        ("QuantizeLinear", "DequantizeLinear"),
        "indexing",
        "first scale for all channels",
        before=first_of_axis(1),
    ),
    Planted(
        "P13",
        ("QuantizeLinear", "DequantizeLinear"),
        "indexing",
        "first zero point for all channels",
        before=first_of_axis(2),
    ),
    Planted("P14", ("QuantizeLinear", "DequantizeLinear"), "numeric", "zero point ignored", before=no_zero_point(2)),
    Planted("P15", ("DequantizeLinear",), "numeric", "uint8 zero point read as signed", inside=signed_zero_point),
    Planted("P16", ("DynamicQuantizeLinear",), "numeric", "the range leaves out zero", after=half_scale_shift),
    Planted("P17", ("DynamicQuantizeLinear",), "numeric", "a range of 254 steps", after=range_of_254),
    Planted(
        "P18",
        LINEAR_PAIR,
        "numeric",
        "ties round away from zero, then truncated",
        inside=qlinear(lambda v: np.trunc(v + np.copysign(F(0.25), v))),
    ),
    Planted("P19", LINEAR_PAIR, "numeric", "floors", inside=qlinear(np.floor)),
    Planted("P20", LINEAR_PAIR, "numeric", "wraps", inside=qlinear(saturate=wrapped)),
    Planted("P21", LINEAR_PAIR, "numeric", "zero point of A ignored", before=no_zero_point(2)),
    Planted("P22", LINEAR_PAIR, "numeric", "zero point of B ignored", before=no_zero_point(5)),
    Planted(
        "P23",
        ("Add", "Sub", "Mul", "Max", "Min"),
        "indexing",
        "equal element counts taken for equal shapes",
        inside=same_count,
    ),
    Planted(
        "P24",
        ("Add", "Sub", "Mul", "Div"),
        "indexing",
        "a broadcast row read at its first element",
        before=first_of_row,
    ),
    Planted("P25", ("Max",), "numeric", "NaN dropped", after=on(FLOATS, drop_nan)),
    Planted("P26", ("Min",), "numeric", "NaN dropped", after=on(FLOATS, drop_nan_min)),
    Planted(
        "P27",
        ("Relu",),
        "numeric",
        "NaN becomes 0",
        after=on(FLOATS, lambda y, x: np.nan_to_num(y, nan=0.0, posinf=np.inf)),
    ),
    Planted(
        "P28",
        ("Relu",),
        "numeric",
        "slope of 0.01 below 0",
        after=on(FLOATS, lambda y, x: np.where(x < 0, 0.01 * x, y)),
    ),
    Planted(
        "P29",
        ("Abs", "Neg"),
        "numeric",
        "the last element is not touched",
        after=on((*FLOATS, *INTS), lambda y, x: np.concatenate([y.ravel()[:-1], x.ravel()[-1:]])),
    ),
    Planted(
        "P30",
        ("Div",),
        "numeric",
        "integers divided toward minus infinity",
        after=on((np.int32, np.int64), floor_division),
    ),
    Planted(
        "P31", ("Div",), "numeric", "product with a float16 reciprocal", after=on((np.float32,), reciprocal_in_half)
    ),
    Planted("P32", ("Sigmoid",), "numeric", "0 and 1 beyond 8", after=on((np.float32,), tail(8.0, 1.0, 0.0))),
    Planted("P33", ("Sigmoid",), "numeric", "hard sigmoid", inside=fn(lambda x: np.clip(x / 6 + 0.5, 0, 1))),
    Planted("P34", ("Tanh",), "numeric", "1 beyond 4", after=on((np.float32,), tail(4.0, 1.0, -1.0))),
    Planted("P35", ("Tanh",), "numeric", "computed in float16", inside=fn(lambda x: np.tanh(x.astype(H)))),
    Planted(
        "P36",
        ("Exp",),
        "numeric",
        "overflows beyond 80",
        after=on((np.float32,), lambda y, x: np.where(x > 80, np.inf, y)),
    ),
    Planted("P37", ("Exp",), "numeric", "2^-12 relative error", after=on(FLOATS, lambda y, x: y * (1 + 2.0**-12))),
    Planted("P38", ("Log",), "numeric", "log of 1 + x", inside=fn(lambda x: np.log1p(x))),
    Planted(
        "P39",
        ("Log", "Sqrt"),
        "numeric",
        "0 for negative numbers",
        after=on(FLOATS, lambda y, x: np.where(x < 0, 0, y)),
    ),
    Planted(
        "P40",
        ("Sqrt",),
        "numeric",
        "a reciprocal root of 12 bits",
        inside=fn(lambda x: np.where((x > 0) & (x < 1e38), x / np.sqrt(x).astype(B16).astype(F), np.sqrt(x))),
    ),
    Planted(
        "P41", ("Erf",), "numeric", "computed in float16", after=on((np.float32,), lambda y, x: y.astype(H).astype(F))
    ),
    Planted("P42", ("Gelu",), "numeric", "tanh approximation where erf is asked for", before=gelu_tanh),
    Planted(
        "P43",
        ("Elu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Celu"),
        "numeric",
        "alpha not read",
        before=attribute_default("alpha", 0.75),
    ),
    Planted("P44", ("HardSigmoid",), "numeric", "beta not read", before=attribute_default("beta", 0.25)),
    Planted("P45", ("Clip",), "numeric", "lower bound ignored", before=lacks_lower),
    Planted("P46", ("Clip",), "numeric", "upper bound ignored", before=lacks_upper),
    Planted("P47", ("Where",), "indexing", "branches swapped", before=swapped_branches),
    Planted("P48", ("Cast",), "numeric", "float to integer rounds to nearest", after=on(INTS, rounds_cast)),
    Planted("P49", ("Cast",), "numeric", "float to integer floors", after=on(INTS, floors_cast)),
    Planted("P50", ("Cast",), "numeric", "float32 to float16 truncates", after=on((np.float16,), truncated_half)),
    Planted("P51", ("Cast",), "numeric", "a fraction is false", after=on((np.bool_,), low_byte_is_true)),
    Planted("P52", ("Round",), "numeric", "ties round away from zero", after=on(FLOATS, away)),
    Planted("P53", ("Mod",), "numeric", "the sign of the other operand", before=sign_of_divisor),
    Planted(
        "P54",
        ("Less", "LessOrEqual"),
        "numeric",
        "equal numbers compare the other way",
        after=on((np.bool_,), lambda y, a, b: np.where(a == b, ~y, y)),
    ),
    Planted(
        "P55",
        ("Softplus",),
        "numeric",
        "identity beyond 5",
        inside=fn(early_identity),
    ),
    Planted(
        "P56",
        ("Sin", "Cos"),
        "numeric",
        "pi in float16",
        after=on((np.float32,), lambda y, x: np.where(np.abs(x) > 3, y.astype(H), y)),
    ),
    Planted(
        "P57",
        ("Mul",),
        "numeric",
        "products in float16",
        after=on((np.float32,), lambda y, a, b: (a.astype(H) * b.astype(H)).astype(F)),
    ),
)
