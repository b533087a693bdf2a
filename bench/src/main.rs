//! Load generator, sweep, calibration and simulation.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use bench::{rounds, sweep};
use clap::{Parser, Subcommand};

/// Measures a pair of engines and the router in front of them.
#[derive(Debug, Parser)]
#[command(name = "crossover-bench", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Climbs a ladder of concurrencies against one or several endpoints, interleaved.
    Sweep(sweep::Args),
    /// Times the CPU backend by itself, with the default pair.
    Rounds(rounds::Args),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Sweep(args) => sweep::run(args).await.map_err(|it| it.to_string()),
        Command::Rounds(args) => rounds::run(&args).map_err(|it| it.to_string()),
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
