//! Whole decoding steps of models of known shapes, random weights: layers, head and sampling.

use std::ops::Range;

use kernels::cuda::{Buffer, Device, DeviceError};
use kernels::ops::attend::{self, Attention, Crowd, Table};
use kernels::ops::layers::{self, Heads, Layers, Streams};
use kernels::ops::matmul::{self, Captured, Format, Matrix, Out, Rows};
use kernels::ops::rope::{HeadNorms, Pages, Places, Rotation, Turns};
use kernels::ops::rows::{Extent, Step};
use kernels::ops::sample::{self, Choices, Logits};
use kernels::ops::{bf16, embed};

use super::lay::{lay, lay_within};
use super::shapes::Shape;
use super::{lasting_us, median_us, random_matrix};
use crate::random::Random;

const CONTEXT: usize = 256;
const EPS: f32 = 1e-5;
const NORM: Option<f32> = Some(EPS);

struct Layer {
    qkv: Matrix,
    o: Matrix,
    gate_up: Matrix,
    down: Matrix,
    bias: Option<Buffer<f32>>,
    norm: Option<Buffer<f32>>,
    captured_at: Option<usize>,
}

/// Layers behind which the stream is kept.
pub(crate) const CAPTURED: &[usize] = &[0, 2];

pub(crate) struct Model {
    shape: Shape,
    layers: Vec<Layer>,
    /// For all layers at once, where the card can do it.
    at_once: Option<Layers>,
    head: Matrix,
    pub(crate) pages: Pages,
    turns: Turns,
    scratch: matmul::Scratch,
    parts: attend::Scratch,
    table: Table,
    pub(crate) stream: Buffer<f32>,
    pub(crate) x: Buffer<bf16>,
    pub(crate) captured: Buffer<bf16>,
    qkv: Buffer<f32>,
    attended: Buffer<bf16>,
    gated: Buffer<bf16>,
    logits: Buffer<f32>,
    choices: Choices,
}

/// Steps of few rows by separate kernels and by one for all layers, each twice.
pub(crate) fn time_at_once(device: &Device, shape: &Shape) -> Result<(), DeviceError> {
    const LONG: usize = 1024;
    let mut model = build(device, shape, Format::Bf16, (32, 16), LONG)?;
    println!("{} step, us, by separate kernels and at once", shape.name);
    let long =
        [(2 * CONTEXT, (16, 1)), (2 * CONTEXT, (8, 3)), (2 * CONTEXT, (8, 4)), (LONG, (4, 4))];
    let long = long.into_iter().filter(|it| model.takes(it.1.0, it.1.1)).collect::<Vec<_>>();
    let few = [(1, 1), (2, 1), (4, 1), (8, 1), (1, 4), (2, 4)];
    let more = [(12, 1), (16, 1), (8, 2), (16, 2), (8, 3), (3, 4), (4, 4), (8, 4)];
    let sizes = few.into_iter().chain(more.into_iter().filter(|it| model.takes(it.0, it.1)));
    let sizes: Vec<_> = sizes.map(|it| (CONTEXT, it)).collect();
    for (context, (batch, q)) in sizes.into_iter().chain(
        [(2 * CONTEXT, (1, 1)), (2 * CONTEXT, (8, 1)), (LONG, (1, 1)), (LONG, (4, 1))]
            .into_iter()
            .chain(long),
    ) {
        let mut step = lay_within(device, (batch, q), &vec![q; batch], (context, LONG))?;
        let mut line = format!("context {context}, batch {batch} x {q}:");
        for what in [All, AtOnce, All, AtOnce] {
            if what == AtOnce && !model.takes(batch, q) {
                continue;
            }
            let us = median_us(device, 1, |_| model.step(device, &mut step, batch, q, what))?;
            line += &format!(" {us:.0}");
        }
        println!("{line}");
    }
    Ok(())
}

