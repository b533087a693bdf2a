//! A pair of models: its texts against the reference, and against each other.

use std::error::Error;
use std::fs;
use std::path::Path;

use engine::backend::cuda::{CudaBackend, CudaOptions, Dummy, KvMemory};
use engine::batch::ids::TokenId;
use engine::batch::sampling::Sampling;
use engine::model::{Head, Model, load_head, load_model};
use kernels::ops::matmul::Format;
use serde_json::Value;

use crate::Layout;
use crate::drive::{Drive, Sometimes, Text, median_ms};
use crate::steps::{self, Shape};

const END: u32 = 2;

fn options(layout: &Layout, Setup { records, lanes, context, .. }: Setup) -> CudaOptions {
    let mut options = CudaOptions {
        cards: layout.cards.clone(),
        weights: layout.weights,
        cache: None,
        memory: KvMemory::Pages(lanes * (context / 16 + 8)),
        context_max: context,
        context_min: context,
        rows_max: 2048,
        lanes,
        drafts_max: 5,
        simulated: Vec::new(),
        records,
        share: None,
    };
    if options.shares_a_card() {
        options.rows_max = 96;
    }
    options
}

/// How the pair is run.
#[derive(Clone, Copy, Debug)]
struct Setup {
    depth: u32,
    records: bool,
    lanes: u32,
    context: u32,
}

const CONTEXT: u32 = 512;

struct Pair {
    layout: Layout,
    weights: Weights,
    /// What prompts are made of.
    known: Vec<Vec<u32>>,
}

enum Weights {
    Read { model: Box<Model>, head: Box<Head> },
    Random(Shape),
}

impl Pair {
    fn drive(&self, setup: Setup) -> Result<Drive, Box<dyn Error>> {
        Ok(Drive::new(self.backend(setup)?, setup.depth))
    }

    fn backend(&self, setup: Setup) -> Result<CudaBackend, Box<dyn Error>> {
        let options = options(&self.layout, setup);
        let mut backend = match &self.weights {
            Weights::Read { model, head } => {
                let head = Some(&**head).filter(|_| setup.depth != 0);
                CudaBackend::new(model, head, &options)?
            }
            Weights::Random(shape) => {
                let (model, head) = (shape.model(), shape.head());
                let head = Some(&head).filter(|_| setup.depth != 0);
                CudaBackend::dummy(Dummy { model: &model, head }, &options)?
            }
        };
        if setup.records {
            backend.record_all(&[0, setup.depth])?;
        }
        Ok(backend)
    }
}

fn greedy() -> Sampling {
    Sampling { stop_tokens: vec![TokenId(END)], ..Sampling::greedy() }
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().into_iter().flatten();
    ids.filter_map(|it| u32::try_from(it.as_u64()?).ok()).collect()
}

pub(crate) fn check(
    layout: &Layout,
    model: &Path,
    head: &Path,
    golden: &Path,
    prompts: usize,
) -> Result<bool, Box<dyn Error>> {
    let model = load_model(model)?;
    let head = load_head(head, &model.config, None)?.head;
    let golden: Value = serde_json::from_str(&fs::read_to_string(golden)?)?;
    let rows = golden["rows"].as_array().ok_or("no rows")?;
    let known = rows.iter().map(|it| ids(&it["prompt_ids"])).collect();
    let weights = Weights::Read { model: Box::new(model), head: Box::new(head) };
    let pair = Pair { layout: layout.clone(), weights, known };
    let right = reference(&pair, rows)?;
    Ok(alike(&pair, prompts)? && right)
}

/// With random weights for a few layers of a shape: there is no reference.
pub(crate) fn check_random(
    layout: &Layout,
    shape: &Shape,
    prompts: usize,
) -> Result<bool, Box<dyn Error>> {
    let shape = shape.few_layers();
    let known = (10..20).flat_map(|it| steps::prompts(&shape, 1, 3 * it)).collect();
    let pair = Pair { layout: layout.clone(), weights: Weights::Random(shape), known };
    alike(&pair, prompts)
}

/// Whether texts are the same in whatever way they are made.
fn alike(pair: &Pair, prompts: usize) -> Result<bool, Box<dyn Error>> {
    let right = equal(pair, prompts)?;
    let right = lengths(pair, &mixed(&pair.known, prompts.max(16)))? && right;
    Ok(paused(pair, &mixed(&pair.known, prompts.max(100)))? && right)
}

