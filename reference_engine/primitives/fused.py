"""Gemm and what is fused with it: every meaning is that of the parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes as dt
from .. import real as r
from ..real import Real
from ..types import Policy, TensorSpec
from . import linear
from .definition import PrimitiveDef, require_dtype, require_shape
from .movement import exact_im2col, infer_im2col
from .pointwise import exact_elementwise
from .pointwise.conversion import exact_requantize

WINDOWS = ("im2col_requantize", "im2row_requantize")  # images with channels first and last
GEOMETRY = ("kernel_shape", "strides", "dilations", "pads", "out_shape")


def infer_gemm(a: TensorSpec, b: TensorSpec, *others: TensorSpec, fn: str = "", **attrs: Any) -> TensorSpec:
    if not fn:
        return linear.infer_gemm(a, b, *others, **attrs)
    if fn in WINDOWS:
        if fn == "im2row_requantize":
            b = TensorSpec((b.shape[0], b.shape[-1], *b.shape[1:-1]), b.dtype)
        columns = infer_im2col(b, others[1], **{key: attrs[key] for key in GEOMETRY})
        b = TensorSpec(_columns(a.shape, columns.shape), b.dtype)
    acc = linear.infer_gemm(a, b, *others[:2])
    for operand, dtype, name in zip(others[2:4], ("int32", "float32"), ("bias", "multiplier"), strict=True):
        require_dtype(operand, (dtype,), f"Gemm.{fn}: {name}")
        padded = (*(1,) * (len(acc.shape) - len(operand.shape)), *operand.shape)
        fits = len(padded) == len(acc.shape) and 1 in padded[-2:]
        fits = fits and all(z in (1, d) for z, d in zip(padded, acc.shape, strict=False))
        require_shape(fits, f"Gemm.{fn}: {name} {operand} is neither one value nor one by row or column of {acc}")
    require_dtype(others[4], (attrs["to"],), f"Gemm.{fn}: zero_point")
    require_shape(others[4].shape == (), f"Gemm.{fn}: zero_point {others[4]} must be one value")
    require_dtype(TensorSpec((), attrs["to"]), linear.BYTES, f"Gemm.{fn}: to")
    shape = acc.shape
    if fn == "im2row_requantize":
        shape = (shape[0], shape[3], shape[1] * shape[2])
    return TensorSpec(shape, attrs["to"])


def _columns(a: tuple[int, ...], columns: tuple[int, ...]) -> tuple[int, ...]:
    """[N,C,K,L] as the operand [N,groups,C/groups*K,L] of weights [1,groups,M/groups,C/groups*K]."""
    n, c, taps, length = columns
    require_shape(len(a) == 4 and a[0] == 1 and a[1] > 0 and c % a[1] == 0, f"Gemm: A {a} is no weight of {c} channels")
    return n, a[1], c // a[1] * taps, length


def exact_gemm(a: Real, b: Real, *others: Real, fn: str = "", policy: Policy | None = None, **attrs: Any) -> Real:
    """As linear.exact_gemm; with a function as exact_requantized."""
    if fn:
        return exact_requantized(a, b, *others, fn=fn, policy=policy, **attrs)
    return linear.exact_gemm(a, b, *others, policy=policy, **attrs)


def exact_requantized(
    a: Real,
    b: Real,
    a_zero_point: Real,
    b_zero_point: Real,
    bias: Real,
    multiplier: Real,
    zero_point: Real,
    *,
    to: str,
    low: int,
    high: int,
    zp_inside: bool = False,
    fn: str = "",
    policy: Policy | None = None,
    **geometry: Any,
) -> Real:
    """y = min(max(saturate(round((acc + bias) * multiplier) + zero_point), low), high), acc the sums of exact_gemm

    Shapes: A, B and zero points as exact_gemm; bias and multiplier [], [*,M,1] or [*,1,N]; zero_point []. For
        im2col_requantize A [1,G,M/G,K] and an image B [N,C,*S], whose columns [N,G,K,L] hold b_zero_point in the pads;
        for im2row_requantize an image B [N,*S,C] and the result [N,L,M].
    Dtypes: bytes; bias int32, multiplier float32 -> int8 or uint8.
    Source: composed of Im2col, Gemm, Elementwise.add, Requantize, Elementwise.max and min.
    """
    if fn == "im2row_requantize":
        b = r.move(b, lambda part: np.moveaxis(part, -1, 1))
    if fn in WINDOWS:
        columns = exact_im2col(b, b_zero_point, **geometry)
        b = _reshaped(columns, _columns(a.shape, columns.shape))
    acc = linear.exact_gemm(a, b, a_zero_point, b_zero_point, policy=policy)
    shape, blocks = acc.shape, (1, int(np.prod(acc.shape)), 1)
    acc = exact_elementwise(acc, _spread(bias, shape, shape), fn="add", policy=policy)
    y = exact_requantize(
        _reshaped(acc, blocks),
        _spread(multiplier, shape, blocks[1:2]),
        _spread(zero_point, shape, blocks[1:2]),
        to=to,
        zp_inside=zp_inside,
        policy=policy,
    )
    for word, bound in (("max", low), ("min", high)):
        limit = r.leaf(np.full(blocks, bound, dt.numpy_dtype(to)), to)
        y = y if bound in dt.limits(to) else exact_elementwise(y, limit, fn=word, policy=policy)
    y = _reshaped(y, shape)
    if fn == "im2row_requantize":
        n, groups, m, length = shape
        y = r.move(y, lambda part: part.reshape(n, groups * m, length).swapaxes(1, 2))
    return y


def _reshaped(x: Real, shape: tuple[int, ...]) -> Real:
    return r.move(x, lambda part: part.reshape(shape))


def _spread(x: Real, over: tuple[int, ...], shape: tuple[int, ...]) -> Real:
    return r.move(x, lambda part: np.broadcast_to(part, over).reshape(shape))


REQUANTIZE = ("to", "low", "high", "zp_inside")
ATTRS: dict[str, tuple[str, ...]] = {
    "": (),
    "requantize": REQUANTIZE,
    **dict.fromkeys(WINDOWS, (*REQUANTIZE, *GEOMETRY)),
}
PRIMITIVES: dict[str, Any] = {"Gemm": PrimitiveDef(infer_gemm, exact_gemm, ATTRS)}
