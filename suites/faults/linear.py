"""Planted faults of products: matrices, convolutions, and their integer and quantized forms."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from opgauge.reference_engine.types import Array

from . import kernels as k
from .planted import Call, Outputs, Planted, Skip

F = np.float32
H = np.float16
B16 = ml_dtypes.bfloat16
QUANTIZED = ("QLinearMatMul", "QLinearConv", "QGemm")
INTEGER = ("MatMulInteger", "ConvInteger")
CONVOLUTION = ("Conv", "ConvInteger", "QLinearConv")


# Faulty products of floats.


def in_type(kind: type) -> k.Product:
    """Accumulates in a 16-bit type."""

    def product(a: Array, b: Array) -> Array:
        acc = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), kind)
        with np.errstate(all="ignore"):
            for i in range(a.shape[-1]):
                acc = (acc.astype(F) + a[..., i : i + 1] * b[..., i : i + 1, :]).astype(kind)
        return acc.astype(F)

    return product


def inputs_in(kind: type) -> k.Product:
    return lambda a, b: np.matmul(a.astype(kind).astype(F), b.astype(kind).astype(F))


def without_tail(width: int) -> k.Product:
    """Drops what is left after full blocks of `width` along K, if there is one full block."""

    def product(a: Array, b: Array) -> Array:
        K = a.shape[-1]
        keep = K - K % width if width < K else K
        return np.matmul(a[..., :keep], b[..., :keep, :])

    return product


def split_sums(kind: type, width: int) -> k.Product:
    def product(a: Array, b: Array) -> Array:
        parts = [np.matmul(a[..., i : i + width], b[..., i : i + width, :]) for i in range(0, a.shape[-1], width)]
        if len(parts) < 2:
            raise Skip
        with np.errstate(all="ignore"):
            return np.add.reduce([p.astype(kind).astype(F) for p in parts])

    return product


def truncating(a: Array, b: Array) -> Array:
    """Every step rounds toward zero."""
    acc = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.float64)
    with np.errstate(all="ignore"):
        for i in range(a.shape[-1]):
            acc = acc + a[..., i : i + 1].astype(np.float64) * b[..., i : i + 1, :]
            near = acc.astype(F)
            acc = np.where(np.abs(near) > np.abs(acc), np.nextafter(near, F(0)), near).astype(np.float64)
    return acc.astype(F)


def last_row_of(other: int) -> k.Product:
    """The last row is computed from another row of A where there are more than `other`."""

    def product(a: Array, b: Array) -> Array:
        y = np.matmul(a, b)
        if a.shape[-2] <= other:
            raise Skip
        y[..., -1, :] = y[..., -1 - other, :]
        return y

    return product


def batch_modulo(a: Array, b: Array) -> Array:
    """Broadcast batches taken by a running number modulo each operand's own count."""
    full = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left, right = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
    y = [left[i % len(left)] @ right[i % len(right)] for i in range(int(np.prod(full)))]
    return np.stack(y).reshape(*full, a.shape[-2], b.shape[-1])


# Faulty integer accumulators: operands are widened to int64 without their zero points.


def pairs_saturate(a: Array, b: Array) -> Array:
    """Neighbouring products summed in saturating int16."""
    if a.shape[-1] % 2:
        a, b = np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, 1)]), np.pad(b, [(0, 0)] * (b.ndim - 2) + [(0, 1), (0, 0)])
    total: Array = np.zeros((), np.int64)
    for i in range(0, a.shape[-1], 2):
        pair = k.int_product(a[..., i : i + 2], b[..., i : i + 2, :])
        total = total + np.clip(pair, -32768, 32767)
    return np.asarray(total)


def wraps(bits: int) -> k.Product:
    def product(a: Array, b: Array) -> Array:
        acc = k.int_product(a, b)
        return (acc + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))

    return product


def int_tail(width: int, longer: int = 0) -> k.Product:
    def product(a: Array, b: Array) -> Array:
        K = a.shape[-1]
        keep = K - K % width if max(width, longer) < K else K
        return k.int_product(a[..., :keep], b[..., :keep, :])

    return product


def in_float32(a: Array, b: Array) -> Array:
    return k.int_product(a, b).astype(F).astype(np.int64)  # sums beyond 2^24 lose their last bits


# Faulty requantization.


