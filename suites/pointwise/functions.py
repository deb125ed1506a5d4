"""Rows of rounding, trigonometric and hyperbolic functions, powers, remainders, comparisons, logic and bits."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Arg, Attr, Case

from .. import draws as d
from ..draws import Draw, pick, rarely
from .shapes import EMPTY_PAIRS, any_shape, partner

SMALL: d.Data = ("wide", (-8, 1))
SPECIAL: d.Data = ("special", ())
CIRCLE: tuple[d.Data, ...] = (("normal", ()), ("large", (30.0,)), ("large", (100.0,)), SMALL, SPECIAL)
ARC: tuple[d.Data, ...] = (("uniform", (-1.0, 1.0)), ("uniform", (0.875, 1.0)), ("wide", (-8, -1)), SPECIAL)
HYPERBOLIC: tuple[d.Data, ...] = (("normal", ()), ("normal", (3.0,)), ("large", (80.0,)), SMALL, SPECIAL)
STEPS: tuple[d.Data, ...] = (
    ("normal", (4.0,)),
    ("grid", (0.5, -41, 41)),
    ("halves", (1.0, -20, 20)),
    ("wide", ()),
    SPECIAL,
)
DATA: dict[str, tuple[d.Data, ...]] = {
    **dict.fromkeys(("Sin", "Cos"), (*CIRCLE, ("large", (10000.0,)))),
    "Tan": CIRCLE,
    **dict.fromkeys(("Asin", "Acos", "Atanh"), ARC),
    "Atan": (("normal", ()), ("normal", (30.0,)), ("wide", ()), SPECIAL),
    **dict.fromkeys(("Sinh", "Cosh"), HYPERBOLIC),
    "Asinh": (("normal", ()), ("wide", ()), SMALL, SPECIAL),
    "Acosh": (("uniform", (1.0, 10.0)), ("uniform", (1.0, 1.03125)), ("scales", (0, 60)), SPECIAL),
    **dict.fromkeys(("Floor", "Ceil", "Round"), STEPS),
    "Sign": (("normal", ()), ("sparse", ()), ("wide", ()), SPECIAL),
    "Reciprocal": (("normal", ()), ("wide", ()), ("scales", (-20, 20)), SPECIAL),
}


@st.composite
def function(draw: Draw, op: str, dtype: str) -> Case:
    data = pick(draw, DATA[op]) if dt.is_float(dtype) else ("near", (2, 3))
    shape = any_shape(draw)
    if rarely(draw, 60):
        shape = pick(draw, ((0,), (3, 0), (0, 2, 4)))
    name = "empty" if 0 in shape else "special" if data == SPECIAL else "plain"
    return d.make_case(draw, op, (d.filled("X", dtype, shape, data),), (dtype,), opset=lowest(op, dtype), profile=name)


def lowest(op: str, dtype: str) -> int:
    """bfloat16 came to these functions with opset 22, to others with 13."""
    return 22 if dtype == "bfloat16" and op not in ("Floor", "Ceil", "Sign", "Reciprocal", "Sum", "Mean") else 13


@st.composite
def is_special(draw: Draw, op: str, dtype: str) -> Case:
    """IsNaN and IsInf, each sign of infinity asked for alone too."""
    signs: dict[str, Attr | None] = {}
    if op == "IsInf":
        for name in ("detect_negative", "detect_positive"):
            signs[name] = pick(draw, (None, 1, 0))
    data: d.Data = ("patterns", ()) if dtype in dt.FLOAT8 else pick(draw, (("special", (127, 3)), ("normal", ())))
    opset = 20 if dtype in (*dt.FLOAT8, "bfloat16", "float16") else 13
    arg = d.filled("X", dtype, any_shape(draw), data)
    return d.make_case(draw, op, (arg,), ("bool",), signs, opset)


def operand_data(draw: Draw, dtype: str) -> tuple[d.Data, d.Data]:
    """Data of two operands that are often equal; special numbers in one of them."""
    if dtype == "bool":
        return ("bool", ()), ("bool", ())
    if not dt.is_float(dtype):
        return pick(draw, ((("near", (5, 3)),) * 2, (("uniform", ()), ("uniform", ()))))
    return pick(
        draw,
        (
            (("integers", (3,)), ("integers", (3,))),
            (("normal", ()), ("normal", ())),
            (("special", (127, 3)), ("special", (126, 3))),
            (("wide", ()), ("special", ())),
        ),
    )


@st.composite
def pair(draw: Draw, op: str, result: str, opset: int, dtype: str) -> Case:
    """Comparisons, logic and bits of two tensors that broadcast."""
    shapes = pick(draw, EMPTY_PAIRS) if rarely(draw, 50) else partner(draw, any_shape(draw))
    first, second = operand_data(draw, dtype) if not op.startswith("Bitwise") else (("uniform", ()),) * 2
    args = [d.filled("A", dtype, shapes[0], first), d.filled("B", dtype, shapes[1], second)]
    if rarely(draw, 3):
        args[1] = replace(args[1], const=True)
    name = "empty" if 0 in shapes[0] else "special" if first[0] == "special" else "plain"
    return d.make_case(draw, op, args, (result or dtype,), opset=opset, profile=name)


@st.composite
def inverse(draw: Draw, op: str, opset: int, dtype: str) -> Case:
    arg = Arg("X", dtype, any_shape(draw), "bool" if dtype == "bool" else "uniform")
    return d.make_case(draw, op, (arg,), (dtype,), opset=opset)


@st.composite
def bit_shift(draw: Draw, dtype: str) -> Case:
    shapes = partner(draw, any_shape(draw))
    width = 8 * dt.numpy_dtype(dtype).itemsize
    direction = pick(draw, ("LEFT", "RIGHT"))
    args = (Arg("X", dtype, shapes[0], "uniform"), Arg("Y", dtype, shapes[1], "uniform", (0, width - 1)))
    return d.make_case(draw, "BitShift", args, (dtype,), {"direction": direction})


@st.composite
def mod(draw: Draw, dtype: str) -> Case:
    """Mod: divisors of either sign; rarely zeros, where an element is undecided but nothing may crash."""
    shapes = partner(draw, any_shape(draw))
    fmod = 1 if dt.is_float(dtype) else pick(draw, (None, 0, 1))
    profile = "plain"
    if dt.is_float(dtype):
        first, second = pick(
            draw,
            (
                (("normal", (10.0,)), ("normal", ())),
                (("wide", (-3, 3)), ("wide", (-1, 1))),
                (("integers", (100,)), ("integers", (7,))),
                (("special", ()), ("normal", ())),
            ),
        )
        profile = "special" if first[0] == "special" else profile
    else:
        unsigned, most = dtype.startswith("u"), dt.limits(dtype)[1] // 3
        ranges = ((1, 9), (1, most)) if unsigned else ((1, 9), (1, most), (-most, -2), (-9, -2))
        first, second = ("uniform", ()), ("uniform", pick(draw, ranges))
        if rarely(draw, 20):
            first, second, profile = ("uniform", ()), ("near", (2, 2)), "zero divisor"
    args = (d.filled("A", dtype, shapes[0], first), d.filled("B", dtype, shapes[1], second))
    return d.make_case(draw, "Mod", args, (dtype,), {"fmod": fmod}, profile=profile.replace(" ", "-"))


@st.composite
def power(draw: Draw, x_dtype: str, y_dtype: str) -> Case:
    """Pow: a float result overflows now and then, an integer result never (it would be undecided)."""
    shapes = partner(draw, any_shape(draw))
    profile = "plain"
    if not dt.is_float(x_dtype):
        x: d.Data = ("near", (0, pick(draw, (6, 2, 10))))
        y: d.Data = ("grid", (1.0, 0, 6)) if dt.is_float(y_dtype) else ("uniform", (0, pick(draw, (6, 3, 2))))
    elif dt.is_float(y_dtype):
        x, y = pick(
            draw,
            (
                (("positive", ()), ("normal", ())),
                (("positive", (3.0,)), ("normal", (4.0,))),
                (("normal", ()), ("integers", (4,))),
                (("normal", ()), ("fill", (pick(draw, (2.0, 3.0, 0.5, -1.0, 0.0, 1.0)),))),
                (("scales", (-8, 8)), ("large", (12.0,))),
                (("special", ()), ("integers", (3,))),
            ),
        )
    else:
        x, y = pick(draw, ((("normal", ()), ("near", (0, 5))), (("normal", ()), ("fill", (2,)))))
        if y_dtype.startswith("u"):
            y = ("near", (3, 3))
    if x[0] == "special":
        profile = "special"
    args = [d.filled("X", x_dtype, shapes[0], x), d.filled("Y", y_dtype, shapes[1], y, const=rarely(draw, 2))]
    opset = 15 if "bfloat16" in (x_dtype, y_dtype) else 13
    return d.make_case(draw, "Pow", args, (x_dtype,), opset=opset, profile=profile)


@st.composite
def variadic(draw: Draw, op: str, dtype: str) -> Case:
    """Sum and Mean of one to five tensors."""
    a, b = partner(draw, any_shape(draw))
    count = pick(draw, (2, 3, 4, 5, 1))
    data = pick(draw, (("normal", ()), ("integers", ()), ("cancel", ()), ("wide", (-3, 3)), ("special", ())))
    args = [
        d.filled(f"data_{i}", dtype, (a, b, b, a, b)[i], ("normal", ()) if i and data[0] == "special" else data)
        for i in range(count)
    ]
    return d.make_case(draw, op, args, (dtype,), profile="special" if data[0] == "special" else "plain")


PRECISE = ("float32", "float64", "float16")
UNARY_TYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
        PRECISE,
    ),
    **dict.fromkeys(("Floor", "Ceil", "Round"), PRECISE),
    "Sign": (*PRECISE, "bfloat16", "int8", "int32", "int64", "uint8"),
    "Reciprocal": PRECISE,
}
ORDERED = ("float32", "float64", "float16", "int32", "int64", "int8", "uint8")
COMPARISONS = {"Equal": 13, "Less": 13, "Greater": 13, "LessOrEqual": 16, "GreaterOrEqual": 16}
INTEGERS = ("uint8", "int8", "uint16", "int32", "int64", "uint64")
POWERS = (
    *("float32,float32", "float32,int32", "float32,int64", "float64,float64", "float16,float16"),
    *("bfloat16,bfloat16", "int32,int32", "int64,int64", "int32,float32", "int64,int32"),
)

FUNCTIONS = (
    *(row for op, types in UNARY_TYPES.items() for row in d.rows(op, f"ONNX {op}-13", types, function, op)),
    *d.rows("IsNaN", "ONNX IsNaN-13 and -20", ("float32", "float64", "float16", "float8e5m2"), is_special, "IsNaN"),
    *d.rows("IsInf", "ONNX IsInf-10 and -20", ("float32", "float64", "float16", "float8e5m2"), is_special, "IsInf"),
    *(
        row
        for op, opset in COMPARISONS.items()
        for row in d.rows(
            op, f"ONNX {op}-{opset}", ORDERED if op != "Equal" else (*ORDERED, "bool"), pair, op, "bool", opset
        )
    ),
    *(row for op in ("And", "Or", "Xor") for row in d.rows(op, f"ONNX {op}-7", ("bool",), pair, op, "", 13)),
    *d.rows("Not", "ONNX Not-1", ("bool",), inverse, "Not", 13),
    *(
        row
        for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
        for row in d.rows(op, f"ONNX {op}-18", INTEGERS, pair, op, "", 18)
    ),
    *d.rows("BitwiseNot", "ONNX BitwiseNot-18", INTEGERS, inverse, "BitwiseNot", 18),
    *d.rows("BitShift", "ONNX BitShift-11", ("uint8", "uint16", "uint32", "uint64"), bit_shift),
    *d.rows("Mod", "ONNX Mod-13", ("int8", "uint8", "int32", "int64", *PRECISE), mod),
    *d.rows("Pow", "ONNX Pow-15", POWERS, power),
    *(row for op in ("Sum", "Mean") for row in d.rows(op, f"ONNX {op}-13", PRECISE, variadic, op)),
)
