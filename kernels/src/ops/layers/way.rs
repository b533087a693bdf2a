//! Which kernel takes a model's layers, and on how many blocks.

use super::Heads;
use super::sizes::{CLUSTER, SLICES, Sized, clusters};
use crate::cuda::{Device, Grid};
use crate::ops::{attend, whole};

/// Rows of a step, at most: one column of the tensor cores.
const ROWS_MAX: usize = 8;
/// And of each team of `cu/layers_small_wide.cu`.
const ROWS_WIDE: usize = 16;
/// Clusters of `cu/layers_small.cu` that share a kv head, where the card has room for them.
pub(super) const TEAMS_MAX: usize = 2;
/// Where there are so many teams, each may have clusters of its own, for more rows.
pub(super) const WIDE: Way = Way::Clusters { teams: TEAMS_MAX };
pub(super) const KERNEL_WIDE: &str = "layers_small_wide";
/// Shared memory that is not for the kernel's own use.
const SHARED_BYTES_LEFT: usize = 128;

/// Which kernel takes a model's layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    /// `cu/layers.cu`: every block has a share of every matrix.
    Shared,
    /// `cu/layers_small.cu`: a cluster of blocks has what hangs together; for each kv head there is
    /// one in each team, which share the sequences of a step.
    Clusters { teams: usize },
}

impl Way {
    /// Its kernel for heads of this size and so many tiles of packed rows.
    pub(super) fn kernel(self, dim: usize, tiles: usize) -> String {
        match self {
            Self::Shared => format!("layers_{dim}_{tiles}"),
            Self::Clusters { .. } => "layers_small".to_owned(),
        }
    }

    /// Blocks of a cluster.
    pub(super) fn cluster(self) -> u32 {
        if self == Self::Shared { 1 } else { whole(CLUSTER) }
    }

    /// Blocks for a step of so many sequences, each on a multiprocessor of its own.
    pub(super) fn blocks(
        self,
        (matrices, heads): (&[Sized; 4], Heads),
        sequences: usize,
        multiprocessors: usize,
    ) -> usize {
        match self {
            Self::Shared => multiprocessors,
            Self::Clusters { teams } => clusters(matrices, heads, teams.min(sequences)) * CLUSTER,
        }
    }
}

/// Whether a step has few rows enough for any kernel.
pub(super) fn is_few(sequences: usize, rows_each: usize) -> bool {
    sequences * rows_each <= ROWS_MAX
}

/// Whether teams that share nothing have room for the rows of a step.
pub(super) fn is_for_wide(sequences: usize, rows_each: usize) -> bool {
    let most = sequences.div_ceil(TEAMS_MAX);
    most <= CLUSTER && most * rows_each <= ROWS_WIDE && rows_each <= attend::ROWS_FEW
}

/// Words with marks that blocks hand each other, of all slices of two products, in two places: what
/// they need for few rows, and behind that for those of the teams that share nothing.
pub(super) fn sums(hidden: usize) -> (usize, usize) {
    let of = |rows: usize| 2 * 2 * SLICES * rows * hidden;
    (of(ROWS_MAX), TEAMS_MAX * of(ROWS_WIDE))
}

/// Of all queries, keys and values.
pub(super) fn qkv(outputs: usize) -> usize {
    ROWS_MAX * outputs
}

/// One block on a multiprocessor.
pub(super) fn grid(device: &Device, blocks: usize) -> Grid {
    let shared_bytes = whole(device.facts().shared_bytes_max - SHARED_BYTES_LEFT);
    Grid { blocks: (whole(blocks), 1, 1), threads: 256, shared_bytes }
}
