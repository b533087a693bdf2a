//! Takes requests, chooses an endpoint, streams the answer.

#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, clippy::print_stdout, reason = "a program talks to its operator")]

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use router::config::check;
use router::config::raw::Args;
use router::run::StartError;

/// Gives back what a rush of requests took: after 5,000 streams the system's own keeps it.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The configuration is wrong (sysexits: EX_USAGE).
const BAD_CONFIG: u8 = 64;
/// The router could not start.
const BAD_START: u8 = 1;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            drop(error.print());
            return ExitCode::from(if error.use_stderr() { BAD_CONFIG } else { 0 });
        }
    };
    let config = match check::load(&args) {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    if args.print_config {
        println!("{config:#?}");
        return ExitCode::SUCCESS;
    }
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing::Level::INFO.into())
        .from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match router::run::run(args, config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            let is_config = matches!(error, StartError::Config(_));
            ExitCode::from(if is_config { BAD_CONFIG } else { BAD_START })
        }
    }
}
