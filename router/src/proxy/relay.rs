//! An answer on its way to the client: frame by frame, nothing held back, nothing kept.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::flight::Flight;
use crate::client::Client;
use crate::clock;
use crate::outcome::Outcome;
use crate::serve::streams;
use crate::upstream::wire::Wire;
use crate::upstream::{Pool, Transport};

/// The body of everything that the router answers.
#[derive(Debug)]
pub enum Answer<Io: Transport> {
    /// The router's own words.
    Own(Option<Bytes>),
    Relay(Box<Relay<Io>>),
}

/// When an answer has taken too long.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub idle: Option<Duration>,
    pub total_until: Option<Instant>,
}

/// What an answer is passed on with.
#[derive(Debug)]
pub struct Terms<Io: Transport> {
    pub pool: Arc<Pool<Io>>,
    pub client: Arc<Client>,
    /// To this client the end of the connection is the end of the answer (HTTP/1.0).
    pub is_open_ended: bool,
    pub patience: Patience,
}

/// Passes on what an endpoint sends. It drives the connection itself, in the client's own task,
/// so a client that leaves drops both.
#[derive(Debug)]
pub struct Relay<Io: Transport> {
    /// None when the answer is over.
    flight: Option<Flight>,
    body: Incoming,
    /// Came from the endpoint, and is still to be handed over.
    rest: Bytes,
    wire: Option<Wire<Io>>,
    terms: Terms<Io>,
    moved_at: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
    /// The endpoint broke off; said one turn later, so that what came before is flushed.
    failed: Option<Outcome>,
}

impl<Io: Transport> Relay<Io> {
    pub fn new(
        flight: Flight,
        body: Incoming,
        wire: Option<Wire<Io>>,
        terms: Terms<Io>,
        now: Instant,
    ) -> Self {
        let mut relay = Self {
            flight: Some(flight),
            body,
            rest: Bytes::new(),
            wire,
            terms,
            moved_at: now,
            sleep: None,
            failed: None,
        };
        if relay.body.is_end_stream() {
            relay.complete(now);
        }
        relay
    }

    /// The last byte is handed over: the lease ends, the connection may serve the next.
    fn complete(&mut self, now: Instant) {
        let Some(mut flight) = self.flight.take() else { return };
        flight.end(Outcome::Complete, now);
        if !flight.has_whole_request() {
            self.terms.client.linger();
        }
        if let Some(mut wire) = self.wire.take()
            && wire.share().is_none()
        {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            if wire.is_usable(&mut cx) {
                let member = flight.lease.member();
                let target = Arc::clone(&member.spec.target);
                self.terms.pool.put(member.state.id, target, wire, now);
            }
        }
    }

    /// Ends the answer without an end that a client could take for one.
    fn fail(&mut self, outcome: Outcome, cx: &Context<'_>) {
        if let Some(flight) = &mut self.flight {
            flight.end(outcome, clock::now());
        }
        self.wire = None;
        if self.terms.is_open_ended {
            self.terms.client.abort();
        }
        self.failed = Some(outcome);
        cx.waker().wake_by_ref();
    }

    fn poll_upstream(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        // A second turn saves a wake-up of this same task: the first may only make room for the
        // connection to hand over what it has read.
        for _ in 0..2 {
            if let Some(wire) = &mut self.wire {
                wire.drive(cx);
            }
            if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
                return Poll::Ready(frame);
            }
        }
        Poll::Pending
    }

    /// Which limit has passed, if one has; else makes sure of being woken at the next.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let idle_until = self.terms.patience.idle.map(|it| self.moved_at + it);
        let until = match (idle_until, self.terms.patience.total_until) {
            (Some(idle), Some(total)) => idle.min(total),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return Poll::Pending,
        };
        let sleep =
            self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until.into())));
        while sleep.as_mut().poll(cx).is_ready() {
            if until <= clock::now() {
                let is_total = self.terms.patience.total_until == Some(until);
                let outcome = if is_total { Outcome::TotalTimeout } else { Outcome::IdleTimeout };
                return Poll::Ready(outcome);
            }
            sleep.as_mut().reset(until.into());
        }
        Poll::Pending
    }
}

impl<Io: Transport> Relay<Io> {
    /// As much of a frame as may go at once; keeps the rest.
    fn hand_over(&mut self, mut frame: Frame<Bytes>, now: Instant) -> Frame<Bytes> {
        if let Some(data) = frame.data_mut() {
            self.rest = data.split_off(data.len().min(streams::piece_bytes_max()));
        }
        self.moved_at = now;
        streams::handed_over(self.terms.patience.total_until, now);
        if self.is_over() {
            self.complete(now);
        }
        frame
    }

    fn is_over(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        let body = self.body.size_hint();
        let mut whole = SizeHint::new();
        whole.set_lower(body.lower().saturating_add(rest));
        if let Some(upper) = body.upper() {
            whole.set_upper(upper.saturating_add(rest));
        }
        whole
    }

    fn poll_relay(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(outcome) = self.failed {
            return Poll::Ready(Some(Err(io::Error::other(outcome.label()))));
        }
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            return Poll::Ready(Some(Ok(self.hand_over(Frame::data(rest), clock::now()))));
        }
        match self.poll_upstream(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let now = clock::now();
                if let Some(flight) = &mut self.flight
                    && let Some(data) = frame.data_ref()
                {
                    flight.on_bytes(data.len(), now);
                }
                Poll::Ready(Some(Ok(self.hand_over(frame, now))))
            }
            Poll::Ready(None) => {
                self.complete(clock::now());
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(_))) => {
                self.fail(Outcome::BrokenOff, cx);
                Poll::Pending
            }
            Poll::Pending => {
                if let Poll::Ready(outcome) = self.poll_patience(cx) {
                    self.fail(outcome, cx);
                }
                Poll::Pending
            }
        }
    }
}

impl<Io: Transport> Body for Answer<Io> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        streams::asked();
        match self.get_mut() {
            Self::Own(bytes) => {
                let bytes = bytes.take();
                if bytes.is_some() {
                    streams::handed_over(None, clock::now());
                }
                Poll::Ready(bytes.map(|it| Ok(Frame::data(it))))
            }
            Self::Relay(relay) => relay.poll_relay(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Relay(relay) => relay.failed.is_none() && relay.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => {
                let len = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(len).unwrap_or(u64::MAX))
            }
            Self::Relay(relay) => relay.size_hint(),
        }
    }
}
