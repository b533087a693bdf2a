//! The configuration as it runs: checked, complete, units in the types.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ServerConfig};

use crate::calibration::Key;
use crate::policy::Policy;

pub mod check;
mod endpoint;
pub mod raw;

/// What an endpoint is good at.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Role {
    /// Drafts and verifies: fast for few requests.
    Speculative,
    /// Plain decoding: fast in total for many.
    Throughput,
}

impl Role {
    pub const ALL: [Self; 2] = [Self::Speculative, Self::Throughput];

    pub fn label(self) -> &'static str {
        match self {
            Self::Speculative => "speculative",
            Self::Throughput => "throughput",
        }
    }

    pub fn other(self) -> Self {
        match self {
            Self::Speculative => Self::Throughput,
            Self::Throughput => Self::Speculative,
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.label() == text)
    }
}

/// Whose server stands behind an endpoint: it decides the paths that are asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    Crossover,
    Vllm,
    Sglang,
    OpenAi,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Crossover, Self::Vllm, Self::Sglang, Self::OpenAi];

    pub fn label(self) -> &'static str {
        match self {
            Self::Crossover => "crossover",
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::OpenAi => "openai",
        }
    }

    pub fn health_path(self) -> &'static str {
        match self {
            Self::Crossover | Self::Vllm | Self::Sglang => "/health",
            Self::OpenAi => "/v1/models",
        }
    }

    /// Where the server tells its own load, if it does.
    pub fn load_path(self) -> Option<&'static str> {
        match self {
            Self::Crossover | Self::Vllm => Some("/load"),
            Self::Sglang => Some("/get_load"),
            Self::OpenAi => None,
        }
    }
}

/// Where to connect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Target {
    pub host: String,
    pub port: u16,
    pub tls: Option<Tls<ClientConfig>>,
    pub http2: bool,
}

/// A TLS configuration, equal to itself only.
#[derive(Clone, Debug)]
pub struct Tls<T>(pub Arc<T>);

impl<T> PartialEq for Tls<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Eq for Tls<T> {}

impl Target {
    /// `host` or `host:port`, as a Host header has it.
    pub fn authority(&self) -> String {
        let usual = if self.tls.is_some() { 443 } else { 80 };
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}

/// One endpoint as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointSpec {
    pub name: Arc<str>,
    pub role: Role,
    pub kind: Kind,
    pub target: Arc<Target>,
    /// The target's Host header.
    pub authority: http::HeaderValue,
    pub in_flight_max: u32,
    /// Share of its role, in thousandths of the usual 1.0.
    pub weight_milli: u32,
    /// Sends the client's Host header on instead of the endpoint's own authority.
    pub host_preserved: bool,
    /// The value of the Authorization header sent there instead of the client's.
    pub authorization: Option<http::HeaderValue>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    pub connections_max: u32,
    pub streams_max: u32,
    pub header_bytes_max: u32,
    pub headers_max: u32,
    pub body_bytes_max: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct QueueLimits {
    pub waiting_max: usize,
    pub wait_max: Duration,
    pub retry_after_s: u64,
}

/// One limit for each thing that can take too long; zero in the file means none.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeouts {
    pub connect: Duration,
    pub client_idle: Duration,
    pub client_header: Duration,
    pub first_byte: Option<Duration>,
    pub idle: Option<Duration>,
    pub send_stall: Option<Duration>,
    pub total: Option<Duration>,
    pub pool_idle: Duration,
    pub resolve: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub struct HealthRules {
    pub interval: Duration,
    pub timeout: Duration,
    pub fall: u32,
    pub rise: u32,
    pub slow_start: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub struct BreakerRules {
    pub failures_max: u32,
    pub rest: Duration,
    pub rest_max: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ShutdownRules {
    pub settle: Duration,
    pub drain_max: Duration,
}

/// What `crossover-bench calibrate` reaches on a machine that does nothing else.
const CONFIDENCE_USUAL: f64 = 0.8;

/// The whole configuration. What cannot change without a restart is listed at `needs_restart`.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    pub threads: u32,
    pub watch: bool,
    /// Equal routers in front of the same endpoints. What follows is already this one's part.
    pub replicas: u32,
    pub policy: Policy,
    /// What the calibration that the policy rests on was made for.
    pub calibrated_for: Option<Key>,
    /// How sure that calibration is of the threshold, where the policy takes it from there.
    pub threshold_confidence: Option<f64>,
    /// A calibration is named, and the policy takes nothing from it.
    pub is_calibration_idle: bool,
    pub limits: Limits,
    pub queue: QueueLimits,
    pub timeouts: Timeouts,
    pub health: HealthRules,
    pub breaker: BreakerRules,
    pub shutdown: ShutdownRules,
    pub tls: Option<Tls<ServerConfig>>,
    pub access_log: Option<PathBuf>,
    /// URL of an OpenTelemetry collector.
    pub collector: Option<String>,
    /// Digests of the keys a client may show; none means that no key is asked for.
    pub keys: Option<Vec<[u8; 32]>>,
    pub endpoints: Vec<EndpointSpec>,
    /// Every file that was read, to be watched.
    pub files: Vec<PathBuf>,
}

impl Config {
    /// Names the settings that differ and are only read at start.
    pub fn needs_restart(&self, next: &Self) -> Vec<&'static str> {
        let mut names = Vec::new();
        let mut note = |differs: bool, name| {
            if differs {
                names.push(name);
            }
        };
        note(self.listen != next.listen, "listen");
        note(self.admin != next.admin, "admin");
        note(self.threads != next.threads, "threads");
        note(self.limits.connections_max != next.limits.connections_max, "limits.connections_max");
        note(self.access_log != next.access_log, "access.log");
        note(self.collector != next.collector, "trace.collector");
        note(self.timeouts.resolve != next.timeouts.resolve, "timeouts.resolve_ms");
        names
    }

    /// Tells the log of a threshold that was measured too roughly to be relied on, and of a
    /// calibration that nothing relies on.
    pub fn tell_doubts(&self) {
        if self.is_calibration_idle {
            tracing::info!("policy.calibration is not used by this policy");
        }
        if let Some(confidence) = self.threshold_confidence.filter(|it| *it < CONFIDENCE_USUAL) {
            tracing::warn!(confidence, "the threshold is uncertain: calibrate on a quiet machine");
        }
    }
}

/// One mistake of the operator.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigError {
    pub field: String,
    pub why: String,
}

/// Every mistake of one reading, at once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let line_break = if index == 0 { "" } else { "\n" };
            write!(f, "{line_break}{}: {}", error.field, error.why)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

#[cfg(test)]
mod tests;