pub(crate) fn time(device: &mut Device, shape: &Shape, format: Format) -> Result<(), DeviceError> {
    let mut model = build(device, shape, format, (1024, 256), CONTEXT)?;
    let batches = [1, 8, 32, 64, 128, 256];
    println!(
        "{} {format:?} step, us (context {CONTEXT}); q = 1 plain order, q = 1, q = 4; parts; \
         q = 1 and 4 after two seconds",
        shape.name
    );
    for batch in batches {
        let mut line = format!("batch {batch:<4}");
        for (q, overlap) in [(1, false), (1, true), (4, true)] {
            device.set_overlap(overlap);
            let mut step = lay(device, (batch, batch), q, CONTEXT)?;
            let us = median_us(device, 1, |_| model.step(device, &mut step, batch, q, All))?;
            line += &format!(" {us:.0}");
        }
        let mut step = lay(device, (batch, batch), 1, CONTEXT)?;
        // Attention reads what was laid out.
        model.step(device, &mut step, batch, 1, Part(Only::End))?;
        for parts in [Only::Products, Only::Attention, Only::End] {
            let us =
                median_us(device, 1, |_| model.step(device, &mut step, batch, 1, Part(parts)))?;
            line += &format!(" {parts:?} {us:.0}");
        }
        // Only large products bring a card to its power limit.
        for q in [1, 4].into_iter().filter(|_| 64 <= batch && 4096 <= shape.hidden) {
            let mut step = lay(device, (batch, batch), q, CONTEXT)?;
            let us = lasting_us(device, || model.step(device, &mut step, batch, q, All))?;
            line += &format!(" lasting {us:.0}");
        }
        println!("{line}");
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Only {
    Products,
    Attention,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    All,
    AtOnce,
    Part(Only),
}
use What::{All, AtOnce, Part};

pub(crate) fn build(
    device: &Device,
    shape: &Shape,
    format: Format,
    (rows, lanes): (usize, usize),
    context: usize,
) -> Result<Model, DeviceError> {
    let Shape { hidden, intermediate, heads, kv_heads, dim, vocab, .. } = *shape;
    let width = heads * dim;
    let matrix = |outputs, inputs| random_matrix(device, format, outputs, inputs);
    let layer = |index: usize| -> Result<Layer, DeviceError> {
        let mut random = Random::new(index as u64);
        let mut extra = |len: usize, scale: f32| -> Result<_, DeviceError> {
            let values = random.floats(len, scale);
            Ok(if shape.extras { Some(device.upload(&values)?) } else { None })
        };
        Ok(Layer {
            qkv: matrix((heads + 2 * kv_heads) * dim, hidden)?,
            o: matrix(hidden, width)?,
            gate_up: matrix(2 * intermediate, hidden)?,
            down: matrix(hidden, intermediate)?,
            bias: extra((heads + 2 * kv_heads) * dim, 0.5)?,
            norm: extra(dim, 1.0)?,
            captured_at: CAPTURED.iter().position(|it| *it == index).map(|it| it * hidden),
        })
    };
    let layers = (0..shape.layers).map(layer).collect::<Result<Vec<_>, _>>()?;
    let parts: Vec<layers::Layer<'_>> = layers.iter().map(Layer::parts).collect();
    let at_once =
        Layers::new(device, &parts, Heads { dim, kv_heads, group: heads / kv_heads }, EPS)?;
    let frequencies: Vec<f32> = (0..dim / 2).map(|it| 0.9_f32.powf(it as f32)).collect();
    Ok(Model {
        shape: *shape,
        layers,
        at_once,
        head: random_matrix(device, Format::Bf16, vocab, hidden)?,
        pages: Pages::new(device, shape.layers, lanes * ((context + 64) / 16), kv_heads, dim)?,
        turns: Turns::new(device, context + 64, &frequencies)?,
        scratch: matmul::Scratch::alone(device, rows)?,
        parts: attend::Scratch::new(device, lanes * kv_heads, context + 64, 64, dim)?,
        table: Table::new(device, lanes)?,
        stream: device.zeros(rows * hidden)?,
        x: device.zeros(rows * hidden)?,
        captured: device.zeros(rows * hidden * CAPTURED.len())?,
        qkv: device.zeros(rows * (heads + 2 * kv_heads) * dim)?,
        attended: device.zeros(rows * width)?,
        gated: device.zeros(rows * intermediate)?,
        logits: device.zeros(rows * vocab)?,
        choices: Choices::new(device, rows)?,
    })
}

impl Layer {
    fn parts(&self) -> layers::Layer<'_> {
        layers::Layer {
            qkv: &self.qkv,
            o: &self.o,
            gate_up: &self.gate_up,
            down: &self.down,
            bias: self.bias.as_ref(),
            q_norm: self.norm.as_ref(),
            k_norm: self.norm.as_ref(),
            captured_at: self.captured_at,
        }
    }
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
        let does = |only: Only| what == Part(only) || matches!(what, All | AtOnce);
        if does(Only::End) {
            self.begin(device, step, batch, q)?;
        }
        if what == AtOnce {
            self.at_once(device, step, 0..self.layers.len(), batch, q)?;
        } else {
            self.apart(device, step, batch, q, does)?;
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

    /// Lays the step out and embeds its rows.
    pub(crate) fn begin(
        &mut self,
        device: &Device,
        step: &mut Step,
        batch: usize,
        q: usize,
    ) -> Result<(), DeviceError> {
        let rows = batch * q;
        step.lay(device, Extent { entries: batch, rows, choosers: rows })?;
        if self.crowd(batch, q).wants_table(device) {
            let places = Places { positions: &step.positions, lanes: &step.lanes, rows };
            self.table.lay(device, step, places, (&step.spans, batch))?;
        }
        let (stream, x) = (&mut self.stream, &mut self.x);
        embed::launch(device, &self.head, &step.tokens, rows, stream, x, None)
    }

    /// Takes the rows through all layers by separate kernels.
    pub(crate) fn apart(
        &mut self,
        device: &Device,
        step: &Step,
        batch: usize,
        q: usize,
        does: impl Fn(Only) -> bool,
    ) -> Result<(), DeviceError> {
        let rows = batch * q;
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
        Ok(())
    }

    pub(crate) fn hidden(&self) -> usize {
        self.shape.hidden
    }

    /// See [`Layers::in_one_team`]; whether there were more.
    pub(crate) fn in_one_team(&mut self) -> bool {
        self.at_once.as_mut().is_some_and(Layers::in_one_team)
    }

    pub(crate) fn takes(&self, batch: usize, q: usize) -> bool {
        self.at_once.as_ref().is_some_and(|it| it.takes(batch, q))
    }

    /// Takes the rows through some layers by one kernel.
    pub(crate) fn at_once(
        &mut self,
        device: &Device,
        step: &Step,
        layers: Range<usize>,
        batch: usize,
        q: usize,
    ) -> Result<(), DeviceError> {
        let Self { at_once, stream, x, captured, parts, .. } = self;
        let attention = Attention {
            rotation: Rotation {
                qkv: &self.qkv,
                heads: self.shape.heads,
                norms: HeadNorms { eps: EPS, ..HeadNorms::default() },
                turns: &self.turns,
                behind: 0,
            },
            places: Places { positions: &step.positions, lanes: &step.lanes, rows: batch * q },
            pages: &mut self.pages,
            layer: layers.start,
            spans: &step.spans,
            spans_len: batch,
            table: None,
            out: &mut self.attended,
        };
        let streams = Streams { stream, rounded: x, captured: Some(captured) };
        let kernel = at_once.as_mut().expect("the card can do it");
        kernel.run(device, parts, step, attention, (layers.len(), q), streams)
    }

    fn crowd(&self, sequences: usize, rows_max: usize) -> Crowd {
        let Shape { heads, kv_heads, dim, .. } = self.shape;
        Crowd { sequences, rows_max, group: heads / kv_heads, kv_heads, head_dim: dim }
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
        let table = self.crowd(batch, q).wants_table(device).then_some(&self.table);
        let of = &self.layers[layer];
        let norms = HeadNorms {
            bias: of.bias.as_ref(),
            queries: of.norm.as_ref(),
            keys: of.norm.as_ref(),
            eps: EPS,
        };
        let rotation = Rotation {
            qkv: &self.qkv,
            heads: self.shape.heads,
            norms,
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
            table,
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
        let columns = CAPTURED.len() * self.shape.hidden;
        let to = &mut self.captured;
        let captured = layer.captured_at.map(|at| Captured { to, at, columns });
        let out = Out::Residual { stream: &mut self.stream, rounded: &mut self.x, captured };
        layer.down.multiply(device, &mut self.scratch, of, out)
    }
}
