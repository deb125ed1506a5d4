"""Operators that read between elements: Resize."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, cast, elementwise, expand, normal_axis, reshape, scalar, transpose
from ...errors import ModelError, ShapeError, UnknownOperatorError
from ...types import Array
from ..checks import text, versioned, widen
from ..geometry import Ints
from .indexing import take

U = dt.UNIT["float32"]
HALF = Fraction(1, 2)


class Axis(NamedTuple):
    """One axis: its lengths before and after, the scale between them, and the region of interest."""

    length: int
    resized: int
    scale: Fraction
    start: float = 0.0
    end: float = 1.0


class Places(NamedTuple):
    """Where each output element reads on one axis: exact coordinates, and how far float32 may be from them."""

    at: list[Fraction]
    error: list[float]


def _dyadic(q: Fraction) -> bool:
    """Few enough bits that float32 holds it, its multiples by an index and their halves."""
    return q.denominator & (q.denominator - 1) == 0 and q.denominator <= 1024 and abs(q.numerator) < 4096


def _power(q: Fraction) -> bool:
    return _dyadic(q) and (q == 0 or _dyadic(1 / q))


def places(mode: str, a: Axis) -> Places:
    """x_original of every x_resized

    Source: ONNX Resize-19, coordinate_transformation_mode. The error counts the roundings of the formula in float32,
    on the size of its terms (N1); it is 0 where every intermediate number is a float32.
    """
    o = [Fraction(i) for i in range(a.resized)]
    first, last = Fraction(a.start), Fraction(a.end)
    step = Fraction(a.length - 1, max(a.resized - 1, 1))
    if mode in ("half_pixel", "tf_half_pixel_for_nn", "pytorch_half_pixel", "half_pixel_symmetric"):
        shift = Fraction(0) if mode == "tf_half_pixel_for_nn" else HALF
        offset = Fraction(0)
        if mode == "half_pixel_symmetric":
            offset = Fraction(a.length, 2) * (1 - a.resized / (a.scale * a.length))
        at = [offset + (i + HALF) / a.scale - shift for i in o]
        exact = _power(a.scale) and offset == 0
        error = [4 * U * (abs(float(x)) + 1 + abs(float(offset))) + (6 * U * a.length if offset else 0.0) for x in at]
        if mode == "pytorch_half_pixel" and a.resized == 1:
            return Places([Fraction(0)], [0.0])
    elif mode == "align_corners":
        at = [i * step for i in o]
        exact = _dyadic(step)
        error = [4 * U * abs(float(x)) for x in at]
    elif mode == "asymmetric":
        at = [i / a.scale for i in o]
        exact = _power(a.scale)
        error = [4 * U * abs(float(x)) for x in at]
    elif mode == "tf_crop_and_resize":
        far = Fraction(a.length - 1)
        at = [first * far + i * (last - first) * step if a.resized > 1 else (first + last) * far / 2 for i in o]
        exact = _dyadic(step) and _dyadic(first) and _dyadic(last)
        width = float(far) * (abs(a.start) + abs(a.end))
        error = [6 * U * (width + abs(float(x))) for x in at]
    else:
        raise ModelError(f"Resize: coordinate_transformation_mode {mode!r} is not known")
    return Places(at, [0.0] * a.resized if exact else error)


NEAREST: dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda x: math.ceil(x - HALF),
    "round_prefer_ceil": lambda x: math.floor(x + HALF),
    "floor": math.floor,
    "ceil": math.ceil,
}


def nearest(emit: Emitter, x: Value, axis: int, a: Axis, p: Places, mode: str) -> Value:
    """x[.., pick(coordinate), ..]; where the coordinate may round to either side of a step, either element."""
    if mode not in NEAREST:
        raise ModelError(f"{emit.source}: nearest_mode {mode!r} is not one of {', '.join(NEAREST)}")

    def picked(sign: int) -> Array:
        where = [NEAREST[mode](x + sign * Fraction(e)) for x, e in zip(p.at, p.error, strict=True)]
        return np.clip(np.asarray(where, np.int64), 0, a.length - 1)

    low, at, high = picked(-1), picked(0), picked(1)
    return take(emit, x, at, axis, None if (low == high).all() else np.where(low == at, high, low))


class Kernel1D(NamedTuple):
    """An interpolation kernel: h, |h'|, its half-width, the rounding of an evaluation in float32, and whether that is
    exact for arguments of few bits."""

    value: Callable[[float], float]
    slope: Callable[[float], float]
    radius: int
    rounding: float
    exact: bool


def tent() -> Kernel1D:
    return Kernel1D(lambda x: max(0.0, 1.0 - abs(x)), lambda x: 1.0 if abs(x) < 1 else 0.0, 1, 2 * U, True)


def keys(c: float) -> Kernel1D:
    """The cubic convolution kernel of Keys with coefficient c."""

    def value(x: float) -> float:
        x = abs(x)
        if x < 1:
            return ((c + 2) * x - (c + 3)) * x * x + 1
        return ((c * x - 5 * c) * x + 8 * c) * x - 4 * c if x < 2 else 0.0

    def slope(x: float) -> float:
        x = abs(x)
        return (
            abs(3 * (c + 2) * x * x - 2 * (c + 3) * x) if x < 1 else abs((3 * x - 10) * c * x + 8 * c) if x < 2 else 0.0
        )

    return Kernel1D(value, slope, 2, 16 * U * (1 + 2 * abs(c)), _dyadic(Fraction(c)))


def weights(a: Axis, p: Places, kernel: Kernel1D, stretch: float, outside: bool) -> tuple[Array, Array, Array]:
    """(places, weights, how far each weight may be off): what each output element reads of an axis

    Shapes: [R,T]. `stretch` < 1 widens the kernel (antialias); `outside`: taps beyond the axis are dropped and the
    rest normalised, otherwise they read the element at its end.
    """
    rows = []
    scaled = outside or stretch < 1
    for x, error in zip(map(float, p.at), p.error, strict=True):
        reach = kernel.radius / stretch + error
        row = []
        for i in range(math.floor(x - reach), math.ceil(x + reach) + 1):
            distance = (x - i) * stretch
            slack = error * stretch + (4 * U * abs(distance) if stretch < 1 else 0.0)
            # The derivative where it is largest within the slack; the kernels have kinks.
            steep = max(kernel.slope(distance - slack), kernel.slope(distance), kernel.slope(distance + slack))
            h = kernel.value(distance)
            off = steep * slack * 1.05 + 20 * slack * slack
            if slack > 0 or scaled or not kernel.exact or float(np.float32(h)) != h:
                # The tent is one subtraction; a cubic does not even vanish exactly at whole distances.
                size = abs(h) if kernel.radius == 1 else float(abs(distance) <= kernel.radius + slack)
                off += kernel.rounding * size
            if not (outside and not 0 <= i < a.length) and (h or off):
                row.append((min(max(i, 0), a.length - 1), h, off))
        if scaled:
            total = math.fsum(h for _, h, _ in row)
            spread = math.fsum(off for *_, off in row) + len(row) * U * math.fsum(abs(h) for _, h, _ in row)
            if total:
                row = [
                    (i, h / total, (off + abs(h / total) * spread) / abs(total) + 2 * U * abs(h / total))
                    for i, h, off in row
                ]
        rows.append(row or [(0, 0.0, 0.0)])
    width = max(map(len, rows))
    full = np.array([row + [(row[0][0], 0.0, 0.0)] * (width - len(row)) for row in rows])
    w = full[..., 1].astype(np.float32)
    return full[..., 0].astype(np.int64), w, full[..., 2] + np.abs(w - full[..., 1])


def interpolate(emit: Emitter, x: Value, axis: int, table: tuple[Array, Array, Array], roundings: int) -> Value:
    """y[.., o, ..] = sum_t w[o,t] x[.., at[o,t], ..]"""
    at, w, off = table
    resized, taps = at.shape
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    read = take(emit, x, at.ravel(), axis)
    split = reshape(emit, read, (math.prod(before), resized, taps, math.prod(after)))
    last = transpose(emit, split, (0, 1, 3, 2))
    factor = emit.constant(w[:, None, :], off[:, None, :] if off.any() else None)
    terms = emit("Elementwise", last, expand(emit, factor, last.shape), fn="mul", roundings=roundings)
    total = emit("Reduce", terms, fn="sum") if taps > 1 else reshape(emit, terms, last.shape[:-1])
    return reshape(emit, total, (*before, resized, *after))


def outside_roi(emit: Emitter, y: Value, axis: int, a: Axis, p: Places, value: float) -> Value:
    """The extrapolation value where the coordinate lies off the axis; undecided where float32 may decide either way."""
    edges = [(x < 0 or x > a.length - 1) for x in p.at]
    either = [
        (x - Fraction(e) < 0 or x - Fraction(e) > a.length - 1)
        != (x + Fraction(e) < 0 or x + Fraction(e) > a.length - 1)
        or (e > 0 and (abs(x) <= Fraction(e) or abs(x - a.length + 1) <= Fraction(e)))
        for x, e in zip(p.at, p.error, strict=True)
    ]
    if not any(edges) and not any(either):
        return y
    column = np.asarray(edges).reshape(-1, *(1,) * (y.rank - 1 - axis))
    other = np.asarray([e != s for e, s in zip(edges, either, strict=True)]).reshape(column.shape)
    off = emit.constant(column, other if any(either) else None)
    return elementwise(emit, "where", off, scalar(emit, value, y.dtype), y)


def _round_half_up(q: Fraction) -> int:
    return math.floor(q + HALF)


def _axes(
    emit: Emitter,
    X: Value,
    roi: Value | None,
    scales: Value | None,
    sizes: Value | None,
    listed: Ints,
    policy: str,
    crop: bool,
) -> dict[int, Axis]:
    """The axes that change. Raises: ModelError, ShapeError."""
    given = emit.data(scales, "scales") if scales is not None else None
    wanted = emit.data(sizes, "sizes") if sizes is not None else None
    if (given is None) == (wanted is None):
        raise ModelError(f"{emit.source}: exactly one of scales and sizes must be given")
    count = len(given) if given is not None else len(wanted)  # type: ignore[arg-type]
    if count != len(listed):
        raise ShapeError(f"{emit.source}: {count} scales or sizes for {len(listed)} axes of {text(X.shape)}")
    box = emit.data(roi, "roi").astype(np.float64) if crop and roi is not None and roi.spec.size else np.zeros(0)
    if crop and box.size != 2 * count:
        raise ShapeError(f"{emit.source}: roi has {box.size} numbers, expected {2 * count}")
    lengths = [X.shape[a] for a in listed]
    if wanted is not None:
        if min([*wanted, *lengths], default=1) < 1:
            raise ShapeError(f"{emit.source}: sizes {wanted.tolist()} of {text(X.shape)} must be above 0")
        ratios = [Fraction(int(s), n) for s, n in zip(wanted, lengths, strict=True)]
        resized = [int(s) for s in wanted]
        if policy in ("not_larger", "not_smaller"):
            common = (min if policy == "not_larger" else max)(ratios)
            ratios = [common] * count
            resized = [_round_half_up(common * n) for n in lengths]
        elif policy != "stretch":
            raise ModelError(f"{emit.source}: keep_aspect_ratio_policy {policy!r} is not known")
    else:
        assert given is not None
        if given.size and (not np.isfinite(given).all() or given.min() <= 0):
            raise ModelError(f"{emit.source}: scales {given.tolist()} must be finite and above 0")
        ratios = [Fraction(float(s)) for s in given]
        spans = [Fraction(float(box[count + i] - box[i])) if crop else Fraction(1) for i in range(count)]
        # As shape inference of ONNX has it: the product in float32.
        resized = [
            math.floor(np.float32(n) * np.float32(float(span)) * np.float32(float(s)))
            for n, span, s in zip(lengths, spans, ratios, strict=True)
        ]
    corners = [(float(box[i]), float(box[count + i])) if crop else (0.0, 1.0) for i in range(count)]
    made = {a: Axis(n, r, s, *c) for a, n, r, s, c in zip(listed, lengths, resized, ratios, corners, strict=True)}
    return {a: x for a, x in made.items() if (x.resized, x.scale, x.start, x.end) != (x.length, 1, 0.0, 1.0)}


def lower_resize(
    emit: Emitter,
    X: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
    *,
    antialias: int = 0,
    axes: Ints | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Value:
    """Y[o] = sum_t w(x(o), t) X[t] on each axis in turn, x(o) the coordinate of o in X; nearest: X[round(x(o))]

    Dtypes: any for nearest; floats and integers otherwise, in float32 and then truncated or rounded to integers, of
    which ONNX asks for neither.
    Source: ONNX Resize-19.
    """
    transform = coordinate_transformation_mode
    if transform == "tf_half_pixel_for_nn" and emit.opset >= 13:
        raise UnknownOperatorError(f"{emit.source}: tf_half_pixel_for_nn belongs to opsets 11 and 12")
    if mode not in ("nearest", "linear", "cubic"):
        raise ModelError(f"{emit.source}: mode {mode!r} is not nearest, linear or cubic")
    scales = None if scales is None or not scales.spec.size else scales
    sizes = None if sizes is None or not sizes.spec.size else sizes
    listed = tuple(range(X.rank)) if axes is None else tuple(normal_axis(emit, a, X.rank) for a in axes)
    crop = transform == "tf_crop_and_resize"
    found = _axes(emit, X, roi, scales, sizes, listed, keep_aspect_ratio_policy, crop)
    where = {axis: places(transform, a) for axis, a in found.items()}
    if not found:
        return emit("DataMove", X, fn="copy")
    if mode == "nearest":
        y = X
        for axis, a in found.items():
            y = nearest(emit, y, axis, a, where[axis], nearest_mode)
    else:
        if X.dtype == "bool":
            raise ModelError(f"{emit.source}: bool tensors have no {mode} interpolation")
        y = X if X.dtype == "float64" else cast(emit, widen(emit, X), "float32")
        y_kind = dt.numpy_dtype(y.dtype)
        kernel = tent() if mode == "linear" else keys(cubic_coeff_a)
        tables = {}
        for axis, a in found.items():
            stretch = min(float(a.scale), 1.0) if antialias else 1.0
            tables[axis] = weights(a, where[axis], kernel, stretch, bool(exclude_outside))
        taps = [t[0].shape[1] for t in tables.values()]
        # A kernel may add up the products of all axes in one sum, with an axis that stays among them.
        roundings = len(taps) + 2 * math.prod(taps) - sum(taps)
        for i, (axis, table) in enumerate(tables.items()):
            if i and antialias and X.dtype in dt.INTS:
                # Kernels that work axis by axis may keep bytes in between.
                y = elementwise(emit, "add", y, emit.constant(np.zeros((), y_kind), np.asarray(1.0)))
            y = interpolate(emit, y, axis, table, roundings)
            roundings = 0
    for axis, a in found.items() if crop else ():
        y = outside_roi(emit, y, axis, a, where[axis], extrapolation_value)
    if y.dtype == X.dtype:
        return y
    return emit("Elementwise", y, fn="cast", to=X.dtype, **({"nearest": True} if X.dtype in dt.INTS else {}))


RESAMPLE: dict[tuple[str, str], OperatorDef] = {
    ("", "Resize"): OperatorDef(
        versioned(lower_resize, antialias=(18, None), axes=(18, None), keep_aspect_ratio_policy=(18, None)), since=11
    ),
}
