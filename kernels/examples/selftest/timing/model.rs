//! Whole decoding steps of models of known shapes, random weights: layers, head and sampling.

use kernels::cuda::{Buffer, Device, DeviceError};
use kernels::ops::attend::{self, Attention};
use kernels::ops::matmul::{self, Format, Matrix, Out, Rows};
use kernels::ops::rope::{HeadNorms, Pages, Places, Rotation, Turns};
use kernels::ops::rows::{CHOOSES, Entry, Extent, Lists, Step, StepSizes, StepWords, Wish};
use kernels::ops::sample::{self, Choices, Logits};
use kernels::ops::{bf16, embed};

use super::{lasting_us, median_us, random_matrix};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    vocab: usize,
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
    },
];

const CONTEXT: usize = 256;
const NORM: Option<f32> = Some(1e-5);

struct Layer {
    qkv: Matrix,
    o: Matrix,
    gate_up: Matrix,
    down: Matrix,
}

struct Model {
    shape: Shape,
    layers: Vec<Layer>,
    head: Matrix,
    pages: Pages,
    turns: Turns,
    scratch: matmul::Scratch,
    parts: attend::Scratch,
    stream: Buffer<f32>,
    x: Buffer<bf16>,
    qkv: Buffer<f32>,
    attended: Buffer<bf16>,
    gated: Buffer<bf16>,
    logits: Buffer<f32>,
    choices: Choices,
}

