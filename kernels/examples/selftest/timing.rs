//! Times: the copy ceiling, each product and attention at model shapes, whole steps.

mod model;

use kernels::cuda::{Device, DeviceError};
use kernels::ops::matmul::{Blocks, Matrix, Out, Path, Rows, Scratch, tile_words};
use kernels::ops::{bf16, block_values};

use crate::random::Random;

/// Weights that are rotated through, so that none is found in the L2 cache.
const COLD_BYTES: u64 = 400 << 20;

/// The median time of what `queue` queues, `inside` times in one recorded graph.
pub(crate) fn median_us(
    device: &Device,
    inside: usize,
    mut queue: impl FnMut(usize) -> Result<(), DeviceError>,
) -> Result<f64, DeviceError> {
    queue(0)?;
    let graph = device.capture(|| (0..inside).try_for_each(&mut queue))?;
    graph.launch()?;
    graph.launch()?;
    let mut times = Vec::new();
    for _ in 0..7 {
        let start = device.clock()?;
        graph.launch()?;
        times.push(f64::from(device.clock()?.since_us(&start)?) / inside as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// A matrix of random values, the same few million again and again.
pub(crate) fn random_matrix(
    device: &Device,
    outputs: usize,
    inputs: usize,
) -> Result<Matrix, DeviceError> {
    let values = Random::new(5).floats(1 << 20, (inputs as f32).sqrt().recip());
    let words: Vec<u32> = values
        .chunks_exact(2)
        .map(|it| [it[0], it[1]].map(|it| u32::from(bf16::from_f32(it).to_bits())))
        .map(|[low, high]| low | high << 16)
        .collect();
    let len = tile_words(outputs, inputs);
    let mut tiles = device.zeros::<u32>(len)?;
    for at in (0..len).step_by(words.len()) {
        let part = words.len().min(len - at);
        device.write(&mut tiles, at, &words[..part])?;
    }
    Ok(Matrix::from_tiles(tiles, outputs, inputs))
}

pub(crate) fn run(mut device: Device) -> Result<(), DeviceError> {
    copy(&device)?;
    for overlap in [false, true] {
        device.set_overlap(overlap);
        println!("overlap {overlap}");
        products(&device)?;
    }
    models(device)
}

pub(crate) fn models(mut device: Device) -> Result<(), DeviceError> {
    for shape in model::SHAPES {
        model::time(&mut device, shape)?;
    }
    Ok(())
}

fn copy(device: &Device) -> Result<(), DeviceError> {
    let from = device.zeros::<f32>(1 << 28)?;
    let mut to = device.zeros::<f32>(1 << 28)?;
    let us = median_us(device, 4, |_| device.copy(&from, &mut to))?;
    println!("copy of 1 GiB: {:.2} TB/s, read and written", 2.0 * (1u64 << 30) as f64 / us / 1e6);
    Ok(())
}

/// (name, outputs, inputs, how many times in a model of that size)
const PRODUCTS: &[(&str, usize, usize)] = &[
    ("135M qkv", 960, 576),
    ("135M o", 576, 576),
    ("135M gate_up", 3072, 576),
    ("135M down", 576, 1536),
    ("135M lm_head", 49_152, 576),
    ("1B qkv", 3072, 2048),
    ("1B o", 2048, 2048),
    ("1B gate_up", 16_384, 2048),
    ("1B down", 2048, 8192),
    ("1B lm_head", 128_256, 2048),
    ("8B qkv", 6144, 4096),
    ("8B o", 4096, 4096),
    ("8B gate_up", 28_672, 4096),
    ("8B down", 4096, 14_336),
    ("8B lm_head", 128_256, 4096),
];

const ROWS: &[usize] = &[1, 8, 16, 32, 64, 128, 256, 1024, 4096];

fn products(device: &Device) -> Result<(), DeviceError> {
    let rows_max = ROWS.iter().copied().max().unwrap_or(1);
    let mut scratch = Scratch::new(device, rows_max)?;
    println!("us a product (% of 4.28 TB/s | TFLOP/s from 256 rows), rows {ROWS:?}");
    for &(name, outputs, inputs) in PRODUCTS {
        let bytes = (outputs * inputs * 2) as u64;
        let copies = usize::try_from(COLD_BYTES / bytes).expect("few").clamp(1, 200);
        let matrices: Vec<Matrix> = (0..copies)
            .map(|_| random_matrix(device, outputs, inputs))
            .collect::<Result<_, _>>()?;
        let values = Random::new(6).floats(rows_max * inputs, 1.0);
        let x = device.upload(&crate::random::rounded(&values))?;
        let mut rounded = device.zeros::<bf16>(block_values(rows_max, outputs / 2))?;
        let mut line = format!("{name:<13}");
        for &rows in ROWS {
            let path = matrices[0].path(&scratch, rows);
            let mut time = |path| {
                median_us(device, copies.max(10), |at| {
                    let rows_of = Rows { x: &x, rows, norm: Some(1e-5) };
                    let out = Out::Gated(&mut rounded);
                    matrices[at % copies].multiply_on(path, device, &mut scratch, rows_of, out)
                })
            };
            let us = time(path)?;
            if path != Path::Few && rows <= 64 {
                let plain = Blocks::Plain(rows);
                line += &format!(" [whole {:.1}", time(Path::Whole(plain))?);
                let slices = matrices[0].slices();
                if 1 < slices {
                    line += &format!(", cut {:.1}", time(Path::Cut(plain, slices))?);
                }
                line += "]";
            }
            line += &if rows < 256 {
                format!(" {us:.1} ({:.0}%)", bytes as f64 / us / 1e6 / 4.28 * 100.0)
            } else {
                format!(" {us:.1} ({:.0}T)", 2.0 * (rows * outputs * inputs) as f64 / us / 1e6)
            };
        }
        println!("{line}");
    }
    Ok(())
}
