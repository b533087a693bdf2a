//! `crossover status`: what the router's admin port says, for people and as JSON.

use std::fmt::Write as _;
use std::process::ExitCode;

use reqwest::Client;
use serde::{Deserialize, Serialize};

use crate::body;
use crate::config::flags;
use crate::screen::Screen;
use crate::up::client;

/// What is asked of the router; fields that are not known here are passed over.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Status {
    policy: Policy,
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Policy {
    kind: String,
    high: Option<u64>,
    low: Option<u64>,
    mode: String,
    in_mode_seconds: f64,
    total_in_flight: u64,
    waiting: u64,
    ready: bool,
}

#[derive(Clone, Debug, Deserialize)]
struct Fleet {
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Endpoint {
    name: String,
    role: String,
    address: String,
    in_flight: u64,
    in_flight_max: u64,
    up: bool,
    resting: bool,
    draining: bool,
}

/// Exit code 0 when the router is ready, 1 when it is not or does not answer.
pub(crate) fn run(flags: &flags::Status) -> ExitCode {
    let screen = Screen::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let status = runtime
        .map_err(|it| format!("no runtime: {it}"))
        .and_then(|runtime| runtime.block_on(ask(&format!("http://{}", flags.admin))));
    match status {
        Ok(status) => {
            let json = || serde_json::to_string_pretty(&status).expect("strings and numbers");
            screen.line(&if flags.json { json() } else { describe(&status) });
            if status.policy.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            screen.error(&format!("crossover: {why}"));
            ExitCode::FAILURE
        }
    }
}

async fn ask(admin: &str) -> Result<Status, String> {
    let client = client();
    let policy = get(&client, &format!("{admin}/policy")).await?;
    let fleet: Fleet = get(&client, &format!("{admin}/fleet")).await?;
    Ok(Status { policy, endpoints: fleet.endpoints })
}

async fn get<T: for<'de> Deserialize<'de>>(client: &Client, url: &str) -> Result<T, String> {
    let answer = client.get(url).send().await;
    let answer = answer.and_then(reqwest::Response::error_for_status).map_err(|it| {
        let it = body::whole_chain(&it.without_url());
        format!("no router answers at {url}: {it}. Is it running, and is that its admin address?")
    })?;
    let odd = |it: String| format!("{url} did not answer as this router does: {it}");
    let bytes = body::read(answer).await.map_err(odd)?;
    serde_json::from_slice(&bytes).map_err(|it| odd(it.to_string()))
}

fn describe(status: &Status) -> String {
    let Policy { kind, mode, in_mode_seconds, total_in_flight, waiting, ready, .. } =
        &status.policy;
    let thresholds = match (status.policy.high, status.policy.low) {
        (Some(high), Some(low)) => format!(" (above {high}: throughput; at {low}: speculative)"),
        _ => String::new(),
    };
    let mut text = format!(
        "{}; policy {kind}{thresholds}\nmode {mode} for {in_mode_seconds:.0} s; {total_in_flight} \
         in flight, {waiting} waiting\n\n{:<16}{:<13}{:<22}{:>9}  state\n",
        if *ready { "ready" } else { "NOT READY" },
        "endpoint",
        "role",
        "address",
        "in flight",
    );
    for it in &status.endpoints {
        let states =
            [(!it.up, "down"), (it.up && it.resting, "resting"), (it.draining, "draining")];
        let said: Vec<_> = states.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
        let state = if said.is_empty() { "up".to_owned() } else { said.join(", ") };
        let load = format!("{}/{}", it.in_flight, it.in_flight_max);
        let Endpoint { name, role, address, .. } = it;
        writeln!(text, "{name:<16}{role:<13}{address:<22}{load:>9}  {state}")
            .expect("a String takes everything");
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests;
