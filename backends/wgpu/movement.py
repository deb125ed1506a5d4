"""Im2col, DataMove, Gather and Scatter in WGSL: moves by item size, never by type.

Every move but concat and gather is one shader: an output index is taken apart along the input's axes, each axis
decides which element it reads or that it reads the fill. Items of 8 bytes are pairs of words.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import UnsupportedError
from opgauge.reference_engine.types import Array, Kernel

from . import pointwise, shader
from .plan import MAX_ITERATIONS, Builder, IndexCheck, Tensor, pieces

Ints = tuple[int, ...]
MODES = {"inside": 0, "constant": 1, "edge": 2, "reflect": 3, "wrap": 4}


@dataclass(frozen=True)
class Term:
    """The part of a position that one output axis gives: (i / divisor % size) * step."""

    divisor: int
    size: int
    step: int


@dataclass(frozen=True)
class Axis:
    """One input axis: position start + terms, brought into [0, limit) by `mode`, times stride."""

    terms: tuple[Term, ...]
    stride: int
    start: int = 0
    limit: int = 0
    mode: str = "inside"

    def words(self) -> tuple[int, ...]:
        first, second = (*self.terms, Term(1, 0, 0), Term(1, 0, 0))[:2]
        terms = (first.divisor, first.size, first.step, second.divisor, second.size, second.step)
        return (*terms, self.start, self.limit, MODES[self.mode], self.stride)


# p[2] axes, p[3] first element, p[4] fill mask, then ten words per axis.
MOVE = """fn signed(at: u32) -> i32 { return bitcast<i32>(p[at]); }
fn place(i: u32) -> i32 {
    var element = signed(3u);
    for (var axis = 0u; axis < p[2]; axis++) {
        let r = 5u + axis * 10u;
        var at = signed(r + 6u);
        if (p[r + 1u] != 0u) { at += i32((i / p[r]) % p[r + 1u]) * signed(r + 2u); }
        if (p[r + 4u] != 0u) { at += i32((i / p[r + 3u]) % p[r + 4u]) * signed(r + 5u); }
        let limit = signed(r + 7u);
        let mode = p[r + 8u];
        if (mode == 1u && (at < 0 || at >= limit)) { return -1; }
        if (mode == 2u) { at = clamp(at, 0, limit - 1); }
        if (mode > 2u) {
            let period = select(limit, max(2 * (limit - 1), 1), mode == 3u);
            at = ((at % period) + period) % period;
            if (at >= limit) { at = period - at; }
        }
        element += at * signed(r + 9u);
    }
    return element;
}
fn element(i: u32) -> u32 {
    let at = place(i);
    if (at < 0) { return load1(i & p[4]); }
    return load0(u32(at));
}"""


@functools.cache
def move_code(raw: str) -> str:
    return shader.per_element((raw, raw), raw, MOVE)


def word_view(dtype: str) -> tuple[str, int]:
    """The type that moves it, and how many of them make an item."""
    size = shader.width(dtype)
    return shader.RAW[min(size, 4)], max(size // 4, 1)


def move(
    build: Builder, x: Tensor, out: Tensor, axes: Sequence[Axis], first: int = 0, fill: Tensor | None = None
) -> None:
    raw, n = word_view(x.dtype)
    merged = [
        Axis(tuple(Term(t.divisor * n, t.size, t.step) for t in a.terms), a.stride * n, a.start, a.limit, a.mode)
        for a in merge(axes)
    ]
    if n > 1:
        merged.append(Axis((Term(1, n, 1),), 1))
    words = [word for axis in merged for word in axis.words()]
    size = out.size * n
    params = (size, len(merged), first * n, n - 1, *words)
    build.dispatch(move_code(raw), (x, fill or x), (out,), params, shader.words(size, raw))


def merge(axes: Sequence[Axis]) -> list[Axis]:
    """Fewer axes: plain neighbours that one longer axis walks are joined, and those of one element dropped."""
    kept: list[Axis] = []
    for axis in axes:
        if axis.mode == "inside" and axis.start == 0 and len(axis.terms) == 1:
            (term,) = axis.terms
            stride = term.step * axis.stride
            if term.size == 1 or stride == 0:
                continue
            axis = Axis((Term(term.divisor, term.size, 1),), stride)
            before = kept[-1] if kept else None
            if before and before.mode == "inside" and before.start == 0 and len(before.terms) == 1:
                outer = before.terms[0]
                if outer.divisor == term.divisor * term.size and before.stride == stride * term.size:
                    kept[-1] = Axis((Term(term.divisor, outer.size * term.size, 1),), stride)
                    continue
        kept.append(axis)
    return kept


def strides_of(shape: Sequence[int]) -> Ints:
    """Elements between neighbours along each axis, row-major."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def terms_of(shape: Sequence[int]) -> list[Term]:
    return [Term(d, n, 1) for d, n in zip(strides_of(shape), shape, strict=True)]


