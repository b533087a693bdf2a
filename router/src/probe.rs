//! Asks endpoints for their health, and lets time pass for the fleet.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue};
use http::{Request, StatusCode};
use tokio::task::JoinSet;

use crate::clock;
use crate::config::EndpointSpec;
use crate::fleet::Fleet;
use crate::fleet::endpoint::{EndpointId, Member};
use crate::fleet::health::Finding;
use crate::upstream::upload::Upload;
use crate::upstream::{Connect, Wire};

/// How often the fleet is told that time has passed.
const TICK: Duration = Duration::from_millis(50);

/// Probes all endpoints of the live configuration, each at its own pace, until dropped.
pub async fn watch<C: Connect>(fleet: Arc<Fleet>, connector: Arc<C>) {
    let mut due: BTreeMap<EndpointId, Option<Instant>> = BTreeMap::new();
    let mut probes = JoinSet::new();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            Some(done) = probes.join_next() => {
                let interval = fleet.live().config.health.interval;
                if let Ok(id) = done {
                    due.insert(id, Some(clock::now() + interval));
                }
            }
        }
        let now = clock::now();
        fleet.tick(now);
        let live = fleet.live_owned();
        due.retain(|id, _| live.members.iter().any(|it| it.state.id == *id));
        for member in &live.members {
            let next = due.entry(member.state.id).or_insert(Some(now));
            if next.is_some_and(|it| it <= now) {
                *next = None;
                let (fleet, connector) = (Arc::clone(&fleet), Arc::clone(&connector));
                let member = Arc::clone(member);
                probes.spawn(async move {
                    probe(&fleet, &*connector, &member).await;
                    member.state.id
                });
            }
        }
    }
}

async fn probe<C: Connect>(fleet: &Fleet, connector: &C, member: &Member) {
    let rules = fleet.live().config.health.clone();
    let began_ms = fleet.millis(clock::now());
    let asked = ask(connector, &member.spec, member.spec.kind.health_path());
    let finding = match tokio::time::timeout(rules.timeout, asked).await {
        Ok(Ok(status)) if status.is_server_error() => Finding::NotReady,
        Ok(Ok(_)) => Finding::Ready,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Finding::Refused,
        Ok(Err(_)) | Err(_) => {
            Finding::Silent { flowing: began_ms <= member.state.flowed_ms() && began_ms != 0 }
        }
    };
    let state = &member.state;
    state.metrics.probed(finding);
    let now_ms = fleet.millis(clock::now());
    let was_up = state.is_up();
    state.with_health(now_ms, |it| it.on(finding, &rules));
    if was_up != state.is_up() {
        let up = state.is_up();
        tracing::info!(endpoint = &*state.name, up, ?finding, "health changed");
    }
}

/// One GET on a connection of its own; gives the status.
async fn ask<C: Connect>(
    connector: &C,
    spec: &EndpointSpec,
    path: &'static str,
) -> io::Result<StatusCode> {
    let io = connector.connect(&spec.target).await?;
    let mut wire = Wire::open(io, 65_536, 100).await.map_err(io::Error::other)?;
    let mut request = Request::get(path).body(Upload::empty()).map_err(io::Error::other)?;
    let headers = request.headers_mut();
    headers.insert(HOST, spec.authority.clone());
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    if let Some(value) = &spec.authorization {
        headers.insert(AUTHORIZATION, value.clone());
    }
    let sent = wire.send(request, |_| Poll::<std::convert::Infallible>::Pending).await;
    match sent {
        Ok(Ok(response)) => Ok(response.status()),
        Ok(Err(_)) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
