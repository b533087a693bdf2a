//! How the weights of a matrix are stored on a device: in bf16, or in 8 bits with a scale for each
//! output.

use std::fmt;

use half::bf16;

use super::{BLOCK_OUTPUTS, STEPS, TILE, TILE_WORDS, TILES, UNIT};
use crate::cuda::{Buffer, Device, DeviceError};

/// Weights of a matrix on a device.
///
/// Both lie in tiles of 16 outputs x 16 inputs, each in the order in which the lanes of a warp hold
/// it (PTX manual, `mma.m16n8k16`): 4 tiles along the inputs (a unit), 8 along the outputs, then on
/// along the inputs. Outputs are rounded up to whole blocks of 128.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Format {
    #[default]
    Bf16,
    /// e4m3 (OCP 8-bit floating point, without its codes for NaN), a scale for each output.
    /// The scales stand behind the tiles.
    Fp8,
}

/// The largest value that e4m3 has, and the largest weight that a scale in `f32` leaves room for.
const FP8_MAX: f32 = 448.0;
const WEIGHT_MAX: f32 = FP8_MAX * 127.0;
/// What the kernels' bf16 of a code is short of: its exponent counts from 127, that of e4m3 from 7.
const SHORT: f32 = (1_u128 << 120) as f32;

/// Random words that are repeated, and the standard deviation of what codes by chance are worth.
const RANDOM_WORDS: usize = 1 << 20;
const CODES_DEVIATION: f32 = 108.0;

/// A weight that is no number, or too large.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PackError {
    pub output: usize,
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a weight of output {} is no number, or too large for fp8", self.output)
    }
}

impl std::error::Error for PackError {}

impl Format {
    /// Words of the tiles alone.
    pub fn tile_words(self, outputs: usize, inputs: usize) -> usize {
        let weights = match self {
            Self::Bf16 => 2,
            Self::Fp8 => 4,
        };
        outputs.next_multiple_of(BLOCK_OUTPUTS) * inputs / weights
    }

    /// Words of a matrix.
    pub fn words(self, outputs: usize, inputs: usize) -> usize {
        let scales = match self {
            Self::Bf16 => 0,
            Self::Fp8 => outputs.next_multiple_of(BLOCK_OUTPUTS),
        };
        self.tile_words(outputs, inputs) + scales
    }

    /// What the names of its kernels have.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Bf16 => "",
            Self::Fp8 => "_fp8",
        }
    }

    /// The words of a matrix whose row `n` is written by `row(n, _)`; each weight is rounded to the
    /// nearest that there is. An output's scale makes its largest weight the largest code.
    ///
    /// `inputs` must be a multiple of 64.
    pub fn pack(
        self,
        outputs: usize,
        inputs: usize,
        mut row: impl FnMut(usize, &mut [f32]),
    ) -> Result<Vec<u32>, PackError> {
        assert!(inputs.is_multiple_of(UNIT), "inputs come in units of 64");
        let mut words = vec![0_u32; self.words(outputs, inputs)];
        let mut values = vec![0.0; inputs];
        for output in 0..outputs {
            row(output, &mut values);
            match self {
                Self::Bf16 => pack_bf16(&mut words, output, &values),
                Self::Fp8 => {
                    let scale = scale(&values).ok_or(PackError { output })?;
                    pack_fp8(&mut words, output, &values, scale);
                    words[self.tile_words(outputs, inputs) + output] = scale_word(scale);
                }
            }
        }
        Ok(words)
    }

    /// Weights by chance, for speed tests: the same million words again and again, of what `draw`
    /// gives and with the standard deviation that is asked for. Any word is four codes of fp8.
    pub fn fill_randomly(
        self,
        device: &Device,
        words: &mut Buffer<u32>,
        (outputs, inputs): (usize, usize),
        deviation: f32,
        mut draw: impl FnMut() -> u32,
    ) -> Result<(), DeviceError> {
        let even = |bits: u32| (bits as f32 / 65_536.0 - 0.5) * 12.0_f32.sqrt() * deviation;
        let bits = |value: f32| u32::from(bf16::from_f32(value).to_bits());
        let word = |drawn: u32| match self {
            Self::Bf16 => bits(even(drawn & 0xffff)) | bits(even(drawn >> 16)) << 16,
            Self::Fp8 => drawn,
        };
        let some: Vec<u32> = (0..RANDOM_WORDS).map(|_| word(draw())).collect();
        let tiles = self.tile_words(outputs, inputs);
        for at in (0..tiles).step_by(RANDOM_WORDS) {
            device.write(words, at, &some[..RANDOM_WORDS.min(tiles - at)])?;
        }
        let scales = vec![scale_word(deviation / CODES_DEVIATION); words.len() - tiles];
        device.write(words, tiles, &scales)
    }
}