def copy(build: Builder, x: Tensor, out: Tensor) -> None:
    move(build, x, out, [Axis((Term(1, x.size, 1),), 1)])


def transfer(build: Builder, x: Tensor, out: Tensor, to: str) -> None:
    """Within one device a copy; between two the engine's own steps."""
    copy(build, x, out)


def transpose(build: Builder, x: Tensor, out: Tensor, perm: Ints) -> None:
    strides = strides_of(x.shape)
    move(build, x, out, [Axis((t,), strides[axis]) for t, axis in zip(terms_of(out.shape), perm, strict=True)])


def expand(build: Builder, x: Tensor, out: Tensor, shape: Ints) -> None:
    strides = [s if d > 1 else 0 for s, d in zip(strides_of(x.shape), x.shape, strict=True)]
    move(build, x, out, [Axis((t,), s) for t, s in zip(terms_of(out.shape), strides, strict=True)])


def fill(build: Builder, value: Tensor, out: Tensor) -> None:
    """out[i] = value, a tensor of one element"""
    move(build, value, out, [])


def slice_(build: Builder, x: Tensor, out: Tensor, starts: Ints, ends: Ints, steps: Ints) -> None:
    strides = strides_of(x.shape)
    first = sum(b * s for b, s in zip(starts, strides, strict=True))
    terms = terms_of(out.shape)
    move(build, x, out, [Axis((t,), s * k) for t, s, k in zip(terms, strides, steps, strict=True)], first)


def pad(build: Builder, x: Tensor, value: Tensor, out: Tensor, pads: Ints, mode: str) -> None:
    """out[i] = x[place(i - begin)] after a crop by the negative pads

    Shapes: pads begin.. then end..; value [].
    Source: ONNX Pad-19; reflect does not repeat the border.
    """
    rank = len(x.shape)
    begins, ends = pads[:rank], pads[rank:]
    kept = [d + min(b, 0) + min(e, 0) for d, b, e in zip(x.shape, begins, ends, strict=True)]
    if min(kept, default=1) <= 0:
        fill(build, value, out)
        return
    strides = strides_of(x.shape)
    first = sum(max(-b, 0) * s for b, s in zip(begins, strides, strict=True))
    axes = []
    for axis, term in enumerate(terms_of(out.shape)):
        padded = begins[axis] > 0 or ends[axis] > 0
        how = mode if padded else "inside"
        axes.append(Axis((term,), strides[axis], -max(begins[axis], 0), kept[axis], how))
    move(build, x, out, axes, first, value)


def im2col(
    build: Builder,
    x: Tensor,
    pad_value: Tensor,
    out: Tensor,
    kernel_shape: Ints,
    strides: Ints,
    dilations: Ints,
    pads: Ints,
    out_shape: Ints,
) -> None:
    """out[n,c,k,l] = x[n,c, l * stride - pad + k * dilation], pad_value outside

    Shapes: x [N,C,*S], pad_value [], out [N,C,prod(kernel_shape),prod(out_shape)].
    """
    if not x.size:
        fill(build, pad_value, out)
        return
    rank, apart = len(kernel_shape), strides_of(x.shape)
    terms = terms_of((*x.shape[:2], *kernel_shape, *out_shape))
    axes = [Axis((terms[0],), apart[0]), Axis((terms[1],), apart[1])]
    for axis in range(rank):
        tap, position = terms[2 + axis], terms[2 + rank + axis]
        both = (Term(tap.divisor, tap.size, dilations[axis]), Term(position.divisor, position.size, strides[axis]))
        axes.append(Axis(both, apart[2 + axis], -pads[axis], x.shape[2 + axis], "constant"))
    move(build, x, out, axes, 0, pad_value)


# p[2] = parts, p[3] = length of the joined axis, p[4] = inner; then start, length, first element of each part.
CONCAT = """fn element(i: u32) -> u32 {
    let inner = i % p[4];
    let at = (i / p[4]) % p[3];
    let outer = i / (p[4] * p[3]);
    var low = 0u;
    var high = p[2];
    while (high - low > 1u) {
        let middle = (low + high) / 2u;
        if (p[5u + middle * 3u] <= at) { low = middle; } else { high = middle; }
    }
    let r = 5u + low * 3u;
    return load0(p[r + 2u] + (outer * p[r + 1u] + at - p[r]) * p[4] + inner);
}"""


