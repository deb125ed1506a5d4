// exp, log, tanh, sigmoid and erf of float32 within the limits of N5 (docs/numerics.md), special values by their bits.
// The builtins' guarantees are looser: exp 3 + 2|x| ulp, log an absolute 2^-21, tanh none.
// Sources: ranges and polynomials after Cephes (expf, tanhf) and FreeBSD msun (logf); erf 7.1.26 of Abramowitz and Stegun.

fn power_of_two(n: i32) -> f32 { return bitcast<f32>(u32(n + 127) << 23u); }

// exp for -104 < x < 89.
fn exp_inside(x: f32) -> f32 {
    let n = round(x * 1.44269504);
    let r = (x - n * 0.693359375) + n * 2.12194440e-4;
    var s = 1.9875691500e-4;
    s = s * r + 1.3981999507e-3;
    s = s * r + 8.3334519073e-3;
    s = s * r + 4.1665795894e-2;
    s = s * r + 1.6666665459e-1;
    s = s * r + 5.0000001201e-1;
    let y = (s * (r * r) + r) + 1.0;
    // Two factors: 2^128 is no float32, and 2^-149 would be lost.
    let half = i32(n) / 2;
    return y * power_of_two(half) * power_of_two(i32(n) - half);
}

// exp(-|x|)
fn decay(a: u32) -> f32 {
    if ((a & 0x7fffffffu) > 0x42d00000u) { return 0.0; }
    return exp_inside(-bitcast<f32>(a & 0x7fffffffu));
}

fn float_exp(a: u32) -> u32 {
    if (is_nan(a)) { return a; }
    if (a < SIGN && a > 0x42b17218u) { return INFINITY; }
    if (a > 0xc2d00000u) { return 0u; }
    return bitcast<u32>(exp_inside(bitcast<f32>(a)));
}

fn float_log(a: u32) -> u32 {
    let x = number_float32(a);
    if (is_nan(a)) { return a; }
    if (x.m == 0u) { return SIGN | INFINITY; }
    if (x.sign != 0u) { return NAN; }
    if (x.e == BEYOND) { return a; }
    // x = 2^k * m with m in [sqrt(1/2), sqrt(2)).
    let high = u32(x.m >= 0xb504f334u);
    let k = f32(x.e + 31 + i32(high));
    let m = bitcast<f32>(((127u - high) << 23u) | ((x.m >> 8u) & 0x7fffffu));
    let f = m - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let r = w * (0.40000972152 + w * 0.24279078841) + z * (0.66666662693 + w * 0.28498786688);
    let half = 0.5 * f * f;
    return bitcast<u32>(s * (half + r) + k * 9.0580006145e-6 - half + f + k * 6.9313812256e-1);
}

fn float_tanh(a: u32) -> u32 {
    let magnitude = a & 0x7fffffffu;
    let sign = a & SIGN;
    if (is_nan(a)) { return a; }
    if (magnitude > 0x41200000u) { return sign | 0x3f800000u; }
    // Below 2^-13 the cube is lost anyway; subnormals stay as they are.
    if (magnitude < 0x39000000u) { return a; }
    let x = bitcast<f32>(magnitude);
    if (magnitude >= 0x3f200000u) { return sign | bitcast<u32>(1.0 - 2.0 / (exp_inside(2.0 * x) + 1.0)); }
    let z = x * x;
    var s = -5.70498872745e-3;
    s = s * z + 2.06390887954e-2;
    s = s * z - 5.37397155531e-2;
    s = s * z + 1.33314422036e-1;
    s = s * z - 3.33332819422e-1;
    return sign | bitcast<u32>(s * z * x + x);
}

fn float_sigmoid(a: u32) -> u32 {
    if (is_nan(a)) { return a; }
    let e = decay(a);
    return divide(select(0x3f800000u, bitcast<u32>(e), a >= SIGN), bitcast<u32>(1.0 + e));
}

fn float_erf(a: u32) -> u32 {
    let magnitude = a & 0x7fffffffu;
    let sign = a & SIGN;
    if (is_nan(a)) { return a; }
    if (magnitude > 0x40900000u) { return sign | 0x3f800000u; }
    let x = bitcast<f32>(magnitude);
    let z = x * x;
    if (magnitude < 0x3f000000u) {
        var s = -8.5483291e-4;
        s = s * z + 5.2239776e-3;
        s = s * z - 2.6866171e-2;
        s = s * z + 1.1283792e-1;
        s = s * z - 3.7612638e-1;
        return sign | bitcast<u32>((s * z + 1.1283792) * x);
    }
    let t = 1.0 / (1.0 + 0.3275911 * x);
    var s = 1.061405429;
    s = s * t - 1.453152027;
    s = s * t + 1.421413741;
    s = s * t - 0.284496736;
    s = s * t + 0.254829592;
    return sign | bitcast<u32>(1.0 - s * t * exp_inside(-z));
}
