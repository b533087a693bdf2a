//! Rotary embedding, pages and attention: against the reference, and one kernel against the other.

use kernels::cuda::{Buffer, Device, DeviceError};
use kernels::ops::attend::{
    Attention, FewBy, ManyBy, Scratch, Table, blocks_of_rows, cpu, is_for_bulk, is_for_ring,
};
use kernels::ops::rope::{self, HeadNorms, Pages, Places, Rotation, Turns, cpu_turn};
use kernels::ops::rows::{Entry, Extent, Lists, Step, StepSizes, StepWords, Wish};
use kernels::ops::{bf16, block_values};

use crate::Report;
use crate::random::{Random, floats, poison, unblocked};

/// Pages of one sequence, at most.
const PAGES_MAX: usize = 160;

/// One sequence: rows before the step, and rows in it.
type Shape = (usize, usize);

struct Case {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    sequences: Vec<Shape>,
    /// Rotary positions are the slots less this, and slots before it do not exist.
    behind: u32,
    /// Whether heads have norms, and projections a bias: then kernels are compared with each other
    /// alone.
    extras: bool,
}

/// Without extras.
fn plain(heads: usize, kv_heads: usize, dim: usize, sequences: Vec<Shape>, behind: u32) -> Case {
    Case { heads, kv_heads, dim, sequences, behind, extras: false }
}

/// What is on the device for one case, and what it was made from.
struct Setting {
    step: Step,
    pages: Pages,
    turns: Turns,
    frequencies: Vec<f32>,
    /// Of each sequence and position: queries, keys and values before rotation.
    texts: Vec<Vec<Vec<f32>>>,
    tables: Vec<Vec<u32>>,
    /// A bias, and the norms of queries and keys.
    extras: Option<[Buffer<f32>; 3]>,
}

pub(crate) fn compare(
    device: &Device,
    report: &mut Report,
    quick: bool,
) -> Result<(), DeviceError> {
    let mut cases = vec![
        plain(9, 3, 64, vec![(0, 3), (70, 1), (15, 4)], 0),
        plain(4, 1, 128, vec![(300, 2), (5, 8)], 0),
        plain(4, 1, 128, vec![(300, 2), (62, 4)], 0),
        plain(9, 3, 64, vec![(0, 2), (40, 1)], 1),
        plain(4, 1, 128, vec![(0, 2), (40, 1), (300, 3)], 1),
        // More chunks than are merged by one block, more tiles than slots come round for.
        plain(4, 1, 128, vec![(800, 2), (254, 4)], 0),
        Case { extras: true, ..plain(4, 1, 128, vec![(70, 2), (5, 4)], 0) },
        // More than there are warps.
        plain(3, 3, 64, crowd(370, 20, 2), 0),
    ];
    if !quick {
        let sequences = [(1000, 4), (255, 4), (256, 1), (0, 8), (511, 2), (62, 3)];
        for (heads, kv_heads, dim) in [(9, 3, 64), (32, 8, 64), (32, 8, 128), (8, 8, 128)] {
            cases.push(plain(heads, kv_heads, dim, sequences.to_vec(), 0));
        }
        let sequences = [(1000, 4), (255, 4), (252, 4), (0, 1), (0, 4), (511, 2), (62, 3)];
        for (heads, kv_heads, dim) in [(9, 3, 64), (32, 8, 128)] {
            cases.push(plain(heads, kv_heads, dim, sequences.to_vec(), 0));
        }
        for (heads, kv_heads, dim) in [(9, 3, 64), (8, 8, 128)] {
            cases.push(plain(heads, kv_heads, dim, crowd(1500 / kv_heads, 100, 4), 0));
        }
        for (heads, kv_heads, dim, rows_max) in [(9, 3, 64, 4), (32, 2, 128, 1)] {
            // One of them has more pages than a record of the table names twice over.
            let mut sequences = crowd(30, 100, rows_max);
            sequences[11] = (2300, 1);
            cases.push(Case { extras: true, ..plain(heads, kv_heads, dim, sequences, 0) });
        }
    }
    for case in &cases {
        run(device, report, case)?;
    }
    Ok(())
}

