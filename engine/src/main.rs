//! One model replica behind an OpenAI-compatible endpoint.

#![forbid(unsafe_code)]

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use engine::config::raw::{Command, Line, Raw};
use engine::config::{Config, ConfigErrors, Log};
use engine::inspect::inspect;
use engine::runner::start;
use engine::serve::{self, Stop};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

/// The operator's mistake, and the world's.
const WRONG_CONFIG: u8 = 64;
const FAILED: u8 = 1;

/// Threads that talk to clients. The backend has its own.
const SERVE_THREADS: usize = 2;

fn main() -> ExitCode {
    let line = match Line::try_parse() {
        Ok(line) => line,
        Err(error) => {
            let shown = error.print();
            let is_right = !error.use_stderr() && shown.is_ok();
            return if is_right { ExitCode::SUCCESS } else { ExitCode::from(WRONG_CONFIG) };
        }
    };
    if let Some(Command::Inspect { path, model }) = &line.command {
        return match inspect(path, model.as_deref()) {
            Ok(text) => print(&text),
            Err(detail) => fail(FAILED, &detail),
        };
    }
    let config = match read(line.raw, line.config.as_deref()) {
        Ok(config) => config,
        Err(errors) => return fail(WRONG_CONFIG, errors.to_string().trim_end()),
    };
    if line.print_config {
        return print(&config.to_string());
    }
    start_log(&config.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(SERVE_THREADS)
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(run(config));
            // What still renders or encodes has nobody to do it for.
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(format!("cannot start: {error}")),
    };
    ended.map_or_else(|detail| fail(FAILED, &detail), |()| ExitCode::SUCCESS)
}

fn read(flags: Raw, file: Option<&std::path::Path>) -> Result<Config, ConfigErrors> {
    let file = file.map(Raw::read).transpose().map_err(|error| ConfigErrors(vec![error]))?;
    Config::new(flags.or(file.unwrap_or_default()))
}

async fn run(config: Config) -> Result<(), String> {
    let address = config.serve.listen;
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| format!("cannot listen on {address}: {error}"))?;
    let (raise, stop) = watch::channel(Stop::No);
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let signals = async move {
        for stop in [Stop::Drain, Stop::Now] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            raise.send_replace(stop);
        }
        std::future::pending::<()>().await;
    };
    tracing::info!("listening on {address}");
    let options = config.serve.clone();
    let start: serve::Start = Box::new(move || start::start(&config));
    tokio::select! {
        ended = serve::run(listener, options, start, stop) => {
            ended.map_err(|error| error.to_string())
        }
        () = signals => Ok(()),
    }
}

fn start_log(log: &Log) {
    let filter = EnvFilter::try_new(&log.filter).expect("the configuration checked it");
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    if log.json { builder.json().init() } else { builder.init() }
}

fn print(text: &str) -> ExitCode {
    let written = io::stdout().write_all(text.as_bytes());
    if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// The reason as the last thing that is said.
fn fail(code: u8, detail: &str) -> ExitCode {
    // Without a place to say it the code has to do.
    let _unsaid = writeln!(io::stderr(), "crossover-engine: {detail}");
    ExitCode::from(code)
}
