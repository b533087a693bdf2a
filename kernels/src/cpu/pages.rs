//! Keys and values in pages of 16 tokens.

use super::rows::LANES;

/// Tokens of a page: as many as a vector has lanes.
pub const PAGE_TOKENS: usize = 16;

/// Sizes of one layer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KvLayer {
    pub kv_heads: usize,
    pub head_dim: usize,
}

/// The pages of all layers. A page has the same number in each.
#[derive(Debug)]
pub struct KvPages {
    pages: usize,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    sizes: KvLayer,
    /// (pages, kv heads, head dim) of 16 tokens: they are side by side, so that a dot product
    /// needs no sum across lanes.
    keys: Vec<[f32; LANES]>,
    /// (pages, kv heads, 16 tokens, head dim / 16) of 16 dimensions, the last filled up.
    values: Vec<[f32; LANES]>,
}

impl KvLayer {
    fn vectors(self) -> usize {
        self.head_dim.div_ceil(LANES)
    }
}

impl KvPages {
    /// Memory for `pages` pages in each of the layers, all zero.
    pub fn new(pages: usize, layers: &[KvLayer]) -> Self {
        let layer = |&sizes: &KvLayer| {
            let heads = pages * sizes.kv_heads;
            Layer {
                sizes,
                keys: vec![[0.0; LANES]; heads * sizes.head_dim],
                values: vec![[0.0; LANES]; heads * PAGE_TOKENS * sizes.vectors()],
            }
        };
        Self { pages, layers: layers.iter().map(layer).collect() }
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Sizes of a layer.
    pub fn layer(&self, layer: usize) -> KvLayer {
        self.layers[layer].sizes
    }

    /// Bytes of one page in all layers.
    pub fn page_bytes(layers: &[KvLayer]) -> usize {
        let vectors = |it: &KvLayer| it.kv_heads * (it.head_dim + PAGE_TOKENS * it.vectors());
        layers.iter().map(|it| vectors(it) * size_of::<[f32; LANES]>()).sum()
    }

    /// Stores a token's keys and values, (kv heads, head dim) each, in slot `slot` of a page.
    pub fn write(&mut self, layer: usize, page: u32, slot: usize, keys: &[f32], values: &[f32]) {
        let Layer { sizes, keys: all_keys, values: all_values } = &mut self.layers[layer];
        assert!(slot < PAGE_TOKENS, "the slot is in the page");
        assert_eq!(keys.len(), sizes.kv_heads * sizes.head_dim, "keys of every head");
        assert_eq!(values.len(), keys.len(), "values of every head");
        let start = page as usize * keys.len();
        for (key, lanes) in keys.iter().zip(&mut all_keys[start..][..keys.len()]) {
            lanes[slot] = *key;
        }
        for (head, values) in values.chunks_exact(sizes.head_dim).enumerate() {
            let token = (page as usize * sizes.kv_heads + head) * PAGE_TOKENS + slot;
            let stored = &mut all_values[token * sizes.vectors()..][..sizes.vectors()];
            stored.as_flattened_mut()[..values.len()].copy_from_slice(values);
        }
    }

    /// The keys and values that stand in a slot, as [`KvPages::write`] took them.
    pub fn read(&self, layer: usize, page: u32, slot: usize) -> (Vec<f32>, Vec<f32>) {
        assert!(slot < PAGE_TOKENS, "the slot is in the page");
        let KvLayer { kv_heads, head_dim } = self.layer(layer);
        let (mut all_keys, mut all_values) = (Vec::new(), Vec::new());
        for head in 0..kv_heads {
            all_keys.extend(self.keys(layer, page, head).iter().map(|lanes| lanes[slot]));
            let values = self.values(layer, page, head, slot).iter().flatten();
            all_values.extend(values.take(head_dim));
        }
        (all_keys, all_values)
    }

    /// Keys of one head in one page: (head dim,) of 16 tokens.
    #[inline(always)]
    pub(super) fn keys(&self, layer: usize, page: u32, head: usize) -> &[[f32; LANES]] {
        let Layer { sizes, keys, .. } = &self.layers[layer];
        let start = (page as usize * sizes.kv_heads + head) * sizes.head_dim;
        &keys[start..][..sizes.head_dim]
    }

    /// Values of one head and token: (head dim / 16,) of 16 dimensions.
    #[inline(always)]
    pub(super) fn values(
        &self,
        layer: usize,
        page: u32,
        head: usize,
        token: usize,
    ) -> &[[f32; LANES]] {
        let Layer { sizes, values, .. } = &self.layers[layer];
        let start = (page as usize * sizes.kv_heads + head) * PAGE_TOKENS + token;
        &values[start * sizes.vectors()..][..sizes.vectors()]
    }
}
