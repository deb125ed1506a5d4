"""The frame around every kernel: bindings, packed storage, and which invocation computes which word.

A tensor is a storage buffer of 32-bit words laid out as numpy lays it out: types of 8 and 16 bits are packed,
the last word is filled up. An invocation writes one whole word (4, 2 or 1 elements), so that no two of them share
one. Binding 0 holds the parameters `p`: p[0] invocations, p[1] elements, from p[2] what the kernel defines. Then
come the inputs `x0`, `x1`, .. with `load0(i)`, .. and last the outputs `y`, `y1`, ...
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import resources

from opgauge.reference_engine import dtypes as dt

GROUP = 64
WORD = 4
RAW = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
# Types whose buffer is no packed array of elements.
VECTORS = {"vec2": "vec2<u32>", "vec4": "vec4<u32>", "vec4f": "vec4<f32>"}

DECODE = {
    "int8": "bitcast<u32>(bitcast<i32>({0} << 24u) >> 24u)",
    "int16": "bitcast<u32>(bitcast<i32>({0} << 16u) >> 16u)",
    "float16": "from_float16({0})",
    "bfloat16": "({0} << 16u)",
    **{f"int{n}": f"bitcast<u32>(bitcast<i32>({{0}} << {32 - n}u) >> {32 - n}u)" for n in (2, 4)},
    **{f"uint{n}": f"({{0}} & {2**n - 1}u)" for n in (2, 4)},
}
ENCODE = {
    **{f"{sign}int{n}": f"({{0}} & {2**n - 1}u)" for sign in ("", "u") for n in (2, 4)},  # one a byte
    "int8": "({0} & 0xffu)",
    "uint8": "({0} & 0xffu)",
    "bool": "({0} & 0xffu)",
    "int16": "({0} & 0xffffu)",
    "uint16": "({0} & 0xffffu)",
    "float16": "to_float16({0})",
    "bfloat16": "to_bfloat16({0})",
}


def width(dtype: str) -> int:
    return dt.numpy_dtype(dtype).itemsize


def raw_of(dtype: str) -> str:
    """The unsigned type of the same size."""
    return RAW[width(dtype)]


def element_type(dtype: str) -> str:
    return VECTORS.get(dtype) or ("vec2<u32>" if width(dtype) == 8 else "u32")


@functools.cache
def text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text()


def load(index: int, dtype: str) -> str:
    """fn loadN(i): element i of input N as bits; narrow integers extended, narrow floats widened to float32."""
    if dtype in VECTORS:
        return ""
    size = width(dtype)
    got = f"x{index}[i]"
    if size < WORD:
        per_word = WORD // size
        got = f"((x{index}[i / {per_word}u] >> ((i % {per_word}u) * {8 * size}u)) & {hex(256**size - 1)}u)"
    return f"fn load{index}(i: u32) -> {element_type(dtype)} {{ return {DECODE.get(dtype, '{0}').format(got)}; }}\n"


def frame(reads: Sequence[str], writes: Sequence[str], body: str, main: str, libraries: Sequence[str] = ()) -> str:
    """A shader: libraries, bindings, `body`, and an entry point that runs `main` for each w < p[0]."""
    bindings = ["@group(0) @binding(0) var<storage, read> p: array<u32>;\n"]
    for n, dtype in enumerate(reads):
        bindings.append(f"@group(0) @binding({n + 1}) var<storage, read> x{n}: array<{element_type(dtype)}>;\n")
        bindings.append(load(n, dtype))
    for n, dtype in enumerate(writes):
        binding, name = 1 + len(reads) + n, f"y{n or ''}"
        bindings.append(
            f"@group(0) @binding({binding}) var<storage, read_write> {name}: array<{element_type(dtype)}>;\n"
        )
    return f"""{"".join(text(f"{name}.wgsl") for name in ("number", *libraries))}
{"".join(bindings)}
{body}
@compute @workgroup_size({GROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {{
    // 65,535 workgroups are allowed along one dimension: they are spread over two.
    let w = (group.y * groups.x + group.x) * {GROUP}u + local;
    if (w >= p[0]) {{ return; }}
{main}
}}
"""


def per_element(
    reads: Sequence[str], write: str, body: str, libraries: Sequence[str] = (), also: Sequence[str] = ()
) -> str:
    """A shader whose `body` defines element(i), the bits of output element i; `also` further outputs y1, .."""
    size = width(write)
    encoded = ENCODE.get(write, "{0}").format("element(i)")
    if size >= WORD:
        main = f"    let i = w;\n    y[w] = {encoded};"
    else:
        main = f"""    var word = 0u;
    for (var j = 0u; j < {WORD // size}u; j++) {{
        let i = w * {WORD // size}u + j;
        if (i < p[1]) {{ word |= {encoded} << (j * {8 * size}u); }}
    }}
    y[w] = word;"""
    return frame(reads, (write, *also), body, main, libraries)


def words(size: int, dtype: str) -> int:
    """Invocations for `size` elements under `per_element`."""
    return -(-size * width(dtype) // max(WORD, width(dtype)))