/// Many short sequences, and some that are longer, in no order.
fn crowd(count: usize, before_max: usize, rows_max: usize) -> Vec<Shape> {
    let long = |at| if at % 50 == 7 { 6 * before_max } else { 0 };
    let one = |at| (at * 37 % before_max + long(at), 1 + at * 5 % rows_max);
    (0..count).map(one).collect()
}

fn run(device: &Device, report: &mut Report, case: &Case) -> Result<(), DeviceError> {
    let mut setting = set(device, case)?;
    let all: Vec<Shape> = case.sequences.iter().map(|&(before, rows)| (0, before + rows)).collect();
    // Everything in one go by the kernel for many rows, then the last rows again by the other.
    let many = attend(device, case, &mut setting, &all, Kernel::Many(ManyBy::Plain))?;
    let name = format!("{}/{} x {}, behind {}", case.heads, case.kv_heads, case.dim, case.behind);
    let name = if case.extras { format!("{name}, norms and bias") } else { name };
    if !case.extras {
        check_against_cpu(report, &name, case, &setting, &many);
    }
    if device.facts().is_hopper() {
        forget(device, case, &mut setting, &vec![(0, 0); case.sequences.len()])?;
        let wide = attend(device, case, &mut setting, &all, Kernel::Many(ManyBy::Wide))?;
        report.same(&format!("many(Wide) = many {name}"), &wide, &many);
    }
    let width = case.heads * case.dim;
    let mut want = Vec::new();
    let mut first = 0;
    for &(before, rows) in &case.sequences {
        want.extend_from_slice(&many[(first + before) * width..][..rows * width]);
        first += before + rows;
    }
    let ones: Vec<Shape> =
        case.sequences.iter().map(|&(before, rows)| (before + rows - 1, 1)).collect();
    let mut end = 0;
    let mut want_last = Vec::new();
    for &(before, rows) in &case.sequences {
        end += before + rows;
        want_last.extend_from_slice(&many[(end - 1) * width..][..width]);
    }
    let most = case.sequences.iter().map(|it| it.1).max().unwrap_or(1);
    for (by, blocks) in ways(device, most, case) {
        forget(device, case, &mut setting, &case.sequences)?;
        let few = attend(device, case, &mut setting, &case.sequences, Kernel::Few(by, blocks))?;
        report.same(&format!("few({by:?}, {blocks}) = many {name}"), &few, &want);
        // The keys and values that it put to the pages.
        let last = attend(device, case, &mut setting, &ones, Kernel::Few(FewBy::Tile, 1))?;
        report.same(&format!("after few({by:?}, {blocks}) {name}"), &last, &want_last);
    }
    for (by, blocks) in ways(device, 1, case) {
        forget(device, case, &mut setting, &ones)?;
        let last = attend(device, case, &mut setting, &ones, Kernel::Few(by, blocks))?;
        report.same(&format!("one row, {by:?}, {blocks} = many {name}"), &last, &want_last);
    }
    Ok(())
}

/// Kernels for so many rows of each sequence, and the blocks that share one.
fn ways(device: &Device, rows: usize, case: &Case) -> impl Iterator<Item = (FewBy, usize)> {
    let (is_hopper, group) = (device.facts().is_hopper(), case.heads / case.kv_heads);
    let ring = (is_hopper && is_for_ring(rows, group)).then_some((FewBy::Ring, 1));
    let takes = is_for_bulk(device, rows, group, case.dim);
    let bulk = [1, 2, 7].into_iter().filter(move |_| takes);
    let others = [1, 2, 7].into_iter().flat_map(|it| [(FewBy::Tile, it), (FewBy::Chunk, it)]);
    others.chain(ring).chain(bulk.map(|it| (FewBy::Bulk, it)))
}

/// Leaves in the pages what was there before the step, and what is not a number elsewhere.
fn forget(
    device: &Device,
    case: &Case,
    setting: &mut Setting,
    shapes: &[Shape],
) -> Result<(), DeviceError> {
    let memory = setting.pages.memory_mut();
    let nothing = poison(memory.len());
    device.write(memory, 0, &nothing)?;
    let before: Vec<Shape> = shapes.iter().map(|&(before, _)| (0, before)).collect();
    if before.iter().any(|it| 0 < it.1) {
        attend(device, case, setting, &before, Kernel::Many(ManyBy::Plain))?;
    }
    Ok(())
}

