//! Which kernel computes a product, for a matrix and a number of rows.

use super::{BLOCK_OUTPUTS, FEW, FEW_MAX, Format, Matrix, Scratch, TILE, UNIT, slices};

/// What may be read of x, for each 16 outputs, and of weights, for each 64 rows, before wider
/// blocks are better.
const FEW_BYTES_MAX: usize = 24 << 20;
/// The same for a sum in slices with no more outputs than inputs: its blocks wait for each other
/// elsewhere.
const FEW_LONG_BYTES_MAX: usize = 48 << 20;
/// Rows up to which such a sum is best there, whatever is read.
const FEW_LONG: usize = 32;
/// Inputs and weights of a matrix from which blocks that begin early are better, and rows of 8-bit
/// ones.
const AHEAD_INPUTS_MIN: usize = 2048;
const AHEAD_VALUES_MIN: usize = 4 << 20;
const AHEAD_ROWS_MIN_FP8: usize = 17;
/// Outputs from which a sum in one slice is better in wide blocks for any number of rows above 8.
const MANY_OUTPUTS: usize = 16_384;
/// Rows up to which broad blocks are no better; and of sums in slices of 8-bit weights.
const WIDE_ROWS_MAX: usize = 64;
const WIDE_ROWS_MAX_FP8: usize = 32;

/// How a product is computed. The result is the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Path {
    /// Up to 64 rows beside each other.
    Few,
    /// On any card: blocks of 32 or 64 rows that add up all slices.
    Whole(usize),
    /// On any card: blocks of 32 or 64 rows, each for one slice; the last one adds up.
    Cut(usize),
    /// On Hopper: blocks of 8, 16, 32 or 64 rows that have weights on their way while the product
    /// before ends.
    Ahead(usize),
    /// On Hopper.
    Wide(Wide),
    /// On Hopper: blocks of 128, 192 or 256 rows, each for one slice after the other; where a sum
    /// has several, its blocks add them up together.
    Broad(usize),
    /// On Hopper: blocks of 192 outputs x 128 rows; so many share the slices of a sum, or one adds
    /// up all.
    Tall(usize),
    /// On Hopper: blocks of 256 rows that add up all slices.
    All,
    /// On Hopper: the same in pairs of blocks, each for two of four slices.
    Pair,
}

/// Rows of the blocks that [`Path::Ahead`] has.
const AHEAD: [usize; 4] = [8, 16, 32, 64];
/// Shared memory of those that add to the stream, and of the others: what the ones take is more
/// than half of a multiprocessor's, and either leaves room for the other, or for one block of
/// `attend_bulk`. `Shared` in the kernel is a little less.
pub(super) const STREAM_BYTES: usize = 115_840;
pub(super) const AHEAD_BYTES: usize = 115_584;
/// What has not come yet of what they leave, the twin of `ABSENT` in the kernel; the most jobs that
/// a matrix in slices has; and words they leave: sums, and squares of rows for each of 8 slices.
pub(super) const ABSENT: u32 = u32::MAX;
const JOBS_MAX: usize = 256;
pub(super) const LEFT_MAX: usize = JOBS_MAX * AHEAD[3] * (BLOCK_OUTPUTS + 8);
/// Rows of the blocks that [`Path::Broad`] has.
const BROAD: [usize; 3] = [128, 192, 256];
/// Rows up to which blocks of 192 are better where they leave fewer empty; wider ones make more of
/// the tensor cores.
const NARROWER_ROWS_MAX: usize = 2 * 192;
/// Rows of the blocks that add up all slices.
pub(super) const ALL_ROWS: usize = 256;
/// Outputs and rows of the blocks that [`Path::Tall`] has.
const TALL_OUTPUTS: usize = 192;
const TALL_ROWS: usize = 128;
/// Slices that a pair of them adds up, and units of a sum from which it pays.
const PAIR_SLICES: usize = 4;
const PAIR_UNITS: usize = 128;
/// Slices that two such blocks share best: one of them leaves half a slice, the other one.
pub(super) const HALVED_SLICES: usize = 4;
/// Units of a slice from which adding it to what a block keeps costs less than wider blocks gain.
const KEPT_UNITS: usize = 8;

