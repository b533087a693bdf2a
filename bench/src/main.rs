//! Load generator, sweep, calibration and simulation.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use bench::{calibrate, compare, hop, simulate, sweep};
use clap::{Parser, Subcommand};

/// Measures a pair of engines and the router in front of them.
#[derive(Debug, Parser)]
#[command(name = "crossover-bench", version, args_override_self = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Climbs a ladder of concurrencies against one or several endpoints, interleaved.
    Sweep(sweep::Args),
    /// Finds where the two instances of a pair cross, and writes the calibration file.
    Calibrate(calibrate::Args),
    /// Loads our own endpoint and installed peers in turns, and prints ratios.
    Compare(Box<compare::Args>),
    /// Measures what a proxy costs beside others: latency, requests a second, streams.
    Hop(hop::Args),
    /// Compares policies and partitions without a machine, from measured curves.
    Simulate(simulate::Args),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Sweep(args) => sweep::run(args).await,
        Command::Calibrate(args) => calibrate::run(&args).await,
        Command::Compare(args) => compare::run(*args).await,
        Command::Hop(args) => hop::run(args).await,
        Command::Simulate(args) => simulate::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the one place that tells why it failed")]
            {
                eprintln!("crossover-bench: {error}");
            }
            ExitCode::FAILURE
        }
    }
}
