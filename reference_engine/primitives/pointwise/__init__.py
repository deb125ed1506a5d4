"""Elementwise, Quantize, Dequantize, Requantize: one output element from the same place of each input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import dtypes as dt
from ...real import Real
from ...types import Policy, TensorSpec
from ..definition import PrimitiveDef, require_dtype, require_shape
from . import arithmetic, conversion, functions, logic
from .conversion import QUANTIZED as QUANTIZED


@dataclass(frozen=True)
class ElementwiseFn:
    """One function: `exact(*reals, policy, **attrs)`, its operand types, kernel attributes and fixed result type."""

    exact: Callable[..., Real]
    arity: int
    dtypes: tuple[str, ...]
    attrs: tuple[str, ...] = ()
    to: str = ""


NUMBERS = (*dt.FLOATS, *dt.INTS)
SIGNED = (*dt.FLOATS, "int8", "int16", "int32", "int64")
BITS = (*dt.INTS, "bool")

ELEMENTWISE: dict[str, ElementwiseFn] = {
    "add": ElementwiseFn(arithmetic.add, 2, NUMBERS),
    "sub": ElementwiseFn(arithmetic.sub, 2, NUMBERS),
    "mul": ElementwiseFn(arithmetic.mul, 2, NUMBERS),
    "div": ElementwiseFn(arithmetic.div, 2, NUMBERS),
    "mod": ElementwiseFn(arithmetic.remainder(np.mod), 2, dt.INTS),
    "fmod": ElementwiseFn(arithmetic.remainder(np.fmod), 2, NUMBERS),
    "pow": ElementwiseFn(functions.power, 2, (*dt.FLOATS, "int32", "int64")),
    "max": ElementwiseFn(arithmetic.ordered(np.maximum), 2, NUMBERS),
    "min": ElementwiseFn(arithmetic.ordered(np.minimum), 2, NUMBERS),
    "neg": ElementwiseFn(arithmetic.monotone(np.negative), 1, SIGNED),
    "abs": ElementwiseFn(arithmetic.monotone(np.abs), 1, NUMBERS),
    "relu": ElementwiseFn(arithmetic.monotone(lambda v: np.maximum(v, v.dtype.type(0))), 1, SIGNED),
    "floor": ElementwiseFn(arithmetic.step(np.floor), 1, dt.FLOATS),
    "ceil": ElementwiseFn(arithmetic.step(np.ceil), 1, dt.FLOATS),
    "round": ElementwiseFn(arithmetic.step(np.rint), 1, dt.FLOATS),
    "sign": ElementwiseFn(arithmetic.step(np.sign, nan_free=True), 1, NUMBERS),
    "equal": ElementwiseFn(logic.comparison(np.equal), 2, (*NUMBERS, "bool"), to="bool"),
    "less": ElementwiseFn(logic.comparison(np.less), 2, NUMBERS, to="bool"),
    "less_or_equal": ElementwiseFn(logic.comparison(np.less_equal), 2, NUMBERS, to="bool"),
    "and": ElementwiseFn(logic.bitwise(np.bitwise_and), 2, BITS),
    "or": ElementwiseFn(logic.bitwise(np.bitwise_or), 2, BITS),
    "xor": ElementwiseFn(logic.bitwise(np.bitwise_xor), 2, BITS),
    "not": ElementwiseFn(logic.bitwise(np.invert), 1, BITS),
    "shift_left": ElementwiseFn(logic.shift(np.left_shift), 2, dt.INTS),
    "shift_right": ElementwiseFn(logic.shift(np.right_shift, right=True), 2, dt.INTS),
    "where": ElementwiseFn(arithmetic.where, 3, (*NUMBERS, "bool")),
    "cast": ElementwiseFn(conversion.cast, 1, (*NUMBERS, "bool", *dt.FLOAT8, *dt.SUBBYTE), ("to",)),
    **{name: ElementwiseFn(functions.function(name), 1, dt.FLOATS) for name in functions.FUNCTIONS},
}


def infer_elementwise(*inputs: TensorSpec, fn: str = "", to: str = "", **lenience: bool) -> TensorSpec:
    row = ELEMENTWISE[fn]
    require_shape(len(inputs) == row.arity, f"Elementwise.{fn}: {len(inputs)} inputs, expected {row.arity}")
    operands = inputs[1:] if fn == "where" else inputs
    if fn == "where":
        require_dtype(inputs[0], ("bool",), "Elementwise.where: condition")
    require_dtype(operands[0], row.dtypes, f"Elementwise.{fn}: input")
    for other in operands[1:]:
        require_dtype(other, (operands[0].dtype,), f"Elementwise.{fn}: every input")
    for other in inputs[1:]:
        require_shape(other.shape == inputs[0].shape, f"Elementwise.{fn}: shapes {inputs[0]} and {other} differ")
    return TensorSpec(inputs[0].shape, to or row.to or operands[0].dtype)


def exact_elementwise(*inputs: Real, fn: str = "", policy: Policy | None = None, **attrs: Any) -> Real:
    """y[i] = fn(x1[i], x2[i], ...)

    Shapes: all equal; lowering writes broadcasts as DataMove.expand.
    Dtypes: the row's; where: bool, x, x -> x; comparisons: x, x -> bool; cast: any -> `to`. `inf_free`: max, min
        and div leave an infinite first operand undecided; `zero_free`: mul leaves 0 * NaN and 0 * inf
        undecided, div a divisor of 0; `nan_free`: comparisons leave NaN undecided; `recip`: div may be a
        product with the reciprocal; `optional`: add may be left out;
        `decided`: a shift beyond the width has an answer; `settled`: the operands of sub and mul
        were stored, so that their terms are not added again in another order; `by_exp`: tanh may be
        computed with exp.
    Source: ONNX Add-14 .. Where-16; limits of functions N5.
    """
    return ELEMENTWISE[fn].exact(*inputs, policy=policy or Policy(), **attrs)


PRIMITIVES: dict[str, PrimitiveDef] = {
    "Elementwise": PrimitiveDef(
        infer_elementwise, exact_elementwise, {name: row.attrs for name, row in ELEMENTWISE.items()}
    ),
    "Quantize": PrimitiveDef(
        conversion.infer_quantize,
        conversion.exact_quantize,
        {"": ("to", "precision"), "float8": ("to", "precision", "saturate")},
    ),
    "Dequantize": PrimitiveDef(conversion.infer_dequantize, conversion.exact_dequantize, {"": ("to",)}),
    "Requantize": PrimitiveDef(conversion.infer_requantize, conversion.exact_requantize, {"": ("to", "zp_inside")}),
}
