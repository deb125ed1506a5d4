"""Im2col, DataMove, Gather and Scatter: elements change place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import dtypes as dt
from .. import real as r
from ..errors import ModelError, ShapeError
from ..real import Real
from ..types import Array, Policy, TensorSpec
from .definition import PrimitiveDef, require_dtype, require_shape

Ints = tuple[int, ...]


def infer_im2col(
    x: TensorSpec,
    pad_value: TensorSpec,
    *,
    kernel_shape: Ints,
    strides: Ints,
    dilations: Ints,
    pads: Ints,
    out_shape: Ints,
    fn: str = "",
) -> TensorSpec:
    rank = len(kernel_shape)
    require_shape(len(x.shape) == rank + 2, f"Im2col: X {x} needs rank {rank + 2} for kernel {kernel_shape}")
    lengths = len(strides) == len(dilations) == len(out_shape) == rank and len(pads) == 2 * rank
    require_shape(
        lengths, f"Im2col: strides {strides}, dilations {dilations}, pads {pads} do not fit kernel {kernel_shape}"
    )
    require_shape(
        min((*strides, *dilations, *kernel_shape), default=1) >= 1,
        f"Im2col: strides, dilations and kernel must be >= 1 (kernel {kernel_shape})",
    )
    require_shape(min(out_shape, default=0) >= 0, f"Im2col: output {out_shape} would be negative for X {x}")
    require_dtype(pad_value, (x.dtype,), "Im2col: pad_value")
    return TensorSpec((*x.shape[:2], int(np.prod(kernel_shape)), int(np.prod(out_shape))), x.dtype)


def window_index(
    spatial: Ints, kernel_shape: Ints, strides: Ints, dilations: Ints, pads: Ints, out_shape: Ints
) -> Array:
    """Flat spatial index of each (kernel tap, output position); prod(spatial) where the tap lies in the padding.

    Shapes: [K, L], K = prod(kernel_shape), L = prod(out_shape).
    """
    flat = np.zeros((1, 1), np.int64)
    inside = np.ones((1, 1), bool)
    for axis, size in enumerate(spatial):
        taps = np.arange(kernel_shape[axis])[:, None] * dilations[axis]
        at = np.arange(out_shape[axis])[None, :] * strides[axis] - pads[axis] + taps
        ok = (at >= 0) & (at < size)
        k, n = flat.shape
        flat = (flat[:, None, :, None] * size + np.where(ok, at, 0)[None, :, None, :]).reshape(
            k * at.shape[0], n * at.shape[1]
        )
        inside = (inside[:, None, :, None] & ok[None, :, None, :]).reshape(flat.shape)
    return np.where(inside, flat, int(np.prod(spatial, dtype=np.int64)))


def exact_im2col(x: Real, pad_value: Real, *, fn: str = "", policy: Policy | None = None, **geometry: Any) -> Real:
    """Y[n,c,k,l] = X[n,c, l * stride - pad + k * dilation], pad_value outside

    Shapes: X [N,C,*S], pad_value [] -> Y [N,C,K,L]; windows may reach past the end padding (ceil_mode).
    Dtypes: any, same in and out.
    Source: the usual im2col; padding of quantized tensors is the zero point (ONNX QLinearConv-10).
    """
    index = window_index(x.shape[2:], **geometry)

    def windows(part: Array, pad: Any) -> Array:
        flat = part.reshape(*part.shape[:2], math.prod(part.shape[2:]))
        edge = np.full((*flat.shape[:2], 1), pad, flat.dtype)
        return np.concatenate([flat, edge], -1)[:, :, index]

    return padded(x, pad_value, windows)


def padded(x: Real, pad_value: Real, place: Callable[[Array, Any], Array]) -> Real:
    """Move with a fill: the fill is exact, so that it adds no error, only its own grid."""

    def other(part: r.Part, fill: Any) -> Any:
        return place(np.broadcast_to(part, x.shape), fill) if isinstance(part, np.ndarray) else part

    fill = pad_value.value[()]
    grid = 0.0
    if dt.is_float(x.dtype):
        grid = min(float(np.min(x.grid)) if np.size(x.grid) else 1.0, r.grid_of(np.asarray(fill)))
    return Real(
        place(x.value, fill),
        x.dtype,
        other(x.mag, abs(fill) if dt.is_float(x.dtype) and np.isfinite(fill) else 0),  # infinity is exact
        x.k,
        other(x.err, 0.0),
        grid,
        other(x.hazard, False),
        x.ieee,
        other(x.lo, fill),
        other(x.hi, fill),
        **r.traits(x),
    )


def infer_datamove(*inputs: TensorSpec, fn: str = "", **attrs: Any) -> TensorSpec:
    return TensorSpec(DATAMOVE[fn](*inputs, **attrs), inputs[0].dtype)


def _transpose_shape(x: TensorSpec, *, perm: Ints) -> Ints:
    require_shape(
        sorted(perm) == list(range(len(x.shape))), f"DataMove.transpose: perm {perm} is no permutation for {x}"
    )
    return tuple(x.shape[p] for p in perm)


def _reshape_shape(x: TensorSpec, *, shape: Ints) -> Ints:
    fits = min(shape, default=0) >= 0 and TensorSpec(shape, x.dtype).size == x.size
    require_shape(fits, f"DataMove.reshape: {x} does not hold as many elements as {shape}")
    return shape


def _expand_shape(x: TensorSpec, *, shape: Ints) -> Ints:
    fits = len(shape) == len(x.shape) and all(d in (1, s) for d, s in zip(x.shape, shape, strict=True))
    require_shape(fits, f"DataMove.expand: {x} does not broadcast to {shape}")
    return shape


def _slice_shape(x: TensorSpec, *, starts: Ints, ends: Ints, steps: Ints) -> Ints:
    require_shape(
        len(starts) == len(ends) == len(steps) == len(x.shape), f"DataMove.slice: starts {starts} do not fit {x}"
    )
    require_shape(all(steps), f"DataMove.slice: a step is 0 in {steps}")
    return tuple(len(range(b, e, s)) for b, e, s in zip(starts, ends, steps, strict=True))


def _pad_shape(x: TensorSpec, value: TensorSpec, *, pads: Ints, mode: str) -> Ints:
    rank = len(x.shape)
    require_shape(len(pads) == 2 * rank, f"DataMove.pad: {len(pads)} pads do not fit {x}")
    require_dtype(value, (x.dtype,), "DataMove.pad: value")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise ModelError(f"DataMove.pad: mode {mode!r} is not constant, reflect, edge or wrap")
    shape = tuple(d + pads[i] + pads[rank + i] for i, d in enumerate(x.shape))
    require_shape(min(shape, default=0) >= 0, f"DataMove.pad: pads {pads} leave a negative dimension of {x}")
    for i, d in enumerate(x.shape):
        longest = max(pads[i], pads[rank + i], 0)
        need = d if mode == "edge" or longest == 0 or d == 0 else d - 1
        legal = mode in ("constant", "wrap", "edge") or longest <= need
        require_shape(
            legal and (mode == "constant" or d > 0 or longest == 0),
            f"DataMove.pad: {mode} pad {longest} needs a longer axis {i} of {x}",
        )
    return shape


def _concat_shape(*xs: TensorSpec, axis: int) -> Ints:
    first = xs[0].shape
    for x in xs[1:]:
        require_dtype(x, (xs[0].dtype,), "DataMove.concat: every input")
        same = len(x.shape) == len(first) and all(
            a == b for i, (a, b) in enumerate(zip(first, x.shape, strict=True)) if i != axis
        )
        require_shape(same, f"DataMove.concat: {x} and {xs[0]} differ outside axis {axis}")
    return (*first[:axis], sum(x.shape[axis] for x in xs), *first[axis + 1 :])


def _copy_shape(x: TensorSpec, to: str = "") -> Ints:
    return x.shape


DATAMOVE: dict[str, Callable[..., Ints]] = {
    "transpose": _transpose_shape,
    "reshape": _reshape_shape,
    "expand": _expand_shape,
    "slice": _slice_shape,
    "pad": _pad_shape,
    "concat": _concat_shape,
    "copy": _copy_shape,
    "transfer": _copy_shape,
}
DATAMOVE_ATTRS: dict[str, tuple[str, ...]] = {
    "transpose": ("perm",),
    "reshape": ("shape",),
    "expand": ("shape",),
    "slice": ("starts", "ends", "steps"),
    "pad": ("pads", "mode"),
    "concat": ("axis",),
    "copy": (),
    "transfer": ("to",),
}


def slices(starts: Ints, ends: Ints, steps: Ints) -> tuple[slice, ...]:
    """numpy slices of normalised bounds, where an end of -1 means before element 0."""
    return tuple(slice(b, None if e < 0 else e, s) for b, e, s in zip(starts, ends, steps, strict=True))


def pad_array(part: Array, fill: Any, pads: Ints, mode: str) -> Array:
    """Crop by the negative pads, then pad."""
    rank = part.ndim
    crop = tuple(slice(max(-pads[i], 0), part.shape[i] - max(-pads[rank + i], 0)) for i in range(rank))
    width = [(max(pads[i], 0), max(pads[rank + i], 0)) for i in range(rank)]
    if mode == "constant":
        return np.pad(part[crop], width, constant_values=fill)
    return np.pad(part[crop], width, mode=mode)  # type: ignore[call-overload]


def exact_datamove(*inputs: Real, fn: str = "", policy: Policy | None = None, **attrs: Any) -> Real:
    """Y[place(i)] = X[i]

    Shapes: transpose perm, reshape shape, expand (same rank, 1 becomes n), slice (normalised bounds), pad
        (begin.. end.., negative crops), concat axis, copy, transfer `to` another device.
    Dtypes: any, same in and out.
    Source: ONNX Transpose-13, Reshape-14, Expand-13, Slice-13, Pad-19, Concat-13, Identity-13.
    """
    x = inputs[0]
    if fn == "concat":
        return concat(inputs, attrs["axis"])
    if fn == "pad":
        return padded(x, inputs[1], lambda part, fill: pad_array(part, fill, attrs["pads"], attrs["mode"]))
    moves: dict[str, Callable[[Array], Array]] = {
        "transpose": lambda part: part.transpose(attrs["perm"]),
        "reshape": lambda part: part.reshape(attrs["shape"]),
        "expand": lambda part: np.broadcast_to(part, attrs["shape"]),
        "slice": lambda part: part[slices(attrs["starts"], attrs["ends"], attrs["steps"])],
        "copy": lambda part: part,
        "transfer": lambda part: part,
    }
    return r.move(x, moves[fn])


def concat(xs: Sequence[Real], axis: int) -> Real:
    """Join everything that the parts carry; enumerated sets become their hull."""

    def join(parts: Sequence[Any]) -> Array:
        return np.concatenate([np.broadcast_to(p, x.shape) for p, x in zip(parts, xs, strict=True)], axis)

    value = join([x.value for x in xs])
    first = xs[0]
    if not dt.is_float(first.dtype):
        hazard = join([x.hazard for x in xs]) if any(np.any(x.hazard) for x in xs) else False
        if all(x.lo is None for x in xs):
            return Real(value, first.dtype, hazard=hazard)
        lo = join([x.value if x.lo is None else x.lo for x in xs])
        hi = join([x.value if x.hi is None else x.hi for x in xs])
        origin: dict[str, Any] = {}  # what was rounded, where every part was
        if all(x.real is not None and x.zero_point is not None for x in xs):
            origin = {"real": join([x.real for x in xs]), "zero_point": join([x.zero_point for x in xs])}
        return Real(
            value,
            first.dtype,
            hazard=hazard,
            lo=lo,
            hi=hi,
            **origin,
        )
    if all(x.exact for x in xs):
        grid = min(float(np.min(x.grid)) if np.size(x.grid) else 1.0 for x in xs)
        return Real(value, first.dtype, grid=grid, hazard=join([x.hazard for x in xs]), **r.traits(*xs))
    err = join([r.radius(x) for x in xs])
    return Real(value, first.dtype, err=err, hazard=join([x.hazard for x in xs]), **r.traits(*xs))


def infer_gather(x: TensorSpec, indices: TensorSpec, fn: str = "") -> TensorSpec:
    if fn == "nd":
        return TensorSpec((*_infer_places("Gather.nd", x, indices), x.shape[-1]), x.dtype)
    require_shape(
        len(x.shape) == 3 and len(indices.shape) == 1, f"Gather: x {x} must be [O,L,I] and indices {indices} [n]"
    )
    require_dtype(indices, ("int64",), "Gather: indices")
    return TensorSpec((x.shape[0], indices.shape[0], x.shape[2]), x.dtype)


def exact_gather(x: Real, indices: Real, fn: str = "", policy: Policy | None = None) -> Real:
    """Y[o,n,i] = X[o, indices[n], i]; nd: Y[b,n,i] = X[b, indices[b,n,0], .., indices[b,n,r-1], i]

    Shapes: x [O,L,I], indices [n] -> Y [O,n,I]; nd: x [B,*D,I], indices [B,N,r] with r sizes in D -> Y [B,N,I].
    Dtypes: any; indices int64, negative ones count from the end.
    Raises: ShapeError when an index is out of range.
    Source: ONNX Gather-13, GatherND-13, GatherElements-13. Where an index may be one of two (a coordinate on the edge
        of a rounding), so may the element.
    """
    if fn == "nd":
        places = flat_places(indices.value, x.shape[1:-1], "Gather")
        rows = np.arange(x.shape[0])[:, None]
        blocks = (x.shape[0], math.prod(x.shape[1:-1]), x.shape[-1])
        return r.move(x, lambda part: part.reshape(blocks)[rows, places])
    length = x.shape[1]
    for at in indices.members or (indices.value,):
        if at.size and (at.min() < -length or at.max() >= length):
            bad = int(at.min() if at.min() < -length else at.max())
            raise ShapeError(f"Gather: index {bad} is out of range for an axis of {length}")
    picked = [r.move(x, lambda part, at=at: part[:, at, :]) for at in indices.members or (indices.value,)]  # type: ignore[misc]
    return r.either(picked) if len(picked) > 1 else picked[0]


def _infer_places(name: str, x: TensorSpec, indices: TensorSpec) -> Ints:
    """(B, N) of indices [B,N,r] into x [B,*D,I]."""
    fits = len(indices.shape) == 3 and len(x.shape) == indices.shape[2] + 2 and x.shape[0] == indices.shape[0]
    require_shape(fits, f"{name}: x {x} must be [B,*D,I] and indices {indices} [B,N,r] with as many sizes in D as r")
    require_dtype(indices, ("int64",), f"{name}: indices")
    return indices.shape[:2]


def flat_places(indices: Array, sizes: Ints, name: str) -> Array:
    """The flat place of each index tuple.

    Shapes: indices [*,r], sizes r numbers -> [*].
    Raises: ShapeError naming the first index that is out of range.
    """
    place = np.zeros(indices.shape[:-1], np.int64)
    for i, size in enumerate(sizes):
        at = indices[..., i]
        outside = (at < -size) | (at >= size)
        if outside.any():
            raise ShapeError(f"{name}: index {int(at[outside][0])} is out of range for an axis of {size}")
        place = place * size + np.where(at < 0, at + size, at)
    return place


def infer_scatter(x: TensorSpec, indices: TensorSpec, updates: TensorSpec, fn: str = "") -> TensorSpec:
    wanted = (*_infer_places(f"Scatter.{fn}", x, indices), x.shape[-1])
    require_shape(updates.shape == wanted, f"Scatter.{fn}: updates {updates} must have the shape {wanted}")
    require_dtype(updates, (x.dtype,), f"Scatter.{fn}: updates")
    if fn != "none":
        require_dtype(x, (*dt.FLOATS, *dt.INTS), f"Scatter.{fn}: x")
    return TensorSpec(x.shape, x.dtype)


def exact_scatter(x: Real, indices: Real, updates: Real, fn: str = "", policy: Policy | None = None) -> Real:
    """Y = X, then Y[b, indices[b,n,0], .., indices[b,n,r-1], i] = fn(that, updates[b,n,i]) for every b, n, i

    Shapes: x, Y [B,*D,I], indices [B,N,r] with r sizes in D, updates [B,N,I].
    Dtypes: any same type for none; numbers for add, mul, max, min.
    Raises: ShapeError when an index is out of range.
    Source: ONNX ScatterElements-18, ScatterND-18. Two updates of one place: undecided for none (N6); c of them are c
        roundings of the tensor's own type for add and mul (N1), whatever their order; max and min with NaN are
        undecided (N7).
    """
    places = flat_places(indices.value, x.shape[1:-1], "Scatter")
    length = math.prod(x.shape[1:-1])
    where = (places + length * np.arange(x.shape[0])[:, None]).ravel()
    rows, width = x.shape[0] * length, x.shape[-1]
    base = r.move(x, lambda part: part.reshape(rows, width))
    given = r.move(updates, lambda part: part.reshape(len(where), width))
    made = _replace(base, given, where) if fn == "none" else _accumulate(base, given, where, fn)
    return r.move(made, lambda part: part.reshape(x.shape))


def _replace(base: Real, given: Real, where: Array) -> Real:
    count = np.bincount(where, minlength=base.shape[0])
    source = np.arange(base.shape[0])
    source[where] = base.shape[0] + np.arange(len(where))  # of equal places one
    made = r.move(concat((base, given), 0), lambda part: part[source])
    if count.max(initial=0) < 2:
        return made
    first = given.value[source[where] - base.shape[0]]
    with np.errstate(invalid="ignore"):
        differ = (first != given.value) & ~((first != first) & (given.value != given.value))
    unclear = np.zeros(base.shape, bool)
    np.logical_or.at(unclear, where, differ)
    return replace(made, hazard=made.hazard | unclear)


_AT: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _accumulate(base: Real, given: Real, where: Array, fn: str) -> Real:
    """Every update of a place, in any order."""
    value = base.value.copy()
    with np.errstate(all="ignore"):
        _AT[fn].at(value, where, given.value)
    hazard = np.array(np.broadcast_to(base.hazard, base.shape))
    np.logical_or.at(hazard, where, np.broadcast_to(given.hazard, given.shape))
    if not dt.is_float(base.dtype):
        if base.lo is not None and base.hi is not None:
            hazard |= base.lo != base.hi
        if given.lo is not None and given.hi is not None:
            np.logical_or.at(hazard, where, given.lo != given.hi)
        return Real(value, base.dtype, hazard=hazard)
    count = np.bincount(where, minlength=base.shape[0])[:, None]
    carried = np.array(np.broadcast_to(r.radius(base), base.shape))
    mine = np.broadcast_to(r.radius(given), given.shape)
    if fn in ("max", "min"):
        np.maximum.at(carried, where, mine)
        lost = np.isnan(value) & (count > 0)
        return Real(value, base.dtype, err=carried, hazard=hazard | lost, floor=base.floor)
    unit, tiny = dt.UNIT[base.dtype], max(base.floor, dt.TINY[base.dtype])
    growth = count * unit / (1.0 - count * unit)
    mag, least = base.magnitude.copy(), np.abs(base.value)
    with np.errstate(all="ignore"):
        if fn == "add":
            np.add.at(carried, where, mine)
            np.add.at(mag, where, given.magnitude)
            wrong = (mag > dt.MAX[base.dtype]) & np.isfinite(mag) & (count > 0)
            mag = np.where(np.isfinite(mag), mag, np.abs(value))
        else:
            np.multiply.at(mag, where, given.magnitude)
            reach = np.maximum(np.abs(base.value), 1.0)
            np.multiply.at(reach, where, np.maximum(np.abs(given.value), 1.0))
            least = np.where(least == 0, 1.0, np.minimum(least, 1.0))
            small = np.abs(given.value)
            np.multiply.at(least, where, np.where(small == 0, 1.0, np.minimum(small, 1.0)))
            # Another order may leave the range on the way; operands that are uncertain themselves are not followed.
            wrong = (count > 1) & ((reach > dt.MAX[base.dtype]) | (least < dt.NORMAL[base.dtype]))
            uncertain = np.array(carried != 0)
            np.logical_or.at(uncertain, where, mine != 0)
            wrong |= uncertain & (count > 0)
    own = np.where(count > 0, growth * np.where(np.isfinite(mag), mag, 0.0) + count * tiny, 0.0)
    if fn == "add":
        grid = min(_grid(base), _grid(given))
        agree = (mag <= grid / unit) & (grid >= tiny)
        own = np.where(agree, 0.0, own)
    return Real(value, base.dtype, err=carried + own, hazard=hazard | wrong, floor=base.floor)


def _grid(x: Real) -> float:
    return float(np.min(x.grid)) if np.size(x.grid) else 1.0


_GEOMETRY = ("kernel_shape", "strides", "dilations", "pads", "out_shape")
PRIMITIVES: dict[str, PrimitiveDef] = {
    "Im2col": PrimitiveDef(infer_im2col, exact_im2col, {"": _GEOMETRY}),
    "DataMove": PrimitiveDef(infer_datamove, exact_datamove, DATAMOVE_ATTRS),
    "Gather": PrimitiveDef(infer_gather, exact_gather, {"": (), "nd": ()}),
    "Scatter": PrimitiveDef(infer_scatter, exact_scatter, dict.fromkeys(("none", "add", "mul", "max", "min"), ())),
}
