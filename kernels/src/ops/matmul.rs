//! `out[r, n] = sum_k weights[n, k] x[r, k]`, with what comes before and after it.
//!
//! Before: RMSNorm, its weight folded into the matrix and its scale applied to the sum. After: a
//! gate, or the residual stream. The result for a row has the same bits for any number of rows.

use bytemuck::{Pod, Zeroable};
use half::bf16;

pub use self::format::{Format, PackError, round_fp8};
pub use self::path::{Path, Wide};
pub use self::reference::{cpu, cpu_gated, cpu_norm_scales};
use super::{block_values, whole};
use crate::cuda::{Arg, Buffer, Device, DeviceError, Grid};

mod format;
mod launch;
mod path;
mod reference;

/// Inputs and outputs of a tile.
const TILE: usize = 16;
/// Tiles of a run of memory, along the outputs and along the inputs.
const TILES: usize = BLOCK_OUTPUTS / TILE;
const STEPS: usize = UNIT / TILE;
/// 32-bit words of a tile.
const TILE_WORDS: usize = TILE * TILE / 2;
/// Rows that read weights at once, at most; and rows up to which that is always best.
const FEW_MAX: usize = 64;
const FEW: usize = 16;
/// Outputs of a block of the kernels for many rows.
const BLOCK_OUTPUTS: usize = 128;
/// Rows of a block of the plain kernels, at most.
const PLAIN_ROWS_MAX: usize = 64;
/// Inputs between which slices are cut; 128 outputs of them are one run of memory.
const UNIT: usize = 64;

/// A matrix on the device.
#[derive(Debug)]
pub struct Matrix {
    words: Buffer<u32>,
    format: Format,
    outputs: usize,
    inputs: usize,
    slices: usize,
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
    let (tiles, units) = (outputs.div_ceil(TILE), inputs / UNIT);
    [1, 2, 4].into_iter().find(|it| 1024 <= tiles * it || units < 2 * it).unwrap_or(8)
}

impl Matrix {
    /// Words as [`Format::pack`] makes them, which are on the device already.
    pub fn new(words: Buffer<u32>, format: Format, outputs: usize, inputs: usize) -> Self {
        assert!(inputs.is_multiple_of(UNIT), "inputs come in units of 64");
        assert_eq!(words.len(), format.words(outputs, inputs), "the words are of this matrix");
        Self { words, format, outputs, inputs, slices: slices(outputs, inputs) }
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn bytes(&self) -> u64 {
        self.words.bytes()
    }

    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Slices of the sum over inputs.
    pub(super) fn slices(&self) -> usize {
        self.slices
    }

    /// Where its tiles are, for what reads them as bf16.
    pub(super) fn table(&self) -> u64 {
        assert_eq!(self.format, Format::Bf16, "rows are read as bf16");
        self.words.read()
    }
}

/// What the kernels for many rows need beside their arguments; shared by all products, which run
/// one after the other.
#[derive(Debug)]
pub struct Scratch {
    sums: Buffer<f32>,
    arrivals: Buffer<u32>,
    /// For blocks that wait for each other: those of one tile count here, none is set back.
    meetings: Buffer<u32>,
    scales: Buffer<f32>,
    /// What blocks leave for each other that wait for it, where they may.
    left: Option<Buffer<u32>>,
    multiprocessors: usize,
    /// Whether the card has the tensor-core instructions of Hopper.
    hopper: bool,
}

impl Scratch {
    /// For products of up to `rows_max` rows on a card's main queue, where blocks of few rows may
    /// wait for each other. They and those that meet on a queue beside (`cu/broad.cuh` says why)
    /// wait within a tile alone, whose blocks begin one after the other. Two ranks on one card also
    /// wait for each other, and could each have the place that the other needs.
    pub fn alone(device: &Device, rows_max: usize) -> Result<Self, DeviceError> {
        let left = device.upload(&vec![path::ABSENT; path::LEFT_MAX])?;
        Ok(Self { left: Some(left), ..Self::new(device, rows_max)? })
    }

    /// For products of up to `rows_max` rows.
    pub fn new(device: &Device, rows_max: usize) -> Result<Self, DeviceError> {
        let multiprocessors = device.facts().multiprocessors as usize;
        Ok(Self {
            sums: device.zeros(multiprocessors * 8 * PLAIN_ROWS_MAX * BLOCK_OUTPUTS * 2)?,
            // A matrix in several slices has at most 256 blocks of outputs.
            arrivals: device.zeros((2 * multiprocessors).max(256))?,
            meetings: device.zeros(multiprocessors)?,
            // Read two by two.
            scales: device.zeros(rows_max.next_multiple_of(2))?,
            left: None,
            multiprocessors,
            hopper: device.facts().is_hopper(),
        })
    }
}

/// What becomes of the sums. Rounded values are in blocks, see [`super::block_place`].
#[derive(Debug)]
pub enum Out<'a> {
    /// (rows, outputs).
    Plain(&'a mut Buffer<f32>),
    /// (rows, outputs / 2): `silu(gate) * up`, rows as [`gated_row`] has them.
    Gated(&'a mut Buffer<bf16>),
    /// (rows, outputs): added to `stream`; the sum also rounded.
    Residual {
        stream: &'a mut Buffer<f32>,
        rounded: &'a mut Buffer<bf16>,
        captured: Option<Captured<'a>>,
    },
}

/// A place where the rounded residual stream is kept: (rows, columns), from column `at` on.
#[derive(Debug)]
pub struct Captured<'a> {
    pub to: &'a mut Buffer<bf16>,
    pub at: usize,
    pub columns: usize,
}

impl Captured<'_> {
    pub(super) fn address(&mut self, rows: usize, width: usize) -> u64 {
        assert!(self.at + width <= self.columns, "the columns are in the row");
        assert!(self.at.is_multiple_of(8), "columns come in lines of 8");
        assert!(block_values(rows, self.columns) <= self.to.len(), "a place for each row");
        self.to.write()
    }
}

