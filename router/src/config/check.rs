//! From what was written to what runs: every mistake is found before the first is reported.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::raw::{Args, File, Policy as RawPolicy, Threshold};
use super::{
    BreakerRules, Config, ConfigError, ConfigErrors, HealthRules, Limits, QueueLimits, Role,
    ShutdownRules, Timeouts, Tls, endpoint,
};
use crate::calibration::{Calibration, usual_low};
use crate::policy::Policy;
use crate::policy::marginal::Marginal;
use crate::policy::spill::Spill;
use crate::policy::switch::Switch;
use crate::{keys, tls};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Collects mistakes and stands in for values that could not be read.
#[derive(Debug, Default)]
pub(super) struct Checks(Vec<ConfigError>);

impl Checks {
    pub(super) fn refuse(&mut self, field: impl Into<String>, why: impl Into<String>) {
        self.0.push(ConfigError { field: field.into(), why: why.into() });
    }

    /// The value, or the default when none is written; it must lie in `low..=high`.
    pub(super) fn within<T: Copy + PartialOrd + std::fmt::Display>(
        &mut self,
        field: &str,
        written: Option<T>,
        (low, usual, high): (T, T, T),
    ) -> T {
        let value = written.unwrap_or(usual);
        if value < low || high < value {
            self.refuse(field, format!("{value} is outside {low} to {high}"));
            return usual;
        }
        value
    }

    fn millis(&mut self, field: &str, written: Option<u64>, (low, usual): (u64, u64)) -> Duration {
        Duration::from_millis(self.within(field, written, (low, usual, DAY_MS)))
    }

    /// As `millis`, where 0 means no limit.
    fn millis_or_none(
        &mut self,
        field: &str,
        written: Option<u64>,
        usual: u64,
    ) -> Option<Duration> {
        let limit = self.millis(field, written, (0, usual));
        (!limit.is_zero()).then_some(limit)
    }

    fn address(&mut self, field: &str, written: Option<&str>, usual: &str) -> SocketAddr {
        let text = written.unwrap_or(usual);
        text.parse().unwrap_or_else(|_| {
            self.refuse(field, format!("{text:?} is not an address like {usual}"));
            SocketAddr::from(([127, 0, 0, 1], 0))
        })
    }

    pub(super) fn read(&mut self, field: &str, path: &Path) -> Option<String> {
        match fs::read_to_string(path) {
            Ok(text) => Some(text),
            Err(error) => {
                self.refuse(field, format!("{}: {error}", path.display()));
                None
            }
        }
    }
}

/// Reads the file that the flags name and checks it.
pub fn load(args: &Args) -> Result<Config, ConfigErrors> {
    let at = args.config.display().to_string();
    let fail = |why: String| ConfigErrors(vec![ConfigError { field: at.clone(), why }]);
    let text = fs::read_to_string(&args.config).map_err(|error| fail(error.to_string()))?;
    let mut file: File = toml::from_str(&text).map_err(|error| fail(error.to_string()))?;
    file.listen = args.listen.clone().or(file.listen);
    file.admin = args.admin.clone().or(file.admin);
    let mut config = check(&file)?;
    config.files.push(args.config.clone());
    Ok(config)
}

/// Checks what was written.
pub fn check(file: &File) -> Result<Config, ConfigErrors> {
    let mut checks = Checks::default();
    let c = &mut checks;
    let calibration = calibration(c, &file.policy);
    let use_made = use_of_calibration(&file.policy);
    let used = calibration.as_ref().filter(|_| use_made != Use::None);
    let calibrated_for = used.map(|it| it.key.clone()).filter(|it| !it.is_empty());
    let sure = used.filter(|_| use_made == Use::Threshold).map(|it| it.confidence);
    let is_calibration_idle = calibration.is_some() && use_made == Use::None;
    let replicas = c.within("replicas", file.replicas, (1, 1, 64));
    let config = Config {
        listen: c.address("listen", file.listen.as_deref(), "127.0.0.1:8000"),
        admin: c.address("admin", file.admin.as_deref(), "127.0.0.1:8001"),
        threads: c.within("threads", file.threads, (0, 0, 256)),
        watch: file.watch.unwrap_or(false),
        replicas,
        policy: policy(c, &file.policy, calibration).share(replicas),
        calibrated_for,
        threshold_confidence: sure,
        is_calibration_idle,
        limits: limits(c, file),
        queue: queue(c, file),
        timeouts: timeouts(c, file),
        health: health(c, file),
        breaker: breaker(c, file),
        shutdown: ShutdownRules {
            settle: c.millis("shutdown.settle_ms", file.shutdown.settle_ms, (0, 2000)),
            drain_max: c.millis("shutdown.drain_ms_max", file.shutdown.drain_ms_max, (0, 600_000)),
        },
        tls: file.tls.as_ref().and_then(|it| {
            let made = tls::server(&it.certificate, &it.key);
            made.map_err(|why| c.refuse("tls", why)).ok().map(Tls)
        }),
        access_log: file.access.log.clone(),
        collector: collector(c, file),
        keys: file.access.keys_file.as_ref().and_then(|path| {
            let text = c.read("access.keys_file", path)?;
            Some(keys::digests(&text))
        }),
        endpoints: file.endpoint.iter().map(|it| endpoint::check(c, it, replicas)).collect(),
        files: files(file),
    };
    check_relations(c, &config);
    if checks.0.is_empty() { Ok(config) } else { Err(ConfigErrors(checks.0)) }
}

