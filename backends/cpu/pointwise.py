"""Elementwise, Quantize, Dequantize and Requantize on the CPU.

Arithmetic and 16-bit floats go through numpy's own vector loops, which write into `out` as well as a
compiled loop would; what numpy does in several passes is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Array, Kernel

from .compile import jit, plain

Ufunc = Callable[..., Any]
WIDER_THAN_FLOAT32 = ("float64", "int32", "int64", "uint32", "uint64")
QUANTIZED = ("int8", "uint8", "int16", "uint16")


def quiet(call: Callable[..., None]) -> Callable[..., None]:
    """IEEE results (infinities, NaN) and wrapped integers are what is asked for, not a reason to warn."""

    def kernel(*operands: Any) -> None:
        with np.errstate(all="ignore"):
            call(*operands)

    kernel.__doc__ = call.__doc__
    return kernel


def written_by(ufunc: Ufunc) -> Callable[..., None]:
    """out[i] = ufunc(x[i], ..)"""

    def kernel(*operands: Array) -> None:
        *xs, out = operands
        ufunc(*xs, out=out)

    return quiet(kernel)


def rounded_once(ufunc: Ufunc) -> Callable[..., None]:
    """out[i] = ufunc(x[i]) in float64, rounded once to the type of out"""

    def kernel(x: Array, out: Array) -> None:
        if x.dtype == dt.NUMPY["bfloat16"]:
            narrow(ufunc(x.astype(np.float64)), out)
        else:
            ufunc(x, out=out, dtype=np.float64, casting="same_kind")

    return quiet(kernel)


def narrow(wide: Array, out: Array) -> None:
    """out[i] = the float nearest to float64 wide[i], half to even"""
    out[...] = dt.narrow(np.asarray(wide, np.float64), dt.word_of(out.dtype))


@quiet
def divide_integer(x: Array, y: Array, out: Array) -> None:
    """out[i] = x[i] / y[i] truncated toward zero; 0 where y is 0"""
    np.floor_divide(x, y, out=out)
    inexact = (out * y != x) & (y != 0)
    out += inexact & ((x < 0) != (y < 0))


@quiet
def modulo(x: Array, y: Array, out: Array) -> None:
    """out[i] = x[i] - floor(x[i] / y[i]) * y[i]; 0 where y is 0"""
    np.mod(x, y, out=out)


@quiet
def remainder(x: Array, y: Array, out: Array) -> None:
    """out[i] = x[i] - trunc(x[i] / y[i]) * y[i], exact; an integer divisor of 0 gives 0"""
    if x.dtype == dt.NUMPY["bfloat16"]:
        narrow(np.fmod(x.astype(np.float64), y.astype(np.float64)), out)
    else:
        np.fmod(x, y, out=out)


@quiet
def power(x: Array, y: Array, out: Array) -> None:
    """out[i] = x[i] ^ y[i], floats in float64 and rounded once; 0 where an integer exponent is negative"""
    if x.dtype.kind == "i":
        np.power(x, np.maximum(y, 0), out=out)
        out[y < 0] = 0
    else:
        narrow(np.power(x.astype(np.float64), y.astype(np.float64)), out)


def shifted(ufunc: Ufunc) -> Callable[..., None]:
    """out[i] = x[i] shifted by y[i] bits; beyond the width of the type, or below 0, only the sign is left"""

    def kernel(x: Array, y: Array, out: Array) -> None:
        width = 8 * x.dtype.itemsize
        beyond = (y < 0) | (y >= width)
        ufunc(x, np.where(beyond, 0, y).astype(x.dtype), out=out)
        out[beyond] = np.where((x < 0) & (ufunc is np.right_shift), -1, 0).astype(x.dtype)[beyond]

    return quiet(kernel)


@quiet
def relu(x: Array, out: Array) -> None:
    """out[i] = max(x[i], 0); NaN stays"""
    np.maximum(x, x.dtype.type(0), out=out)


@quiet
def sigmoid(x: Array, out: Array) -> None:
    """out[i] = 1 / (1 + exp(-x[i])), written so that exp never overflows"""
    wide = x.astype(np.float64)
    e = np.exp(-np.abs(wide))
    y = np.where(wide < 0, e, 1.0) / (1.0 + e)
    narrow(y, out)


@jit
def erf_flat(x, out):
    """out[i] = erf(x[i]), Dtypes: float64 both."""
    for i in range(x.size):
        out[i] = math.erf(x[i])


@quiet
def erf(x: Array, out: Array) -> None:
    """out[i] = erf(x[i]) in float64, rounded once"""
    wide = np.empty(x.size, np.float64)
    erf_flat(x.astype(np.float64).reshape(x.size), wide)
    narrow(wide.reshape(x.shape), out)


def where(cond: Array, x: Array, y: Array, out: Array) -> None:
    np.copyto(out, y)
    np.copyto(out, x, where=cond)


@quiet
def cast(x: Array, out: Array, to: str, *_: object) -> None:
    """out[i] = x[i] in the type of out

    Float to integer truncates, saturates, and makes NaN 0; integers wrap; bool is x != 0; a narrower
    float is rounded once, half to even.
    """
    source = dt.word_of(x.dtype)
    if source in dt.SUBBYTE or source in dt.FLOAT8:
        cast(x.astype(np.float32 if source in dt.FLOAT8 else np.int8), out, to)
    elif to in dt.SUBBYTE and dt.is_float(source):
        held = np.empty(out.shape, np.int64)
        cast(x, held, "int64")
        out[...] = held.astype(out.dtype)  # beyond the range the low bits, as ml_dtypes would
    elif to == "bool":
        np.not_equal(x, x.dtype.type(0), out=out)
    elif dt.is_float(source) and not dt.is_float(to):
        truncate(x, out, to)
    elif to in ("bfloat16", *dt.FLOAT8) and source in WIDER_THAN_FLOAT32:
        narrow(x.astype(np.float64), out)
    else:
        np.copyto(out, x, casting="unsafe")


def truncate(x: Array, out: Array, to: str) -> None:
    low, high = dt.limits(to)
    wide = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=math.inf, neginf=-math.inf)
    # The largest 64-bit integers are no float64: clamp to the one below, then put the limit itself.
    top = float(high) if int(float(high)) == high else math.nextafter(float(high), 0.0)
    np.copyto(out, np.clip(wide, float(low), top), casting="unsafe")
    if top < high:
        out[wide > top] = high


@jit
def quantize_rows(x, scale, zero_point, out, low, high):
    """out[o,c,i] = clip(rint(x[o,c,i] / scale[c]) + zero_point[c], low, high)

    Shapes: x, out [O,C,I]; scale, zero_point [C]. I = 1 runs along C.
    Dtypes: x, scale float32; zero_point int32; out any integer of 16 bits or less. NaN gives low.
    """
    n_o, n_c, n_i = x.shape
    for o in range(n_o):
        if n_i == 1:
            for c in range(n_c):
                out[o, c, 0] = quantized(x[o, c, 0] / scale[c], zero_point[c], low, high)
        else:
            for c in range(n_c):
                s, z, source, target = scale[c], zero_point[c], x[o, c], out[o, c]
                for i in range(n_i):
                    target[i] = quantized(source[i] / s, z, low, high)


@jit
def requantize_rows(acc, multiplier, zero_point, out, low, high):
    """out[o,c,i] = clip(rint(float32(acc[o,c,i]) * multiplier[c]) + zero_point[c], low, high)

    Shapes, Dtypes: as quantize_rows; acc int32.
    """
    n_o, n_c, n_i = acc.shape
    for o in range(n_o):
        if n_i == 1:
            for c in range(n_c):
                out[o, c, 0] = quantized(np.float32(acc[o, c, 0]) * multiplier[c], zero_point[c], low, high)
        else:
            for c in range(n_c):
                m, z, source, target = multiplier[c], zero_point[c], acc[o, c], out[o, c]
                for i in range(n_i):
                    target[i] = quantized(np.float32(source[i]) * m, z, low, high)


@jit
def quantized(y, zero_point, low, high):
    """clip(rint(y) + zero_point, low, high)"""
    # Clamp as a float, before the conversion: both bounds are small integers, so this loses nothing.
    bottom, top = np.float32(low - zero_point), np.float32(high - zero_point)
    y = np.rint(y)
    y = y if y > bottom else bottom  # also NaN
    y = y if y < top else top
    return np.int32(y) + zero_point


@jit
def dequantize_rows(x, scale, zero_point, out):
    """out[o,c,i] = float32(x[o,c,i] - zero_point[c]) * scale[c]

    Shapes: as quantize_rows. Dtypes: x int8 uint8 int16 uint16 int32; zero_point int64; scale, out float32.
    """
    n_o, n_c, n_i = x.shape
    for o in range(n_o):
        if n_i == 1:
            for c in range(n_c):
                out[o, c, 0] = np.float32(x[o, c, 0] - zero_point[c]) * scale[c]
        else:
            for c in range(n_c):
                s, z, source, target = scale[c], zero_point[c], x[o, c], out[o, c]
                for i in range(n_i):
                    target[i] = np.float32(source[i] - z) * s


@quiet
def quantize(x: Array, scale: Array, zero_point: Array, out: Array, to: str, *_: object) -> None:
    """out = saturate(rint(float32(x / scale)) + zero_point); rint rounds half to even

    Shapes: x, out [O,C,I]; scale, zero_point [C].
    """
    low, high = dt.limits(to)
    quantize_rows(float32(x), float32(scale), zero_point.astype(np.int32), out, np.int32(low), np.int32(high))


@quiet
def quantize_subbyte(x: Array, scale: Array, zero_point: Array, out: Array, to: str, *_: object) -> None:
    """out = saturate(rint(float32(x / scale)) + zero_point) for integers narrower than a byte"""
    held, (low, high) = np.empty(out.shape, np.int8), dt.limits(to)
    wide = zero_point.astype(np.int32)
    quantize_rows(float32(x), float32(scale), wide, held, np.int32(low), np.int32(high))
    out[...] = held.astype(out.dtype)


@quiet
def quantize_float8(
    x: Array, scale: Array, zero_point: Array, out: Array, to: str, precision: str, saturate: object
) -> None:
    """out = cast(float32(x / scale)), one rounding to 8 bits; saturated, or NaN or infinity beyond the largest number

    Shapes: x, out [O,C,I]; scale [C]; zero_point is 0.
    """
    quotient = x.astype(np.float32) / scale.astype(np.float32)[None, :, None]
    if saturate:
        quotient = np.clip(quotient, np.float32(-dt.MAX[to]), np.float32(dt.MAX[to]))
    out[...] = quotient.astype(out.dtype)


@quiet
def dequantize_narrow(x: Array, scale: Array, zero_point: Array, out: Array, to: str) -> None:
    """out = float32(x - zero_point) * scale for what is stored in less than a byte, or as an 8-bit float"""
    kind = np.float32 if dt.is_float(dt.word_of(x.dtype)) else np.int8
    difference = x.astype(kind).astype(np.float32) - zero_point.astype(kind).astype(np.float32)[None, :, None]
    out[...] = (difference * scale.astype(np.float32)[None, :, None]).astype(out.dtype)


@quiet
def requantize(acc: Array, multiplier: Array, zero_point: Array, out: Array, to: str, *_: object) -> None:
    """out = saturate(rint(float32(acc) * multiplier) + zero_point)

    Shapes: acc, out [O,C,I]; multiplier, zero_point [C].
    """
    low, high = dt.limits(to)
    requantize_rows(plain(acc), float32(multiplier), zero_point.astype(np.int32), out, np.int32(low), np.int32(high))


@quiet
def dequantize(x: Array, scale: Array, zero_point: Array, out: Array, to: str) -> None:
    """out = float32(x - zero_point) * scale, rounded once more where out is narrower

    Shapes: x, out [O,C,I]; scale, zero_point [C].
    """
    wide = out if to == "float32" else np.empty(out.shape, np.float32)
    dequantize_rows(plain(x), float32(scale), zero_point.astype(np.int64), wide)
    if wide is not out:
        out[...] = wide


def float32(x: Array) -> Array:
    return plain(x.astype(np.float32, copy=False))


SIGNED = ("int8", "int16", "int32", "int64")
ARC = {"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh}
NAMED = ("exp", "log", "tanh", "sqrt", "sin", "cos", "tan", "sinh", "cosh")
FUNCTIONS = {**{name: getattr(np, name) for name in NAMED}, **ARC, "atanh": np.arctanh}
STEPS = {"floor": np.floor, "ceil": np.ceil, "round": np.rint}
COMPARISONS = {"equal": np.equal, "less": np.less, "less_or_equal": np.less_equal}
BITS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
SHIFTS = {"shift_left": np.left_shift, "shift_right": np.right_shift}
SCALES = ("float32", "float16", "bfloat16")
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
KERNELS = (
    *(Kernel("Elementwise", fn, (d, d, d), written_by(u)) for fn, u in BINARY.items() for d in (*dt.FLOATS, *dt.INTS)),
    *(Kernel("Elementwise", "div", (d, d, d), written_by(np.divide)) for d in dt.FLOATS),
    *(Kernel("Elementwise", "div", (d, d, d), divide_integer) for d in dt.INTS),
    *(Kernel("Elementwise", "mod", (d, d, d), modulo) for d in dt.INTS),
    *(Kernel("Elementwise", "fmod", (d, d, d), remainder) for d in (*dt.FLOATS, *dt.INTS)),
    *(Kernel("Elementwise", "pow", (d, d, d), power) for d in (*dt.FLOATS, "int32", "int64")),
    *(Kernel("Elementwise", fn, (d, d), written_by(u)) for fn, u in STEPS.items() for d in dt.FLOATS),
    *(Kernel("Elementwise", "sign", (d, d), written_by(np.sign)) for d in (*dt.FLOATS, *dt.INTS)),
    *(
        Kernel("Elementwise", fn, (d, d, "bool"), written_by(u))
        for fn, u in COMPARISONS.items()
        for d in (*dt.FLOATS, *dt.INTS)
    ),
    Kernel("Elementwise", "equal", ("bool", "bool", "bool"), written_by(np.equal)),
    *(Kernel("Elementwise", fn, (d, d, d), written_by(u)) for fn, u in BITS.items() for d in (*dt.INTS, "bool")),
    *(Kernel("Elementwise", "not", (d, d), written_by(np.invert)) for d in (*dt.INTS, "bool")),
    *(Kernel("Elementwise", fn, (d, d, d), shifted(u)) for fn, u in SHIFTS.items() for d in dt.INTS),
    *(Kernel("Elementwise", "neg", (d, d), written_by(np.negative)) for d in (*dt.FLOATS, *SIGNED)),
    *(Kernel("Elementwise", "abs", (d, d), written_by(np.absolute)) for d in (*dt.FLOATS, *dt.INTS)),
    *(Kernel("Elementwise", "relu", (d, d), relu) for d in (*dt.FLOATS, *SIGNED)),
    *(Kernel("Elementwise", fn, (d, d), rounded_once(u)) for fn, u in FUNCTIONS.items() for d in dt.FLOATS),
    *(Kernel("Elementwise", "sigmoid", (d, d), sigmoid) for d in dt.FLOATS),
    *(Kernel("Elementwise", "erf", (d, d), erf) for d in dt.FLOATS),
    Kernel("Elementwise", "where", ("*",), where),
    Kernel("Elementwise", "cast", ("*",), cast),
    *(
        Kernel("Quantize", "", (x, s, q, q), quantize_subbyte if q in dt.SUBBYTE else quantize)
        for x in (*dt.FLOATS, "int32")
        for s in SCALES
        for q in (*QUANTIZED, *dt.SUBBYTE)
    ),
    *(
        Kernel("Quantize", "float8", (x, s, q, q), quantize_float8)
        for x in (*dt.FLOATS, "int32")
        for s in SCALES
        for q in dt.FLOAT8
    ),
    *(
        Kernel("Dequantize", "", (q, s, q, y), dequantize if q in (*QUANTIZED, "int32") else dequantize_narrow)
        for q in (*QUANTIZED, "int32", *dt.SUBBYTE, *dt.FLOAT8)
        for s in SCALES
        for y in SCALES
    ),
    *(Kernel("Requantize", "", ("int32", "float32", q, q), requantize) for q in QUANTIZED),
)
