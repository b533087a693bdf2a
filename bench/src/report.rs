//! Tables for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write as _};

use crate::cell::Cell;
use crate::machine::Origin;
use crate::sample::{Outcome, Sample};
use crate::stats;

pub mod folder;
pub mod plot;

/// All that a sweep saw.
#[derive(Clone, Debug)]
pub struct Results {
    pub origin: Origin,
    /// Names, in the order given.
    pub targets: Vec<String>,
    /// Labels, in the order measured.
    pub loads: Vec<String>,
    pub cells: Vec<Cell>,
    pub samples: Vec<Sample>,
}

impl Results {
    /// One target under one load, over all rounds.
    pub fn cells_of<'a>(
        &'a self,
        target: &'a str,
        load: &'a str,
    ) -> impl Iterator<Item = &'a Cell> {
        let is_here = move |it: &&Cell| it.place.target == target && it.place.load == load;
        self.cells.iter().filter(is_here)
    }

    /// The median over the rounds of one value; 0 of nothing.
    pub fn median(&self, target: &str, load: &str, value: fn(&Cell) -> f64) -> f64 {
        let values: Vec<f64> = self.cells_of(target, load).map(value).collect();
        stats::median(&values).unwrap_or(0.0)
    }

    /// Requests of all rounds that failed.
    pub fn failures(&self, target: &str, load: &str) -> usize {
        self.cells_of(target, load).map(Cell::failures).sum()
    }
}

/// A line while one waits. That nobody reads it any more is no reason to stop.
pub fn progress(line: &str) {
    writeln!(io::stderr(), "{line}").unwrap_or_default();
}

/// What was asked for; likewise.
pub fn show(text: &str) {
    writeln!(io::stdout(), "{text}").unwrap_or_default();
}

/// Two markdown tables: speeds, then times and what else went on.
pub fn table(results: &Results) -> String {
    let mut text = speeds(results);
    text.push('\n');
    details(&mut text, results).expect("a string takes all");
    text
}

fn speeds(results: &Results) -> String {
    let mut text = String::from("| load |");
    results.targets.iter().for_each(|it| text.push_str(&format!(" {it} |")));
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(results.targets.len()));
    for load in &results.loads {
        text.push_str(&format!("\n| {load} |"));
        for target in &results.targets {
            let totals: Vec<f64> = results.cells_of(target, load).map(|it| it.total).collect();
            let total = stats::median(&totals).unwrap_or(0.0);
            let each = results.median(target, load, |it| it.each);
            let spread = stats::spread(&totals).unwrap_or(0.0) * 100.0;
            // Who refuses is soon free again: its figures are no speeds of what was asked.
            let failed = match results.failures(target, load) {
                0 => String::new(),
                failed => format!(", {failed} failed"),
            };
            text.push_str(&format!(" {total:.0} / {each:.0} (±{spread:.0} %{failed}) |"));
        }
    }
    let failed = results.samples.iter().filter(|it| it.outcome != Outcome::Done).count();
    let texts = Texts::of(&results.samples);
    text.push_str(&format!(
        "\n\nTotal tok/s / median tok/s of a request (half the quartile distance of the totals). \
         {} requests, {failed} failed. {}\n",
        results.samples.len(),
        texts.sentence()
    ));
    text
}

fn details(text: &mut String, results: &Results) -> std::fmt::Result {
    text.push_str(
        "| load | target | first token ms p50 / p99 | ms a token p50 / p99 | good tok/s | tokens a \
         round | shed / errors / broken | sent late ms p99 | client's cores |\n",
    );
    text.push_str("|---|---|---|---|---|---|---|---|---|");
    for load in &results.loads {
        for target in &results.targets {
            let of = |value: fn(&Cell) -> f64| results.median(target, load, value);
            let sum = |value: fn(&Cell) -> usize| -> usize {
                results.cells_of(target, load).map(value).sum()
            };
            let optional = |value: fn(&Cell) -> Option<f64>| {
                let values: Vec<f64> = results.cells_of(target, load).filter_map(value).collect();
                stats::median(&values).map_or_else(|| "-".to_owned(), |it| format!("{it:.2}"))
            };
            write!(
                text,
                "\n| {load} | {target} | {:.0} / {:.0} | {:.1} / {:.1} | {:.0} | {} | {} / {} / {} \
                 | {:.1} | {} |",
                of(|it| it.ttft_ms),
                of(|it| it.ttft_ms_p99),
                of(|it| it.tpot_ms),
                of(|it| it.tpot_ms_p99),
                of(|it| it.good),
                optional(|it| it.round_tokens),
                sum(|it| it.shed),
                sum(|it| it.errors),
                sum(|it| it.broken),
                of(|it| it.late_ms_p99),
                optional(|it| it.client_cores),
            )?;
        }
    }
    text.push_str("\n\nLatency counts from when a request was due. Medians over the rounds.\n");
    Ok(())
}

/// Whether equal prompts gave equal texts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Texts {
    /// Prompts with more than one finished text.
    pub compared: usize,
    pub differing: usize,
    /// By target, where there are some: prompts of which it wrote another text than was seen first.
    pub others: BTreeMap<String, usize>,
}

impl Texts {
    pub fn of(samples: &[Sample]) -> Self {
        let mut texts: BTreeMap<u32, &str> = BTreeMap::new();
        let (mut compared, mut differing) = (BTreeSet::new(), BTreeSet::new());
        let mut others: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        for sample in samples.iter().filter(|it| it.outcome == Outcome::Done) {
            match texts.get(&sample.prompt) {
                None => {
                    texts.insert(sample.prompt, &sample.text);
                }
                Some(text) => {
                    compared.insert(sample.prompt);
                    if *text != sample.text {
                        differing.insert(sample.prompt);
                        others.entry(sample.target.clone()).or_default().insert(sample.prompt);
                    }
                }
            }
        }
        let others = others.into_iter().map(|(target, prompts)| (target, prompts.len())).collect();
        Self { compared: compared.len(), differing: differing.len(), others }
    }

    fn sentence(&self) -> String {
        let others: Vec<String> =
            self.others.iter().map(|(target, prompts)| format!("{target} {prompts}")).collect();
        let others = match &others[..] {
            [] => String::new(),
            others => format!(" (from the first seen: {})", others.join(", ")),
        };
        format!(
            "Texts: {} prompts were answered by several targets or in several rounds, {} of them \
             differ{others}.",
            self.compared, self.differing
        )
    }
}

#[cfg(test)]
pub(crate) mod tests;