fn collector(c: &mut Checks, file: &File) -> Option<String> {
    let url = file.trace.collector.clone()?;
    let uri = url.parse::<http::Uri>().ok();
    let is_good = uri.is_some_and(|it| {
        let has_port = endpoint::port(&it).is_ok();
        it.scheme_str() == Some("http") && it.host().is_some() && has_port && it.path() == "/"
    });
    if !is_good {
        c.refuse("trace.collector", format!("{url:?} is not like http://127.0.0.1:4318"));
    }
    Some(url)
}

fn files(file: &File) -> Vec<PathBuf> {
    let tls = file.tls.iter().flat_map(|it| [&it.certificate, &it.key]);
    let endpoints = file.endpoint.iter().flat_map(|it| it.ca_file.iter().chain(&it.key_file));
    let named = file.policy.calibration.iter().chain(&file.access.keys_file);
    named.chain(tls).chain(endpoints).cloned().collect()
}

fn limits(c: &mut Checks, file: &File) -> Limits {
    let it = &file.limits;
    Limits {
        connections_max: c.within(
            "limits.connections_max",
            it.connections_max,
            (1, 16_384, 1_000_000),
        ),
        streams_max: c.within("limits.streams_max", it.streams_max, (1, 256, 65_536)),
        header_bytes_max: c.within(
            "limits.header_bytes_max",
            it.header_bytes_max,
            (8192, 65_536, 1 << 24),
        ),
        headers_max: c.within("limits.headers_max", it.headers_max, (8, 100, 4096)),
        body_bytes_max: c.within(
            "limits.body_bytes_max",
            it.body_bytes_max,
            (1, 512 << 20, 1 << 40),
        ),
    }
}

fn queue(c: &mut Checks, file: &File) -> QueueLimits {
    let it = &file.queue;
    let waiting_max = c.within("queue.waiting_max", it.waiting_max, (0, 1024, 1_000_000));
    QueueLimits {
        waiting_max: usize::try_from(waiting_max).unwrap_or(usize::MAX),
        wait_max: c.millis("queue.wait_ms_max", it.wait_ms_max, (0, 30_000)),
        retry_after_s: c.within("queue.retry_after_s", it.retry_after_s, (1, 1, 60)),
    }
}

fn timeouts(c: &mut Checks, file: &File) -> Timeouts {
    let it = &file.timeouts;
    Timeouts {
        connect: c.millis("timeouts.connect_ms", it.connect_ms, (1, 5000)),
        client_idle: c.millis("timeouts.client_idle_ms", it.client_idle_ms, (1, 75_000)),
        client_header: c.millis("timeouts.client_header_ms", it.client_header_ms, (1, 30_000)),
        first_byte: c.millis_or_none("timeouts.first_byte_ms", it.first_byte_ms, 600_000),
        idle: c.millis_or_none("timeouts.idle_ms", it.idle_ms, 300_000),
        send_stall: c.millis_or_none("timeouts.send_stall_ms", it.send_stall_ms, 120_000),
        total: c.millis_or_none("timeouts.total_ms", it.total_ms, 0),
        pool_idle: c.millis("timeouts.pool_idle_ms", it.pool_idle_ms, (0, 3000)),
        resolve: c.millis("timeouts.resolve_ms", it.resolve_ms, (1, 10_000)),
    }
}

fn health(c: &mut Checks, file: &File) -> HealthRules {
    let it = &file.health;
    HealthRules {
        interval: c.millis("health.interval_ms", it.interval_ms, (10, 1000)),
        timeout: c.millis("health.timeout_ms", it.timeout_ms, (10, 10_000)),
        fall: c.within("health.fall", it.fall, (1, 3, 100)),
        rise: c.within("health.rise", it.rise, (1, 2, 100)),
        slow_start: c.millis("health.slow_start_ms", it.slow_start_ms, (0, 5000)),
    }
}

fn breaker(c: &mut Checks, file: &File) -> BreakerRules {
    let it = &file.breaker;
    BreakerRules {
        failures_max: c.within("breaker.failures_max", it.failures_max, (1, 5, 1000)),
        rest: c.millis("breaker.rest_ms", it.rest_ms, (1, 1000)),
        rest_max: c.millis("breaker.rest_ms_max", it.rest_ms_max, (1, 30_000)),
    }
}