def wrapped(x: Array, dtype: np.dtype) -> Array:
    return x.astype(np.int64).astype(dtype)


def narrow(x: Array, dtype: np.dtype) -> Array:
    """int8 as [-127, 127]."""
    if dtype != np.int8:
        raise Skip
    return np.clip(x, -127, 127).astype(dtype)


def factor_as(kind: type) -> Callable[[Array, Array, Array], Array]:
    return lambda a, b, y: k.multiplier(a, b, y).astype(kind).astype(F)


def nudged(a: Array, b: Array, y: Array) -> Array:
    return (k.multiplier(a, b, y) * F(1 + 2.0**-18)).astype(F)


def early_clip(call: Call) -> Outputs:
    """Saturates before the zero point is added, and then again."""
    acc, q = k.int_sum(call)
    if q.dtype == np.int32 or q.zero_point == 0:
        raise Skip
    rounded = k.clipped(np.rint(acc.astype(F) * k.multiplier(*q.factors)), q.dtype)
    return [k.clipped(rounded.astype(np.int64) + q.zero_point, q.dtype).reshape(q.shape)]


def fixed_point(call: Call) -> Outputs:
    """A 15-bit multiplier and a rounding shift."""
    acc, q = k.int_sum(call)
    if q.dtype == np.int32:
        raise Skip
    m = k.multiplier(*q.factors).astype(np.float64)
    _, exponent = np.frexp(m)
    shift = 15 - exponent
    whole = np.rint(np.ldexp(m, shift))
    y = np.floor(np.ldexp(acc * whole, -shift) + 0.5) + q.zero_point
    return [k.clipped(y, q.dtype).reshape(q.shape)]


def bias_in_int16(call: Call) -> Outputs:
    q = k.quantized(call)
    if q.bias is None:
        raise Skip
    acc = np.clip(k.int_product(q.a, q.b), -32768, 32767) + q.bias
    return [k.requantized(acc, q).reshape(q.shape)]


def bias_after(call: Call) -> Outputs:
    """The bias added as if it were quantized like the output."""
    q = k.quantized(call)
    if q.bias is None:
        raise Skip
    y = np.rint(k.int_product(q.a, q.b).astype(F) * k.multiplier(*q.factors)) + q.bias + q.zero_point
    return [k.clipped(y, q.dtype).reshape(q.shape)]


# Changed calls.


def shifted_channels(call: Call) -> Call:
    scale = call.need(4)
    if scale.size < 2:
        raise Skip
    return call.with_input(4, np.roll(scale, 1, axis=-1))


def first_scale(call: Call) -> Call:
    scale = call.need(4)
    if scale.size < 2:
        raise Skip
    return call.with_input(4, np.full_like(scale, scale.ravel()[0]))


def no_zero_point(index: dict[str, int]):
    """One zero point read as 0."""

    def before(call: Call) -> Call:
        at = index[call.op]
        return call.with_input(at, np.zeros_like(call.need(at)))

    return before


def zero_point_plus(index: dict[str, int]):
    def before(call: Call) -> Call:
        at = index[call.op]
        z = call.need(at)
        return call.with_input(at, np.where(z < np.iinfo(z.dtype).max, z + 1, z - 1).astype(z.dtype))

    return before


def first_zero_point(call: Call) -> Call:
    at = {"QLinearConv": 5, "QLinearMatMul": 5, "QGemm": 5, "MatMulInteger": 3, "ConvInteger": 3}[call.op]
    z = call.need(at)
    if z.size < 2:
        raise Skip
    return call.with_input(at, np.full_like(z, z.ravel()[0]))


def without(index: dict[str, int]):
    """An optional input forgotten."""

    def before(call: Call) -> Call:
        call.need(index[call.op])
        return call.with_input(index[call.op], None)

    return before


def attribute(name: str, change):
    """One attribute changed; Skip where it is absent."""

    def before(call: Call) -> Call:
        if name not in call.attrs:
            raise Skip
        return call.with_attrs(**{name: change(call.attrs[name], call)})

    return before


def square_transposed(call: Call) -> Call:
    a = call.need(0)
    if not call.attrs.get("transA") or a.shape[0] != a.shape[1]:
        raise Skip
    return call.with_attrs(transA=0)


def swapped_ends(pads: list[int], call: Call) -> list[int]:
    half = len(pads) // 2
    return [*pads[half:], *pads[:half]]


