// Numbers in integers: exact on every device, whatever it flushes, contracts or assumes about NaN.
// float32 travels as its bits in a u32; 64-bit types as vec2(low, high).

const SIGN = 0x80000000u;
const NAN = 0x7fc00000u;
const INFINITY = 0x7f800000u;

// sign, m * 2^e: m has bit 31 set, bit 0 is sticky; m = 0 is zero, e = BEYOND infinity, e = NO_NUMBER NaN.
struct Number { sign: u32, m: u32, e: i32 }
const BEYOND = 100000;
const NO_NUMBER = 100001;

fn is_nan(v: u32) -> bool { return (v & 0x7fffffffu) > INFINITY; }

fn sticky_right(m: u32, s: u32) -> u32 {
    if (s == 0u) { return m; }
    if (s > 31u) { return u32(m != 0u); }
    return (m >> s) | u32((m << (32u - s)) != 0u);
}

// The magnitude's bits in a float of `width` significant bits, rounded half to even; subnormals and overflow included.
fn pack(n: Number, width: u32, bias: i32, top: u32) -> u32 {
    let infinity = top << (width - 1u);
    if (n.m == 0u) { return 0u; }
    if (n.e == NO_NUMBER) { return infinity | (1u << (width - 2u)); }
    let biased = n.e + 31 + bias;
    if (biased >= i32(top)) { return infinity; }
    let m = sticky_right(n.m, u32(max(1 - biased, 0)));
    let drop = 32u - width;
    let half = 1u << (drop - 1u);
    let rest = m & ((1u << drop) - 1u);
    let kept = m >> drop;
    let up = u32(rest > half || (rest == half && (kept & 1u) == 1u));
    return (u32(max(biased, 1) - 1) << (width - 1u)) + kept + up;
}

fn pack_float32(n: Number) -> u32 { return n.sign | pack(n, 24u, 127, 255u); }
fn pack_float16(n: Number) -> u32 { return (n.sign >> 16u) | pack(n, 11u, 15, 31u); }
fn pack_bfloat16(n: Number) -> u32 { return (n.sign >> 16u) | pack(n, 8u, 127, 255u); }

fn scaled(sign: u32, m: u32, e: i32) -> Number {
    let shift = countLeadingZeros(m);
    return Number(sign, select(m << shift, 0u, m == 0u), e - i32(shift));
}

fn number_float32(v: u32) -> Number {
    let e = (v >> 23u) & 0xffu;
    let fraction = v & 0x7fffffu;
    if (e == 255u) { return Number(v & SIGN, SIGN, select(BEYOND, NO_NUMBER, fraction != 0u)); }
    if (e == 0u) { return scaled(v & SIGN, fraction, -149); }
    return Number(v & SIGN, (fraction << 8u) | SIGN, i32(e) - 158);
}

fn number_integer(negative: bool, magnitude: u32) -> Number { return scaled(select(0u, SIGN, negative), magnitude, 0); }

fn from_float16(h: u32) -> u32 {
    let sign = (h & 0x8000u) << 16u;
    let e = (h >> 10u) & 31u;
    let fraction = h & 0x3ffu;
    if (e == 31u) { return sign | INFINITY | (fraction << 13u); }
    if (e == 0u) { return pack_float32(scaled(sign, fraction, -24)); }
    return sign | ((e + 112u) << 23u) | (fraction << 13u);
}

fn to_float16(v: u32) -> u32 { return pack_float16(number_float32(v)); }
fn to_bfloat16(v: u32) -> u32 { return pack_bfloat16(number_float32(v)); }

// a / b correctly rounded: WGSL allows its own division 2.5 ulp.
fn divide(a: u32, b: u32) -> u32 {
    let sign = (a ^ b) & SIGN;
    let x = number_float32(a);
    let y = number_float32(b);
    let invalid = (x.m == 0u && y.m == 0u) || (x.e == BEYOND && y.e == BEYOND);
    if (is_nan(a) || is_nan(b) || invalid) { return NAN; }
    if (x.m == 0u || y.e == BEYOND) { return sign; }
    if (y.m == 0u || x.e == BEYOND) { return sign | INFINITY; }
    // Mantissas of 24 bits: the quotient of 25 bits comes as 1 and three digits of 8.
    var m = x.m >> 8u;
    let d = y.m >> 8u;
    var e = x.e - y.e;
    if (m < d) { m <<= 1u; e -= 1; }
    var quotient = 1u;
    var rest = m - d;
    for (var digit = 0; digit < 3; digit++) {
        rest <<= 8u;
        quotient = (quotient << 8u) | (rest / d);
        rest %= d;
    }
    return sign | pack_float32(Number(0u, (quotient << 7u) | u32(rest != 0u), e - 31));
}

// Correctly rounded square root: the builtin inherits 2 ulp from inverseSqrt and 2.5 from a division.
fn square_root(v: u32) -> u32 {
    let x = number_float32(v);
    if (is_nan(v) || x.m == 0u) { return v; }
    if (x.sign != 0u) { return NAN; }
    if (x.e == BEYOND) { return v; }
    // x = m * 2^e, e even, m in [2^23, 2^25); q = floor(sqrt(m * 2^23)) has 24 bits.
    var e = x.e + 8;
    var m = x.m >> 8u;
    if ((e & 1) == 0) { m <<= 1u; e -= 1; }
    // Now e is odd: x = (m * 2^23) * 2^(e - 23).
    var q = u32(sqrt(f32(m)) * 2896.3093);
    var rest = bitcast<i32>((m << 23u) - q * q);
    for (var step = 0; step < 16 && rest < 0; step++) { q -= 1u; rest += i32(2u * q + 1u); }
    for (var step = 0; step < 16 && rest > i32(2u * q); step++) { rest -= i32(2u * q + 1u); q += 1u; }
    q += u32(rest > i32(q));
    return pack_float32(scaled(0u, q, (e - 23) / 2));
}

