//! Timings of the default model's steps, to be run by hand on a quiet machine:
//! `cargo test --release -p kernels -- --ignored --nocapture timing`.

use std::time::Instant;

use super::*;

const HIDDEN: usize = 576;
const INTERMEDIATE: usize = 1536;
const QKV: usize = 960;
const LAYERS: usize = 30;
const VOCAB: usize = 49_152;
const SIZES: KvLayer = KvLayer { kv_heads: 3, head_dim: 64 };
/// Pages of the one sequence that is timed.
const PAGES: u32 = 130;

/// SmolLM2-135M in `Q4_1` with a head in `Q8_0`, of random weights.
struct Model {
    layers: Vec<[Matrix; 4]>,
    head: Matrix,
    norm: Vec<f32>,
    rope: Rope,
    memory: KvPages,
}

/// Seconds that the parts of a step took.
#[derive(Clone, Copy, Default)]
struct Times {
    rows: f64,
    prepare: f64,
    products: f64,
    attention: f64,
    head: f64,
}

impl Model {
    fn new() -> Self {
        let mut chance = Chance(1);
        let mut matrix = |dtype, rows, cols| {
            let bytes = chance.tensor(dtype, rows * cols);
            Matrix::pack(dtype, rows, cols, &bytes, Activations::Int8).unwrap()
        };
        let shapes =
            [(QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)];
        let layers =
            (0..LAYERS).map(|_| shapes.map(|(rows, cols)| matrix(Dtype::Q4_1, rows, cols)));
        let layers = layers.collect();
        let head = matrix(Dtype::Q8_0, VOCAB, HIDDEN);
        Self {
            layers,
            head,
            norm: vec![1.0; HIDDEN],
            rope: Rope::new(SIZES.head_dim, 16 * PAGES as usize, 10_000.0, &[]),
            memory: KvPages::new(PAGES as usize, &[SIZES; LAYERS], KvNumbers::F16),
        }
    }

    /// A step of `rows` rows that end at slot `slots`.
    fn step(&mut self, team: &Team, rows: usize, slots: usize, buffers: &mut Buffers) -> Times {
        let mut times = Times::default();
        let Buffers { inputs, table, residual, normed, qkv, attended, gate_up, gated, logits } =
            buffers;
        let positions: Vec<u32> =
            (slots - rows..slots).map(|it| u32::try_from(it).unwrap()).collect();
        let [residual, normed] = [residual, normed].map(|it| &mut it[..rows * HIDDEN]);
        let (qkv, attended) = (&mut qkv[..rows * QKV], &mut attended[..rows * HIDDEN]);
        let gate_up = &mut gate_up[..2 * rows * INTERMEDIATE];
        let gated = &mut gated[..rows * INTERMEDIATE];
        residual.copy_from_slice(&Chance(7).numbers(rows * HIDDEN));
        for (index, [project, out, up, down]) in self.layers.iter().enumerate() {
            time(&mut times.rows, || rmsnorm(team, residual, &self.norm, 1e-5, normed));
            time(&mut times.prepare, || inputs.prepare(team, normed, HIDDEN, Activations::Int8));
            time(&mut times.products, || matmul(team, project, inputs, qkv));
            time(&mut times.rows, || {
                self.rope.rotate(team, qkv, QKV, 12, &positions);
                for (row, position) in qkv.chunks_exact(QKV).zip(&positions) {
                    let (page, slot) = (table[*position as usize / 16], *position as usize % 16);
                    self.memory.write(index, page, slot, &row[576..768], &row[768..]);
                }
            });
            let seen = qkv.chunks_exact(QKV).zip(&positions).map(|(row, position)| AttentionRow {
                query: &row[..HIDDEN],
                pages: table,
                first: 0,
                last: *position as usize,
            });
            let seen: Vec<_> = seen.collect();
            let memory = &self.memory;
            time(&mut times.attention, || attention(team, memory, index, 0.125, &seen, attended));
            time(&mut times.prepare, || inputs.prepare(team, attended, HIDDEN, Activations::Int8));
            time(&mut times.products, || matmul_add(team, out, inputs, residual));
            time(&mut times.rows, || rmsnorm(team, residual, &self.norm, 1e-5, normed));
            time(&mut times.prepare, || inputs.prepare(team, normed, HIDDEN, Activations::Int8));
            time(&mut times.products, || matmul(team, up, inputs, gate_up));
            time(&mut times.rows, || swiglu(team, gate_up, INTERMEDIATE, gated));
            time(&mut times.prepare, || {
                inputs.prepare(team, gated, INTERMEDIATE, Activations::Int8);
            });
            time(&mut times.products, || matmul_add(team, down, inputs, residual));
        }
        let chosen = if rows <= 16 { rows } else { 1 };
        time(&mut times.head, || {
            inputs.prepare(team, &normed[..chosen * HIDDEN], HIDDEN, Activations::Int8);
            matmul(team, &self.head, inputs, &mut logits[..chosen * VOCAB]);
        });
        times
    }
}

struct Buffers {
    inputs: Inputs,
    table: Vec<u32>,
    residual: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    gate_up: Vec<f32>,
    gated: Vec<f32>,
    logits: Vec<f32>,
}

impl Buffers {
    fn new(rows: usize) -> Self {
        Self {
            inputs: Inputs::with_capacity(rows, INTERMEDIATE, Activations::Int8),
            table: (0..PAGES).map(|it| it * 37 % PAGES).collect(),
            residual: vec![0.0; rows * HIDDEN],
            normed: vec![0.0; rows * HIDDEN],
            qkv: vec![0.0; rows * QKV],
            attended: vec![0.0; rows * HIDDEN],
            gate_up: vec![0.0; rows * 2 * INTERMEDIATE],
            gated: vec![0.0; rows * INTERMEDIATE],
            logits: vec![0.0; 16 * VOCAB],
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a timing, run by hand")]
fn time(sum: &mut f64, body: impl FnOnce()) {
    let start = Instant::now();
    body();
    *sum += start.elapsed().as_secs_f64();
}

/// The quickest of several steps, for each number of threads and rows.
#[test]
#[ignore = "timing; run by hand"]
fn timing_of_steps() {
    let mut model = Model::new();
    let mut buffers = Buffers::new(512);
    pin_current(0).unwrap();
    for instructions in Instructions::available().into_iter().skip(1).rev() {
        for cores in [&[0][..], &[0, 1]] {
            let team = Team::with_instructions(cores, instructions).unwrap();
            println!("{instructions:?}, {} threads; ms of", team.threads());
            println!("rows slots   rows prepare product attend   head   step  tokens/s");
            for (rows, slots) in [1, 2, 4, 6, 8, 16, 32, 128, 512]
                .map(|it| (it, it.max(256)))
                .into_iter()
                .chain([(1, 2048), (4, 2048), (512, 2048)])
            {
                let tries = (60 / rows).max(3);
                let total =
                    |it: &Times| it.rows + it.prepare + it.products + it.attention + it.head;
                let best = (0..tries)
                    .map(|_| model.step(&team, rows, slots, &mut buffers))
                    .min_by(|a, b| total(a).total_cmp(&total(b)))
                    .unwrap();
                println!(
                    "{rows:4} {slots:5} {:6.2} {:7.2} {:7.2} {:6.2} {:6.2} {:6.2} {:9.0}",
                    1e3 * best.rows,
                    1e3 * best.prepare,
                    1e3 * best.products,
                    1e3 * best.attention,
                    1e3 * best.head,
                    1e3 * total(&best),
                    rows as f64 / total(&best),
                );
            }
        }
    }
}
