//! Load generator, sweep, calibration and simulation.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use bench::{calibrate, compare, hop, simulate, sweep};
use clap::{Parser, Subcommand};
use tokio::runtime::Builder;

/// Measures a pair of engines and the router in front of them.
#[derive(Debug, Parser)]
#[command(name = "crossover-bench", version, args_override_self = true)]
struct Args {
    /// Threads of the client. One leaves the machine to what is measured; GPUs may need more.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
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

async fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Sweep(args) => sweep::run(args).await,
        Command::Calibrate(args) => calibrate::run(&args).await,
        Command::Compare(args) => compare::run(*args).await,
        Command::Hop(args) => hop::run(args).await,
        Command::Simulate(args) => simulate::run(&args),
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut runtime = match args.threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = runtime.worker_threads(args.threads.into()).enable_all().build();
    let runtime =
        runtime.map_err(|error| format!("cannot start {} threads: {error}", args.threads));
    match runtime.and_then(|it| it.block_on(run(args.command))) {
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
