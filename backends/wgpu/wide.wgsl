// int64, uint64 and float64 as vec2(low, high).

alias Wide = vec2<u32>;

fn add_wide(a: Wide, b: Wide) -> Wide {
    let low = a.x + b.x;
    return Wide(low, a.y + b.y + u32(low < a.x));
}
fn negate_wide(a: Wide) -> Wide { return add_wide(~a, Wide(1u, 0u)); }
fn subtract_wide(a: Wide, b: Wide) -> Wide { return add_wide(a, negate_wide(b)); }

fn multiply_wide(a: Wide, b: Wide) -> Wide {
    let al = a.x & 0xffffu;
    let ah = a.x >> 16u;
    let bl = b.x & 0xffffu;
    let bh = b.x >> 16u;
    let low = al * bl;
    let middle = ah * bl + (low >> 16u);
    let other = al * bh + (middle & 0xffffu);
    let high = ah * bh + (middle >> 16u) + (other >> 16u);
    return Wide((other << 16u) | (low & 0xffffu), high + a.x * b.y + a.y * b.x);
}

fn below_uint64(a: Wide, b: Wide) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }
fn below_int64(a: Wide, b: Wide) -> bool { return below_uint64(Wide(a.x, a.y ^ SIGN), Wide(b.x, b.y ^ SIGN)); }
fn max_uint64(a: Wide, b: Wide) -> Wide { if (below_uint64(a, b)) { return b; } return a; }
fn min_uint64(a: Wide, b: Wide) -> Wide { if (below_uint64(a, b)) { return a; } return b; }
fn max_int64(a: Wide, b: Wide) -> Wide { if (below_int64(a, b)) { return b; } return a; }
fn min_int64(a: Wide, b: Wide) -> Wide { if (below_int64(a, b)) { return a; } return b; }
fn abs_int64(a: Wide) -> Wide { if (a.y >= SIGN) { return negate_wide(a); } return a; }
fn relu_int64(a: Wide) -> Wide { if (a.y >= SIGN) { return Wide(0u, 0u); } return a; }

fn divide_uint64(a: Wide, b: Wide) -> Wide {
    if ((b.x | b.y) == 0u) { return Wide(0u, 0u); }
    var quotient = Wide(0u, 0u);
    var rest = Wide(0u, 0u);
    for (var bit = 63; bit >= 0; bit--) {
        let carry = rest.y >> 31u;
        let next = select(a.x, a.y, bit >= 32) >> u32(bit & 31);
        rest = Wide((rest.x << 1u) | (next & 1u), (rest.y << 1u) | (rest.x >> 31u));
        quotient = Wide(quotient.x << 1u, (quotient.y << 1u) | (quotient.x >> 31u));
        if (carry == 1u || !below_uint64(rest, b)) {
            rest = subtract_wide(rest, b);
            quotient.x |= 1u;
        }
    }
    return quotient;
}
fn divide_int64(a: Wide, b: Wide) -> Wide {
    let magnitude = divide_uint64(abs_int64(a), abs_int64(b));
    if (((a.y ^ b.y) & SIGN) != 0u) { return negate_wide(magnitude); }
    return magnitude;
}
fn equal_wide(a: Wide, b: Wide) -> bool { return a.x == b.x && a.y == b.y; }
fn is_zero_wide(a: Wide) -> bool { return (a.x | a.y) == 0u; }
fn mod_uint64(a: Wide, b: Wide) -> Wide {
    if (is_zero_wide(b)) { return b; }
    return subtract_wide(a, multiply_wide(divide_uint64(a, b), b));
}
fn fmod_int64(a: Wide, b: Wide) -> Wide {
    if (is_zero_wide(b)) { return b; }
    return subtract_wide(a, multiply_wide(divide_int64(a, b), b));
}
fn mod_int64(a: Wide, b: Wide) -> Wide {
    let rest = fmod_int64(a, b);
    if (!is_zero_wide(rest) && ((rest.y ^ b.y) & SIGN) != 0u) { return add_wide(rest, b); }
    return rest;
}
fn sign_int64(a: Wide) -> Wide {
    if (a.y >= SIGN) { return ~Wide(0u, 0u); }
    return Wide(u32(!is_zero_wide(a)), 0u);
}
fn shift_of(b: Wide) -> u32 { return select(b.x, 64u, b.y != 0u); }

fn is_nan_float64(a: Wide) -> bool {
    let high = a.y & 0x7fffffffu;
    return high > 0x7ff00000u || (high == 0x7ff00000u && a.x != 0u);
}
fn order_float64(a: Wide) -> Wide { if (a.y >= SIGN) { return Wide(~a.x, a.y ^ 0x7fffffffu); } return a; }
fn max_float64(a: Wide, b: Wide) -> Wide {
    if (is_nan_float64(a)) { return a; }
    if (is_nan_float64(b) || below_int64(order_float64(a), order_float64(b))) { return b; }
    return a;
}
fn min_float64(a: Wide, b: Wide) -> Wide {
    if (is_nan_float64(a)) { return a; }
    if (is_nan_float64(b) || below_int64(order_float64(b), order_float64(a))) { return b; }
    return a;
}
fn add_zero(a: Wide) -> Wide { if (a.x == 0u && a.y == SIGN) { return Wide(0u, 0u); } return a; }
fn below_float64(a: Wide, b: Wide) -> bool {
    let ordered = below_int64(order_float64(add_zero(a)), order_float64(add_zero(b)));
    return ordered && !is_nan_float64(a) && !is_nan_float64(b);
}
fn equal_float64(a: Wide, b: Wide) -> bool { return equal_wide(add_zero(a), add_zero(b)) && !is_nan_float64(a); }
fn sign_float64(a: Wide) -> Wide {
    if (is_nan_float64(a) || is_zero_wide(abs_float64(a))) { return a; }
    return Wide(0u, (a.y & SIGN) | 0x3ff00000u);
}
fn neg_float64(a: Wide) -> Wide { return Wide(a.x, a.y ^ SIGN); }
fn abs_float64(a: Wide) -> Wide { return Wide(a.x, a.y & 0x7fffffffu); }
fn relu_float64(a: Wide) -> Wide {
    if (a.y >= SIGN && !is_nan_float64(a)) { return Wide(0u, 0u); }
    return a;
}

