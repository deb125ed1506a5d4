"""Gemm in WGSL: both operands are packed into panels, then each invocation computes a tile of registers.

No workgroup memory and no barriers: on software devices a barrier costs more than the reads it saves. Panels are
[batch, rows / TILE, K, TILE] words (B by its columns), filled with zeros up to whole tiles, so that the tile loop
needs no bounds. For bytes a word is four neighbours along K, both operands signed: WGSL has no mixed product, so
unsigned bytes lose 128 by flipping their top bit, and their zero point loses it too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from opgauge.reference_engine.types import Kernel, TensorSpec

from . import movement, pointwise, shader
from .plan import Builder, Tensor, index_map, pieces, stack_size

ROWS, COLUMNS = 8, 4
BYTES = ("int8", "uint8")
GEMM_ORDER = "sequential k, multiply then add unless the device contracts (see contraction)"

# p[2] = tile, p[3] = words per row, p[4] = panels, p[5] = rows, p[6] = K, p[7] = row stride, p[8] = k stride,
# p[9] = bits to flip. An invocation writes one column of a panel, `tile` words: divisions are dear, it needs two.
PACK = """    let block = w / p[3];
    let k = w - block * p[3];
    let matrix = block / p[4];
    let row = (block - matrix * p[4]) * p[2];
    for (var lane = 0u; lane < p[2]; lane++) {
        var word = 0u;
        if (row + lane < p[5]) { word = packed(matrix * p[5] * p[6] + (row + lane) * p[7], k); }
        y[w * p[2] + lane] = word;
    }"""
PACK_FLOAT = "fn packed(first: u32, k: u32) -> u32 { return load0(first + k * p[8]); }"
PACK_BYTES = """fn packed(first: u32, k: u32) -> u32 {
    var word = 0u;
    for (var j = 0u; j < 4u; j++) {
        let at = 4u * k + j;
        if (at < p[6]) { word |= ((load0(first + at * p[8]) & 0xffu) ^ p[9]) << (8u * j); }
    }
    return word;
}"""

# p[2] = tile, p[3] = words per row, p[4] = panels, p[5] = rows, p[6], p[7] = words to sum, p[8] = 128 where flipped.
# x1 the zero points, x2 which of them belongs to each row. y = (sum of the row, zero point).
SUMS = """    let row = w % p[5];
    let first = ((w / p[5]) * p[4] + row / p[2]) * p[3];
    var sum = 0;
    if (p[6] > 0u) { sum = bitcast<i32>(y[w].x); }
    for (var k = p[6]; k < p[7]; k++) { sum += dot4I8Packed(x0[(first + k) * p[2] + row % p[2]], 0x01010101u); }
    y[w] = vec2<u32>(bitcast<u32>(sum), load1(x2[w]) - p[8]);"""


@functools.cache
def pack_code(dtype: str) -> str:
    return shader.frame((dtype,), ("uint32",), PACK_BYTES if dtype in BYTES else PACK_FLOAT, PACK)


@functools.cache
def sums_code(dtype: str) -> str:
    return shader.frame(("uint32", dtype, "uint32"), ("vec2",), "", SUMS)


@functools.cache
def tile_code(integer: bool) -> str:
    """C[8,4] += A panel [K,8] * B panel [K,4] for k in p[5] .. p[6]

    p[2] = M, p[3] = N, p[4] = words per row, p[7] = panels of A, p[8] = panels of B, p[9] = K; x2 the matrix of A
    and of B for each matrix of C. A K beyond MAX_ITERATIONS takes several dispatches, which go on from y.
    """
    vector, scalar, zero = ("vec4", "i32", "0") if integer else ("vec4f", "f32", "0.0")

    def each(line: Callable[[int, int], str]) -> str:
        return "\n".join(line(r, c) for r in range(ROWS) for c in range(COLUMNS))

    def at(r: int, c: int) -> str:
        return f"y[(batch * p[2] + m + {r}u) * p[3] + n + {c}u]"

    def inside(r: int, c: int) -> str:
        return f"if (m + {r}u < p[2] && n + {c}u < p[3])"

    def product(r: int, c: int) -> str:
        a, b = f"a{r // 4}.{'xyzw'[r % 4]}", f"b.{'xyzw'[c]}"
        return f"c{r}_{c} += " + (f"dot4I8Packed({a}, {b});" if integer else f"{a} * {b};")

    correct = ""
    if integer:
        rows = [f"let s{r} = x3[x2[2u * batch] * p[2] + min(m + {r}u, p[2] - 1u)];" for r in range(ROWS)]
        columns = [f"let t{c} = x4[x2[2u * batch + 1u] * p[3] + min(n + {c}u, p[3] - 1u)];" for c in range(COLUMNS)]

        # sum (a-za)(b-zb) = sum ab - zb sum a + za (K zb - sum b), all modulo 2^32.
        def zero_points(r: int, c: int) -> str:
            return f"c{r}_{c} += bitcast<i32>(s{r}.y * (p[9] * t{c}.y - t{c}.x) - t{c}.y * s{r}.x);"

        correct = "\n".join(["if (p[6] == p[4]) {", *rows, *columns, each(zero_points), "}"])
    main = f"""
    let np = w % p[8];
    let mp = (w / p[8]) % p[7];
    let batch = w / (p[8] * p[7]);
    let m = mp * {ROWS}u;
    let n = np * {COLUMNS}u;
    let a_first = (x2[2u * batch] * p[7] + mp) * p[4];
    let b_first = (x2[2u * batch + 1u] * p[8] + np) * p[4];
{each(lambda r, c: f"var c{r}_{c} = {scalar}({zero});")}
    if (p[5] > 0u) {{
{each(lambda r, c: f"{inside(r, c)} {{ c{r}_{c} = bitcast<{scalar}>({at(r, c)}); }}")}
    }}
    for (var k = p[5]; k < p[6]; k++) {{
        let a0 = x0[(a_first + k) * 2u];
        let a1 = x0[(a_first + k) * 2u + 1u];
        let b = x1[b_first + k];
{each(product)}
    }}
{correct}
{each(lambda r, c: f"{inside(r, c)} {{ {at(r, c)} = bitcast<u32>(c{r}_{c}); }}")}"""
    reads = (vector, vector, "uint32", *(("vec2", "vec2") if integer else ()))
    return shader.frame(reads, ("uint32",), "", main)


def pack(build: Builder, x: Tensor, tile: int, by_column: bool) -> Tensor:
    """The panels of A's rows or of B's columns."""
    rows, K = (x.shape[-1], x.shape[-2]) if by_column else (x.shape[-2], x.shape[-1])
    row_stride, k_stride = (1, rows) if by_column else (K, 1)
    per_word = 4 if x.dtype in BYTES else 1
    words, panels = -(-K // per_word), -(-rows // tile)
    packed = build.temporary((stack_size(x.shape), panels, words, tile), "uint32")
    flip = 0x80 if x.dtype == "uint8" else 0
    params = (packed.size, tile, words, panels, rows, K, row_stride, k_stride, flip)
    build.dispatch(pack_code(x.dtype), (x,), (packed,), params, packed.size // tile)
    return packed


def sums(build: Builder, packed: Tensor, zero_point: Tensor, own: tuple[int, ...], full: tuple[int, ...]) -> Tensor:
    """(sum, zero point) of each row of A or column of B; `own` the zero points' shape, broadcast to `full`."""
    stack, panels, words, tile = packed.shape
    which = build.constant(index_map(zero_point.size, own, full))
    made = build.temporary((which.size, 2), "uint32")
    for start, end in pieces(words):
        offset = 128 if zero_point.dtype == "uint8" else 0
        params = (made.size, tile, words, panels, which.size // stack, start, end, offset)
        build.dispatch(sums_code(zero_point.dtype), (packed, zero_point, which), (made,), params, which.size)
    return made


def run_tiles(
    build: Builder, a: Tensor, b: Tensor, out: Tensor, panels_a: Tensor, panels_b: Tensor, *corrections: Tensor
) -> None:
    batch = out.shape[:-2]
    maps = [index_map(stack_size(x.shape), x.shape[:-2], batch) for x in (a, b)]
    matrices = build.constant(np.stack(maps, -1).ravel())
    (M, N), words = out.shape[-2:], panels_a.shape[2]
    count = stack_size(out.shape) * panels_a.shape[1] * panels_b.shape[1]
    code = tile_code(bool(corrections))
    for start, end in pieces(words):
        params = (out.size, M, N, words, start, end, panels_a.shape[1], panels_b.shape[1], a.shape[-1])
        build.dispatch(code, (panels_a, panels_b, matrices, *corrections), (out,), params, count)


def gemm_float(build: Builder, a: Tensor, b: Tensor, out: Tensor) -> None:
    """out[m,n] = sum_k a[m,k] * b[k,n], one float32 accumulator per element, k in sequence

    Shapes: a [*,M,K], b [*,K,N] -> out [*,M,N], batch dimensions broadcast.
    Dtypes: float32; float16 and bfloat16 are rounded once at the end.
    """
    if not a.shape[-1]:
        build.clear(out)
        return
    wide = out if out.dtype == "float32" else build.temporary(out.shape, "float32")
    run_tiles(build, a, b, wide, pack(build, a, ROWS, False), pack(build, b, COLUMNS, True))
    if wide is not out:
        pointwise.cast(build, wide, out, out.dtype)


def gemm_integer(build: Builder, a: Tensor, b: Tensor, a_zero_point: Tensor, b_zero_point: Tensor, out: Tensor) -> None:
    """out[m,n] = sum_k (a[m,k] - a_zero_point[m]) * (b[k,n] - b_zero_point[n]) modulo 2^32

    Shapes: a [*,M,K], b [*,K,N], zero points [] or [*,M,1] and [*,1,N] -> out [*,M,N].
    Dtypes: int8 or uint8 each; out int32.
    """
    if not a.shape[-1]:
        build.clear(out)
        return
    panels_a, panels_b = pack(build, a, ROWS, False), pack(build, b, COLUMNS, True)
    rows = sums(build, panels_a, a_zero_point, a_zero_point.shape, (*a.shape[:-1], 1))
    columns = sums(build, panels_b, b_zero_point, b_zero_point.shape, (*b.shape[:-2], 1, b.shape[-1]))
    run_tiles(build, a, b, out, panels_a, panels_b, rows, columns)


@functools.cache
def requantize_code(to: str, bias_by_row: bool, factor_by_row: bool) -> str:
    # p[2], p[3] the limits, p[4] = N, p[5] = M N; x4 and x5 say which bias and factor each row or column has.
    rows, columns = "i / p[4]", "(i / p[5]) * p[4] + i % p[4]"
    body = f"""fn element(i: u32) -> u32 {{
    let a = load0(i) + load1(x4[{rows if bias_by_row else columns}]);
    let factor = load2(x5[{rows if factor_by_row else columns}]);
    let y = times(pack_float32({pointwise.number("int32")}), factor);
    return quantized(y, load3(0u), bitcast<i32>(p[2]), bitcast<i32>(p[3]));
}}"""
    return shader.per_element(("int32", "int32", "float32", to, "uint32", "uint32"), to, body)


def gemm_requantize(
    build: Builder,
    a: Tensor,
    b: Tensor,
    a_zero_point: Tensor,
    b_zero_point: Tensor,
    bias: Tensor,
    multiplier: Tensor,
    zero_point: Tensor,
    out: Tensor,
    to: str,
    low: int,
    high: int,
    zp_inside: object = False,
) -> None:
    """out = clip(rint(float32(acc + bias) * multiplier) + zero_point, low, high), acc as gemm_integer

    Shapes: bias and multiplier [], [*,M,1] or [*,1,N]; zero_point [].
    """
    acc = build.temporary(out.shape, "int32")
    gemm_integer(build, a, b, a_zero_point, b_zero_point, acc)
    (M, N), maps, by_row = out.shape[-2:], [], []
    for x in (bias, multiplier):
        shape = (*(1,) * (len(out.shape) - len(x.shape)), *x.shape)
        by_row.append(shape[-1] == 1)
        own, full = (shape[:-1], out.shape[:-1]) if by_row[-1] else ((*shape[:-2], shape[-1]), (*out.shape[:-2], N))
        maps.append(build.constant(index_map(x.size, own, full)))
    reads = (acc, bias, multiplier, zero_point, *maps)
    pointwise.map_elements(build, requantize_code(to, *by_row), reads, out, low, high, N, M * N)


def gemm_im2col_requantize(
    build: Builder,
    a: Tensor,
    x: Tensor,
    a_zero_point: Tensor,
    x_zero_point: Tensor,
    bias: Tensor,
    multiplier: Tensor,
    zero_point: Tensor,
    out: Tensor,
    to: str,
    low: int,
    high: int,
    zp_inside: object,
    *geometry: tuple[int, ...],
) -> None:
    """gemm_requantize of a and the columns of an image, whose pads hold x_zero_point."""
    (n, c), length = x.shape[:2], out.shape[-1]
    taps = math.prod(geometry[0])
    columns = build.temporary((n, c, taps, length), x.dtype)
    movement.im2col(build, x, x_zero_point, columns, *geometry)
    operand = replace(columns, spec=TensorSpec((n, a.shape[1], c // a.shape[1] * taps, length), x.dtype))
    points = (a_zero_point, x_zero_point, bias, multiplier, zero_point)
    gemm_requantize(build, a, operand, *points, out, to, low, high)


def gemm_im2row_requantize(
    build: Builder, a: Tensor, x: Tensor, az: Tensor, xz: Tensor, bias: Tensor, multiplier: Tensor, zero_point: Tensor,
    out: Tensor, to: str, low: int, high: int, zp_inside: object, *geometry: tuple[int, ...],
) -> None:  # fmt: skip
    """gemm_im2col_requantize with channels last: x [N,*S,C] -> out [N,L,M]; layouts are changed on the way."""
    n, *spatial, c = x.shape
    first = build.temporary((n, c, *spatial), x.dtype)
    movement.transpose(build, x, first, (0, len(spatial) + 1, *range(1, len(spatial) + 1)))
    made = build.temporary((n, *a.shape[1:3], out.shape[1]), out.dtype)
    gemm_im2col_requantize(
        build, a, first, az, xz, bias, multiplier, zero_point, made, to, low, high, zp_inside, *geometry
    )
    rows = replace(made, spec=TensorSpec((n, out.shape[2], out.shape[1]), out.dtype))
    movement.transpose(build, rows, out, (0, 2, 1))


KERNELS = (
    *(Kernel("Gemm", "", (d, d, d), gemm_float) for d in pointwise.FLOATS),
    *(Kernel("Gemm", "", (a, b, a, b, "int32"), gemm_integer) for a in BYTES for b in BYTES),
    *(
        Kernel("Gemm", fn, (a, b, a, b, "int32", "float32", y, y), call)
        for fn, call in (
            ("requantize", gemm_requantize),
            ("im2col_requantize", gemm_im2col_requantize),
            ("im2row_requantize", gemm_im2row_requantize),
        )
        for a in BYTES
        for b in BYTES
        for y in BYTES
    ),
)
