"""Where the data of a case come from: raw bits of PCG64 and exact arithmetic, nothing that a library may improve.

`tensor(arg, seed, index)` turns one `Arg` into an array. Every profile is a function of raw 64-bit words and
of IEEE additions and multiplications, so that a case id means the same bits on every machine and in five
years (tests/test_profiles.py pins hashes). A profile is named in a case id as `name@param@param`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import CaseError
from opgauge.reference_engine.types import Arg, Array

Bits = Callable[[int], Array]
Shape = tuple[int, ...]
Params = tuple[float, ...]
Profile = Callable[[Bits, Shape, str, Params], Array]

# 10 ** k by correctly rounded parsing: pow() of a C library may differ in the last bit.
POWERS_OF_TEN = np.array([float(f"1e{k}") for k in range(-45, 39)])
LANES = 8  # 16-bit lanes in one normal number: bell-shaped within 4.9 standard deviations
LANE_STD = 65536 * (LANES / 12) ** 0.5
SIGNIFICAND = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0, "tiny", "max")


def _size(shape: Shape) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _below(bits: Bits, n: int, limit: int) -> Array:
    """n integers in [0, limit); the bias of at most limit / 2^32 is of no interest here."""
    return ((bits(n) >> np.uint64(32)) * np.uint64(limit) >> np.uint64(32)).astype(np.int64)


def _unit(bits: Bits, n: int, dtype: str = "float64") -> Array:
    """n numbers in [0, 1) with as many random bits as `dtype` can hold."""
    wide = SIGNIFICAND.get(dtype, 24)
    return (bits(n) >> np.uint64(64 - wide)).astype(np.float64) * 2.0**-wide


def _gauss(bits: Bits, n: int) -> Array:
    """n numbers of mean 0 and standard deviation 1: a centred sum of 16-bit lanes."""
    lanes = bits(n * LANES // 4).view(np.uint16).reshape(n, LANES)
    total = lanes.sum(axis=1, dtype=np.int64) * 2 - LANES * 65535
    return total.astype(np.float64) * (0.5 / LANE_STD)


def _store(values: Array, shape: Shape, dtype: str) -> Array:
    """To `dtype`, half-even; integers saturate."""
    if dt.is_integer(dtype):
        low, high = dt.limits(dtype)
        values = np.clip(np.rint(values), low, high) if values.dtype.kind == "f" else np.clip(values, low, high)
    with np.errstate(over="ignore"):
        return values.astype(dt.numpy_dtype(dtype)).reshape(shape)


def uniform(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """Integers over their full range; floats in [-1, 1), or either in [lo, hi]."""
    n = _size(shape)
    if dtype == "bool":
        return (bits(n) >> np.uint64(63)).astype(np.bool_).reshape(shape)
    if dt.is_integer(dtype):
        if params or dtype in dt.SUBBYTE:
            least, most = map(int, params or dt.limits(dtype))
            return _store(least + _below(bits, n, most - least + 1), shape, dtype)
        target = dt.numpy_dtype(dtype)
        words = bits(n) >> np.uint64(64 - 8 * target.itemsize)
        return words.astype(f"u{target.itemsize}").view(target).reshape(shape)
    low, high = params or (-1.0, 1.0)
    return _store(low + (high - low) * _unit(bits, n, dtype), shape, dtype)


def normal(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """normal@std@centre, by default 1 and 0."""
    std, centre = (*params, *(1.0, 0.0)[len(params) :])
    return _store(centre + std * _gauss(bits, _size(shape)), shape, dtype)


def positive(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    return _store((params[0] if params else 1.0) * np.abs(_gauss(bits, _size(shape))), shape, dtype)


def negative(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """Below zero everywhere: what a padding of zeros would beat."""
    if dtype in dt.INTS:
        return _store(-1 - _below(bits, _size(shape), min(-dt.limits(dtype)[0], 2**31)), shape, dtype)
    return _store(-0.25 - np.abs(_gauss(bits, _size(shape))), shape, dtype)


def near(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """near@centre@radius: integers around a zero point, saturated to the type."""
    centre, radius = map(int, params)
    return _store(centre - radius + _below(bits, _size(shape), 2 * radius + 1), shape, dtype)


def extremes(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """Only qmin and qmax."""
    low, high = dt.limits(dtype)
    return np.where(bits(_size(shape)) >> np.uint64(63), high, low).astype(dt.numpy_dtype(dtype)).reshape(shape)


def sparse(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """sparse@centre: seven of eight elements are the centre (0 by default)."""
    n = _size(shape)
    dense = normal(bits, (n,), dtype, ()) if dt.is_float(dtype) else uniform(bits, (n,), dtype, ())
    centre = np.asarray(params[0] if params else 0).astype(dense.dtype)
    return np.where(bits(n) >> np.uint64(61), centre, dense).reshape(shape)


def wide(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """wide@lo@hi: magnitudes over the decades lo to hi (-6 to 6), both signs."""
    low, high = map(int, params or (-6, 6))
    n = _size(shape)
    decade = POWERS_OF_TEN[45 + low + _below(bits, n, high - low + 1)]
    sign = 1.0 - 2.0 * (bits(n) >> np.uint64(63)).astype(np.float64)
    return _store(sign * (1.0 + 8.0 * _unit(bits, n)) * decade, shape, dtype)


def cancel(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """cancel@size: neighbours of opposite sign and nearly equal size (1000), so that sums lose their leading digits."""
    n = _size(shape)
    sign = 1.0 - 2.0 * (np.arange(n) % 2)
    return _store(sign * (params[0] if params else 1000.0) + _gauss(bits, n), shape, dtype)


def integers(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """integers@limit: whole numbers in [-limit, limit] (8), whose sums every order computes exactly."""
    limit = int(params[0]) if params else 8
    return _store(_below(bits, _size(shape), 2 * limit + 1) - limit, shape, dtype)


def grid(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """grid@step@lo@hi: lo to hi times the step."""
    step, low, high = params
    steps = int(low) + _below(bits, _size(shape), int(high) - int(low) + 1)
    return _store(steps.astype(np.float64) * step, shape, dtype)


def halves(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """halves@scale@lo@hi: (k + 1/2) * scale for k in [lo, hi], half of them moved by one or two ulp."""
    scale, low, high = params
    n = _size(shape)
    k = int(low) + _below(bits, n, int(high) - int(low) + 1)
    x = _store((k + 0.5) * float(dt.numpy_dtype(dtype).type(scale)), (n,), dtype)
    ulps = np.array([0, 0, 0, 0, -2, -1, 1, 2])[_below(bits, n, 8)]
    word = np.dtype(f"i{x.dtype.itemsize}")
    # One step of the integer pattern is one ulp away from zero in either sign.
    return (x.view(word) + np.where(x == 0, 0, ulps).astype(word)).view(x.dtype).reshape(shape)


def special(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """special@mask@every: normal numbers, one in `every` (8) replaced by a special one.

    `mask` adds up 1 NaN, 2 +Inf, 4 -Inf, 8 -0, 16 +0, 32 subnormals, 64 the largest finite number (127).
    """
    mask, every = (*map(int, params), *(127, 8)[len(params) :])
    n = _size(shape)
    x = normal(bits, (n,), dtype, ())
    named = {"tiny": 3 * dt.TINY[dtype], "max": dt.MAX[dtype]}
    chosen = [named.get(v, v) for i, v in enumerate(SPECIAL) if mask >> i & 1]  # type: ignore[call-overload]
    value = np.array(chosen, np.float64)[_below(bits, n, len(chosen))].astype(x.dtype)
    return np.where(_below(bits, n, every) == 0, value, x).reshape(shape)


def lanes(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """lanes@axis@std: normal, but whole lanes along the axis are -Inf, hold one +Inf, or are half -Inf."""
    axis, std = int(params[0]), params[1]
    x = np.moveaxis(normal(bits, shape, dtype, (std,)), axis, -1).copy()
    flat = x.reshape(_size(x.shape[:-1]), x.shape[-1])
    rows, n = flat.shape
    kind = _below(bits, rows, 8)
    flat[kind == 1] = -np.inf
    (one,) = np.nonzero(kind == 2)
    flat[one, _below(bits, rows, max(n, 1))[one]] = np.inf
    flat[(kind == 3)[:, None] & (bits(rows * n) >> np.uint64(63)).astype(np.bool_).reshape(rows, n)] = -np.inf
    return np.ascontiguousarray(np.moveaxis(flat.reshape(x.shape), -1, axis))


def large(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """large@limit: uniform in [-limit, limit) (100)."""
    limit = params[0] if params else 100.0
    return uniform(bits, shape, dtype, (-limit, limit))


def mask(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """mask@low: 0, and low (-1e9) in one place of three: a mask that models add. The first of a row is never hidden."""
    low = params[0] if params else -1e9
    hidden = _below(bits, _size(shape), 3).reshape(shape) == 0
    hidden[..., :1] = False
    return _store(np.where(hidden, low, 0.0).ravel(), shape, dtype)


def index(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """index@L: every legal index of an axis of length L, negative ones too."""
    length = int(params[0])
    return _store(_below(bits, _size(shape), 2 * length) - length, shape, dtype)


def pow2(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """pow2@lo@hi: 2^lo to 2^hi."""
    low, high = map(int, params)
    return _store(np.ldexp(1.0, low + _below(bits, _size(shape), high - low + 1)), shape, dtype)


def scales(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """scales@lo@hi: log-uniform positive numbers between 2^lo and 2^hi."""
    low, high = map(int, params)
    n = _size(shape)
    return _store(np.ldexp(1.0 + _unit(bits, n), low + _below(bits, n, high - low)), shape, dtype)


def spread(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """spread@base@octaves: scales within that many octaves of the base (3 octaves are e^2)."""
    base, octaves = params[0], int(params[1])
    n = _size(shape)
    factor = np.ldexp(1.0 + _unit(bits, n), _below(bits, n, 2 * octaves) - octaves)
    return _store(base * factor, shape, dtype)


def patterns(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """Any bits: of an 8-bit float all its numbers, infinities and NaN alike."""
    target = dt.numpy_dtype(dtype)
    words = bits(_size(shape)) >> np.uint64(64 - 8 * target.itemsize)
    return words.astype(f"u{target.itemsize}").view(target).reshape(shape)


def fill(bits: Bits, shape: Shape, dtype: str, params: Params) -> Array:
    """fill@value: the same number everywhere."""
    return np.full(shape, params[0]).astype(dt.numpy_dtype(dtype))


PROFILES: dict[str, Profile] = {
    "uniform": uniform,
    "normal": normal,
    "positive": positive,
    "negative": negative,
    "near": near,
    "extremes": extremes,
    "sparse": sparse,
    "wide": wide,
    "cancel": cancel,
    "integers": integers,
    "grid": grid,
    "halves": halves,
    "special": special,
    "lanes": lanes,
    "large": large,
    "mask": mask,
    "index": index,
    "bool": uniform,
    "pow2": pow2,
    "scales": scales,
    "spread": spread,
    "patterns": patterns,
    "fill": fill,
}


def tensor(arg: Arg, seed: int, index: int) -> Array:
    """The array of one argument: its literal elements, or its profile fed by the bits of (seed, index).

    Raises: CaseError naming an unknown profile or parameters that it cannot use.
    """
    dtype = dt.numpy_dtype(arg.dtype)
    try:
        if arg.values is not None:
            wide = np.float64 if dt.is_float(arg.dtype) else np.int64 if arg.dtype in dt.SUBBYTE else dtype
            exact = np.array(arg.values, wide)
            return exact.astype(dtype).reshape(arg.shape)
        profile = PROFILES[arg.profile]
        bits = np.random.PCG64(np.random.SeedSequence([seed, index])).random_raw
        return profile(bits, arg.shape, arg.dtype, arg.params)
    except KeyError:
        raise CaseError(f"{arg.name}: no data profile {arg.profile!r}: use one of {', '.join(PROFILES)}") from None
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        what = "elements" if arg.values is not None else "@".join([arg.profile, *map(str, arg.params)])
        raise CaseError(f"{arg.name}: {what} cannot fill {arg.dtype} of shape {arg.shape}: {error}") from error
