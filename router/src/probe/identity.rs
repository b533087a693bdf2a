//! Asks an endpoint that came up what it is, and says so when the configuration says otherwise.

use serde::Deserialize;

use super::{BODY_BYTES_MAX, ask};
use crate::config::{Kind, Role};
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

/// Compares the endpoint with its role and with the others: same models, fitting mode, a path
/// for its load where its kind has one. Nothing follows from it but a log line and a metric.
pub(super) async fn check<C: Connect>(fleet: &Fleet, live: &Live, connector: &C, member: &Member) {
    let limits = &live.config.limits;
    let name = &*member.spec.name;
    let mut differs = false;
    let mut say = |what: &str| {
        tracing::warn!(endpoint = name, "{what}");
        differs = true;
    };
    if let Some(path) = member.spec.kind.load_path() {
        match ask(connector, member, limits, path, BODY_BYTES_MAX).await {
            Ok((status, body)) if status.is_success() => {
                let report: LoadReport = serde_json::from_slice(&body).unwrap_or_default();
                if let Some(what) = mode_mismatch(member.spec.role, report.mode.as_deref()) {
                    say(what);
                }
            }
            // vLLM only has the path when it is started with load tracking.
            _ if member.spec.kind == Kind::Vllm => {}
            _ => say("does not tell its load where its kind should: is the kind right?"),
        }
    }
    if let Ok((status, body)) = ask(connector, member, limits, "/v1/models", BODY_BYTES_MAX).await
        && status.is_success()
    {
        let models: Models = serde_json::from_slice(&body).unwrap_or_default();
        let mut ids: Vec<_> = models.data.into_iter().map(|it| it.id).collect();
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
