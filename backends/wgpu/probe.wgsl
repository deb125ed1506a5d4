// p[2] what to measure; element i of the answer from x0[2i], x0[2i+1]: operands that no compiler can see.
fn element(i: u32) -> u32 {
    let a = bitcast<f32>(x0[2u * i]);
    let b = bitcast<f32>(x0[2u * i + 1u]);
    if (p[2] == 0u) { return bitcast<u32>(a / b); }
    if (p[2] == 1u) { return bitcast<u32>(a * a + b); }
    if (p[2] == 2u) { return bitcast<u32>(a * b); }
    if (p[2] == 3u) { return bitcast<u32>(f32(bitcast<i32>(x0[2u * i]))); }
    if (p[2] == 4u) { return bitcast<u32>(round(a)); }
    if (p[2] == 5u) { return bitcast<u32>(max(a, b)); }
    if (p[2] == 6u) { return bitcast<u32>(a + b); }
    var sum = 0u;
    for (var k = 0u; k < x0[2u * i]; k++) { sum += x0[2u * i + 1u]; }
    return sum;
}
