//! Times the CPU backend by itself: tokens a second by sequences and drafts, baseline beside it.

use std::fmt::Write as _;
use std::process::ExitCode;

use bench::clock::Clock;
use bench::{report, stats};
use clap::Parser;
use engine::backend::BackendError;
use engine::backend::cpu::{CpuBackend, CpuOptions};
use engine::batch::sampling::Sampling;
use kernels::cpu::{Activations, TeamError, pin_current};
use tests::golden::golden;
use tests::hand::{self, Line, Share};
use tests::pair;

const PAGES_EACH: u32 = 40;

/// What to measure, on the default pair and the prompts of the golden file.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// A thread each.
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    cores: Vec<usize>,
    /// Sequences that decode side by side.
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    sequences: Vec<u32>,
    /// Drafts of each in a round.
    #[arg(long, value_delimiter = ',', default_value = "0,1,2,3,4,5,6")]
    drafts: Vec<u32>,
    /// Make every draft, however unlikely.
    #[arg(long)]
    every_draft: bool,
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Tokens of each sequence.
    #[arg(long, default_value_t = 96)]
    tokens: u32,
    /// How often everything is measured; what is reported is the median.
    #[arg(long, default_value_t = 5)]
    repeats: u32,
}

/// One way to run, in one repeat.
#[derive(Clone, Copy, Debug)]
struct Rate {
    tokens_per_second: f64,
    tokens_per_round: f64,
    prompt_tokens_per_second: f64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::show(&format!("{error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), BackendError> {
    let pinned = |error: TeamError| BackendError { detail: error.to_string() };
    let (Some(&first), Some(&lanes)) = (args.cores.first(), args.sequences.iter().max()) else {
        return Err(BackendError { detail: "no cores, or no sequences".into() });
    };
    pin_current(first).map_err(pinned)?;
    let held_max = args.drafts.iter().copied().max().unwrap_or(0);
    let options = CpuOptions {
        cores: args.cores.clone(),
        activations: Activations::Int8,
        pages: lanes * PAGES_EACH,
        rows_max: 1024.max(lanes * (1 + held_max)),
        lanes,
        held_max,
    };
    let pair = pair::pair();
    let mut plain = CpuBackend::new(&pair.model, None, &options)?;
    let mut drafting = CpuBackend::new(&pair.model, Some(&pair.head), &options)?;
    if args.every_draft {
        drafting = drafting.every_draft();
    }
    let mut text = heading(&args.drafts);
    for &sequences in &args.sequences {
        let mut rates: Vec<Vec<Rate>> = vec![Vec::new(); 1 + args.drafts.len()];
        for repeat in 0..args.repeats {
            let measure = |backend: &mut CpuBackend, drafts| {
                write_texts(backend, args, sequences, drafts, repeat as usize)
            };
            rates[0].push(measure(&mut plain, 0));
            for (rates, &drafts) in rates[1..].iter_mut().zip(&args.drafts) {
                rates.push(measure(&mut drafting, drafts));
            }
        }
        line(&mut text, sequences, &rates);
    }
    report::show(&text);
    Ok(())
}

/// Decodes `args.tokens` tokens of each sequence, `drafts` drafts a round.
fn write_texts(
    backend: &mut CpuBackend,
    args: &Args,
    sequences: u32,
    drafts: u32,
    turn: usize,
) -> Rate {
    let (texts, _) = golden();
    let line = |lane: u32| {
        let prompt = &texts[(lane as usize + turn) % texts.len()].prompt;
        let seed = u64::from(lane);
        let sampling = Sampling { temperature: args.temperature, seed, ..Sampling::greedy() };
        Line::new(lane, PAGES_EACH, prompt, sampling)
    };
    let mut lines: Vec<Line> = (0..sequences).map(line).collect();
    let prompt_tokens: u32 = lines.iter().map(|it| it.prompt_len).sum();
    let shares = |held| vec![Share { fed_max: u32::MAX, held }; lines.len()];
    let (first, rest) = (shares(0), shares(drafts));
    let clock = Clock::start();
    hand::step(backend, &mut lines, &first);
    let read_ms = clock.ms();
    let tokens_of = |lines: &[Line]| lines.iter().map(|it| it.tokens.len()).sum::<usize>();
    let count = |tokens| u32::try_from(tokens).expect("no more than the pages hold");
    let start = tokens_of(&lines);
    let (mut tokens, mut rounds) = (0, 0);
    while tokens < sequences * args.tokens {
        hand::step(backend, &mut lines, &rest);
        tokens = count(tokens_of(&lines) - start);
        rounds += 1;
    }
    Rate {
        tokens_per_second: f64::from(tokens) / (clock.ms() - read_ms) * 1e3,
        tokens_per_round: f64::from(tokens) / f64::from(rounds * sequences),
        prompt_tokens_per_second: f64::from(prompt_tokens) / read_ms * 1e3,
    }
}

fn heading(drafts: &[u32]) -> String {
    let mut text = String::from("| sequences | prompt tok/s | baseline tok/s |");
    for drafts in drafts {
        write!(text, " {drafts} drafts |").expect("a string takes all");
    }
    text.push_str("\n|---|---|---|");
    text.push_str(&"---|".repeat(drafts.len()));
    text.push('\n');
    text
}

/// Medians; of the ratios to baseline, each taken within one repeat.
fn line(text: &mut String, sequences: u32, rates: &[Vec<Rate>]) {
    let median = |rates: &[Rate], value: fn(&Rate) -> f64| {
        stats::median(&rates.iter().map(value).collect::<Vec<_>>()).unwrap_or(0.0)
    };
    let plain = &rates[0];
    let prompt = median(plain, |it| it.prompt_tokens_per_second);
    let baseline = median(plain, |it| it.tokens_per_second);
    write!(text, "| {sequences} | {prompt:.0} | {baseline:.1} |").expect("a string takes all");
    for rates in &rates[1..] {
        let pairs = rates.iter().zip(plain);
        let ratios: Vec<f64> =
            pairs.map(|(it, plain)| it.tokens_per_second / plain.tokens_per_second).collect();
        let ratio = stats::median(&ratios).unwrap_or(0.0);
        let each = median(rates, |it| it.tokens_per_round);
        write!(text, " x{ratio:.2} ({each:.2}/round) |").expect("a string takes all");
    }
    text.push('\n');
}
