//! The noise behind every choice, and the two functions it needs; the same bits on every machine.
//!
//! Everything here is integer arithmetic or single IEEE operations on `f32`, rounded to nearest,
//! none fused, so a device that computes them one by one gets the same bits (CUDA: `__fadd_rn`,
//! `__fmul_rn`, `__fdiv_rn`, `__uint2float_rn`, which the compiler does not contract).

/// Gumbel noise of one row: a pure function of (seed, position, token).
///
/// ```text
/// key  = mix64(mix64(seed) ^ position)             position: of the token that is chosen
/// x    = token ^ low(key)                                      32 bits, arithmetic wraps
/// x    = (x ^ (x >> 16)) * 0x7feb352d
/// x    = ((x ^ (x >> 15)) + high(key)) * 0x846ca68b
/// bits = x ^ (x >> 16)
/// v    = min((f32(bits) + 0.5) * 2^-32, 1 - 2^-24)             uniform in (0, 1)
/// w    = 1 - v
/// e    = w == 1 ? v : v * (ln(w) / (w - 1))                    -ln(1 - v): exponential
/// noise = -ln(e)                                               Gumbel
/// ```
///
/// `v` is fine near 0, where the large noise comes from: steps of 2^-32.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    low: u32,
    high: u32,
}

/// No noise is above this: a little more than 33 ln 2.
pub const NOISE_MAX: f32 = 33.1 * LN_2_ABOVE;

/// No noise is below this: a little less than -ln(24 ln 2).
pub const NOISE_MIN: f32 = -2.8125;

const LN_2_ABOVE: f32 = 0.6932;

impl Noise {
    pub fn new(seed: u64, position: u32) -> Self {
        let key = mix64(mix64(seed) ^ u64::from(position));
        let half = |it: u64| u32::try_from(it & u64::from(u32::MAX)).expect("masked");
        Self { low: half(key), high: half(key >> 32) }
    }

    /// The random bits of a token.
    ///
    /// A finaliser by C. Wellons ("hash prospector", 2018) with half of the key in its middle.
    pub fn bits(self, token: u32) -> u32 {
        let x = token ^ self.low;
        let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
        let x = (x ^ (x >> 15)).wrapping_add(self.high).wrapping_mul(0x846c_a68b);
        x ^ (x >> 16)
    }
}

/// The noise that `bits` stand for.
#[expect(clippy::cast_precision_loss, reason = "the rounding is part of the definition")]
pub fn gumbel(bits: u32) -> f32 {
    const TO_UNIT: f32 = 1.0 / 4_294_967_296.0;
    let v = ((bits as f32 + 0.5) * TO_UNIT).min(1.0 - f32::EPSILON / 2.0);
    let w = 1.0 - v;
    let e = if w == 1.0 { v } else { v * (ln(w) / (w - 1.0)) };
    -ln(e)
}

/// No less than [`gumbel`] of the same bits, and cheap. The noise is at most -ln v, and read as a
/// whole number the bits of a float rise at least as fast as its logarithm to base 2.
#[expect(clippy::cast_precision_loss, reason = "a bound needs no last place")]
#[expect(clippy::cast_possible_wrap, reason = "half of the range is positive")]
pub fn at_most(bits: u32) -> f32 {
    // Half the bits, so that they fit the signed numbers that every machine converts fast.
    let v = ((bits >> 1) as i32) as f32 + 0.25;
    let log_2 = (v.to_bits() as i32) as f32 * (1.0 / 8_388_608.0) - (127.0 + 31.0);
    log_2 * -LN_2_ABOVE + 1e-4
}

/// Natural logarithm of a positive normal number, within 2 units in the last place.
///
/// x = m 2^n with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh(s), s = (m - 1) / (m + 1).
#[expect(clippy::cast_precision_loss, clippy::cast_possible_wrap, reason = "small exponents")]
pub fn ln(x: f32) -> f32 {
    const SQRT_HALF_BITS: u32 = 0x3f35_04f3;
    let shifted = x.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let n = (shifted as i32) >> 23;
    let m = f32::from_bits((shifted & 0x007f_ffff) + SQRT_HALF_BITS);
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let series = z * (1.0 / 3.0 + z * (0.2 + z * (1.0 / 7.0 + z * (1.0 / 9.0))));
    let two_s = s + s;
    n as f32 * std::f32::consts::LN_2 + (two_s + two_s * series)
}

/// The exponential of a number that is not positive, within 2 units in the last place; 0 below
/// -87.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; the series of exp(r) to the seventh power. Free of
/// branches, so that a loop over it is compiled to whole registers.
pub fn exp(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to a whole number and leaves it in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let inside = if x < -87.0 { -87.0 } else { x };
    let rounded = inside * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (inside - n * LN_2_HIGH) - n * LN_2_LOW;
    let tail = 1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0)));
    let series = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * tail)));
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x < -87.0 { 0.0 } else { series * power }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, 2014), after its odd increment.
fn mix64(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