/// How the kernel for up to 64 rows, and for long sums in slices, cuts a product into blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wide {
    /// Of a block: 16, 32, 64 or 128.
    pub rows: usize,
    /// Blocks that share a sum: 1, 2, 4 or 8, at most one for each slice.
    pub parts: usize,
}

impl Wide {
    /// Pieces of work: so many rows times 128 outputs.
    fn items(self, matrix: &Matrix, rows: usize) -> usize {
        rows.div_ceil(self.rows) * matrix.outputs.div_ceil(BLOCK_OUTPUTS)
    }

    /// Blocks of one part: as many as fit the card at once, or, where a sum is shared, as there is
    /// work for.
    pub(super) fn blocks(self, matrix: &Matrix, scratch: &Scratch, rows: usize) -> usize {
        let items = self.items(matrix, rows);
        // Two of the narrow ones fit a multiprocessor.
        let room = scratch.multiprocessors * if self.rows <= 64 { 2 } else { 1 };
        if self.parts == 1 { items.min(room) } else { items }
    }

    /// Stages of weights and x, and two barriers for each.
    pub(super) fn shared_bytes(self, format: Format) -> usize {
        let stages = match (format, self.rows) {
            (Format::Bf16, 32) => 5,
            (Format::Bf16, 16 | 128) => 6,
            (Format::Bf16, _) => 4,
            (Format::Fp8, 16) => 10,
            (Format::Fp8, 64) => 6,
            (Format::Fp8, _) => 8,
        };
        stages * (stage_bytes(format) + self.rows * UNIT * 2 + 16)
    }
}

/// Stages of weights and x, each with its two barriers, of blocks of so many rows.
pub(super) fn broad_bytes(format: Format, width: usize) -> usize {
    let (weights, x) = match (format, width) {
        (Format::Bf16, 256) => (6, 4),
        (Format::Bf16, 192) => (6, 5),
        (Format::Bf16, _) => (7, 7),
        (Format::Fp8, 256) => (8, 5),
        (Format::Fp8, 192) => (8, 6),
        (Format::Fp8, _) => (8, 10),
    };
    weights * (stage_bytes(format) + 16) + x * (width * UNIT * 2 + 16)
}

/// The same for blocks that add up all slices, which keep 24 columns of 8 rows of what they have.
pub(super) fn all_bytes(format: Format) -> usize {
    let weights = if format == Format::Fp8 { 4 } else { 2 };
    let kept = 24 * 8 * BLOCK_OUTPUTS * size_of::<f32>();
    weights * (stage_bytes(format) + 16) + 3 * (ALL_ROWS * UNIT * 2 + 16) + kept
}

/// Stages of weights and x of blocks of 192 outputs x 128 rows, each with its two barriers.
pub(super) fn tall_bytes(format: Format) -> usize {
    let (weights, x) = if format == Format::Fp8 { (8, 8) } else { (6, 5) };
    let weights_bytes = stage_bytes(format) / BLOCK_OUTPUTS * TALL_OUTPUTS;
    weights * (weights_bytes + 16) + x * (TALL_ROWS * UNIT * 2 + 16)
}

/// Bytes of a unit of a block's weights.
fn stage_bytes(format: Format) -> usize {
    format.tile_words(BLOCK_OUTPUTS, UNIT) * size_of::<u32>()
}

/// Rows of the broad blocks for so many rows.
pub(super) fn broad_width(rows: usize) -> usize {
    let [low, middle, high] = BROAD;
    let fewer = rows.next_multiple_of(middle) < rows.next_multiple_of(high);
    match rows {
        _ if rows <= low => low,
        _ if rows <= NARROWER_ROWS_MAX && fewer => middle,
        _ => high,
    }
}

