//! `crossover up`: three programs started, watched and stopped as one.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::config::{EXIT_USAGE, Up, cache, flags, reachable};
use crate::fetch;
use crate::machine::Cores;
use crate::screen::Screen;

mod children;
mod gauges;
mod plan;
pub(crate) mod programs;
mod ready;
mod signals;

use children::{Children, Exit};
use gauges::Gauges;
pub(crate) use ready::client;
use signals::Signals;

const STATUS_EVERY: Duration = Duration::from_secs(1);
/// How often a status line is written where nobody sees one that moves.
const PLAIN_STATUS_EVERY_TICKS: u32 = 30;

/// Why `up` could not begin, or did not last.
enum Failure {
    /// Told already.
    Usage,
    Said(String),
}

/// Runs until Ctrl-C, SIGTERM, or the death of a child.
pub(crate) fn run(flags: &flags::Up) -> ExitCode {
    let mut screen = Screen::new();
    match prepared(flags, &mut screen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage) => EXIT_USAGE.into(),
        Err(Failure::Said(why)) => {
            screen.clear();
            screen.error(&format!("crossover: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn prepared(flags: &flags::Up, screen: &mut Screen) -> Result<(), Failure> {
    let said = |it: &dyn ToString| Failure::Said(it.to_string());
    let config = Up::check(flags, &Cores::of_machine()).map_err(|errors| {
        errors.iter().for_each(|it| screen.error(&format!("crossover: {it}")));
        Failure::Usage
    })?;
    let busy = ports_in_use(&config.addresses.all());
    if !busy.is_empty() {
        return Err(Failure::Said(busy.join("\n")));
    }
    let programs = programs::find(screen).map_err(Failure::Said)?;
    let cache = cache(flags.model.cache.as_deref()).map_err(|it| said(&it))?;
    let model = fetch::model(&config.model, &cache, &mut |it| screen.progress(it));
    let model = model.map_err(|it| said(&it))?;
    let dir = RunDir::make(flags.run_dir.as_deref()).map_err(Failure::Said)?;
    let plan = plan::Plan::new(&config, &programs, &model, &dir.path);
    plan.write().map_err(Failure::Said)?;
    // One thread: a child is told of its parent's death by the thread that made it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|it| Failure::Said(format!("no runtime: {it}")))?;
    let outcome = runtime.block_on(served(&config, &plan, &programs, screen));
    match outcome {
        Ok(()) => dir.remove(),
        Err(why) => {
            let logs = format!("\nThe logs are kept in {}", dir.path.display());
            return Err(Failure::Said(why + &logs));
        }
    }
    Ok(())
}

/// Starts everything, waits until it is ready, watches it, stops it.
async fn served(
    config: &Up,
    plan: &plan::Plan,
    programs: &programs::Programs,
    screen: &mut Screen,
) -> Result<(), String> {
    let mut signals = Signals::listen()?;
    let mut children = Children::start(plan, programs)?;
    let outcome = tokio::select! {
        outcome = watched(config, plan, screen) => outcome,
        exit = children.first_exit() => Err(exit.describe()),
        () = signals.next() => Ok(()),
        never = children::bound_logs(plan) => match never {},
    };
    screen.clear();
    screen.line("stopping (once more to stop at once)");
    tokio::select! {
        () = children.stop() => {}
        () = signals.next() => {}
    }
    children.kill().await;
    outcome
}

/// Ends only when the pair does not become ready.
async fn watched(config: &Up, plan: &plan::Plan, screen: &mut Screen) -> Result<(), String> {
    ready::wait(config, plan, screen).await?;
    announce(config, plan, screen);
    let mut gauges = Gauges::new(config);
    let mut ticks = interval(STATUS_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = String::new();
    for tick in 0_u32.. {
        ticks.tick().await;
        let line = gauges.line().await;
        if screen.is_live() {
            screen.status(&line);
        } else if tick % PLAIN_STATUS_EVERY_TICKS == 0 && line != told {
            screen.line(&line);
            told = line;
        }
    }
    Ok(())
}

fn announce(config: &Up, plan: &plan::Plan, screen: &Screen) {
    let url = format!("http://{}", reachable(config.addresses.listen));
    let admin = reachable(config.addresses.admin);
    screen.line(&format!(
        "\nCrossover is up: {url}/v1   (metrics and a live page: http://{admin}/)\n\n    \
         curl {url}/v1/chat/completions -H 'content-type: application/json' -d \
         '{{\"messages\":[{{\"role\":\"user\",\"content\":\"Why is the sky blue?\"}}],\
         \"max_tokens\":64}}'\n\nLogs: {}   Ctrl-C stops everything.\n",
        plan.dir.display()
    ));
}

/// One sentence for each address that cannot be listened on.
pub(crate) fn ports_in_use(addresses: &[(&str, SocketAddr)]) -> Vec<String> {
    let refusal = |(flag, address): &(&str, SocketAddr)| {
        let cause = TcpListener::bind(address).err()?;
        Some(if cause.kind() == std::io::ErrorKind::AddrInUse {
            format!(
                "port {} is in use: stop what listens on {address}, or choose another with \
                 --{flag}",
                address.port()
            )
        } else {
            format!("cannot listen on {address} (--{flag}): {cause}")
        })
    };
    addresses.iter().filter_map(refusal).collect()
}

/// Where logs and the router's configuration lie.
struct RunDir {
    path: PathBuf,
    is_temporary: bool,
}

impl RunDir {
    fn make(named: Option<&Path>) -> Result<Self, String> {
        match named {
            Some(path) => {
                fs::create_dir_all(path)
                    .map_err(|it| format!("cannot make {} (--run-dir): {it}", path.display()))?;
                Ok(Self { path: path.to_owned(), is_temporary: false })
            }
            None => {
                let made = tempfile::Builder::new().prefix("crossover-").tempdir();
                let made = made.map_err(|it| format!("cannot make a temporary directory: {it}"))?;
                Ok(Self { path: made.keep(), is_temporary: true })
            }
        }
    }

    fn remove(self) {
        if self.is_temporary {
            drop(fs::remove_dir_all(&self.path));
        }
    }
}

impl Exit {
    fn describe(&self) -> String {
        let Self { name, status, log, last_lines } = self;
        format!("the {name} ended by itself ({status}); the last lines of {log}:\n{last_lines}")
    }
}

#[cfg(test)]
mod tests;
