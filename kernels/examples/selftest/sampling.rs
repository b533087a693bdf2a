//! Choices: against the reference, for every kind of wish.

use kernels::cuda::{Device, DeviceError};
use kernels::ops::rows::{CHOOSES, Entry, Extent, Lists, NONE, Step, StepSizes, StepWords, Wish};
use kernels::ops::sample::{self, Choices, Logits, cpu};

use crate::Report;
use crate::random::Random;

const VOCAB: usize = 5000;

pub(crate) fn compare(device: &Device, report: &mut Report) -> Result<(), DeviceError> {
    let wish = |temperature: f32| Wish { temperature, seed: 9 << 32 | 7, ..Wish::greedy() };
    let kinds = [
        ("greedy", wish(0.0)),
        ("temperature", wish(0.8)),
        ("top-k", Wish { top_k: 40, ..wish(1.2) }),
        ("top-p", Wish { top_p: 0.7, ..wish(1.0) }),
        ("min-p", Wish { min_p: 0.1, ..wish(1.5) }),
        ("all three", Wish { top_k: 100, top_p: 0.9, min_p: 0.02, ..wish(1.0) }),
        ("two of three", Wish { top_k: 1000, top_p: 0.99, ..wish(0.6) }),
        ("top-k of one", Wish { top_k: 1, ..wish(2.0) }),
        ("top-p of few", Wish { top_p: 0.01, ..wish(0.4) }),
        // More than are listed.
        ("most by top-k", Wish { top_k: 3000, ..wish(1.0) }),
        ("most by top-p", Wish { top_p: 0.95, ..wish(6.0) }),
        ("most by both", Wish { top_k: 4000, top_p: 0.9, ..wish(9.0) }),
    ];
    let grids = [("", 64.0), (", many equal", 2.0)];
    let kinds = kinds.into_iter().flat_map(|kind| grids.map(|steps| (kind, steps)));
    for ((name, wish), (equal, steps)) in kinds {
        let mut random = Random::new(21);
        let lanes = 32;
        let coarse = |logit: f32| (logit * 3.0 * steps).round() / steps;
        let logits: Vec<f32> = (0..lanes * VOCAB).map(|_| coarse(random.float())).collect();
        let lists = vec![Lists::default(); lanes];
        let (got, _) = choose(device, &logits, &vec![wish; lanes], &lists)?;
        let want: Vec<u32> = logits.chunks(VOCAB).map(|row| cpu(row, &wish, 11)).collect();
        report.same(&format!("{name}{equal}"), &got, &want);
    }
    // Rows of which several blocks look at a slice each, in clusters of every size.
    for (lanes, temperature) in [1, 12, 20, 40].into_iter().flat_map(|it| [(it, 0.0), (it, 1.0)]) {
        let mut random = Random::new(22);
        let logits: Vec<f32> = (0..lanes * VOCAB).map(|_| random.float().round() * 0.25).collect();
        let wish = wish(temperature);
        let (got, _) = choose(device, &logits, &vec![wish; lanes], &vec![Lists::default(); lanes])?;
        let want: Vec<u32> = logits.chunks(VOCAB).map(|row| cpu(row, &wish, 11)).collect();
        report.same(&format!("{lanes} rows at temperature {temperature}"), &got, &want);
    }
    adjustments(device, report)
}

