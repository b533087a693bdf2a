//! A step on the device: how it is laid out, embedded, drafted for and accepted.

use kernels::cuda::{Buffer, Device, DeviceError};
use kernels::ops::draft::{self, Deferred, InputNorms, InputRows, States, Window};
use kernels::ops::embed;
use kernels::ops::matmul::{Format, Matrix};
use kernels::ops::rows::{
    CHAINED, CHOOSES, Entry, Extent, Lists, NONE, NOTHING, PAGE_TOKENS, Step, StepSizes, StepWords,
    Wish,
};
use kernels::ops::sample::Logits;

use crate::Report;
use crate::random::{Random, floats, poison, rounded, unblocked};

const HIDDEN: usize = 64;
const VOCAB: usize = 100;

pub(crate) fn sizes() -> StepSizes {
    StepSizes {
        lanes: 4,
        pages: 16,
        pages_max: 8,
        rows_max: 32,
        choosers_max: 32,
        drafts_max: 3,
        words_max: 4096,
    }
}

pub(crate) fn compare(device: &Device, report: &mut Report) -> Result<(), DeviceError> {
    let mut step = Step::new(device, sizes())?;
    let mut words = StepWords::default();
    words.clear();
    let patch = [(0, 0, 5), (0, 1, 6), (1, 0, 9), (1, 1, 2)];
    patch.iter().for_each(|&(lane, place, page)| words.patch(lane, place, page));
    // A fresh sequence whose first page was found, and one in the middle of its prompt.
    let fresh = Entry { lane: 0, start: 16, fed: 2, flags: CHOOSES, ..Entry::default() };
    let prompt = Entry { lane: 1, start: 0, fed: 3, flags: 0, ..fresh };
    let tokens = |tokens| Lists { tokens, ..Lists::default() };
    words.push(fresh, Wish::greedy(), tokens(&[40, 41]), 0);
    words.push(prompt, Wish::greedy(), tokens(&[50, 51, 52]), 0);
    let extent = Extent { entries: 4, rows: 8, choosers: 4 };
    lay(device, &mut step, &mut words, extent)?;
    let read = |step: &Step| -> Result<_, DeviceError> {
        let tokens = device.read(&step.tokens, 0..8)?;
        Ok((tokens, device.read(&step.positions, 0..8)?, device.read(&step.sources, 0..8)?))
    };
    let (laid, positions, sources) = read(&step)?;
    report.same("tokens", &laid, &[40, 41, 50, 51, 52, NONE, NONE, NONE]);
    report.same("positions", &positions, &[16, 17, 0, 1, 2, -1, -1, -1]);
    let page = 1 << 31;
    report.same("sources", &sources, &[page | 5, 0, NONE, 2, 3, NONE, NONE, NONE]);
    report.same("tokens by page", &device.read(&step.page_tokens, 96..98)?, &[40, 41]);
    let choices = device.upload(&[60, 0, 0, 0])?;
    step.accept(device, extent, &choices)?;
    report.same("results", &results(&mut step)?[..6], &[1, 60, 0, 0, 0, 0]);
    report.same("lane lengths", &device.read(&step.lane_lens, 0..2)?, &[18, 3]);

    embedding(device, report, &step)?;
    chained(device, report, &mut step, &mut words)?;
    long(device, report)
}

/// Lays the step out that the words end with.
fn lay(
    device: &Device,
    step: &mut Step,
    words: &mut StepWords,
    extent: Extent,
) -> Result<(), DeviceError> {
    step.send(words.finish())?;
    step.lay(device, extent)
}

/// Of the step whose choices were just accepted.
fn results(step: &mut Step) -> Result<Vec<u32>, DeviceError> {
    let number = step.expect_results()?;
    Ok(step.results(number)?.to_vec())
}

