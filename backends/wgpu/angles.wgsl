// Circular and hyperbolic functions and powers of float32, within the limits of N5; needs number, wide and functions.
// Sources: reduction by the bits of 2/pi after Payne and Hanek; polynomials after Cephes (sinf, asinf, atanf, sinhf,
// asinhf, acoshf, atanhf).

fn bits(x: f32) -> u32 { return bitcast<u32>(x); }
fn float(a: u32) -> f32 { return bitcast<f32>(a); }
fn size_of(a: u32) -> u32 { return a & 0x7fffffffu; }
fn root(x: f32) -> f32 { return float(square_root(bits(x))); }
fn ratio(x: f32, y: f32) -> f32 { return float(divide(bits(x), bits(y))); }
fn log_of(x: f32) -> f32 { return float(float_log(bits(x))); }
const HALF_PI = 1.57079637;
const LN2 = 0.693147182;

fn two_over_pi(word: u32) -> u32 {
    switch word {
        case 1u: { return 0xa2f9836eu; }
        case 2u: { return 0x4e441529u; }
        case 3u: { return 0xfc2757d1u; }
        case 4u: { return 0xf534ddc0u; }
        case 5u: { return 0xdb629599u; }
        case 6u: { return 0x3c439041u; }
        case 7u: { return 0xfe5163abu; }
        case 8u: { return 0xdebbc561u; }
        default: { return 0u; }
    }
}
fn two_over_pi_from(bit: u32) -> u32 {
    return left_wide(Wide(two_over_pi(bit / 32u + 1u), two_over_pi(bit / 32u)), bit % 32u).y;
}

// |x| = (quadrant + r) * pi / 2, |r| <= 1/2; the result is the angle r * pi / 2.
struct Angle { r: f32, quadrant: u32 }
fn reduced(a: u32) -> Angle {
    let x = number_float32(size_of(a));
    if (size_of(a) < 0x3f490fdbu) { return Angle(float(size_of(a)), 0u); }
    // x = m * 2^e. Bits of 2/pi that give multiples of four turns are skipped; one leading word is zero.
    let m = x.m >> 8u;
    let skip = u32(x.e + 8 - 2 + 32);
    let middle = multiply_wide(Wide(m, 0u), Wide(two_over_pi_from(skip + 32u), 0u));
    let low = multiply_wide(Wide(m, 0u), Wide(two_over_pi_from(skip + 64u), 0u));
    let high = Wide(0u, m * two_over_pi_from(skip));
    let turn = add_wide(add_wide(high, middle), Wide(low.y, 0u));
    let quadrant = ((turn.y >> 29u) + 1u) >> 1u;
    let rest = Wide(turn.x, turn.y - (quadrant << 30u));
    return Angle(float(pack_float32(number_int64(rest))) * 2.16840434e-19 * HALF_PI, quadrant & 3u);
}

fn sine(r: f32) -> f32 {
    let z = r * r;
    return ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * r + r;
}
fn cosine(r: f32) -> f32 {
    let z = r * r;
    return ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z - 0.5 * z + 1.0;
}
fn turned(a: Angle, quarter: u32) -> f32 {
    let quadrant = a.quadrant + quarter;
    let y = select(sine(a.r), cosine(a.r), (quadrant & 1u) == 1u);
    return select(y, -y, (quadrant & 2u) == 2u);
}
fn float_sin(a: u32) -> u32 {
    if (size_of(a) >= INFINITY) { return NAN; }
    if (size_of(a) < 0x39000000u) { return a; }
    return bits(turned(reduced(a), 0u)) ^ (a & SIGN);
}
fn float_cos(a: u32) -> u32 {
    if (size_of(a) >= INFINITY) { return NAN; }
    return bits(turned(reduced(a), 1u));
}
fn float_tan(a: u32) -> u32 {
    if (size_of(a) >= INFINITY) { return NAN; }
    if (size_of(a) < 0x39000000u) { return a; }
    let angle = reduced(a);
    return divide(bits(turned(angle, 0u)), bits(turned(angle, 1u))) ^ (a & SIGN);
}