/// One row for each lane, at position 10; output number `4 - lane % 4`. History: tokens 1, 1, 2
/// then 0.
pub(crate) fn laid(
    device: &Device,
    wishes: &[Wish],
    lists: &[Lists<'_>],
) -> Result<(Step, Extent), DeviceError> {
    let lanes = wishes.len();
    let sizes = StepSizes {
        lanes,
        pages: lanes,
        pages_max: 1,
        rows_max: lanes * 11,
        choosers_max: lanes,
        drafts_max: 1,
        words_max: lanes * 1000,
    };
    let mut step = Step::new(device, sizes)?;
    let mut words = StepWords::default();
    words.clear();
    for (lane, (wish, lists)) in (0..).zip(wishes.iter().zip(lists)) {
        words.patch(lane, 0, lane);
        let outputs_start = 7 + lane % 4;
        let flags = CHOOSES;
        let entry = Entry { lane, fed: 11, flags, outputs_start, ..Entry::default() };
        let tokens = [1, 1, 2, 0, 0, 0, 0, 3, 3, 3, 0];
        words.push(entry, *wish, Lists { tokens: &tokens, ..*lists }, 0);
    }
    let extent = Extent { entries: lanes, rows: words.rows(), choosers: words.choosers() };
    step.send(words.finish())?;
    step.lay(device, extent)?;
    Ok((step, extent))
}

pub(crate) fn choose(
    device: &Device,
    logits: &[f32],
    wishes: &[Wish],
    lists: &[Lists<'_>],
) -> Result<(Vec<u32>, Choices), DeviceError> {
    let lanes = wishes.len();
    let (mut step, extent) = laid(device, wishes, lists)?;
    let mut rows = device.upload(logits)?;
    let mut choices = Choices::new(device, lanes)?;
    device.write(&mut choices.tokens, 0, &vec![NONE; lanes])?;
    let logits = Logits { rows: &mut rows, vocab: logits.len() / lanes, slices: None };
    sample::launch(device, &mut step, extent, logits, &mut choices)?;
    Ok((device.read(&choices.tokens, 0..lanes)?, choices))
}

/// Penalties, biases, masks and early stops move a choice as they should.
fn adjustments(device: &Device, report: &mut Report) -> Result<(), DeviceError> {
    let mut base = vec![0.0_f32; VOCAB];
    (base[1], base[2], base[3], base[4]) = (5.0, 4.9, 4.8, 4.0);
    let greedy = Wish::greedy();
    let mask: Vec<u32> =
        (0..VOCAB.div_ceil(32)).map(|it| if it == 0 { 1 << 4 } else { 0 }).collect();
    let lists = Lists::default();
    let cases = [
        (Wish { repetition: 2.0, ..greedy }, lists, 4),
        (Wish { presence: 1.0, ..greedy }, lists, 1),
        (greedy, Lists { biases: &[(1, -0.15), (2, 0.0)], ..lists }, 2),
        (greedy, Lists { mask: &mask, ..lists }, 4),
        (Wish { outputs_min: 9, ..greedy }, Lists { stops: &[1, 2], ..lists }, 3),
        (Wish { outputs_min: 1, ..greedy }, Lists { stops: &[1, 2], ..lists }, 1),
    ];
    let logits: Vec<f32> = cases.iter().flat_map(|_| base.clone()).collect();
    let wishes: Vec<Wish> = cases.iter().map(|it| it.0).collect();
    let all_lists: Vec<Lists<'_>> = cases.iter().map(|it| it.1).collect();
    let want: Vec<u32> = cases.iter().map(|it| it.2).collect();
    report.same("adjustments", &choose(device, &logits, &wishes, &all_lists)?.0, &want);

    // Token 3 stands three times in the output of lane 0.
    base[3] = 5.5;
    let frequent = Wish { frequency: 0.25, logprobs: Some(2), ..greedy };
    let (got, choices) = choose(device, &base, &[frequent], &[lists])?;
    report.same("frequency", &got, &[1]);
    base[3] -= 0.75;
    base[0] -= 0.25;
    let all = base.iter().map(|it| it.exp()).sum::<f32>().ln();
    let want: Vec<f32> = [base[1], base[2]].iter().map(|&it| it - all).collect();
    report.compare("top logprobs", &device.read(&choices.top_logprobs, 0..2)?, &want, 1e-5);
    report.same("top tokens", &device.read(&choices.top_tokens, 0..2)?, &[1, 2]);
    report.compare("logprob", &device.read(&choices.logprobs, 0..1)?, &want[..1], 1e-5);
    Ok(())
}
