//! `out[r, n] = sum_k weights[n, k] x[r, k]`, with what comes before and after it.
//!
//! Before: RMSNorm, its weight folded into the matrix and its scale applied to the sum. After: a
//! gate, or the residual stream. The result for a row has the same bits for any number of rows.

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::whole;
use crate::cuda::{Arg, Buffer, Device, DeviceError, Grid};

/// Inputs and outputs of a tile.
const TILE: usize = 16;
/// 32-bit words of a tile.
const TILE_WORDS: usize = TILE * TILE / 2;
/// Rows up to which weights are read for all of them at once.
const FEW: usize = 16;
/// Rows and outputs of a block of the kernel for many rows, and the sums it keeps.
const BLOCK_ROWS: usize = 64;
const BLOCK_OUTPUTS: usize = 128;

/// A matrix on the device, in tiles of 16 outputs x 16 inputs, each in the order in which the
/// lanes of a warp hold it (PTX manual, `mma.m16n8k16`).
#[derive(Debug)]
pub struct Matrix {
    tiles: Buffer<u32>,
    outputs: usize,
    inputs: usize,
    slices: usize,
}

/// Word and half of element (output, input) of a matrix with `inputs` inputs.
fn place(inputs: usize, output: usize, input: usize) -> (usize, usize) {
    let (tile, row) = (output / TILE, output % TILE);
    let (step, column) = (input / TILE, input % TILE);
    let lane = row % 8 * 4 + column % 8 / 2;
    let part = row / 8 + column / 8 * 2;
    (((tile * (inputs / TILE) + step) * 32 + lane) * 4 + part, column % 2)
}

/// Tiles of a matrix whose row `n` is written by `row(n, _)`; each is rounded to bf16.
///
/// `inputs` must be a multiple of 32.
pub fn pack(outputs: usize, inputs: usize, mut row: impl FnMut(usize, &mut [f32])) -> Vec<u32> {
    assert!(inputs.is_multiple_of(2 * TILE), "inputs come in pairs of tiles");
    let mut words = vec![0_u32; outputs.div_ceil(TILE) * (inputs / TILE) * TILE_WORDS];
    let mut values = vec![0.0; inputs];
    for output in 0..outputs {
        row(output, &mut values);
        for (input, pair) in values.chunks_exact(2).enumerate() {
            let (low, high) = (bf16::from_f32(pair[0]), bf16::from_f32(pair[1]));
            let (word, _) = place(inputs, output, 2 * input);
            words[word] = u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16;
        }
    }
    words
}

/// Which rows of gate and up stand where in a matrix whose product is gated: of each 16 outputs
/// the first 8 are gates. Gives (is it up, its row).
pub fn gated_row(output: usize) -> (bool, usize) {
    let (tile, row) = (output / TILE, output % TILE);
    (8 <= row, tile * 8 + row % 8)
}

/// Slices of the sum over inputs, a power of two: enough that reading weights keeps the memory
/// busy when there are few rows. A function of the matrix alone.
fn slices(outputs: usize, inputs: usize) -> usize {
    let (tiles, pairs) = (outputs.div_ceil(TILE), inputs / (2 * TILE));
    [1, 2, 4].into_iter().find(|it| 2048 <= tiles * it || pairs < 4 * it).unwrap_or(8)
}

impl Matrix {
    /// `tiles` as [`pack`] makes them.
    pub fn upload(
        device: &Device,
        outputs: usize,
        inputs: usize,
        tiles: &[u32],
    ) -> Result<Self, DeviceError> {
        let tiles = device.upload(tiles)?;
        Ok(Self::from_tiles(tiles, outputs, inputs))
    }