def mirrored_kernel(call: Call) -> Call:
    at = 3 if call.op == "QLinearConv" else 1
    w = call.need(at)
    return call.with_input(
        at, np.ascontiguousarray(w[(slice(None), slice(None), *(slice(None, None, -1),) * (w.ndim - 2))])
    )


def interleaved_groups(call: Call) -> Call:
    """Output channels belong to group (channel modulo group)."""
    group, at = call.attrs.get("group", 1), 3 if call.op == "QLinearConv" else 1
    w = call.need(at)
    per = w.shape[0] // group
    if group < 2 or per < 2:
        raise Skip
    order = np.arange(w.shape[0]).reshape(per, group).T.ravel()
    return call.with_input(at, w[order])


def last_channel(call: Call, outputs: Outputs) -> Outputs:
    """Depthwise: the last channel repeats the first where it does not fill a vector of four."""
    y = outputs[0].copy()
    if call.attrs.get("group", 1) != y.shape[1] or y.shape[1] % 4 != 1 or y.shape[1] < 5:
        raise Skip
    y[:, -1] = y[:, 0]
    return [y]


def twice_beta(call: Call) -> Call:
    call.need(2)
    return call.with_attrs(beta=float(call.attrs.get("beta", 1.0)) ** 2)


def alpha_of_all(call: Call) -> Call:
    """alpha multiplies C as well."""
    call.need(2)
    return call.with_attrs(beta=float(call.attrs.get("beta", 1.0)) * float(call.attrs.get("alpha", 1.0)))


def column_bias(call: Call) -> Call:
    """A bias of one column is taken for one of one row where the matrix is square."""
    c = call.need(2)
    if c.ndim != 2 or c.shape[0] != c.shape[1]:
        raise Skip
    return call.with_input(2, np.ascontiguousarray(c.T))


def as_row(call: Call, outputs: Outputs) -> Outputs:
    if call.need(0).ndim != 1 or call.need(1).ndim < 2:
        raise Skip
    return [outputs[0][..., None, :]]


def swapped_nibbles(call: Call) -> Call:
    if call.attrs.get("bits", 4) != 4:
        raise Skip
    q = call.need(1)
    return call.with_input(1, ((q >> 4) | (q << 4)).astype(np.uint8))


def nbits_zero_point(call: Call) -> Call:
    if call.operand(3) is None:
        raise Skip
    return call.with_input(3, None)


def next_block_scale(call: Call) -> Call:
    scale = call.need(2)
    if scale.size < 2:
        raise Skip
    return call.with_input(2, np.roll(scale.ravel(), -1).reshape(scale.shape))


def transposed_output_pads(call: Call) -> Call:
    extra = call.attrs.get("output_padding")
    if not extra or not any(extra) or "output_shape" in call.attrs:
        raise Skip
    pads = list(call.attrs.get("pads", [0] * 2 * len(extra)))
    if any(p < e for p, e in zip(pads[: len(extra)], extra, strict=True)):
        raise Skip
    return call.with_attrs(pads=[p - e for p, e in zip(pads, [*extra, *[-e for e in extra]], strict=True)])


def no_softcap(call: Call) -> Call:
    if not call.attrs.get("softcap"):
        raise Skip
    return call.with_attrs(softcap=0.0)


def unscaled(call: Call) -> Call:
    if "scale" in call.attrs or call.need(0).ndim != 4:
        raise Skip
    return call.with_attrs(scale=1.0 / call.need(0).shape[-1])


def wrong_group_heads(call: Call) -> Call:
    """Query head h reads key head h modulo their number."""
    q, keys = call.need(0), call.need(1)
    if q.ndim != 4 or q.shape[1] == keys.shape[1] or keys.shape[1] < 2 or call.operand(4) is not None:
        raise Skip
    share = np.arange(q.shape[1]) % keys.shape[1]
    return call.with_input(1, keys[:, share]).with_input(2, call.need(2)[:, share])


X_ZERO = {"QLinearMatMul": 2, "QLinearConv": 2, "QGemm": 2, "MatMulInteger": 2, "ConvInteger": 2}
W_ZERO = {"QLinearMatMul": 5, "QLinearConv": 5, "QGemm": 5, "MatMulInteger": 3, "ConvInteger": 3}
Y_ZERO = {"QLinearMatMul": 7, "QLinearConv": 7, "QGemm": 8}
BIAS = {"Gemm": 2, "Conv": 2, "QLinearConv": 8, "QGemm": 6, "ConvTranspose": 2, "MatMulNBits": 5}
FLOAT = ("MatMul", "Gemm", "Conv")

