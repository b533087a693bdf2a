//! Bias, head norm and rotary position on queries and keys; the pages of keys and values.

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::rows::{PAGE_TOKENS, Step};
use super::whole;
use crate::cuda::{Arg, Buffer, Device, DeviceError, Grid};

/// Keys and values of all pages: for each layer (pages, 2, kv_heads, head_dim / 64, 16, 64), keys
/// first. A token's eight chunks of 8 values stand in the order of `within_slot` in `cu/rope.cuh`.
#[derive(Debug)]
pub struct Pages {
    memory: Buffer<bf16>,
    pages: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl Pages {
    /// Values of one page in one layer.
    pub const fn page_values(kv_heads: usize, head_dim: usize) -> usize {
        2 * kv_heads * PAGE_TOKENS * head_dim
    }

    pub fn new(
        device: &Device,
        layers: usize,
        pages: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> Result<Self, DeviceError> {
        let values = layers * pages * Self::page_values(kv_heads, head_dim);
        Ok(Self { memory: device.zeros(values)?, pages, kv_heads, head_dim })
    }

    fn layer(&mut self, layer: usize) -> u64 {
        let values = self.layer_values();
        assert!((layer + 1) * values <= self.memory.len(), "the layer is there");
        self.memory.write() + (layer * values * size_of::<bf16>()) as u64
    }

    /// Values of all pages in one layer.
    pub(super) fn layer_values(&self) -> usize {
        self.pages * Self::page_values(self.kv_heads, self.head_dim)
    }

    pub fn memory(&self) -> &Buffer<bf16> {
        &self.memory
    }

    /// For tests, which fill it with what must not be read.
    pub fn memory_mut(&mut self) -> &mut Buffer<bf16> {
        &mut self.memory
    }
}

/// Cosines and sines of every position: (positions, head_dim / 2) pairs.
#[derive(Debug)]
pub struct Turns {
    table: Buffer<[f32; 2]>,
    half: usize,
}

/// The angle is rounded to f32, as reference implementations do; its cosine and sine are exact.
pub fn cpu_turn(position: usize, frequency: f32) -> [f32; 2] {
    let angle = f64::from(position as f32 * frequency);
    #[expect(clippy::cast_possible_truncation, reason = "the table rounds once, here")]
    {
        [angle.cos() as f32, angle.sin() as f32]
    }
}

impl Turns {
    /// frequencies: (head_dim / 2), radians a position.
    pub fn new(
        device: &Device,
        positions: usize,
        frequencies: &[f32],
    ) -> Result<Self, DeviceError> {
        let table: Vec<[f32; 2]> = (0..positions)
            .flat_map(|position| frequencies.iter().map(move |&it| cpu_turn(position, it)))
            .collect();
        Ok(Self { table: device.upload(&table)?, half: frequencies.len() })
    }
}

/// What a layer has beside its matrices.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadNorms<'a> {
    /// ((heads + 2 kv_heads) head_dim), if there is one.
    pub bias: Option<&'a Buffer<f32>>,
    /// (head_dim): RMSNorm of each query head, if there is one.
    pub queries: Option<&'a Buffer<f32>>,
    pub keys: Option<&'a Buffer<f32>>,
    pub eps: f32,
}

/// Where rows stand: their positions and lanes.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    pub positions: &'a Buffer<i32>,
    pub lanes: &'a Buffer<u32>,
    pub rows: usize,
}

/// One layer's queries, keys and values before they are turned, and how they are.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// (rows, (heads + 2 kv_heads) head_dim): queries, keys, values.
    pub qkv: &'a Buffer<f32>,
    /// Query heads; 0 where only keys and values are kept.
    pub heads: usize,
    pub norms: HeadNorms<'a>,
    pub turns: &'a Turns,
    /// The rotary position is the row's position less this; rows and keys before do not exist.
    pub behind: u32,
}

/// The twin of `Rope` in `cu/rope.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct Args {
    qkv: u64,
    bias: u64,
    q_norm: u64,
    k_norm: u64,
    turns: u64,
    positions: u64,
    lanes: u64,
    pages: u64,
    q: u64,
    layer: u64,
    heads: u32,
    kv_heads: u32,
    pages_max: u32,
    behind: u32,
    eps: f32,
    padding: u32,
}

impl Rotation<'_> {
    pub(super) fn args(
        &self,
        step: &Step,
        places: Places<'_>,
        pages: &mut Pages,
        layer: usize,
    ) -> Args {
        let Self { qkv, heads, norms, turns, behind } = *self;
        let (rows, dim) = (places.rows, pages.head_dim);
        let width = (heads + 2 * pages.kv_heads) * dim;
        assert!(rows * width <= qkv.len(), "a place for each row");
        assert!(rows <= places.positions.len() && rows <= places.lanes.len(), "a place for each");
        assert_eq!(turns.half * 2, dim, "turns are made for this head size");
        assert!(norms.bias.is_none_or(|it| it.len() == width), "a bias for each output");
        let positions = step.sizes.pages_max * PAGE_TOKENS;
        assert!(positions <= turns.table.len() / turns.half, "turns reach");
        Args {
            qkv: qkv.read(),
            bias: norms.bias.map_or(0, Buffer::read),
            q_norm: norms.queries.map_or(0, Buffer::read),
            k_norm: norms.keys.map_or(0, Buffer::read),
            turns: turns.table.read(),
            positions: places.positions.read(),
            lanes: places.lanes.read(),
            pages: step.pages.read(),
            q: 0,
            layer: pages.layer(layer),
            heads: whole(heads),
            kv_heads: whole(pages.kv_heads),
            pages_max: whole(step.sizes.pages_max),
            behind,
            eps: norms.eps,
            padding: 0,
        }
    }

    /// Turns queries into `q` (rows, heads head_dim), and keys, which go with values to the pages.
    pub fn rotate(
        &self,
        device: &Device,
        step: &Step,
        places: Places<'_>,
        (pages, layer): (&mut Pages, usize),
        q: &mut Buffer<bf16>,
    ) -> Result<(), DeviceError> {
        assert!(places.rows * self.heads * pages.head_dim <= q.len(), "a place for each query");
        let args = Args { q: q.write(), ..self.args(step, places, pages, layer) };
        launch(device, args, places.rows, pages.head_dim)
    }

    /// Where there are no queries: turned keys go with values to the pages.
    pub fn store(
        &self,
        device: &Device,
        step: &Step,
        places: Places<'_>,
        (pages, layer): (&mut Pages, usize),
    ) -> Result<(), DeviceError> {
        assert_eq!(self.heads, 0, "no queries");
        let args = self.args(step, places, pages, layer);
        launch(device, args, places.rows, pages.head_dim)
    }
}

fn launch(device: &Device, args: Args, rows: usize, head_dim: usize) -> Result<(), DeviceError> {
    let kernel = match head_dim {
        64 => "rope_64",
        128 => "rope_128",
        _ => unreachable!("the backend takes heads of 64 and 128"),
    };
    device.launch(kernel, Grid::new(whole(rows), 128), &[Arg::value(&args)])
}

impl Args {
    pub(super) fn set_queries(&mut self, q: &Buffer<bf16>) {
        self.q = q.read();
    }
}

/// Rotates one head in place. turns: (head_dim / 2).
pub fn cpu(head: &mut [f32], turns: &[[f32; 2]]) {
    let (first, second) = head.split_at_mut(turns.len());
    for ((a, b), [cos, sin]) in first.iter_mut().zip(second).zip(turns) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