/// The twin of `Matmul` in `cu/matmul.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Args {
    weights: u64,
    x: u64,
    out: u64,
    rounded: u64,
    stream: u64,
    captured: u64,
    sums: u64,
    arrivals: u64,
    scales: u64,
    channels: u64,
    rows: u32,
    inputs: u32,
    outputs: u32,
    tiles: u32,
    slices: u32,
    captured_at: u32,
    gated: u32,
    eps: f32,
    early: u32,
    norm: u32,
}

/// The rows a product reads: (rows, inputs) in blocks.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    pub x: &'a Buffer<bf16>,
    pub rows: usize,
    /// Epsilon of an RMSNorm before the product, its weight folded into the matrix.
    pub norm: Option<f32>,
}

impl Matrix {
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
        let Rows { x, rows, norm } = rows;
        assert!(block_values(rows, self.inputs) <= x.len(), "x has the rows");
        let (end, mut args) = self.args(rows, out);
        assert!(norm.is_none() || end != "residual", "a norm comes before what reads the stream");
        args.x = x.read();
        args.eps = norm.unwrap_or(0.0);
        if path == Path::Few {
            return self.launch_few(device, scratch, norm.is_some(), end, args);
        }
        if let Path::Ahead(width) = path {
            args.norm = u32::from(norm.is_some());
            return self.launch_ahead(device, scratch, width, args);
        }
        if norm.is_some() {
            assert!(rows <= scratch.scales.len(), "a scale for each row");
            let to = Arg::Address(scratch.scales.write());
            let grid = Grid::new(whole(rows.div_ceil(8)), whole(128 * self.slices));
            device.launch("norm_scales", grid, &[Arg::value(&args), to])?;
            args.scales = scratch.scales.read();
        }
        match path {
            Path::Wide(wide) => self.launch_wide(device, scratch, wide, args),
            Path::Broad(width) => self.launch_broad(device, scratch, width, args),
            Path::Tall(parts) => self.launch_tall(device, scratch, parts, args),
            Path::All => self.launch_all(device, scratch, 1, args),
            Path::Pair => self.launch_all(device, scratch, 2, args),
            Path::Whole(width) => self.launch_plain(device, scratch, (width, 1), end, args),
            Path::Cut(width) => self.launch_plain(device, scratch, (width, self.slices), end, args),
            Path::Few | Path::Ahead(_) => unreachable!("it returned"),
        }
    }

    /// The name of what comes at the end, and all arguments that do not depend on the path.
    fn args(&self, rows: usize, out: Out<'_>) -> (&'static str, Args) {
        let mut args = Args::zeroed();
        let values = rows * self.outputs;
        let end = match out {
            Out::Plain(sums) => {
                assert!(values <= sums.len(), "a place for each sum");
                args.out = sums.write();
                "plain"
            }
            Out::Gated(rounded) => {
                assert!(self.outputs.is_multiple_of(TILE), "gates and ups come in whole tiles");
                assert!(block_values(rows, self.outputs / 2) <= rounded.len(), "a place for each");
                args.rounded = rounded.write();
                args.gated = 1;
                "gated"
            }
            Out::Residual { stream, rounded, captured } => {
                assert!(self.outputs.is_multiple_of(8), "outputs come in lines of 8");
                assert!(values <= stream.len(), "a place for each sum");
                assert!(block_values(rows, self.outputs) <= rounded.len(), "and rounded");
                args.stream = stream.write();
                args.rounded = rounded.write();
                if let Some(mut captured) = captured {
                    args.captured = captured.address(rows, self.outputs);
                    args.captured_at = whole(captured.at);
                }
                "residual"
            }
        };
        args.weights = self.words.read();
        if self.format == Format::Fp8 {
            let tiles = self.format.tile_words(self.outputs, self.inputs) * size_of::<u32>();
            args.channels = args.weights + tiles as u64;
        }
        args.rows = whole(rows);
        args.inputs = whole(self.inputs);
        args.outputs = whole(self.outputs);
        args.tiles = whole(self.outputs.div_ceil(TILE));
        args.slices = whole(self.slices);
        (end, args)
    }
}

#[cfg(test)]
mod tests;