/// Word and half of element (output, input) of a matrix of bf16 with `inputs` inputs.
pub(super) fn place(inputs: usize, output: usize, input: usize) -> (usize, usize) {
    let (tile, row) = (output / TILE, output % TILE);
    let (step, column) = (input / TILE, input % TILE);
    let lane = row % 8 * 4 + column % 8 / 2;
    let part = row / 8 + column / 8 * 2;
    let unit = tile / TILES * (inputs / UNIT) + step / STEPS;
    let tile = (unit * TILES + tile % TILES) * STEPS + step % STEPS;
    (tile * TILE_WORDS + lane * 4 + part, column % 2)
}

fn pack_bf16(words: &mut [u32], output: usize, values: &[f32]) {
    for (input, pair) in values.chunks_exact(2).enumerate() {
        let (low, high) = (bf16::from_f32(pair[0]), bf16::from_f32(pair[1]));
        let (word, _) = place(values.len(), output, 2 * input);
        words[word] = u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16;
    }
}

/// The word of e4m3 that holds element (output, input), and where in it: which of its two words of
/// bf16 it becomes, and which half. A lane takes two steps at once.
pub(super) fn place_fp8(inputs: usize, output: usize, input: usize) -> (usize, usize, usize) {
    let (tile, row) = (output / TILE, output % TILE);
    let (step, column) = (input / TILE, input % TILE);
    let lane = row % 8 * 4 + column % 8 / 2;
    let unit = tile / TILES * (inputs / UNIT) + step / STEPS;
    let two = (unit * TILES + tile % TILES) * (STEPS / 2) + step % STEPS / 2;
    (two * TILE_WORDS + lane * 4 + step % 2 * 2 + column / 8, row / 8, column % 2)
}

fn pack_fp8(words: &mut [u32], output: usize, values: &[f32], scale: f32) {
    for (input, pair) in values.chunks_exact(2).enumerate() {
        let (word, part, _) = place_fp8(values.len(), output, 2 * input);
        let codes = [pair[0], pair[1]].map(|it| spread(fp8(it / scale), part));
        words[word] |= codes[0][0] | codes[1][1];
    }
}

/// Where the bits of a code stand in a word, as its lower and as its upper half; see `Fp8` in
/// `cu/matmul.cuh`.
fn spread(code: u8, part: usize) -> [u32; 2] {
    let (sign, exponent) = (u32::from(code >> 7), u32::from(code >> 3 & 15));
    let mantissa = u32::from(code & 7);
    if part == 0 {
        let low = sign << 15 | exponent << 7 | mantissa << 4;
        return [low, low << 16];
    }
    let low = exponent << 11 | mantissa;
    [low | sign << 19, low << 16 | sign << 3]
}

/// What a row's codes are multiplied by; `None` if it has a weight that cannot be stored.
fn scale(values: &[f32]) -> Option<f32> {
    let largest =
        values.iter().fold(0.0_f32, |most, it| if most < it.abs() { it.abs() } else { most });
    let fits = largest <= WEIGHT_MAX && !values.iter().any(|it| it.is_nan());
    // A row of zeros has any scale.
    fits.then_some(if 0.0 < largest { largest / FP8_MAX } else { 1.0 })
}

/// A scale as it stands behind the tiles.
fn scale_word(scale: f32) -> u32 {
    (scale * SHORT).to_bits()
}

/// The nearest code of e4m3, of two as near the even one; the largest for what is beyond it.
fn fp8(value: f32) -> u8 {
    /// Below this codes are 2^-9 apart, as floats are from `GRID` on.
    const NORMAL: f32 = 1.0 / 64.0;
    const GRID: f32 = 16_384.0;
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let size = value.abs().min(FP8_MAX);
    let code = if size < NORMAL {
        (size + GRID).to_bits() - GRID.to_bits()
    } else {
        let bits = size.to_bits();
        ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3)
    };
    sign | u8::try_from(code).expect("seven bits")
}

/// What a code of e4m3 is worth.
fn from_fp8(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match exponent {
        0 => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { size } else { -size }
}

/// What is left of a row's weights when they are stored in 8 bits.
pub fn round_fp8(values: &mut [f32]) -> Result<(), PackError> {
    let scale = scale(values).ok_or(PackError { output: 0 })?;
    values.iter_mut().for_each(|it| *it = from_fp8(fp8(*it / scale)) * scale);
    Ok(())
}

#[cfg(test)]
mod tests;
