//! Keys and values in pages of 16 tokens.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::rows::LANES;
use super::simd::vector::Vector;

/// Tokens of a page: as many as a vector has lanes.
pub const PAGE_TOKENS: usize = 16;

/// Sizes of one layer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KvLayer {
    pub kv_heads: usize,
    pub head_dim: usize,
}

/// In what numbers keys and values are kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KvNumbers {
    F32,
    /// Half precision: half the memory and, in long texts, half the reading.
    F16,
}

/// The pages of all layers. A page has the same number in each.
#[derive(Debug)]
pub struct KvPages {
    pages: usize,
    numbers: KvNumbers,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    sizes: KvLayer,
    /// (pages, kv heads, head dim) of 16 tokens: they are side by side, so that a dot product
    /// needs no sum across lanes.
    keys: Store,
    /// (pages, kv heads, 16 tokens, head dim / 16) of 16 dimensions, the last filled up.
    values: Store,
}

/// Groups of 16 numbers.
#[derive(Debug)]
pub(crate) enum Store {
    Single(Vec<[f32; LANES]>),
    Half(Vec<[Half; LANES]>),
}

/// The bits of a number in half precision.
pub(crate) type Half = u16;

/// A number as it is kept.
pub(crate) trait Kept: Copy {
    fn all(store: &Store) -> &[[Self; LANES]];

    fn load<V: Vector>(v: V, x: &[Self; LANES]) -> V::Lanes;
}

impl Kept for f32 {
    #[inline(always)]
    fn all(store: &Store) -> &[[Self; LANES]] {
        let Store::Single(numbers) = store else { unreachable!("the numbers are f32") };
        numbers
    }

    #[inline(always)]
    fn load<V: Vector>(v: V, x: &[Self; LANES]) -> V::Lanes {
        v.load(x)
    }
}

impl Kept for Half {
    #[inline(always)]
    fn all(store: &Store) -> &[[Self; LANES]] {
        let Store::Half(numbers) = store else { unreachable!("the numbers are f16") };
        numbers
    }

    #[inline(always)]
    fn load<V: Vector>(v: V, x: &[Self; LANES]) -> V::Lanes {
        v.load_half(x)
    }
}

impl Store {
    fn zeros(numbers: KvNumbers, groups: usize) -> Self {
        match numbers {
            KvNumbers::F32 => Self::Single(vec![[0.0; LANES]; groups]),
            KvNumbers::F16 => Self::Half(vec![[0; LANES]; groups]),
        }
    }

    /// Number `at`, counted through all groups.
    fn number(&self, at: usize) -> f32 {
        match self {
            Self::Single(all) => all.as_flattened()[at],
            Self::Half(all) => half::f16::from_bits(all.as_flattened()[at]).to_f32(),
        }
    }

    /// Numbers from `at` on, side by side.
    fn write(&mut self, at: usize, numbers: &[f32]) {
        let end = at + numbers.len();
        match self {
            Self::Single(all) => all.as_flattened_mut()[at..end].copy_from_slice(numbers),
            Self::Half(all) => {
                let out: &mut [half::f16] = all.as_flattened_mut()[at..end].reinterpret_cast_mut();
                out.convert_from_f32_slice(numbers);
            }
        }
    }

    /// Numbers as lane `lane` of the groups from `group` on.
    fn write_lane(&mut self, group: usize, lane: usize, numbers: &[f32]) {
        match self {
            Self::Single(all) => {
                for (out, number) in all[group..].iter_mut().zip(numbers) {
                    out[lane] = *number;
                }
            }
            Self::Half(all) => {
                for (out, numbers) in all[group..].chunks_mut(LANES).zip(numbers.chunks(LANES)) {
                    let mut halves = [half::f16::ZERO; LANES];
                    halves[..numbers.len()].convert_from_f32_slice(numbers);
                    for (out, half) in out.iter_mut().zip(&halves[..numbers.len()]) {
                        out[lane] = half.to_bits();
                    }
                }
            }
        }
    }
}

impl KvLayer {
    fn vectors(self) -> usize {
        self.head_dim.div_ceil(LANES)
    }
}

