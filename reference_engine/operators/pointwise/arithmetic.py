"""Arithmetic, order, comparison, logic and bits, and the functions that are primitives themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, cast, elementwise, scalar
from ...errors import ModelError, ShapeError, UnknownOperatorError
from ..checks import one_of, same_dtype, text, widen


def _unary(fn: str) -> Callable[..., Value]:
    def lower(emit: Emitter, X: Value) -> Value:
        return emit("Elementwise", X, fn=fn)

    return lower


def _binary(fn: str) -> Callable[..., Value]:
    def lower(emit: Emitter, A: Value, B: Value) -> Value:
        return elementwise(emit, fn, A, B)

    return lower


def _swapped(fn: str) -> Callable[..., Value]:
    def lower(emit: Emitter, A: Value, B: Value) -> Value:
        return elementwise(emit, fn, B, A)

    return lower


def _on(dtypes: tuple[str, ...], lower: Callable[..., Value]) -> Callable[..., Value]:
    """`lower` for inputs of these types only."""

    def only(emit: Emitter, A: Value, B: Value) -> Value:
        one_of(emit, "A", A, dtypes)
        return lower(emit, A, B)

    return only


def _given(emit: Emitter, data_0: tuple[Value | None, ...], dtypes: tuple[str, ...]) -> list[Value]:
    given = [x for x in data_0 if x is not None]
    if not given or len(given) < len(data_0):
        raise ModelError(f"{emit.source}: {len(given)} of {len(data_0)} inputs given, expected at least one and no gap")
    one_of(emit, "data_0", given[0], dtypes)
    return given


def _variadic(fn: str) -> Callable[..., Value]:
    def lower(emit: Emitter, *data_0: Value | None) -> Value:
        given = _given(emit, data_0, (*dt.FLOATS, *dt.INTS))
        return reduce(lambda left, right: elementwise(emit, fn, left, right), given)

    return lower


def _sum(emit: Emitter, data_0: tuple[Value | None, ...], mean: bool) -> Value:
    given = _given(emit, data_0, dt.FLOATS)
    same_dtype(emit, **{f"data_{i}": x for i, x in enumerate(given)})
    total = reduce(lambda a, b: elementwise(emit, "add", a, b), [widen(emit, x) for x in given])
    if mean:
        total = elementwise(emit, "div", total, scalar(emit, len(given), total.dtype), recip=True)
    return cast(emit, total, given[0].dtype)


def lower_sum(emit: Emitter, *data_0: Value | None) -> Value:
    """sum = data_0 + data_1 + .., broadcast; 16-bit floats in float32. Source: ONNX Sum-13."""
    return _sum(emit, data_0, mean=False)


def lower_mean(emit: Emitter, *data_0: Value | None) -> Value:
    """mean = (data_0 + data_1 + ..) / n, broadcast. Source: ONNX Mean-13."""
    return _sum(emit, data_0, mean=True)


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


def lower_identity(emit: Emitter, input: Value) -> Value:
    return emit("DataMove", input, fn="copy")


def lower_reciprocal(emit: Emitter, X: Value) -> Value:
    """Y = 1 / X. Source: ONNX Reciprocal-13."""
    one_of(emit, "X", X, dt.FLOATS)
    return elementwise(emit, "div", scalar(emit, 1, X.dtype), X)


def lower_mod(emit: Emitter, A: Value, B: Value, *, fmod: int = 0) -> Value:
    """C = A - floor(A / B) * B, with fmod A - trunc(A / B) * B

    Source: ONNX Mod-28; before it floats ask for fmod. An integer divisor of 0 is undecided (N6). Of floats the
        remainder that truncates is exact; where its sign is not that of B, B is added.
    """
    same_dtype(emit, A=A, B=B)
    if fmod or A.dtype not in dt.FLOATS:
        return elementwise(emit, "fmod" if fmod else "mod", A, B)
    if emit.opset < 28:
        raise UnknownOperatorError(
            f"{emit.source}: fmod=0 with floats belongs to opset 28, this model has {emit.opset}"
        )
    zero = scalar(emit, 0, A.dtype)
    rest = elementwise(emit, "fmod", A, B)
    below = elementwise(emit, "less", rest, zero)
    other = elementwise(emit, "xor", below, elementwise(emit, "less", B, zero))
    left = emit("Elementwise", elementwise(emit, "equal", rest, zero), fn="not")
    return elementwise(emit, "where", elementwise(emit, "and", other, left), elementwise(emit, "add", rest, B), rest)


def lower_pow(emit: Emitter, X: Value, Y: Value) -> Value:
    """Z = X ^ Y in the type of X

    Dtypes: X float32 float64 float16 bfloat16 int32 int64; Y any number. A float exponent of an integer
        makes a float64 power that is cast back.
    Source: ONNX Pow-15.
    """
    one_of(emit, "X", X, (*dt.FLOATS, "int32", "int64"))
    one_of(emit, "Y", Y, (*dt.FLOATS, *dt.INTS))
    if X.dtype in dt.FLOATS:
        base = widen(emit, X)
        return cast(emit, elementwise(emit, "pow", base, cast(emit, Y, base.dtype)), X.dtype)
    if Y.dtype in dt.FLOATS:
        return cast(emit, elementwise(emit, "pow", cast(emit, X, "float64"), cast(emit, Y, "float64")), X.dtype)
    return elementwise(emit, "pow", X, cast(emit, Y, X.dtype))


def lower_isnan(emit: Emitter, X: Value) -> Value:
    """Y = X is not a number. Source: ONNX IsNaN-20."""
    one_of(emit, "X", X, (*dt.FLOATS, *dt.FLOAT8))
    x = cast(emit, X, "float32") if X.dtype in dt.FLOAT8 else X
    return emit("Elementwise", emit("Elementwise", x, x, fn="equal"), fn="not")


def lower_isinf(emit: Emitter, X: Value, *, detect_negative: int = 1, detect_positive: int = 1) -> Value:
    """Y = X is an infinity of a wanted sign. Source: ONNX IsInf-20."""
    one_of(emit, "X", X, (*dt.FLOATS, *dt.FLOAT8))
    x = cast(emit, X, "float32") if X.dtype in dt.FLOAT8 else X
    if detect_negative and detect_positive:
        x = emit("Elementwise", x, fn="abs")
    elif not (detect_negative or detect_positive):
        same = emit("Elementwise", x, x, fn="equal")
        return emit("Elementwise", same, same, fn="xor")  # false everywhere
    edge = "inf" if detect_positive else "-inf"
    return elementwise(emit, "equal", x, scalar(emit, float(edge), x.dtype))


def lower_bitshift(emit: Emitter, X: Value, Y: Value, *, direction: str) -> Value:
    """Z = X shifted by Y bits to the LEFT or RIGHT

    Source: ONNX BitShift-28: a right shift of a signed X keeps its sign, and a shift by a negative number or by the
        width of X or more leaves nothing else. Before it X is unsigned, and such a shift undecided (N6).
    """
    one_of(emit, "X", X, dt.INTS if emit.opset >= 28 else ("uint8", "uint16", "uint32", "uint64"))
    if direction not in ("LEFT", "RIGHT"):
        raise ModelError(f"{emit.source}: direction is {direction!r}, expected 'LEFT' or 'RIGHT'")
    return elementwise(emit, f"shift_{direction.lower()}", X, Y, decided=emit.opset >= 28)


def _checked(words: tuple[str, ...], fn: str) -> Callable[..., Value]:
    def lower(emit: Emitter, X: Value) -> Value:
        one_of(emit, "X", X, words)
        return emit("Elementwise", X, fn=fn)

    return lower


_UNARY = {"Relu": 6, "Neg": 6, "Abs": 6, "Sigmoid": 6, "Tanh": 6, "Exp": 6, "Log": 6, "Sqrt": 6, "Erf": 9}
_UNARY |= {"Floor": 6, "Ceil": 6, "Round": 11, "Sign": 9}
_UNARY |= dict.fromkeys(("Sin", "Cos", "Tan", "Asin", "Acos", "Atan"), 7)
_UNARY |= dict.fromkeys(("Sinh", "Cosh", "Asinh", "Acosh", "Atanh"), 9)
BOOL = ("bool",)
ARITHMETIC: dict[tuple[str, str], OperatorDef] = {
    **{("", name): OperatorDef(_unary(name.lower()), since) for name, since in _UNARY.items()},
    **{("", name): OperatorDef(_binary(name.lower()), since=7) for name in ("Add", "Sub", "Mul", "Div")},
    **{("", name): OperatorDef(_variadic(name.lower()), since=8) for name in ("Max", "Min")},
    ("", "Sum"): OperatorDef(lower_sum, since=8),
    ("", "Mean"): OperatorDef(lower_mean, since=8),
    ("", "Clip"): OperatorDef(lower_clip, since=11),
    ("", "Where"): OperatorDef(lower_where, since=9),
    ("", "Identity"): OperatorDef(lower_identity),
    ("", "Reciprocal"): OperatorDef(lower_reciprocal, since=6),
    ("", "Mod"): OperatorDef(lower_mod, since=10),
    ("", "Pow"): OperatorDef(lower_pow, since=7),
    ("", "IsNaN"): OperatorDef(lower_isnan, since=9),
    ("", "IsInf"): OperatorDef(lower_isinf, since=10),
    ("", "Equal"): OperatorDef(_binary("equal"), since=7),
    ("", "Less"): OperatorDef(_binary("less"), since=7),
    ("", "Greater"): OperatorDef(_swapped("less"), since=7),
    ("", "LessOrEqual"): OperatorDef(_binary("less_or_equal"), since=12),
    ("", "GreaterOrEqual"): OperatorDef(_swapped("less_or_equal"), since=12),
    **{("", name): OperatorDef(_on(BOOL, _binary(name.lower())), since=7) for name in ("And", "Or", "Xor")},
    ("", "Not"): OperatorDef(_checked(BOOL, "not"), since=1),
    **{
        ("", f"Bitwise{name}"): OperatorDef(_on(dt.INTS, _binary(name.lower())), since=18)
        for name in ("And", "Or", "Xor")
    },
    ("", "BitwiseNot"): OperatorDef(_checked(dt.INTS, "not"), since=18),
    ("", "BitShift"): OperatorDef(lower_bitshift, since=11),
}
