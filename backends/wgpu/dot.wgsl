// dot4I8Packed for compilers that do not have it.
fn dot_bytes(a: u32, b: u32) -> i32 {
    let lanes = vec4<u32>(24u, 16u, 8u, 0u);
    let x = bitcast<vec4<i32>>(vec4<u32>(a) << lanes) >> vec4<u32>(24u);
    let y = bitcast<vec4<i32>>(vec4<u32>(b) << lanes) >> vec4<u32>(24u);
    return dot(x, y);
}
