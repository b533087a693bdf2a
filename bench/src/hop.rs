//! What a proxy costs, beside other proxies and none, in turns against instant engines.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Subcommand;
use serde_json::json;

use crate::machine::Origin;
use crate::report;
use crate::simulate::parse_seconds;
use crate::stats::{median, quantile};

mod measure;
mod mock;
mod wire;

/// How to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Be an engine that answers at once
    Mock { address: SocketAddr },
    /// Time of a request at a fixed rate, each target in turn
    Latency {
        #[command(flatten)]
        targets: Targets,
        /// Requests a second of all targets together
        #[arg(long, default_value_t = 400.0, value_parser = parse_rate)]
        rate: f64,
        #[arg(long, default_value_t = 10.0, value_parser = parse_seconds)]
        seconds: f64,
        /// Bytes of the prompt
        #[arg(long, default_value_t = 64)]
        size: usize,
    },
    /// Requests a second when nobody waits
    Saturate {
        #[command(flatten)]
        targets: Targets,
        #[arg(
            long,
            default_value_t = 16,
            value_parser = clap::value_parser!(u32).range(1..=65_536)
        )]
        connections: u32,
        #[arg(long, default_value_t = 3.0, value_parser = parse_seconds)]
        seconds: f64,
    },
    /// Lateness of pieces and memory of open streams
    Stream {
        #[command(flatten)]
        targets: Targets,
        #[arg(
            long,
            default_value_t = 500,
            value_parser = clap::value_parser!(u32).range(1..=65_536)
        )]
        streams: u32,
        #[arg(
            long,
            default_value_t = 50,
            value_parser = clap::value_parser!(u32).range(1..=65_536)
        )]
        pieces: u32,
        /// Milliseconds between pieces
        #[arg(
            long,
            default_value_t = 100,
            value_parser = clap::value_parser!(u32).range(1..=60_000)
        )]
        every: u32,
        /// Milliseconds in which the streams begin, one after the other
        #[arg(long, default_value_t = 1000)]
        ramp: u32,
    },
}

#[derive(Clone, Debug, clap::Args)]
struct Targets {
    /// NAME=HOST:PORT@PID; several programs as PID+PID; may be given several times
    #[arg(long = "target", required = true, value_parser = parse)]
    targets: Vec<Target>,
    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// A proxy, or the engine itself.
#[derive(Clone, Debug)]
struct Target {
    name: String,
    address: SocketAddr,
    pids: Vec<String>,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|it: &f64| (0.001..=1e6).contains(it));
    rate.ok_or_else(|| format!("{text:?} is not a rate from 0.001 to 1000000"))
}

fn parse(text: &str) -> Result<Target, String> {
    let form = "a target is NAME=HOST:PORT@PID";
    let (name, rest) = text.split_once('=').ok_or(form)?;
    let (address, pids) = rest.split_once('@').ok_or(form)?;
    let address: SocketAddr = address.parse().map_err(|error| format!("{address}: {error}"))?;
    if !address.ip().is_loopback() {
        return Err(format!("{address} is not on this machine"));
    }
    let is_pid = |it: &str| it.parse::<u32>().is_ok();
    let pids: Vec<String> = pids.split('+').map(str::to_owned).collect();
    if !pids.iter().all(|it| is_pid(it)) {
        return Err(form.to_owned());
    }
    Ok(Target { name: name.to_owned(), address, pids })
}

/// # Errors
///
/// The address of the mock is taken, or a target does not answer.
pub async fn run(args: Args) -> Result<(), String> {
    let table = match args.what {
        What::Mock { address } => {
            return mock::serve(address).await.map_err(|error| format!("{address}: {error}"));
        }
        What::Latency { targets, rate, seconds, size } => {
            latency(&targets, rate, seconds, size).await?
        }
        What::Saturate { targets, connections, seconds } => {
            saturate(&targets, connections, seconds).await?
        }
        What::Stream { targets, streams, pieces, every, ramp } => {
            let shape = measure::Streams {
                count: streams,
                pieces,
                every,
                ramp: Duration::from_millis(ramp.into()),
            };
            stream(&targets, &shape).await?
        }
    };
    let origin = json!(Origin::now());
    report::show(&format!("{origin}\n\n{table}\n"));
    Ok(())
}

