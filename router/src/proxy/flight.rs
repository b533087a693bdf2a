//! One request at one endpoint: its lease and its account, both closed by drop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::access::Line;
use crate::client::{Active, Client};
use crate::clock;
use crate::fleet::Fleet;
use crate::fleet::lease::Lease;
use crate::outcome::Outcome;
use crate::serve::streams;
use crate::upstream::upload::Progress;

/// Unless somebody says how it ended, the client left.
#[derive(Debug)]
pub struct Flight {
    pub lease: Lease,
    fleet: Arc<Fleet>,
    client: Arc<Client>,
    /// While it lives, limits on idle connections and slow heads do not apply.
    _active: Active,
    progress: Arc<Progress>,
    arrived: Instant,
    status: Option<u16>,
    is_stream: bool,
    first_at: Option<Instant>,
    last_at: Option<Instant>,
    bytes_out: u64,
    /// How it ended, and when.
    ended: Option<(Outcome, Instant)>,
    closed: bool,
    line: Option<Box<Line>>,
}

impl Flight {
    pub fn new(
        lease: Lease,
        fleet: Arc<Fleet>,
        client: Arc<Client>,
        progress: Arc<Progress>,
        arrived: Instant,
        line: Option<Box<Line>>,
    ) -> Self {
        let member = lease.member();
        member.state.metrics.routed(member.spec.role, lease.reason());
        Self {
            lease,
            fleet,
            _active: client.begin(),
            client,
            progress,
            arrived,
            status: None,
            is_stream: false,
            first_at: None,
            last_at: None,
            bytes_out: 0,
            ended: None,
            closed: false,
            line,
        }
    }

    /// The head of the answer came.
    pub fn on_head(&mut self, status: u16, is_stream: bool) {
        self.status = Some(status);
        self.is_stream = is_stream;
        self.lease.member().state.metrics.responded(status);
    }

    /// Bytes of the answer came.
    pub fn on_bytes(&mut self, len: usize, now: Instant) {
        self.bytes_out += u64::try_from(len).unwrap_or(u64::MAX);
        let state = &self.lease.member().state;
        if let Some(last) = self.last_at {
            if self.is_stream {
                let gap = now.saturating_duration_since(last);
                state.metrics.between_tokens.observe(gap.as_secs_f64());
            }
        } else {
            self.first_at = Some(now);
            if self.status.is_some_and(|it| it < 300) && !self.lease.is_light() {
                let wait = now.saturating_duration_since(self.arrived);
                state.metrics.first_token.observe(wait.as_secs_f64());
            }
        }
        self.last_at = Some(now);
        state.note_flow(self.fleet.millis(now));
    }

    /// The client's body has been passed on to its end.
    pub fn has_whole_request(&self) -> bool {
        self.progress.ended.load(Ordering::Relaxed)
    }

    /// Says how it ended; the first word counts.
    pub fn end(&mut self, outcome: Outcome, now: Instant) {
        if self.ended.is_none() {
            self.ended = Some((outcome, now));
            self.lease.report(outcome.report(self.status), now);
        }
    }

    /// Ends the account and gives the line of the log back, for another attempt.
    pub fn into_line(mut self) -> Option<Box<Line>> {
        self.close();
        self.line.take()
    }

    fn close(&mut self) {
        if self.closed {
            return;
        }
        self.closed = true;
        let (outcome, now) = self.ended.unwrap_or_else(|| {
            let has_stalled = self.client.has_stalled();
            let gone = if has_stalled { Outcome::ClientStalled } else { Outcome::ClientGone };
            (streams::late().unwrap_or(gone), clock::now())
        });
        self.end(outcome, now);
        let member = self.lease.member();
        let metrics = &member.state.metrics;
        metrics.ended(outcome);
        let bytes_in = self.progress.bytes.load(Ordering::Relaxed);
        metrics.bytes_in.inc_by(bytes_in);
        metrics.bytes_out.inc_by(self.bytes_out);
        let elapsed = now.saturating_duration_since(self.arrived);
        metrics.request_time.observe(elapsed.as_secs_f64());
        if let Some(line) = &mut self.line {
            line.endpoint = Some(Arc::clone(&member.spec.name));
            line.reason = Some(self.lease.reason().label());
            line.outcome = outcome.label();
            line.status = self.status.or(line.status);
            line.bytes_in = bytes_in;
            line.bytes_out = self.bytes_out;
            let first = self.first_at.map(|it| it.saturating_duration_since(self.arrived));
            line.first_byte = first;
            line.elapsed = elapsed;
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.close();
    }
}
