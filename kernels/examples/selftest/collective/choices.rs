//! Choices of two ranks from slices of logits: those of one GPU from whole rows.

use std::sync::Arc;

use kernels::cuda::{Buffer, Device, DeviceError, Graph};
use kernels::ops::collective::Slices;
use kernels::ops::draft;
use kernels::ops::rows::{
    CHAINED, CHOOSES, Entry, Extent, Lists, Step, StepSizes, StepWords, Wish,
};
use kernels::ops::sample::{self, Choices, LOGPROBS_MAX, Logits};

use super::{RANKS, Rank, timed};
use crate::Report;
use crate::random::Random;
use crate::sampling::{choose, laid};

/// The most that is chosen at once, and tokens, when it is timed.
pub(super) const ROWS_MAX: usize = 1024;
pub(super) const VOCAB: usize = 128_256;

type Starts = [usize; RANKS + 1];

/// Slices of equal and of other widths; where each rank has a card, also more rows than a card has
/// room for blocks. On one card those of the first would keep those of the second out.
pub(super) fn compare(
    ranks: &mut [Rank],
    report: &mut Report,
    random: &mut Random,
    quick: bool,
) -> Result<(), DeviceError> {
    let share = ranks[0].device.identifier()? == ranks[1].device.identifier()?;
    let more = if quick || share { 20 } else { 600 };
    for (rows, starts) in
        [(1, [0, 64, 128]), (33, [0, 496, 1000]), (21, [0, 501, 1003]), (more, [0, 2000, 4000])]
    {
        let logits = hard(random, rows, starts);
        chosen(ranks, report, &logits, starts)?;
        guessed(ranks, report, &logits, starts)?;
    }
    Ok(())
}

/// Rows of which some have equals in both slices, infinities, no numbers or nothing that may be
/// chosen.
fn hard(random: &mut Random, rows: usize, starts: Starts) -> Vec<f32> {
    let vocab = starts[RANKS];
    let mut logits: Vec<f32> = (0..rows * vocab).map(|_| random.float() * 3.0).collect();
    for (number, row) in logits.chunks_exact_mut(vocab).enumerate() {
        let [first, second] = [random.below(starts[1]), starts[1] + random.below(starts[1] / 2)];
        match number / wishes().len() % 5 {
            0 => (row[first], row[second]) = (20.0, 20.0),
            1 => (row[first], row[second]) = (f32::NAN, 20.0),
            2 => (row[first], row[second]) = (f32::INFINITY, f32::NAN),
            3 => row.fill(f32::NEG_INFINITY),
            _ => {}
        }
    }
    logits
}

const MASK: [u32; 125] = [0x0f0f_0f0f; 125];

