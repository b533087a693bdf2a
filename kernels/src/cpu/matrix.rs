//! Weights repacked so that 16 output channels stand side by side, a vector's lanes.

use std::fmt;

use super::inputs::{BLOCK, ZERO_4, ZERO_8};
use super::rows::LANES;
use super::simd::lines::Lines;
use crate::quant::{Block, Dtype, LengthError, dequantize, unpack};

/// In what numbers a product is computed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Activations {
    /// Weights as `f32`, activations as they are.
    F32,
    /// Activations in 8 bits with a scale for each 32, sums of integers within a block.
    Int8,
}

/// The weights of a linear layer, `rows` outputs by `cols` inputs, repacked for [`super::matmul`].
#[derive(Debug)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    activations: Activations,
    parts: Vec<Part>,
}

/// Rows of one format. Those of all parts but the last are whole tiles.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) form: Form,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Plain: (tiles, cols, 16). Wide groups: (tiles, cols / 4, 16, 4) bytes. Narrow groups:
    /// (tiles, cols / 32, 4, 16, 4) bytes; the low halves of the four pieces are the first 16
    /// inputs of the block, the high halves the other 16.
    pub(crate) values: Lines,
    /// (tiles, groups, 16) scales, or (tiles, groups, 2, 16) scales and minimums.
    pub(crate) scales: Lines,
}

/// How a part is stored.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Form {
    Plain(Dtype),
    Groups(Groups),
}

/// Integers with a scale for each group of inputs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Groups {
    /// Inputs of a group: 32 or 16.
    pub(crate) len: usize,
    /// A byte a weight; else 4 bits.
    pub(crate) wide: bool,
    /// Integers from 0 and a minimum; else centred ones, stored from 0.
    pub(crate) minimum: bool,
    /// Scales and minimums are `f16`; else `f32`.
    pub(crate) half: bool,
}

impl Groups {
    fn of(dtype: Dtype) -> Self {
        Self {
            len: dtype.group_len(),
            wide: !matches!(dtype, Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q4_K),
            minimum: dtype.has_minimum(),
            half: !matches!(dtype, Dtype::Q4_K | Dtype::Q5_K | Dtype::Q6_K),
        }
    }

    /// What is subtracted from a stored integer.
    pub(crate) fn zero(self) -> i32 {
        match (self.minimum, self.wide) {
            (true, _) => 0,
            (false, true) => ZERO_8,
            (false, false) => ZERO_4,
        }
    }

    /// Bytes of the scales of one group in one tile.
    pub(crate) fn scale_bytes(self) -> usize {
        let width = if self.half { 2 } else { 4 };
        LANES * width * if self.minimum { 2 } else { 1 }
    }

    /// Bytes of the integers of one group in one tile.
    pub(crate) fn value_bytes(self) -> usize {
        LANES * if self.wide { self.len } else { self.len / 2 }
    }
}

/// Why weights could not be packed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PackError {
    Length(LengthError),
    /// A row is not a whole number of blocks.
    Ragged {
        dtype: Dtype,
        cols: usize,
    },
    /// Matrices that are stacked have different inputs.
    Stack {
        detail: &'static str,
    },
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(error) => error.fmt(f),
            Self::Ragged { dtype, cols } => {
                write!(f, "rows of {cols} are not whole blocks of {dtype:?}")
            }
            Self::Stack { detail } => write!(f, "matrices cannot be stacked: {detail}"),
        }
    }
}

impl std::error::Error for PackError {}

impl Matrix {
    /// Repacks a tensor of `rows` by `cols` as a file stores it. Plain numbers (F32, F16, BF16)
    /// compute in `f32` whatever `activations` says.
    pub fn pack(
        dtype: Dtype,
        rows: usize,
        cols: usize,
        bytes: &[u8],
        activations: Activations,
    ) -> Result<Self, PackError> {
        check(dtype, rows, cols, bytes)?;
        let plain = dtype.block_len() == 1;
        let part = if plain {
            pack_plain(dtype, rows, cols, bytes)
        } else {
            pack_groups(dtype, rows, cols, bytes)
        };
        let activations = if plain { Activations::F32 } else { activations };
        Ok(Self { rows, cols, activations, parts: vec![part] })
    }

