//! Shapes of models that whole steps are timed with.

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
    pub(crate) vocab: usize,
    /// Whether it has a bias before attention, and norms of heads.
    pub(crate) extras: bool,
}

pub(crate) const SHAPES: &[Shape] = &[
    Shape {
        name: "135M",
        hidden: 576,
        intermediate: 1536,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        dim: 64,
        vocab: 49_152,
        extras: false,
    },
    Shape {
        name: "1B",
        hidden: 2048,
        intermediate: 8192,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        dim: 64,
        vocab: 128_256,
        extras: false,
    },
    Shape {
        name: "8B",
        hidden: 4096,
        intermediate: 14_336,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        dim: 128,
        vocab: 128_256,
        extras: false,
    },
];