/// Whether all slices of 256 rows in one block take less time than blocks of 128 rows, for so many
/// tiles of either. A turn of theirs takes some 1.65 times as long, half of it where two blocks
/// share a tile of the last one: see `share_of` in `cu/matmul_broad.cu`.
pub(super) fn pays_all([wide, narrow]: [usize; 2], multiprocessors: usize) -> bool {
    let (full, left) = (wide / multiprocessors, wide % multiprocessors);
    let is_shared = 0 < full && 2 * left <= multiprocessors;
    let halves = 2 * full + if left == 0 { 0 } else { 2 - usize::from(is_shared) };
    5 * halves < 6 * narrow.div_ceil(multiprocessors)
}

/// Tiles of 192 outputs x 128 rows.
fn tall_tiles(outputs: usize, rows: usize) -> usize {
    rows.div_ceil(TALL_ROWS) * outputs.div_ceil(TALL_OUTPUTS)
}

/// How many blocks share the slices of such a tile, where they are best for a sum in slices: as
/// many as have a place at once, if they fill the card with one slice each or some of a long sum;
/// or one alone, where whole sums take less time so than in tiles of 128 outputs. A turn takes some
/// 4/3 as long as one of those.
pub(super) fn tall_parts(
    (outputs, inputs): (usize, usize),
    rows: usize,
    multiprocessors: usize,
) -> Option<usize> {
    let (slices, tiles) = (slices(outputs, inputs), tall_tiles(outputs, rows));
    if rows <= WIDE_ROWS_MAX || slices == 1 {
        return None;
    }
    let fits = |parts: &usize| slices.is_multiple_of(*parts) && parts * tiles <= multiprocessors;
    let is_long = PAIR_UNITS <= inputs / UNIT;
    let fills = |parts: &usize| {
        let leaves_little = *parts == slices || (*parts, slices) == (2, HALVED_SLICES);
        (is_long || leaves_little) && 7 * multiprocessors <= 8 * parts * tiles
    };
    let alone = || {
        let narrow = rows.div_ceil(TALL_ROWS) * outputs.div_ceil(BLOCK_OUTPUTS);
        let [tall, narrow] = [tiles, narrow].map(|it| it.div_ceil(multiprocessors));
        (4 * tall < 3 * narrow).then_some(1)
    };
    [8, 4, 2].into_iter().find(fits).filter(fills).or_else(alone)
}

/// Whether blocks that begin while the product before ends are better for up to 64 rows: where all
/// have a place at once, or a sum is whole. A unit of 8-bit weights takes less time to read than to
/// multiply by few rows, and by any in the long jobs of a whole sum.
pub(super) fn suits_ahead(
    format: Format,
    [outputs, inputs]: [usize; 2],
    rows: usize,
    multiprocessors: usize,
) -> bool {
    let slices = slices(outputs, inputs);
    let is_large = AHEAD_INPUTS_MIN <= inputs && AHEAD_VALUES_MIN <= outputs * inputs;
    let one_turn = outputs.div_ceil(BLOCK_OUTPUTS) * slices <= multiprocessors;
    let is_long = 1 < slices && outputs <= inputs && one_turn;
    is_large
        && match format {
            Format::Bf16 => slices == 1 || is_long,
            Format::Fp8 => is_long && AHEAD_ROWS_MIN_FP8 <= rows,
        }
}

impl Matrix {
    /// Whether a product of so many rows can be cut so.
    pub(super) fn can(&self, scratch: &Scratch, wide: Wide, rows: usize) -> bool {
        if !scratch.hopper || !self.slices.is_multiple_of(wide.parts) {
            return false;
        }
        // What each block leaves: all slices but its last, or all it has so far.
        let left = match (wide.parts, self.slices / wide.parts) {
            (_, 1) => 0,
            (1, _) => 1,
            (_, each) => each - 1,
        };
        let blocks = wide.blocks(self, scratch, rows) * wide.parts;
        blocks * left * wide.rows * BLOCK_OUTPUTS <= scratch.sums.len()
    }

    /// Whether blocks of `width` rows, which wait for each other, can make a product of so many.
    pub(super) fn can_ahead(&self, scratch: &Scratch, width: usize, rows: usize) -> bool {
        let has_room = self.slices == 1 || self.jobs(width, rows) <= JOBS_MAX;
        scratch.hopper && scratch.left.is_some() && rows <= width && has_room
    }