async fn latency(args: &Targets, rate: f64, seconds: f64, size: usize) -> Result<String, String> {
    let mut times = vec![(Vec::new(), Vec::new()); args.targets.len()];
    for _ in 0..args.rounds {
        let round = measure::latency(&args.targets, rate, seconds, size).await?;
        for (times, round) in times.iter_mut().zip(round) {
            times.0.extend(quantile(&round, 0.5));
            times.1.extend(quantile(&round, 0.99));
        }
    }
    let mut table = String::from("| | p50 us | added | p99 us | added |\n|---|---|---|---|---|\n");
    let of = |times: &[f64]| median(times).unwrap_or(f64::NAN);
    let first = (of(&times[0].0), of(&times[0].1));
    for (target, times) in args.targets.iter().zip(&times) {
        let (half, most) = (of(&times.0), of(&times.1));
        let (more, most_more) = (half - first.0, most - first.1);
        table += &format!(
            "| {} | {half:.0} | {more:+.0} | {most:.0} | {most_more:+.0} |\n",
            target.name
        );
    }
    Ok(table)
}

async fn saturate(args: &Targets, connections: u32, seconds: f64) -> Result<String, String> {
    let mut found = vec![(Vec::new(), Vec::new()); args.targets.len()];
    for _ in 0..args.rounds {
        for (target, found) in args.targets.iter().zip(&mut found) {
            let (rate, cpu_us) = measure::saturate(target, connections, seconds).await?;
            found.0.push(rate);
            found.1.push(cpu_us);
        }
    }
    let mut table = String::from(
        "| | requests/s | of direct | CPU us a request | from | to |\n|---|---|---|---|---|---|\n",
    );
    let of = |values: &[f64], part| quantile(values, part).unwrap_or(f64::NAN);
    let first = of(&found[0].0, 0.5);
    for (target, (rates, cpu)) in args.targets.iter().zip(&found) {
        let rate = of(rates, 0.5);
        table += &format!(
            "| {} | {rate:.0} | {:.2} | {:.1} | {:.0} | {:.0} |\n",
            target.name,
            rate / first,
            of(cpu, 0.5),
            of(rates, 0.0),
            of(rates, 1.0)
        );
    }
    Ok(table)
}

async fn stream(args: &Targets, shape: &measure::Streams) -> Result<String, String> {
    let mut found: Vec<Vec<measure::Streamed>> = vec![Vec::new(); args.targets.len()];
    for _ in 0..args.rounds {
        for (target, found) in args.targets.iter().zip(&mut found) {
            found.push(measure::stream(target, shape).await?);
        }
    }
    let mut table = String::from(
        "| | first piece p50 us | p99 | piece p50 us | added | p99 | added | CPU us a piece \
         | idle MB | streaming MB |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let of = |runs: &[measure::Streamed], value: fn(&measure::Streamed) -> f64| {
        median(&runs.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN)
    };
    let first = (of(&found[0], |it| it.piece.0), of(&found[0], |it| it.piece.1));
    for (target, runs) in args.targets.iter().zip(&found) {
        let piece = (of(runs, |it| it.piece.0), of(runs, |it| it.piece.1));
        table += &format!(
            "| {} | {:.0} | {:.0} | {:.0} | {:+.0} | {:.0} | {:+.0} | {:.1} | {:.1} | {:.1} |\n",
            target.name,
            of(runs, |it| it.first.0),
            of(runs, |it| it.first.1),
            piece.0,
            piece.0 - first.0,
            piece.1,
            piece.1 - first.1,
            of(runs, |it| it.cpu_us),
            of(runs, |it| it.idle_kib) / 1024.0,
            of(runs, |it| it.streaming_kib) / 1024.0,
        );
    }
    Ok(table)
}

#[cfg(test)]
mod tests;
