//! Times: the copy ceiling, each product and attention at model shapes, whole steps.

pub(crate) mod lay;
pub(crate) mod model;
pub(crate) mod shapes;

use kernels::cuda::{Buffer, Device, DeviceError};
use kernels::ops::matmul::{Format, Matrix, Out, Path, Rows, Scratch};
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

/// The time of what `queue` queues, in one graph, after two seconds of nothing else: a card that
/// is at its power limit has lowered its clock by then.
pub(crate) fn lasting_us(
    device: &Device,
    mut queue: impl FnMut() -> Result<(), DeviceError>,
) -> Result<f64, DeviceError> {
    const LAST: usize = 20;
    let once = median_us(device, 1, |_| queue())?;
    let graph = device.capture(&mut queue)?;
    let mut spent = 0.0;
    while spent < 2e6 {
        graph.launch()?;
        spent += once;
    }
    let start = device.clock()?;
    (0..LAST).try_for_each(|_| graph.launch())?;
    Ok(f64::from(device.clock()?.since_us(&start)?) / LAST as f64)
}

/// A matrix of random values, the same few million again and again.
pub(crate) fn random_matrix(
    device: &Device,
    format: Format,
    outputs: usize,
    inputs: usize,
) -> Result<Matrix, DeviceError> {
    let mut random = Random::new(5);
    let mut words = device.zeros::<u32>(format.words(outputs, inputs))?;
    let deviation = (inputs as f32).sqrt().recip();
    let draw = || (random.draw() >> 32) as u32;
    format.fill_randomly(device, &mut words, (outputs, inputs), deviation, draw)?;
    Ok(Matrix::new(words, format, outputs, inputs))
}

pub(crate) fn run(mut device: Device, format: Format) -> Result<(), DeviceError> {
    copy(&device)?;
    products(&device, format)?;
    models(&mut device, format, None)
}

/// Of the shape that is named, or of all.
pub(crate) fn at_once(device: &Device, named: Option<&str>) -> Result<(), DeviceError> {
    wanted(named).try_for_each(|shape| model::time_at_once(device, shape))
}

fn wanted(named: Option<&str>) -> impl Iterator<Item = &'static shapes::Shape> {
    shapes::SHAPES.iter().filter(move |it| named.is_none_or(|name| it.name == name))
}

/// Of the shape that is named, or of all.
pub(crate) fn models(
    device: &mut Device,
    format: Format,
    named: Option<&str>,
) -> Result<(), DeviceError> {
    wanted(named).try_for_each(|shape| model::time(device, shape, format))
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

const ROWS: &[usize] = &[1, 8, 16, 32, 64, 128, 192, 256, 512, 1024, 4096];

/// A product as a model has it: what comes before it and after it.
struct Product {
    matrices: Vec<Matrix>,
    name: &'static str,
    x: Buffer<bf16>,
    sums: Buffer<f32>,
    rounded: Buffer<bf16>,
}

impl Product {
    /// One of the matrices that are rotated through, so that none is found in the L2 cache.
    fn queue(
        &mut self,
        device: &Device,
        scratch: &mut Scratch,
        at: usize,
        rows: usize,
        path: Path,
    ) -> Result<(), DeviceError> {
        let Self { matrices, name, x, sums, rounded } = self;
        let is = |part: &str| name.ends_with(part);
        let adds = is(" o") || is(" down");
        let norm = (!adds).then_some(1e-5);
        let out = if adds {
            Out::Residual { stream: sums, rounded, captured: None }
        } else if is(" gate_up") {
            Out::Gated(rounded)
        } else {
            Out::Plain(sums)
        };
        let matrix = &matrices[at % matrices.len()];
        matrix.multiply_on(path, device, scratch, Rows { x, rows, norm }, out)
    }
}

fn products(device: &Device, format: Format) -> Result<(), DeviceError> {
    let rows_max = ROWS.iter().copied().max().unwrap_or(1);
    let mut scratch = Scratch::alone(device, rows_max)?;
    for &(name, outputs, inputs) in PRODUCTS {
        let bytes = (outputs * inputs * 2) as u64;
        let copies = usize::try_from(COLD_BYTES / bytes).expect("few").clamp(1, 200);
        let matrices: Vec<Matrix> = (0..copies)
            .map(|_| random_matrix(device, format, outputs, inputs))
            .collect::<Result<_, _>>()?;
        let values = Random::new(6).floats(rows_max * inputs, 1.0);
        let x = device.upload(&crate::random::rounded(&values))?;
        let sums = device.zeros(rows_max * outputs)?;
        let rounded = device.zeros(block_values(rows_max, outputs))?;
        let mut product = Product { matrices, name, x, sums, rounded };
        for &rows in ROWS {
            println!("{name} {rows}: {}", ways(device, &mut scratch, &mut product, rows)?);
        }
    }
    Ok(())
}

/// The time of the path that is taken, then of the fastest ones, which may be others.
fn ways(
    device: &Device,
    scratch: &mut Scratch,
    product: &mut Product,
    rows: usize,
) -> Result<String, DeviceError> {
    let matrix = &product.matrices[0];
    let bytes = matrix.bytes();
    let flops = 2.0 * (rows * matrix.outputs() * matrix.inputs()) as f64;
    let mut paths = vec![matrix.path(scratch, rows)];
    let others = matrix.on_hopper(scratch, rows).into_iter();
    // Blocks that are far too wide or narrow are not worth the time.
    paths.extend(others.filter(|(of, _)| *of <= 2 * rows && rows <= 4 * of).map(|it| it.1));
    paths.extend((rows <= 256).then_some(Path::Few));
    let mut times = Vec::new();
    for path in paths {
        let inside = product.matrices.len().max(if bytes > 1 << 28 { 2 } else { 10 });
        let us = median_us(device, inside, |at| product.queue(device, scratch, at, rows, path))?;
        times.push((us, path));
    }
    let taken = times.remove(0);
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let share = bytes as f64 / taken.0 / 1e6 / 4.28 * 100.0;
    let mut line = format!("{:.1} us, {share:.0}%, {:.0}T", taken.0, flops / taken.0 / 1e6);
    for (us, path) in [taken].iter().chain(times.iter().take(4)) {
        line += &match path {
            Path::Wide(it) => format!(" {}/{} {us:.1}", it.rows, it.parts),
            Path::Broad(rows) => format!(" {rows} {us:.1}"),
            other => format!(" {other:?} {us:.1}"),
        };
    }
    Ok(line)
}