    /// Rounds weights of any format to 8 bits with an `f32` scale for each 32 inputs, to compute
    /// with 8-bit activations. `cols` is a multiple of 32.
    pub fn quantize_8bit(
        dtype: Dtype,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<Self, PackError> {
        check(dtype, rows, cols, bytes)?;
        if !cols.is_multiple_of(BLOCK) {
            return Err(PackError::Ragged { dtype: Dtype::Q8_0, cols });
        }
        let groups = Groups { len: BLOCK, wide: true, minimum: false, half: false };
        let mut packer = Packer::new(groups, rows, cols);
        let row_bytes = bytes.len() / rows.max(1);
        let mut weights = vec![0.0; cols];
        for (row, bytes) in bytes.chunks_exact(row_bytes.max(1)).enumerate() {
            dequantize(dtype, bytes, &mut weights).map_err(PackError::Length)?;
            for (group, weights) in weights.chunks_exact(BLOCK).enumerate() {
                let amax = weights.iter().fold(0.0_f32, |amax, it| amax.max(it.abs()));
                let inverse = if amax == 0.0 { 0.0 } else { 127.0 / amax };
                #[expect(clippy::cast_possible_truncation, reason = "at most 127 in size")]
                let quants: Vec<i8> =
                    weights.iter().map(|it| (it * inverse).round_ties_even() as i8).collect();
                packer.put(row, group, &quants, amax / 127.0, 0.0);
            }
        }
        let part = packer.part;
        Ok(Self { rows, cols, activations: Activations::Int8, parts: vec![part] })
    }

    /// One matrix whose outputs are those of all, one after the other. They have the same inputs
    /// and activations, and all but the last have a multiple of 16 outputs.
    pub fn stack(matrices: Vec<Self>) -> Result<Self, PackError> {
        let mut matrices = matrices.into_iter();
        let first = matrices.next().ok_or(PackError::Stack { detail: "there are none" })?;
        matrices.try_fold(first, |mut all, next| {
            if all.cols != next.cols || all.activations != next.activations {
                return Err(PackError::Stack { detail: "their inputs differ" });
            }
            if !all.rows.is_multiple_of(LANES) {
                return Err(PackError::Stack { detail: "outputs are not a multiple of 16" });
            }
            all.rows += next.rows;
            all.parts.extend(next.parts);
            Ok(all)
        })
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The form of [`super::Inputs`] that products with it need.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// Memory it takes.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|it| it.values.bytes().len() + it.scales.bytes().len()).sum()
    }

    /// De-quantised rows, such as the embeddings of tokens.
    ///
    /// rows: (n,), each below `self.rows()`; out: (n, cols).
    pub fn gather(&self, rows: &[u32], out: &mut [f32]) {
        assert_eq!(out.len(), rows.len() * self.cols, "one output row a row");
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(self.cols)) {
            let (part, tile) = self.tile(row as usize / LANES);
            let lane = row as usize % LANES;
            assert!(tile * LANES + lane < part.rows, "the row is in the matrix");
            for (k, out) in out.iter_mut().enumerate() {
                *out = part.weight(tile, lane, k);
            }
        }
    }

    /// The part that holds the tile, and the tile's number in it.
    pub(super) fn tile(&self, mut tile: usize) -> (&Part, usize) {
        for part in &self.parts {
            let tiles = part.rows.div_ceil(LANES);
            if tile < tiles {
                return (part, tile);
            }
            tile -= tiles;
        }
        panic!("the row is in the matrix");
    }
}

impl Part {
    /// One weight as `f32`, the same bits as [`dequantize`] gives.
    #[inline(always)]
    pub(crate) fn weight(&self, tile: usize, lane: usize, k: usize) -> f32 {
        match self.form {
            Form::Plain(dtype) => {
                let at = ((tile * self.cols + k) * LANES + lane) * dtype.block_bytes();
                plain(dtype, &self.values.bytes()[at..])
            }
            Form::Groups(groups) => {
                let group = tile * (self.cols / groups.len) + k / groups.len;
                let stored = self.stored(groups, group, lane, k % groups.len);
                let (scale, minimum) = self.scale(groups, group, lane);
                let product = scale * (stored - groups.zero()) as f32;
                if groups.minimum { product + minimum } else { product }
            }
        }
    }

    /// The integer of input `k` of a group as it is stored. `group` counts through all tiles.
    #[inline(always)]
    pub(crate) fn stored(&self, groups: Groups, group: usize, lane: usize, k: usize) -> i32 {
        let values = &self.values.bytes()[group * groups.value_bytes()..];
        let in_piece = lane * 4 + k % 4;
        if groups.wide {
            return i32::from(values[k / 4 * 64 + in_piece]);
        }
        let pair = values[k % 16 / 4 * 64 + in_piece];
        i32::from(if k < 16 { pair & 15 } else { pair >> 4 })
    }

