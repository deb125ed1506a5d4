"""Elementwise, Quantize, Dequantize and Requantize in WGSL: one shader per function and element type.

float64 arithmetic (add, sub, mul, div, sqrt and the functions) is missing: WGSL has no such type, and a float
emulated in integers would be an engine of its own. What needs none (neg, abs, relu, max, min, where, casts) is there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Kernel

from . import shader
from .plan import Builder, Tensor

FLOATS = ("float32", "float16", "bfloat16")
SIGNED = ("int8", "int16", "int32")
UNSIGNED = ("uint8", "uint16", "uint32")
QUANTIZED = ("int8", "uint8", "int16", "uint16")

# Types of less than a byte: stored, quantized and cast, never computed in.
SIGNED_STORED = (*SIGNED, "int4", "int2")
STORED = (*QUANTIZED, *dt.SUBBYTE)

FUNCTIONS = ("exp", "log", "tanh", "sigmoid", "erf")
ANGLES = ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
# What functions need beside `number`.
LIBRARIES = {
    **dict.fromkeys(FUNCTIONS, ("functions",)),
    **dict.fromkeys((*ANGLES, "pow"), ("wide", "functions", "angles")),
}

# What a and b, the bits of the operands, become; by class of element type. {bits} is the type's width.
FLOAT_FNS = {
    "add": "plus(a, b)",
    "sub": "minus(a, b)",
    "mul": "times(a, b)",
    "div": "divide(a, b)",
    "neg": "a ^ SIGN",
    "abs": "a & 0x7fffffffu",
    "sqrt": "square_root(a)",
    "equal": "u32(float_equal(a, b))",
    "less": "u32(float_below(a, b))",
    "less_or_equal": "u32(float_below(a, b) || float_equal(a, b))",
    **{fn: f"float_{fn}(a, b)" for fn in ("max", "min", "fmod")},
    **{fn: f"float_{fn}(a)" for fn in ("relu", "sign", "floor", "ceil", "round")},
    **{fn: f"float_{fn}(a)" for fn in (*FUNCTIONS, *ANGLES)},
    "pow": "float_pow(a, b)",
}
BITWISE = {"and": "a & b", "or": "a | b", "xor": "a ^ b", "not": "~a"}
RING = {"add": "a + b", "sub": "a - b", "mul": "a * b", "equal": "u32(a == b)", **BITWISE}
SIGNED_FNS = {
    **RING,
    **{fn: f"integer_{fn}(a, b)" for fn in ("max", "min", "mod", "fmod")},
    **{fn: f"integer_{fn}(a)" for fn in ("abs", "relu", "sign")},
    "div": "integer_divide(a, b)",
    "neg": "0u - a",
    "less": "u32(bitcast<i32>(a) < bitcast<i32>(b))",
    "less_or_equal": "u32(bitcast<i32>(a) <= bitcast<i32>(b))",
}
UNSIGNED_FNS = {
    **RING,
    "div": "select(a / max(b, 1u), 0u, b == 0u)",
    **dict.fromkeys(("mod", "fmod"), "select(a % max(b, 1u), 0u, b == 0u)"),
    "max": "max(a, b)",
    "min": "min(a, b)",
    "abs": "a",
    "sign": "u32(a != 0u)",
    "less": "u32(a < b)",
    "less_or_equal": "u32(a <= b)",
    "shift_left": "select(a << (b & 31u), 0u, b >= {bits}u)",
    "shift_right": "select(a >> (b & 31u), 0u, b >= {bits}u)",
}
BOOL_FNS = {"and": "a & b", "or": "a | b", "xor": "a ^ b", "not": "a ^ 1u", "equal": "u32(a == b)"}
WIDE_RING = {
    "add": "add_wide(a, b)",
    "sub": "subtract_wide(a, b)",
    "mul": "multiply_wide(a, b)",
    "equal": "u32(equal_wide(a, b))",
    **BITWISE,
}


def ordered(word: str) -> dict[str, str]:
    return {"less": f"u32(below_{word}(a, b))", "less_or_equal": f"u32(!below_{word}(b, a))"}


INT64_FNS = {
    **WIDE_RING,
    **ordered("int64"),
    **{fn: f"{fn}_int64(a, b)" for fn in ("max", "min", "mod", "fmod")},
    **{fn: f"{fn}_int64(a)" for fn in ("abs", "relu", "sign")},
    "div": "divide_int64(a, b)",
    "neg": "negate_wide(a)",
}
UINT64_FNS = {
    **WIDE_RING,
    **ordered("uint64"),
    **{fn: f"{fn}_uint64(a, b)" for fn in ("max", "min")},
    **dict.fromkeys(("mod", "fmod"), "mod_uint64(a, b)"),
    "div": "divide_uint64(a, b)",
    "abs": "a",
    "sign": "Wide(u32(!is_zero_wide(a)), 0u)",
    "shift_left": "left_wide(a, shift_of(b))",
    "shift_right": "right_wide(a, shift_of(b))",
}
FLOAT64_FNS = {
    "equal": "u32(equal_float64(a, b))",
    "less": "u32(below_float64(a, b))",
    "less_or_equal": "u32(below_float64(a, b) || equal_float64(a, b))",
    **{fn: f"{fn}_float64(a, b)" for fn in ("max", "min")},
    **{fn: f"{fn}_float64(a)" for fn in ("neg", "abs", "relu", "sign")},
}
FNS = {
    **dict.fromkeys(FLOATS, FLOAT_FNS),
    **dict.fromkeys(SIGNED, SIGNED_FNS),
    **dict.fromkeys(UNSIGNED, UNSIGNED_FNS),
    "bool": BOOL_FNS,
    "int32": {**SIGNED_FNS, "pow": "integer_pow(a, b)"},
    "int64": {**INT64_FNS, "pow": "pow_int64(a, b)"},
    "uint64": UINT64_FNS,
    "float64": FLOAT64_FNS,
}
COMPARISONS = ("equal", "less", "less_or_equal")
CASTS = (*dt.FLOATS, *dt.INTS, "bool", *dt.SUBBYTE)


def is_binary(expression: str) -> bool:
    return re.search(r"\bb\b", expression) is not None


def dtypes_of(fn: str, dtype: str) -> tuple[str, ...]:
    """Types of the inputs and of the output."""
    inputs = (dtype, dtype) if is_binary(FNS[dtype][fn]) else (dtype,)
    return (*inputs, "bool" if fn in COMPARISONS else dtype)


def libraries(*dtypes: str) -> tuple[str, ...]:
    return ("wide",) if any(shader.width(d) == 8 for d in dtypes) else ()


@functools.cache
def elementwise_code(fn: str, dtype: str) -> str:
    *inputs, out = dtypes_of(fn, dtype)
    second = "let b = load1(i);" if len(inputs) == 2 else ""
    value = FNS[dtype][fn].format(bits=8 * shader.width(dtype))
    body = f"fn element(i: u32) -> {shader.element_type(out)} {{ let a = load0(i); {second} return {value}; }}"
    needed = LIBRARIES.get(fn, ()) if dtype in FLOATS else libraries(dtype)
    return shader.per_element(inputs, out, body, needed)


def map_elements(build: Builder, code: str, xs: tuple[Tensor, ...], out: Tensor, *params: int) -> None:
    """One dispatch of a `per_element` shader over `out`."""
    build.dispatch(code, xs, (out,), (out.size, *params), shader.words(out.size, out.dtype))


def elementwise(fn: str) -> Callable[..., None]:
    """out[i] = fn(x[i], ..)"""

    def call(build: Builder, *operands: Tensor) -> None:
        *xs, out = operands
        map_elements(build, elementwise_code(fn, xs[0].dtype), tuple(xs), out)

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
    return "number_integer(a >= SIGN, integer_abs(a))" if dtype in SIGNED_STORED else "number_integer(false, a)"


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
        kind = "int64" if source in (*SIGNED_STORED, "int64") else "uint64"
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
    return "signed_wide(a)" if source in SIGNED_STORED else "unsigned_wide(a)"


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
    *(Kernel("Elementwise", fn, dtypes_of(fn, dtype), elementwise(fn)) for dtype, fns in FNS.items() for fn in fns),
    Kernel("Elementwise", "where", ("*",), where),
    *(Kernel("Elementwise", "cast", (x, y), cast) for x in CASTS for y in CASTS),
    *(Kernel("Quantize", "", (x, s, q, q), quantize) for x in (*dt.FLOATS, "int32") for s in FLOATS for q in STORED),
    *(Kernel("Dequantize", "", (q, s, q, y), dequantize) for q in (*STORED, "int32") for s in FLOATS for y in FLOATS),
    *(Kernel("Requantize", "", ("int32", "float32", q, q), requantize) for q in QUANTIZED),
)
