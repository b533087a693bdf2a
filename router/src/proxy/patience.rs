//! The limits on waiting for the head of an answer: an upload that stands still, a silent engine.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use crate::answer::Problem;
use crate::clock;
use crate::outcome::Outcome;
use crate::upstream::upload::Progress;

/// Which limit passed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Late {
    /// The client did not send its body.
    Body,
    /// The endpoint did not take the body, or did not begin to answer.
    FirstByte,
    Total,
}

impl Late {
    pub(super) fn problem(self) -> Problem {
        match self {
            Self::Body => Problem::BodyTimeout,
            Self::FirstByte => Problem::FirstByteTimeout,
            Self::Total => Problem::TotalTimeout,
        }
    }

    pub(super) fn outcome(self) -> Outcome {
        match self {
            Self::Body => Outcome::ClientBody,
            Self::FirstByte => Outcome::FirstByteTimeout,
            Self::Total => Outcome::TotalTimeout,
        }
    }
}

/// Watches one wait. The time for the first byte begins when the body is sent.
pub(super) struct Waiting<'a> {
    progress: &'a Progress,
    idle: Option<Duration>,
    first_byte: Option<Duration>,
    total_until: Option<Instant>,
    bytes: u64,
    ended: bool,
    since: Instant,
    sleep: Pin<&'a mut Sleep>,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(
        progress: &'a Progress,
        idle: Option<Duration>,
        first_byte: Option<Duration>,
        total_until: Option<Instant>,
        sleep: Pin<&'a mut Sleep>,
        now: Instant,
    ) -> Self {
        let ended = progress.ended.load(Ordering::Relaxed);
        Self { progress, idle, first_byte, total_until, bytes: 0, ended, since: now, sleep }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Late> {
        let ended = self.progress.ended.load(Ordering::Relaxed);
        let bytes = self.progress.bytes.load(Ordering::Relaxed);
        if ended != self.ended || bytes != self.bytes {
            (self.ended, self.bytes, self.since) = (ended, bytes, clock::now());
        }
        let limit = if ended { self.first_byte } else { self.idle };
        let moved_until = limit.map(|it| self.since + it);
        let until = match (moved_until, self.total_until) {
            (Some(moved), Some(total)) => moved.min(total),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return Poll::Pending,
        };
        // A later limit is only set when the sleep ends, so that progress sets no timer.
        if tokio::time::Instant::from_std(until) < self.sleep.deadline() {
            self.sleep.as_mut().reset(until.into());
        }
        while self.sleep.as_mut().poll(cx).is_ready() {
            if until <= clock::now() {
                return Poll::Ready(self.late(until));
            }
            self.sleep.as_mut().reset(until.into());
        }
        Poll::Pending
    }

    fn late(&self, until: Instant) -> Late {
        if self.total_until == Some(until) {
            Late::Total
        } else if !self.ended && self.progress.starved.load(Ordering::Relaxed) {
            Late::Body
        } else {
            Late::FirstByte
        }
    }
}