// asin of 0 <= x <= 1/2, z = x * x.
fn arcsine(x: f32) -> f32 {
    let z = x * x;
    var s = 4.2163199048e-2;
    s = s * z + 2.4181311049e-2;
    s = s * z + 4.5470025998e-2;
    s = s * z + 7.4953002686e-2;
    s = s * z + 1.6666752422e-1;
    return s * z * x + x;
}
fn float_asin(a: u32) -> u32 {
    let x = float(size_of(a));
    if (is_nan(a) || size_of(a) > 0x3f800000u) { return NAN; }
    if (size_of(a) < 0x39000000u) { return a; }
    if (x <= 0.5) { return bits(arcsine(x)) | (a & SIGN); }
    return bits(HALF_PI - 2.0 * arcsine(root(0.5 * (1.0 - x)))) | (a & SIGN);
}
fn float_acos(a: u32) -> u32 {
    let x = float(size_of(a));
    if (is_nan(a) || size_of(a) > 0x3f800000u) { return NAN; }
    if (x <= 0.5) { return bits(HALF_PI - select(arcsine(x), -arcsine(x), a >= SIGN)); }
    let y = 2.0 * arcsine(root(0.5 * (1.0 - x)));
    return bits(select(y, 2.0 * HALF_PI - y, a >= SIGN));
}
fn float_atan(a: u32) -> u32 {
    if (is_nan(a)) { return a; }
    if (size_of(a) < 0x39000000u) { return a; }
    if (size_of(a) > 0x4e800000u) { return bits(HALF_PI) | (a & SIGN); }
    var x = float(size_of(a));
    var y = 0.0;
    if (x > 2.41421366) {
        y = HALF_PI;
        x = -ratio(1.0, x);
    } else if (x > 0.414213568) {
        y = 0.5 * HALF_PI;
        x = ratio(x - 1.0, x + 1.0);
    }
    let z = x * x;
    let s = ((8.05374449538e-2 * z - 1.38776856032e-1) * z + 1.99777106478e-1) * z - 3.33329491539e-1;
    return bits(y + (s * z * x + x)) | (a & SIGN);
}

fn float_sinh(a: u32) -> u32 {
    let x = float(size_of(a));
    if (is_nan(a) || size_of(a) < 0x39000000u) { return a; }
    if (size_of(a) > 0x42b20000u) { return INFINITY | (a & SIGN); }
    let z = x * x;
    if (x < 1.0) {
        let s = (2.03721912945e-4 * z + 8.33028376239e-3) * z + 1.66667160211e-1;
        return bits(s * z * x + x) | (a & SIGN);
    }
    let e = exp_inside(x);
    return bits(0.5 * e - ratio(0.5, e)) | (a & SIGN);
}
fn float_cosh(a: u32) -> u32 {
    if (is_nan(a)) { return a; }
    if (size_of(a) > 0x42b20000u) { return INFINITY; }
    let e = exp_inside(float(size_of(a)));
    return bits(0.5 * e + ratio(0.5, e));
}
fn float_asinh(a: u32) -> u32 {
    let x = float(size_of(a));
    if (size_of(a) >= INFINITY || size_of(a) < 0x39000000u) { return a; }
    let z = x * x;
    if (x < 0.5) {
        let s = ((2.0122003309e-2 * z - 4.2699340972e-2) * z + 7.4847586088e-2) * z - 1.6666288134e-1;
        return bits(s * z * x + x) | (a & SIGN);
    }
    if (x > 10000.0) { return bits(log_of(x) + LN2) | (a & SIGN); }
    return bits(log_of(x + root(z + 1.0))) | (a & SIGN);
}
fn float_acosh(a: u32) -> u32 {
    if (is_nan(a) || a >= SIGN || a < 0x3f800000u) { return NAN; }
    if (a == INFINITY) { return a; }
    let x = float(a);
    if (x > 10000.0) { return bits(log_of(x) + LN2); }
    let t = x - 1.0;
    if (t < 0.5) {
        var s = 1.7596881071e-3;
        s = s * t - 7.5272886713e-3;
        s = s * t + 2.6454905019e-2;
        s = s * t - 1.1784741703e-1;
        s = s * t + 1.4142135263;
        return bits(s * root(t));
    }
    return bits(log_of(x + root(x * x - 1.0)));
}
fn float_atanh(a: u32) -> u32 {
    let x = float(size_of(a));
    if (is_nan(a) || size_of(a) > 0x3f800000u) { return NAN; }
    if (size_of(a) == 0x3f800000u) { return INFINITY | (a & SIGN); }
    if (size_of(a) < 0x39000000u) { return a; }
    if (x < 0.5) {
        let z = x * x;
        var s = 1.81740078349e-1;
        s = s * z + 8.24370301058e-2;
        s = s * z + 1.46691431730e-1;
        s = s * z + 1.99782164500e-1;
        s = s * z + 3.33337300303e-1;
        return bits(s * z * x + x) | (a & SIGN);
    }
    return bits(0.5 * log_of(ratio(1.0 + x, 1.0 - x))) | (a & SIGN);
}

// a^b = exp(b log |a|), negative for a negative a and an odd b.
fn float_pow(a: u32, b: u32) -> u32 {
    if (size_of(b) == 0u || a == 0x3f800000u) { return 0x3f800000u; }
    if (is_nan(a) || is_nan(b)) { return NAN; }
    let exponent = float(b);
    let whole = is_whole(b) || bits(trunc(exponent)) == b;
    // From 2^24 on every float is even.
    let odd = whole && size_of(b) < 0x4b800000u && (i32(exponent) & 1) == 1;
    let sign = select(0u, SIGN, a >= SIGN && odd);
    if (size_of(a) == 0u) { return sign | select(0u, INFINITY, b >= SIGN); }
    if (a >= SIGN && !whole && size_of(a) < INFINITY) { return NAN; }
    return sign | float_exp(times(b, float_log(size_of(a))));
}