    /// Takes tiles that are on the device already.
    pub fn from_tiles(tiles: Buffer<u32>, outputs: usize, inputs: usize) -> Self {
        let words = outputs.div_ceil(TILE) * (inputs / TILE) * TILE_WORDS;
        assert!(inputs.is_multiple_of(2 * TILE), "inputs come in pairs of tiles");
        assert_eq!(tiles.len(), words, "the tiles are of this matrix");
        Self { tiles, outputs, inputs, slices: slices(outputs, inputs) }
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn bytes(&self) -> u64 {
        self.tiles.bytes()
    }

    pub(super) fn tiles(&self) -> u64 {
        self.tiles.read()
    }
}

/// What the kernel for many rows needs beside its arguments; shared by all products, which run one
/// after the other.
#[derive(Debug)]
pub struct Scratch {
    sums: Buffer<f32>,
    arrivals: Buffer<u32>,
    scales: Buffer<f32>,
    /// Blocks below which a product is also cut along its slices.
    blocks_min: usize,
}

impl Scratch {
    /// For products of up to `rows_max` rows.
    pub fn new(device: &Device, rows_max: usize) -> Result<Self, DeviceError> {
        let blocks_min = device.facts().multiprocessors as usize;
        Ok(Self {
            sums: device.zeros(blocks_min * 8 * BLOCK_ROWS * BLOCK_OUTPUTS)?,
            arrivals: device.zeros(blocks_min)?,
            scales: device.zeros(rows_max)?,
            blocks_min,
        })
    }
}

/// What becomes of the sums.
#[derive(Debug)]
pub enum Out<'a> {
    /// (rows, outputs), as they are and rounded; either may be absent.
    Plain { sums: Option<&'a mut Buffer<f32>>, rounded: Option<&'a mut Buffer<bf16>> },
    /// (rows, outputs / 2): `silu(gate) * up`, rows as [`gated_row`] has them.
    Gated(&'a mut Buffer<bf16>),
    /// (rows, outputs): added to `stream`; the sum also rounded.
    Residual {
        stream: &'a mut Buffer<f32>,
        rounded: &'a mut Buffer<bf16>,
        captured: Option<Captured<'a>>,
    },
}

/// A place where the rounded residual stream is kept: (rows, stride), from column `at` on.
#[derive(Debug)]
pub struct Captured<'a> {
    pub to: &'a mut Buffer<bf16>,
    pub at: usize,
    pub stride: usize,
}

impl Captured<'_> {
    pub(super) fn address(&mut self, rows: usize, columns: usize) -> u64 {
        assert!(self.at + columns <= self.stride, "the columns are in the row");
        assert!(rows * self.stride <= self.to.len(), "a place for each row");
        self.to.write() + (self.at * size_of::<bf16>()) as u64
    }
}

/// How a product is computed. The result is the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Path {
    /// All rows beside each other, at most 16.
    Few,
    /// Blocks of 64 rows; a block adds up all slices, or one.
    Many,
    Split,
}

/// The twin of `Matmul` in `cu/matmul.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Args {
    weights: u64,
    x: u64,
    out: u64,
    out_bf16: u64,
    stream: u64,
    captured: u64,
    sums: u64,
    arrivals: u64,
    scales: u64,
    rows: u32,
    inputs: u32,
    outputs: u32,
    tiles: u32,
    slices: u32,
    x_stride: u32,
    captured_stride: u32,
    eps: f32,
}

/// The rows a product reads: (rows, stride), the first `matrix.inputs()` of each.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    pub x: &'a Buffer<bf16>,
    pub stride: usize,
    pub rows: usize,
    /// Epsilon of an RMSNorm before the product, its weight folded into the matrix.
    pub norm: Option<f32>,
}

impl Matrix {
    /// The path that is fastest for a number of rows.
    pub fn path(&self, scratch: &Scratch, rows: usize) -> Path {
        let blocks = rows.div_ceil(BLOCK_ROWS) * self.outputs.div_ceil(BLOCK_OUTPUTS);
        match rows {
            0..=FEW => Path::Few,
            _ if self.slices == 1 || blocks < scratch.blocks_min => Path::Split,
            _ => Path::Many,
        }
    }

    pub fn multiply(
        &self,
        device: &Device,
        scratch: &mut Scratch,
        rows: Rows<'_>,
        out: Out<'_>,
    ) -> Result<(), DeviceError> {
        let path = self.path(scratch, rows.rows);
        self.multiply_on(path, device, scratch, rows, out)
    }

