//! How a product is launched on each of its paths.

use super::path::{
    AHEAD_BYTES, ALL_ROWS, HALVED_SLICES, STREAM_BYTES, Wide, all_bytes, broad_bytes, tall_bytes,
};
use super::{Args, BLOCK_OUTPUTS, FEW_MAX, Format, Matrix, Scratch, TILE, UNIT};
use crate::cuda::{Arg, Device, DeviceError, Grid};
use crate::ops::whole;

/// Units of a slice from which twice as many of them are loaded ahead; and in 8 bits, whose units
/// are half as large, where nothing is added to the stream.
const DEEP_UNITS: usize = 32;
const DEEP_UNITS_FP8: usize = 4;
/// Bytes of a matrix after which the next kernel would be in the way if it started early.
const EARLY_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a matrix up to which blocks may have few rows; and up to which no turn of blocks is
/// worth more than what they read at once.
const NARROW_BYTES_MAX: u64 = 4 << 20;
const PAIRED_BYTES_MAX: u64 = 16 << 20;

/// Rows of a block of the kernel for few rows: all, or 64 of them.
fn columns_max(rows: usize) -> usize {
    rows.next_power_of_two().clamp(8, FEW_MAX)
}

/// The same for a small matrix that adds to the stream, of which 8 rows take `singles` blocks: as
/// few as give each block a place at once, since what a block does one after the other is what
/// takes time there. Registers leave room for two on a multiprocessor.
fn narrow_columns(singles: usize, rows: usize, multiprocessors: usize) -> usize {
    let fits = |columns: &usize| singles * rows.div_ceil(*columns) <= 2 * multiprocessors;
    let most = columns_max(rows);
    [8, 16, 32].into_iter().filter(|it| *it < most).find(fits).unwrap_or(most)
}

impl Matrix {
    pub(super) fn launch_few(
        &self,
        device: &Device,
        scratch: &Scratch,
        norm: bool,
        end: &str,
        mut args: Args,
    ) -> Result<(), DeviceError> {
        let rows = args.rows as usize;
        args.early = u32::from(self.bytes() <= EARLY_BYTES_MAX);
        let is_fp8 = self.format == Format::Fp8;
        let tiles = self.outputs.div_ceil(TILE);
        let singles = tiles.div_ceil(8 / self.slices);
        // Blocks of other rows find a small matrix in the L2 cache. Before attention as many blocks
        // would be in its way.
        let is_small = self.bytes() <= NARROW_BYTES_MAX && !is_fp8 && end == "residual";
        let columns = if is_small {
            narrow_columns(singles, rows, scratch.multiprocessors)
        } else {
            columns_max(rows)
        };
        let row_blocks = rows.div_ceil(columns);
        let norm = if norm { "norm_" } else { "" };
        // Two tiles a warp halve what is read of x, where blocks enough are left; and the squares.
        // A block of more than 8 rows may have a multiprocessor for itself: with half as many
        // blocks none waits for a place.
        let pairs = match columns {
            8 => false,
            16 if is_fp8 => !norm.is_empty(),
            16 if 2 * scratch.multiprocessors <= singles => true,
            _ if is_fp8 || PAIRED_BYTES_MAX < self.bytes() => false,
            _ => end == "gated" && scratch.multiprocessors < singles,
        };
        // More weights under way make up for few warps, where each has enough to do.
        let deep_units = match (end, is_fp8) {
            ("residual", _) => DEEP_UNITS,
            // Where they would leave no room for a second block, only if there is none.
            ("gated", false) if singles <= scratch.multiprocessors => DEEP_UNITS,
            (_, true) => DEEP_UNITS_FP8,
            (_, false) => usize::MAX,
        };
        let deep = columns == 8 && deep_units <= self.inputs / UNIT / self.slices;
        let waits = scratch.multiprocessors < singles * row_blocks;
        let dense = is_small && columns == 32 && waits;
        let suffix = match (pairs, deep, dense) {
            (true, _, _) => "x2",
            (_, true, _) => "deep",
            (_, _, true) => "dense",
            _ => "",
        };
        let mut grid = Grid::new(1, 256);
        let blocks = tiles.div_ceil(1 + usize::from(pairs)).div_ceil(8 / self.slices);
        grid.blocks = (whole(blocks), whole(row_blocks), 1);
        let format = self.format.suffix();
        let kernel = format!("matmul_few{columns}{suffix}{format}_{norm}{end}");
        device.launch(&kernel, grid, &[Arg::value(&args)])
    }

    /// By blocks of `width` rows, each for one of `parts` of the slices.
    pub(super) fn launch_plain(
        &self,
        device: &Device,
        scratch: &mut Scratch,
        (width, parts): (usize, usize),
        end: &str,
        mut args: Args,
    ) -> Result<(), DeviceError> {
        let row_tiles = (args.rows as usize).div_ceil(width);
        let columns = self.outputs.div_ceil(BLOCK_OUTPUTS);
        if 1 < parts {
            let count = row_tiles * columns;
            let sums = count * parts * width * BLOCK_OUTPUTS;
            let fits = sums <= scratch.sums.len() && count <= scratch.arrivals.len();
            assert!(fits, "the scratch has a place for each block");
            args.sums = scratch.sums.write();
            args.arrivals = scratch.arrivals.write();
        }
        let mut grid = Grid::new(1, 128);
        grid.blocks = (whole(row_tiles), whole(columns), whole(parts));
        // One part of one slice is a whole sum: nothing waits anywhere.
        let kind = if self.slices == parts { "split" } else { "many" };
        let kernel = format!("matmul_{kind}{width}{}_{end}", self.format.suffix());
        device.launch(&kernel, grid, &[Arg::value(&args)])
    }