/// Depth, whether steps are recorded, and batches.
type Case = (u32, bool, &'static [usize]);

/// Texts that grow past the lengths at which other kernels take them, at different steps and beside
/// each other; and short ones, more than eight of them beside each other.
fn lengths(pair: &Pair, prompts: &[Vec<u32>]) -> Result<bool, Box<dyn Error>> {
    let long = [700, 180, 450, 1990, 1400, 1000, 2000, 480, 500, 1960, 300, 2100];
    let cases: [Case; 4] =
        [(0, true, &[12, 4, 2, 1]), (0, false, &[4]), (3, true, &[12, 4, 1]), (3, false, &[12])];
    let right = of_lengths(pair, prompts, long, &cases)?;
    let short = [150, 320, 180, 345, 200, 310, 240, 350, 280, 335, 340, 220];
    let cases: [Case; 4] =
        [(0, true, &[1, 9, 12]), (0, false, &[12]), (1, true, &[9, 12]), (3, true, &[6])];
    Ok(of_lengths(pair, prompts, short, &cases)? && right)
}

fn of_lengths(
    pair: &Pair,
    prompts: &[Vec<u32>],
    lens: [usize; 12],
    cases: &[Case],
) -> Result<bool, Box<dyn Error>> {
    let all = prompts.concat();
    let prompts: Vec<Vec<u32>> =
        lens.iter().map(|len| all.iter().copied().cycle().take(*len).collect()).collect();
    let mut first: Vec<Text> = Vec::new();
    let mut right = true;
    for &(depth, records, batches) in cases {
        let setup = Setup { depth, records, lanes: 16, context: 4096 };
        let mut drive = pair.drive(setup)?;
        for &batch in batches {
            let texts = drive.texts(&prompts, batch, 160, &Sampling::greedy())?;
            if first.is_empty() {
                first.clone_from(&texts);
            }
            let differ = texts.iter().zip(&first).filter(|(a, b)| a.tokens != b.tokens).count();
            println!(
                "{setup:?} batch {batch}: {differ} of {} texts of 160 tokens after {lens:?} differ",
                texts.len()
            );
            right &= differ == 0;
        }
    }
    Ok(right)
}

/// What waits for the draft layer in pauses gives the drafts that it gives when it does not wait.
fn paused(pair: &Pair, prompts: &[Vec<u32>]) -> Result<bool, Box<dyn Error>> {
    let mut right = true;
    let one = Setup { depth: 0, records: true, lanes: 1, context: CONTEXT };
    let lanes = if options(&pair.layout, one).shares_a_card() { 64 } else { 128 };
    for (depth, steps, batch) in [(3, 3, 16), (3, 13, 7), (3, 30, 64), (5, 7, 100)] {
        let run = |records| -> Result<Vec<Text>, Box<dyn Error>> {
            let backend = pair.backend(Setup { depth, records, lanes, context: CONTEXT })?;
            // None for some steps, then drafts for as many.
            let mut done = 0;
            let drafter = Sometimes(move || {
                done += 1;
                (done - 1) / steps % 2 == 1
            });
            let mut drive = Drive::with(backend, Box::new(drafter), depth);
            drive.texts(prompts, batch, 128, &greedy())
        };
        let (waited, at_once) = (run(true)?, run(false)?);
        let kept = |texts: &[Text]| texts.iter().flat_map(|it| &it.kept).sum::<u32>();
        let differ = waited.iter().zip(&at_once).filter(|(a, b)| a != b).count();
        println!(
            "{steps} steps with {depth} drafts, {steps} without, batch {batch}: {differ} of {} \
             texts or their drafts differ; kept {} and {}",
            prompts.len(),
            kept(&waited),
            kept(&at_once),
        );
        right &= differ == 0;
    }
    Ok(right)
}

/// Texts and accepted drafts of the float32 reference; a difference is fine where the two likeliest
/// tokens are as near as bf16 leaves in doubt. What fp8 leaves in doubt is told, not judged.
fn reference(pair: &Pair, rows: &[Value]) -> Result<bool, Box<dyn Error>> {
    let prompts: Vec<Vec<u32>> = rows.iter().map(|it| ids(&it["prompt_ids"])).collect();
    let mut right = true;
    for depth in [0, 3, 5] {
        let mut drive = pair.drive(Setup { depth, records: true, lanes: 16, context: CONTEXT })?;
        let texts = drive.texts(&prompts, 16, 96, &greedy())?;
        let (mut same, mut worst, mut kept, mut wanted) = (0, 0.0_f64, 0, 0);
        let mut rounds = (0, 0);
        for (row, text) in rows.iter().zip(&texts) {
            let want = ids(&row["output_ids"]);
            let equal = want.iter().zip(&text.tokens).take_while(|(a, b)| a == b).count();
            if equal == want.len() {
                same += 1;
                let counts = ids(&row["chains"][depth.to_string()]["accepted_per_round"]);
                kept += text.kept.iter().sum::<u32>();
                wanted += counts.iter().sum::<u32>();
                rounds = (rounds.0 + text.kept.len(), rounds.1 + counts.len());
            } else {
                let gap = row["top2_logit_gap"][equal.max(1) - 1].as_f64().unwrap_or(f64::MAX);
                worst = worst.max(gap);
                println!("  depth {depth}: differs at token {equal}, logit gap {gap:.3}");
            }
        }
        println!(
            "reference, depth {depth}: {same} of {} texts; largest gap of a difference {worst:.3}; \
             kept {kept} (reference {wanted}) in {} rounds (reference {})",
            rows.len(),
            rounds.0,
            rounds.1,
        );
        right &= worst < 0.25 || pair.layout.weights == Format::Fp8;
    }
    Ok(right)
}

/// Prompts made of pieces of those that are known.
fn mixed(known: &[Vec<u32>], count: usize) -> Vec<Vec<u32>> {
    let words: Vec<u32> = known.concat().into_iter().filter(|it| 100 < *it).collect();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut prompt = |index: usize| {
        let mut prompt = known[index % known.len()].clone();
        let at = prompt.len() - 6;
        for _ in 0..rng.usize(2..40) {
            prompt.insert(at, words[rng.usize(..words.len())]);
        }
        prompt
    };
    (0..count).map(&mut prompt).collect()
}

/// One text for each prompt, whatever the mode, the batch and the way it is queued.
fn equal(pair: &Pair, count: usize) -> Result<bool, Box<dyn Error>> {
    let prompts = mixed(&pair.known, count);
    let one = Setup { depth: 0, records: true, lanes: 1, context: CONTEXT };
    let small = options(&pair.layout, one).shares_a_card();
    let lanes = if small { 16 } else { 256 };
    let setup = |depth, records| Setup { depth, records, lanes, context: CONTEXT };
    let mut first: Vec<Text> = Vec::new();
    let mut right = true;
    let ways = if small {
        vec![
            (setup(0, true), vec![16, 1]),
            (setup(0, false), vec![7]),
            (setup(3, true), vec![16, 7, 1]),
            (setup(3, false), vec![5]),
            (setup(5, true), vec![16]),
        ]
    } else {
        vec![
            (setup(0, true), vec![256, 64, 7, 1]),
            (setup(0, false), vec![64]),
            (setup(3, true), vec![256, 64, 7, 1]),
            (setup(3, false), vec![33]),
            (setup(5, true), vec![256, 16]),
        ]
    };
    for (setup, batches) in ways {
        let mut drive = pair.drive(setup)?;
        for batch in batches {
            let some = if batch == 1 { prompts.len().min(24) } else { prompts.len() };
            let texts = drive.texts(&prompts[..some], batch, 256, &greedy())?;
            if first.is_empty() {
                first.clone_from(&texts);
            }
            let pairs = texts.iter().zip(&first);
            let differ = pairs.filter(|(a, b)| a.tokens != b.tokens).count();
            right &= differ == 0;
            let tokens: usize = texts.iter().map(|it| it.tokens.len()).sum();
            let rounds: usize = texts.iter().map(|it| it.kept.len()).sum();
            let kept: u32 = texts.iter().flat_map(|it| &it.kept).sum();
            let seconds: f64 = drive.times.iter().map(|it| it.as_secs_f64()).sum();
            println!(
                "{setup:?} batch {batch}: {differ} of {some} texts differ; {tokens} tokens in \
                 {seconds:.2} s, {:.0} tok/s, step {:.3} ms, {:.2} tokens a round",
                tokens as f64 / seconds,
                median_ms(&drive.times),
                1.0 + f64::from(kept) / rounds.max(1) as f64,
            );
        }
    }
    for top_p in [1.0, 0.95] {
        let warm = Sampling { temperature: 0.9, top_p, seed: 5, ..greedy() };
        let [a, b] = [0, 3].map(|depth| -> Result<Vec<Text>, Box<dyn Error>> {
            pair.drive(setup(depth, true))?.texts(&prompts, 64, 128, &warm)
        });
        let differ = a?.iter().zip(&b?).filter(|(a, b)| a.tokens != b.tokens).count();
        println!("temperature 0.9, top-p {top_p}, depth 0 and 3: {differ} of {count} texts differ");
        right &= differ == 0;
    }
    Ok(right)
}