impl KvPages {
    /// Memory for `pages` pages in each of the layers, all zero.
    pub fn new(pages: usize, layers: &[KvLayer], numbers: KvNumbers) -> Self {
        let layer = |&sizes: &KvLayer| {
            let heads = pages * sizes.kv_heads;
            Layer {
                sizes,
                keys: Store::zeros(numbers, heads * sizes.head_dim),
                values: Store::zeros(numbers, heads * PAGE_TOKENS * sizes.vectors()),
            }
        };
        Self { pages, numbers, layers: layers.iter().map(layer).collect() }
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    pub fn numbers(&self) -> KvNumbers {
        self.numbers
    }

    /// Sizes of a layer.
    pub fn layer(&self, layer: usize) -> KvLayer {
        self.layers[layer].sizes
    }

    /// Bytes of one page in all layers.
    pub fn page_bytes(layers: &[KvLayer], numbers: KvNumbers) -> usize {
        let groups = |it: &KvLayer| it.kv_heads * (it.head_dim + PAGE_TOKENS * it.vectors());
        let width = match numbers {
            KvNumbers::F32 => 4,
            KvNumbers::F16 => 2,
        };
        layers.iter().map(|it| groups(it) * LANES * width).sum()
    }

    /// Stores a token's keys and values, (kv heads, head dim) each, in slot `slot` of a page.
    pub fn write(&mut self, layer: usize, page: u32, slot: usize, keys: &[f32], values: &[f32]) {
        let Layer { sizes, keys: all_keys, values: all_values } = &mut self.layers[layer];
        assert!(slot < PAGE_TOKENS, "the slot is in the page");
        assert_eq!(keys.len(), sizes.kv_heads * sizes.head_dim, "keys of every head");
        assert_eq!(values.len(), keys.len(), "values of every head");
        all_keys.write_lane(page as usize * keys.len(), slot, keys);
        for (head, values) in values.chunks_exact(sizes.head_dim).enumerate() {
            let token = (page as usize * sizes.kv_heads + head) * PAGE_TOKENS + slot;
            all_values.write(token * sizes.vectors() * LANES, values);
        }
    }

    /// The keys and values that stand in a slot, as [`KvPages::write`] took
    /// them, rounded to the numbers they are kept in.
    pub fn read(&self, layer: usize, page: u32, slot: usize) -> (Vec<f32>, Vec<f32>) {
        assert!(slot < PAGE_TOKENS, "the slot is in the page");
        let Layer { sizes, keys, values } = &self.layers[layer];
        let heads = page as usize * sizes.kv_heads..(page as usize + 1) * sizes.kv_heads;
        let (mut read_keys, mut read_values) = (Vec::new(), Vec::new());
        for head in heads {
            let key = |i| keys.number((head * sizes.head_dim + i) * LANES + slot);
            read_keys.extend((0..sizes.head_dim).map(key));
            let token = (head * PAGE_TOKENS + slot) * sizes.vectors() * LANES;
            read_values.extend((0..sizes.head_dim).map(|i| values.number(token + i)));
        }
        (read_keys, read_values)
    }

    /// Keys of one head in one page: (head dim,) of 16 tokens.
    #[inline(always)]
    pub(super) fn keys<K: Kept>(&self, layer: usize, page: u32, head: usize) -> &[[K; LANES]] {
        let Layer { sizes, keys, .. } = &self.layers[layer];
        let start = (page as usize * sizes.kv_heads + head) * sizes.head_dim;
        &K::all(keys)[start..][..sizes.head_dim]
    }

    /// Values of one head in one page: (16 tokens, head dim / 16) of 16 dimensions.
    #[inline(always)]
    pub(super) fn values<K: Kept>(&self, layer: usize, page: u32, head: usize) -> &[[K; LANES]] {
        let Layer { sizes, values, .. } = &self.layers[layer];
        let len = PAGE_TOKENS * sizes.vectors();
        &K::all(values)[(page as usize * sizes.kv_heads + head) * len..][..len]
    }
}