    /// Scale and minimum (0 without one) of a group, which is counted through all tiles.
    #[inline(always)]
    pub(crate) fn scale(&self, groups: Groups, group: usize, lane: usize) -> (f32, f32) {
        let dtype = if groups.half { Dtype::F16 } else { Dtype::F32 };
        let scales = &self.scales.bytes()[group * groups.scale_bytes()..];
        let scale = plain(dtype, &scales[lane * dtype.block_bytes()..]);
        if !groups.minimum {
            return (scale, 0.0);
        }
        (scale, plain(dtype, &scales[(LANES + lane) * dtype.block_bytes()..]))
    }
}

/// Writes groups into a part.
struct Packer {
    part: Part,
    groups: Groups,
}

impl Packer {
    fn new(groups: Groups, rows: usize, cols: usize) -> Self {
        let all_groups = rows.div_ceil(LANES) * (cols / groups.len);
        let part = Part {
            form: Form::Groups(groups),
            rows,
            cols,
            values: Lines::zeroed(all_groups * groups.value_bytes()),
            scales: Lines::zeroed(all_groups * groups.scale_bytes()),
        };
        Self { part, groups }
    }

    /// Stores group `group` of a row: its centred integers, or those from 0 with a minimum.
    fn put(&mut self, row: usize, group: usize, quants: &[i8], scale: f32, minimum: f32) {
        let groups = self.groups;
        let (tile, lane) = (row / LANES, row % LANES);
        let group = tile * (self.part.cols / groups.len) + group;
        let values = &mut self.part.values.bytes_mut()[group * groups.value_bytes()..];
        for (k, &quant) in quants.iter().enumerate() {
            let stored = u8::try_from(i32::from(quant) + groups.zero()).expect("from 0 to 255");
            let in_piece = lane * 4 + k % 4;
            if groups.wide {
                values[k / 4 * 64 + in_piece] = stored;
            } else {
                values[k % 16 / 4 * 64 + in_piece] |= stored << (k / 16 * 4);
            }
        }
        let scales = &mut self.part.scales.bytes_mut()[group * groups.scale_bytes()..];
        let numbers = if groups.minimum { &[scale, minimum][..] } else { &[scale] };
        for (i, &number) in numbers.iter().enumerate() {
            let at = i * LANES + lane;
            if groups.half {
                let half = half::f16::from_f32(number).to_le_bytes();
                scales[2 * at..][..2].copy_from_slice(&half);
            } else {
                scales[4 * at..][..4].copy_from_slice(&number.to_le_bytes());
            }
        }
    }
}

fn check(dtype: Dtype, rows: usize, cols: usize, bytes: &[u8]) -> Result<(), PackError> {
    if !cols.is_multiple_of(dtype.block_len()) {
        return Err(PackError::Ragged { dtype, cols });
    }
    let len = rows.saturating_mul(cols);
    if dtype.bytes(len) != Some(bytes.len()) {
        return Err(PackError::Length(LengthError { dtype, len, bytes: bytes.len() }));
    }
    Ok(())
}

/// The number at the start of `bytes`.
#[inline(always)]
fn plain(dtype: Dtype, bytes: &[u8]) -> f32 {
    match dtype {
        Dtype::F16 => half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        Dtype::BF16 => half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        _ => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
    }
}

fn pack_plain(dtype: Dtype, rows: usize, cols: usize, bytes: &[u8]) -> Part {
    let width = dtype.block_bytes();
    let mut values = Lines::zeroed(rows.next_multiple_of(LANES) * cols * width);
    let out = values.bytes_mut();
    for (i, number) in bytes.chunks_exact(width).enumerate() {
        let (row, k) = (i / cols, i % cols);
        let at = (row / LANES * cols + k) * LANES + row % LANES;
        out[at * width..][..width].copy_from_slice(number);
    }
    Part { form: Form::Plain(dtype), rows, cols, values, scales: Lines::zeroed(0) }
}

fn pack_groups(dtype: Dtype, rows: usize, cols: usize, bytes: &[u8]) -> Part {
    let len = dtype.group_len();
    let mut packer = Packer::new(Groups::of(dtype), rows, cols);
    let mut block = Block::EMPTY;
    for (i, bytes) in bytes.chunks_exact(dtype.block_bytes()).enumerate() {
        unpack(dtype, bytes, &mut block);
        let start = i * dtype.block_len();
        for (group, quants) in block.quants[..dtype.block_len()].chunks_exact(len).enumerate() {
            let at = start % cols / len + group;
            packer.put(start / cols, at, quants, block.scales[group], block.minimums[group]);
        }
    }
    packer.part
}