/// Of each kind, those that the largest of slices decide first.
fn wishes() -> [(Wish, Lists<'static>); 10] {
    let lists = Lists::default();
    let greedy = Wish::greedy();
    let warm = Wish { temperature: 0.8, seed: 9 << 32 | 7, ..greedy };
    [
        (greedy, lists),
        (warm, lists),
        (Wish { temperature: 5.0, outputs_min: 1, ..warm }, Lists { stops: &[1, 2], ..lists }),
        (Wish { top_p: 0.5, min_p: 0.5, top_k: 3, ..greedy }, lists),
        (Wish { top_p: 0.7, ..warm }, lists),
        (Wish { top_k: 4, min_p: 0.1, ..warm }, lists),
        (Wish { repetition: 2.0, presence: 0.5, ..warm }, lists),
        (Wish { logprobs: Some(5), ..greedy }, lists),
        (Wish { outputs_min: 9, ..greedy }, Lists { stops: &[1, 2], ..lists }),
        (warm, Lists { biases: &[(1, 30.0), (2, 29.0)], ..lists }),
    ]
}

/// Each rank's columns.
fn slice(logits: &[f32], starts: Starts, rank: usize) -> Vec<f32> {
    let of = starts[rank]..starts[rank + 1];
    logits.chunks_exact(starts[RANKS]).flat_map(|row| row[of.clone()].to_vec()).collect()
}

fn chosen(
    ranks: &mut [Rank],
    report: &mut Report,
    logits: &[f32],
    starts: Starts,
) -> Result<(), DeviceError> {
    let vocab = starts[RANKS];
    let rows = logits.len() / vocab;
    let (wishes, mut lists): (Vec<Wish>, Vec<Lists<'_>>) =
        wishes().into_iter().cycle().take(rows).unzip();
    for lists in lists.iter_mut().skip(13).step_by(17) {
        lists.mask = &MASK[..vocab.div_ceil(32)];
    }
    let device = Arc::clone(&ranks[0].device);
    let (want, whole) = choose(&device, logits, &wishes, &lists)?;
    let mut all = Vec::new();
    for (number, rank) in ranks.iter_mut().enumerate() {
        let Rank { device, way, .. } = rank;
        device.write(way.slice(), 0, &slice(logits, starts, number))?;
        let room = device.upload(&vec![f32::NAN; rows * vocab])?;
        all.push((laid(device, &wishes, &lists)?, room, Choices::new(device, rows)?));
    }
    for (rank, ((step, extent), rows, choices)) in ranks.iter_mut().zip(&mut all) {
        let slices = Some(Slices { ranks: &mut rank.way, starts: starts.to_vec() });
        sample::launch(&rank.device, step, *extent, Logits { rows, vocab, slices }, choices)?;
    }
    for (number, (rank, (.., got))) in ranks.iter().zip(&all).enumerate() {
        let name = format!("rank {number}, {rows} choices from slices of {vocab}");
        let there = &rank.device;
        report.same(&name, &there.read(&got.tokens, 0..rows)?, &want);
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let logprobs = bits(there.read(&got.logprobs, 0..rows)?);
        let wanted = bits(device.read(&whole.logprobs, 0..rows)?);
        report.same(&format!("{name}, logprobs"), &logprobs, &wanted);
        let tops = there.read(&got.top_tokens, 0..rows * LOGPROBS_MAX)?;
        let wanted = device.read(&whole.top_tokens, 0..rows * LOGPROBS_MAX)?;
        report.same(&format!("{name}, likeliest"), &tops, &wanted);
    }
    ranks.iter_mut().try_for_each(|it| it.device.synchronize())
}

/// One chained entry for each row, with two guesses.
fn chained(device: &Device, rows: usize) -> Result<(Step, Extent), DeviceError> {
    let sizes = StepSizes {
        lanes: rows,
        pages: rows,
        pages_max: 1,
        rows_max: rows * 3,
        choosers_max: rows * 3,
        drafts_max: 2,
        words_max: 64 + rows * 100,
    };
    let mut step = Step::new(device, sizes)?;
    let mut words = StepWords::default();
    words.clear();
    let flags = CHAINED | CHOOSES;
    for lane in (0..).take(rows) {
        words.patch(lane, 0, lane);
        // The third has no guess to make.
        let held = if lane == 2 { 0 } else { 2 };
        let entry = Entry { lane, fed: 1, drafts: held, held, flags, ..Entry::default() };
        words.push(entry, Wish::greedy(), Lists::default(), 3);
    }
    device.write(&mut step.lane_lens, 0, &vec![5; rows])?;
    let extent = Extent { entries: rows, rows: words.rows(), choosers: words.choosers() };
    step.send(words.finish())?;
    step.lay(device, extent)?;
    Ok((step, extent))
}

fn guessed(
    ranks: &mut [Rank],
    report: &mut Report,
    logits: &[f32],
    starts: Starts,
) -> Result<(), DeviceError> {
    let vocab = starts[RANKS];
    let rows = logits.len() / vocab;
    let ids: Vec<u32> = (0..).map(|it| it * 3 + 1).take(vocab).collect();
    let read = |device: &Device, step: &Step| -> Result<_, DeviceError> {
        let mut all = device.read(&step.tokens, 0..rows * 3)?;
        all.extend(device.read(&step.page_tokens, 0..rows * 16)?);
        all.extend(device.read(&step.chain_tokens, 0..rows)?);
        let ends = device.read(&step.chain_positions, 0..rows)?;
        all.extend(ends.into_iter().map(i32::cast_unsigned));
        Ok(all)
    };
    let device = Arc::clone(&ranks[0].device);
    let (mut step, extent) = chained(&device, rows)?;
    let mut whole = device.upload(logits)?;
    let target_ids = device.upload(&ids)?;
    for depth in 0..2 {
        let logits = Logits { rows: &mut whole, vocab, slices: None };
        draft::guess(&device, &mut step, extent, logits, &target_ids, depth)?;
        // It may read the chain before the guess before has ended.
        device.synchronize()?;
    }
    let want = read(&device, &step)?;
    let mut all = Vec::new();
    for (number, rank) in ranks.iter_mut().enumerate() {
        let Rank { device, way, .. } = rank;
        device.write(way.slice(), 0, &slice(logits, starts, number))?;
        let (step, extent) = chained(device, rows)?;
        let room: Buffer<f32> = device.zeros(rows * vocab)?;
        all.push((step, extent, room, device.upload(&ids)?));
    }
    for depth in 0..2 {
        for (rank, (step, extent, room, ids)) in ranks.iter_mut().zip(&mut all) {
            let slices = Some(Slices { ranks: &mut rank.way, starts: starts.to_vec() });
            let logits = Logits { rows: room, vocab, slices };
            draft::guess(&rank.device, step, *extent, logits, ids, depth)?;
        }
        // What was told may be written over after another exchange.
        ranks.iter_mut().try_for_each(|it| it.add(1, 64))?;
    }
    for (number, (rank, (step, ..))) in ranks.iter().zip(&all).enumerate() {
        let name = format!("rank {number}, guesses for {rows} from slices of {vocab}");
        report.same(&name, &read(&rank.device, step)?, &want);
    }
    ranks.iter_mut().try_for_each(|it| it.device.synchronize())
}

/// Microseconds of choices from 128,256 tokens: greedy, with noise, and from whole rows.
/// Without those of a small sum, which lies between two of them.
pub(super) fn time(ranks: &mut [Rank]) -> Result<(), DeviceError> {
    let mut random = Random::new(3);
    let row: Vec<f32> = (0..VOCAB / RANKS).map(|_| random.float() * 3.0).collect();
    for rank in &mut *ranks {
        rank.device.write(rank.way.slice(), 0, &row.repeat(ROWS_MAX))?;
    }
    let greedy = Wish::greedy();
    let warm = Wish { temperature: 0.8, seed: 5, ..greedy };
    let top_p = Wish { top_p: 0.9, ..warm };
    let both = Wish { top_k: 50, top_p: 0.9, ..warm };
    let kinds = [("greedy", greedy), ("noise", warm), ("top-p", top_p), ("top-k, top-p", both)];
    let sums = recorded(ranks, greedy, 0)?;
    for (name, wish) in kinds {
        for rows in [1, 8, 64, 256, ROWS_MAX] {
            let us = recorded(ranks, wish, rows)? - sums;
            println!("{rows} choices from slices of {VOCAB}, {name}: {us:.2} us");
        }
    }
    Ok(())
}

fn recorded(ranks: &mut [Rank], wish: Wish, rows: usize) -> Result<f32, DeviceError> {
    const TIMES: usize = 16;
    let (mut graphs, mut kept): (Vec<Graph>, _) = (Vec::new(), Vec::new());
    let lanes = rows.max(1);
    for rank in &mut *ranks {
        let device = Arc::clone(&rank.device);
        let (mut step, extent) = laid(&device, &vec![wish; lanes], &vec![Lists::default(); lanes])?;
        let mut room = device.zeros(lanes * VOCAB)?;
        let mut choices = Choices::new(&device, lanes)?;
        graphs.push(device.capture(|| {
            (0..TIMES).try_for_each(|_| {
                if 0 < rows {
                    let starts = vec![0, VOCAB / RANKS, VOCAB];
                    let slices = Some(Slices { ranks: &mut rank.way, starts });
                    let logits = Logits { rows: &mut room, vocab: VOCAB, slices };
                    sample::launch(&device, &mut step, extent, logits, &mut choices)?;
                }
                rank.add(1, 64)
            })
        })?);
        kept.push((step, room, choices));
    }
    let us = timed(&ranks[0].device, &graphs)? / TIMES as f32;
    ranks.iter_mut().try_for_each(|it| it.device.synchronize())?;
    Ok(us)
}