    /// [`Self::multiply`] by a given path.
    pub fn multiply_on(
        &self,
        path: Path,
        device: &Device,
        scratch: &mut Scratch,
        rows: Rows<'_>,
        out: Out<'_>,
    ) -> Result<(), DeviceError> {
        let Rows { x, stride, rows, norm } = rows;
        assert!(self.inputs <= stride && stride.is_multiple_of(8), "rows are read 16 bytes a time");
        assert!(rows * stride <= x.len(), "x has the rows");
        let (end, mut args) = self.args(rows, out);
        args.x = x.read();
        args.x_stride = whole(stride);
        args.eps = norm.unwrap_or(0.0);
        if path == Path::Few {
            assert!(rows <= FEW, "the path for few rows");
            let columns = if rows <= 8 { "8" } else { "16" };
            let norm = if norm.is_some() { "norm_" } else { "" };
            let blocks = self.outputs.div_ceil(TILE).div_ceil(8 / self.slices);
            let kernel = format!("matmul_few{columns}_{norm}{end}");
            return device.launch(&kernel, Grid::new(whole(blocks), 256), &[Arg::value(&args)]);
        }
        if norm.is_some() {
            assert!(rows <= scratch.scales.len(), "a scale for each row");
            let to = Arg::Address(scratch.scales.write());
            let grid = Grid::new(whole(rows.div_ceil(4)), 128);
            device.launch("norm_scales", grid, &[Arg::value(&args), to])?;
            args.scales = scratch.scales.read();
        }
        let blocks = (rows.div_ceil(BLOCK_ROWS), self.outputs.div_ceil(BLOCK_OUTPUTS));
        let mut grid = Grid::new(1, 128);
        grid.blocks = (whole(blocks.0), whole(blocks.1), 1);
        if path == Path::Split {
            grid.blocks.2 = whole(self.slices);
            let fits = self.slices == 1 || blocks.0 * blocks.1 <= scratch.blocks_min;
            assert!(fits, "the scratch has a place for each block");
            args.sums = scratch.sums.write();
            args.arrivals = scratch.arrivals.write();
        }
        let path = if path == Path::Split { "split" } else { "many" };
        device.launch(&format!("matmul_{path}_{end}"), grid, &[Arg::value(&args)])
    }

    /// The name of what comes at the end, and all arguments that do not depend on the path.
    fn args(&self, rows: usize, out: Out<'_>) -> (&'static str, Args) {
        let mut args = Args::zeroed();
        let values = rows * self.outputs;
        let end = match out {
            Out::Plain { sums, rounded } => {
                assert!(sums.as_ref().is_none_or(|it| values <= it.len()), "a place for each sum");
                assert!(rounded.as_ref().is_none_or(|it| values <= it.len()), "and rounded");
                args.out = sums.map_or(0, |it| it.write());
                args.out_bf16 = rounded.map_or(0, |it| it.write());
                "plain"
            }
            Out::Gated(rounded) => {
                assert!(self.outputs.is_multiple_of(TILE) && values / 2 <= rounded.len());
                args.out_bf16 = rounded.write();
                "gated"
            }
            Out::Residual { stream, rounded, captured } => {
                assert!(values <= stream.len() && values <= rounded.len(), "a place for each sum");
                args.stream = stream.write();
                args.out_bf16 = rounded.write();
                if let Some(mut captured) = captured {
                    args.captured = captured.address(rows, self.outputs);
                    args.captured_stride = whole(captured.stride);
                }
                "residual"
            }
        };
        args.weights = self.tiles.read();
        args.rows = whole(rows);
        args.inputs = whole(self.inputs);
        args.outputs = whole(self.outputs);
        args.tiles = whole(self.outputs.div_ceil(TILE));
        args.slices = whole(self.slices);
        (end, args)
    }
}

/// Sums in f64, rounded once. weights: (outputs, inputs); x: (rows, inputs).
pub fn cpu(weights: &[f32], x: &[f32], inputs: usize) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    let rows = x.chunks_exact(inputs);
    #[expect(clippy::cast_possible_truncation, reason = "the reference rounds once, here")]
    rows.flat_map(|x| weights.chunks_exact(inputs).map(move |w| dot(w, x) as f32)).collect()
}

/// `1 / sqrt(mean(x^2) + eps)` of each row, (rows, inputs).
pub fn cpu_norm_scales(x: &[f32], inputs: usize, eps: f32) -> Vec<f32> {
    let scale = |x: &[f32]| {
        let squares: f64 = x.iter().map(|&it| f64::from(it).powi(2)).sum();
        #[expect(clippy::cast_possible_truncation, reason = "the reference rounds once, here")]
        {
            (1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt()) as f32
        }
    };
    x.chunks_exact(inputs).map(scale).collect()
}

/// `silu(gate) * up`.
pub fn cpu_gated(gate: f32, up: f32) -> f32 {
    gate / (1.0 + (-gate).exp()) * up
}

#[cfg(test)]
mod tests;
