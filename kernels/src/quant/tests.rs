#![expect(clippy::cast_possible_truncation, reason = "the numbers are made to fit")]
#![expect(clippy::cast_sign_loss, clippy::cast_possible_wrap, reason = "bytes are stored raw")]

use super::*;

fn half_bytes(value: f32) -> [u8; 2] {
    half::f16::from_f32(value).to_le_bytes()
}

fn check(dtype: Dtype, bytes: &[u8], expected: impl Fn(usize) -> f32) {
    let mut out = vec![f32::NAN; dtype.block_len()];
    dequantize(dtype, bytes, &mut out).unwrap();
    for (i, &value) in out.iter().enumerate() {
        assert_eq!(value, expected(i), "{dtype:?} weight {i}");
    }
}

/// Sixteen bytes whose low nibbles are 0, 1, ... 15 and whose high nibbles are 15, 14, ... 0.
fn nibbles() -> Vec<u8> {
    (0..16).map(|j| j | (15 - j) << 4).collect()
}

fn nibble(i: usize) -> f32 {
    if i < 16 { i as f32 } else { (31 - i) as f32 }
}

#[test]
fn plain_numbers() {
    check(Dtype::F32, &1.5_f32.to_le_bytes(), |_| 1.5);
    check(Dtype::F16, &half_bytes(-0.25), |_| -0.25);
    check(Dtype::BF16, &half::bf16::from_f32(3.0).to_le_bytes(), |_| 3.0);
}

#[test]
fn four_bits() {
    let centred = [&half_bytes(0.5)[..], &nibbles()].concat();
    check(Dtype::Q4_0, &centred, |i| 0.5 * (nibble(i) - 8.0));
    let from_minimum = [&half_bytes(0.5)[..], &half_bytes(-3.0), &nibbles()].concat();
    check(Dtype::Q4_1, &from_minimum, |i| 0.5 * nibble(i) - 3.0);
}

#[test]
fn five_bits() {
    // The fifth bit of weights 0, 3 and 17.
    let high = (1_u32 | 1 << 3 | 1 << 17).to_le_bytes();
    let fifth = |i: usize| if [0, 3, 17].contains(&i) { 16.0 } else { 0.0 };
    let centred = [&half_bytes(0.25)[..], &high, &nibbles()].concat();
    check(Dtype::Q5_0, &centred, |i| 0.25 * (nibble(i) + fifth(i) - 16.0));
    let from_minimum = [&half_bytes(0.25)[..], &half_bytes(1.0), &high, &nibbles()].concat();
    check(Dtype::Q5_1, &from_minimum, |i| 0.25 * (nibble(i) + fifth(i)) + 1.0);
}

#[test]
fn eight_bits() {
    let quants: Vec<u8> = (0..32).map(|i| 128 + i * 8).map(|i: i32| i as u8).collect();
    let bytes = [&half_bytes(2.0)[..], &quants].concat();
    check(Dtype::Q8_0, &bytes, |i| 2.0 * f32::from(quants[i] as i8));
}

/// Scales 1, 2, 3, 60, 17, 34, 51, 63 and minimums 5, 6, 7, 8, 21, 38, 55, 40 in 6 bits each.
const SCALES: [u8; 8] = [1, 2, 3, 60, 17, 34, 51, 63];
const MINIMUMS: [u8; 8] = [5, 6, 7, 8, 21, 38, 55, 40];

fn k_scales() -> Vec<u8> {
    let high = |value: u8| (value >> 4) << 6;
    let mut packed = vec![0; 12];
    for i in 0..4 {
        packed[i] = SCALES[i] | high(SCALES[i + 4]);
        packed[i + 4] = MINIMUMS[i] | high(MINIMUMS[i + 4]);
        packed[i + 8] = (SCALES[i + 4] & 15) | (MINIMUMS[i + 4] & 15) << 4;
    }
    packed
}

#[test]
fn k_blocks_with_minimums() {
    // Weight i of the block has the low bits i % 13, and a fifth bit where i % 7 == 2.
    let low = |i: usize| (i % 13) as u8;
    let fifth = |i: usize| u8::from(i % 7 == 2);
    let mut nibbles = vec![0; 128];
    let mut high = vec![0; 32];
    for i in 0..256 {
        let (group, j) = (i / 32, i % 32);
        nibbles[group / 2 * 32 + j] |= low(i) << (group % 2 * 4);
        high[j] |= fifth(i) << group;
    }
    let head = [&half_bytes(0.5)[..], &half_bytes(0.25), &k_scales()].concat();
    let weight = |i: usize, quant: u8| {
        let (scale, minimum) = (SCALES[i / 32], MINIMUMS[i / 32]);
        0.5 * f32::from(scale) * f32::from(quant) - 0.25 * f32::from(minimum)
    };
    let q4 = [&head[..], &nibbles].concat();
    check(Dtype::Q4_K, &q4, |i| weight(i, low(i)));
    let q5 = [&head[..], &high, &nibbles].concat();
    check(Dtype::Q5_K, &q5, |i| weight(i, low(i) + 16 * fifth(i)));
}

#[test]
fn six_bits() {
    let quant = |i: usize| (i * 5 % 64) as u8;
    let mut bytes = vec![0; 210];
    for i in 0..256 {
        // Two halves of 128; in each the quarters 0 and 1 are low nibbles, 2 and 3 high ones.
        let (half, quarter, j) = (i / 128, i / 32 % 4, i % 32);
        bytes[half * 64 + quarter % 2 * 32 + j] |= (quant(i) & 15) << (quarter / 2 * 4);
        bytes[128 + half * 32 + j] |= (quant(i) >> 4) << (2 * quarter);
    }
    let scale = |i: usize| (i as i8 - 8) * 3;
    for group in 0..16 {
        bytes[192 + group] = scale(group) as u8;
    }
    bytes[208..].copy_from_slice(&half_bytes(0.125));
    check(Dtype::Q6_K, &bytes, |i| 0.125 * f32::from(scale(i / 16)) * (f32::from(quant(i)) - 32.0));
}

#[test]
fn wrong_lengths_are_refused() {
    let mut out = vec![0.0; 32];
    let short = dequantize(Dtype::Q4_1, &[0; 19], &mut out).unwrap_err();
    assert_eq!(short.to_string(), "32 weights as Q4_1 are 20 bytes, not 19");
    let ragged = dequantize(Dtype::Q4_1, &[0; 20], &mut out[..31]).unwrap_err();
    assert_eq!(ragged.to_string(), "31 weights are not whole blocks of Q4_1");
}
