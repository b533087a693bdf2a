//! Time per step with random weights, as a client of the loop sees it: plain decoding and EAGLE-3
//! rounds of three drafts.

use std::error::Error;

use engine::backend::cuda::{CudaBackend, CudaOptions, Dummy, KvMemory};
use engine::batch::sampling::Sampling;
use engine::clock;
use engine::model::{HeadConfig, ModelConfig, Rope};

use crate::Layout;
use crate::drive::Drive;

const BATCHES: &[u32] = &[1, 8, 32, 64, 128, 256];
const PROMPT: usize = 128;
/// Texts could be as long as an engine that is told nothing lets them be, or nearly.
pub(crate) const CONTEXT_MAX: u32 = 8192;
const NEW: u32 = 256;

pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    vocab: usize,
    draft_vocab: usize,
    tied: bool,
}

const SHAPES: &[Shape] = &[
    Shape {
        name: "135M",
        hidden: 576,
        intermediate: 1536,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        vocab: 49_152,
        draft_vocab: 8192,
        tied: true,
    },
    Shape {
        name: "1B",
        hidden: 2048,
        intermediate: 8192,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        vocab: 128_256,
        draft_vocab: 32_000,
        tied: true,
    },
    Shape {
        name: "8B",
        hidden: 4096,
        intermediate: 14_336,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 128_256,
        draft_vocab: 32_000,
        tied: false,
    },
    // What each of two GPUs computes of these, without what it waits for of the other.
    Shape {
        name: "half-1B",
        hidden: 2048,
        intermediate: 4096,
        layers: 16,
        heads: 16,
        kv_heads: 4,
        head_dim: 64,
        vocab: 64_128,
        draft_vocab: 16_000,
        tied: true,
    },
    Shape {
        name: "half-8B",
        hidden: 4096,
        intermediate: 7168,
        layers: 32,
        heads: 16,
        kv_heads: 4,
        head_dim: 128,
        vocab: 64_128,
        draft_vocab: 16_000,
        tied: false,
    },
];

impl Shape {
    /// The same with few layers, and a matrix of its own for logits: with random weights, texts
    /// would repeat one token otherwise.
    pub(crate) fn few_layers(&self) -> Self {
        Self { layers: 8, tied: false, ..*self }
    }

    pub(crate) fn model(&self) -> ModelConfig {
        ModelConfig {
            name: self.name.to_owned(),
            vocab: self.vocab,
            hidden: self.hidden,
            intermediate: self.intermediate,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            rms_eps: 1e-5,
            rope: Rope { theta: 500_000.0, factors: Vec::new() },
            context_max: 8192,
            tied: self.tied,
            qkv_bias: false,
            qk_norm: false,
        }
    }

    pub(crate) fn head(&self) -> HeadConfig {
        HeadConfig {
            hidden: self.hidden,
            intermediate: self.intermediate,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            draft_vocab: self.draft_vocab,
            rms_eps: 1e-5,
            rope: Rope { theta: 500_000.0, factors: Vec::new() },
            captured_layers: vec![2, self.layers / 2, self.layers - 3],
            norm_before_residual: false,
        }
    }
}

/// For texts of up to `context_max` tokens.
pub(crate) fn options(layout: &Layout, context_max: u32) -> CudaOptions {
    CudaOptions {
        cards: layout.cards.clone(),
        cache: None,
        weights: layout.weights,
        memory: KvMemory::Pages(256 * 26 + 8),
        context_max,
        context_min: context_max,
        rows_max: 4096,
        lanes: 256,
        drafts_max: 3,
        simulated: vec![0.8, 0.75, 0.75],
        records: true,
        share: None,
    }
}

/// Of the shapes that are named, at the batches that are given; of all if there are none.
pub(crate) fn time(layout: &Layout, wanted: &[&str]) -> Result<(), Box<dyn Error>> {
    let (batches, names): (Vec<&str>, Vec<&str>) =
        wanted.iter().partition(|it| it.parse::<u32>().is_ok());
    let batches: Vec<u32> = batches.iter().filter_map(|it| it.parse().ok()).collect();
    let batches = if batches.is_empty() { BATCHES } else { &batches };
    for shape in shapes(&names) {
        let (model, head) = (shape.model(), shape.head());
        for (what, depth, head) in
            [("plain", 0, None), ("K = 0", 0, Some(&head)), ("K = 3", 3, Some(&head))]
        {
            let start = clock::now();
            let options = options(layout, CONTEXT_MAX);
            let mut backend = CudaBackend::dummy(Dummy { model: &model, head }, &options)?;
            let built = clock::now() - start;
            let depths: Vec<u32> = (0..=depth).collect();
            backend.record_all(&depths)?;
            let recorded = clock::now() - start - built;
            let mut drive = Drive::new(backend, depth);
            let mut line = format!("{} {what}, ms a step:", shape.name);
            for &batch in batches {
                line += &format!(" {batch}: {:.3}", one(&mut drive, shape, batch)?);
            }
            let [built, recorded] = [built, recorded].map(|it| it.as_secs_f64());
            println!("{line}  (built in {built:.1} s, recorded in {recorded:.1} s)");
        }
    }
    Ok(())
}

/// Those that are named, or all whole ones.
pub(crate) fn shapes(names: &[&str]) -> impl Iterator<Item = &'static Shape> {
    let whole = |it: &Shape| names.is_empty() && !it.name.starts_with("half");
    SHAPES.iter().filter(move |it| whole(it) || names.contains(&it.name))
}

/// Random ones, other ones for another count.
pub(crate) fn prompts(shape: &Shape, count: usize, tokens: usize) -> Vec<Vec<u32>> {
    let mut rng = fastrand::Rng::with_seed(count as u64);
    let vocab = u32::try_from(shape.vocab).expect("tokens are 32-bit numbers");
    (0..count).map(|_| (0..tokens).map(|_| rng.u32(..vocab)).collect()).collect()
}

fn one(drive: &mut Drive, shape: &Shape, batch: u32) -> Result<f64, Box<dyn Error>> {
    let batch = batch as usize;
    drive.texts(&prompts(shape, batch, PROMPT), batch, NEW, &Sampling::greedy())?;
    // The middle, while every text is being written; the mean, since some steps end with what
    // others left for later.
    let steps = drive.times.len();
    let middle = &drive.times[steps / 3..steps * 2 / 3];
    Ok(middle.iter().map(|it| it.as_secs_f64() * 1e3).sum::<f64>() / middle.len() as f64)
}
