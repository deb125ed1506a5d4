"""Products of bytes: sums modulo 2^32, and the same requantized without ever writing an int32 tensor.

A is read as it lies, in words of four bytes. B's panels take the other signedness: flipping the top bit moves a byte
by 128, and so does its zero point. What zero points and bias add is put into the accumulators before they start:
sum (a-za)(b-zb) = sum ab - za (sum b - K zb) - zb sum a, all modulo 2^32.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from weakref import WeakValueDictionary

import numpy as np

from opgauge.reference_engine.memory import empty
from opgauge.reference_engine.types import Array, Bound, TensorSpec

from . import panels as p
from .compile import flat, host_codegen, jit, plain, target_features
from .isa import level_of
from .pointwise import requantize
from .threads import spread
from .tile import byte_tile, lanes, rows

Ints = tuple[int, ...]
Call = Callable[..., None]
COSTS = {"portable": 0.03, "avx2": 0.012, "vnni": 0.004}
NEAR = 2**18  # bytes of panels that stay near while rows of A pass


# What byte_product is told in int64: HEAD numbers, then which matrices each product reads, rows of B, starts of runs.
HEAD = 22


@jit
def byte_product(a, b, out, plan, starts, factors, part, parts):
    """out[i] = a[index[0,i]] @ b[index[1,i]] + starts, requantized where out is of bytes, as byte_tile

    Where `gathers`, b holds rows as Rows say, and a panel is packed when its turn comes; otherwise it is packed.
    a_zero takes what the columns of a gathered b sum to, b_zero what the rows of a do; `group` packed panels are passed
    over while the rows of A are near. Part `part` of `parts` is computed.
    Shapes: all flat: a [*,M,4*length], panels [*,P,length,L,4], out [*,M,N]; starts and factors hold row values
        [*,M] by index[2] and from columns_at on column values [*,P*L] by index[3].
    """
    M, K, N, L, step, group, length = plan[0], plan[1], plan[2], plan[3], plan[4], plan[5], plan[6]
    gathers, matrix, far, run, flip, sign = plan[7] != 0, plan[8], plan[9], plan[10], np.uint8(plan[11]), plan[12]
    a_zero, b_zero, columns_at, by_row = plan[13], plan[14], plan[15], plan[16] != 0
    zero, low, high = np.int32(plan[17]), np.int32(plan[18]), np.int32(plan[19])
    count, depth = plan[20], plan[21]
    index = plan[HEAD : HEAD + 4 * count]
    base, start = plan[HEAD + 4 * count : HEAD + 4 * count + depth], plan[HEAD + 4 * count + depth :]
    stride, P, T, size = 4 * length, (N + L - 1) // L, (M + step - 1) // step, 4 * length * L
    spare, sums = np.empty(step * L, out.dtype), np.empty(L if a_zero else 0, np.int32)
    row_starts = np.empty(M if b_zero else 0, np.int32)
    panel = p.near(size, p.ALIGNMENT) if gathers else b
    stage = np.empty(p.STAGED * 2 * L + L if gathers else 0, np.uint8)
    by_panel = gathers or 2 * parts > T
    units = P if by_panel else T
    begin, end = count * units * part // parts, count * units * (part + 1) // parts
    for i in range(count):
        first, last = max(begin - i * units, 0), min(end - i * units, units)
        if first >= last:
            continue
        p_low, p_high = (first, last) if by_panel else (0, P)
        m_low, m_high = (0, M) if by_panel else (first * step, min(last * step, M))
        a_at, rows_at = index[i] * M * stride, index[2 * count + i] * M
        if b_zero:
            row_sums(a, a_at, stride, m_low, m_high, row_starts)
            for m in range(m_low, m_high):
                row_starts[m] = np.int32(starts[rows_at + m] - b_zero * row_starts[m])
        for leader in range(p_low, p_high, group):
            if gathers:
                at, origin = leader * L, index[count + i] * matrix
                p.pack_panel(b, origin, base, far, run, start, at, N, flip, stage, panel, 0, L)
            if a_zero:
                panel_sums(panel, K, sign, sums)
                factor_at = columns_at + (index[3 * count + i] * P + leader) * L
                for l in range(L):
                    sums[l] = np.int32(starts[factor_at + l] - a_zero * sums[l])
            for m in range(m_low, m_high, step):
                for q in range(leader, min(leader + group, p_high)):
                    n, at = q * L, 0 if gathers else (index[count + i] * P + q) * size
                    factor_at = columns_at + (index[3 * count + i] * P + q) * L
                    whole = n + L <= N
                    to, pitch = ((i * M + m) * N + n, N) if whole else (0, L)
                    byte_tile(  # type: ignore[call-arg]
                        M == 1, a, a_at + m * stride, stride, m_high - 1 - m, panel, at, length,
                        row_starts if b_zero else starts, m if b_zero else rows_at + m,
                        sums if a_zero else starts, 0 if a_zero else factor_at,
                        factors, rows_at + m, factor_at, by_row, zero, low, high, out if whole else spare, to, pitch,
                    )  # fmt: skip
                    if not whole:
                        p.copy_rows(spare, L, min(step, m_high - m), N - n, out, (i * M + m) * N + n, N)


@jit
def panel_sums(panel, K, sign, sums):
    """sums[l] = sum over k of one panel [ceil(K / 4),L,4] of bytes; sign is 128 where they are int8, else 0"""
    L = len(sums)
    sums[:] = 0
    for k in range(0, K, 4):
        for l in range(L):
            at, total = k * L + l * 4, np.int32(0)
            for j in range(min(4, K - k)):
                total = np.int32(total + (np.int32(panel[at + j]) ^ sign) - sign)
            sums[l] = np.int32(sums[l] + total)


@jit
def row_sums(a, at, stride, low, high, out):
    """out[m] = sum of row m of a flat [M,stride] of bytes at `at`, for low <= m < high"""
    for m in range(low, high):
        total = np.int32(0)
        row = a[at + m * stride : at + (m + 1) * stride]
        for k in range(stride):
            total = np.int32(total + np.int32(row[k]))
        out[m] = total


# ---- operands


@dataclass(frozen=True)
class Left:
    """A [*,M,K]; `shift` was taken from every element; `sums` of its rows where they are known."""

    shape: Ints
    signed: bool
    shift: int = 0
    sums: Array | None = None


@dataclass(frozen=True)
class Right:
    """B [*,K,N]; `shift` was taken from every element; `sums` of its columns where it is packed, else its rows."""

    shape: Ints
    flip: int
    shift: int
    sums: Array | None = None
    rows: p.Rows | None = None


def words_of(a: Array) -> Array:
    """A flat, in rows of whole words, zeros at the end."""
    K = a.shape[-1]
    if K % 4 == 0:
        return flat(a)
    data = np.zeros((*a.shape[:-1], K + -K % 4), a.dtype)
    data[..., :K] = a
    return data.reshape(-1)


def settled_left(a: Array) -> tuple[Left, Array]:
    """A that never changes, in int8, with the sums of its rows."""
    shift = 128 if a.dtype == np.uint8 else 0
    moved = (a ^ np.uint8(128)).view(np.int8) if shift else a
    return Left(a.shape, True, shift, moved.astype(np.int32).sum(-1, dtype=np.int32)), words_of(moved)


def flipped(word: str, signed: bool) -> tuple[int, int]:
    """What turns a byte into one of the other signedness than A's, and how much less it then is."""
    if (word == "int8") != signed:
        return 0, 0
    return 128, -128 if word == "int8" else 128