pub(crate) fn time(device: &mut Device, shape: &Shape, format: Format) -> Result<(), DeviceError> {
    let batches = [1, 8, 32, 64, 128, 256];
    let mut model = build(device, shape, format, 1024)?;
    println!(
        "{} {format:?} step, us (context {CONTEXT}); q = 1 plain order, q = 1, q = 4; parts; \
         q = 1 and 4 after two seconds",
        shape.name
    );
    for batch in batches {
        let mut line = format!("batch {batch:<4}");
        for (q, overlap) in [(1, false), (1, true), (4, true)] {
            device.set_overlap(overlap);
            let mut step = lay(device, batch, q)?;
            let us = median_us(device, 1, |_| model.step(device, &mut step, batch, q, All))?;
            line += &format!(" {us:.0}");
        }
        let mut step = lay(device, batch, 1)?;
        // Attention reads what was laid out.
        model.step(device, &mut step, batch, 1, Part(Only::End))?;
        for parts in [Only::Products, Only::Attention, Only::End] {
            let us =
                median_us(device, 1, |_| model.step(device, &mut step, batch, 1, Part(parts)))?;
            line += &format!(" {parts:?} {us:.0}");
        }
        // Only large products bring a card to its power limit.
        for q in [1, 4].into_iter().filter(|_| 256 <= batch && 4096 <= shape.hidden) {
            let mut step = lay(device, batch, q)?;
            let us = lasting_us(device, || model.step(device, &mut step, batch, q, All))?;
            line += &format!(" lasting {us:.0}");
        }
        println!("{line}");
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Only {
    Products,
    Attention,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    All,
    Part(Only),
}
use What::{All, Part};

fn lay(device: &Device, batch: usize, q: usize) -> Result<Step, DeviceError> {
    let pages_max = (CONTEXT + 64) / 16;
    let rows = batch * q;
    let sizes = StepSizes {
        lanes: batch,
        pages: batch * pages_max,
        pages_max,
        rows_max: rows,
        choosers_max: rows,
        drafts_max: 7,
        words_max: 4096 + batch * 128 + batch * pages_max * 3,
    };
    let mut step = Step::new(device, sizes)?;
    let mut words = StepWords::default();
    words.clear();
    let few = |it: usize| u32::try_from(it).expect("few");
    for lane in 0..batch {
        for place in 0..pages_max {
            words.patch(few(lane), few(place), few(lane * pages_max + place));
        }
        let tokens = vec![1; q];
        let entry = Entry {
            lane: few(lane),
            start: few(CONTEXT - q),
            fed: 1,
            drafts: few(q - 1),
            flags: CHOOSES,
            ..Entry::default()
        };
        words.push(entry, Wish::greedy(), Lists { tokens: &tokens, ..Lists::default() }, few(q));
    }
    let sent = words.finish().to_vec();
    device.write(&mut step.inbox, 0, &sent)?;
    Ok(step)
}

fn build(
    device: &Device,
    shape: &Shape,
    format: Format,
    rows: usize,
) -> Result<Model, DeviceError> {
    let Shape { hidden, intermediate, heads, kv_heads, dim, vocab, .. } = *shape;
    let width = heads * dim;
    let random = |outputs, inputs| random_matrix(device, format, outputs, inputs);
    let layer = |_| -> Result<Layer, DeviceError> {
        Ok(Layer {
            qkv: random((heads + 2 * kv_heads) * dim, hidden)?,
            o: random(hidden, width)?,
            gate_up: random(2 * intermediate, hidden)?,
            down: random(hidden, intermediate)?,
        })
    };
    let frequencies: Vec<f32> = (0..dim / 2).map(|it| 0.9_f32.powf(it as f32)).collect();
    Ok(Model {
        shape: *shape,
        layers: (0..shape.layers).map(layer).collect::<Result<_, _>>()?,
        head: random_matrix(device, Format::Bf16, vocab, hidden)?,
        pages: Pages::new(device, shape.layers, 256 * (CONTEXT + 64) / 16, kv_heads, dim)?,
        turns: Turns::new(device, CONTEXT + 64, &frequencies)?,
        scratch: matmul::Scratch::new(device, rows)?,
        parts: attend::Scratch::new(device, 256 * kv_heads, CONTEXT + 64, 64, dim)?,
        stream: device.zeros(rows * hidden)?,
        x: device.zeros(rows * hidden)?,
        qkv: device.zeros(rows * (heads + 2 * kv_heads) * dim)?,
        attended: device.zeros(rows * width)?,
        gated: device.zeros(rows * intermediate)?,
        logits: device.zeros(rows * vocab)?,
        choices: Choices::new(device, rows)?,
    })
}

impl Model {
    fn step(
        &mut self,
        device: &Device,
        step: &mut Step,
        batch: usize,
        q: usize,
        what: What,
    ) -> Result<(), DeviceError> {
        let rows = batch * q;
        let extent = Extent { entries: batch, rows, choosers: rows };
        let does = |only: Only| what == All || what == Part(only);
        if does(Only::End) {
            step.lay(device, extent)?;
            let (stream, x) = (&mut self.stream, &mut self.x);
            embed::launch(device, &self.head, &step.tokens, rows, stream, x, None)?;
        }
        for layer in 0..self.layers.len() {
            if does(Only::Products) {
                let rows = Rows { x: &self.x, rows, norm: NORM };
                let out = Out::Plain(&mut self.qkv);
                self.layers[layer].qkv.multiply(device, &mut self.scratch, rows, out)?;
            }
            if does(Only::Attention) {
                self.attend(device, step, layer, batch, q)?;
            }
            if does(Only::Products) {
                self.rest(device, layer, rows)?;
            }
        }
        if does(Only::End) {
            let of = Rows { x: &self.x, rows, norm: NORM };
            let out = Out::Plain(&mut self.logits);
            self.head.multiply(device, &mut self.scratch, of, out)?;
            let vocab = self.shape.vocab;
            let logits = Logits { rows: &mut self.logits, vocab, slices: None };
            sample::launch(device, step, extent, logits, &mut self.choices)?;
            step.accept(device, extent, &self.choices.tokens)?;
        }
        Ok(())
    }

    fn attend(
        &mut self,
        device: &Device,
        step: &Step,
        layer: usize,
        batch: usize,
        q: usize,
    ) -> Result<(), DeviceError> {
        let places = Places { positions: &step.positions, lanes: &step.lanes, rows: batch * q };
        let rotation = Rotation {
            qkv: &self.qkv,
            heads: self.shape.heads,
            norms: HeadNorms::default(),
            turns: &self.turns,
            behind: 0,
        };
        let attention = Attention {
            rotation,
            places,
            pages: &mut self.pages,
            layer,
            spans: &step.spans,
            spans_len: batch,
            out: &mut self.attended,
        };
        let blocks = if batch * self.shape.kv_heads < 132 { 2 } else { 1 };
        attention.few(device, &mut self.parts, step, q, blocks)
    }

    fn rest(&mut self, device: &Device, layer: usize, rows: usize) -> Result<(), DeviceError> {
        let layer = &self.layers[layer];
        let of = Rows { x: &self.attended, rows, norm: None };
        let out = Out::Residual { stream: &mut self.stream, rounded: &mut self.x, captured: None };
        layer.o.multiply(device, &mut self.scratch, of, out)?;
        let of = Rows { x: &self.x, rows, norm: NORM };
        layer.gate_up.multiply(device, &mut self.scratch, of, Out::Gated(&mut self.gated))?;
        let of = Rows { x: &self.gated, rows, norm: None };
        let out = Out::Residual { stream: &mut self.stream, rounded: &mut self.x, captured: None };
        layer.down.multiply(device, &mut self.scratch, of, out)
    }
}
