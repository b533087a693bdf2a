//! Timings of the default model's products, to be run by hand:
//! `cargo test --release -p kernels -- --ignored --nocapture timing`.

use std::time::Instant;

use super::*;

/// Outputs and inputs of the products of one layer of SmolLM2-135M.
const LAYER: [(usize, usize); 4] = [(960, 576), (576, 576), (3072, 576), (576, 1536)];
const LAYERS: usize = 30;
const VOCAB: usize = 49_152;

struct Model {
    layers: Vec<[Matrix; 4]>,
    head: Matrix,
}

impl Model {
    fn new() -> Self {
        let mut chance = Chance(1);
        let layers = (0..LAYERS)
            .map(|_| {
                LAYER.map(|(rows, cols)| {
                    let bytes = chance.tensor(Dtype::Q4_1, rows * cols);
                    Matrix::pack(Dtype::Q4_1, rows, cols, &bytes, Activations::Int8).unwrap()
                })
            })
            .collect();
        let bytes = chance.tensor(Dtype::Q8_0, VOCAB * 576);
        let head = Matrix::pack(Dtype::Q8_0, VOCAB, 576, &bytes, Activations::Int8).unwrap();
        Self { layers, head }
    }
}

#[expect(clippy::disallowed_methods, reason = "a timing, run by hand")]
fn seconds(mut body: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        body();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

#[test]
#[ignore = "timing; run by hand"]
fn timing_of_products() {
    let model = Model::new();
    pin_current(0).unwrap();
    for instructions in Instructions::available().into_iter().rev().take(1) {
        for cores in [&[0][..], &[0, 1]] {
            let team = Team::with_instructions(cores, instructions).unwrap();
            for rows in [1, 2, 4, 6, 8, 16, 32, 128, 512] {
                let x = Chance(2).numbers(rows * 1536);
                let mut inputs = Inputs::with_capacity(rows, 1536, Activations::Int8);
                let mut out = vec![0.0; rows.min(16) * VOCAB.max(4096)];
                let layers = seconds(|| {
                    for layer in &model.layers {
                        for weights in layer {
                            let x = &x[..rows * weights.cols()];
                            inputs.prepare(&team, x, weights.cols(), Activations::Int8);
                            let out = if out.len() < rows * weights.rows() {
                                out.resize(rows * weights.rows(), 0.0);
                                &mut out[..]
                            } else {
                                &mut out[..rows * weights.rows()]
                            };
                            matmul(&team, weights, &inputs, out);
                        }
                    }
                });
                let chosen = if rows <= 16 { rows } else { 1 };
                inputs.prepare(&team, &x[..chosen * 576], 576, Activations::Int8);
                let head =
                    seconds(|| matmul(&team, &model.head, &inputs, &mut out[..chosen * VOCAB]));
                println!(
                    "{instructions:?} threads {} rows {rows:3}: layers {:.2} ms, head of {chosen} \
                     {:.2} ms, {:.0} tokens/s",
                    team.threads(),
                    1e3 * layers,
                    1e3 * head,
                    rows as f64 / (layers + head),
                );
            }
        }
    }
}

#[test]
#[ignore = "timing; run by hand"]
fn timing_of_attention() {
    pin_current(0).unwrap();
    let sizes = KvLayer { kv_heads: 3, head_dim: 64 };
    let pages = 130;
    let mut memory = KvPages::new(pages, &[sizes; LAYERS]);
    let mut chance = Chance(3);
    for layer in 0..LAYERS {
        for slot in 0..u32::try_from(pages * PAGE_TOKENS).unwrap() {
            let (keys, values) = (chance.numbers(192), chance.numbers(192));
            memory.write(layer, slot / 16, slot as usize % 16, &keys, &values);
        }
    }
    let table: Vec<u32> = (0..130).map(|it| it * 37 % 130).collect();
    for instructions in Instructions::available().into_iter().skip(1).rev() {
        for cores in [&[0][..], &[0, 1]] {
            let team = Team::with_instructions(cores, instructions).unwrap();
            for (rows, slots) in [(1, 256), (1, 2048), (4, 256), (8, 2048), (512, 512), (512, 2048)]
            {
                let queries = chance.numbers(rows * 576);
                let rows: Vec<_> = queries
                    .chunks_exact(576)
                    .enumerate()
                    .map(|(i, query)| {
                        let last = slots - rows + i;
                        AttentionRow { query, pages: &table, first: 0, last }
                    })
                    .collect();
                let mut out = vec![0.0; rows.len() * 576];
                let time = seconds(|| {
                    for layer in 0..LAYERS {
                        attention(&team, &memory, layer, 0.125, &rows, &mut out);
                    }
                });
                let pairs: usize = rows.iter().map(|it| it.last + 1).sum();
                let macs = (pairs * 9 * 64 * 2 * LAYERS) as f64;
                println!(
                    "{instructions:?} threads {} rows {:3} slots {slots}: {:.2} ms, {:.1} GMAC/s",
                    team.threads(),
                    rows.len(),
                    1e3 * time,
                    1e-9 * macs / time,
                );
            }
        }
    }
}
