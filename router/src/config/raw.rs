//! What was written: flags and the file, before anything is checked.

use std::path::PathBuf;

use clap::Parser;
use serde::Deserialize;

/// Routes requests between a speculative and a throughput instance of one model.
#[derive(Clone, Debug, Parser)]
#[command(name = "crossover-router", version)]
pub struct Args {
    /// The configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the file, print the configuration as it would run, and stop.
    #[arg(long)]
    pub print_config: bool,
    /// Listen here instead of where the file says.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Answer operators here instead of where the file says.
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<String>,
}

/// The file. Each field is listed in this crate's README with its default and its bounds.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub listen: Option<String>,
    pub admin: Option<String>,
    pub threads: Option<u32>,
    pub watch: Option<bool>,
    pub replicas: Option<u32>,
    #[serde(default)]
    pub policy: Policy,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub queue: Queue,
    #[serde(default)]
    pub timeouts: Timeouts,
    #[serde(default)]
    pub health: Health,
    #[serde(default)]
    pub breaker: Breaker,
    #[serde(default)]
    pub shutdown: Shutdown,
    #[serde(default)]
    pub access: Access,
    #[serde(default)]
    pub trace: Trace,
    pub tls: Option<Tls>,
    #[serde(default)]
    pub endpoint: Vec<Endpoint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    pub kind: Option<String>,
    pub role: Option<String>,
    pub high: Option<Threshold>,
    pub low: Option<u32>,
    pub dwell_ms: Option<u64>,
    pub calibration: Option<PathBuf>,
}

/// A number, or the word `auto`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Threshold {
    Count(u32),
    Word(String),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    pub connections_max: Option<u32>,
    pub streams_max: Option<u32>,
    pub header_bytes_max: Option<u32>,
    pub headers_max: Option<u32>,
    pub body_bytes_max: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    pub waiting_max: Option<u32>,
    pub wait_ms_max: Option<u64>,
    pub retry_after_s: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeouts {
    pub connect_ms: Option<u64>,
    pub client_idle_ms: Option<u64>,
    pub client_header_ms: Option<u64>,
    pub first_byte_ms: Option<u64>,
    pub idle_ms: Option<u64>,
    pub send_stall_ms: Option<u64>,
    pub total_ms: Option<u64>,
    pub pool_idle_ms: Option<u64>,
    pub resolve_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Health {
    pub interval_ms: Option<u64>,
    pub timeout_ms: Option<u64>,
    pub fall: Option<u32>,
    pub rise: Option<u32>,
    pub slow_start_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Breaker {
    pub failures_max: Option<u32>,
    pub rest_ms: Option<u64>,
    pub rest_ms_max: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shutdown {
    pub settle_ms: Option<u64>,
    pub drain_ms_max: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    pub log: Option<PathBuf>,
    pub keys_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    pub collector: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    pub name: Option<String>,
    pub role: Option<String>,
    pub url: Option<String>,
    pub kind: Option<String>,
    pub in_flight_max: Option<u32>,
    pub weight: Option<f64>,
    pub host_header: Option<String>,
    pub http: Option<String>,
    pub ca_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}