    /// Tiles of 128 outputs x `width` rows that a product of so many rows has.
    pub(super) fn tiles(&self, width: usize, rows: usize) -> usize {
        rows.div_ceil(width) * self.outputs.div_ceil(BLOCK_OUTPUTS)
    }

    /// Their slices.
    pub(super) fn jobs(&self, width: usize, rows: usize) -> usize {
        self.tiles(width, rows) * self.slices
    }

    /// Whether so many blocks can add up all slices of a tile. Each pair makes one.
    pub(super) fn can_add_all(&self, scratch: &Scratch, parts: usize, rows: usize) -> bool {
        let pairs = self.slices == PAIR_SLICES
            && parts * self.tiles(ALL_ROWS, rows) <= scratch.multiprocessors;
        scratch.hopper && (parts == 1 || pairs)
    }

    /// Tiles of 192 outputs x 128 rows that a product of so many rows has.
    pub(super) fn tall_tiles(&self, rows: usize) -> usize {
        tall_tiles(self.outputs, rows)
    }

    /// Whether so many blocks can share the slices of such a tile. They wait for each other, so
    /// each has a multiprocessor to itself.
    pub(super) fn can_tall(&self, scratch: &Scratch, parts: usize, rows: usize) -> bool {
        let each_at_once = parts * self.tall_tiles(rows) <= scratch.multiprocessors;
        scratch.hopper && self.slices.is_multiple_of(parts) && (parts == 1 || each_at_once)
    }

    /// Whether blocks of so many rows can: those with slices of a sum wait for each other, so each
    /// has a multiprocessor to itself.
    pub(super) fn can_broad(&self, scratch: &Scratch, width: usize, rows: usize) -> bool {
        let each_at_once = self.jobs(width, rows) <= scratch.multiprocessors;
        scratch.hopper && (self.slices == 1 || each_at_once)
    }

    /// Every way in which the kernels for Hopper can compute a product of so many rows, with the
    /// rows of a block.
    pub fn on_hopper(&self, scratch: &Scratch, rows: usize) -> Vec<(usize, Path)> {
        let aheads = AHEAD.into_iter().filter(|it| self.can_ahead(scratch, *it, rows));
        let aheads = aheads.map(|it| (it, Path::Ahead(it)));
        let wides = [16, 32, 64, 128]
            .into_iter()
            .flat_map(|rows| [1, 2, 4, 8].into_iter().map(move |parts| Wide { rows, parts }));
        let wides =
            wides.filter(|it| self.can(scratch, *it, rows)).map(|it| (it.rows, Path::Wide(it)));
        let broads = BROAD.into_iter().filter(|it| self.can_broad(scratch, *it, rows));
        let all = [(1, Path::All), (2, Path::Pair)].into_iter();
        let all = all.filter(|it| self.can_add_all(scratch, it.0, rows)).map(|it| (ALL_ROWS, it.1));
        let talls = [1, 2, 4, 8].into_iter().filter(|it| self.can_tall(scratch, *it, rows));
        let talls = talls.map(|it| (TALL_ROWS, Path::Tall(it)));
        let broads = broads.map(|it| (it, Path::Broad(it)));
        aheads.chain(wides).chain(broads).chain(talls).chain(all).collect()
    }

