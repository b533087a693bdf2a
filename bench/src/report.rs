//! Tables for people and lines for machines.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use std::collections::BTreeMap;

use crate::client::Target;
use crate::load::Run;
use crate::sample::{Outcome, Sample};
use crate::stats;

/// One target at one concurrency in one round.
#[derive(Clone, Debug)]
pub struct Cell {
    pub target: String,
    pub concurrency: u32,
    /// Tokens a second of all requests together.
    pub total: f64,
    /// Median of tokens a second of one request.
    pub each: f64,
    /// Median time to the first token.
    pub ttft_ms: f64,
    pub failures: usize,
}

impl Cell {
    pub fn of(target: &Target, concurrency: u32, run: &Run) -> Self {
        let of = |value: fn(&Sample) -> Option<f64>| {
            let values: Vec<f64> = run.samples.iter().filter_map(value).collect();
            stats::median(&values).unwrap_or(0.0)
        };
        Self {
            target: target.name.clone(),
            concurrency,
            total: run.tokens_per_second(),
            each: of(Sample::rate),
            ttft_ms: of(Sample::ttft_ms),
            failures: run.failures(),
        }
    }
}

/// A line a step, while the sweep runs.
pub fn progress(round: u32, target: &Target, concurrency: u32, run: &Run) {
    let cell = Cell::of(target, concurrency, run);
    #[expect(clippy::print_stderr, reason = "progress is for the person who waits")]
    {
        eprintln!(
            "round {round}  {concurrency:>3} in flight  {:<12} {:8.1} tok/s  {:7.1} each  \
             ttft {:6.0} ms  {} failed",
            target.name, cell.total, cell.each, cell.ttft_ms, cell.failures
        );
    }
}

/// A markdown table: medians over the rounds, total / each, and the spread of the totals.
pub fn table(targets: &[Target], ladder: &[u32], cells: &[Cell], samples: &[Sample]) -> String {
    let mut text = String::from("| in flight |");
    for target in targets {
        write!(text, " {} |", target.name).expect("a string takes all");
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(targets.len()));
    text.push('\n');
    for &concurrency in ladder {
        write!(text, "| {concurrency} |").expect("a string takes all");
        for target in targets {
            let here = |it: &&Cell| it.target == target.name && it.concurrency == concurrency;
            let of = |value: fn(&Cell) -> f64| -> Vec<f64> {
                cells.iter().filter(here).map(value).collect()
            };
            let totals = of(|it| it.total);
            let total = stats::median(&totals).unwrap_or(0.0);
            let each = stats::median(&of(|it| it.each)).unwrap_or(0.0);
            let spread = stats::spread(&totals).unwrap_or(0.0) * 100.0;
            write!(text, " {total:.0} / {each:.0} (±{spread:.0} %) |").expect("a string takes all");
        }
        text.push('\n');
    }
    let failed = samples.iter().filter(|it| it.outcome != Outcome::Done).count();
    let differing = differing_texts(samples);
    writeln!(
        text,
        "\nTotal tok/s / median tok/s of a request (half the quartile distance of the totals). \
         {} requests, {failed} failed, {differing} prompts with differing texts.",
        samples.len()
    )
    .expect("a string takes all");
    text
}

/// Prompts whose finished texts are not all the same.
pub fn differing_texts(samples: &[Sample]) -> usize {
    let mut texts: BTreeMap<u32, &str> = BTreeMap::new();
    let mut differing = std::collections::BTreeSet::new();
    for sample in samples.iter().filter(|it| it.outcome == Outcome::Done) {
        if *texts.entry(sample.prompt).or_insert(&sample.text) != sample.text {
            differing.insert(sample.prompt);
        }
    }
    differing.len()
}

pub fn show(table: &str) {
    #[expect(clippy::print_stdout, reason = "the result is what was asked for")]
    {
        println!("{table}");
    }
}

/// Writes the table and a JSON line for each request.
pub fn keep(folder: &Path, table: &str, samples: &[Sample]) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("table.md"), table)?;
    let mut lines = BufWriter::new(std::fs::File::create(folder.join("requests.jsonl"))?);
    for sample in samples {
        serde_json::to_writer(&mut lines, sample)?;
        lines.write_all(b"\n")?;
    }
    lines.flush()
}
