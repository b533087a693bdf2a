//! What the bytes of a block mean: integers, scales and minimums, and the weights they stand for.
//!
//! Layouts follow the GGUF format and the ggml block definitions it names.

use super::{Dtype, LengthError};

/// Groups of a block at most: `Q6_K` has 16.
const GROUPS_MAX: usize = 16;

/// One block taken apart. Weight `i` is `scales[g] * quants[i] + minimums[g]` with
/// `g = i / dtype.group_len()`; each product and sum is rounded to `f32`.
#[derive(Debug)]
pub(crate) struct Block {
    /// Centred integers of the formats without a minimum, or those from 0 of the others.
    pub(crate) quants: [i8; 256],
    pub(crate) scales: [f32; GROUPS_MAX],
    pub(crate) minimums: [f32; GROUPS_MAX],
}

impl Block {
    pub(crate) const EMPTY: Self =
        Self { quants: [0; 256], scales: [0.0; GROUPS_MAX], minimums: [0.0; GROUPS_MAX] };
}

/// Weights of any format as `f32`, in order; bit for bit what the format's definition gives.
pub fn dequantize(dtype: Dtype, bytes: &[u8], out: &mut [f32]) -> Result<(), LengthError> {
    if dtype.bytes(out.len()) != Some(bytes.len()) {
        return Err(LengthError { dtype, len: out.len(), bytes: bytes.len() });
    }
    let blocks = bytes.chunks_exact(dtype.block_bytes());
    match dtype {
        Dtype::F32 => {
            for (out, b) in out.iter_mut().zip(blocks) {
                *out = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        Dtype::F16 => out.iter_mut().zip(blocks).for_each(|(out, b)| *out = half_at(b, 0)),
        Dtype::BF16 => {
            for (out, b) in out.iter_mut().zip(blocks) {
                *out = half::bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        _ => {
            let mut block = Block::EMPTY;
            for (out, bytes) in out.chunks_exact_mut(dtype.block_len()).zip(blocks) {
                unpack(dtype, bytes, &mut block);
                for (group, out) in out.chunks_exact_mut(dtype.group_len()).enumerate() {
                    let (scale, minimum) = (block.scales[group], block.minimums[group]);
                    let quants = &block.quants[group * dtype.group_len()..];
                    for (out, &quant) in out.iter_mut().zip(quants) {
                        *out = scale * f32::from(quant);
                        if dtype.has_minimum() {
                            *out += minimum;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Takes one block of a quantised format apart. `bytes` are `dtype.block_bytes()`.
pub(crate) fn unpack(dtype: Dtype, bytes: &[u8], block: &mut Block) {
    match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => unreachable!("{dtype:?} has no blocks"),
        Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q5_0 | Dtype::Q5_1 => unpack_small(dtype, bytes, block),
        Dtype::Q8_0 => {
            block.scales[0] = half_at(bytes, 0);
            for (quant, &byte) in block.quants.iter_mut().zip(&bytes[2..34]) {
                *quant = i8::from_le_bytes([byte]);
            }
        }
        Dtype::Q4_K => unpack_k(bytes, None, &bytes[16..144], block),
        Dtype::Q5_K => unpack_k(bytes, Some(&bytes[16..48]), &bytes[48..176], block),
        Dtype::Q6_K => unpack_q6_k(bytes, block),
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Low four bits of the first half, high four of the second; a fifth bit apart; centred or from a
/// minimum.
fn unpack_small(dtype: Dtype, bytes: &[u8], block: &mut Block) {
    let fifth = matches!(dtype, Dtype::Q5_0 | Dtype::Q5_1);
    block.scales[0] = half_at(bytes, 0);
    let mut at = 2;
    if dtype.has_minimum() {
        block.minimums[0] = half_at(bytes, at);
        at += 2;
    }
    let mut high_bits = 0;
    if fifth {
        high_bits = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        at += 4;
    }
    let centre = match dtype {
        Dtype::Q4_0 => 8,
        Dtype::Q5_0 => 16,
        _ => 0,
    };
    for (j, &pair) in bytes[at..at + 16].iter().enumerate() {
        for (i, low) in [(j, pair & 15), (j + 16, pair >> 4)] {
            let high = if high_bits >> i & 1 == 1 { 16 } else { 0 };
            block.quants[i] = (low | high).cast_signed() - centre;
        }
    }
}

/// `Q4_K` and `Q5_K`: eight groups of 32 with 6-bit scales and minimums.
fn unpack_k(bytes: &[u8], high_bits: Option<&[u8]>, nibbles: &[u8], block: &mut Block) {
    let (scale, minimum) = (half_at(bytes, 0), half_at(bytes, 2));
    let packed = &bytes[4..16];
    for group in 0..8 {
        let (s, m) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            let (low, s, m) = (packed[group + 4], packed[group - 4], packed[group]);
            ((low & 15) | (s >> 6) << 4, (low >> 4) | (m >> 6) << 4)
        };
        block.scales[group] = scale * f32::from(s);
        block.minimums[group] = -(minimum * f32::from(m));
        for j in 0..32 {
            let pair = nibbles[group / 2 * 32 + j];
            let low = if group.is_multiple_of(2) { pair & 15 } else { pair >> 4 };
            let high = high_bits.map_or(0, |bits| (bits[j] >> group & 1) << 4);
            block.quants[group * 32 + j] = (low | high).cast_signed();
        }
    }
}

/// `Q6_K`: sixteen groups of 16 with 8-bit scales; two halves of 128 weights.
fn unpack_q6_k(bytes: &[u8], block: &mut Block) {
    let scale = half_at(bytes, 208);
    for (group, &byte) in bytes[192..208].iter().enumerate() {
        block.scales[group] = scale * f32::from(byte.cast_signed());
    }
    for i in 0..256 {
        let (half, quarter, j) = (i / 128, i / 32 % 4, i % 32);
        let pair = bytes[half * 64 + quarter % 2 * 32 + j];
        let low = if quarter < 2 { pair & 15 } else { pair >> 4 };
        let high = bytes[128 + half * 32 + j] >> (2 * quarter) & 3;
        block.quants[i] = (low | high << 4).cast_signed() - 32;
    }
}
