//! A pair, or thousands, without a machine: measured curves, real policies, no clock.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use router::calibration::Calibration;
use router::config::Role;

use crate::arrivals::Shape;
use crate::lengths::Lengths;
use crate::report;

pub mod against;
pub mod day;
pub mod desk;
pub mod histogram;
pub mod instance;
pub mod ladders;
pub mod pair;
pub mod speed;

use day::{Outcome, Rules, Traffic};
use ladders::Ladder;
use pair::{Cut, PAIRS_MAX, Strategy};

/// What to compare.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Built-in curves: published, h200-8b, h200-135m-k3, h200-135m-k1, cpu-pair
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "published",
        conflicts_with = "calibration"
    )]
    pub ladder: Vec<String>,
    /// Curves from a calibration file instead.
    #[arg(long)]
    pub calibration: Option<PathBuf>,
    /// Hold the model against a sweep instead: a folder with cells.jsonl, and calibration.json if
    /// its routers read one.
    #[arg(long, conflicts_with_all = ["ladder", "calibration"])]
    pub against: Option<PathBuf>,
    /// What to compare [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub strategy: Vec<Strategy>,
    /// Clients of each pair in a closed loop, one row each
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    pub clients: Vec<u32>,
    /// A closed loop that swings: LOW-HIGH@HERTZ clients of each pair; may be given several times
    #[arg(long, value_parser = parse_swing)]
    pub swing: Vec<(u32, u32, f64)>,
    /// An open loop: poisson:RATE, bursts:RATExSIZE, square:LOW-HIGH@HERTZ, daily:MEAN or
    /// trace:FILE, rates for each pair; may be given several times
    #[arg(long)]
    pub arrivals: Vec<Shape>,
    /// Pairs in the system.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pairs: u32,
    /// Pairs behind one router at most.
    #[arg(
        long,
        default_value_t = PAIRS_MAX,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(PAIRS_MAX))
    )]
    pub pairs_per_router: u32,
    /// Equal routers in front of the same pairs, each told so (`replicas` in its file)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub replicas: u32,
    /// Shares of both partitions that the speculative instance gets.
    #[arg(long, value_delimiter = ',', default_value = "0.5", value_parser = parse_share)]
    pub share: Vec<f64>,
    /// A partition of x times the size is x to this power as fast.
    #[arg(long, default_value_t = 0.8, value_parser = parse_part)]
    pub exponent: f64,
    /// What not drafting costs an engine that could: a share of its speed.
    #[arg(long, default_value_t = 0.01, value_parser = parse_part)]
    pub idle_cost: f64,
    /// The shortest time between two changes of mode under `switch`.
    #[arg(long, default_value_t = 1000)]
    pub dwell_ms: u64,
    /// Tokens of an answer: N, LOW-HIGH or tail:MEAN.
    #[arg(long, default_value = "64-192")]
    pub tokens: Lengths,
    /// Simulated seconds that are counted.
    #[arg(long, default_value_t = 600.0, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Simulated seconds before.
    #[arg(long, default_value_t = 60.0, value_parser = parse_seconds)]
    pub warm_seconds: f64,
    /// A request is good at this many milliseconds a token or fewer, waiting included.
    #[arg(long, default_value_t = 50.0)]
    pub slo_tpot_ms: f64,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

fn parse_swing(text: &str) -> Result<(u32, u32, f64), String> {
    let parsed = || {
        let (clients, hertz) = text.split_once('@')?;
        let (low, high) = clients.split_once('-')?;
        Some((low.parse().ok()?, high.parse().ok()?, hertz.parse().ok()?))
    };
    let is_swing = |it: &(u32, u32, f64)| it.0 <= it.1 && it.2.is_finite() && 0.0 < it.2;
    parsed().filter(is_swing).ok_or_else(|| format!("{text:?} is not LOW-HIGH@HERTZ"))
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|it: &f64| 0.0 < *it && *it < 1.0);
    share.ok_or_else(|| format!("{text:?} is not a share between 0 and 1"))
}

fn parse_part(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|it: &f64| (0.0..=1.0).contains(it));
    part.ok_or_else(|| format!("{text:?} is not a number from 0 to 1"))
}

/// A number of seconds above 0.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|it: &f64| it.is_finite() && 0.0 < *it);
    seconds.ok_or_else(|| format!("{text:?} is not a number of seconds above 0"))
}

/// Simulates everything asked for and prints a table for each ladder and partition.
pub fn run(args: &Args) -> Result<(), String> {
    if let Some(folder) = &args.against {
        report::show(&against::table(folder, &cut(args, 0.5), rules(args))?);
        return Ok(());
    }
    let ladders = match &args.calibration {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
            vec![read(&text).map_err(|why| format!("{}: {why}", path.display()))?]
        }
        None => built_in(&args.ladder)?,
    };
    for ladder in &ladders {
        for &share in &args.share {
            report::show(&table(args, ladder, share));
        }
    }
    Ok(())
}

