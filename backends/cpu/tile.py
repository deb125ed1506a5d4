"""The register tile under every Gemm: ROWS x lanes accumulators, written in LLVM vectors.

Every tiling gives the same bits: one accumulator per element, k in sequence. ROWS x lanes is sized for the
registers: 12 accumulators of 512 bits, or 12 of 256. LLVM splits vectors for a CPU that has neither.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compile import fuses, target_features

ROWS = 6
LANE = ir.IntType(32)


def lanes(codegen):
    """Columns of a tile."""
    return 32 if "avx512f" in target_features(codegen) else 16


@intrinsic
def tile(typingctx, a, i, m, panels, j, p, out):
    """out[r,l] = sum_k a[i,m+r,k] * panels[j,p,k,l], k in sequence from 0; an int32 is a pair of int16

    Shapes: a [*,M,K], panels [*,P,K,L], out [ROWS,L] with L = lanes(); rows past M repeat the last one.
    Dtypes: float32 or float64 all three, fused where the CPU fuses; int32 all three, where every operand
        is two int16 and the sum of the two products, modulo 2^32, is added.
    """
    return types.void(a, types.intp, types.intp, panels, types.intp, types.intp, out), _emit_tile


def _emit_tile(context, builder, signature, args):
    # Features are asked for here, inside code generation: they are part of numba's cache key.
    a, panels, out = (context.make_array(signature.args[n])(context, builder, args[n]) for n in (0, 3, 6))
    columns = lanes(context.codegen())
    i, m, j, p = (args[n] for n in (1, 2, 4, 5))
    element = context.get_data_type(signature.args[0].dtype)
    size = context.get_abi_sizeof(element)
    width, step = _pair_step(context) if isinstance(element, ir.IntType) else (64 // size, _add_product)
    vector = ir.VectorType(element, width)
    _, rows, length = cgutils.unpack_tuple(builder, a.shape, 3)
    n_panels = cgutils.unpack_tuple(builder, panels.shape, 4)[1]
    last = builder.sub(rows, rows.type(1))

    def vector_at(pointer, index, v):
        at = builder.add(builder.mul(index, index.type(columns)), index.type(v * width))
        return builder.bitcast(builder.gep(pointer, [at]), vector.as_pointer())

    row_starts = []
    for r in range(ROWS):
        row = builder.add(m, m.type(r))
        row = builder.select(builder.icmp_signed("<", row, last), row, last)
        row_starts.append(builder.mul(builder.add(builder.mul(i, rows), row), length))
    panel_start = builder.mul(builder.add(builder.mul(j, n_panels), p), length)
    vectors = range(columns // width)
    zero = ir.Constant(vector, None)
    accs = [[cgutils.alloca_once_value(builder, zero) for _ in vectors] for _ in range(ROWS)]
    with cgutils.for_range(builder, length) as loop:
        at = builder.add(panel_start, loop.index)
        ws = [builder.load(vector_at(panels.data, at, v), align=size) for v in vectors]
        for start, row_accs in zip(row_starts, accs, strict=True):
            x = builder.load(builder.gep(a.data, [builder.add(start, loop.index)]))
            x = _splat(builder, x, vector)
            for w, acc in zip(ws, row_accs, strict=True):
                builder.store(step(context, builder, x, w, builder.load(acc)), acc)
    for r, row_accs in enumerate(accs):
        for v, acc in enumerate(row_accs):
            builder.store(builder.load(acc), vector_at(out.data, last.type(r), v), align=size)
    return context.get_dummy_value()


def _splat(builder, x, vector):
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), x, LANE(0))
    return builder.shuffle_vector(one, one, _mask([0] * vector.count))


def _mask(numbers):
    return ir.Constant(ir.VectorType(LANE, len(numbers)), numbers)


def _call(builder, name, result, *args):
    function_type = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), args)


def _add_product(context, builder, x, w, acc):
    if not fuses(context.codegen()):
        return builder.fadd(acc, builder.fmul(x, w))
    bits = 8 * context.get_abi_sizeof(acc.type.element)
    return _call(builder, f"llvm.fma.v{acc.type.count}f{bits}", acc.type, x, w, acc)


# A sum of two int16 products in one instruction: CPU feature, int32 lanes, LLVM's name.
PAIR_PRODUCTS = (
    ("avx512bw", 16, "llvm.x86.avx512.pmaddw.d.512"),
    ("avx2", 8, "llvm.x86.avx2.pmadd.wd"),
    ("sse2", 4, "llvm.x86.sse2.pmadd.wd"),
)


def _pair_step(context):
    """The lanes of a vector, and acc + x.even * w.even + x.odd * w.odd modulo 2^32."""
    features = target_features(context.codegen())
    width, name = next(((width, name) for feature, width, name in PAIR_PRODUCTS if feature in features), (16, ""))
    short = ir.VectorType(ir.IntType(16), 2 * width)

    def step(context, builder, x, w, acc):
        x, w = builder.bitcast(x, short), builder.bitcast(w, short)
        if name:
            return builder.add(acc, _call(builder, name, acc.type, x, w))
        for first in (0, 1):
            mask = _mask(list(range(first, 2 * width, 2)))
            pair = [builder.sext(builder.shuffle_vector(v, v, mask), acc.type) for v in (x, w)]
            acc = builder.add(acc, builder.mul(*pair))
        return acc

    return width, step