// max and min of floats: NaN wins.
fn order(v: u32) -> i32 { return bitcast<i32>(select(v, v ^ 0x7fffffffu, v >= SIGN)); }
fn float_max(a: u32, b: u32) -> u32 {
    if (is_nan(a)) { return a; }
    if (is_nan(b)) { return b; }
    return select(b, a, order(a) > order(b));
}
fn float_min(a: u32, b: u32) -> u32 {
    if (is_nan(a)) { return a; }
    if (is_nan(b)) { return b; }
    return select(b, a, order(a) < order(b));
}
fn float_relu(a: u32) -> u32 { return select(a, 0u, a >= SIGN && !is_nan(a)); }

fn without_sign_of_zero(a: u32) -> u32 { return select(a, 0u, a == SIGN); }
fn float_below(a: u32, b: u32) -> bool {
    return !is_nan(a) && !is_nan(b) && order(without_sign_of_zero(a)) < order(without_sign_of_zero(b));
}
fn float_equal(a: u32, b: u32) -> bool { return !is_nan(a) && without_sign_of_zero(a) == without_sign_of_zero(b); }
fn float_sign(a: u32) -> u32 {
    if (is_nan(a) || (a & 0x7fffffffu) == 0u) { return a; }
    return (a & SIGN) | 0x3f800000u;
}
// From 2^23 on every float is whole; infinity and NaN stay too.
fn is_whole(a: u32) -> bool { return (a & 0x7fffffffu) >= 0x4b000000u; }
fn float_floor(a: u32) -> u32 { return select(bitcast<u32>(floor(bitcast<f32>(a))), a, is_whole(a)); }
fn float_ceil(a: u32) -> u32 { return select(bitcast<u32>(ceil(bitcast<f32>(a))), a, is_whole(a)); }
fn float_round(a: u32) -> u32 { return select(bitcast<u32>(round(bitcast<f32>(a))), a, is_whole(a)); }

// a - trunc(a / b) * b, exact: eight bits of the quotient at a time.
fn float_fmod(a: u32, b: u32) -> u32 {
    let x = number_float32(a);
    let y = number_float32(b);
    if (is_nan(a) || is_nan(b) || x.e == BEYOND || y.m == 0u) { return NAN; }
    if (x.m == 0u || y.e == BEYOND || x.e < y.e) { return a; }
    let d = y.m >> 8u;
    var rest = (x.m >> 8u) % d;
    for (var left = u32(x.e - y.e); left > 0u; left -= min(left, 8u)) { rest = (rest << min(left, 8u)) % d; }
    return pack_float32(scaled(a & SIGN, rest, y.e + 8));
}

fn plus(a: u32, b: u32) -> u32 { return bitcast<u32>(bitcast<f32>(a) + bitcast<f32>(b)); }
fn minus(a: u32, b: u32) -> u32 { return bitcast<u32>(bitcast<f32>(a) - bitcast<f32>(b)); }
fn times(a: u32, b: u32) -> u32 { return bitcast<u32>(bitcast<f32>(a) * bitcast<f32>(b)); }

// clip(rint(q) + zero_point, low, high); NaN gives low. `round` is half to even by WGSL's own rule.
fn quantized(q: u32, zero_point: u32, low: i32, high: i32) -> u32 {
    if (is_nan(q)) { return bitcast<u32>(low); }
    // Clamp to 2^17 in the bits, so that infinity never meets an arithmetic instruction.
    let clamped = (q & SIGN) | min(q & 0x7fffffffu, 0x48000000u);
    return bitcast<u32>(clamp(i32(round(bitcast<f32>(clamped))) + bitcast<i32>(zero_point), low, high));
}

fn integer_max(a: u32, b: u32) -> u32 { return bitcast<u32>(max(bitcast<i32>(a), bitcast<i32>(b))); }
fn integer_min(a: u32, b: u32) -> u32 { return bitcast<u32>(min(bitcast<i32>(a), bitcast<i32>(b))); }
fn integer_abs(a: u32) -> u32 { return select(a, 0u - a, a >= SIGN); }
fn integer_relu(a: u32) -> u32 { return select(a, 0u, a >= SIGN); }
fn integer_sign(a: u32) -> u32 { return select(u32(a != 0u), 0xffffffffu, a >= SIGN); }
fn integer_fmod(a: u32, b: u32) -> u32 { return select(a - integer_divide(a, b) * b, 0u, b == 0u); }
fn integer_mod(a: u32, b: u32) -> u32 {
    let rest = integer_fmod(a, b);
    return select(rest, rest + b, rest != 0u && ((rest ^ b) & SIGN) != 0u);
}
fn integer_divide(a: u32, b: u32) -> u32 {
    let magnitude = integer_abs(a) / max(integer_abs(b), 1u);
    return select(magnitude, 0u - magnitude, ((a ^ b) & SIGN) != 0u);
}
// 0 where b is negative.
fn integer_pow(a: u32, b: u32) -> u32 {
    if (b >= SIGN) { return 0u; }
    var power = 1u;
    var square = a;
    for (var left = b; left > 0u; left >>= 1u) {
        if ((left & 1u) == 1u) { power *= square; }
        square *= square;
    }
    return power;
}