fn built_in(names: &[String]) -> Result<Vec<Ladder>, String> {
    let all = ladders::built_in();
    let find = |name: &String| {
        let found = all.iter().find(|it| it.name == *name).cloned();
        let names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
        found.ok_or_else(|| format!("--ladder {name}: not one of {}", names.join(", ")))
    };
    names.iter().map(find).collect()
}

/// Curves of a calibration file, as the router reads it.
fn read(text: &str) -> Result<Ladder, String> {
    let mut file = Calibration::parse(text)?;
    let (thresholds, together) = (file.thresholds, file.together);
    let mut take = |role: Role| {
        let curve = file.curves.remove(&role);
        let curve = curve.ok_or_else(|| format!("has no curve for {}", role.label()))?;
        let is_moving = (1..=pair::IN_FLIGHT_MAX).all(|n| 0.0 < curve.at(n));
        if is_moving { Ok(curve) } else { Err(format!("curves.{}: stands still", role.label())) }
    };
    Ok(Ladder {
        name: "calibration".to_owned(),
        thresholds,
        together,
        speculative: take(Role::Speculative)?,
        throughput: take(Role::Throughput)?,
    })
}

fn cut(args: &Args, share: f64) -> Cut {
    Cut {
        share,
        exponent: args.exponent,
        idle_cost: args.idle_cost,
        dwell: Duration::from_millis(args.dwell_ms),
        pairs: args.pairs,
        pairs_per_router: args.pairs_per_router,
        replicas: args.replicas,
    }
}

fn table(args: &Args, ladder: &Ladder, share: f64) -> String {
    let cut = cut(args, share);
    let strategies = if args.strategy.is_empty() { &Strategy::ALL[..] } else { &args.strategy[..] };
    let (high, low) = cut.thresholds(ladder);
    let mut text = format!(
        "{}: {} pair(s), {share} of both partitions speculative, thresholds {high} and {low}\n\n|",
        ladder.name, args.pairs
    );
    let mut put = |part: &str| text.push_str(part);
    put(" |");
    strategies.iter().for_each(|it| put(&format!(" {} |", it.label())));
    put("\n|---|");
    put(&"---|".repeat(strategies.len()));
    for (name, traffic) in traffics(args) {
        put(&format!("\n| {name} |"));
        for &strategy in strategies {
            let outcome = day::run(&cut.system(ladder, strategy), &traffic, rules(args));
            put(&format!(" {} |", cell(&traffic, &outcome)));
        }
    }
    put("\n\nClosed loops: total tok/s / median tok/s of a request. Open loops: mean and 99th \
         percentile of the seconds of a request, and the share that kept the pace.\n");
    text
}

fn rules(args: &Args) -> Rules {
    Rules {
        warm_s: args.warm_seconds,
        seconds: args.seconds,
        lengths: args.tokens,
        good_s: args.slo_tpot_ms / 1e3,
        seed: args.seed,
    }
}

/// Rows: what is sent, for the whole system.
fn traffics(args: &Args) -> Vec<(String, Traffic)> {
    let times = |clients: u32| clients.saturating_mul(args.pairs);
    let closed = args
        .clients
        .iter()
        .map(|&n| (format!("{n}"), Traffic::Clients { low: times(n), high: times(n), hertz: 1.0 }));
    let swings = args.swing.iter().map(|&(low, high, hertz)| {
        let traffic = Traffic::Clients { low: times(low), high: times(high), hertz };
        (format!("{low}-{high} at {hertz} Hz"), traffic)
    });
    let open = args
        .arrivals
        .iter()
        .map(|shape| (shape.to_string(), Traffic::Open(shape.times(f64::from(args.pairs)))));
    closed.chain(swings).chain(open).collect()
}

fn cell(traffic: &Traffic, outcome: &Outcome) -> String {
    let mut text = String::new();
    let written = match traffic {
        Traffic::Clients { .. } => {
            write!(text, "{:.0} / {:.1}", outcome.total, outcome.pace.quantile(0.5))
        }
        Traffic::Open(_) => {
            let good = outcome.good as f64 / outcome.latency_s.count().max(1) as f64;
            let (mean, tail) = (outcome.latency_s.mean(), outcome.latency_s.quantile(0.99));
            write!(text, "{mean:.2} / {tail:.2} / {:.0} %", good * 100.0)
        }
    };
    written.expect("a string takes all");
    if outcome.shed != 0 {
        write!(text, " ({} shed)", outcome.shed).expect("a string takes all");
    }
    text
}

#[cfg(test)]
mod tests;
