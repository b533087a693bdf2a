//! Prompt processing with random weights: steps of nothing else, and steps in which others decode.

use std::error::Error;

use engine::backend::cuda::{CudaBackend, CudaOptions, Dummy};
use engine::batch::sampling::Sampling;
use engine::batch::step::Event;
use engine::clock;

use crate::Layout;
use crate::drive::Drive;
use crate::steps::{self, Shape};

/// Rows of a step, each the prompt of one text.
const ROWS: &[usize] = &[512, 1024, 2048, 4096];
const PROMPTS: usize = 8;
/// Texts that decode beside prompts, and rows of prompts beside them.
const BESIDE: usize = 32;
const BESIDE_ROWS: usize = 2048;

/// Of the shapes that are named, or of all if none is.
pub(crate) fn time(layout: &Layout, wanted: &[&str]) -> Result<(), Box<dyn Error>> {
    for shape in steps::shapes(wanted) {
        for &rows in ROWS {
            let mut drive = drive(layout, shape, rows)?;
            drive.texts(&steps::prompts(shape, 2, rows), 2, 1, &Sampling::greedy())?;
            let ms = many(&mut drive, shape, rows)?;
            let rate = flops(shape, rows as f64, rows as f64 / 2.0) / ms / 1e9;
            println!("{} {rows} rows: {ms:.2} ms, {rate:.0} TFLOP/s", shape.name);
        }
        let ms = beside(layout, shape)?;
        let (rows, slots) = ((BESIDE + BESIDE_ROWS) as f64, BESIDE_ROWS as f64 / 2.0);
        let rate = flops(shape, rows, slots) / ms / 1e9;
        println!(
            "{} {BESIDE_ROWS} rows beside {BESIDE} texts: {ms:.2} ms, {rate:.0} TFLOP/s",
            shape.name
        );
    }
    Ok(())
}

/// Of products, and of attention of that many rows to so many slots each; without the output head.
fn flops(shape: &Shape, rows: f64, slots: f64) -> f64 {
    let Shape { hidden, intermediate, layers, heads, kv_heads, head_dim, .. } = *shape;
    let weights = hidden * ((2 * heads + 2 * kv_heads) * head_dim + 3 * intermediate);
    let attention = 4.0 * (heads * head_dim) as f64 * slots;
    layers as f64 * rows * (2.0 * weights as f64 + attention)
}

fn drive(layout: &Layout, shape: &Shape, rows: usize) -> Result<Drive, Box<dyn Error>> {
    let model = shape.model();
    let rows_max = u32::try_from(rows)?;
    let options =
        CudaOptions { rows_max, records: false, ..steps::options(layout, steps::CONTEXT_MAX) };
    let backend = CudaBackend::dummy(Dummy { model: &model, head: None }, &options)?;
    Ok(Drive::new(backend, 0))
}

/// Milliseconds a prompt, each in a step of its own.
fn many(drive: &mut Drive, shape: &Shape, rows: usize) -> Result<f64, Box<dyn Error>> {
    for prompt in steps::prompts(shape, PROMPTS, rows) {
        drive.submit(&prompt, 1, &Sampling::greedy())?;
    }
    let start = clock::now();
    let mut done = 0;
    while done < PROMPTS {
        done += drive.step()?.iter().filter(|it| matches!(it, Event::Done { .. })).count();
    }
    Ok((clock::now() - start).as_secs_f64() * 1e3 / PROMPTS as f64)
}

/// The same while others decode in each step.
fn beside(layout: &Layout, shape: &Shape) -> Result<f64, Box<dyn Error>> {
    let mut drive = drive(layout, shape, BESIDE_ROWS + BESIDE)?;
    for prompt in steps::prompts(shape, BESIDE, 16) {
        drive.submit(&prompt, 64, &Sampling::greedy())?;
    }
    for _ in 0..8 {
        drive.step()?;
    }
    many(&mut drive, shape, BESIDE_ROWS)
}