    /// The path that is fastest for a number of rows.
    pub fn path(&self, scratch: &Scratch, rows: usize) -> Path {
        let width = rows.next_power_of_two().min(FEW_MAX);
        let tiles = self.outputs.div_ceil(TILE);
        let rows_read = tiles * width + self.outputs;
        let bytes = rows.div_ceil(width) * rows_read * self.inputs * 2;
        let many = scratch.hopper && MANY_OUTPUTS <= self.outputs && self.slices == 1;
        // Many rows leave a multiprocessor room for one block: a second turn is not worth it.
        let one_turn = tiles * self.slices / 8 <= scratch.multiprocessors;
        let is_long = 1 < self.slices && self.outputs <= self.inputs && one_turn;
        let (few, bytes_max) =
            if is_long { (FEW_LONG, FEW_LONG_BYTES_MAX) } else { (FEW, FEW_BYTES_MAX) };
        if let Some(width) = self.ahead(scratch, rows) {
            return Path::Ahead(width);
        }
        if rows <= 8 || !many && (rows <= few || bytes <= bytes_max) {
            return Path::Few;
        }
        if !scratch.hopper {
            let width = if rows <= 32 { 32 } else { 64 };
            let count = rows.div_ceil(width) * self.outputs.div_ceil(BLOCK_OUTPUTS);
            let is_cut = 1 < self.slices && count < scratch.multiprocessors * 2 / 3;
            return if is_cut { Path::Cut(width) } else { Path::Whole(width) };
        }
        if let Some(width) = self.broad(scratch, rows) {
            return Path::Broad(width);
        }
        if let Some(parts) = self.tall(scratch, rows) {
            return Path::Tall(parts);
        }
        self.add_all(scratch, rows).unwrap_or_else(|| Path::Wide(self.wide(scratch, rows)))
    }

    /// How many blocks of 192 outputs x 128 rows share the slices of a tile, where they are best.
    fn tall(&self, scratch: &Scratch, rows: usize) -> Option<usize> {
        tall_parts((self.outputs, self.inputs), rows, scratch.multiprocessors)
    }

    /// Rows of the blocks that begin while the product before ends, where those are better.
    fn ahead(&self, scratch: &Scratch, rows: usize) -> Option<usize> {
        let width = AHEAD.into_iter().find(|it| rows <= *it)?;
        let sizes = [self.outputs, self.inputs];
        let suits = suits_ahead(self.format, sizes, rows, scratch.multiprocessors);
        (suits && self.can_ahead(scratch, width, rows)).then_some(width)
    }

    /// Blocks that add up all slices, where they are better than those of 128 rows: in pairs for
    /// long sums, alone where they take fewer turns.
    fn add_all(&self, scratch: &Scratch, rows: usize) -> Option<Path> {
        let units = self.inputs / UNIT;
        if rows <= ALL_ROWS / 2 || units < self.slices * KEPT_UNITS {
            return None;
        }
        if PAIR_UNITS <= units && self.can_add_all(scratch, 2, rows) {
            return Some(Path::Pair);
        }
        let tiles = [ALL_ROWS, ALL_ROWS / 2].map(|width| self.tiles(width, rows));
        pays_all(tiles, scratch.multiprocessors).then_some(Path::All)
    }

    /// Rows of the broad blocks, where those are better: for whole sums, and for slices as long as
    /// each has a multiprocessor of its own.
    fn broad(&self, scratch: &Scratch, rows: usize) -> Option<usize> {
        let width = broad_width(rows);
        let wide = match self.format {
            Format::Fp8 if 1 < self.slices => WIDE_ROWS_MAX_FP8,
            _ => WIDE_ROWS_MAX,
        };
        (wide < rows && self.can_broad(scratch, width, rows)).then_some(width)
    }

    /// The widest blocks that have enough of the card, sums shared as far as all blocks fit it.
    /// From measurements on an H200, see `notes/products.md`.
    fn wide(&self, scratch: &Scratch, rows: usize) -> Wide {
        let width = match rows {
            0..=16 => 16,
            17..=32 => 32,
            33..=128 => 64,
            _ => 128,
        };
        // Two of the narrow ones fit a multiprocessor; a few wait for a place at no loss.
        let room =
            if width <= 64 { scratch.multiprocessors * 3 / 2 } else { scratch.multiprocessors };
        // Wide ones keep the sums of slices in registers where they add up all of them, and leave
        // them in memory else: more than one is not worth it.
        let fits = |wide: &Wide| {
            let few_left = width <= 64 || self.slices <= 2 * wide.parts;
            wide.items(self, rows) * wide.parts <= room
                && few_left
                && self.can(scratch, *wide, rows)
        };
        let shared = [8, 4, 2].into_iter().map(|parts| Wide { rows: width, parts });
        shared.into_iter().find(fits).unwrap_or(Wide { rows: width, parts: 1 })
    }
}
