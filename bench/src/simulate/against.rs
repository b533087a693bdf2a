//! Holds the simulation against a sweep: what it says of policies, and what was measured.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use router::calibration::Curve;
use serde::Deserialize;

use super::day::{self, Rules, Traffic};
use super::ladders::Ladder;
use super::pair::{Cut, Strategy};
use crate::stats;

/// What a line of `cells.jsonl` must have; the rest is left alone.
#[derive(Debug, Deserialize)]
struct Line {
    target: String,
    load: String,
    total: f64,
}

/// Total tok/s by target and requests in flight, medians over the rounds.
type Measured = BTreeMap<String, BTreeMap<u32, f64>>;

/// The policies of a sweep, which must have targets `speculative` and `throughput` for the speeds,
/// simulated under what the routers of the sweep believed: its `calibration.json` if there is one,
/// which also tells what both instances cost each other.
pub fn table(folder: &Path, cut: &Cut, rules: Rules) -> Result<String, String> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let measured = measured(&read("cells.jsonl")?)?;
    let mut actual = ladder(&measured)?;
    let believed = match read("calibration.json") {
        Ok(text) => super::read(&text)?,
        Err(_) => actual.clone(),
    };
    actual.together = believed.together;
    Ok(compared(&measured, &believed, &actual, cut, rules))
}

fn measured(lines: &str) -> Result<Measured, String> {
    let mut all: BTreeMap<String, BTreeMap<u32, Vec<f64>>> = BTreeMap::new();
    for (number, line) in lines.lines().enumerate() {
        let line: Line = serde_json::from_str(line)
            .map_err(|error| format!("cells.jsonl, line {}: {error}", number + 1))?;
        // Open loops have other names.
        if let Ok(in_flight) = line.load.parse() {
            all.entry(line.target).or_default().entry(in_flight).or_default().push(line.total);
        }
    }
    let median = |it: (u32, Vec<f64>)| (it.0, stats::median(&it.1).unwrap_or(0.0));
    Ok(all.into_iter().map(|it| (it.0, it.1.into_iter().map(median).collect())).collect())
}

fn ladder(measured: &Measured) -> Result<Ladder, String> {
    let curve = |name: &str| {
        let points = measured.get(name).ok_or_else(|| format!("no target is called {name}"))?;
        let points: Vec<(u32, f64)> = points.iter().map(|it| (*it.0, *it.1)).collect();
        if points.iter().any(|it| it.1 <= 0.0) {
            return Err(format!("{name} made no tokens at some load"));
        }
        Curve::new(points).map_err(|why| format!("{name} {why}"))
    };
    Ok(Ladder {
        name: "sweep".to_owned(),
        speculative: curve("speculative")?,
        throughput: curve("throughput")?,
        thresholds: None,
        together: 1.0,
    })
}

fn compared(
    measured: &Measured,
    believed: &Ladder,
    actual: &Ladder,
    cut: &Cut,
    rules: Rules,
) -> String {
    let mut text = String::from("| load | target | measured tok/s | simulated | error |\n");
    text.push_str("|---|---|---|---|---|\n");
    let mut errors = Vec::new();
    for strategy in [Strategy::Switch, Strategy::Spill, Strategy::Marginal] {
        for (&in_flight, &found) in measured.get(strategy.label()).into_iter().flatten() {
            let traffic = Traffic::Clients { low: in_flight, high: in_flight, hertz: 1.0 };
            let system = cut.system_that_believes(believed, actual, strategy);
            let simulated = day::run(&system, &traffic, rules).total;
            let error = simulated / found - 1.0;
            errors.push(error.abs());
            let name = strategy.label();
            // Plus zero: an error that rounds to nothing has no sign.
            let percent = (error * 100.0).round() + 0.0;
            writeln!(
                text,
                "| {in_flight} | {name} | {found:.0} | {simulated:.0} | {percent:+.0} % |"
            )
            .expect("a string takes all");
        }
    }
    let part = |part: f64| stats::quantile(&errors, part).unwrap_or(0.0) * 100.0;
    writeln!(text, "\nError: median {:.1} %, largest {:.1} %.", part(0.5), part(1.0))
        .expect("a string takes all");
    text
}

#[cfg(test)]
mod tests;