FAULTS = (
    Planted("L01", FLOAT, "numeric", "accumulates in float16", inside=k.floating(in_type(H))),
    Planted("L02", FLOAT, "numeric", "accumulates in bfloat16", inside=k.floating(in_type(B16))),
    Planted("L03", FLOAT, "numeric", "operands rounded to bfloat16", inside=k.floating(inputs_in(B16))),
    Planted("L04", FLOAT, "numeric", "operands rounded to float16", inside=k.floating(inputs_in(H))),
    Planted(
        "L05",
        ("MatMul", "Gemm"),
        "numeric",
        "partial sums of 32 stored in bfloat16",
        inside=k.floating(split_sums(B16, 32)),
    ),
    Planted(
        "L06", ("MatMul",), "numeric", "partial sums of 16 stored in float16", inside=k.floating(split_sums(H, 16))
    ),
    Planted("L07", FLOAT, "indexing", "the rest after blocks of 4 is dropped", inside=k.floating(without_tail(4))),
    Planted(
        "L08",
        ("MatMul", "Gemm"),
        "indexing",
        "the rest after blocks of 64 is dropped",
        inside=k.floating(without_tail(64)),
    ),
    Planted("L09", ("MatMul", "Gemm"), "indexing", "the last row is that before it", inside=k.floating(last_row_of(1))),
    Planted("L10", ("MatMul",), "indexing", "batches counted modulo each operand", inside=k.floating(batch_modulo)),
    Planted("L11", ("MatMul",), "shape", "a vector on the left keeps a row axis", after=as_row),
    Planted("L12", ("Gemm",), "indexing", "transA ignored for a square A", before=square_transposed),
    Planted("L13", ("Gemm",), "numeric", "beta applied twice", before=twice_beta),
    Planted("L14", ("Gemm",), "numeric", "alpha applied to C", before=alpha_of_all),
    Planted("L15", ("Gemm",), "numeric", "beta ignored", before=attribute("beta", lambda v, c: 1.0)),
    Planted("L16", ("Gemm", "QGemm"), "numeric", "alpha ignored", before=attribute("alpha", lambda v, c: 1.0)),
    Planted("L17", ("Gemm",), "indexing", "a square C transposed", before=column_bias),
    Planted("L18", tuple(BIAS), "numeric", "bias dropped", before=without(BIAS)),
    Planted(
        "L19",
        ("MatMulInteger", "QLinearMatMul", "QLinearConv"),
        "numeric",
        "pairs of products saturate in int16",
        inside=k.integer(pairs_saturate),
    ),
    Planted("L20", (*INTEGER, *QUANTIZED), "numeric", "accumulator of 16 bits", inside=k.integer(wraps(16))),
    Planted("L21", (*INTEGER, *QUANTIZED), "numeric", "accumulator of 20 bits", inside=k.integer(wraps(20))),
    Planted("L22", ("MatMulInteger",), "numeric", "sums kept in float32", inside=k.integer(in_float32)),
    Planted(
        "L23",
        (*INTEGER, *QUANTIZED),
        "indexing",
        "the rest after blocks of 8 is dropped",
        inside=k.integer(int_tail(8)),
    ),
    Planted(
        "L24",
        ("MatMulInteger", "QLinearMatMul"),
        "indexing",
        "the rest after 128 is dropped beyond K = 1024",
        inside=k.integer(int_tail(128, 1024)),
    ),
    Planted("L25", QUANTIZED, "numeric", "ties round up", inside=k.integer(rounding=k.half_up)),
    Planted("L26", QUANTIZED, "numeric", "ties round away from zero", inside=k.integer(rounding=k.half_away)),
    Planted("L27", QUANTIZED, "numeric", "truncates", inside=k.integer(rounding=np.trunc)),
    Planted("L28", QUANTIZED, "numeric", "floors", inside=k.integer(rounding=np.floor)),
    Planted("L29", QUANTIZED, "numeric", "zero point added before rounding", inside=k.integer(inside=True)),
    Planted("L30", QUANTIZED, "numeric", "wraps instead of saturating", inside=k.integer(saturate=wrapped)),
    Planted("L31", QUANTIZED, "numeric", "int8 stops at -127", inside=k.integer(saturate=narrow)),
    Planted("L32", QUANTIZED, "numeric", "saturates before the zero point", inside=early_clip),
    Planted("L33", QUANTIZED, "numeric", "multiplier in float16", inside=k.integer(factor=factor_as(H))),
    Planted("L34", QUANTIZED, "numeric", "multiplier in bfloat16", inside=k.integer(factor=factor_as(B16))),
    Planted("L35", QUANTIZED, "numeric", "multiplier of 15 bits", inside=fixed_point),
    Planted("L36", QUANTIZED, "numeric", "multiplier off by 2^-18", inside=k.integer(factor=nudged)),
    Planted("L37", ("QLinearConv", "QGemm"), "numeric", "bias added to a saturated int16", inside=bias_in_int16),
    Planted("L38", ("QLinearConv", "QGemm"), "numeric", "bias not scaled", inside=bias_after),
    Planted("L39", QUANTIZED, "indexing", "scales shifted by one channel", before=shifted_channels),
    Planted("L40", QUANTIZED, "indexing", "the first channel's scale for all", before=first_scale),
    Planted(
        "L41", (*INTEGER, *QUANTIZED), "indexing", "the first channel's zero point for all", before=first_zero_point
    ),
    Planted("L42", tuple(X_ZERO), "numeric", "zero point of the first operand ignored", before=no_zero_point(X_ZERO)),
    Planted("L43", tuple(W_ZERO), "numeric", "zero point of the second operand ignored", before=no_zero_point(W_ZERO)),
    Planted("L44", tuple(Y_ZERO), "numeric", "output zero point off by one", before=zero_point_plus(Y_ZERO)),
    Planted(
        "L45",
        ("QLinearConv", "ConvInteger"),
        "numeric",
        "pads hold 0, not the zero point",
        inside=k.integer(pad_with_zero=True),
    ),
    Planted("L46", CONVOLUTION, "indexing", "begin and end pads swapped", before=attribute("pads", swapped_ends)),
    Planted(
        "L47",
        CONVOLUTION,
        "indexing",
        "the first stride for all axes",
        before=attribute("strides", lambda s, c: [s[0]] * len(s)),
    ),
    Planted(
        "L48", CONVOLUTION, "indexing", "dilations ignored", before=attribute("dilations", lambda s, c: [1] * len(s))
    ),
    Planted("L49", CONVOLUTION, "indexing", "kernel mirrored", before=mirrored_kernel),
    Planted("L50", CONVOLUTION, "indexing", "groups interleaved", before=interleaved_groups),
    Planted("L51", CONVOLUTION, "indexing", "last depthwise channel repeats the first", after=last_channel),
    Planted(
        "L52",
        CONVOLUTION,
        "indexing",
        "SAME_LOWER taken for SAME_UPPER",
        before=attribute("auto_pad", lambda v, c: "SAME_UPPER"),
    ),
    Planted("L53", ("ConvTranspose",), "indexing", "output_padding at the beginning", before=transposed_output_pads),
    Planted("L54", ("ConvTranspose",), "indexing", "kernel mirrored", before=mirrored_kernel),
    Planted("L55", ("MatMulNBits",), "indexing", "nibbles swapped", before=swapped_nibbles),
    Planted("L56", ("MatMulNBits",), "numeric", "zero points ignored", before=nbits_zero_point),
    Planted("L57", ("MatMulNBits",), "indexing", "scale of the next block", before=next_block_scale),
    Planted("L58", ("Attention",), "numeric", "softcap ignored", before=no_softcap),
    Planted("L59", ("Attention",), "numeric", "scaled by 1 / size", before=unscaled),
    Planted("L60", ("Attention",), "indexing", "key heads interleaved", before=wrong_group_heads),
    Planted("L61", ("Attention",), "numeric", "causal order ignored", before=attribute("is_causal", lambda v, c: 0)),
    Planted(
        "L62", ("RotaryEmbedding",), "indexing", "interleaved ignored", before=attribute("interleaved", lambda v, c: 0)
    ),
    Planted("L63", FLOAT, "numeric", "every step truncates", inside=k.floating(truncating)),
)
