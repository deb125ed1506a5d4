"""The register tiles under every Gemm: rows x vectors of accumulators, written in LLVM vectors.

Float tiles have one accumulator per element and k in sequence, so every tiling gives the same bits; sums of bytes
are exact modulo 2^32 in any order. What the CPU offers is asked for inside code generation: it is part of numba's
cache key. LLVM splits vectors for a CPU that has none so wide.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compile import fuses, target_features
from .vectors import I32, call, data_of, load, mask, row_within, splat, store

I8, I16 = ir.IntType(8), ir.IntType(16)
F32 = ir.FloatType()
VECTORS = 2
FLOAT_ROWS = 6
DEPTH_ROWS = 4
UNROLL = 4  # partial sums of a single row: one chain would wait for itself
# Sums of four byte products, or of two of int16, in one instruction: CPU feature, int32 lanes, LLVM's name.
QUADS = (
    ("avx512vnni", 16, "llvm.x86.avx512.vpdpbusd.512"),
    ("avxvnni", 8, "llvm.x86.avx512.vpdpbusd.256"),
)
PAIRS = (
    ("avx512bw", 16, "llvm.x86.avx512.pmaddw.d.512"),
    ("avx2", 8, "llvm.x86.avx2.pmadd.wd"),
    ("sse2", 4, "llvm.x86.sse2.pmadd.wd"),
)


def width(codegen) -> int:
    """int32 or float32 lanes of a vector."""
    features = target_features(codegen)
    return next((lanes for feature, lanes, _ in (*QUADS, *PAIRS) if feature in features), 4)


def lanes(codegen) -> int:
    """Columns of a tile."""
    return VECTORS * width(codegen)


def rows(codegen) -> int:
    """Rows of a tile: as many accumulators as there are registers for, one operand and two of the panel besides."""
    return 8 if width(codegen) == 16 else 4


def float_lanes(codegen, itemsize: int) -> int:
    """Columns of a float tile: a wide one waits less for its panel."""
    return (4 if width(codegen) == 16 else VECTORS) * width(codegen) * 4 // itemsize


# ---- floats


@intrinsic
def float_tile(typingctx, single, a, a_at, a_stride, last, panels, at, length, out, out_at, out_stride):
    """out[r,l] = sum_k a[r,k] * panel[k,l], k in sequence from 0, fused where the CPU fuses

    Shapes: flat arrays; a row r at a_at + r*a_stride, panel [length,L] at `at`, out row r at out_at + r*out_stride.
        Rows after `last` repeat it. L = float_lanes(); FLOAT_ROWS rows, one where `single`.
    Dtypes: float32 or float64 all three.
    """
    index = types.intp
    signature = types.void(types.boolean, a, index, index, index, panels, index, index, out, index, index)
    return signature, _emit_float_tile


def _emit_float_tile(context, builder, signature, args):
    with builder.if_else(cgutils.as_bool_bit(builder, args[0])) as (then, otherwise):
        with then:
            _emit_float_rows(context, builder, signature, args, 1)
        with otherwise:
            _emit_float_rows(context, builder, signature, args, FLOAT_ROWS)
    return context.get_dummy_value()


def _emit_float_rows(context, builder, signature, args, n_rows):
    data = {n: data_of(context, builder, signature, args, n) for n in (1, 5, 8)}
    a_at, a_stride, last, at, length, out_at, out_stride = (args[n] for n in (2, 3, 4, 6, 7, 9, 10))
    codegen = context.codegen()
    element = context.get_data_type(signature.args[1].dtype)
    size = context.get_abi_sizeof(element)
    vector = ir.VectorType(element, width(codegen) * 4 // size)
    columns = float_lanes(codegen, size)
    count = columns // vector.count
    starts = [row_within(builder, a_at, a_stride, r, last) for r in range(n_rows)]
    zero = ir.Constant(vector, None)
    accs = [[cgutils.alloca_once_value(builder, zero) for _ in range(count)] for _ in range(n_rows)]
    with cgutils.for_range(builder, length) as loop:
        place = builder.add(at, builder.mul(loop.index, at.type(columns)))
        ws = [load(builder, data[5], place, v * vector.count, vector, size) for v in range(count)]
        for start, row_accs in zip(starts, accs, strict=True):
            x = builder.load(builder.gep(data[1], [builder.add(start, loop.index)]))
            x = splat(builder, x, vector)
            for w, acc in zip(ws, row_accs, strict=True):
                builder.store(_add_product(context, builder, x, w, builder.load(acc)), acc)
    for r, row_accs in enumerate(accs):
        start = row_within(builder, out_at, out_stride, r, last)
        for v, acc in enumerate(row_accs):
            store(builder, builder.load(acc), data[8], start, v * vector.count, size)


def _add_product(context, builder, x, w, acc):
    if not fuses(context.codegen()):
        return builder.fadd(acc, builder.fmul(x, w))
    bits = 8 * context.get_abi_sizeof(acc.type.element)
    return call(builder, f"llvm.fma.v{acc.type.count}f{bits}", acc.type, x, w, acc)


# ---- bytes


@intrinsic
def byte_tile(
    typingctx,
    single,
    a,
    a_at,
    a_stride,
    last,
    panel,
    at,
    length,
    row_start,
    row_at,
    column_start,
    column_at,
    factors,
    row_factor_at,
    factor_at,
    by_row,
    zero,
    low,
    high,
    out,
    out_at,
    out_stride,
):
    """acc[r,l] = row_start[r] + column_start[l] + sum_k a[r,k] * panel[k,l] modulo 2^32; out = acc, or acc requantized

    Requantized: out = clip(rint(float32(acc) * factor) + zero, low, high), factor the row's where by_row, else the
    column's.
    Shapes: flat arrays; a row r of length*4 bytes at a_at + r*a_stride, panel [length,L,4] at `at`, row values at
        row_at, column values at column_at, factors at row_factor_at and factor_at, out row r at out_at + r*out_stride.
        Rows after `last` repeat it. L = lanes(); rows() rows, one where `single`.
    Dtypes: a uint8 and the panel's bytes read as int8, or a int8 and the panel's read as uint8; starts, zero, low,
        high int32, factors float32; out int32 for sums, uint8 for the bytes of requantized values.
    """
    index, word = types.intp, types.int32
    signature = types.void(
        types.boolean, a, index, index, index, panel, index, index, row_start, index, column_start, index,
        factors, index, index, types.boolean, word, word, word, out, index, index,
    )  # fmt: skip
    return signature, _emit_byte_tile


@intrinsic
def window_tile(
    typingctx, single, a, rows, rows_from, last, panel, at, length, row_start, row_at, column_start, column_at, factors,
    row_factor_at, factor_at, by_row, zero, low, high, out, out_at, out_stride, taps, count,
):  # fmt: skip
    """byte_tile where row r of A is what lies at rows[rows_from + r] + taps[t], length*4 bytes for each t < count

    Shapes: panel [count,length,L,4]; the rest as byte_tile.
    """
    index, word = types.intp, types.int32
    signature = types.void(
        types.boolean, a, rows, index, index, panel, index, index, row_start, index, column_start, index,
        factors, index, index, types.boolean, word, word, word, out, index, index, taps, index,
    )  # fmt: skip
    return signature, _emit_byte_tile


def _emit_byte_tile(context, builder, signature, args):
    single = cgutils.as_bool_bit(builder, args[0])
    with builder.if_else(single) as (then, otherwise):
        with then:
            _emit_byte_rows(context, builder, signature, args, 1, UNROLL)
        with otherwise:
            _emit_byte_rows(context, builder, signature, args, rows(context.codegen()), 1)
    return context.get_dummy_value()


def _emit_byte_rows(context, builder, signature, args, n_rows, unroll):
    codegen = context.codegen()
    arrays = {n: data_of(context, builder, signature, args, n) for n in (1, 5, 8, 10, 12, 19)}
    last, at, length = (args[n] for n in (4, 6, 7))
    count, columns = width(codegen), lanes(codegen)
    vector = ir.VectorType(I32, count)
    prepare, step = _quad_step(codegen, signature.args[1].dtype.signed)
    zero = ir.Constant(vector, None)
    accs = [
        [[cgutils.alloca_once_value(builder, zero) for _ in range(VECTORS)] for _ in range(n_rows)]
        for _ in range(unroll)
    ]

    def steps(starts, at, k, group):
        place = builder.add(at, builder.mul(k, k.type(4 * columns)))
        ws = [load(builder, arrays[5], place, 4 * count * v, vector, 4) for v in range(VECTORS)]
        ws = [prepare(builder, w, False) for w in ws]
        for start, row_accs in zip(starts, group, strict=True):
            word = builder.gep(arrays[1], [builder.add(start, builder.mul(k, k.type(4)))])
            x = builder.load(builder.bitcast(word, I32.as_pointer()), align=1)
            x = prepare(builder, splat(builder, x, vector), True)
            for w, acc in zip(ws, row_accs, strict=True):
                builder.store(step(builder, builder.load(acc), x, w), acc)

    def whole_rows(starts, at):
        blocks = builder.sdiv(length, length.type(unroll))
        with cgutils.for_range(builder, blocks) as loop:
            first = builder.mul(loop.index, length.type(unroll))
            for u in range(unroll):
                steps(starts, at, builder.add(first, first.type(u)), accs[u])
        if unroll > 1:
            done = builder.mul(blocks, length.type(unroll))
            with cgutils.for_range(builder, builder.sub(length, done)) as loop:
                steps(starts, at, builder.add(done, loop.index), accs[0])

    if len(args) > 22:
        table, taps = (data_of(context, builder, signature, args, n) for n in (2, 22))
        places = [row_within(builder, args[3], last.type(1), r, last) for r in range(n_rows)]
        rows_at = [builder.load(builder.gep(table, [place])) for place in places]
        with cgutils.for_range(builder, args[23]) as loop:
            tap = builder.load(builder.gep(taps, [loop.index]))
            jump = builder.mul(builder.mul(loop.index, length), length.type(4 * columns))
            whole_rows([builder.add(row, tap) for row in rows_at], builder.add(at, jump))
    else:
        whole_rows([row_within(builder, args[2], args[3], r, last) for r in range(n_rows)], at)
    _emit_byte_results(builder, signature, args, arrays, accs, vector)


def _depth_tile(by_lane):
    """acc[r,l] = starts + sum_t x[rows[rows_from + r] + origin + taps[t] + l] * w[t]: taps in quads, lanes along x

    Weights are int8 [length,L,4] where `by_lane`, else [length,4]; x is of uint8, each byte ^ flip.
    """

    def tile(
        typingctx, single, x, rows, rows_from, last, weights, at, length, row_start, row_at, column_start, column_at,
        factors, row_factor_at, factor_at, by_row, zero, low, high, out, out_at, out_stride, taps, origin, flip,
    ):  # fmt: skip
        index, word = types.intp, types.int32
        signature = types.void(
            types.boolean, x, rows, index, index, weights, index, index, row_start, index, column_start, index,
            factors, index, index, types.boolean, word, word, word, out, index, index, taps, index, types.uint8,
        )  # fmt: skip

        def emit(context, builder, signature, args):
            with builder.if_else(cgutils.as_bool_bit(builder, args[0])) as (then, otherwise):
                with then:
                    _emit_depth_rows(context, builder, signature, args, 1, by_lane)
                with otherwise:
                    _emit_depth_rows(context, builder, signature, args, DEPTH_ROWS, by_lane)
            return context.get_dummy_value()

        return signature, emit

    return intrinsic(tile)


def _emit_depth_rows(context, builder, signature, args, n_rows, by_lane):
    codegen = context.codegen()
    arrays = {n: data_of(context, builder, signature, args, n) for n in (1, 2, 5, 8, 10, 12, 19, 22)}
    last, at, length, origin, flip = (args[n] for n in (4, 6, 7, 23, 24))
    count, columns = width(codegen), lanes(codegen)
    vector, row, wide = ir.VectorType(I32, count), ir.VectorType(I8, columns), ir.VectorType(I16, columns)
    eight, zipped = ir.Constant(wide, [8] * columns), mask([v for l in range(columns) for v in (l, columns + l)])
    prepare, step = _quad_step(codegen, False)
    flips = splat(builder, builder.mul(builder.zext(flip, I32), I32(0x01010101)), vector)
    zero = ir.Constant(vector, None)
    accs = [[cgutils.alloca_once_value(builder, zero) for _ in range(VECTORS)] for _ in range(n_rows)]
    places = [row_within(builder, args[3], last.type(1), r, last) for r in range(n_rows)]
    starts = [builder.add(builder.load(builder.gep(arrays[2], [place])), origin) for place in places]
    with cgutils.for_range(builder, length) as loop:
        first = builder.mul(loop.index, length.type(4))
        if by_lane:
            place = builder.add(at, builder.mul(first, first.type(columns)))
            ws = [load(builder, arrays[5], place, 4 * count * v, vector, 4) for v in range(VECTORS)]
        else:
            word = builder.gep(arrays[5], [builder.add(at, first)])
            ws = [splat(builder, builder.load(builder.bitcast(word, I32.as_pointer()), align=1), vector)] * VECTORS
        ws = [prepare(builder, w, False) for w in ws]
        jumps = [builder.load(builder.gep(arrays[22], [builder.add(first, first.type(j))])) for j in range(4)]
        for start, row_accs in zip(starts, accs, strict=True):
            four = [builder.zext(load(builder, arrays[1], builder.add(start, jump), 0, row, 1), wide) for jump in jumps]
            pairs = [builder.or_(four[j], builder.shl(four[j + 1], eight)) for j in (0, 2)]
            quads = builder.bitcast(builder.shuffle_vector(*pairs, zipped), ir.VectorType(I32, columns))
            for v, (w, acc) in enumerate(zip(ws, row_accs, strict=True)):
                part = mask(list(range(v * count, (v + 1) * count)))
                x = builder.xor(builder.shuffle_vector(quads, quads, part), flips)
                builder.store(step(builder, builder.load(acc), prepare(builder, x, True), w), acc)
    _emit_byte_results(builder, signature, args, arrays, [accs], vector)


def _emit_byte_results(builder, signature, args, arrays, accs, vector):
    last, row_at, column_at, row_factor_at, factor_at = (args[n] for n in (4, 9, 11, 13, 14))
    by_row, (out_at, out_stride) = cgutils.as_bool_bit(builder, args[15]), args[20:22]
    one, count = row_at.type(1), vector.count
    requantized = signature.args[19].dtype.bitwidth == 8
    columns = [load(builder, arrays[10], column_at, v * count, vector, 4) for v in range(VECTORS)]
    floats = ir.VectorType(F32, count)
    if requantized:
        factors = [load(builder, arrays[12], factor_at, v * count, floats, 4) for v in range(VECTORS)]
        zero, low, high = (splat(builder, args[n], vector) for n in (16, 17, 18))
        bottom, top = (builder.sitofp(builder.sub(limit, zero), floats) for limit in (low, high))
    for r in range(len(accs[0])):
        row = row_within(builder, row_at, one, r, last)
        start = splat(builder, builder.load(builder.gep(arrays[8], [row])), vector)
        place = row_within(builder, out_at, out_stride, r, last)
        if requantized:
            factor_row = row_within(builder, row_factor_at, one, r, last)
            factor = splat(builder, builder.load(builder.gep(arrays[12], [factor_row])), floats)
        for v in range(VECTORS):
            acc = builder.add(start, columns[v])
            for group in accs:
                acc = builder.add(acc, builder.load(group[r][v]))
            if not requantized:
                store(builder, acc, arrays[19], place, v * count, 4)
                continue
            y = builder.fmul(builder.sitofp(acc, floats), builder.select(by_row, factor, factors[v]))
            y = call(builder, f"llvm.rint.v{count}f32", floats, y)
            # Clamped as a float before the conversion: both bounds are small integers. NaN gives the bottom.
            y = builder.select(builder.fcmp_ordered(">", y, bottom), y, bottom)
            y = builder.select(builder.fcmp_ordered("<", y, top), y, top)
            q = builder.add(builder.fptosi(y, vector), zero)
            store(builder, builder.trunc(q, ir.VectorType(I8, count)), arrays[19], place, v * count, 1)


def _quad_step(codegen, signed):
    """What is done to each operand once, and acc + sum of four products modulo 2^32; x is int8 where `signed`."""
    features = target_features(codegen)
    quad = next((name for feature, _, name in QUADS if feature in features), "")
    if quad:

        def dot(builder, acc, x, w):
            return call(builder, quad, acc.type, acc, *((w, x) if signed else (x, w)))

        return (lambda builder, v, is_x: v), dot

    name = next((name for feature, _, name in PAIRS if feature in features), "")

    def halves(builder, v, is_x):
        """Even and odd bytes as int16."""
        short = ir.VectorType(I16, 2 * v.type.count)
        eight = ir.Constant(short, [8] * short.count)
        v = builder.bitcast(v, short)
        if is_x == signed:
            return builder.ashr(builder.shl(v, eight), eight), builder.ashr(v, eight)
        return builder.and_(v, ir.Constant(short, [255] * short.count)), builder.lshr(v, eight)

    def step(builder, acc, x, w):
        for left, right in zip(x, w, strict=True):
            acc = builder.add(acc, _pair_product(builder, name, acc.type, left, right))
        return acc

    return halves, step


def _pair_product(builder, name, result, x, w):
    """x.even * w.even + x.odd * w.odd"""
    if name:
        return call(builder, name, result, x, w)
    parts = []
    for first in (0, 1):
        even = mask(list(range(first, 2 * result.count, 2)))
        parts.append(builder.mul(*(builder.sext(builder.shuffle_vector(v, v, even), result) for v in (x, w))))
    return builder.add(*parts)


depth_tile_by_lane, depth_tile_by_row = _depth_tile(True), _depth_tile(False)


# ---- panels


@intrinsic
def interleave(typingctx, source, first, second, third, fourth, flip, panel, at):
    """panel[l,j] = row_j[l] ^ flip: one step of a panel [K/4,L,4] from four rows of L bytes

    Shapes: flat arrays of uint8; the rows start at first .. fourth of source, the step at `at` of the panel.
    """
    index = types.intp

    def emit(context, builder, signature, args):
        source, panel = (data_of(context, builder, signature, args, n) for n in (0, 6))
        row = ir.VectorType(I8, lanes(context.codegen()))
        _emit_interleaved(builder, [load(builder, source, args[n], 0, row, 1) for n in (1, 2, 3, 4)], args[5:], panel)
        return context.get_dummy_value()

    return types.void(source, index, index, index, index, types.uint8, panel, index), emit


@intrinsic
def interleave_runs(typingctx, source, first, second, third, fourth, jump, bound, jump_2, bound_2, flip, panel, at):
    """The same where a row lies in two or three runs: lane l from `bound` on is `jump` further, from bound_2 jump_2"""
    index = types.intp

    def emit(context, builder, signature, args):
        source, panel = (data_of(context, builder, signature, args, n) for n in (0, 10))
        count = lanes(context.codegen())
        row, wide = ir.VectorType(I8, count), ir.VectorType(I32, count)
        lane = ir.Constant(wide, list(range(count)))
        limits = [splat(builder, builder.trunc(args[n], I32), wide) for n in (6, 8)]
        before = [builder.icmp_signed("<", lane, limit) for limit in limits]
        made = []
        for n in (1, 2, 3, 4):
            runs = [load(builder, source, place, 0, row, 1) for place in (
                args[n], builder.add(args[n], args[5]), builder.add(args[n], args[7])
            )]  # fmt: skip
            made.append(builder.select(before[0], runs[0], builder.select(before[1], runs[1], runs[2])))
        _emit_interleaved(builder, made, args[9:], panel)
        return context.get_dummy_value()

    signature = types.void(source, index, index, index, index, index, index, index, index, types.uint8, panel, index)
    return signature, emit


def _emit_interleaved(builder, four, rest, target):
    flip, _, at = rest
    columns = four[0].type.count
    flips = splat(builder, flip, four[0].type)
    four = [builder.xor(row, flips) for row in four]
    zipped = mask([v for l in range(columns) for v in (l, columns + l)])
    halves = [builder.shuffle_vector(*pair, zipped) for pair in (four[:2], four[2:])]
    shorts = [builder.bitcast(half, ir.VectorType(I16, columns)) for half in halves]
    store(builder, builder.shuffle_vector(*shorts, zipped), target, at, 0, 1)


@intrinsic
def copy_lanes(typingctx, source, at, target, to):
    """target[to + l] = source[at + l] for L bytes, wherever they lie"""
    index = types.intp

    def emit(context, builder, signature, args):
        data, made = (data_of(context, builder, signature, args, n) for n in (0, 2))
        row = ir.VectorType(I8, lanes(context.codegen()))
        store(builder, load(builder, data, args[1], 0, row, 1), made, args[3], 0, 1)
        return context.get_dummy_value()

    return types.void(source, index, target, index), emit


@intrinsic
def copy_every_second(typingctx, source, at, target, to):
    """target[to + l] = source[at + 2 l] for L bytes"""
    index = types.intp

    def emit(context, builder, signature, args):
        data, made = (data_of(context, builder, signature, args, n) for n in (0, 2))
        columns = lanes(context.codegen())
        row = load(builder, data, args[1], 0, ir.VectorType(I8, 2 * columns), 1)
        store(builder, builder.shuffle_vector(row, row, mask(list(range(0, 2 * columns, 2)))), made, args[3], 0, 1)
        return context.get_dummy_value()

    return types.void(source, index, target, index), emit