/// Steps of more words than are asked for at first, and of more than a kernel takes over by itself.
fn long(device: &Device, report: &mut Report) -> Result<(), DeviceError> {
    const ROWS: usize = 4;
    const LANES: usize = 600;
    let sizes = StepSizes {
        lanes: LANES,
        pages: LANES,
        pages_max: 1,
        rows_max: LANES * ROWS,
        choosers_max: LANES,
        drafts_max: 1,
        words_max: LANES * 64,
    };
    let mut step = Step::new(device, sizes)?;
    let few = |it: usize| u32::try_from(it).expect("few");
    for (round, entries) in [24, 25, 300, LANES, 30, LANES, 2].into_iter().enumerate() {
        let mut words = StepWords::default();
        words.clear();
        let token = |lane: usize, at: usize| few(round * 10_000 + lane * ROWS + at);
        // Other pages in each round.
        let page = |lane: usize| (lane * 7 + round) % LANES;
        for lane in 0..entries {
            words.patch(few(lane), 0, few(page(lane)));
            let tokens: Vec<u32> = (0..ROWS).map(|at| token(lane, at)).collect();
            let entry = Entry { lane: few(lane), fed: 4, flags: CHOOSES, ..Entry::default() };
            words.push(entry, Wish::greedy(), Lists { tokens: &tokens, ..Lists::default() }, 0);
        }
        let extent = Extent { entries, rows: entries * ROWS, choosers: entries };
        lay(device, &mut step, &mut words, extent)?;
        let want: Vec<u32> =
            (0..entries).flat_map(|lane| (0..ROWS).map(move |at| token(lane, at))).collect();
        let name = format!("a step of {entries} texts");
        report.same(&name, &device.read(&step.tokens, 0..entries * ROWS)?, &want);
        let by_page = device.read(&step.page_tokens, 0..LANES * PAGE_TOKENS)?;
        let by_page: Vec<u32> =
            (0..entries).map(|lane| by_page[page(lane) * PAGE_TOKENS + 3]).collect();
        let last: Vec<u32> = (0..entries).map(|lane| token(lane, 3)).collect();
        report.same(&format!("{name}, its pages"), &by_page, &last);
        let chosen: Vec<u32> = last.iter().map(|it| it * 3).collect();
        step.accept(device, extent, &device.upload(&chosen)?)?;
        let number = step.expect_results()?;
        // What comes between a step and the reading of its results, where steps are recorded.
        step.send(&NOTHING)?;
        step.lay(device, extent)?;
        step.accept(device, extent, &device.upload(&chosen)?)?;
        step.take_back(device)?;
        let want: Vec<u32> = chosen.iter().flat_map(|it| [1, *it]).collect();
        let results = step.results(number)?;
        let got: Vec<u32> = results.chunks(3).take(entries).flat_map(|it| [it[0], it[1]]).collect();
        report.same(&format!("{name}, its results"), &got, &want);
    }
    Ok(())
}

fn table(device: &Device) -> Result<(Matrix, Vec<f32>), DeviceError> {
    let values = Random::new(3).floats(VOCAB * HIDDEN, 1.0);
    let words = Format::Bf16.pack(VOCAB, HIDDEN, |row, to| {
        to.copy_from_slice(&values[row * HIDDEN..][..HIDDEN]);
    });
    let words = device.upload(&words.expect("bf16 has a place for each"))?;
    Ok((Matrix::new(words, Format::Bf16, VOCAB, HIDDEN), values))
}

fn embedding(device: &Device, report: &mut Report, step: &Step) -> Result<(), DeviceError> {
    let (table, values) = table(device)?;
    let mut stream = device.upload(&[f32::NAN; 8 * HIDDEN])?;
    let mut rounded = device.upload(&poison(8 * HIDDEN))?;
    embed::launch(device, &table, &step.tokens, 8, &mut stream, &mut rounded, None)?;
    let row = |token: usize| values[token * HIDDEN..][..HIDDEN].to_vec();
    let mut want: Vec<f32> = [40, 41, 50, 51, 52].into_iter().flat_map(row).collect();
    want.resize(8 * HIDDEN, 0.0);
    report.same("embedding", &device.read(&stream, 0..want.len())?, &want);
    report.same(
        "rounded",
        &unblocked(&floats(&device.read(&rounded, 0..8 * HIDDEN)?), 8, HIDDEN),
        &want,
    );
    Ok(())
}

