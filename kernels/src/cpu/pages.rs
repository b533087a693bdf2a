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
    /// (pages, kv heads, head dim, 16): tokens are side by side, so that a dot product needs no
    /// sum across lanes.
    keys: Vec<f32>,
    /// (pages, kv heads, 16, head dim).
    values: Vec<f32>,
}

impl KvPages {
    /// Memory for `pages` pages in each of the layers, all zero.
    pub fn new(pages: usize, layers: &[KvLayer]) -> Self {
        let layers = layers
            .iter()
            .map(|&sizes| {
                let len = pages * sizes.kv_heads * sizes.head_dim * PAGE_TOKENS;
                Layer { sizes, keys: vec![0.0; len], values: vec![0.0; len] }
            })
            .collect();
        Self { pages, layers }
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
        layers.iter().map(|it| 2 * 4 * it.kv_heads * it.head_dim * PAGE_TOKENS).sum()
    }

    /// Stores a token's keys and values, (kv heads, head dim) each, in slot `slot` of a page.
    pub fn write(&mut self, layer: usize, page: u32, slot: usize, keys: &[f32], values: &[f32]) {
        let Layer { sizes, keys: all_keys, values: all_values } = &mut self.layers[layer];
        let dim = sizes.head_dim;
        assert!(slot < PAGE_TOKENS, "the slot is in the page");
        assert_eq!(keys.len(), sizes.kv_heads * dim, "keys of every head");
        assert_eq!(values.len(), keys.len(), "values of every head");
        let page_len = keys.len() * PAGE_TOKENS;
        let start = page as usize * page_len;
        let page_keys = &mut all_keys[start..][..page_len];
        for (key, lanes) in keys.iter().zip(page_keys.chunks_exact_mut(LANES)) {
            lanes[slot] = *key;
        }
        let page_values = &mut all_values[start..][..page_len];
        let heads = page_values.chunks_exact_mut(PAGE_TOKENS * dim);
        for (values, head) in values.chunks_exact(dim).zip(heads) {
            head[slot * dim..][..dim].copy_from_slice(values);
        }
    }

    /// Keys and values of one head in one page: (head dim, 16) and (16, head dim).
    #[inline(always)]
    pub(super) fn head(&self, layer: usize, page: u32, head: usize) -> (&[f32], &[f32]) {
        let Layer { sizes, keys, values } = &self.layers[layer];
        let len = sizes.head_dim * PAGE_TOKENS;
        let start = (page as usize * sizes.kv_heads + head) * len;
        (&keys[start..][..len], &values[start..][..len])
    }
}
