//! The three measurements, each of one round.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::Target;
use super::mock::STREAM;
use super::wire::{Wire, request};
use crate::clock::{self, Clock};
use crate::machine;
use crate::stats::quantile;

/// Streams that are open side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    pub(super) count: u32,
    pub(super) pieces: u32,
    /// Milliseconds between pieces.
    pub(super) every: u32,
    pub(super) ramp: Duration,
}

/// What streams showed; times in microseconds, as medians and 99 in 100.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streamed {
    /// From the request to the first piece.
    pub(super) first: (f64, f64),
    /// From where a piece is made to here.
    pub(super) piece: (f64, f64),
    pub(super) cpu_us: f64,
    pub(super) idle_kib: f64,
    pub(super) streaming_kib: f64,
}

/// Times of requests in microseconds; a list for each target. Counted from when a request is sent,
/// since timers are exact to a millisecond only.
pub(super) async fn latency(
    targets: &[Target],
    rate: f64,
    seconds: f64,
    size: usize,
) -> Result<Vec<Vec<f64>>, String> {
    let body = request("hello", size, false);
    let mut idle: Vec<Vec<Wire>> = targets.iter().map(|_| Vec::new()).collect();
    let mut times = vec![Vec::new(); targets.len()];
    let mut running: JoinSet<Result<(usize, Wire, f64), String>> = JoinSet::new();
    let start = Instant::now();
    let mut sent = 0_u32;
    while f64::from(sent) < rate * seconds {
        let due = start + Duration::from_secs_f64(f64::from(sent) / rate);
        loop {
            tokio::select! {
                biased;
                Some(done) = running.join_next() => {
                    let (at, wire, us) = settle(done)?;
                    idle[at].push(wire);
                    times[at].push(us);
                }
                () = sleep_until(due) => break,
            }
        }
        let at = sent as usize % targets.len();
        let (kept, body) = (idle[at].pop(), body.clone());
        let target = targets[at].clone();
        running.spawn(async move {
            let mut wire = connected(kept, &target).await?;
            let sent = Instant::now();
            wire.ask(&body, |_| ()).await.map_err(|error| broken(&target, &error))?;
            let us = (Instant::now() - sent).as_secs_f64() * 1e6;
            Ok((at, wire, us))
        });
        sent += 1;
    }
    while let Some(done) = running.join_next().await {
        let (at, _, us) = settle(done)?;
        times[at].push(us);
    }
    Ok(times)
}

/// Requests a second, and microseconds of the target's processor time for each.
pub(super) async fn saturate(
    target: &Target,
    connections: u32,
    seconds: f64,
) -> Result<(f64, f64), String> {
    let mut running: JoinSet<Result<u32, String>> = JoinSet::new();
    let cpu = cpu(target);
    let clock = Clock::start();
    for _ in 0..connections {
        let target = target.clone();
        running.spawn(async move {
            let body = request("hello", 64, false);
            let mut wire = connected(None, &target).await?;
            let mut count = 0_u32;
            while clock.ms() < seconds * 1e3 {
                wire.ask(&body, |_| ()).await.map_err(|error| broken(&target, &error))?;
                count += 1;
            }
            Ok(count)
        });
    }
    let mut count = 0.0;
    while let Some(done) = running.join_next().await {
        count += f64::from(settle(done)?);
    }
    let elapsed = clock.ms() / 1e3;
    Ok((count / elapsed, (self::cpu(target) - cpu) * 1e6 / count))
}

pub(super) async fn stream(target: &Target, shape: &Streams) -> Result<Streamed, String> {
    let (idle_kib, cpu) = (resident(target), cpu(target));
    let body = request(&format!("{STREAM}{} every={};", shape.pieces, shape.every), 64, true);
    let mut running: JoinSet<Result<(f64, Vec<f64>), String>> = JoinSet::new();
    for i in 0..shape.count {
        let (target, body, pieces) = (target.clone(), body.clone(), shape.pieces as usize);
        let begin = shape.ramp.mul_f64(f64::from(i) / f64::from(shape.count));
        running.spawn(async move {
            sleep(begin).await;
            let mut wire = connected(None, &target).await?;
            let (sent, mut first) = (clock::unix_ns(), None);
            let (mut late, mut text) = (Vec::new(), Vec::new());
            let read = wire.ask(&body, |bytes| {
                text.extend_from_slice(bytes);
                let now = clock::unix_ns();
                while let Some(made) = event(&mut text) {
                    first.get_or_insert(since(sent, now));
                    late.push(since(made, now));
                }
            });
            read.await.map_err(|error| broken(&target, &error))?;
            match first {
                Some(first) if late.len() == pieces => Ok((first, late)),
                _ => Err(format!("{}: {} pieces of {pieces} came", target.name, late.len())),
            }
        });
    }
    sleep(shape.ramp + Duration::from_millis(u64::from(shape.pieces * shape.every) / 2)).await;
    let streaming_kib = resident(target);
    let (mut firsts, mut pieces) = (Vec::new(), Vec::new());
    while let Some(done) = running.join_next().await {
        let (first, late) = settle(done)?;
        firsts.push(first);
        pieces.extend(late);
    }
    let both = |values: &[f64]| {
        let of = |part| quantile(values, part).unwrap_or(f64::NAN);
        (of(0.5), of(0.99))
    };
    Ok(Streamed {
        first: both(&firsts),
        piece: both(&pieces),
        cpu_us: (self::cpu(target) - cpu) * 1e6 / pieces.len() as f64,
        idle_kib,
        streaming_kib,
    })
}

/// Takes an event off the text: when it was made.
fn event(text: &mut Vec<u8>) -> Option<u64> {
    let end = text.windows(2).position(|it| it == b"\n\n")?;
    let made = std::str::from_utf8(&text[..end]).ok().and_then(|it| it.strip_prefix("data: "));
    let made = made.and_then(|it| it.trim().parse().ok());
    text.drain(..end + 2);
    made
}

fn since(made: u64, now: u64) -> f64 {
    now.saturating_sub(made) as f64 / 1e3
}

/// Not a number when one of the programs is not there, or the system does not tell.
fn cpu(target: &Target) -> f64 {
    target.pids.iter().map(|it| machine::cpu_seconds_of(it).unwrap_or(f64::NAN)).sum()
}

/// Likewise.
fn resident(target: &Target) -> f64 {
    target.pids.iter().map(|it| machine::resident_kib(it).unwrap_or(f64::NAN)).sum()
}

async fn connected(kept: Option<Wire>, target: &Target) -> Result<Wire, String> {
    match kept {
        Some(wire) => Ok(wire),
        None => Wire::open(target.address).await.map_err(|error| broken(target, &error)),
    }
}

fn broken(target: &Target, error: &std::io::Error) -> String {
    format!("{}: {error}", target.name)
}

fn settle<T>(done: Result<Result<T, String>, tokio::task::JoinError>) -> Result<T, String> {
    done.map_err(|error| error.to_string())?
}