@functools.cache
def concat_code(raw: str) -> str:
    return shader.per_element((raw,), raw, CONCAT)


def concat(build: Builder, *operands: object) -> None:
    """out = x1, x2, .. joined along axis; called as concat(build, x1, .., xn, out, axis)

    The parts are first copied into one buffer, each from a whole word on.
    """
    *tensors, axis = operands
    assert isinstance(axis, int)
    *xs, out = (t for t in tensors if isinstance(t, Tensor))
    parts = [x for x in xs if x.size]
    raw, n = word_view(out.dtype)
    inner = math.prod(out.shape[axis + 1 :]) * n
    item = min(shader.width(out.dtype), 4)
    joined = build.temporary((sum(build.sizes[x.id] for x in parts),), "uint8")
    start, offset, table = 0, 0, []
    for x in parts:
        table += [start, x.shape[axis], offset // item]
        start += x.shape[axis]
        offset = build.copy(x, joined, offset)
    params = (out.size * n, len(parts), out.shape[axis], inner, *table)
    build.dispatch(concat_code(raw), (joined,), (out,), params, shader.words(out.size * n, raw))


# y1 the flag: 1, the index that is out of range, the length of its axis. Any invocation's will do.
FLAG = """fn refuse(index: vec2<u32>, length: u32) {
    y1[0] = 1u;
    y1[1] = index.x;
    y1[2] = index.y;
    y1[3] = length;
}
fn from_end(index: vec2<u32>, length: u32) -> u32 { return index.x + select(length, 0u, index.y == 0u); }
fn outside(index: vec2<u32>, length: u32) -> bool {
    let fits = index.y == 0u || (index.y == 0xffffffffu && index.x >= SIGN);
    return !fits || from_end(index, length) >= length;
}
"""

# p[2] = L, p[3] = I, p[4] = n
GATHER = """fn element(i: u32) -> u32 {
    let inner = i % p[3];
    let n = (i / p[3]) % p[4];
    let outer = i / (p[3] * p[4]);
    let index = load1(n);
    if (outside(index, p[2])) {
        refuse(index, p[2]);
        return 0u;
    }
    return load0((outer * p[2] + from_end(index, p[2])) * p[3] + inner);
}"""


@functools.cache
def gather_code(raw: str) -> str:
    return shader.per_element((raw, "int64"), raw, FLAG + GATHER, also=("uint32",))


def new_flag(build: Builder) -> Tensor:
    flag = build.temporary((4,), "uint32")
    build.clear(flag)
    return flag


def gather(build: Builder, x: Tensor, indices: Tensor, out: Tensor) -> None:
    """out[o,n,i] = x[o, indices[n], i]

    Shapes: x [O,L,I], indices [n], out [O,n,I]; negative indices count from the end.
    Raises: IndexError naming the value that is out of range: now for constants, else when the graph runs.
    """
    length = x.shape[1]
    flag = new_flag(build)
    known, name = build.data(indices), build.input_name(indices)
    if known is not None:
        check_indices(known, length)
    else:
        build.checks.append(IndexCheck("Gather", flag, name, length))
    if not x.size:
        build.clear(out)  # only reached where the check above will raise
        return
    raw, n = word_view(x.dtype)
    params = (out.size * n, length, x.shape[2] * n, indices.size)
    build.dispatch(gather_code(raw), (x, indices), (out, flag), params, shader.words(out.size * n, raw))


def check_indices(indices: Array, length: int) -> None:
    """Raises: IndexError naming the first value that is out of range."""
    outside = (indices < -length) | (indices >= length)
    if outside.any():
        raise IndexError(f"Gather: index {indices[outside][0]} is out of range for an axis of {length}")


# p[2] = r, p[3] = N, p[4] = prod(D), then the r sizes; y the row of x seen as [B*prod(D),I] of each index tuple.
PLACES = """    var place = 0u;
    for (var axis = 0u; axis < p[2]; axis++) {
        let length = p[5u + axis];
        let index = load0(w * p[2] + axis);
        if (outside(index, length)) {
            refuse(index, length);
            y[w] = 0u;
            return;
        }
        place = place * length + from_end(index, length);
    }
    y[w] = w / p[3] * p[4] + place;"""


@functools.cache
def places_code() -> str:
    return shader.frame(("int64",), ("uint32", "uint32"), FLAG, PLACES)


def places(build: Builder, x: Tensor, indices: Tensor, what: str) -> Tensor:
    """The row of x, seen as [B*prod(D),I], that each tuple of indices [B,N,r] names."""
    flag, sizes = new_flag(build), x.shape[1:-1]
    build.checks.append(IndexCheck(what, flag))
    B, N, r = indices.shape
    made = build.temporary((B, N), "uint32")
    build.dispatch(places_code(), (indices,), (made, flag), (made.size, r, N, math.prod(sizes), *sizes), made.size)
    return made


@functools.cache
def gather_rows_code(raw: str) -> str:
    body = "fn element(i: u32) -> u32 { return load0(x1[i / p[2]] * p[2] + i % p[2]); }"
    return shader.per_element((raw, "uint32"), raw, body)


def gather_nd(build: Builder, x: Tensor, indices: Tensor, out: Tensor) -> None:
    """out[b,n,i] = x[b, indices[b,n,0], .., indices[b,n,r-1], i]

    Shapes: x [B,*D,I], indices [B,N,r], out [B,N,I]. Raises: IndexError as gather, when the graph runs.
    """
    rows, (raw, n) = places(build, x, indices, "Gather"), word_view(x.dtype)
    params = (out.size * n, x.shape[-1] * n)
    build.dispatch(gather_rows_code(raw), (x, rows), (out,), params, shader.words(out.size * n, raw))


@functools.cache
def scatter_code(fn: str, dtype: str) -> str:
    value = "b" if fn == "none" else pointwise.FNS[dtype][fn]
    kind = shader.element_type(dtype)
    # p[2] = N, p[3] = I, p[4] = prod(D), p[5] .. p[6] the updates to apply, in order
    body = f"""fn combine(a: {kind}, b: {kind}) -> {kind} {{ return {value}; }}
fn element(i: u32) -> {kind} {{
    let row = i / p[3];
    let first = row / p[4] * p[2];
    var acc = load0(i);
    for (var n = p[5]; n < p[6]; n++) {{
        if (x1[first + n] == row) {{ acc = combine(acc, load2((first + n) * p[3] + i % p[3])); }}
    }}
    return acc;
}}"""
    return shader.per_element((dtype, "uint32", dtype), dtype, body, pointwise.libraries(dtype))


def scatter(fn: str) -> Callable[..., None]:
    """out = x, then out[b, indices[b,n,..], i] = fn(that, updates[b,n,i]) in the order of n

    Each output element looks through all updates of its b: slow, but one writer only, so always the same answer.
    Shapes: x, out [B,*D,I], indices [B,N,r], updates [B,N,I]. Raises: IndexError as gather, when the graph runs.
    """

    def call(build: Builder, x: Tensor, indices: Tensor, updates: Tensor, out: Tensor) -> None:
        N = indices.shape[1]
        if x.size * N > MOST_LOOKS:
            raise UnsupportedError(
                f"{build.source}: {N} updates of {x.spec} are too many for wgpu, which tries each one"
            )
        if not updates.size:
            copy(build, x, out)
            return
        rows = places(build, x, indices, "Scatter")
        dtype = shader.raw_of(x.dtype) if fn == "none" else x.dtype
        runs = pieces(N, MAX_ITERATIONS // 4)
        for start, end in runs:
            target = out if end == N else build.temporary(out.shape, out.dtype)
            params = (out.size, N, x.shape[-1], math.prod(x.shape[1:-1]), start, end)
            count = shader.words(out.size, dtype)
            build.dispatch(scatter_code(fn, dtype), (x, rows, updates), (target,), params, count)
            x = target

    return call


# Updates times elements beyond which a Scatter is refused rather than left to a time limit.
MOST_LOOKS = 2**33
ADDED = (*pointwise.FLOATS, *dt.INTS)
KERNELS = (
    Kernel("Gather", "nd", ("*",), gather_nd),
    Kernel("Scatter", "none", ("*",), scatter("none")),
    *(Kernel("Scatter", fn, (d, "int64", d, d), scatter(fn)) for fn in ("add", "mul") for d in ADDED),
    *(Kernel("Scatter", fn, (d, "int64", d, d), scatter(fn)) for fn in ("max", "min") for d in (*ADDED, "float64")),
    Kernel("Im2col", "", ("*",), im2col),
    Kernel("DataMove", "transpose", ("*",), transpose),
    Kernel("DataMove", "expand", ("*",), expand),
    Kernel("DataMove", "slice", ("*",), slice_),
    Kernel("DataMove", "pad", ("*",), pad),
    Kernel("DataMove", "concat", ("*",), concat),
    Kernel("DataMove", "copy", ("*",), copy),
    Kernel("DataMove", "transfer", ("*",), transfer),
    Kernel("Gather", "", ("*",), gather),
)
