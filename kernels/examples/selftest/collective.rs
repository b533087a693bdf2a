//! Sums of two ranks, and their choices, on a GPU each where there are two, else on the same.

use std::sync::Arc;

use kernels::cuda::{Buffer, Card, Device, DeviceError, Graph};
use kernels::ops::bf16;
use kernels::ops::block_values;
use kernels::ops::collective::{Collective, CollectiveSizes, Stream, cpu_add};
use kernels::ops::matmul::Captured;

use crate::Report;
use crate::random::{Random, floats, poison, rounded, unblocked};

mod choices;

const ROWS_MAX: usize = 2048;
const RANKS: usize = 2;

/// One GPU, its way to the other, and what sums are added to.
struct Rank {
    device: Arc<Device>,
    way: Collective,
    stream: Buffer<f32>,
    rounded: Buffer<bf16>,
    captured: Buffer<bf16>,
}

impl Rank {
    /// Queues one sum. What is captured stands beside 64 other columns.
    fn add(&mut self, rows: usize, columns: usize) -> Result<(), DeviceError> {
        let captured = Captured { to: &mut self.captured, at: 64, columns: columns + 64 };
        let Self { stream, rounded, .. } = self;
        self.way.add(rows, columns, Stream { stream, rounded, captured: Some(captured) })
    }
}

fn ranks(first: &Arc<Device>, columns: usize) -> Result<Vec<Rank>, DeviceError> {
    let cache =
        std::env::var_os("XDG_CACHE_HOME").map(|it| std::path::PathBuf::from(it).join("kernels"));
    let open = |number| Device::open(&Card::Number(number), cache.as_deref());
    let second = match open(1) {
        Err(DeviceError::NoDevice(_)) => open(0)?,
        opened => opened?,
    };
    let both = [first.identifier()?, second.identifier()?];
    println!("ranks on {both:?}");
    let second = Arc::new(second);
    let devices = [Arc::clone(first), second];
    let sizes = CollectiveSizes {
        rows: ROWS_MAX,
        columns,
        choosers: choices::ROWS_MAX,
        slice: choices::ROWS_MAX * choices::VOCAB / RANKS,
    };
    let ways = Collective::connect(&devices, sizes)?;
    let rank = |(device, way): (Arc<Device>, Collective)| {
        Ok(Rank {
            stream: device.zeros(ROWS_MAX * columns)?,
            rounded: device.upload(&poison(block_values(ROWS_MAX, columns)))?,
            captured: device.upload(&poison(block_values(ROWS_MAX, columns + 64)))?,
            device,
            way,
        })
    };
    devices.into_iter().zip(ways).map(rank).collect()
}

pub(crate) fn compare(
    first: &Arc<Device>,
    report: &mut Report,
    quick: bool,
) -> Result<(), DeviceError> {
    let counts: &[usize] =
        if quick { &[1, 3, 9] } else { &[1, 3, 8, 9, 63, 64, 65, 128, 300, 1, 455, 456, 2048] };
    for columns in [576, 4096] {
        let mut ranks = ranks(first, columns)?;
        let mut random = Random::new(columns as u64);
        for &rows in counts {
            sums(&mut ranks, report, &mut random, (rows, columns))?;
        }
        if columns == 576 {
            choices::compare(&mut ranks, report, &mut random, quick)?;
        }
        for rows in if quick { [1, 4] } else { [5, 500] } {
            recorded(&mut ranks, report, &mut random, (rows, columns))?;
        }
    }
    Ok(())
}

fn read(rank: &Rank, rows: usize, columns: usize) -> Result<Vec<f32>, DeviceError> {
    rank.device.read(&rank.stream, 0..rows * columns)
}

/// So many values of each rank.
fn parts(random: &mut Random, values: usize) -> Vec<Vec<f32>> {
    (0..RANKS).map(|_| (0..values).map(|_| random.float()).collect()).collect()
}