    /// By blocks that have weights on their way while the product before ends: at most one a
    /// multiprocessor, all slices of a sum in the same turn.
    pub(super) fn launch_ahead(
        &self,
        device: &Device,
        scratch: &mut Scratch,
        width: usize,
        mut args: Args,
    ) -> Result<(), DeviceError> {
        let rows = args.rows as usize;
        assert!(self.can_ahead(scratch, width, rows), "blocks of {width} rows are for other rows");
        if let Some(left) = &mut scratch.left {
            args.sums = left.write();
        }
        let room = scratch.multiprocessors / self.slices * self.slices;
        let mut grid = Grid::new(whole(self.jobs(width, rows).min(room)), 384);
        let adds = args.stream != 0;
        grid.shared_bytes = whole(if adds { STREAM_BYTES } else { AHEAD_BYTES });
        let kind = if adds { "stream" } else { "ahead" };
        let kernel = format!("matmul_{kind}{}_{width}", self.format.suffix());
        device.launch(&kernel, grid, &[Arg::value(&args)])
    }

    pub(super) fn launch_wide(
        &self,
        device: &Device,
        scratch: &mut Scratch,
        wide: Wide,
        mut args: Args,
    ) -> Result<(), DeviceError> {
        assert!(self.can(scratch, wide, args.rows as usize), "{wide:?} is for other products");
        let blocks = wide.blocks(self, scratch, args.rows as usize);
        args.sums = scratch.sums.write();
        let mut grid = Grid::new(1, 384);
        grid.blocks = (whole(blocks), 1, whole(wide.parts));
        grid.shared_bytes = whole(wide.shared_bytes(self.format));
        let cluster = (1, 1, whole(wide.parts));
        let kernel = format!("matmul_wide{}_{}", self.format.suffix(), wide.rows);
        device.launch_clusters(&kernel, grid, cluster, &[Arg::value(&args)])
    }

    pub(super) fn launch_broad(
        &self,
        device: &Device,
        scratch: &mut Scratch,
        width: usize,
        mut args: Args,
    ) -> Result<(), DeviceError> {
        let rows = args.rows as usize;
        assert!(self.can_broad(scratch, width, rows), "slices that are there at once");
        args.sums = scratch.sums.write();
        args.arrivals = scratch.meetings.write();
        let jobs = self.jobs(width, rows);
        let mut grid = Grid::new(whole(jobs.min(scratch.multiprocessors)), 384);
        grid.shared_bytes = whole(broad_bytes(self.format, width));
        let format = self.format.suffix();
        device.launch(&format!("matmul_broad{format}_{width}"), grid, &[Arg::value(&args)])
    }

    /// By blocks of 192 outputs x 128 rows, of which `parts` share the slices of a sum.
    pub(super) fn launch_tall(
        &self,
        device: &Device,
        scratch: &mut Scratch,
        parts: usize,
        mut args: Args,
    ) -> Result<(), DeviceError> {
        let rows = args.rows as usize;
        assert!(self.can_tall(scratch, parts, rows), "parts that are there at once");
        args.sums = scratch.sums.write();
        args.arrivals = scratch.meetings.write();
        let tiles = self.tall_tiles(rows);
        let mut grid = Grid::new(1, 512);
        grid.blocks = (whole(parts), whole(tiles.min(scratch.multiprocessors)), 1);
        grid.shared_bytes = whole(tall_bytes(self.format));
        let share = match (parts, self.format) {
            (1, _) => "_all",
            // In 8 bits there are not registers enough.
            (2, Format::Bf16) if self.slices == HALVED_SLICES => "_half",
            _ => "",
        };
        let kernel = format!("matmul_tall{}{share}", self.format.suffix());
        device.launch(&kernel, grid, &[Arg::value(&args)])
    }

    /// By blocks, or pairs of them, that add up all slices.
    pub(super) fn launch_all(
        &self,
        device: &Device,
        scratch: &Scratch,
        parts: usize,
        args: Args,
    ) -> Result<(), DeviceError> {
        let rows = args.rows as usize;
        assert!(self.can_add_all(scratch, parts, rows), "{parts} blocks add up other sums");
        let tiles = self.tiles(ALL_ROWS, rows);
        let mut grid = Grid::new(1, 384);
        grid.blocks = (whole(tiles.min(scratch.multiprocessors)), 1, whole(parts));
        grid.shared_bytes = whole(all_bytes(self.format));
        let kind = if parts == 1 { "all" } else { "pair" };
        let kernel = format!("matmul_broad{}_{kind}", self.format.suffix());
        let cluster = (1, 1, whole(parts));
        device.launch_clusters(&kernel, grid, cluster, &[Arg::value(&args)])
    }
}

#[cfg(test)]
mod tests;