def right_of(shape: Ints, word: str, signed: bool) -> Right:
    """B to be gathered; `signed` says whether A is int8."""
    return Right(shape, *flipped(word, signed), rows=p.rows_of(*shape[-2:]))


# Packed constants that some plan holds, by content.
_packed: WeakValueDictionary[bytes, Array] = WeakValueDictionary()


def settled_right(b: Array, signed: bool) -> tuple[Right, Array]:
    """B that never changes, packed; the same content is packed once for all plans."""
    flip, shift = flipped(b.dtype.name, signed)
    digest = hashlib.blake2b(plain(b).reshape(-1).data, digest_size=16, person=f"{flip}".encode())
    name = digest.digest() + f"{b.shape}".encode()
    found = _packed.get(name)
    if found is None:
        found = _packed[name] = p.packed(plain(b), flip)
    sums = b.astype(np.int64).sum(-2) - shift * b.shape[-2]
    return Right(b.shape, flip, shift, sums.astype(np.int32)), found


# ---- the product


@dataclass(frozen=True)
class Finish:
    """What becomes of the sums: bias and factor [], [*,M,1] or [*,1,N], (zero_point, low, high)."""

    bias: Array
    factor: Array
    limits: tuple[int, int, int]


SUMS = Finish(np.zeros((), np.int32), np.zeros((), np.float32), (0, 0, 0))
NO_ROWS = p.Rows(0, np.zeros(0, np.int64), 0, 1, np.zeros(1, np.int64))