/// The first entry goes on from its choice with two guesses, of which the model confirms one.
fn chained(
    device: &Device,
    report: &mut Report,
    step: &mut Step,
    words: &mut StepWords,
) -> Result<(), DeviceError> {
    words.clear();
    let flags = CHAINED | CHOOSES;
    let entry = Entry { lane: 0, start: 18, fed: 1, drafts: 2, held: 2, flags, ..Entry::default() };
    words.push(entry, Wish::greedy(), Lists::default(), 4);
    let plain = Entry { lane: 1, start: 3, fed: 1, flags: CHOOSES, ..Entry::default() };
    words.push(plain, Wish::greedy(), Lists { tokens: &[53], ..Lists::default() }, 4);
    let extent = Extent { entries: 2, rows: 8, choosers: 8 };
    lay(device, step, words, extent)?;
    report.same("chained", &device.read(&step.positions, 0..8)?, &[18, 19, 20, -1, 3, -1, -1, -1]);
    report.same("chain", &device.read(&step.chain_positions, 0..2)?, &[18, -1]);

    let target_ids: Vec<u32> = (0..8).map(|it| it * 10 + 1).collect();
    let target_ids = device.upload(&target_ids)?;
    for (depth, best) in [2, 6].into_iter().enumerate() {
        let mut logits = vec![0.0; 16];
        logits[best] = 3.0;
        logits[best + 1] = 3.0;
        let mut rows = device.upload(&logits)?;
        let logits = Logits { rows: &mut rows, vocab: 8, slices: None };
        draft::guess(device, step, extent, logits, &target_ids, depth)?;
    }
    report.same("guesses", &device.read(&step.tokens, 0..3)?, &[60, 21, 61]);
    report.same("chain ends", &device.read(&step.chain_positions, 0..2)?, &[-1, -1]);
    let choices = device.upload(&[21, 33, 99, 0, 70, 0, 0, 0])?;
    step.accept(device, extent, &choices)?;
    let results = results(step)?;
    report.same("one guess kept", &results[..3], &[2, 21, 33]);
    report.same("no guess", &results[5..7], &[1, 70]);
    report.same("lanes move", &device.read(&step.lane_lens, 0..2)?, &[20, 4]);
    states(device, report, step, extent)?;
    waiting(device, report, step, words)
}

/// What the draft layer reads, and what is kept for it.
fn states(
    device: &Device,
    report: &mut Report,
    step: &mut Step,
    extent: Extent,
) -> Result<(), DeviceError> {
    let mut random = Random::new(4);
    let (table, values) = table(device)?;
    let mut states = States::new(device, 16, HIDDEN)?;
    let made = random.floats(8 * HIDDEN, 2.0);
    let rows = device.upload(&made)?;
    states.keep(device, step, extent, &rows)?;
    let norms = [random.floats(HIDDEN, 1.0), random.floats(HIDDEN, 1.0)];
    let [token_norm, state_norm] = [device.upload(&norms[0])?, device.upload(&norms[1])?];
    let norms_on = InputNorms {
        table: &table,
        token: &token_norm,
        state: &state_norm,
        eps: 1e-5,
        keep_normed: false,
    };
    // From a page (the last row that stands in it is row 1), from a row of the step, from nowhere.
    let tokens = device.upload(&[7_u32, 8, 9])?;
    let sources = device.upload(&[1_u32 << 31 | 6, 5, NONE])?;
    let mut stream = device.upload(&[f32::NAN; 3 * HIDDEN])?;
    let mut out = device.upload(&poison(16 * HIDDEN))?;
    let rows = InputRows { tokens: &tokens, sources: Some(&sources), states: &rows, rows: 3 };
    draft::input(device, norms_on, &states, rows, &mut stream, &mut out)?;
    let normed = |x: &[f32], norm: &[f32]| -> Vec<f32> {
        let scale = kernels::ops::matmul::cpu_norm_scales(x, HIDDEN, 1e-5)[0];
        x.iter().zip(norm).map(|(x, n)| x * scale * n).collect()
    };
    let mut want = Vec::new();
    let zeros = vec![0.0; HIDDEN];
    let from = [&made[HIDDEN..2 * HIDDEN], &made[5 * HIDDEN..6 * HIDDEN], &zeros];
    for (token, state) in [7, 8, 9].into_iter().zip(from) {
        want.extend(normed(&values[token * HIDDEN..][..HIDDEN], &norms[0]));
        want.extend(normed(state, &norms[1]));
    }
    let out = unblocked(&floats(&device.read(&out, 0..16 * HIDDEN)?), 3, 2 * HIDDEN);
    report.compare("draft input", &out, &want, 4e-3);
    report.same("draft residual", &device.read(&stream, 0..3 * HIDDEN)?, &from.concat());
    Ok(())
}

