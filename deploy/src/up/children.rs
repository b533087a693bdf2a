//! The three programs as children: started, told apart when one ends, stopped, never left behind.

use std::convert::Infallible;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::plan::{Launch, Plan};
use super::programs::Programs;

/// Longer than the drain limits that the plan gives to the children.
const STOP_MAX: Duration = Duration::from_secs(8);
const TAIL_BYTES: u64 = 4096;
/// A log that grows past this becomes `NAME.log.1`, in the place of the one before.
const LOG_BYTES_MAX: u64 = 64 << 20;
const LOG_LOOK_EVERY: Duration = Duration::from_secs(1);
const TAIL_LINES: usize = 12;

/// The children, in the order of the plan: engines, then router.
#[derive(Debug)]
pub(super) struct Children(Vec<Running>);

#[derive(Debug)]
struct Running {
    launch: Launch,
    child: Child,
}

/// A child that ended without being asked.
#[derive(Debug)]
pub(super) struct Exit {
    pub(super) name: &'static str,
    pub(super) status: String,
    pub(super) log: String,
    pub(super) last_lines: String,
}

impl Children {
    pub(super) fn start(plan: &Plan, programs: &Programs) -> Result<Self, String> {
        let start = |launch: &Launch| {
            let child = spawn(launch, &programs.front)?;
            Ok(Running { launch: launch.clone(), child })
        };
        plan.programs.iter().map(start).collect::<Result<_, _>>().map(Self)
    }

    /// Waits for the first child that ends.
    pub(super) async fn first_exit(&mut self) -> Exit {
        let waits = self.0.iter_mut().map(|it| Box::pin(it.child.wait()));
        let (status, at, _) = select_all(waits).await;
        let launch = &self.0[at].launch;
        Exit {
            name: launch.name,
            status: status.map_or_else(|it| it.to_string(), |it: ExitStatus| it.to_string()),
            log: launch.log.display().to_string(),
            last_lines: last_lines(&launch.log),
        }
    }

    /// Asks the router to end, so that streams come to theirs, then the engines.
    pub(super) async fn stop(&mut self) {
        let (engines, router) = self.0.split_at_mut(2);
        end(router).await;
        end(engines).await;
    }

    /// Ends what is still there.
    pub(super) async fn kill(&mut self) {
        // Fails when the child has ended, which is what is wanted.
        join_all(self.0.iter_mut().map(|it| it.child.kill())).await.into_iter().for_each(drop);
    }
}

async fn end(children: &mut [Running]) {
    for running in children.iter() {
        let id = running.child.id().and_then(|it| i32::try_from(it).ok()).and_then(Pid::from_raw);
        if let Some(id) = id {
            // Fails when the child has ended, which is what is wanted.
            kill_process(id, Signal::TERM).ok();
        }
    }
    let waits = children.iter_mut().map(|it| timeout(STOP_MAX, it.child.wait()));
    join_all(waits).await.into_iter().for_each(drop);
}

/// Through `crossover run-child`, which ties the program's life to this one; in a process group of
/// its own, so that Ctrl-C reaches this program alone, and it ends the others in order.
fn spawn(launch: &Launch, front: &Path) -> Result<Child, String> {
    // To append, so that what `turn` cuts off stays cut off.
    let log = File::create(&launch.log)
        .and_then(|_| OpenOptions::new().append(true).open(&launch.log))
        .map_err(|it| format!("cannot write {}: {it}", launch.log.display()))?;
    let again = log.try_clone().map_err(|it| format!("{}: {it}", launch.log.display()))?;
    Command::new(front)
        .args(["run-child", "--parent", &std::process::id().to_string(), "--"])
        .arg(&launch.program)
        .args(&launch.args)
        // What they say goes to a file.
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(again)
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|it| format!("cannot start the {}: {it}", launch.name))
}

/// Keeps the logs within bounds, for ever.
pub(super) async fn bound_logs(plan: &Plan) -> Infallible {
    loop {
        sleep(LOG_LOOK_EVERY).await;
        plan.programs.iter().for_each(|it| turn(&it.log, LOG_BYTES_MAX));
    }
}

/// A child holds its log open, so what is in it is copied away. What is written meanwhile is lost,
/// and where there is no room for a copy all of it: a full disk would harm more than the log.
fn turn(log: &Path, bytes_max: u64) {
    if fs::metadata(log).is_ok_and(|it| bytes_max < it.len()) {
        let old = log.with_extension("log.1");
        if fs::copy(log, &old).is_err() {
            drop(fs::remove_file(&old));
        }
        drop(OpenOptions::new().write(true).open(log).and_then(|it| it.set_len(0)));
    }
}

/// The end of a log, indented.
fn last_lines(log: &Path) -> String {
    let mut bytes = Vec::new();
    let read = File::open(log).and_then(|mut file| {
        let len = fs::metadata(log)?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(TAIL_BYTES)))?;
        file.take(TAIL_BYTES).read_to_end(&mut bytes)
    });
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL_LINES);
    match read {
        Ok(0) => "    (nothing was written)".to_owned(),
        Ok(_) => lines[from..].iter().map(|it| format!("    {it}\n")).collect(),
        Err(it) => format!("    ({it})"),
    }
}

#[cfg(test)]
mod tests;