def uniform(zero_point: Array) -> int | None:
    """The one value of a zero point, None where it varies."""
    if zero_point.size == 1:
        return zero_point.item()
    first = zero_point.reshape(-1)[:1]
    return int(first[0]) if first.size and (zero_point == first).all() else None


@dataclass(frozen=True)
class Arranged:
    """Everything that byte_product takes after a, b and out, and how long it takes on one thread."""

    plan: Array
    starts: Array
    factors: Array
    work_ns: float


def arrange(left: Left, right: Right, za: int, zb: int, finish: Finish, batch: Ints) -> Arranged:
    """The product in numbers."""
    L, step = shape_of_tile()
    (M, K), N, rank = left.shape[-2:], right.shape[-1], len(batch) + 2
    za, zb = za - left.shift, zb - right.shift
    bias, factor = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (finish.bias, finish.factor))
    of_row, of_column = bias.shape[-1] == 1, factor.shape[-1] != 1
    nothing = np.zeros((1,) * (rank - 1), np.int64)
    row_start = bias[..., 0].astype(np.int64) if of_row else nothing
    column_start = (nothing if of_row else bias[..., 0, :].astype(np.int64)) + za * zb * K
    if left.sums is not None:
        row_start = row_start - zb * left.sums.astype(np.int64)
    if right.sums is not None:
        column_start = column_start - za * right.sums.astype(np.int64)
    row_start, row_factor = _together(row_start, np.zeros(1) if of_column else factor[..., 0], M, 0)
    column_start, column_factor = _together(column_start, factor[..., 0, :] if of_column else np.zeros(1), N, -N % L)
    stacks = (left.shape[:-2], right.shape[:-2], row_start.shape[:-1], column_start.shape[:-1])
    source = right.rows or NO_ROWS
    words = (K + 3) // 4
    group = 1 if right.rows else max(1, NEAR // (4 * words * L))
    count = math.prod(batch)
    head = (
        M, K, N, L, step, group, words, right.rows is not None, source.matrix, source.far, source.run, right.flip,
        0 if left.signed else 128, za if right.sums is None else 0, zb if left.sums is None else 0,
        row_start.size, not of_column, *finish.limits, count, len(source.base),
    )  # fmt: skip
    index = (p.batch_index(stack, batch) for stack in stacks)
    return Arranged(
        np.concatenate([np.array(head, np.int64), *index, source.base, source.start]),
        np.concatenate([row_start, column_start], None),
        np.concatenate([row_factor, column_factor], None),
        count * M * N * K * cost(),
    )


def _together(start: Array, factor: Array, count: int, more: int) -> tuple[Array, Array]:
    """Both over the same matrices, `count` values each and `more` zeros behind them."""
    batch = np.broadcast_shapes(start.shape[:-1], factor.shape[:-1])
    whole, factors = np.zeros((*batch, count + more), np.int32), np.zeros((*batch, count + more), np.float32)
    whole[..., :count], factors[..., :count] = start.astype(np.int32), factor  # the start modulo 2^32
    return whole, factors


@lru_cache(maxsize=1)
def shape_of_tile() -> tuple[int, int]:
    """Columns and rows of a tile on this machine."""
    codegen = host_codegen()
    return lanes(codegen), rows(codegen)


@lru_cache(maxsize=1)
def cost() -> float:
    """Nanoseconds of a product of two bytes, about."""
    return COSTS[level_of(target_features(host_codegen()))]


def signless(x: Array) -> Array:
    """x in one dimension, bytes without their sign, sums as they are."""
    return flat(x).view(np.uint8) if x.dtype.char == "b" else flat(x)


def multiply(a: Array, b: Array, out: Array, made: Arranged) -> None:
    spread(made.work_ns, byte_product, a, b, signless(out), made.plan, made.starts, made.factors)


def held(a: Array, b: Array, out: Array, made: Arranged) -> Callable[[], None]:
    """multiply on one thread, again and again; the rows of a are whole words."""
    return partial(byte_product, flat(a), b, signless(out), made.plan, made.starts, made.factors, 0, 1)


@dataclass(frozen=True)
class Product:
    """A and B as far as they are known, with their data where it never changes."""

    left: Left
    right: Right
    a: Array | None = None
    b: Array | None = None

    def __call__(
        self, a: Array, b: Array, za: Array, zb: Array, finish: Finish, out: Array, made: Arranged | None = None
    ) -> None:
        """The tiles; a zero point that varies along rows or columns is corrected afterwards, in int32."""
        x, y = words_of(a) if self.a is None else self.a, signless(b) if self.b is None else self.b
        if made is not None:
            multiply(x, y, out, made)
            return
        one, other, batch = uniform(za), uniform(zb), out.shape[:-2]
        if one is not None and other is not None:
            multiply(x, y, out, arrange(self.left, self.right, one, other, finish, batch))
            return
        acc = empty(out.shape, np.int32)
        zeros = self.left.shift, self.right.shift
        multiply(x, y, acc, arrange(self.left, self.right, *zeros, SUMS, batch))
        self.correct(x, y, za, zb, acc)
        if finish is SUMS:
            out[...] = acc
        else:
            acc += finish.bias
            settle(acc, finish, out)

    def correct(self, x: Array, y: Array, za: Array, zb: Array, acc: Array) -> None:
        """acc -= za (sum b - K zb) + zb sum a"""
        K = self.left.shape[-1]
        row_zero, column_zero = (
            z.astype(np.int32) - np.int32(side.shift) for z, side in ((za, self.left), (zb, self.right))
        )
        rows_, columns = self.left.sums, self.right.sums
        if rows_ is None:
            rows_ = np.empty(self.left.shape[:-1], np.int32)
            row_sums(x, 0, K + -K % 4, 0, rows_.size, rows_.reshape(-1))
        if columns is None:
            ones = Left((1, K), self.left.signed)
            columns = np.empty((*self.right.shape[:-2], 1, self.right.shape[-1]), np.int32)
            made = arrange(ones, self.right, 0, self.right.shift, SUMS, columns.shape[:-2])
            multiply(words_of(np.ones((1, K), x.dtype)), y, columns, made)
            columns = columns[..., 0, :]
        acc -= row_zero * (columns[..., None, :] - np.int32(K) * column_zero)
        acc -= column_zero * rows_[..., None]


def settle(acc: Array, finish: Finish, out: Array) -> None:
    """out = clip(rint(float32(acc) * factor) + zero_point, low, high)"""
    zero, low, high = finish.limits
    factor = np.ascontiguousarray(np.broadcast_to(finish.factor, acc.shape)).reshape(-1)
    zeros = np.full(acc.size, zero, out.dtype)
    requantize(np.ascontiguousarray(acc).reshape(1, -1, 1), factor, zeros, out.reshape(1, -1, 1), out.dtype.name)
    np.clip(out, low, high, out=out)


# ---- kernels


def product_of(a: Array, b: Array) -> Product:
    signed = a.dtype == np.int8
    return Product(Left(a.shape, signed), right_of(b.shape, b.dtype.name, signed))


def gemm_integer(a: Array, b: Array, a_zero_point: Array, b_zero_point: Array, out: Array) -> None:
    """out[m,n] = sum_k (a[m,k] - a_zero_point[m]) * (b[k,n] - b_zero_point[n]) modulo 2^32

    Shapes: a [*,M,K], b [*,K,N], zero points [] or [*,M,1] and [*,1,N] -> out [*,M,N].
    Dtypes: int8 or uint8 each; out int32.
    """
    if not a.size or not b.size:
        out[...] = 0
        return
    product_of(a, b)(a, b, a_zero_point, b_zero_point, SUMS, out)


def finish_of(bias: Array, factor: Array, zero_point: Array, low: int, high: int) -> Finish:
    return Finish(bias, factor, (zero_point.item(), low, high))


def gemm_requantize(
    a: Array,
    b: Array,
    a_zero_point: Array,
    b_zero_point: Array,
    bias: Array,
    multiplier: Array,
    zero_point: Array,
    out: Array,
    to: str,
    low: int,
    high: int,
    *_: object,
) -> None:
    """out = clip(rint(float32(acc + bias) * multiplier) + zero_point, low, high), acc as gemm_integer

    Shapes: bias and multiplier [], [*,M,1] or [*,1,N]; zero_point [].
    Dtypes: bias int32, multiplier float32; out int8 or uint8.
    """
    finish = finish_of(bias, multiplier, zero_point, low, high)
    if not a.size or not b.size:
        settle(np.broadcast_to(bias, out.shape), finish, out)
        return
    product_of(a, b)(a, b, a_zero_point, b_zero_point, finish, out)


def bound_product(constants: Mapping[int, Array], specs: Sequence[TensorSpec]) -> Product | None:
    """What of A and B can be prepared: B packed, else A in int8 with the sums of its rows."""
    (a, b), signed = specs[:2], specs[0].dtype == "int8"
    if not a.size or not b.size or not {0, 1} & constants.keys():
        return None
    if 1 in constants:
        right, data = settled_right(constants[1], signed)
        return Product(Left(a.shape, signed), right, b=data)
    left, data = settled_left(constants[0])
    return Product(left, right_of(b.shape, b.dtype, True), data)


def settled(
    product: Product, constants: Mapping[int, Array], needed: Sequence[int], finish: Finish, batch: Ints
) -> Arranged | None:
    """The whole arrangement where no run-time input changes it; None where one may."""
    if any(n not in constants for n in needed):
        return None
    za, zb = uniform(constants[2]), uniform(constants[3])
    return None if za is None or zb is None else arrange(product.left, product.right, za, zb, finish, batch)


def bind_integer(constants: Mapping[int, Array], specs: Sequence[TensorSpec]) -> Call | Bound:
    """gemm_integer where A or B never changes."""
    product = bound_product(constants, specs)
    if product is None:
        return gemm_integer
    batch = np.broadcast_shapes(specs[0].shape[:-2], specs[1].shape[:-2])
    made = settled(product, constants, (2, 3), SUMS, batch)
    ready, whole = product.b if product.a is None else None, specs[0].shape[-1] % 4 == 0

    def call(a: Array, b: Array, a_zero_point: Array, b_zero_point: Array, out: Array) -> None:
        if made is not None and ready is not None:
            multiply(words_of(a), ready, out, made)
        else:
            product(a, b, a_zero_point, b_zero_point, SUMS, out, made)

    def hold(a: Array, b: Array, a_zero_point: Array, b_zero_point: Array, out: Array) -> Callable[[], None] | None:
        return held(a, ready, out, made) if whole and made is not None and ready is not None else None

    return Bound(call, hold)


def bind_requantize(constants: Mapping[int, Array], specs: Sequence[TensorSpec]) -> Call | Bound:
    """gemm_requantize where A or B never changes; where nothing else does either, all is arranged beforehand."""
    product = bound_product(constants, specs)
    if product is None:
        return gemm_requantize
    batch = np.broadcast_shapes(specs[0].shape[:-2], specs[1].shape[:-2])
    kept: list[Arranged | None] = []
    ready, whole = product.b if product.a is None else None, specs[0].shape[-1] % 4 == 0

    def arranged(finish: Finish) -> Arranged | None:
        if not kept:
            kept.append(settled(product, constants, range(2, 7), finish, batch))
        return kept[0]

    def call(a, b, a_zero_point, b_zero_point, bias, multiplier, zero_point, out, to, low, high, *_):
        if kept and kept[0] is not None:
            if ready is not None:
                multiply(words_of(a), ready, out, kept[0])
                return
            product(a, b, a_zero_point, b_zero_point, SUMS, out, kept[0])
            return
        finish = finish_of(bias, multiplier, zero_point, low, high)
        product(a, b, a_zero_point, b_zero_point, finish, out, arranged(finish))

    def hold(a, b, a_zero_point, b_zero_point, bias, multiplier, zero_point, out, to, low, high, *_):
        made = kept[0] if kept else arranged(finish_of(bias, multiplier, zero_point, low, high))
        return held(a, ready, out, made) if whole and made is not None and ready is not None else None

    return Bound(call, hold)