fn set(device: &Device, case: &Case) -> Result<Setting, DeviceError> {
    let mut random = Random::new(11);
    let rows: usize = case.sequences.iter().map(|it| it.0 + it.1).sum();
    let sizes = StepSizes {
        lanes: case.sequences.len(),
        pages: rows / 16 + 2 * case.sequences.len(),
        pages_max: PAGES_MAX,
        rows_max: rows,
        choosers_max: 1,
        drafts_max: 7,
        words_max: 64 * rows + 1024,
    };
    let width = (case.heads + 2 * case.kv_heads) * case.dim;
    let text = |random: &mut Random, &(before, rows): &Shape| -> Vec<Vec<f32>> {
        (0..before + rows).map(|_| random.floats(width, 1.0)).collect()
    };
    let texts = case.sequences.iter().map(|it| text(&mut random, it)).collect();
    // Pages in no order.
    let mut free: Vec<u32> = (0..u32::try_from(sizes.pages).expect("few")).collect();
    let tables = case.sequences.iter().map(|&(before, rows)| {
        let mut take = |_| free.swap_remove(random.below(free.len()));
        (0..(before + rows).div_ceil(16)).map(&mut take).collect()
    });
    let half = case.dim / 2;
    let frequencies: Vec<f32> =
        (0..half).map(|it| 10_000.0_f32.powf(-(it as f32) / half as f32)).collect();
    Ok(Setting {
        tables: tables.collect(),
        step: Step::new(device, sizes)?,
        pages: Pages::new(device, 2, sizes.pages, case.kv_heads, case.dim)?,
        turns: Turns::new(device, PAGES_MAX * 16, &frequencies)?,
        frequencies,
        texts,
        extras: match case.extras {
            true => Some([
                device.upload(&random.floats(width, 0.5))?,
                device.upload(&random.floats(case.dim, 1.5))?,
                device.upload(&random.floats(case.dim, 1.5))?,
            ]),
            false => None,
        },
    })
}

#[derive(Clone, Copy)]
enum Kernel {
    Many(ManyBy),
    Few(FewBy, usize),
}

fn places(step: &Step, rows: usize) -> Places<'_> {
    Places { positions: &step.positions, lanes: &step.lanes, rows }
}

/// A step laid out: its rows' projections, and spans for the kernel.
struct Laid {
    extent: Extent,
    qkv: Vec<f32>,
    spans: Vec<[u32; 2]>,
}

/// Lays out a step of these rows.
fn lay(
    device: &Device,
    case: &Case,
    setting: &mut Setting,
    shapes: &[Shape],
    kernel: Kernel,
) -> Result<Laid, DeviceError> {
    let mut words = StepWords::default();
    words.clear();
    let mut qkv = Vec::new();
    for (lane, &(start, rows)) in (0_u32..).zip(shapes) {
        for (place, &page) in (0..).zip(&setting.tables[lane as usize]) {
            words.patch(lane, place, page);
        }
        let tokens = vec![0; rows];
        let [start_at, fed] = [start, rows].map(|it| u32::try_from(it).expect("few"));
        let entry = Entry { lane, start: start_at, fed, ..Entry::default() };
        words.push(entry, Wish::greedy(), Lists { tokens: &tokens, ..Lists::default() }, 0);
        qkv.extend(setting.texts[lane as usize][start..start + rows].concat());
    }
    let spans: Vec<[u32; 2]> = match kernel {
        // The second is one that pads a recorded step.
        Kernel::Few(..) => {
            let mut spans: Vec<_> = words.entries().iter().map(|it| [it.row, it.fed]).collect();
            spans.insert(1, [0, 0]);
            spans
        }
        Kernel::Many(_) => {
            let group = case.heads / case.kv_heads;
            words.entries().iter().flat_map(|it| blocks_of_rows(it.row, it.fed, group)).collect()
        }
    };
    let extent = Extent { entries: shapes.len(), rows: words.rows(), choosers: 0 };
    setting.step.send(words.finish())?;
    setting.step.lay(device, extent)?;
    Ok(Laid { extent, qkv, spans })
}