fn left_wide(a: Wide, s: u32) -> Wide {
    if (s == 0u) { return a; }
    if (s >= 64u) { return Wide(0u, 0u); }
    if (s >= 32u) { return Wide(0u, a.x << (s - 32u)); }
    return Wide(a.x << s, (a.y << s) | (a.x >> (32u - s)));
}
fn right_wide(a: Wide, s: u32) -> Wide {
    if (s == 0u) { return a; }
    if (s >= 64u) { return Wide(0u, 0u); }
    if (s >= 32u) { return Wide(a.y >> (s - 32u), 0u); }
    return Wide((a.x >> s) | (a.y << (32u - s)), a.y >> s);
}
fn zeros_wide(a: Wide) -> u32 { return select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u); }

fn signed_wide(a: u32) -> Wide { return Wide(a, select(0u, 0xffffffffu, a >= SIGN)); }
fn unsigned_wide(a: u32) -> Wide { return Wide(a, 0u); }

// A 64-bit integer as a Number: what its 32 leading bits leave out is sticky.
fn number_uint64(a: Wide) -> Number {
    let s = zeros_wide(a);
    let m = left_wide(a, s);
    return Number(0u, m.y | u32(m.x != 0u), 32 - i32(s));
}
fn number_int64(a: Wide) -> Number {
    let n = number_uint64(abs_int64(a));
    return Number(a.y & SIGN, n.m, n.e);
}
fn number_float64(a: Wide) -> Number {
    let sign = a.y & SIGN;
    let e = (a.y >> 20u) & 0x7ffu;
    if (is_nan_float64(a)) { return Number(sign, SIGN, NO_NUMBER); }
    if (e == 0x7ffu) { return Number(sign, SIGN, BEYOND); }
    // Subnormal float64 lies below half of the smallest float32.
    if (e == 0u) { return Number(sign, 0u, 0); }
    return Number(sign, SIGN | ((a.y & 0xfffffu) << 11u) | (a.x >> 21u) | u32((a.x & 0x1fffffu) != 0u), i32(e) - 1054);
}

fn float64_uint64(a: Wide) -> Wide {
    if ((a.x | a.y) == 0u) { return a; }
    let s = zeros_wide(a);
    let m = left_wide(a, s);
    let rest = m.x & 0x7ffu;
    var kept = right_wide(m, 11u);
    if (rest > 0x400u || (rest == 0x400u && (kept.x & 1u) == 1u)) { kept = add_wide(kept, Wide(1u, 0u)); }
    // The leading bit of `kept` adds one to the exponent.
    return add_wide(kept, Wide(0u, (1085u - s) << 20u));
}
fn float64_int64(a: Wide) -> Wide {
    let magnitude = float64_uint64(abs_int64(a));
    return Wide(magnitude.x, magnitude.y | (a.y & SIGN));
}
fn float64_float32(v: u32) -> Wide {
    let n = number_float32(v);
    if (n.m == 0u) { return Wide(0u, n.sign); }
    if (n.e == NO_NUMBER) { return Wide(0u, n.sign | 0x7ff80000u); }
    if (n.e == BEYOND) { return Wide(0u, n.sign | 0x7ff00000u); }
    return Wide(n.m << 21u, n.sign | ((u32(n.e + 1053) << 20u) + (n.m >> 11u)));
}

// Truncate toward zero and clamp to [low, high]; NaN gives 0.
fn truncate_float64(a: Wide, low: Wide, high: Wide, is_signed: bool) -> Wide {
    if (is_nan_float64(a)) { return Wide(0u, 0u); }
    let negative = a.y >= SIGN;
    let e = i32((a.y >> 20u) & 0x7ffu) - 1075;
    let m = Wide(a.x, (a.y & 0xfffffu) | 0x100000u);
    if (e <= -53) { return Wide(0u, 0u); }
    if (negative && !is_signed) { return low; }
    if (e > 11 || (is_signed && e > 10)) { if (negative) { return low; } return high; }
    var whole = left_wide(m, u32(max(e, 0)));
    if (e < 0) { whole = right_wide(m, u32(-e)); }
    if (!is_signed) { return min_uint64(whole, high); }
    if (negative) { whole = negate_wide(whole); }
    return max_int64(min_int64(whole, high), low);
}

// 0 where b is negative.
fn pow_int64(a: Wide, b: Wide) -> Wide {
    if (b.y >= SIGN) { return Wide(0u, 0u); }
    var power = Wide(1u, 0u);
    var square = a;
    for (var left = b; !is_zero_wide(left); left = right_wide(left, 1u)) {
        if ((left.x & 1u) == 1u) { power = multiply_wide(power, square); }
        square = multiply_wide(square, square);
    }
    return power;
}