/// Three sums, so that both turns are used, against the reference: the same bits everywhere.
fn sums(
    ranks: &mut [Rank],
    report: &mut Report,
    random: &mut Random,
    (rows, columns): (usize, usize),
) -> Result<(), DeviceError> {
    let mut want = random.floats(rows * columns, 1.0);
    for rank in &mut *ranks {
        rank.device.write(&mut rank.stream, 0, &want)?;
    }
    for _ in 0..3 {
        let parts = parts(random, rows * columns);
        want = cpu_add(&want, &parts);
        for (rank, part) in ranks.iter_mut().zip(&parts) {
            let Rank { device, way, .. } = rank;
            device.write(way.part(), 0, part)?;
            rank.add(rows, columns)?;
        }
    }
    for (number, rank) in ranks.iter().enumerate() {
        let name = format!("rank {number}, sum of {rows} x {columns}");
        report.same(&name, &read(rank, rows, columns)?, &want);
        let values = rank.device.read(&rank.rounded, 0..block_values(rows, columns))?;
        let got = unblocked(&floats(&values), rows, columns);
        report.same(&format!("{name}, rounded"), &got, &floats(&rounded(&want)));
        let values = rank.device.read(&rank.captured, 0..block_values(rows, columns + 64))?;
        let kept = unblocked(&floats(&values), rows, columns + 64);
        let kept: Vec<f32> =
            kept.chunks_exact(columns + 64).flat_map(|row| row[64..].to_vec()).collect();
        report.same(&format!("{name}, captured"), &kept, &floats(&rounded(&want)));
    }
    Ok(())
}

/// The sums of a recorded step, again and again: no wait of the host keeps the ranks together.
fn recorded(
    ranks: &mut [Rank],
    report: &mut Report,
    random: &mut Random,
    (rows, columns): (usize, usize),
) -> Result<(), DeviceError> {
    const REPLAYS: usize = 40;
    let mut want = random.floats(rows * columns, 1.0);
    let parts = parts(random, rows * columns);
    for rank in &mut *ranks {
        rank.device.write(&mut rank.stream, 0, &want)?;
    }
    // Both turns. A long write waits for the sum before it, so every rank's has to be queued.
    for _ in 0..2 {
        for (rank, part) in ranks.iter_mut().zip(&parts) {
            let Rank { device, way, .. } = rank;
            device.write(way.part(), 0, part)?;
            rank.add(rows, columns)?;
        }
    }
    let graphs = record(ranks, 2, (rows, columns))?;
    for _ in 0..REPLAYS {
        graphs.iter().try_for_each(Graph::launch)?;
    }
    for _ in 0..2 + 2 * REPLAYS {
        want = cpu_add(&want, &parts);
    }
    for (number, rank) in ranks.iter().enumerate() {
        let name = format!("rank {number}, {rows} x {columns} recorded and replayed");
        report.same(&name, &read(rank, rows, columns)?, &want);
    }
    Ok(())
}

fn record(
    ranks: &mut [Rank],
    count: usize,
    (rows, columns): (usize, usize),
) -> Result<Vec<Graph>, DeviceError> {
    let record = |rank: &mut Rank| {
        let device = Arc::clone(&rank.device);
        device.capture(|| (0..count).try_for_each(|_| rank.add(rows, columns)))
    };
    ranks.iter_mut().map(record).collect()
}

/// Microseconds of one sum among many of a recorded step, and of choices from slices.
pub(crate) fn time(first: &Arc<Device>) -> Result<(), DeviceError> {
    const SUMS: usize = 64;
    let columns = 4096;
    let mut ranks = ranks(first, columns)?;
    for rows in [1, 2, 4, 8, 16, 32, 64, 65, 128, 256, 512, 2048] {
        ranks.iter_mut().try_for_each(|it| it.add(rows, columns))?;
        ranks.iter_mut().try_for_each(|it| it.add(rows, columns))?;
        let graphs = record(&mut ranks, SUMS, (rows, columns))?;
        let us = timed(&ranks[0].device, &graphs)? / SUMS as f32;
        println!("sum of {rows} x {columns}: {us:.2} us");
    }
    choices::time(&mut ranks)
}

/// The middle of some replays.
fn timed(device: &Device, graphs: &[Graph]) -> Result<f32, DeviceError> {
    let mut times = Vec::new();
    for _ in 0..9 {
        graphs.iter().try_for_each(Graph::launch)?;
        let start = device.clock()?;
        graphs.iter().try_for_each(Graph::launch)?;
        times.push(device.clock()?.since_us(&start)?);
    }
    times.sort_by(f32::total_cmp);
    Ok(times[times.len() / 2])
}

/// A rank that waits for one that never comes has to fail, and to say so.
pub(crate) fn alone(first: &Arc<Device>, report: &mut Report) -> Result<(), DeviceError> {
    let mut ranks = ranks(first, 576)?;
    ranks[0].add(1, 576)?;
    let ended = ranks[0].device.synchronize();
    report.check(&format!("a rank alone: {ended:?}"), ended.is_err());
    Ok(())
}
