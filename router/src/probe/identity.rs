//! Asks endpoints what they are, and says so when the configuration says otherwise.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

use super::{BODY_BYTES_MAX, ask};
use crate::calibration::Identity;
use crate::config::{Config, ConfigError, EndpointSpec, Kind, Limits, Role};
use crate::fleet::endpoint::Member;
use crate::fleet::{Fleet, Live};
use crate::upstream::Connect;

/// What an engine tells of its load; other fields are left alone.
#[derive(Debug, Default, Deserialize)]
pub(super) struct LoadReport {
    pub mode: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Models {
    #[serde(default)]
    data: Vec<Model>,
}

#[derive(Debug, Deserialize)]
struct Model {
    id: String,
}

/// What an engine of ours tells of itself.
#[derive(Debug, Default, Deserialize)]
struct Info {
    quantisation: Option<String>,
    device: Option<String>,
}

/// How long one endpoint has to tell what it is before a configuration is taken without that.
const TELL_MAX: Duration = Duration::from_secs(1);

/// What the endpoint tells of itself; what it does not tell is left out.
async fn identity<C: Connect>(connector: &C, spec: &EndpointSpec, limits: &Limits) -> Identity {
    let mut found = Identity::default();
    if let Some(body) = page(connector, spec, limits, "/v1/models").await {
        let models: Models = serde_json::from_slice(&body).unwrap_or_default();
        found.models = Some(models.data.into_iter().map(|it| it.id).collect());
    }
    if spec.kind == Kind::Crossover
        && let Some(body) = page(connector, spec, limits, "/server_info").await
    {
        let Info { quantisation, device } = serde_json::from_slice(&body).unwrap_or_default();
        (found.quantisation, found.device) = (quantisation, device);
    }
    found
}

/// The body of a good answer.
async fn page<C: Connect>(
    connector: &C,
    spec: &EndpointSpec,
    limits: &Limits,
    path: &'static str,
) -> Option<Bytes> {
    let (status, body) = ask(connector, spec, limits, path, BODY_BYTES_MAX).await.ok()?;
    status.is_success().then_some(body)
}

/// Why the calibration of a configuration does not hold for its endpoints, as they are now. An
/// endpoint that is not there says nothing; it is looked at again when it comes up.
pub async fn stale<C: Connect>(config: &Config, connector: &C) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    let Some(key) = &config.calibrated_for else { return errors };
    for spec in &config.endpoints {
        let told = identity(connector, spec, &config.limits);
        let told = tokio::time::timeout(TELL_MAX, told).await.unwrap_or_default();
        if let Some(why) = key.mismatch(&told) {
            let field = "policy.calibration".to_owned();
            let why = format!("{why} (endpoint {:?}): calibrate this pair anew", spec.name);
            errors.push(ConfigError { field, why });
        }
    }
    errors
}

/// Compares the endpoint with its role and with the others: same models, fitting mode, a path
/// for its load where its kind has one. Nothing follows from it but a log line and a metric.
pub(super) async fn check<C: Connect>(fleet: &Fleet, live: &Live, connector: &C, member: &Member) {
    let limits = &live.config.limits;
    let spec = &member.spec;
    let name = &*spec.name;
    let mut differs = false;
    let mut say = |what: &str| {
        tracing::warn!(endpoint = name, "{what}");
        differs = true;
    };
    if let Some(path) = spec.kind.load_path() {
        match ask(connector, spec, limits, path, BODY_BYTES_MAX).await {
            Ok((status, body)) if status.is_success() => {
                let report: LoadReport = serde_json::from_slice(&body).unwrap_or_default();
                if let Some(what) = mode_mismatch(spec.role, report.mode.as_deref()) {
                    say(what);
                }
            }
            // vLLM only has the path when it is started with load tracking.
            _ if spec.kind == Kind::Vllm => {}
            _ => say("does not tell its load where its kind should: is the kind right?"),
        }
    }
    let told = identity(connector, spec, limits).await;
    if let Some(key) = &live.config.calibrated_for
        && let Some(why) = key.mismatch(&told)
    {
        say(&format!("the calibration {why}: calibrate this pair anew"));
    }
    if let Some(mut ids) = told.models {
        ids.sort();
        member.state.set_models(ids);
        let others = live.members.iter().filter(|it| it.state.id != member.state.id);
        let mine = member.state.models();
        if others.map(|it| it.state.models()).any(|it| !it.is_empty() && it != mine) {
            say("serves other models than another endpoint: answers will depend on the load");
        }
    } else {
        say("does not list its models");
    }
    fleet.metrics.mismatch(name, differs);
}

fn mode_mismatch(role: Role, mode: Option<&str>) -> Option<&'static str> {
    match (role, mode?) {
        (Role::Speculative, "baseline") => Some("has the role speculative but does not speculate"),
        (Role::Throughput, mode) if mode != "baseline" => {
            Some("has the role throughput but speculates")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
