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
    for _ in 0..50 {
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