/// Rows of plain steps that wait for the draft layer, and the states that are kept of them.
fn waiting(
    device: &Device,
    report: &mut Report,
    step: &mut Step,
    words: &mut StepWords,
) -> Result<(), DeviceError> {
    const COLUMNS: usize = 128;
    let mut random = Random::new(6);
    let window = Window { rows: 4, steps: 4 };
    let mut deferred = Deferred::new(device, 32, COLUMNS)?;
    let mut pushed = Vec::new();
    for before in 0..3 {
        words.clear();
        let first = Entry { start: 20 + before, fed: 1, flags: CHOOSES, ..Entry::default() };
        let second = Entry { lane: 1, start: 14 + before, ..first };
        for (entry, token) in [(first, 70 + before), (second, 80 + before)] {
            words.push(entry, Wish::greedy(), Lists { tokens: &[token], ..Lists::default() }, 0);
        }
        words.defer(before as usize);
        lay(device, step, words, Extent { entries: 4, rows: 4, choosers: 4 })?;
        let captured = rounded(&random.floats(8 * COLUMNS, 1.0));
        let choices = device.upload(&[90 + before, 95, 0, 0])?;
        deferred.accept(device, step, &choices, &device.upload(&captured)?, window)?;
        report.same("plain results", &results(step)?[..2], &[1, 90 + before]);
        pushed.extend(unblocked(&floats(&captured), 4, COLUMNS));
    }
    let window = Window { steps: 3, ..window };
    let positions = device.read(&deferred.positions, 0..12)?;
    let want = [20, 14, -1, -1, 21, 15, -1, -1, 22, 16, -1, -1];
    report.same("positions that wait", &positions, &want);
    let tokens = device.read(&deferred.tokens, 0..10)?;
    report.same("tokens that wait", &tokens, &[70, 80, NONE, NONE, 71, 81, NONE, NONE, 72, 82]);
    let page = 1 << 31;
    let sources = device.read(&deferred.sources, 0..10)?;
    let want = [page | 6, page | 9, NONE, NONE, 0, 1, 2, 3, 4, 5];
    report.same("sources of what waits", &sources, &want);
    let mut gathered = device.upload(&poison(16 * COLUMNS))?;
    deferred.gather(device, window, &mut gathered)?;
    let gathered = unblocked(&floats(&device.read(&gathered, 0..16 * COLUMNS)?), 12, COLUMNS);
    report.same("captured rows that wait", &gathered, &pushed);

    let mut states = States::new(device, 16, HIDDEN)?;
    let made = random.floats(window.all() * HIDDEN, 2.0);
    let rows = device.upload(&made)?;
    states.keep_deferred(device, step, &mut deferred, window, &rows)?;
    // The first lane stands in one page; the second has filled one and gone on to the next.
    let kept = residuals(device, &states, &[page | 6, page | 9, page | 2], &rows)?;
    let want = [8, 5, 9].map(|row: usize| &made[row * HIDDEN..][..HIDDEN]).concat();
    report.same("states of what waited", &kept, &want);
    Ok(())
}

/// The states that rows with these sources start from.
fn residuals(
    device: &Device,
    states: &States,
    sources: &[u32],
    rows: &Buffer<f32>,
) -> Result<Vec<f32>, DeviceError> {
    let (table, _) = table(device)?;
    let norm = device.upload(&[1.0; HIDDEN])?;
    let norms =
        InputNorms { table: &table, token: &norm, state: &norm, eps: 1e-5, keep_normed: false };
    let count = sources.len();
    let tokens = device.upload(&vec![1_u32; count])?;
    let sources = device.upload(sources)?;
    let mut stream = device.upload(&vec![f32::NAN; count * HIDDEN])?;
    let mut out = device.upload(&poison(count.next_multiple_of(8) * 2 * HIDDEN))?;
    let input = InputRows { tokens: &tokens, sources: Some(&sources), states: rows, rows: count };
    draft::input(device, norms, states, input, &mut stream, &mut out)?;
    device.read(&stream, 0..count * HIDDEN)
}