/// Lays out a step of these rows, rotates them into the pages and attends.
fn attend(
    device: &Device,
    case: &Case,
    setting: &mut Setting,
    shapes: &[Shape],
    kernel: Kernel,
) -> Result<Vec<f32>, DeviceError> {
    let Laid { extent, qkv, spans } = lay(device, case, setting, shapes, kernel)?;
    let rows = extent.rows;
    let width = case.heads * case.dim;
    let qkv = device.upload(&qkv)?;
    let spans_on = device.upload(&spans)?;
    let mut out = device.upload(&poison(block_values(rows, width)))?;
    let mut q = device.upload(&poison(rows * width))?;
    let most = shapes.iter().map(|it| it.1).max().unwrap_or(1);
    let is_few = matches!(kernel, Kernel::Few(..));
    let packed = if is_few { most * (case.heads / case.kv_heads) } else { 1 };
    let cut = spans.len() * case.kv_heads;
    let mut scratch = Scratch::new(device, cut, PAGES_MAX * 16, packed, case.dim)?;
    let mut table = Table::new(device, spans.len())?;
    if is_few {
        let step = &setting.step;
        table.lay(device, step, places(step, rows), (&spans_on, spans.len()))?;
        // Attention may begin before the kernel before it has ended, which in a step is neither.
        device.synchronize()?;
    }
    let step = &setting.step;
    let places = places(step, rows);
    let rotation = Rotation {
        qkv: &qkv,
        heads: case.heads,
        norms: match &setting.extras {
            Some([bias, queries, keys]) => {
                HeadNorms { bias: Some(bias), queries: Some(queries), keys: Some(keys), eps: 1e-5 }
            }
            None => HeadNorms::default(),
        },
        turns: &setting.turns,
        behind: case.behind,
    };
    if !is_few {
        rotation.rotate(device, step, places, (&mut setting.pages, 1), &mut q)?;
    }
    let attention = Attention {
        rotation,
        places,
        pages: &mut setting.pages,
        layer: 1,
        spans: &spans_on,
        spans_len: spans.len(),
        table: Some(&table),
        out: &mut out,
    };
    match kernel {
        Kernel::Many(by) => attention.many_by(by, device, step, &q)?,
        Kernel::Few(by, blocks) => {
            attention.few_by(by, device, &mut scratch, step, most, blocks)?;
        }
    }
    let out = floats(&device.read(&out, 0..out.len())?);
    Ok(unblocked(&out, rows, width))
}

/// The last row of each sequence, every query head.
fn check_against_cpu(report: &mut Report, name: &str, case: &Case, setting: &Setting, got: &[f32]) {
    let (dim, width) = (case.dim, case.heads * case.dim);
    let rounded =
        |x: Vec<f32>| -> Vec<f32> { x.into_iter().map(|it| bf16::from_f32(it).to_f32()).collect() };
    let turned = |x: &[f32], slot: usize| -> Vec<f32> {
        let position = slot - case.behind as usize;
        let turns: Vec<[f32; 2]> =
            setting.frequencies.iter().map(|&it| cpu_turn(position, it)).collect();
        let mut x = x.to_vec();
        rope::cpu(&mut x, &turns);
        rounded(x)
    };
    let (mut all, mut want) = (Vec::new(), Vec::new());
    let mut end = 0;
    for (text, &(before, rows)) in setting.texts.iter().zip(&case.sequences) {
        end += before + rows;
        let last = before + rows - 1;
        for head in 0..case.heads {
            let kv_head = case.heads + head / (case.heads / case.kv_heads);
            let query = turned(&text[last][head * dim..][..dim], last);
            let slots = case.behind as usize..=last;
            let keys: Vec<f32> = slots
                .clone()
                .flat_map(|it| turned(&text[it][kv_head * dim..][..dim], it))
                .collect();
            let at = (kv_head + case.kv_heads) * dim;
            let values: Vec<f32> =
                slots.flat_map(|it| rounded(text[it][at..][..dim].to_vec())).collect();
            want.extend(cpu(&query, &keys, &values));
            all.extend_from_slice(&got[(end - 1) * width + head * dim..][..dim]);
        }
    }
    report.compare(&format!("attention {name}"), &all, &want, 6e-3);
}
