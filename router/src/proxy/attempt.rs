//! One request at one endpoint: connect, send, and hand over to the relay.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Instant;

use http::{Response, Version};
use hyper::body::Incoming;

use super::flight::Flight;
use super::patience::{Late, Waiting};
use super::relay::{Answer, Patience, Relay, Terms};
use super::{Answered, Failed, Shard, Trip, explain, headers, to_origin_form};
use crate::answer::Problem;
use crate::clock;
use crate::fleet::endpoint::Member;
use crate::fleet::health::Finding;
use crate::fleet::lease::Lease;
use crate::metrics::{Connected, Retry};
use crate::outcome::Outcome;
use crate::upstream::wire::{SendError, Wire};
use crate::upstream::{self, Connect};

impl<C: Connect> Shard<C> {
    pub(super) async fn attempt(
        &self,
        trip: &mut Trip,
        lease: Lease,
    ) -> Result<Answered<C>, Failed> {
        let member = Arc::clone(lease.member());
        if let Some(line) = &mut trip.line {
            line.attempts += 1;
        }
        let mut flight = Flight::new(
            lease,
            Arc::clone(&self.fleet),
            Arc::clone(&trip.client),
            Arc::clone(&trip.progress),
            trip.arrived,
            trip.line.take(),
        );
        if let Some(request) = &mut trip.request {
            // An endpoint tried before may have spoken another protocol.
            to_origin_form(request.uri_mut());
            *request.version_mut() = Version::HTTP_11;
            headers::aim(request.headers_mut(), &member.spec, &trip.own);
        }
        let mut may_reuse = true;
        loop {
            let (mut wire, is_reused) = match self.wire(trip, &member, may_reuse).await {
                Ok(found) => found,
                Err(problem) => {
                    let now = clock::now();
                    // To be cut short says nothing about the endpoint.
                    let is_late = trip.is_late(now);
                    let outcome =
                        if is_late { Outcome::TotalTimeout } else { Outcome::ConnectFailed };
                    flight.end(outcome, now);
                    trip.line = flight.into_line();
                    let late = Failed::Over(Problem::TotalTimeout);
                    return Err(if is_late { late } else { Failed::Unsent(problem) });
                }
            };
            let (problem, outcome) = match self.send(trip, &mut wire).await {
                Ok(Ok(response)) => return Ok(self.relay(trip, flight, wire, response)),
                Ok(Err(SendError::Unsent(unsent))) if is_reused => {
                    member.state.metrics.retried(Retry::Stale);
                    trip.request = Some(*unsent);
                    may_reuse = false;
                    continue;
                }
                Ok(Err(SendError::Unsent(unsent))) => {
                    trip.request = Some(*unsent);
                    flight.end(Outcome::ConnectFailed, clock::now());
                    trip.line = flight.into_line();
                    return Err(Failed::Unsent(Problem::Unreachable));
                }
                Ok(Err(SendError::Sent(_))) => blame(trip),
                Err(late) => (late.problem(), late.outcome()),
            };
            flight.end(outcome, clock::now());
            trip.line = flight.into_line();
            return Err(Failed::Over(problem));
        }
    }

    /// A connection to the endpoint, and whether it has served before.
    async fn wire(
        &self,
        trip: &mut Trip,
        member: &Member,
        may_reuse: bool,
    ) -> Result<(Wire<C::Io>, bool), Problem> {
        let timeouts = &trip.live.config.timeouts;
        let limits = &trip.live.config.limits;
        let now = clock::now();
        let metrics = &member.state.metrics;
        if may_reuse {
            let target = &member.spec.target;
            let idle_max = timeouts.pool_idle;
            let kept = poll_fn(|cx| {
                Poll::Ready(self.pool.take(member.state.id, target, idle_max, now, cx))
            });
            if let Some(wire) = kept.await {
                metrics.connected(Connected::Reused);
                return Ok((wire, true));
            }
        }
        let target = &member.spec.target;
        let left = trip.until.map(|it| it.saturating_duration_since(now));
        let limit = left.map_or(timeouts.connect, |it| it.min(timeouts.connect));
        let opened = upstream::open(&self.connector, target, limit, limits, &self.tasks);
        // On the heap, since it is large and most requests need none.
        let connected = Box::pin(opened).await;
        let done = clock::now();
        trip.waited += done.saturating_duration_since(now);
        match connected {
            Ok(wire) => {
                metrics.connected(Connected::Fresh);
                if let Some(shared) = wire.share() {
                    self.pool.put(member.state.id, Arc::clone(target), shared, done);
                }
                Ok((wire, false))
            }
            Err(error) => {
                metrics.connected(Connected::Failed);
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    self.fleet.note_health(&trip.live, member, Finding::Refused, done);
                }
                let is_late = error.kind() == io::ErrorKind::TimedOut;
                Err(if is_late { Problem::ConnectTimeout } else { Problem::Unreachable })
            }
        }
    }

    /// Sends the request of the trip, which is gone from it then.
    async fn send(
        &self,
        trip: &mut Trip,
        wire: &mut Wire<C::Io>,
    ) -> Result<Result<Response<Incoming>, SendError>, Late> {
        let request = trip.request.take().expect("what was not sent is put back");
        let now = clock::now();
        self.note_own_time(trip, now);
        let timeouts = &trip.live.config.timeouts;
        let longest = timeouts.first_byte.or(timeouts.idle).unwrap_or(timeouts.client_idle);
        let sleep = pin!(tokio::time::sleep_until((now + longest).into()));
        let mut waiting = Waiting::new(
            &trip.progress,
            timeouts.idle,
            timeouts.first_byte,
            trip.until,
            sleep,
            now,
        );
        wire.send(request, |cx| waiting.poll(cx)).await
    }

    fn relay(
        &self,
        trip: &Trip,
        mut flight: Flight,
        wire: Wire<C::Io>,
        response: Response<Incoming>,
    ) -> Answered<C> {
        let now = clock::now();
        let (mut parts, body) = response.into_parts();
        headers::to_client(&mut parts.headers);
        let is_stream = headers::is_event_stream(&parts.headers);
        flight.on_head(parts.status.as_u16(), is_stream);
        let lease = &flight.lease;
        explain(&mut parts.headers, &lease.member().state.label, lease.reason().label());
        let terms = Terms {
            pool: Arc::clone(&self.pool),
            client: Arc::clone(&trip.client),
            is_open_ended: trip.is_open_ended,
            patience: Patience { idle: trip.live.config.timeouts.idle, total_until: trip.until },
        };
        let relay = Relay::new(flight, body, Some(wire), terms, now);
        // The endpoint may have spoken another protocol.
        parts.version = Version::HTTP_11;
        parts.extensions.clear();
        Response::from_parts(parts, Answer::Relay(Box::new(relay)))
    }

    fn note_own_time(&self, trip: &Trip, now: Instant) {
        let since = now.saturating_duration_since(trip.arrived);
        let own = since.saturating_sub(trip.waited);
        self.fleet.metrics.own_time.observe(own.as_secs_f64());
    }
}

/// Whose fault it is that a connection ended after something was sent.
fn blame(trip: &Trip) -> (Problem, Outcome) {
    if trip.progress.too_large.load(Ordering::Relaxed) {
        (Problem::BodyTooLarge, Outcome::ClientBody)
    } else if trip.progress.broken.load(Ordering::Relaxed) {
        (Problem::BodyBroken, Outcome::ClientBody)
    } else {
        (Problem::NoAnswer, Outcome::NoAnswer)
    }
}
