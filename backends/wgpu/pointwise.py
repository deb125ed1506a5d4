"""Elementwise, Quantize, Dequantize and Requantize in WGSL: one shader per function and element type.

float64 arithmetic (add, sub, mul, div, sqrt and the functions) is missing: WGSL has no such type, and a float
emulated in integers would be an engine of its own. What needs none (neg, abs, relu, max, min, where, casts) is there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Kernel

from . import shader
from .plan import Builder, Tensor

FLOATS = ("float32", "float16", "bfloat16")
SIGNED = ("int8", "int16", "int32")
UNSIGNED = ("uint8", "uint16", "uint32")
QUANTIZED = ("int8", "uint8", "int16", "uint16")

# What a and b, the bits of the operands, become; by class of element type.
FLOAT_FNS = {
    "add": "plus(a, b)",
    "sub": "minus(a, b)",
    "mul": "times(a, b)",
    "div": "divide(a, b)",
    "max": "float_max(a, b)",
    "min": "float_min(a, b)",
    "neg": "a ^ SIGN",
    "abs": "a & 0x7fffffffu",
    "relu": "float_relu(a)",
    "sqrt": "square_root(a)",
    **{fn: f"float_{fn}(a)" for fn in ("exp", "log", "tanh", "sigmoid", "erf")},
}
RING = {"add": "a + b", "sub": "a - b", "mul": "a * b"}
SIGNED_FNS = {
    **RING,
    "div": "integer_divide(a, b)",
    "max": "integer_max(a, b)",
    "min": "integer_min(a, b)",
    "neg": "0u - a",
    "abs": "integer_abs(a)",
    "relu": "integer_relu(a)",
}
UNSIGNED_FNS = {
    **RING,
    "div": "select(a / max(b, 1u), 0u, b == 0u)",
    "max": "max(a, b)",
    "min": "min(a, b)",
    "abs": "a",
}
WIDE_RING = {"add": "add_wide(a, b)", "sub": "subtract_wide(a, b)", "mul": "multiply_wide(a, b)"}
INT64_FNS = {
    **WIDE_RING,
    **{fn: f"{fn}_int64(a, b)" for fn in ("max", "min")},
    "div": "divide_int64(a, b)",
    "neg": "negate_wide(a)",
    **{fn: f"{fn}_int64(a)" for fn in ("abs", "relu")},
}
UINT64_FNS = {
    **WIDE_RING,
    **{fn: f"{fn}_uint64(a, b)" for fn in ("max", "min")},
    "div": "divide_uint64(a, b)",
    "abs": "a",
}
FLOAT64_FNS = {
    **{fn: f"{fn}_float64(a, b)" for fn in ("max", "min")},
    **{fn: f"{fn}_float64(a)" for fn in ("neg", "abs", "relu")},
}
FNS = {
    **dict.fromkeys(FLOATS, FLOAT_FNS),
    **dict.fromkeys(SIGNED, SIGNED_FNS),
    **dict.fromkeys(UNSIGNED, UNSIGNED_FNS),
    "int64": INT64_FNS,
    "uint64": UINT64_FNS,
    "float64": FLOAT64_FNS,
}
BINARY = ("add", "sub", "mul", "div", "max", "min")
FUNCTIONS = ("exp", "log", "tanh", "sigmoid", "erf")


def libraries(*dtypes: str) -> tuple[str, ...]:
    return ("wide",) if any(shader.width(d) == 8 for d in dtypes) else ()


@functools.cache
def elementwise_code(fn: str, dtype: str) -> str:
    kind = shader.element_type(dtype)
    arity = 2 if fn in BINARY else 1
    second = "let b = load1(i);" if arity == 2 else ""
    body = f"fn element(i: u32) -> {kind} {{ let a = load0(i); {second} return {FNS[dtype][fn]}; }}"
    needed = libraries(dtype) + (("functions",) if fn in FUNCTIONS else ())
    return shader.per_element((dtype,) * arity, dtype, body, needed)


def map_elements(build: Builder, code: str, xs: tuple[Tensor, ...], out: Tensor, *params: int) -> None:
    """One dispatch of a `per_element` shader over `out`."""
    build.dispatch(code, xs, (out,), (out.size, *params), shader.words(out.size, out.dtype))


def elementwise(fn: str) -> Callable[..., None]:
    """out[i] = fn(x[i], ..)"""

    def call(build: Builder, *operands: Tensor) -> None:
        *xs, out = operands
        map_elements(build, elementwise_code(fn, out.dtype), tuple(xs), out)

    return call


@functools.cache
def where_code(dtype: str) -> str:
    # In WGSL `select` takes the false value first.
    kind = shader.element_type(dtype)
    body = f"fn element(i: u32) -> {kind} {{ return select(load2(i), load1(i), load0(i) != 0u); }}"
    return shader.per_element(("bool", dtype, dtype), dtype, body)


def where(build: Builder, cond: Tensor, x: Tensor, y: Tensor, out: Tensor) -> None:
    """out[i] = cond[i] ? x[i] : y[i]"""
    map_elements(build, where_code(shader.raw_of(x.dtype)), (cond, x, y), out)


def number(dtype: str) -> str:
    """`a` of this type as a Number."""
    if dtype in FLOATS:
        return "number_float32(a)"
    if shader.width(dtype) == 8:
        return f"number_{dtype}(a)"
    return "number_integer(a >= SIGN, integer_abs(a))" if dtype in SIGNED else "number_integer(false, a)"


def cast_expression(source: str, to: str) -> str:
    """`a` of type `source` as the bits of type `to`."""
    wide = shader.width(source) == 8
    if to == "bool":
        cleared = {"float64": "abs_float64(a)", **dict.fromkeys(FLOATS, "(a & 0x7fffffffu)")}.get(source, "a")
        return f"u32(any({cleared} != Wide(0u, 0u)))" if wide else f"u32({cleared} != 0u)"
    if to == "float64":
        if source == "float64":
            return "a"
        if source in FLOATS:
            return "float64_float32(a)"
        kind = "int64" if source in (*SIGNED, "int64") else "uint64"
        return f"float64_{kind}({extended(source)})"
    if to in FLOATS:
        return f"pack_{to}({number(source)})"
    if dt.is_float(source):
        low, high = dt.limits(to)
        value = "a" if wide else "float64_float32(a)"
        whole = f"truncate_float64({value}, {literal(low)}, {literal(high)}, {str(low < 0).lower()})"
        return whole if shader.width(to) == 8 else f"{whole}.x"
    if shader.width(to) == 8:
        return extended(source)
    return "a.x" if wide else "a"


def extended(source: str) -> str:
    if shader.width(source) == 8:
        return "a"
    return "signed_wide(a)" if source in SIGNED else "unsigned_wide(a)"


def literal(value: int) -> str:
    return f"Wide({value & 0xFFFFFFFF}u, {(value >> 32) & 0xFFFFFFFF}u)"


@functools.cache
def cast_code(source: str, to: str) -> str:
    # pack_* gives the narrow float's own bits: they are stored as an integer of that size.
    stored = shader.raw_of(to) if to in FLOATS else to
    value = cast_expression(source, to)
    body = f"fn element(i: u32) -> {shader.element_type(to)} {{ let a = load0(i); return {value}; }}"
    return shader.per_element((source,), stored, body, ("wide",))


def cast(build: Builder, x: Tensor, out: Tensor, to: str, *_: object) -> None:
    """out[i] = x[i] in the type of out

    Float to integer truncates, saturates, and makes NaN 0; integers wrap; bool is x != 0; a narrower
    float is rounded once, half to even.
    """
    map_elements(build, cast_code(x.dtype, to), (x,), out)


CHANNEL = "let c = (i / p[3]) % p[2];"  # of [O,C,I]: p[2] = C, p[3] = I


@functools.cache
def quantize_code(x: str, scale: str, to: str) -> str:
    low, high = dt.limits(to)
    value = "a" if x in FLOATS else f"pack_float32({number(x)})"
    body = f"""fn element(i: u32) -> u32 {{
    {CHANNEL}
    let a = load0(i);
    return quantized(divide({value}, load1(c)), load2(c), {low}, {high});
}}"""
    return shader.per_element((x, scale, to), to, body, libraries(x))


def quantize(
    build: Builder, x: Tensor, scale: Tensor, zero_point: Tensor, out: Tensor, to: str, precision: str = ""
) -> None:
    """out = saturate(rint(float32(x / scale)) + zero_point), the quotient correctly rounded, rint half to even

    Shapes: x, out [O,C,I]; scale, zero_point [C].
    """
    map_elements(build, quantize_code(x.dtype, scale.dtype, to), (x, scale, zero_point), out, *x.shape[1:])


@functools.cache
def requantize_code(to: str) -> str:
    low, high = dt.limits(to)
    # Nothing is added to the product before rint: no device can contract it.
    body = f"""fn element(i: u32) -> u32 {{
    {CHANNEL}
    let a = load0(i);
    return quantized(times(pack_float32({number("int32")}), load1(c)), load2(c), {low}, {high});
}}"""
    return shader.per_element(("int32", "float32", to), to, body)


def requantize(
    build: Builder, acc: Tensor, multiplier: Tensor, zero_point: Tensor, out: Tensor, to: str, zp_inside: object = False
) -> None:
    """out = saturate(rint(float32(acc) * multiplier) + zero_point)

    Shapes: acc, out [O,C,I]; multiplier, zero_point [C].
    """
    map_elements(build, requantize_code(to), (acc, multiplier, zero_point), out, *acc.shape[1:])


@functools.cache
def dequantize_code(x: str, scale: str, to: str) -> str:
    # The difference of two int32 needs 33 bits: its sign and its magnitude are taken apart.
    body = f"""fn element(i: u32) -> u32 {{
    {CHANNEL}
    let a = load0(i);
    let z = load2(c);
    let negative = bitcast<i32>(a) < bitcast<i32>(z);
    return times(pack_float32(number_integer(negative, select(a - z, z - a, negative))), load1(c));
}}"""
    return shader.per_element((x, scale, x), to, body)


def dequantize(build: Builder, x: Tensor, scale: Tensor, zero_point: Tensor, out: Tensor, to: str) -> None:
    """out = float32(x - zero_point) * scale, rounded once more where out is narrower

    Shapes: x, out [O,C,I]; scale, zero_point [C].
    """
    map_elements(build, dequantize_code(x.dtype, scale.dtype, to), (x, scale, zero_point), out, *x.shape[1:])


KERNELS = (
    *(
        Kernel("Elementwise", fn, (dtype,) * (3 if fn in BINARY else 2), elementwise(fn))
        for dtype, fns in FNS.items()
        for fn in fns
    ),
    Kernel("Elementwise", "where", ("*",), where),
    Kernel("Elementwise", "cast", ("*",), cast),
    *(Kernel("Quantize", "", (x, s, q, q), quantize) for x in (*dt.FLOATS, "int32") for s in FLOATS for q in QUANTIZED),
    *(
        Kernel("Dequantize", "", (q, s, q, y), dequantize)
        for q in (*QUANTIZED, "int32")
        for s in FLOATS
        for y in FLOATS
    ),
    *(Kernel("Requantize", "", ("int32", "float32", q, q), requantize) for q in QUANTIZED),
)