fn calibration(c: &mut Checks, raw: &RawPolicy) -> Option<Calibration> {
    let path = raw.calibration.as_ref()?;
    let text = c.read("policy.calibration", path)?;
    let parsed = Calibration::parse(&text);
    parsed.map_err(|why| c.refuse("policy.calibration", format!("{}: {why}", path.display()))).ok()
}

/// What a policy takes from the calibration file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Use {
    None,
    Threshold,
    Curves,
}

fn use_of_calibration(raw: &RawPolicy) -> Use {
    match (raw.kind.as_deref(), &raw.high) {
        (Some("marginal"), _) => Use::Curves,
        (None | Some("switch" | "spill"), Some(Threshold::Word(_))) => Use::Threshold,
        _ => Use::None,
    }
}

fn policy(c: &mut Checks, raw: &RawPolicy, calibration: Option<Calibration>) -> Policy {
    let kind = raw.kind.as_deref().unwrap_or("switch");
    match kind {
        "switch" => {
            let (high, low_usual) = thresholds(c, raw, calibration.as_ref());
            let low = raw.low.unwrap_or(low_usual);
            if high < low {
                c.refuse("policy.low", format!("{low} is above policy.high, which is {high}"));
            }
            let dwell = c.millis("policy.dwell_ms", raw.dwell_ms, (0, 1000));
            Policy::Switch(Switch { high, low, dwell })
        }
        "spill" => Policy::Spill(Spill { high: thresholds(c, raw, calibration.as_ref()).0 }),
        "marginal" => marginal(c, raw, calibration),
        "pin" => {
            let role = raw.role.as_deref().and_then(Role::parse);
            if role.is_none() {
                c.refuse("policy.role", "pin needs a role: speculative or throughput");
            }
            Policy::Pin(role.unwrap_or(Role::Speculative))
        }
        other => {
            c.refuse("policy.kind", format!("{other:?} is not one of {:?}", Policy::NAMES));
            Policy::Pin(Role::Speculative)
        }
    }
}

/// (high, the low that goes with it unless another is written)
fn thresholds(c: &mut Checks, raw: &RawPolicy, calibration: Option<&Calibration>) -> (u32, u32) {
    match &raw.high {
        None => (8, 6),
        Some(Threshold::Count(high)) => (*high, usual_low(*high)),
        Some(Threshold::Word(word)) if word == "auto" => {
            let found = calibration.and_then(|it| it.thresholds);
            if raw.calibration.is_none() {
                c.refuse("policy.high", "auto needs policy.calibration");
            } else if calibration.is_some() && found.is_none() {
                c.refuse("policy.high", "the calibration has neither a threshold nor both curves");
            }
            found.unwrap_or((8, 6))
        }
        Some(Threshold::Word(word)) => {
            c.refuse("policy.high", format!("{word:?} is neither a number nor \"auto\""));
            (8, 6)
        }
    }
}

fn marginal(c: &mut Checks, raw: &RawPolicy, calibration: Option<Calibration>) -> Policy {
    let fallback = Policy::Pin(Role::Speculative);
    if raw.calibration.is_none() {
        c.refuse("policy.calibration", "marginal needs a calibration file");
    }
    let Some(mut calibration) = calibration else { return fallback };
    let mut take = |role: Role| {
        let curve = calibration.curves.remove(&role);
        if curve.is_none() {
            c.refuse("policy.calibration", format!("has no curve for {}", role.label()));
        }
        curve
    };
    match (take(Role::Speculative), take(Role::Throughput)) {
        (Some(speculative), Some(throughput)) => {
            let together = calibration.together;
            Policy::Marginal(Marginal { speculative, throughput, together })
        }
        _ => fallback,
    }
}

fn check_relations(c: &mut Checks, config: &Config) {
    if config.endpoints.is_empty() {
        c.refuse("endpoint", "at least one [[endpoint]] is needed");
    }
    if 64 < config.endpoints.len() {
        c.refuse("endpoint", "more than 64");
    }
    let mut names = BTreeSet::new();
    for spec in &config.endpoints {
        if !names.insert(spec.name.clone()) {
            c.refuse("endpoint.name", format!("{:?} is used twice", spec.name));
        }
    }
    if config.breaker.rest_max < config.breaker.rest {
        c.refuse("breaker.rest_ms_max", "is below breaker.rest_ms");
    }
    if config.listen == config.admin && config.listen.port() != 0 {
        c.refuse("admin", "is the same address as listen");
    }
    if config.keys.as_ref().is_some_and(Vec::is_empty) {
        c.refuse("access.keys_file", "holds no key");
    }
}
