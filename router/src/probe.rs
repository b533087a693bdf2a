//! Asks endpoints for their health, and lets time pass for the fleet.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue};
use http::{Request, StatusCode, Uri};
use http_body::Body;
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::config::{EndpointSpec, Limits};
use crate::fleet::endpoint::{EndpointId, Member};
use crate::fleet::health::Finding;
use crate::fleet::{Fleet, Live};
use crate::upstream::upload::Upload;
use crate::upstream::{self, Connect};

pub mod identity;

/// How often the fleet is told that time has passed.
const TICK: Duration = Duration::from_millis(50);
/// More than this of an answer is not read.
const BODY_BYTES_MAX: usize = 1 << 20;

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
                let (live, member) = (Arc::clone(&live), Arc::clone(member));
                probes.spawn(async move {
                    probe(&fleet, &live, &*connector, &member).await;
                    member.state.id
                });
            }
        }
    }
}

async fn probe<C: Connect>(fleet: &Fleet, live: &Live, connector: &C, member: &Member) {
    let rules = &live.config.health;
    let began_ms = fleet.millis(clock::now());
    let spec = &member.spec;
    let asked = ask(connector, spec, &live.config.limits, spec.kind.health_path(), 0);
    let finding = match tokio::time::timeout(rules.timeout, asked).await {
        Ok(Ok((status, _))) if status.is_server_error() => Finding::NotReady,
        Ok(Ok(_)) => Finding::Ready,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Finding::Refused,
        Ok(Err(_)) | Err(_) => Finding::Silent { flowing: began_ms < member.state.flowed_ms() },
    };
    member.state.metrics.probed(finding);
    if fleet.note_health(live, member, finding, clock::now()) {
        let checked = identity::check(fleet, live, connector, member);
        // Only advice: an endpoint that does not tell who it is serves all the same.
        drop(tokio::time::timeout(rules.timeout, checked).await);
    }
}

/// One GET on a connection of its own; gives the status and up to `bytes_max` of the body.
async fn ask<C: Connect>(
    connector: &C,
    spec: &EndpointSpec,
    limits: &Limits,
    path: &'static str,
    bytes_max: usize,
) -> io::Result<(StatusCode, Bytes)> {
    let tasks = TaskTracker::new();
    let limit = Duration::from_secs(60 * 60);
    let mut wire = upstream::open(connector, &spec.target, limit, limits, &tasks).await?;
    let mut request = Request::new(Upload::empty());
    *request.uri_mut() = Uri::from_static(path);
    let headers = request.headers_mut();
    headers.insert(HOST, spec.authority.clone());
    if !spec.target.http2 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(value) = &spec.authorization {
        headers.insert(AUTHORIZATION, value.clone());
    }
    let never = |_: &mut Context<'_>| Poll::<Infallible>::Pending;
    let Ok(answer) = wire.send(request, never).await;
    let answer = answer.map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    let (head, mut body) = answer.into_parts();
    let mut bytes = BytesMut::new();
    while bytes.len() < bytes_max {
        let frame = std::future::poll_fn(|cx| {
            wire.drive(cx);
            std::pin::Pin::new(&mut body).poll_frame(cx)
        });
        match frame.await {
            Some(Ok(frame)) => bytes.extend(frame.into_data().ok()),
            Some(Err(error)) => return Err(io::Error::other(error)),
            None => break,
        }
    }
    Ok((head.status, bytes.freeze()))
}
